"""Open connections of lavinmqperf that nothing more happens on, at little cost each."""

import select
import socket
import time
from contextlib import suppress

from lavinmq.cli.perf.conversation import CLOSE
from lavinmq.cli.perf.peer import RECEIVE_BYTES

GOODBYE_S = 5.0


class Held:
    """The sockets; `lost` counts those the broker has closed.

    Args: goodbye: what is sent before the end. What the broker sends, such as deliveries to
    consumers, is read and forgotten.
    """

    def __init__(self, goodbye: bytes = CLOSE.request) -> None:
        self._goodbye = goodbye
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self.lost = 0

    def __len__(self) -> int:
        return len(self._sockets)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `drain` has something to do."""
        return self._epoll.fileno()

    def add(self, sock: socket.socket) -> None:
        """Take over a socket."""
        sock.setblocking(False)
        self._sockets[sock.fileno()] = sock
        self._epoll.register(sock, select.EPOLLIN)

    def drain(self, timeout_s: float = 0) -> None:
        """Read what is there, after waiting for it this long; forget what was closed."""
        for fd, _ in self._epoll.poll(timeout_s):
            with suppress(BlockingIOError):
                try:
                    is_open = bool(self._sockets[fd].recv(RECEIVE_BYTES))
                except ConnectionError:
                    is_open = False
                if not is_open:
                    self.lost += 1
                    self._sockets.pop(fd).close()

    def close(self) -> None:
        """Say goodbye on all connections; wait a while for the broker to close them."""
        for sock in self._sockets.values():
            with suppress(OSError):
                sock.send(self._goodbye)
                # The broker may wait for our end of the stream before it closes.
                sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + GOODBYE_S
        while self._sockets and (remaining_s := deadline - time.monotonic()) > 0:
            self.drain(remaining_s)
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
        self._epoll.close()
