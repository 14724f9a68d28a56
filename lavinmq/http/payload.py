"""Payloads of messages in JSON: text if they are UTF-8, else base64; a large one piece by piece.

Source: docs/http-api.md.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Iterator
from typing import Final

import orjson

from lavinmq import _core
from lavinmq.http.errors import bad_request
from lavinmq.http.listing import in_portions
from lavinmq.http.long_string import LongString
from lavinmq.process.portions import others_first

PIECE: Final = 3 << 16
"""Bytes that are worked on before others have their turn; base64 wants a multiple of three."""


def decode(payload: str, encoding: str) -> bytes:
    """The body that a payload stands for; base64 may have either alphabet.

    Raises: ApiError 400.
    """
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise bad_request(f"Unknown payload_encoding {encoding}")
    try:
        return base64.b64decode(payload.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"The payload is not base64: {error}") from error


async def decode_long(payload: LongString, encoding: str) -> bytearray:
    """The same for what is long, in portions. Raises: ApiError 400."""
    body = bytearray()
    try:
        async for part in in_portions(_parts(payload.pieces(), encoding)):
            body += part
    except orjson.JSONDecodeError:
        raise bad_request("Malformed JSON") from None
    return body


def _parts(pieces: Iterator[str], encoding: str) -> Iterator[bytes]:
    if encoding != "base64":
        for text in pieces:
            yield decode(text, encoding)
        return
    left = ""
    for text in pieces:
        left += text
        at = (len(left) - 1) // 4 * 4  # something is left: only what is last may be padded
        if "=" in left[:at]:
            raise bad_request("The payload is not base64: something follows its end")
        yield decode(left[:at], encoding)
        left = left[at:]
    yield decode(left, encoding)


async def encode(body: bytes | _core.FarBody, encoding: str) -> tuple[str, bytes]:
    """How a body is shown, "string" or "base64", and the JSON string of it.

    Args: encoding: "auto", or "base64" whatever it is.
    """
    if encoding == "auto":
        try:
            return "string", await _text(body)
        except UnicodeDecodeError:
            pass
    parts = []
    for at in range(0, len(body), PIECE):
        parts.append(base64.urlsafe_b64encode(body[at : at + PIECE]))
        await _others(body)
    return "base64", b'"%s"' % b"".join(parts)


async def _text(body: bytes | _core.FarBody) -> bytes:
    """UTF-8 as a JSON string. Raises: UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts = []
    for at in range(0, len(body), PIECE):
        text = decoder.decode(body[at : at + PIECE], at + PIECE >= len(body))
        parts.append(orjson.dumps(text)[1:-1])
        await _others(body)
    return b'"%s"' % b"".join(parts)


async def _others(body: bytes | _core.FarBody) -> None:
    """Let others have their turn between the pieces of a large body."""
    if len(body) > PIECE:
        await others_first()


def whole(body: bytes) -> bytes:
    """The beginning of a text without a character that was cut."""
    for n in range(1, min(4, len(body)) + 1):
        lead = body[-n]
        if lead & 0xC0 != 0x80:
            is_cut = lead >= 0xC0 and n < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)
            return body[:-n] if is_cut else body
    return body
