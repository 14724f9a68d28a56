"""Clients that have connected and are not through: how many there may be, and who goes first.

Each has a descriptor, and nobody knows yet who it is. Those of all AMQP listeners of a broker are
counted together. No address may have more than half of the places, so that one alone keeps nobody
out; its next ones are closed, and those that are under way get on. When all places are taken the
oldest one goes: an honest handshake takes milliseconds. What is left of the descriptors is for who
has logged in, and for files. Source: docs/listeners.md.
"""

from __future__ import annotations

import math
import resource
import socket
import sys
import time
from typing import Final, Protocol

from lavinmq.listeners.endpoints import UNIX, Endpoints
from lavinmq.process import log

SHARE: Final = 4
"""Of all descriptors, one in so many is the most that newcomers take."""
SHARE_OF_ONE: Final = 2
"""Of these, one in so many is the most that an address takes."""
LOGGED_EVERY_S: Final = 60.0
_log = log.get("lmq.listener")


class Newcomer(Protocol):
    """Who is not through."""

    def make_room(self) -> None:
        """End at once: it has been under way for longest, and others want to come."""


class Newcomers:
    """Those of a broker. A client is entered once, and leaves when it is known, or gone.

    Args: most: how many there may be; None: a share of all descriptors.
    """

    def __init__(self, most: int | None = None) -> None:
        self._is_given = most is not None
        self._most = most_newcomers() if most is None else most
        self._host_of: dict[Newcomer, str] = {}  # in the order of their coming
        self._n_of: dict[str, int] = {}
        self._logged_at = -math.inf

    def __len__(self) -> int:
        return len(self._host_of)

    def has_room(self, ends: Endpoints) -> bool:
        """Whether one more may come. The oldest of all may have to go."""
        host = _host(ends)
        if not (self._is_given or self._host_of):
            self._most = most_newcomers()  # a system call, so not for each of a crowd
        if host and self._n_of.get(host, 0) >= max(1, self._most // SHARE_OF_ONE):
            self._say(f"connections of {host} are refused: too many of it are not logged in")
            return False
        if len(self._host_of) >= self._most:
            self._say("connections that are not logged in are closed, the oldest first: too many")
            oldest = next(iter(self._host_of))
            self.leave(oldest)
            oldest.make_room()
        return True

    def refuse(self, sock: socket.socket, is_tls: bool) -> None:
        """Send one away."""
        sock.close()

    def enter(self, newcomer: Newcomer, ends: Endpoints) -> None:
        """One has come."""
        host = _host(ends)
        self._host_of[newcomer] = host
        self._n_of[host] = self._n_of.get(host, 0) + 1

    def leave(self, newcomer: Newcomer) -> None:
        """It is none any more. Idempotent."""
        host = self._host_of.pop(newcomer, None)
        if host is None:
            return
        self._n_of[host] -= 1
        if self._n_of[host] == 0:
            del self._n_of[host]

    def _say(self, what: str) -> None:
        """Log it, at most once in a minute."""
        now = time.monotonic()
        if now - self._logged_at >= LOGGED_EVERY_S:
            self._logged_at = now
            _log.warning("%s", what)


def _host(ends: Endpoints) -> str:
    """The address that counts; those of a unix socket are nobody's."""
    return "" if ends is UNIX else ends.peer_host


def most_newcomers() -> int:
    """How many there may be by default."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit // SHARE)
