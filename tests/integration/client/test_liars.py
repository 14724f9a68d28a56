"""Brokers that lie: a clear state, an error that says something, and neither heat nor growth."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lavinmq.client import Client, ConnectionState, Error
from tests.support.client_frames import confirm, cut, delivery, frame, method
from tests.support.ports import HOST
from tests.support.waiting import wait_for

DEADLINE_S = 120.0
QUICK = "reconnect_initial_delay=0.02&reconnect_max_delay=0.1&health_interval=0.1"

Play = Callable[[socket.socket], None]


class Liar:
    """Listens, and plays a part on each connection."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.listener = socket.create_server((HOST, 0))
        self.url = f"amqp://{HOST}:{self.listener.getsockname()[1]}/?{QUICK}"
        self.connections = 0
        self._parts: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.settimeout(5)
            self._parts.append(threading.Thread(target=self._one, args=(sock,), daemon=True))
            self._parts[-1].start()

    def _one(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            self._play(sock)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for each in (self._thread, *self._parts):
            each.join(10)
            assert not each.is_alive(), "a thread of the test goes on"
        self.listener.close()


START = method(0, "connection.start", 0, 9, {"product": "liar"}, b"PLAIN", b"en_US")


def shake_hands(sock: socket.socket, tune: tuple[int, int, int] = (0, 131072, 0)) -> None:
    """The part of an honest broker, up to open-ok."""
    sock.recv(8)
    sock.sendall(START)
    sock.recv(4096)
    sock.sendall(method(0, "connection.tune", *tune))
    data = b""
    while b"\x00\x0a\x00\x28" not in data:
        more = sock.recv(4096)
        if not more:
            raise ConnectionError("the client has gone")  # and no loop that never ends
        data += more
    sock.sendall(method(0, "connection.open-ok", ""))


def then(data: bytes) -> Play:
    """Shake hands, say something, and listen on."""

    def play(sock: socket.socket) -> None:
        shake_hands(sock)
        sock.sendall(data)
        while sock.recv(4096):
            pass

    return play


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    time.sleep(0.1)


def silence(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass


LIES: dict[str, Play] = {
    "it closes at once": lambda sock: None,
    "it speaks another protocol": garbage,
    "it says nothing": silence,
    "its frames are too small": lambda sock: shake_hands(sock, (0, 100, 0)),
    "it answers what nobody asked": then(method(0, "channel.open-ok", b"")),
    "it speaks on a channel that is not open": then(method(7, "basic.ack", 1, False)),
    "it sends a frame without an end": then(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x3d\x00"),
    "it sends a frame larger than agreed": then(b"\x01\x00\x00\x7f\xff\xff\xff"),
    "it sends an unknown method": then(frame(1, 0, struct.pack(">HH", 10, 99))),
    "it sends a body on channel 0": then(frame(3, 0, b"x")),
    "it closes after the handshake": shake_hands,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_left_and_asked_again_with_pauses(lie: str) -> None:
    """A clear state, an error that says something, no busy loop, and an end in time."""
    liar = Liar(LIES[lie])
    client = Client(
        liar.url, fail_fast=False, connect_timeout=0.3, reconnect_max_attempts=4, close_timeout=0.1
    )
    try:
        client.start()
        receipt = client.producer("q").publish(b"x") if client.state.value != "closed" else None
        wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 60)

        assert client.last_error is not None
        assert liar.connections <= 6
        wait_for(lambda: receipt is None or receipt.status == "dropped", "told of its message", 60)
    except Error:  # who starts or publishes in that moment hears of it, and the tries go on
        client.close()
        assert client.state is ConnectionState.CLOSED
    finally:
        client.close()
        liar.close()


# ---- liars who go on for longer

Say = Callable[[socket.socket, int], None]
PUBLISH, CONSUME, ACK, DECLARE = (60, 40), (60, 20), (60, 80), (50, 10)
CLOSE, PART = (20, 40), (10, 50)
ANSWERS: dict[tuple[int, int], Callable[[int], bytes]] = {
    (20, 10): lambda channel: method(channel, "channel.open-ok", b""),
    (85, 10): lambda channel: method(channel, "confirm.select-ok"),
    (60, 10): lambda channel: method(channel, "basic.qos-ok"),
    CONSUME: lambda channel: method(channel, "basic.consume-ok", "c"),
    DECLARE: lambda channel: method(channel, "queue.declare-ok", "q", 0, 1),
}


def speaks(says: dict[tuple[int, int], Say]) -> Play:
    """A broker that answers what it is asked, and has something to say to some of it."""

    def play(sock: socket.socket) -> None:
        shake_hands(sock)
        data = b""
        while more := sock.recv(65536):
            data += more
            while len(data) >= 8 and len(data) >= (end := 8 + int.from_bytes(data[3:7])):
                ((kind, channel, payload),), data = cut(data[:end]), data[end:]
                what = struct.unpack_from(">HH", payload) if kind == 1 else (0, 0)
                if what in ANSWERS:
                    sock.sendall(ANSWERS[what](channel))
                if what in says:
                    says[what](sock, channel)

    return play


def leaves(data: Callable[[int], bytes]) -> Say:
    """Say something, and go away."""

    def say(sock: socket.socket, channel: int) -> None:
        sock.sendall(data(channel))
        sock.shutdown(socket.SHUT_RDWR)

    return say


def repeats(data: bytes) -> Say:
    """Say something again and again, as fast as it is taken, for a while."""

    def say(sock: socket.socket, channel: int) -> None:
        for _ in range(20):
            sock.sendall(data)
            time.sleep(0.02)

    return say


@pytest.fixture
def serving() -> Iterator[Callable[[Play], Liar]]:
    made: list[Liar] = []

    def serve(play: Play) -> Liar:
        made.append(Liar(play))
        return made[-1]

    yield serve
    for liar in made:
        liar.close()


def cpu_s(client: Client) -> float:
    """Processor time of the client's own thread."""
    thread = client._thread
    assert thread is not None and thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


LONGER: dict[str, Play] = {
    "it confirms what it was not given": speaks({
        PUBLISH: lambda sock, channel: sock.sendall(confirm(channel, 99)),
    }),
    "it confirms nothing": speaks({}),
    "it blocks for ever": speaks({
        PUBLISH: lambda sock, channel: sock.sendall(method(0, "connection.blocked", "no")),
    }),
    "it blocks and unblocks all the time": speaks({
        PUBLISH: repeats((method(0, "connection.blocked", "no")
                          + method(0, "connection.unblocked")) * 20),
    }),
    "it closes the channel each time": speaks({
        PUBLISH: lambda sock, channel: sock.sendall(
            method(channel, "channel.close", 406, "no", 60, 40)),
    }),
    "it beats all the time": speaks({PUBLISH: repeats(frame(8, 0, b"") * 100)}),
    "it opens no channel": then(b""),
    "it delivers a tag that is not next": speaks({
        CONSUME: lambda sock, channel: sock.sendall(delivery(channel, 5, b"x")),
    }),
    "it cancels each consumer": speaks({
        CONSUME: lambda sock, channel: sock.sendall(method(channel, "basic.cancel", "c", True)),
    }),
    "it closes when somebody consumes": speaks({CONSUME: leaves(lambda channel: b"")}),
}  # fmt: skip


@pytest.mark.parametrize("lie", LONGER)
def test_neither_heat_nor_growth(lie: str, serving: Callable[[Play], Liar]) -> None:
    """With the longest lives that a client has: no limit of tries, and no time-outs that are short.

    Counted is the processor time of the client's thread, which a busy machine makes no longer.
    """
    liar = serving(LONGER[lie])
    options: dict[str, Any] = {"reconnect_initial_delay": 0.05, "reconnect_max_delay": 1.0}
    if lie == "it opens no channel":
        options["rpc_timeout"] = 0.1
    kept: dict[str, Any] = {"buffer_size": 50, "buffer_policy": "drop_newest", "declare": False}
    with Client(
        liar.url.partition("?")[0], fail_fast=False, close_timeout=0.1, **options
    ) as client:
        made: list[Any] = []
        while not made:  # who asks in the moment of a connection hears that nobody answers
            with contextlib.suppress(Error):
                made.append(client.producer("q", **kept))
        (producer,) = made
        with contextlib.suppress(Error):
            client.consumer("q", declare=False)
        for _ in range(200):
            producer.publish(b"x" * 100)
        before = cpu_s(client)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            producer.publish(b"x" * 100)
            time.sleep(0.01)
        spent = cpu_s(client) - before

        assert client.state is not ConnectionState.CLOSED
        assert spent < 0.35, f"{spent:.2f} s of processor time in one second"
        assert producer.count <= 50 and len(client._core._tasks) <= 4
        assert liar.connections <= 20


# ---- how long to wait after connections that were short


def attempts_of(
    liar: Liar, count: int, use: Callable[[Client], object], first_s: float = 0.02
) -> list[int]:
    """The numbers of the first attempts to connect again, while a program uses a client."""
    attempts: list[int] = []
    options: dict[str, Any] = {"reconnect_initial_delay": first_s, "reconnect_max_delay": first_s}
    url = liar.url.partition("?")[0]
    with Client(url, fail_fast=False, close_timeout=0.1, **options) as client:
        client.on_reconnect_attempt(lambda attempt, delay: attempts.append(attempt))
        use(client)
        wait_for(lambda: len(attempts) >= count, "tried so often", 60)
    return attempts[:count]


def test_one_confirm_per_connection_is_worth_the_next_one_at_once(
    serving: Callable[[Play], Liar],
) -> None:
    """It is no busy loop: there is a pause each time, the first one."""
    liar = serving(speaks({PUBLISH: leaves(lambda channel: confirm(channel, 1))}))

    def use(client: Client) -> None:
        client.producer("q", declare=False, max_in_flight=1).publish_batch([b"x"] * 20)

    assert attempts_of(liar, 6, use) == [1] * 6


def test_a_broker_that_delivers_one_message_and_goes_is_waited_for_longer_each_time(
    serving: Callable[[Play], Liar],
) -> None:
    """It never hears of the ack, so the message comes again for ever."""
    liar = serving(speaks({CONSUME: leaves(lambda channel: delivery(channel, 1, b"x"))}))

    def use(client: Client) -> None:
        client.consumer("q", declare=False).subscribe(lambda message: None)

    # Long enough for a connection to be the shorter one on a busy machine, too.
    assert max(attempts_of(liar, 4, use, 0.3)) > 1


def test_a_broker_that_delivers_after_an_ack_has_heard_of_it(
    serving: Callable[[Play], Liar],
) -> None:
    liar = serving(speaks({
        CONSUME: lambda sock, channel: sock.sendall(delivery(channel, 1, b"x")),
        ACK: leaves(lambda channel: delivery(channel, 2, b"y")),
    }))  # fmt: skip

    def use(client: Client) -> None:
        client.consumer("q", 1, declare=False).subscribe(lambda message: None)

    assert attempts_of(liar, 6, use) == [1] * 6


def test_producers_that_have_ended_count_as_well(serving: Callable[[Play], Liar]) -> None:
    """As in a program that makes a producer for each message."""
    liar = serving(speaks({PUBLISH: leaves(lambda channel: confirm(channel, 1))}))

    def use(client: Client) -> None:
        for _ in range(7):
            with client.producer("q", declare=False) as producer:
                assert producer.publish(b"x").result(20) == "confirmed"

    assert attempts_of(liar, 6, use) == [1] * 6


def test_a_consumer_is_closed_when_both_sides_close_its_channel(
    serving: Callable[[Play], Liar],
) -> None:
    """Who leaves a `with` block is told by `on_error`, and not by an exception."""
    liar = serving(speaks({
        CLOSE: lambda sock, channel: sock.sendall(
            method(channel, "channel.close", 406, "too late", 60, 20)),
        PART: lambda sock, channel: sock.sendall(method(0, "connection.close-ok")),
    }))  # fmt: skip
    errors: list[Exception] = []
    with Client(liar.url) as client:
        client.on_error(errors.append)
        with client.consumer("q", declare=False) as consumer:
            wait_for(lambda: consumer.subscribed, "subscribed", 60)
        assert consumer.closed
        wait_for(lambda: errors, "told", 60)
    assert "too late" in str(errors[0])
