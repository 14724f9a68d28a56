"""The long string of a JSON text: found, and cut where it may be; what is beside it is bounded."""

from __future__ import annotations

import asyncio
import base64
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http import payload
from lavinmq.http.errors import ApiError
from lavinmq.http.long_string import LONG, PIECE, LongString, Search, TooWideError

LIMIT = 100
UNITS = ["x", "ü", "✓", "\U0001f600", "\n", '"', "\\", "\x00", "a\U0001f600b\u2028"]


def found(content: bytes) -> LongString | None:
    search = Search(content, LIMIT)
    for _ in search.steps():
        pass
    return search.found


def in_text(text: str, *, is_ascii: bool = False) -> LongString:
    content = json.dumps({"a": "b", "payload": text, "c": 1}, ensure_ascii=is_ascii).encode()
    string = found(content)
    assert string is not None
    rest = json.loads(string.replaced(b"mark"))
    assert rest == {"a": "b", "payload": "mark", "c": 1}
    return string


@pytest.mark.parametrize("is_ascii", [True, False], ids=["escaped", "utf-8"])
@pytest.mark.parametrize("unit", UNITS)
def test_pieces_of_a_long_string_come_to_the_string(unit: str, is_ascii: bool) -> None:
    for before in range(12):  # wherever a piece ends
        text = "y" * before + unit * (2 * LONG // len(unit))
        assert "".join(in_text(text, is_ascii=is_ascii).pieces()) == text


@given(st.data(), st.booleans())
def test_any_text_comes_back_as_it_was(data: st.DataObject, is_ascii: bool) -> None:
    some = data.draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
    text = some * (LONG // len(some) + 1)
    assert "".join(in_text(text, is_ascii=is_ascii).pieces()) == text


def test_a_step_looks_at_one_piece() -> None:
    content = b'{"payload":"' + b"\\n" * LONG + b'"}'
    assert len(list(Search(content, LIMIT).steps())) >= 2 * LONG // PIECE


@pytest.mark.parametrize(
    ("content", "is_wide"),
    [
        (b"", False),
        (b"[" * 100, False),
        (b"[" * 101, True),
        (b'{"a": "' + b"x" * (LONG - 2) + b'"}', False),
        (b'{"a": "' + b"x" * (LONG - 3) + b'"}', True),
        (b'{"a": "' + b'\\"' * LONG + b'"}', False),
        (b'{"a": "' + b'\\"' * LONG + b'"' + b"1," * 60 + b"}", True),
        (b'{"a": "' + b"x" * LONG + b'", "b": "' + b"x" * LONG + b'"}', True),
        (b'"a",' * 25, False),
        (b'"a",' * 26, True),
    ],
)
def test_what_is_wide_is_known_without_parsing(content: bytes, is_wide: bool) -> None:
    if is_wide:
        with pytest.raises(TooWideError):
            found(content)
    else:
        found(content)


@pytest.mark.parametrize(
    "end", [b"", b"\\", b'\\"', b"\\u00", b"\\ud83d", b"\xf0\x9f", b"\x80" * PIECE]
)
def test_a_string_without_an_end_is_no_json(end: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        found(b'{"payload":"' + b"x" * LONG + end)


@pytest.mark.parametrize(
    "wrong", [b"\\x", b"\\u12g4", b"\\ud83d", b"\\udc00", b"\xff", b"\xc3", b"\n", b"\x80"]
)
def test_a_string_that_is_no_json_is_refused(wrong: bytes) -> None:
    content = b'{"payload":"' + b"x" * LONG + wrong + b'y"}'
    with pytest.raises(orjson.JSONDecodeError):
        string = found(content)
        assert string is not None
        "".join(string.pieces())


# --- as the payload of a message ------------------------------------------------------------------


def decoded(text: str, encoding: str) -> bytes:
    return bytes(asyncio.run(payload.decode_long(in_text(text), encoding)))


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_long_payload_in_base64_is_decoded(encode: object, more: int) -> None:
    body = bytes(range(256)) * 600 + b"\xff" * more
    assert callable(encode)
    assert decoded(encode(body).decode(), "base64") == body


@pytest.mark.parametrize(
    "text", ["YQ==" * LONG, "a" * (LONG + 1), "%" * LONG, "YWFh" * LONG + "YQ"]
)
def test_a_long_payload_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="The payload is not base64"):
        decoded(text, "base64")


def test_a_long_payload_of_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ApiError, match="Unknown payload_encoding utf9"):
        decoded("x" * LONG, "utf9")
