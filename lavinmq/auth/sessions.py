"""Who is logged in with a browser: a random token for each log-in, kept in memory only.

The browser has the token in a cookie that scripts cannot read; here is its digest. A log-in ends
with its time, a sign-out, another password, or the end of the broker. Source: decision 0060.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

from lavinmq.auth.identity import Identity
from lavinmq.auth.standing import Standing
from lavinmq.auth.users import UserStore

LIFE_S: Final = 8 * 3600
MAX_OF_USER: Final = 100
"""A user who logs in once more ends the first of them."""
MAX_SESSIONS: Final = 10_000


class TooManySessions(Exception):
    """No more log-ins are kept."""


class Session:
    """One log-in."""

    __slots__ = ("ends_at", "is_over", "standing")

    def __init__(self, user: Identity, ends_at: float) -> None:
        self.standing = Standing(user)
        self.ends_at = ends_at
        self.is_over = False

    @property
    def user(self) -> Identity:
        """Who it is."""
        return self.standing.user


class Sessions:
    """The log-ins of one broker. Args: users: as they are now; clock: seconds, never going back."""

    def __init__(self, users: UserStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._open: dict[bytes, Session] = {}  # in the order of their end

    def __len__(self) -> int:
        return len(self._open)

    def open(self, user: Identity) -> str:
        """Somebody has logged in. Returns: the token. Raises: TooManySessions."""
        now = self._clock()
        for mark, session in list(self._open.items()):
            if session.ends_at > now:
                break
            self._end(mark)
        own = [mark for mark, each in self._open.items() if each.user.name == user.name]
        if len(own) >= MAX_OF_USER:
            self._end(own[0])
        if len(self._open) >= MAX_SESSIONS:
            raise TooManySessions
        token = secrets.token_urlsafe(32)
        self._open[_mark(token)] = Session(user, now + LIFE_S)
        return token

    def find(self, token: str) -> Session | None:
        """The log-in of a token, None when there is none any more."""
        mark = _mark(token)
        session = self._open.get(mark)
        if session is None:
            return None
        if session.ends_at <= self._clock() or session.standing.why_over(self._users):
            self._end(mark)
            return None
        return session

    def close(self, token: str) -> None:
        """Sign out. Idempotent."""
        self._end(_mark(token))

    def close_all(self, name: str) -> int:
        """Sign a user out everywhere. Returns: of how many log-ins."""
        own = [mark for mark, each in self._open.items() if each.user.name == name]
        for mark in own:
            self._end(mark)
        return len(own)

    def _end(self, mark: bytes) -> None:
        session = self._open.pop(mark, None)
        if session is not None:
            session.is_over = True


def _mark(token: str) -> bytes:
    """What is kept of a token; looking it up tells nothing about others by its time."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
