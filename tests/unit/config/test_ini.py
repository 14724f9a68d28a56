"""The ini reader on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lavinmq.config import ini


@given(
    st.text(alphabet=st.sampled_from("[]=;#\n\r\t \0\x85\u2028:amqpinsort1-é") | st.characters())
)
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    try:
        sections = ini.read(text)
    except ini.IniSyntaxError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        return
    written = "".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in content.items())
        for section, content in sections.items()
    )
    assert ini.read(written) == sections
