"""Wills in the log of sessions: from CONNECT on, so that the end of the broker does not lose them.

The form is ours alone: JSON, payload and properties in base64. Source: decision 0086.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lavinmq.auth.users import User
from lavinmq.mqtt.connect import Will

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity

KEY: Final = b"will"
"""Of the fact in the log."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A will, who left it, and when it is due: Unix milliseconds; 0: its author is connected."""

    will: Will
    user: str
    due_ms: int = 0
    is_token: bool = False
    """The user came with an access token: another start does not know what that allows."""

    @classmethod
    def of(cls, user: Identity, will: Will, due_ms: int = 0) -> Kept:
        """What a user has left."""
        return cls(will, user.name, due_ms, is_token=not isinstance(user, User))


def encode(kept: Kept) -> bytes:
    """The value of the fact."""
    will = kept.will
    return json.dumps(
        {
            "topic": will.topic, "payload": b64encode(will.payload).decode(), "qos": will.qos,
            "retain": will.retain, "delay": will.delay_s, "expiry": will.expiry_s,
            "properties": b64encode(will.properties).decode(), "user": kept.user,
            "due": kept.due_ms, **({"token": True} if kept.is_token else {}),
        }
    ).encode()  # fmt: skip


def decode(value: bytes) -> Kept | None:
    """What is in a fact; None: it is not one of ours."""
    try:
        content: dict[str, Any] = json.loads(value)
        will = Will(
            str(content["topic"]), b64decode(content["payload"]), int(content["qos"]),
            bool(content["retain"]), int(content["delay"]),
            None if content["expiry"] is None else int(content["expiry"]),
            b64decode(content["properties"]),
        )  # fmt: skip
        is_token = bool(content.get("token"))
        return Kept(will, str(content["user"]), int(content["due"]), is_token)
    except (ValueError, KeyError, TypeError):
        return None
