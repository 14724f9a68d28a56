"""Log-ins that fail make the next ones wait: guessing passwords becomes slow, nobody is shut out.

Two things are counted, each in a table of bounded size that forgets what failed long ago:

* failures from a *source*: an address; for IPv6 its /64 network, of which one client has all. This
  machine's own addresses are shared by unrelated programs and by proxies, so there a source is an
  address with a user name.
* failures of a *user*, from anywhere: milder, and only for sources from which the user has not
  logged in lately, so that others who guess do not slow down whoever knows the password.

The wait comes before the password is looked at, so breaking off early tells nothing. It never
grows beyond a few seconds and never becomes a refusal: a lock would let anybody shut out a user. A
success takes back the failures of that user from that source, and no others: whoever has an account
cannot log in between two guesses at another. Nothing waits in here; the caller does, without a
thread, and in its turn: attempts under way count as well (`turns.py`), so many connections at once
get no more guesses than one. Whoever has logged in from a source lately has a lane of its own.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_ENTRIES: Final = 4096
"""Of each table; the one not touched for longest is forgotten first."""

FORGET_AFTER_S: Final = 600.0
MAX_NAME: Final = 255


class Slope(NamedTuple):
    """How the wait grows with failures: it doubles with each, up to a limit."""

    free: int
    """Failures that cost nothing yet."""
    first_s: float
    limit_s: float

    def wait_s(self, failures: int) -> float:
        """The wait after so many failures."""
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        return float(min(self.limit_s, self.first_s * 2.0 ** min(beyond - 1, 30)))


SOURCE: Final = Slope(free=5, first_s=0.25, limit_s=5.0)
USER: Final = Slope(free=20, first_s=0.1, limit_s=1.0)


class _Failures:
    """Failures by key, in the order in which the keys were last touched."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def of(self, key: str, now: float) -> int:
        if not self._entries:
            return 0
        count, last = self._entries.get(key, (0, 0.0))
        return count if now - last < FORGET_AFTER_S else 0

    def add(self, key: str, now: float) -> None:
        self._entries[key] = self.of(key, now) + 1, now
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def take_back(self, key: str, count: int, now: float) -> None:
        left = self.of(key, now) - count
        if left > 0:
            self._entries[key] = left, self._entries[key][1]
        else:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)


class Throttle:
    """What has failed lately. `clock`: seconds that only go up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources = _Failures()
        self._pairs = _Failures()  # of one user from one source
        self._users = _Failures()
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait_s(self, name: str, address: str, is_loopback: bool) -> float:
        """Seconds to wait before this log-in is looked at. Cost: two dictionary lookups; nothing
        while nobody has failed."""
        if not (len(self._sources) or len(self._users)):
            return 0.0
        name, source, now = name[:MAX_NAME], _source(name, address, is_loopback), self._clock()
        wait_s = SOURCE.wait_s(self._sources.of(source, now))
        if (name, source) not in self._trusted:
            wait_s = max(wait_s, USER.wait_s(self._users.of(name, now)))
        return wait_s

    def lane(self, name: str, address: str, is_loopback: bool) -> str:
        """What takes turns with this log-in: the same key, the same lane."""
        name, source = name[:MAX_NAME], _source(name, address, is_loopback)
        return f"{source} {name}" if (name, source) in self._trusted else source

    def room(self, name: str, address: str, is_loopback: bool) -> int:
        """How many log-ins of that lane may be looked at at once: as many as may fail for free."""
        source = _source(name, address, is_loopback)
        return max(1, SOURCE.free - self._sources.of(source, self._clock()))

    def failed(self, name: str, address: str, is_loopback: bool) -> None:
        """A log-in has been refused."""
        name, source, now = name[:MAX_NAME], _source(name, address, is_loopback), self._clock()
        self._sources.add(source, now)
        self._pairs.add(f"{source} {name}", now)
        self._users.add(name, now)

    def succeeded(self, name: str, address: str, is_loopback: bool) -> None:
        """Somebody has logged in."""
        name, source = name[:MAX_NAME], _source(name, address, is_loopback)
        if len(self._pairs):
            pair, now = f"{source} {name}", self._clock()
            failures = self._pairs.of(pair, now)
            if failures:
                self._pairs.take_back(pair, failures, now)
                self._sources.take_back(source, failures, now)
        who = name, source
        self._trusted[who] = None
        self._trusted.move_to_end(who)
        if len(self._trusted) > MAX_ENTRIES:
            self._trusted.popitem(last=False)

    def __len__(self) -> int:
        """Entries kept, in all tables."""
        tables = (self._sources, self._pairs, self._users, self._trusted)
        return sum(len(table) for table in tables)


def _source(name: str, address: str, is_loopback: bool) -> str:
    if is_loopback or address == "::1" or address.startswith("127."):  # a proxy here, too
        return f"loopback {name[:MAX_NAME]}"
    if ":" not in address:
        return address
    try:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8].hex()
    except OSError:
        return address[:MAX_NAME]
