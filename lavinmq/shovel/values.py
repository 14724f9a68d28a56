"""The parameter of a shovel as values: every key checked, unknown ones refused by name.

Keys are LavinMQ's and RabbitMQ's. Source: docs/shovels.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lavinmq.client.topology import NOTHING
from lavinmq.nearest import hint
from lavinmq.shovel import checks, hook
from lavinmq.shovel.checks import (
    ACK_MODES,
    FAILOVERS,
    MAX_DELAY_S,
    MAX_PREFETCH,
    Check,
    flag,
    name,
    number,
    one_of,
    read_places,
    table,
    text,
    uris,
    word,
)
from lavinmq.shovel.hook import Hook
from lavinmq.shovel.places import Place

MAX_COUNT: Final = 1 << 62
PROTOCOLS: Final = ("amqp091", "local")
"""As RabbitMQ calls them; both are those of the URIs."""
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
    destination: Destination | Hook
    ack_mode: str
    delay_s: float


def parse(value: Any, vhost: str) -> Values:
    """Read a parameter. Args: vhost: whose it is. Raises: ValueError, which names the key."""
    given = _checked(value)
    ack_mode = word(given.get("ack-mode", "on-confirm"), ACK_MODES)
    source = _source(given, vhost, ack_mode)
    to = _hook(given) if _goes_to_http(given) else _destination(given, vhost)
    return Values(source, to, ack_mode, float(given.get("reconnect-delay", 5)))


def _checked(value: Any) -> dict[str, Any]:
    """The fields by their newer names, each of its type. Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError("Field 'value' must be an object")
    _check_protocols(value)  # first: others have keys of their own
    for key in value:
        if key not in KEYS:
            raise ValueError(f"A shovel has no key '{key}'{hint(key, KEYS)}")
    given: dict[str, Any] = {}
    for key, each in value.items():
        if each is not None:
            given[ALSO.get(key) or key] = each
    for key, each in given.items():
        if key not in ("src-uri", "dest-uri"):
            KEYS[key](key, each)
    for key in ("src-failover", "dest-failover", "dest-format"):
        if key in given:
            given[key] = word(given[key], (*FAILOVERS, *hook.FORMATS))
    _agree(given)
    return given


def _check_protocols(value: dict[str, Any]) -> None:
    """Refuse protocols that are not spoken. Raises: ValueError."""
    for key in ("src-protocol", "dest-protocol"):
        if value.get(key) not in (None, *PROTOCOLS):
            why = ": AMQP 1.0 is not spoken" if value[key] == "amqp10" else ""
            raise ValueError(f"Field '{key}' must be one of {', '.join(PROTOCOLS)}{why}")


def _agree(given: dict[str, Any]) -> None:
    """Refuse fields that do not go together. Raises: ValueError."""
    if not given.get("src-queue") and not given.get("src-exchange"):
        raise ValueError("Shovel source requires a queue or an exchange")
    is_to_http = _goes_to_http(given)
    for key in given.keys() & (OF_AMQP if is_to_http else OF_HTTP):
        raise ValueError(f"Field '{key}' is {'not ' if is_to_http else ''}for HTTP destinations")
    if not is_to_http:
        if given.get("dest-queue") is None and given.get("dest-exchange") is None:
            raise ValueError("Shovel destination requires queue and/or exchange")
        if given.get("dest-queue") and given.get("dest-exchange"):
            raise ValueError("A shovel has 'dest-queue' or 'dest-exchange', not both")
    for key in ("src-uri", "dest-uri"):
        _uri(key, given.get(key))


def _goes_to_http(given: dict[str, Any]) -> bool:
    """Raises: ValueError when some do, and some do not."""
    are = [hook.is_http(uri) for uri in uris(given.get("dest-uri"))]
    if any(are) and not all(are):
        raise ValueError("Field 'dest-uri' has URIs of HTTP and of AMQP")
    return any(are)


def _source(given: dict[str, Any], vhost: str, ack_mode: str) -> Source:
    left_after = given.get("src-delete-after", "never")
    if isinstance(left_after, str):
        left_after = None if word(left_after, ("never", "queue-length")) == "never" else -1
    elif ack_mode == "no-ack":
        raise ValueError("Field 'src-delete-after' as a number needs another ack-mode than no-ack")
    if left_after is not None and "x-stream-offset" in given.get("src-consumer-args", {}):
        raise ValueError("Field 'src-delete-after' is not for streams, which keep what they have")
    return Source(
        read_places("src-uri", given["src-uri"], vhost), given.get("src-failover", "shuffle"),
        given.get("src-queue") or None, given.get("src-exchange") or None,
        given.get("src-exchange-key", ""), given.get("src-prefetch-count", 1000),
        given.get("src-consumer-args", NOTHING), given.get("src-queue-args", NOTHING),
        given.get("src-predeclared", False), left_after,
    )  # fmt: skip


