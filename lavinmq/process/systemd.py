"""What systemd gives a service and wants to hear from it: sockets, state, watchdog.

Made by `server.run` from the environment, and only there: a broker inside another program leaves
that program's service alone. Without systemd everything here does nothing. Never blocks: a
notification that the manager has no room for is lost.
Source: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3), docs/installation.md.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from lavinmq.process import log

FIRST_FD: Final = 3
MAX_FDS: Final = 1024
SOCKET_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_log = log.get("lmq.systemd")


class Service:
    """This process as a service.

    Args: environ: loses the variables that announce sockets, so that children do not take them;
        first_fd: the number of the first socket that was passed.
    """

    def __init__(self, environ: MutableMapping[str, str], first_fd: int = FIRST_FD) -> None:
        self._address = _notify_address(environ)
        self._socket: socket.socket | None = None
        self._watchdog_s = _watchdog_interval(environ)
        self._watchdog: asyncio.TimerHandle | None = None
        self._sockets = _passed_sockets(environ, first_fd)
        for variable in SOCKET_VARIABLES:
            environ.pop(variable, None)

    @property
    def names(self) -> list[str]:
        """The names of the sockets that nobody has taken."""
        return list(dict.fromkeys(name for name, _ in self._sockets))

    def take_sockets(self, name: str) -> list[socket.socket]:
        """Return the listening sockets that were passed under this name; the caller owns them."""
        taken = [sock for each, sock in self._sockets if each == name]
        self._sockets = [(each, sock) for each, sock in self._sockets if each != name]
        return taken

    # --- notifications ------------------------------------------------------------------------

    def ready(self, status: str) -> None:
        """The broker listens, or listens on after a reload."""
        self.notify("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.notify("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self) -> None:
        """The broker has begun to stop."""
        self.notify("STOPPING=1", "STATUS=Stopping")

    def notify(self, *assignments: str) -> None:
        """Tell the manager; one that cannot be told is left alone."""
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            _log.debug("cannot notify systemd: %s", error.strerror)

    def start_watchdog(self, events: asyncio.AbstractEventLoop) -> None:
        """Say twice in each of the manager's intervals that the loop turns. A second call changes
        nothing."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._watchdog_s:
            self.notify("WATCHDOG=1")
            self._watchdog = events.call_later(
                self._watchdog_s / 2, partial(self.start_watchdog, events)
            )

    @contextmanager
    def patient(self, wait_s: float) -> Iterator[None]:
        """Have the manager wait for so many seconds inside the block, in which the loop does not
        turn."""
        if self._watchdog_s:
            self._watch(max(wait_s, self._watchdog_s))
        yield
        if self._watchdog_s:
            self._watch(self._watchdog_s)

    def _watch(self, interval_s: float) -> None:
        self.notify(f"WATCHDOG_USEC={round(interval_s * 1_000_000)}", "WATCHDOG=1")

    def close(self) -> None:
        """Let go of everything, also of sockets that nobody wanted. Idempotent."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        for _, sock in self._sockets:
            sock.close()
        self._sockets = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _notify_address(environ: Mapping[str, str]) -> str | None:
    path = environ.get("NOTIFY_SOCKET", "")
    if path.startswith("@"):  # an abstract name
        return "\0" + path[1:]
    return path if path.startswith("/") else None


def _watchdog_interval(environ: Mapping[str, str]) -> float:
    """Return seconds; 0: nobody watches this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return _number(environ.get("WATCHDOG_USEC", "")) / 1_000_000


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0


def _passed_sockets(environ: Mapping[str, str], first_fd: int) -> list[tuple[str, socket.socket]]:
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    passed = []
    for index in range(min(_number(environ.get("LISTEN_FDS", "")), MAX_FDS)):
        name = names[index] if index < len(names) and names[index] else "unknown"
        try:
            os.set_inheritable(first_fd + index, False)
            sock = socket.socket(fileno=first_fd + index)
        except OSError as error:
            _log.warning("%s of systemd is no socket: %s", name, error.strerror)
            continue
        if not _is_listening(sock):
            _log.warning("socket %s of systemd does not listen for streams, it is closed", name)
            sock.close()
            continue
        passed.append((name, sock))
    return passed


def _is_listening(sock: socket.socket) -> bool:
    return (
        sock.family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
        and sock.type == socket.SOCK_STREAM
        and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )
