"""MQTT packets as a client makes them, written without the broker's own code."""

from __future__ import annotations

V31, V311, V5 = 3, 4, 5


def varint(n: int) -> bytes:
    """A variable byte integer."""
    out = b""
    while True:
        n, low = divmod(n, 128)
        out += bytes([low | (0x80 if n else 0)])
        if not n:
            return out


def text(value: str | bytes) -> bytes:
    """A text or binary data with its length."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def block(*properties: bytes) -> bytes:
    """Properties with their length."""
    content = b"".join(properties)
    return varint(len(content)) + content


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    """A packet with its fixed header."""
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


def connect_body(
    level: int = V311, client_id: str | bytes = "c", *, flags: int = 2, keep_alive: int = 60,
    name: str | None = None, properties: bytes | None = None, rest: bytes = b"",
) -> bytes:  # fmt: skip
    """The body of CONNECT. Args: rest: what follows the client identifier."""
    name = name or ("MQIsdp" if level == V31 else "MQTT")
    given = (block() if properties is None else properties) if level == V5 else b""
    head = text(name) + bytes([level, flags]) + keep_alive.to_bytes(2, "big") + given
    return head + text(client_id) + rest


def connect(
    level: int = V311, client_id: str | bytes = "c", *, user: str | None = "guest",
    password: str | None = "guest", clean: bool = True, keep_alive: int = 60,
    properties: bytes | None = None, will: tuple[str, bytes, int, bool] | None = None,
    will_properties: bytes | None = None,
) -> bytes:  # fmt: skip
    """A whole CONNECT. Args: will: topic, payload, QoS, retain."""
    flags, rest = 2 * clean, b""
    if will is not None:
        topic, payload, qos, retain = will
        flags |= 0x04 | qos << 3 | 0x20 * retain
        if level == V5:
            rest += block() if will_properties is None else will_properties
        rest += text(topic) + text(payload)
    if user is not None:
        flags |= 0x80
        rest += text(user)
    if password is not None:
        flags |= 0x40
        rest += text(password)
    body = connect_body(
        level, client_id, flags=flags, keep_alive=keep_alive, properties=properties, rest=rest
    )
    return packet(1, body)


def subscribe_body(
    level: int, packet_id: int, *wishes: tuple[str | bytes, int], properties: bytes | None = None
) -> bytes:
    """The body of SUBSCRIBE. Args: wishes: filters with their options."""
    given = (block() if properties is None else properties) if level == V5 else b""
    return packet_id.to_bytes(2, "big") + given + b"".join(
        text(each) + bytes([options]) for each, options in wishes
    )  # fmt: skip


def subscribe(
    level: int, packet_id: int, *wishes: tuple[str | bytes, int], properties: bytes | None = None
) -> bytes:
    """A whole SUBSCRIBE."""
    return packet(8, subscribe_body(level, packet_id, *wishes, properties=properties), 2)


def unsubscribe(level: int, packet_id: int, *filters: str | bytes) -> bytes:
    """A whole UNSUBSCRIBE."""
    given = block() if level == V5 else b""
    return packet(10, packet_id.to_bytes(2, "big") + given + b"".join(map(text, filters)), 2)


def publish(
    level: int, topic: str | bytes, payload: bytes = b"", *, qos: int = 0, packet_id: int = 0,
    retain: bool = False, dup: bool = False, properties: bytes | None = None,
) -> bytes:  # fmt: skip
    """A whole PUBLISH."""
    body = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"")
    if level == V5:
        body += block() if properties is None else properties
    return packet(3, body + payload, dup << 3 | qos << 1 | retain)
