"""Reply codes and reply texts."""

import pytest

from lavinmq.errors import ChannelError, ConnectionError_, ReplyCode


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ChannelError(404, "no queue 'q'"), "NOT_FOUND - no queue 'q'"),
        (ChannelError(540), "NOT_IMPLEMENTED"),
        (ConnectionError_(403, ""), "ACCESS_REFUSED - "),
    ],
)
def test_reply_text_begins_with_the_code_name(error: ChannelError, text: str) -> None:
    assert error.reply_text == text


def test_an_error_carries_code_class_and_method() -> None:
    error = ChannelError(406, "no", 50, 10)

    assert error.code is ReplyCode.PRECONDITION_FAILED
    assert (error.class_id, error.method_id) == (50, 10)
    assert ReplyCode(404).scope == "channel"


@pytest.mark.parametrize("shift", range(4))
def test_a_long_reply_text_is_cut_between_characters(shift: int) -> None:
    error = ChannelError(404, "x" * shift + "€" * 200)

    raw = error.reply_text.encode()

    assert 252 < len(raw) <= 255
    assert raw.decode().endswith("€")


def test_a_reply_text_shows_bytes_that_are_not_utf8() -> None:
    error = ChannelError(404, "no queue " + (b"a\x80\xff").decode("utf-8", "surrogateescape"))

    assert error.reply_text == "NOT_FOUND - no queue a\\x80\\xff"


def test_a_reply_text_of_bytes_that_are_not_utf8_is_cut_as_well() -> None:
    error = ChannelError(404, (b"\x80" * 400).decode("utf-8", "surrogateescape"))

    assert 252 <= len(error.reply_text.encode()) <= 255


def test_an_unknown_reply_code_is_refused() -> None:
    with pytest.raises(ValueError, match="999"):
        ChannelError(999, "never")
