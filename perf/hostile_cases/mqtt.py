"""Clients of MQTT at their worst: long topics, slow filters, crowds of subscriptions and of what is
retained, packets in crumbs, one that does not read, storms, floods."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from perf.hostile_cases.peer import HOST, TIMEOUT_S, Broker
from perf.measure import raise_descriptor_limit

CHUNK = 1 << 20
MAX_TOPIC = 65_535
SUBSCRIPTIONS = 10_000
RETAINED = 1_000_000
CRUMBS = 3_000
STORM = 400
WILLS = 1_000
IN_FLIGHT = 65_535
KEPT = b"\x05\x11\0\0\x0e\x10"
"""Properties of CONNECT: a session that lives for an hour without its client."""


class Peer:
    """A connection of MQTT 5 that has logged in."""

    def __init__(
        self, broker: Broker, name: str, will: bytes = b"", properties: bytes = b"\0",
        *, is_clean: bool = True,
    ) -> None:  # fmt: skip
        self.socket = socket.create_connection((HOST, broker.mqtt_port), TIMEOUT_S)
        self.socket.sendall(connect(name, will, properties, is_clean=is_clean))
        self._left = b""
        self.until(2)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def until(self, kind: int, count: int = 1) -> None:
        """Read until so many packets of a type have come. Raises: OSError, when it is closed."""
        data, at = self._left, 0
        while True:
            while (end := end_of(data, at)) and end <= len(data):
                count -= data[at] >> 4 == kind
                at = end
                if count == 0:
                    self._left = data[at:]
                    return
            more = self.socket.recv(CHUNK)
            if not more:
                raise ConnectionResetError("closed by the broker")
            data, at = data[at:] + more, 0

    def settle(self) -> None:
        """Wait until all that was sent before is dealt with."""
        self.send(b"\xc0\0")
        self.until(13)


def end_of(data: bytes, at: int) -> int:
    """Where the packet at a place ends; 0: its length has not come yet."""
    length = shift = 0
    place = at + 1
    while place < len(data):
        length |= (data[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if data[place - 1] < 128:
            return place + length
    return 0


def packet(first: int, body: bytes) -> bytes:
    """A packet with its fixed header."""
    size, n = b"", len(body)
    while n > 127:
        size, n = size + bytes([n & 127 | 128]), n >> 7
    return bytes([first]) + size + bytes([n]) + body


def text(value: bytes) -> bytes:
    """A text with its length."""
    return len(value).to_bytes(2, "big") + value


def connect(name: str, will: bytes = b"", properties: bytes = b"\0", *, is_clean: bool) -> bytes:
    """A CONNECT; `will`: its topic, with QoS 1."""
    flags = 0xC0 | (0x0C if will else 0) | 2 * is_clean
    left = b"\0" + text(will) + text(b"gone") if will else b""
    head = text(b"MQTT") + bytes([5, flags]) + b"\0\0" + properties + text(name.encode())
    return packet(0x10, head + left + text(b"guest") * 2)


def subscribe(*filters: bytes, qos: int = 0) -> bytes:
    """A SUBSCRIBE."""
    return packet(0x82, b"\0\1\0" + b"".join(text(each) + bytes([qos]) for each in filters))


def publish(topic: bytes, body: bytes = b"", qos: int = 0, n: int = 1, retain: int = 0) -> bytes:
    """A PUBLISH."""
    number = n.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + number + b"\0" + body)


@contextmanager
def client(broker: Broker, name: str = "hostile") -> Iterator[Peer]:
    """A connection that is given up in the end."""
    peer = Peer(broker, name)
    try:
        yield peer
    finally:
        peer.socket.close()


def memory_mib(broker: Broker) -> int:
    """What the broker's process holds that is not in files."""
    with open(f"/proc/{broker.pid}/status", encoding="ascii") as lines:
        return next(int(each.split()[1]) // 1024 for each in lines if each.startswith("RssAnon"))


def mqtt_long_topics(broker: Broker) -> None:
    """2 000 publishes to topics of 65 535 bytes and 32 768 levels, with 200 filters that match."""
    with client(broker) as peer:
        filters = [b"/".join([b"+"] * n) + b"/#" for n in range(1, 201)]
        peer.send(subscribe(*filters))
        peer.until(9)
        sent = publish(b"a/" * (MAX_TOPIC // 2) + b"a") * 20
        with broker.watched():
            for _ in range(100):
                peer.send(sent)
                peer.until(3, 20)


def mqtt_slow_filters(broker: Broker) -> None:
    """300 publishes that match 4 096 filters of one client: `+` or `a` at each of 12 levels."""
    with client(broker) as peer:
        filters = [b"/".join(each) for each in itertools.product((b"+", b"a"), repeat=12)]
        for at in range(0, len(filters), 512):
            peer.send(subscribe(*filters[at : at + 512]))
            peer.until(9)
        with broker.watched():
            peer.send(publish(b"a/" * 11 + b"a") * 300)
            peer.settle()


def mqtt_subscriptions(broker: Broker) -> None:
    """10 000 subscriptions of one client that is kept, in one packet, and their end."""
    with broker.watched():
        peer = Peer(broker, "hostile", properties=KEPT, is_clean=False)
        peer.send(subscribe(*(b"%d/+/#" % n for n in range(SUBSCRIPTIONS)), qos=1))
        peer.until(9)
        peer.socket.close()
        with client(broker) as again:  # whose clean start ends all of them
            again.settle()


def mqtt_retained(broker: Broker) -> None:
    """A subscription to `#`, with 1 000 000 retained messages."""
    with client(broker) as peer:
        for at in range(0, RETAINED, 10_000):
            peer.send(b"".join(
                publish(b"r/%d/%d" % (n % 1000, n), b"kept", retain=1)
                for n in range(at, at + 10_000)
            ))  # fmt: skip
            peer.settle()
        held = memory_mib(broker)
        with broker.watched():
            peer.send(subscribe(b"#"))
            peer.until(3, RETAINED)
        broker.refusals.append(f"memory +{memory_mib(broker) - held} MiB of {held}")


def mqtt_crumbs(broker: Broker) -> None:
    """3 000 connections, each of which is cut behind another byte of its packets."""
    raise_descriptor_limit()
    whole = (
        connect("crumb", b"w", b"\0", is_clean=True) + subscribe(b"a/+", b"#", qos=2)
        + publish(b"a/b", b"x" * 40, 2) + packet(0x62, b"\0\1") + publish(b"a", b"", 1, 2, 1)
        + packet(0xA2, b"\0\2\0" + text(b"#")) + b"\xe0\0"
    )  # fmt: skip
    with broker.watched():
        for n in range(CRUMBS):
            with socket.socket() as sock, suppress(OSError):
                sock.bind((f"127.0.1.{1 + n % 250}", 0))
                sock.connect((HOST, broker.mqtt_port))
                sock.sendall(whole[: 1 + n % len(whole)])


def mqtt_never_reads(broker: Broker) -> None:
    """2 000 000 messages for a client that does not read, of QoS 0, 200 bytes each."""
    with client(broker, "deaf") as deaf, client(broker) as peer:
        deaf.send(subscribe(b"#"))
        deaf.until(9)
        held = memory_mib(broker)
        sent = publish(b"t", bytes(200)) * 4000
        with broker.watched():
            for _ in range(500):
                peer.send(sent)
            peer.settle()
        broker.refusals.append(f"memory +{memory_mib(broker) - held} MiB")


def mqtt_takeovers(broker: Broker) -> None:
    """400 connections that take one session of 1 000 subscriptions from each other."""
    with ExitStack() as stack, broker.watched():
        first = Peer(broker, "one", properties=KEPT, is_clean=False)
        first.send(subscribe(*(b"%d/#" % n for n in range(1000)), qos=1))
        first.until(9)
        for _ in range(STORM):
            sock = stack.enter_context(socket.create_connection((HOST, broker.mqtt_port)))
            sock.sendall(connect("one", b"w", KEPT, is_clean=False))
        last = Peer(broker, "one", properties=KEPT, is_clean=False)
        last.settle()
        last.socket.close()


def mqtt_wills(broker: Broker) -> None:
    """1 000 clients that are lost at once, each of which has subscribed to the wills of all."""
    raise_descriptor_limit()
    peers = [Peer(broker, f"w{n}", b"wills/%d" % n) for n in range(WILLS)]
    for peer in peers:
        peer.send(subscribe(b"wills/#", qos=1))
        peer.until(9)
    with client(broker) as watch:
        watch.send(subscribe(b"wills/#", qos=1))
        watch.until(9)
        with broker.watched():
            for peer in peers:
                peer.socket.close()
            watch.until(3, WILLS)


def mqtt_in_flight(broker: Broker) -> None:
    """All 65 535 packet identifiers in use, 200 000 messages behind, and the client comes again."""
    held = 200_000
    peer = Peer(broker, "busy", properties=KEPT, is_clean=False)
    peer.send(subscribe(b"t", qos=1))
    peer.until(9)
    with client(broker) as sender:
        for at in range(0, IN_FLIGHT + held, 1000):
            sender.send(b"".join(publish(b"t", b"x", 1, 1 + n) for n in range(1000)))
            sender.until(4, 1000)
            if at < IN_FLIGHT - 1000:
                peer.until(3, 1000)
        with broker.watched():
            for _ in range(5):
                peer.socket.close()
                peer = Peer(broker, "busy", properties=KEPT, is_clean=False)
                peer.until(3, IN_FLIGHT)
    peer.socket.close()


def mqtt_subscribe_in_flood(broker: Broker) -> None:
    """5 000 SUBSCRIBEs and UNSUBSCRIBEs while another client publishes as fast as it can."""
    with client(broker) as peer, client(broker, "flood") as flood:
        sent = publish(b"a/b", b"x") * 2000
        with broker.watched():
            deadline = time.monotonic() + 60
            for n in range(5000):
                if n % 50 == 0 and time.monotonic() < deadline:
                    flood.send(sent)
                peer.send(subscribe(b"a/%d" % n, b"a/+"))
                peer.until(9)
                peer.send(packet(0xA2, b"\0\2\0" + text(b"a/+")))
                peer.until(11)
            flood.settle()


CASES = (
    mqtt_long_topics, mqtt_slow_filters, mqtt_subscriptions, mqtt_retained, mqtt_crumbs,
    mqtt_never_reads, mqtt_takeovers, mqtt_wills, mqtt_in_flight, mqtt_subscribe_in_flood,
)  # fmt: skip
