"""The JSON of a message that stays where it is: browsed, or seen as it passes.

Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import Any

from lavinmq.http import encoding, payload, properties


async def to_json(
    own: dict[str, Any], exchange: bytes, key: bytes, raw: bytes, size: int, body: bytes, how: str
) -> bytes:
    """Return what `own` tells, and what every message has.

    Args: raw: the properties as they are on the wire; size: bytes of the whole body; body: as much
        of it as is shown; how: the `encoding` that was asked for.
    """
    kind, text = await payload.encode(payload.whole(body) if len(body) < size else body, how)
    head = {
        **own,
        "payload_bytes": size,
        "exchange": exchange.decode("utf-8", "surrogateescape"),
        "routing_key": key.decode("utf-8", "surrogateescape"),
        "payload_encoding": kind,
    }
    shown = await properties.to_json(raw)
    return b"".join(
        (encoding.encode(head)[:-1], b',"properties":', shown, b',"payload":', text, b"}")
    )
