"""The parameter of a shovel as values: every key checked, unknown ones refused by name.

Keys are LavinMQ's and RabbitMQ's. Source: docs/shovels.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lavinmq.nearest import hint
from lavinmq.shovel import places
from lavinmq.shovel.places import Place

MAX_PREFETCH: Final = 65_535
MAX_DELAY_S: Final = 86_400
MAX_COUNT: Final = 1 << 62
ACK_MODES: Final = ("on-confirm", "on-publish", "no-ack")
FAILOVERS: Final = ("ordered", "shuffle", "round-robin")
PROPERTIES: Final = frozenset({
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
})  # fmt: skip
ALSO: Final = {
    "prefetch-count": "src-prefetch-count",
    "delete-after": "src-delete-after",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
"""Older names of keys."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages come from. `left_after`: None = for ever, -1 = what is there at the start."""

    places: tuple[Place, ...]
    failover: str
    queue: str | None
    exchange: str | None
    key: str
    prefetch: int
    arguments: Mapping[str, Any]
    queue_arguments: Mapping[str, Any]
    is_predeclared: bool
    left_after: int | None

    @property
    def is_stream(self) -> bool:
        """Whether it is read by offsets."""
        return "x-stream-offset" in self.arguments


@dataclass(frozen=True, slots=True)
class Destination:
    """Where they go. `exchange`, `key`: None = the message's own."""

    places: tuple[Place, ...]
    failover: str
    queue: str | None
    exchange: str | None
    key: str | None
    queue_arguments: Mapping[str, Any]
    is_predeclared: bool
    adds_forward: bool
    adds_timestamp: bool
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Values:
    """A shovel."""

    source: Source
    destination: Destination
    ack_mode: str
    delay_s: float


def parse(value: Any, vhost: str) -> Values:
    """Read a parameter. Args: vhost: whose it is. Raises: ValueError, which names the key."""
    if not isinstance(value, dict):
        raise ValueError("Field 'value' must be an object")
    for key in value:
        if key not in KEYS:
            raise ValueError(f"A shovel has no key '{key}'{hint(key, KEYS)}")
    given = {ALSO.get(key, key): each for key, each in value.items() if each is not None}
    for key, each in given.items():
        KEYS[key](key, each)
    for side in ("src", "dest"):
        if given.get(f"{side}-protocol", "amqp091") not in ("amqp091", "local"):
            raise ValueError(f"Field '{side}-protocol' must be one of amqp091, local")
    if not given.get("src-queue") and not given.get("src-exchange"):
        raise ValueError("Shovel source requires a queue or an exchange")
    if given.get("src-queue") and given.get("src-exchange"):
        raise ValueError("A shovel has 'src-queue' or 'src-exchange', not both")
    if given.get("dest-queue") is None and given.get("dest-exchange") is None:
        raise ValueError("Shovel destination requires queue and/or exchange")
    if given.get("dest-queue") and given.get("dest-exchange"):
        raise ValueError("A shovel has 'dest-queue' or 'dest-exchange', not both")
    for field in ("src-uri", "dest-uri"):
        if field not in given:
            raise ValueError(f"Shovel requires field '{field}', a string or an array")
    queue = given.get("dest-queue")
    ack_mode = _word(given.get("ack-mode", "on-confirm"), ACK_MODES)
    left_after = given.get("src-delete-after", "never")
    if isinstance(left_after, str):
        left_after = None if _word(left_after, ("never", "queue-length")) == "never" else -1
    if left_after is not None and ack_mode == "no-ack" and left_after > 0:
        raise ValueError("Field 'src-delete-after' as a number needs another ack-mode than no-ack")
    return Values(
        Source(
            _places("src-uri", given["src-uri"], vhost), given.get("src-failover", "shuffle"),
            given.get("src-queue"), given.get("src-exchange"), given.get("src-exchange-key", ""),
            given.get("src-prefetch-count", 1000), given.get("src-consumer-args", {}),
            given.get("src-queue-args", {}), given.get("src-predeclared", False), left_after,
        ),
        Destination(
            _places("dest-uri", given["dest-uri"], vhost), given.get("dest-failover", "shuffle"),
            queue or None, "" if queue else given.get("dest-exchange"),
            queue or given.get("dest-exchange-key"), given.get("dest-queue-args", {}),
            given.get("dest-predeclared", False), given.get("dest-add-forward-headers", False),
            given.get("dest-add-timestamp-header", False),
            given.get("dest-publish-properties", {}),
        ),
        ack_mode, float(given.get("reconnect-delay", 5)),
    )  # fmt: skip


