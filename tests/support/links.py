"""TCP between the nodes of a test's cluster, and between them and etcd: to be held, cut and ended.

A `Link` listens in front of one port. What passes may be held each way, as by a network that drops
packets: TCP sends it again when it may pass. `who` names the process at the other end, so that one
of several that connect can be cut off alone. Threads: one for accepting, two for each connection.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.ports import HOST, free_port

UP, DOWN = "up", "down"
"""To what listens, and to who has connected."""
CHECK_S = 0.5


class _Pair:
    """One connection: who has connected, and what listens."""

    def __init__(self, link: Link, near: socket.socket, who: int) -> None:
        self.link, self.near, self.who = link, near, who
        self.far: socket.socket | None = None
        self.is_forgotten = False
        self.is_over = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        if self.link.wait_until_free(self, UP):
            try:
                self.far = socket.create_connection((HOST, self.link.target), 5)
            except OSError:
                self.end()
                return
            self.far.settimeout(None)
            threading.Thread(
                target=self._pass, args=(self.far, self.near, DOWN), daemon=True
            ).start()
            self._pass(self.near, self.far, UP)

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while True:
                data = source.recv(65536)
                if not self.link.wait_until_free(self, way):
                    return
                if not data:
                    break
                data = self.link.taken(self, way, data)
                if self.link.late_s:
                    time.sleep(self.link.late_s * random.random())
                target.sendall(data)
        if not self.is_forgotten:
            self.end()

    def end(self, *, by_reset: bool = False) -> None:
        """End both."""
        self.is_over = True
        for sock in (self.near, self.far):
            if sock is None:
                continue
            with suppress(OSError):
                if by_reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # A thread that is reading keeps it open until it is woken.
                sock.shutdown(socket.SHUT_RD if by_reset else socket.SHUT_RDWR)
            with suppress(OSError):
                sock.close()


class Link:
    """What is in front of a port. Args: who: says which process is
    connected from one port to another, 0: none that counts."""

    def __init__(self, target: int, who: Callable[[int, int], int] = lambda port, to: 0) -> None:
        self.target = target
        self._who = who
        self.port = free_port()
        self._held: set[tuple[str, int]] = set()
        self._flow = threading.Condition()
        self._pairs: list[_Pair] = []
        self._listener: socket.socket | None = None
        self.left: int | None = None
        """Bytes that may pass down before that way is held; None: any number."""
        self.late_s = 0.0
        """How late what passes is at most."""
        self.open()

    def open(self) -> None:
        """Listen. Idempotent."""
        if self._listener is not None:
            return
        self._listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Listen no more, as if nobody were there; connections stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, address = listener.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs = [each for each in self._pairs if not each.is_over]
            self._pairs.append(_Pair(self, near, self._who(address[1], self.port)))

    @property
    def n_connections(self) -> int:
        """That are open."""
        return sum(not each.is_over for each in self._pairs)

    def hold(self, *ways: str, who: int = 0) -> None:
        """Let nothing pass: of one process, or of all."""
        with self._flow:
            self._held |= {(way, who) for way in ways or (UP, DOWN)}

    def free(self) -> None:
        """Let all pass again."""
        with self._flow:
            self._held.clear()
            self.left = None
            self.late_s = 0.0
            self._flow.notify_all()

    def cut(self) -> None:
        """Reset all connections there are."""
        pairs, self._pairs = self._pairs, []
        for each in pairs:
            each.end(by_reset=True)
        with self._flow:
            self._flow.notify_all()

    def forget(self) -> None:
        """Let nothing of the connections there are pass ever again, nor their end: a firewall has
        forgotten them. New ones may come."""
        for each in self._pairs:
            each.is_forgotten = True

    def close(self) -> None:
        """End all."""
        self.refuse()
        self.cut()
        self.free()

    def wait_until_free(self, pair: _Pair, way: str) -> bool:
        """Called by the threads of a connection. Returns: whether it is still there."""

        def is_free() -> bool:
            if pair.is_over:
                return True
            held = (way, 0) in self._held or (way, pair.who) in self._held
            return not (held or pair.is_forgotten)

        with self._flow:
            while not self._flow.wait_for(is_free, CHECK_S):
                pass
        return not pair.is_over

    def taken(self, pair: _Pair, way: str, data: bytes) -> bytes:
        """What of this passes: called by the threads of a connection."""
        if way != DOWN or self.left is None:
            return data
        with self._flow:
            left = self.left
            self.left = max(0, left - len(data))
            if left < len(data):
                self._held.add((DOWN, 0))
        if left < len(data) and pair.far is not None:
            with suppress(OSError):
                pair.near.sendall(data[:left])
            return data[left:] if self.wait_until_free(pair, way) else b""
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def owner_of(port: int, pids: dict[int, int], to: int) -> int:
    """Which of some processes is connected from a port of this machine to another one: its value;
    0: none."""
    inode = ""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ends = [int(each.rpartition(":")[2], 16) for each in fields[1:3]]
        if ends == [port, to]:
            inode = f"socket:[{fields[9]}]"
    for pid, value in pids.items():
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == inode:
                        return value
    return 0
