"""A proxy between a client and a broker that fails on purpose.

It refuses, resets, stalls (both ways or one), cuts in the middle of a frame, and changes what the
broker says: `judge` sees each of its frames and returns those that go on in its place. One thread
for accepting and two for each connection; `close` ends them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tests.support.ports import HOST

Frame = tuple[int, int, bytes]
Judge = Callable[[Frame], list[Frame]]


def packed(frame: Frame) -> bytes:
    """A frame as bytes."""
    kind, channel, payload = frame
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


class _Pair:
    """One connection of a client, and the one to the broker that belongs to it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, broker: socket.socket) -> None:
        self.proxy, self.client, self.broker = proxy, client, broker
        self.is_over = False
        self.lock = threading.Lock()
        self._ending = threading.Lock()
        self.threads = [
            threading.Thread(target=self._carry, args=(carry,), daemon=True)
            for carry in (self._upward, self._downward)
        ]
        self._carrying = len(self.threads)

    def start(self) -> None:
        """Carry from now on; it is known to whoever may cut it."""
        for thread in self.threads:
            thread.start()

    def _carry(self, carry: Callable[[], None]) -> None:
        """Carry one way; whoever is the last to end closes, for no thread may be in a socket then:
        its number could be another's already."""
        with contextlib.suppress(OSError):
            carry()
        self.end()
        with self.lock, self._ending:
            self._carrying -= 1
            if not self._carrying:
                self.client.close()
                self.broker.close()

    def _upward(self) -> None:
        while data := self.client.recv(65536):
            self.proxy.wait_while_stalled("up", self)
            self.broker.sendall(data)

    def _downward(self) -> None:
        buffer = b""
        while data := self.broker.recv(65536):
            buffer += data
            out = []
            while len(buffer) >= 8:
                kind, channel, size = struct.unpack_from(">BHI", buffer)
                if len(buffer) < size + 8:
                    break
                frame = (kind, channel, buffer[7 : 7 + size])
                buffer = buffer[size + 8 :]
                out += self.proxy.judge(frame)
            self.proxy.wait_while_stalled("down", self)
            self.say(b"".join(map(packed, out)))

    def say(self, data: bytes) -> None:
        """Send to the client."""
        with self.lock:
            left = self.proxy.bytes_left
            if left is not None and len(data) >= left:
                self.client.sendall(data[:left])
                self.proxy.bytes_left = None
                self.end(reset=True)
                return
            if left is not None:
                self.proxy.bytes_left = left - len(data)
            self.client.sendall(data)

    def end(self, reset: bool = False) -> None:
        """End both connections, which wakes the threads that carry; they close."""
        with self._ending:
            self.is_over = True
            for sock in (self.client, self.broker):
                with contextlib.suppress(OSError):
                    if reset:
                        linger = struct.pack("ii", 1, 0)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    sock.shutdown(socket.SHUT_RDWR)
        self.proxy.look_again()


class FaultProxy:
    """Listens on a port of its own; `url` is the broker's URL through it."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.pairs: list[_Pair] = []
        self.judge: Judge = lambda frame: [frame]
        self.is_refusing = False
        self.bytes_left: int | None = None
        self.cuts: Iterator[int] = iter(())
        """Each new connection takes the next one for `bytes_left`."""
        self.connections = 0
        self._stalled: set[str] = set()
        self._held: set[_Pair] = set()
        self._flow = threading.Condition()
        self._registering = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a client connects to."""
        return f"amqp://guest:guest@{HOST}:{self.port}/%2F"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_refusing:
                client.close()
                continue
            try:
                broker = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            self.connections += 1
            self.bytes_left = next(self.cuts, self.bytes_left)
            pair = _Pair(self, client, broker)
            with self._registering:
                is_late = self.is_refusing
                if not is_late:
                    self.pairs.append(pair)
            if is_late:
                client.close()
                broker.close()
            else:
                pair.start()

    def cut(self) -> None:
        """Reset all connections there are."""
        with self._registering:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            pair.end(reset=True)

    def cut_within(self, n: int) -> None:
        """Reset the connection after so many more bytes of the broker: within a frame, mostly."""
        self.bytes_left = n

    def say(self, data: bytes) -> None:
        """Have the broker say something that it does not say."""
        for pair in self.pairs:
            with contextlib.suppress(OSError):
                pair.say(data)

    def stall(self, *ways: str) -> None:
        """Let nothing pass: `up` to the broker, `down` to the client."""
        with self._flow:
            self._stalled |= set(ways)

    def flow(self) -> None:
        """Let all pass again."""
        with self._flow:
            self._stalled.clear()
            self._held.clear()
            self._flow.notify_all()

    def look_again(self) -> None:
        """A connection is over: whoever waits for it to flow need not."""
        with self._flow:
            self._flow.notify_all()

    def hold(self, pair: _Pair) -> None:
        """Let nothing of one connection pass to the broker."""
        with self._flow:
            self._held.add(pair)

    def release(self, pair: _Pair) -> None:
        """Let it pass again."""
        with self._flow:
            self._held.discard(pair)
            self._flow.notify_all()

    def wait_while_stalled(self, way: str, pair: _Pair) -> None:
        """Called by the threads of a connection."""

        def passes() -> bool:
            is_held = way in self._stalled or (way == "up" and pair in self._held)
            return pair.is_over or not is_held

        with self._flow:
            self._flow.wait_for(passes, 60)

    def close(self) -> None:
        """End all."""
        end = time.monotonic() + 5
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()
        self.flow()
        pairs = list(self.pairs)
        self.cut()
        for thread in (each for pair in pairs for each in pair.threads):
            thread.join(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
