"""Hostile peers for tests, and the broker that they attack: small, and watched while it is.

A peer sends any bytes and reads only when it is told to. It keeps its receive buffer small, so that
what it does not read stays with the broker. A test file imports the fixtures it needs.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import pytest
from pamqp import commands

from lavinmq.files.saving import THREADS
from tests.support.broker import PORT_VARIABLE, Broker
from tests.support.nursery import COMMAND_VARIABLE
from tests.support.patience import PATIENCE
from tests.support.process import MIB, Process
from tests.support.wire import HOST, PROTOCOL_HEADER, Wire, encode, encode_publish
from tests.support.witness import Witness

FRAME_MAX = 131072
TIMEOUT_S = 10.0 * PATIENCE
RECEIVE_BUFFER = 4096
STALL_S = 0.5
"""A broker that takes nothing for so long has stopped to read."""


def login(frame_max: int = FRAME_MAX, heartbeat_s: int = 0) -> bytes:
    """All that a client says to log in, without waiting for answers."""
    return PROTOCOL_HEADER + encode(
        0,
        commands.Connection.StartOk(
            client_properties={"capabilities": {"connection.blocked": True}},
            mechanism="PLAIN",
            response="\0guest\0guest",
            locale="en_US",
        ),
        commands.Connection.TuneOk(2047, frame_max, heartbeat_s),
        commands.Connection.Open(virtual_host="/"),
    )


class Peer:
    """One connection. With `channels` empty it only logs in, and with `is_silent` not even that."""

    def __init__(
        self,
        port: int,
        channels: Iterable[int] = (1,),
        *,
        heartbeat_s: int = 0,
        is_silent: bool = False,
        source: str = "",
    ) -> None:
        self.socket = socket.socket()
        try:
            self._connect(port, source)
            if not is_silent:
                opens = b"".join(encode(channel, commands.Channel.Open()) for channel in channels)
                self.send(login(heartbeat_s=heartbeat_s) + opens)
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, port: int, source: str) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self.socket.settimeout(TIMEOUT_S)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """Send all of it. Raises: TimeoutError, ConnectionError."""
        self.socket.sendall(data)

    def push(self, data: bytes) -> int:
        """Send until the broker takes no more, and return how many bytes it took."""
        view, sent = memoryview(data), 0
        self.socket.setblocking(False)
        while sent < len(data) and self._is_ready(select.POLLOUT, STALL_S):
            try:
                sent += self.socket.send(view[sent : sent + (1 << 18)])
            except ConnectionError:
                break
        self.socket.settimeout(TIMEOUT_S)
        return sent

    def read_until(self, wanted: bytes) -> bytes:
        """Read until the bytes are there, and return all that came. Raises: TimeoutError."""
        self._want_much()
        data, looked_at = bytearray(), 0
        while data.find(wanted, looked_at) < 0:
            looked_at = max(0, len(data) - len(wanted))
            piece = self.socket.recv(1 << 17)
            assert piece, f"closed before {wanted!r} came: {bytes(data[-200:])!r}"
            data += piece
        return bytes(data)

    def drain(self) -> None:
        """Read until nothing comes for a while."""
        self._want_much()
        while self._is_ready(select.POLLIN, STALL_S):
            if not self.socket.recv(1 << 17):
                return

    def is_closed_within(self, timeout_s: float) -> bool:
        """Whether the broker ends the connection in time; what it says before is skipped."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._is_ready(select.POLLIN, left_s):
                return False
            try:
                if not self.socket.recv(1 << 17):
                    return True
            except ConnectionError:
                return True
        return False

    def _is_ready(self, event: int, timeout_s: float) -> bool:
        poller = select.poll()  # not select(): the descriptor may be a large number
        poller.register(self.socket, event)
        return bool(poller.poll(timeout_s * 1000))

    def _want_much(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def close(self) -> None:
        """Drop the socket without a word."""
        self.socket.close()

    def reset(self) -> None:
        """End with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def peers(port: int, count: int) -> Iterator[list[Peer]]:
    """So many logged-in peers, for the time of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(Peer(port)) for _ in range(count)]


