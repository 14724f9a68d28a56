"""Verifying passwords of users without holding up the loop, and remembering which were right.

A digest is computed at once. A slow hash runs in a thread, once however many ask for the same, and
what was right is remembered for a while, so that clients who connect again and again, or send their
password with each request, pay once. What is kept is a digest of name, stored hash and password
under a random key of this process: neither the password nor anything computed from it alone. A
changed password has another stored hash, and so is never found.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from lavinmq.auth import passwords
from lavinmq.auth.hashing import Hashing, HashingBusy
from lavinmq.auth.tasks import Tasks
from lavinmq.auth.users import User

MAX_REMEMBERED: Final = 4096
REMEMBERED_S: Final = 900.0


class Verification:
    """The passwords of one broker's users.

    Args: clock: seconds that only go up; for tests.
    """

    def __init__(
        self, hashing: Hashing, tasks: Tasks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hashing = hashing
        self._tasks = tasks
        self._clock = clock
        self._key = os.urandom(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()  # until when
        self._running: dict[bytes, asyncio.Task[bool | None]] = {}

    def is_known(self, user: User, password: bytes) -> bool:
        """Whether the password is right, as far as that can be told without waiting."""
        if not passwords.is_slow(user.hashing_algorithm):
            return passwords.verify(password, user.password_hash, user.hashing_algorithm)
        mark = self._mark(user, password)
        until = self._right.get(mark)
        if until is None:
            return False
        if until < self._clock():
            del self._right[mark]
            return False
        self._right.move_to_end(mark)
        return True

    async def is_password(self, user: User, password: bytes, origin: str) -> bool:
        """Whether the password is right. Raises: HashingBusy."""
        if not user.password_hash:
            return False
        if self.is_known(user, password):
            return True
        if not passwords.is_slow(user.hashing_algorithm):
            return False
        mark = self._mark(user, password)
        running = self._running.get(mark)
        if running is None:
            # Of now: the user may have another hash when the task begins, which the mark is not of.
            verify = partial(passwords.verify, password, user.password_hash, user.hashing_algorithm)
            running = self._running[mark] = self._tasks.start(self._compute(mark, verify, origin))
        answer = await asyncio.shield(running)
        if answer is None:
            raise HashingBusy("too many passwords wait to be hashed")
        return answer

    async def pretend(self, password: bytes, kind: str, origin: str) -> None:
        """Take as long as for a user whose hash is of this kind. Raises: HashingBusy."""
        decoy = passwords.DECOYS.get(kind)
        if decoy is not None:
            await self._hashing.run(
                origin, partial(passwords.verify, password, decoy, passwords.ALGORITHMS[kind])
            )

    async def _compute(
        self, mark: bytes, verify: Callable[[], bool], origin: str
    ) -> bool | None:  # fmt: skip
        """Whether it is right; None when too many wait."""
        try:
            is_right = await self._hashing.run(origin, verify)
        except HashingBusy:
            return None
        finally:
            del self._running[mark]
        if is_right:
            self._right[mark] = self._clock() + REMEMBERED_S
            if len(self._right) > MAX_REMEMBERED:
                self._right.popitem(last=False)
        return is_right

    def _mark(self, user: User, password: bytes) -> bytes:
        """What stands for the password of this user while its stored hash is this one."""
        name = user.name.encode("utf-8", "surrogateescape")
        parts = (name, user.password_hash.encode("utf-8", "surrogateescape"), password)
        # The lengths keep apart what would read the same when joined.
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, text, "sha256")
