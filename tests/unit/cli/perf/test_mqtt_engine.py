"""The compiled clients of MQTT of lavinmqperf, against a broker played by the test.

SOCK_SEQPACKET keeps what was sent apart, so one read of the engine is one `send` of the test: a
stream is split exactly where the test says.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lavinmq import _perf
from lavinmq.cli.perf import mqtt_wire

TIMEOUT_S = 20.0
TOPIC = "perf-test"


def pattern(size: int) -> bytes:
    return bytes(i % 27 + 64 for i in range(size))


def message(body: bytes, packet_id: int = 0, first: int = 0x30) -> bytes:
    head = mqtt_wire.text(TOPIC) + (struct.pack(">H", packet_id) if packet_id else b"")
    return mqtt_wire.packet(first | (2 if packet_id else 0), head + body)


class Engine:
    """A client at work in a thread, and the other end of its socket."""

    def __init__(self, kind: int = socket.SOCK_STREAM) -> None:
        self.peer, self._near = socket.socketpair(socket.AF_UNIX, kind)
        self.peer.settimeout(TIMEOUT_S)
        self._near.setblocking(False)
        self._pool = ThreadPoolExecutor(1)
        self.done: Future[tuple[int, bytes]] | None = None

    def start(self, client: _perf.MqttPublisher | _perf.Consumer) -> None:
        self.done = self._pool.submit(client.run, self._near.fileno())

    def result(self) -> tuple[int, bytes]:
        assert self.done is not None
        return self.done.result(TIMEOUT_S)

    def read(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = self.peer.recv(n - len(data))
            assert more, "the engine hung up"
            data += more
        return data

    def close(self) -> None:
        self.peer.close()
        self._pool.shutdown()
        self._near.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture
def packets() -> Iterator[Engine]:
    made = Engine(socket.SOCK_SEQPACKET)
    yield made
    made.close()


def publisher(run: _perf.Run, size: int = 4, qos: int = 0, **more: object) -> _perf.MqttPublisher:
    packet = mqtt_wire.publish(TOPIC, pattern(size), qos, retain=False)
    return _perf.MqttPublisher(run, packet=packet, body_size=size, qos=qos, **more)  # type: ignore[arg-type]


def test_exactly_the_messages_asked_for_are_published(engine: Engine) -> None:
    client = publisher(_perf.Run(publish_limit=5))

    engine.start(client)

    assert engine.read(5 * len(message(pattern(4)))) == message(pattern(4)) * 5
    assert engine.result()[0] == _perf.DONE
    assert client.published == 5


def test_qos_1_waits_for_each_acknowledgement(engine: Engine) -> None:
    run = _perf.Run(publish_limit=3)
    client = publisher(run, qos=1)
    engine.start(client)

    for packet_id in (1, 2, 3):
        assert engine.read(len(message(b"abcd", 1))) == message(pattern(4), packet_id)
        engine.peer.settimeout(0.05)
        with pytest.raises(TimeoutError):
            engine.peer.recv(1)
        engine.peer.settimeout(TIMEOUT_S)
        engine.peer.sendall(b"\x40\2" + struct.pack(">H", packet_id))

    assert engine.result()[0] == _perf.DONE
    assert (client.published, client.confirmed) == (3, 3)


def test_a_window_lets_several_wait_and_identifiers_go_round(engine: Engine) -> None:
    n = 70_000
    client = publisher(_perf.Run(publish_limit=n), qos=1, window=1000)
    engine.start(client)

    size, seen, acked = len(message(pattern(4), 1)), 0, 0
    buffer = b""
    while seen < n:
        buffer += engine.peer.recv(1 << 16)
        acks = b""
        while len(buffer) >= size:
            assert buffer[:size] == message(pattern(4), seen % 65535 + 1)
            acks += b"\x40\2" + buffer[size - 6 : size - 4]
            buffer = buffer[size:]
            seen += 1
        assert seen - acked <= 1000
        acked = seen
        engine.peer.sendall(acks)

    assert engine.result()[0] == _perf.DONE
    assert client.confirmed == n


@pytest.mark.parametrize(
    "answer",
    [b"\x40\2\0\0", b"\x40\2\0\7", b"\x40\1\0", b"\x90\3\0\1\0", b"\x40" + b"\xff" * 5],
)
def test_what_a_broker_may_not_say_ends_a_publisher(engine: Engine, answer: bytes) -> None:
    engine.start(publisher(_perf.Run(publish_limit=9), qos=1))
    engine.read(1)

    engine.peer.sendall(answer)

    assert engine.result()[0] == _perf.VIOLATION


def test_a_lost_connection_gives_back_what_was_not_sent() -> None:
    run = _perf.Run(publish_limit=1000)
    one = Engine()
    one.start(publisher(run, size=200_000))
    one.peer.close()
    assert one.result()[0] == _perf.LOST
    one.close()

    two = Engine()
    client = publisher(run, size=1)
    two.start(client)
    two.read(900 * len(message(b"@")))
    two.peer.close()
    two.result()
    two.close()


def test_stamps_and_random_bodies_are_new_each_time(engine: Engine) -> None:
    client = publisher(_perf.Run(publish_limit=2), size=24, stamp=True, random=True)
    before = time.monotonic_ns()
    engine.start(client)

    size = len(message(pattern(24)))
    bodies = [engine.read(size)[-24:] for _ in range(2)]

    assert bodies[0][8:] != bodies[1][8:]
    for body in bodies:
        assert before <= int.from_bytes(body[:8], "little") <= time.monotonic_ns()
    engine.result()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
def test_a_stream_may_be_split_at_any_byte(packets: Engine, step: int) -> None:
    run = _perf.Run(consume_limit=4)
    client = _perf.Consumer(run, mqtt=True, body_size=30, verify=True)
    packets.start(client)
    data = message(pattern(30)) + message(pattern(30), 7) + b"\xd0\0" + message(pattern(30), 8)
    data += b"\x90\3\0\1\1" + message(pattern(30))

    for at in range(0, len(data), step):
        packets.peer.send(data[at : at + step])

    assert packets.result()[0] == _perf.DONE
    assert (client.consumed, client.mismatched) == (4, 0)
    acks = b""
    while len(acks) < 8:
        acks += packets.peer.recv(64)
    assert acks == b"\x40\2\0\7\x40\2\0\x08"


def test_payloads_that_differ_are_counted(engine: Engine) -> None:
    client = _perf.Consumer(_perf.Run(consume_limit=3), mqtt=True, body_size=30, verify=True)
    engine.start(client)

    engine.peer.sendall(
        message(pattern(29)) + message(pattern(9) + b"x" + pattern(30)[10:]) + message(pattern(30))
    )

    assert engine.result()[0] == _perf.DONE
    assert (client.consumed, client.mismatched, client.first_mismatch) == (3, 2, (29, -1))


def test_large_and_empty_payloads_are_taken(engine: Engine) -> None:
    client = _perf.Consumer(_perf.Run(consume_limit=2), mqtt=True, body_size=400_000)
    engine.start(client)

    engine.peer.sendall(message(pattern(400_000)) + message(b""))

    assert engine.result()[0] == _perf.DONE
    assert client.consumed == 2


@pytest.mark.parametrize(
    "data",
    [b"\x90\3\0\1\x80", b"\x30\1a", b"\x30\3\0\5a", b"\x32\4\0\2ab", b"\x30" + b"\xff" * 5],
)
def test_what_a_broker_may_not_say_ends_a_subscriber(engine: Engine, data: bytes) -> None:
    engine.start(_perf.Consumer(_perf.Run(), mqtt=True))

    engine.peer.sendall(data)

    assert engine.result()[0] == _perf.VIOLATION


def test_latencies_are_sampled(engine: Engine) -> None:
    run = _perf.Run(consume_limit=1)
    engine.start(_perf.Consumer(run, mqtt=True, body_size=8, stamp=True))

    engine.peer.sendall(message((time.monotonic_ns() - 5_000_000).to_bytes(8, "little")))

    engine.result()
    count, least, _ = run.latencies()
    assert count == 1
    assert least >= 5_000_000