@contextmanager
def fill(port: int, queue: str, content: bytes, count: int) -> Iterator[Wire]:
    """A transient queue with so many messages, for the time of the block. Yields a connection with
    channel 1 open."""
    with Wire.open(port) as wire:
        declare = commands.Queue.Declare(queue=queue)
        wire.call(1, declare, commands.Queue.DeclareOk)
        one = encode_publish(1, "", queue, content)
        step = max(1, MIB // len(one))
        for at in range(0, count, step):
            wire.send_bytes(one * min(step, count - at))
        while wire.call(1, declare, commands.Queue.DeclareOk).message_count != count:
            pass
        try:
            yield wire
        finally:
            wire.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)


# ---- the broker under attack ---------------------------------------------------------------------

LARGE_BYTES = 64 * MIB
CLOSE_TIMEOUT_S = 1.0
HANDSHAKE_TIMEOUT_S = 3.0
KEPT_BYTES = LARGE_BYTES + 32 * MIB
"""What all attacks together may leave behind: buffers that are kept, and free memory that the
allocator does not return at once."""

PROGRAM = f"""
import sys
from lavinmq import __main__, broker
from lavinmq.amqp import connection
broker.memory_for_large_messages = lambda: {LARGE_BYTES}
connection.CLOSE_TIMEOUT_S = {CLOSE_TIMEOUT_S}
connection.HANDSHAKE_TIMEOUT_S = {HANDSHAKE_TIMEOUT_S}
sys.exit(__main__.main())
"""
"""A broker on a small machine, with little patience, so that both show in a short test."""


class Target:
    """A broker that is attacked, with a witness at work."""

    def __init__(self, broker: Broker, witness: Witness) -> None:
        self.broker = broker
        self.port = broker.port
        self.witness = witness
        self.process = Process(broker.pid)
        self.process.forget_peak()
        self.before_bytes = self.process.anonymous_bytes
        self.descriptors = self.process.descriptors
        self._before_bytes = self.process.resident_bytes

    @property
    def growth_bytes(self) -> int:
        """Most memory that the attack has cost so far."""
        return self.process.peak_resident_bytes - self._before_bytes


@pytest.fixture(scope="module")
def bounded_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Broker, tuple[int, int, int]]]:
    """A running broker with `LARGE_BYTES` for large messages and short time-outs, and its memory,
    descriptors and threads while nobody is there."""
    if PORT_VARIABLE in os.environ or COMMAND_VARIABLE in os.environ:
        pytest.skip("changes constants of the broker")
    directory = tmp_path_factory.mktemp("hostile")
    ini = directory / "lavinmq.ini"
    # Descriptors and memory are those of clients alone.
    ini.write_text("[main]\ntcp_send_buffer_size = 65536\nscrub_rate = 0\n")
    command = [sys.executable, "-c", PROGRAM]
    broker = Broker(directory / "data", ["--config", str(ini)], command=command)
    try:
        broker.start()
        process = Process(broker.pid)
        with Wire.open(broker.port):
            idle = process.anonymous_bytes, process.descriptors - 1, process.threads
        yield broker, idle
    finally:
        broker.close()


@pytest.fixture
def target(bounded_broker: tuple[Broker, tuple[int, int, int]]) -> Iterator[Target]:
    """The broker, with a witness; after the test all that it took has to be given back."""
    broker, (memory_bytes, descriptors, threads) = bounded_broker
    with Witness(broker.port) as witness:
        witness.wait(1)
        attacked = Target(broker, witness)
        yield attacked
    process = attacked.process
    process.wait_for_descriptors(descriptors)
    assert process.threads <= threads + 1 + THREADS, "only those that wait for the disk come"
    process.wait_for_memory(memory_bytes + KEPT_BYTES)
    assert "bug in" not in broker.log_text()