def _destination(given: dict[str, Any], vhost: str) -> Destination:
    queue = given.get("dest-queue") or None
    places = read_places("dest-uri", given["dest-uri"], vhost)
    properties = given.get("dest-publish-properties", NOTHING)
    # There rights were asked for one place and one key, and nobody logs in.
    if any(place.is_local for place in places):
        for key in ("user_id", *sorted({"CC", "BCC"} & (properties.get("headers") or {}).keys())):
            if key in properties or key != "user_id":
                raise ValueError(
                    f"Field 'dest-publish-properties' may not set '{key}' in this broker"
                )
    return Destination(
        places, given.get("dest-failover", "shuffle"),
        queue, "" if queue else given.get("dest-exchange", ""),
        queue or given.get("dest-exchange-key"), given.get("dest-queue-args", NOTHING),
        given.get("dest-predeclared", False), given.get("dest-add-forward-headers", False),
        given.get("dest-add-timestamp-header", False), properties,
    )  # fmt: skip


def _hook(given: dict[str, Any]) -> Hook:
    places = checks.read_each("dest-uri", given["dest-uri"], hook.parse_place)
    batch, form = given.get("dest-batch-size", 1), given.get("dest-format", "raw")
    if batch > 1 and form == "raw":
        raise ValueError("Field 'dest-batch-size' needs a 'dest-format' of json or cloudevents")
    secret = given.get("dest-secret")
    return Hook(
        places, given.get("dest-failover", "shuffle"), given.get("dest-in-flight", 16),
        given.get("dest-order-by", "none"), form, batch, float(given.get("dest-timeout", 30)),
        float(given.get("dest-connect-timeout", 10)),
        hook.secret_of(secret) if secret is not None else None, given.get("dest-headers", {}),
        given.get("dest-outcomes", {}),
    )  # fmt: skip


def _uri(key: str, value: Any) -> None:
    if not uris(value):
        raise ValueError(f"Shovel requires field '{key}', a string or an array")


def _after(key: str, value: Any) -> None:
    if isinstance(value, str):
        one_of("never", "queue-length")(key, value)
    else:
        number(1, MAX_COUNT)(key, value)


def _properties(key: str, value: Any) -> None:
    table(key, value)
    for each in value:
        if each not in PROPERTIES:
            raise ValueError(f"Field '{key}' has no property '{each}'{hint(each, PROPERTIES)}")
    from lavinmq.client._engine import ValueNotEncodable, encode_properties

    if not isinstance(value.get("headers", {}), dict):
        raise ValueError(f"Field '{key}' has headers that are no object")
    if not str(value.get("expiration", 0)).isdecimal():
        raise ValueError(f"Field '{key}' has an expiration that is no number of milliseconds")
    if not isinstance(value.get("timestamp", 0), int):
        raise ValueError(f"Field '{key}' has a timestamp that is no number of seconds")
    try:
        encode_properties(value)
    except (ValueNotEncodable, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"Field '{key}' is refused: {error}") from None


KEYS: Final[dict[str, Check]] = {
    "src-uri": _uri,
    "src-protocol": text,
    "src-failover": one_of(*FAILOVERS),
    "src-queue": name,
    "src-queue-args": table,
    "src-exchange": name,
    "src-exchange-key": name,
    "src-prefetch-count": number(1, MAX_PREFETCH),
    "src-consumer-args": table,
    "src-predeclared": flag,
    "src-delete-after": _after,
    "dest-uri": _uri,
    "dest-protocol": text,
    "dest-failover": one_of(*FAILOVERS),
    "dest-queue": name,
    "dest-queue-args": table,
    "dest-exchange": name,
    "dest-exchange-key": name,
    "dest-predeclared": flag,
    "dest-add-forward-headers": flag,
    "dest-add-timestamp-header": flag,
    "dest-publish-properties": _properties,
    "dest-in-flight": number(1, hook.MAX_IN_FLIGHT),
    "dest-order-by": hook.check_order,
    "dest-format": one_of(*hook.FORMATS),
    "dest-batch-size": number(1, hook.MAX_BATCH),
    "dest-timeout": number(1, hook.MAX_TIMEOUT_S),
    "dest-connect-timeout": number(1, hook.MAX_TIMEOUT_S),
    "dest-secret": hook.check_secret,
    "dest-headers": hook.check_headers,
    "dest-outcomes": hook.check_outcomes,
    "ack-mode": one_of(*ACK_MODES),
    "reconnect-delay": number(0, MAX_DELAY_S),
    "prefetch-count": number(1, MAX_PREFETCH),
    "delete-after": _after,
    "add-forward-headers": flag,
    "add-timestamp-header": flag,
    "publish-properties": _properties,
}
"""Every key, and what it takes."""
OF_HTTP: Final = frozenset({
    "dest-in-flight", "dest-order-by", "dest-format", "dest-batch-size", "dest-timeout",
    "dest-connect-timeout", "dest-secret", "dest-headers", "dest-outcomes",
})  # fmt: skip
OF_AMQP: Final = frozenset({
    "dest-queue-args", "dest-predeclared", "dest-add-forward-headers", "dest-add-timestamp-header",
    "dest-publish-properties",
})  # fmt: skip
"""Queue, exchange and key are not among them: the original wants one for HTTP, too."""