def _places(key: str, value: Any, vhost: str) -> tuple[Place, ...]:
    found = []
    for number, uri in enumerate(uris(value)):
        try:
            found.append(places.parse(uri, vhost))
        except ValueError as error:
            which = f"Field '{key}'" if isinstance(value, str) else f"Item {number} of '{key}'"
            raise ValueError(f"{which} {error}") from None
    return tuple(found)


def uris(value: Any) -> list[str]:
    """One URI or a list of them; empty for anything else."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(uri, str) and uri for uri in found):
        return []
    return found


def _word(value: str, words: tuple[str, ...]) -> str:
    """A word however it is written, or the text itself."""
    plain = value.lower().replace("-", "").replace("_", "")
    return next((word for word in words if word.replace("-", "") == plain), value)


Check = Callable[[str, Any], None]


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"Field '{key}' must be a string")


def _name(key: str, value: Any) -> None:
    _text(key, value)
    if len(value.encode(errors="surrogateescape")) > 255:
        raise ValueError(f"Field '{key}' is longer than 255 bytes")


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"Field '{key}' must be true or false")


def _table(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"Field '{key}' must be an object")


def _uri(key: str, value: Any) -> None:
    if not uris(value):
        raise ValueError(f"Shovel requires field '{key}', a string or an array")


def _number(least: int, most: int) -> Check:
    def check(key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"Field '{key}' must be a whole number from {least} to {most}")

    return check


def _one_of(*words: str) -> Check:
    def check(key: str, value: Any) -> None:
        if not isinstance(value, str) or _word(value, words) not in words:
            raise ValueError(f"Field '{key}' must be one of {', '.join(words)}")

    return check


def _after(key: str, value: Any) -> None:
    if isinstance(value, str):
        _one_of("never", "queue-length")(key, value)
    else:
        _number(1, MAX_COUNT)(key, value)


def _properties(key: str, value: Any) -> None:
    _table(key, value)
    for name in value:
        if name not in PROPERTIES:
            raise ValueError(f"Field '{key}' has no property '{name}'{hint(name, PROPERTIES)}")
    from lavinmq.client._engine import ValueNotEncodable, encode_properties

    try:
        encode_properties(value)
    except ValueNotEncodable as error:
        raise ValueError(f"Field '{key}' is refused: {error}") from None


KEYS: Final[dict[str, Check]] = {
    "src-uri": _uri,
    "src-protocol": _text,
    "src-failover": _one_of(*FAILOVERS),
    "src-queue": _name,
    "src-queue-args": _table,
    "src-exchange": _name,
    "src-exchange-key": _name,
    "src-prefetch-count": _number(1, MAX_PREFETCH),
    "src-consumer-args": _table,
    "src-predeclared": _flag,
    "src-delete-after": _after,
    "dest-uri": _uri,
    "dest-protocol": _text,
    "dest-failover": _one_of(*FAILOVERS),
    "dest-queue": _name,
    "dest-queue-args": _table,
    "dest-exchange": _name,
    "dest-exchange-key": _name,
    "dest-predeclared": _flag,
    "dest-add-forward-headers": _flag,
    "dest-add-timestamp-header": _flag,
    "dest-publish-properties": _properties,
    "ack-mode": _one_of(*ACK_MODES),
    "reconnect-delay": _number(0, MAX_DELAY_S),
    "prefetch-count": _number(1, MAX_PREFETCH),
    "delete-after": _after,
    "add-forward-headers": _flag,
    "add-timestamp-header": _flag,
    "publish-properties": _properties,
}
"""Every key, and what it takes."""
