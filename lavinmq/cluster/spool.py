"""What is changed while a node joins: it comes by a connection of its own into a file.

When the node's files have been replaced, what is in the file is made again, until that is nearly
all there is; so a join may take as long as it takes. Blocking sockets, in threads.
Source: docs/clustering.md.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lavinmq._cluster import Follower
    from lavinmq.cluster.frames import Connection

PIECE: Final = 1 << 18
NEAR: Final = 1 << 20
"""Bytes that are left to be made again when the connection may end."""
LOOK_S: Final = 0.005


class Spool:
    """One connection, whose file is at `path`; both are its own."""

    def __init__(self, sock: Connection, path: str) -> None:
        self._socket = sock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        self._n_come = 0
        self._may_end = self._is_near = self._is_aborted = False
        self._replayed: socket.socket | None = None
        self._error = ""
        self.failure: OSError | None = None
        """Why what has come could not be put into the file."""
        self._is_over = False
        self._thread = threading.Thread(target=self._receive, name="spool", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            while piece := self._socket.recv(PIECE):
                self._put(memoryview(piece))
        except OSError as error:
            self._error = error.strerror or str(error)
        else:
            self._error = "the leader has closed the connection"
        self._is_over = True

    def _put(self, left: memoryview) -> None:
        """Write it all into the file. Raises: OSError."""
        try:
            while left:
                n = os.write(self._fd, left)
                left, self._n_come = left[n:], self._n_come + n
        except OSError as error:
            self.failure = error
            raise

    def replay(self, follower: Follower, until: int) -> tuple[str, str]:
        """Make again what has come, until that is nearly all. Returns: as `Follower.run`; "there":
        it is so."""
        ours, theirs = socket.socketpair()
        self._replayed = ours
        if self._is_aborted:
            self.abort()
        pump = threading.Thread(target=self._pump, args=(ours,), name="replay", daemon=True)
        pump.start()
        try:
            since = follower.applied
            kind, why = follower.run(theirs.fileno(), until, is_lazy=True, is_lenient=True)
            # What is synced takes time, in which more comes; each time it is less.
            while kind == "there" and since + self._n_come - follower.applied > NEAR:
                there = since + self._n_come
                kind, why = follower.run(theirs.fileno(), there, is_lazy=True)
            if kind == "there":
                self._may_end = True
                kind, why = follower.run(theirs.fileno(), is_lazy=True)
            is_there = kind == "lost" and self._is_near and not self._is_aborted
            return ("there", "") if is_there else (kind, self._error or why)
        finally:
            for each in (theirs, ours):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            pump.join()
            theirs.close()
            ours.close()

    def _pump(self, sock: socket.socket) -> None:
        """Pass what is in the file on, as if it came from the leader just now."""
        at = 0
        with suppress(OSError):
            while not (self._is_over and at == self._n_come):
                piece = os.pread(self._fd, PIECE, at)
                if not piece:
                    time.sleep(LOOK_S)
                sock.sendall(piece)
                at += len(piece)
                with suppress(BlockingIOError):  # what it has on disk: nobody waits for it
                    sock.recv(PIECE, socket.MSG_DONTWAIT)
                if self._may_end and not self._is_over and self._n_come - at < NEAR:
                    self._is_near = True
                    self.close()
            sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End a replay that runs, or is about to. From another thread."""
        self._is_aborted = True
        if self._replayed is not None:
            with suppress(OSError):
                self._replayed.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. What has come stays. Idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def release(self) -> None:
        """Let go of all of it. Not while it is replayed."""
        self.close()
        os.close(self._fd)
