"""A way to a broker with a gate in it: after so many bytes nothing passes until it is opened.

So a task stands still in the middle of its range for as long as a test needs to break something.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Self

from tests.support.ports import HOST, free_port


class Gate:
    """Forwards connections to a port; holds what the broker sends beyond `limit` bytes in all."""

    def __init__(self, target_port: int, limit: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._left = limit
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self.held = threading.Event()
        self._listener = socket.create_server((HOST, self.port))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def open(self) -> None:
        """Let everything pass from now on."""
        self._opened.set()

    def cut(self) -> None:
        """End the connections there are, and let everything pass from now on."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.open()

    def close(self) -> None:
        """End all connections and wait for the threads."""
        self.open()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)  # it may be about to add two sockets
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                broker = socket.create_connection((HOST, self._target_port))
            except OSError:
                client.close()
                continue
            self._sockets += [client, broker]
            for source, sink, is_held in ((client, broker, False), (broker, client, True)):
                thread = threading.Thread(
                    target=self._forward, args=(source, sink, is_held), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_held: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if is_held:
                    self._pass(len(data))
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pass(self, n_bytes: int) -> None:
        with self._lock:
            self._left -= n_bytes
            is_over = self._left < 0
        if is_over:
            self.held.set()
            self._opened.wait()


def pids_connected_to(port: int) -> set[int]:
    """The processes, apart from this one, that have a connection to a port of this machine."""
    wanted = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].split(":")[1], 16) == port:
            wanted.add(f"socket:[{fields[9]}]")
    return {
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if int(process.name) != os.getpid() and wanted & _descriptors(process)
    }


def parent_of(pid: int) -> int:
    """The process that a process is a child of."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


def _descriptors(process: Path) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for each in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(each))
    return found
