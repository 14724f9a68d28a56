"""Payloads of messages in JSON: text, base64, and large ones in pieces."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http import payload
from lavinmq.http.errors import ApiError


def shown(body: bytes, encoding: str = "auto") -> tuple[str, str]:
    """How a body is shown."""
    kind, text = asyncio.run(payload.encode(body, encoding))
    return kind, json.loads(text)


@given(st.text(st.characters(codec="utf-8")))
def test_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text.encode()) == ("string", text)


@given(st.binary())
def test_whatever_is_shown_can_be_published_again(body: bytes) -> None:
    kind, text = shown(body)
    assert payload.decode(text, kind) == body
    assert payload.decode(*reversed(shown(body, "base64"))) == body


@pytest.mark.parametrize("size", [payload.PIECE - 1, payload.PIECE, 2 * payload.PIECE + 5])
@pytest.mark.parametrize("unit", [b"x", "ü".encode(), "✓".encode(), b'"\\\n', b"\x00\xff"])
def test_a_large_body_is_the_sum_of_its_pieces(size: int, unit: bytes) -> None:
    body = (unit * size)[:size]
    kind, text = shown(body)

    assert payload.decode(text, kind) == body
    assert kind == ("string" if _is_text(body) else "base64")


def _is_text(body: bytes) -> bool:
    try:
        return body.decode() is not None
    except UnicodeDecodeError:
        return False


def test_base64_is_safe_in_urls_when_shown_and_either_when_taken() -> None:
    body = b"\x00\xff\xfe\xff\xfe\xfd"

    assert shown(body) == ("base64", "AP_-__79")
    assert payload.decode("AP/+//79", "base64") == payload.decode("AP_-__79", "base64") == body


@pytest.mark.parametrize("text", ["%%%", "a", "aGVsbG8", "aGVs bG8=", "ü"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="The payload is not base64"):
        payload.decode(text, "base64")


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ApiError, match="Unknown payload_encoding utf9"):
        payload.decode("x", "utf9")


def test_base64_of_a_body_is_that_of_the_standard_but_for_two_letters() -> None:
    body = bytes(range(256)) * 1000
    assert shown(body)[1] == base64.urlsafe_b64encode(body).decode()
