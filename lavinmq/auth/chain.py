"""How clients log in: the configured backends, one after the other, behind one call.

    who = name, password, address, is_loopback
    identity = chain.at_once(*who) or await chain.authenticate(*who)

`at_once` is for the usual case: it answers without waiting when the password has a cheap hash or
was verified before, or the token's key is there. `authenticate` does everything else: it waits
after failures, has slow hashes computed in threads, fetches keys. Both are called on the loop's
thread and never hold it up. None means that nobody logs in; why is for the log only.
Source: docs/authentication.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lavinmq.auth import passwords, scram
from lavinmq.auth.attempt import Attempt, TokenError
from lavinmq.auth.hashing import Hashing, HashingBusy
from lavinmq.auth.identity import Identity
from lavinmq.auth.local import Local
from lavinmq.auth.tasks import Tasks
from lavinmq.auth.throttle import Throttle
from lavinmq.auth.turns import LaneFull, Turns
from lavinmq.auth.users import DIRECT_USER, UserStore
from lavinmq.auth.verification import Verification

if TYPE_CHECKING:
    from lavinmq.auth.oauth import OAuth
    from lavinmq.config.values import Config

log = logging.getLogger("lmq.auth")

Look = Callable[[Attempt], Awaitable[tuple[Identity | None, str]]]
"""Finds out who it is, else why nobody is."""


class Backend(Protocol):
    """Knows some users."""

    def at_once(self, attempt: Attempt) -> Identity | None:
        """Who it is, if that can be told without waiting."""

    async def authenticate(self, attempt: Attempt) -> Identity | None:
        """Who it is, or None. Raises: HashingBusy."""


class Chain:
    """The backends of one broker. Call `start` once, and await `stop` before the loop is closed.

    Args: config: read when it is needed, so that a reload is noticed.
    """

    oauth: OAuth | None
    """The backend `oauth`, if it is configured."""

    def __init__(
        self, config: Config, users: UserStore, events: asyncio.AbstractEventLoop,
        throttle: Throttle | None = None,
    ) -> None:  # fmt: skip
        self.tasks = Tasks(events)
        """For those who await `authenticate` in a task of their own."""
        self.hashing = Hashing(events)
        self.verification = Verification(self.hashing, self.tasks)
        self.config = config
        self._throttle = throttle or Throttle()
        self._turns = Turns()
        self._local = Local(users, self.verification, config)
        self.oauth = None
        self._backends: list[Backend] = []
        for name in dict.fromkeys(config.auth_backends or ("local",)):
            if name == "oauth":
                from lavinmq.auth.oauth import OAuth

                self.oauth = OAuth(config, self.tasks, events)
                self._backends.append(self.oauth)
            else:
                self._backends.append(self._local)

    def start(self) -> None:
        """Begin to fetch what is needed from elsewhere."""
        if self.oauth is not None:
            from lavinmq.auth.oauth_login import missing

            if why := missing(self.config):
                log.warning("%s", why)
            self.oauth.keys.start()

    async def stop(self) -> None:
        """End everything that runs."""
        if self.oauth is not None:
            self.oauth.keys.stop()
        self.hashing.close()
        await self.tasks.stop()

    def at_once(
        self, name: str, password: bytes, address: str, is_loopback: bool
    ) -> Identity | None:
        """Who it is, if that can be told without waiting; None: await `authenticate`.

        Args: as for `authenticate`.
        Cost: a digest of the password, or 0.3 ms for a token that was not seen before.
        """
        attempt = Attempt(name, password, address, is_loopback)
        if not password or self._must_wait(attempt):
            return None
        for backend in self._backends_for(attempt):
            identity = backend.at_once(attempt)
            if identity is not None:
                self._throttle.succeeded(name, address, is_loopback)
                return identity
        return None

    async def authenticate(
        self, name: str, password: bytes, address: str, is_loopback: bool,
        reasons: list[str] | None = None,
    ) -> Identity | None:  # fmt: skip
        """Who it is; None when nobody logs in. May take seconds after failures.

        Args:
            password: or an access token; then the name does not matter.
            address: of the client, without its port; 127.0.0.1 for a unix socket.
            is_loopback: whether the client is on this machine.
            reasons: takes why nobody logs in, for the log: nothing of it is for the client.
        """
        identity, why = await self._judged(Attempt(name, password, address, is_loopback))
        if identity is None and reasons is not None:
            reasons.append(why)
        return identity

    async def _judged(
        self, attempt: Attempt, look: Look | None = None
    ) -> tuple[Identity | None, str]:
        """Who it is; else why nobody is. Args: look: what finds that out, at its turn."""
        look = look or self._tried
        try:
            if not self.config.login_throttling:
                return await look(attempt)
            who = attempt.name, attempt.address, attempt.is_loopback
            async with self._turns.turn(
                self._throttle.lane(*who), partial(self._throttle.room, *who)
            ):
                wait_s = self._throttle.wait_s(*who)
                if wait_s:
                    log.debug("%r waits %.1f s", attempt, wait_s)
                    await asyncio.sleep(wait_s)
                return await look(attempt)
        except (HashingBusy, LaneFull) as error:
            return None, str(error)

    async def _tried(self, attempt: Attempt) -> tuple[Identity | None, str]:
        """Who it is, else why nobody is; what comes of it is counted. Raises: HashingBusy."""
        identity = await self._ask(attempt)
        count = self._throttle.failed if identity is None else self._throttle.succeeded
        count(attempt.name, attempt.address, attempt.is_loopback)
        return identity, "" if identity else self._why_not(attempt)

    def _why_not(self, attempt: Attempt) -> str:
        """Why nobody logged in: what the last backend that was asked has against it."""
        if not attempt.password:
            return "no password was given"
        if attempt.is_token and self.oauth is not None:
            return self.oauth.why_not(attempt.password)
        if self._local not in self._backends_for(attempt):
            return "only access tokens are accepted (auth_backends)"
        return self._local.users.why_not(attempt.name, attempt.is_loopback)

    async def renew(self, identity: Identity, token: bytes) -> Identity:
        """The same user with a fresh token.

        Raises: TokenError, with a text for the client, when it cannot be used or is another's.
        """
        if self.oauth is None or identity.expires_at is None:
            raise TokenError("the connection has not logged in with a token")
        fresh = await self.oauth.verify(token)
        if fresh.name != identity.name:
            raise TokenError("the token is of another user")
        return fresh

    async def hash_password(self, password: bytes, kind: str, origin: str = "") -> tuple[str, str]:
        """A new hash of a kind of `passwords.ALGORITHMS`, made in a thread, and its algorithm.

        Args: origin: the address of who asks, for fairness. Raises: HashingBusy, ValueError.
        """
        stored = await self.hashing.run(origin, lambda: passwords.hash_password(password, kind))
        return stored, passwords.ALGORITHMS[kind]

    async def scram_keys(self, password: bytes, origin: str = "") -> str:
        """What SCRAM-SHA-256 needs of a password, made in a thread. Raises: HashingBusy."""
        return str(await self.hashing.run(origin, lambda: scram.keys_of(password)))

    def scram_keys_for(self, name: str, is_loopback: bool) -> scram.Keys | None:
        """What is known of a user who may come from there; None: nothing that leads to a log-in."""
        user = self._local.users.admit(name, is_loopback)
        if user is None or not user.scram or self._local not in self._backends:
            return None
        return scram.parse(user.scram)

    async def judge(
        self, name: str, address: str, is_loopback: bool, check: Callable[[], str]
    ) -> tuple[Identity | None, str]:
        """The user of that name, whose proof is looked at when it is its turn, as a password would
        be; else why nobody logs in, for the log. Args: check: says what is wrong, or nothing."""
        attempt = Attempt(name, b"", address, is_loopback)

        async def look(_: Attempt) -> tuple[Identity | None, str]:
            why = check()
            user = None if why else self._local.users.admit(name, is_loopback)
            count = self._throttle.failed if user is None else self._throttle.succeeded
            count(name, address, is_loopback)
            return user, why or "there is no such user any more"

        return await self._judged(attempt, look)

    async def _ask(self, attempt: Attempt) -> Identity | None:
        """The first backend that knows the user wins. An empty password is nobody's."""
        if attempt.password:
            for backend in self._backends_for(attempt):
                identity = await backend.authenticate(attempt)
                if identity is not None:
                    return identity
        return None

    def _backends_for(self, attempt: Attempt) -> list[Backend]:
        """The broker's own links log in whatever is configured for others."""
        return [self._local] if attempt.name == DIRECT_USER else self._backends

    def _must_wait(self, attempt: Attempt) -> bool:
        """Whether failures, or others under way, make the attempt wait."""
        if not self.config.login_throttling:
            return False
        who = attempt.name, attempt.address, attempt.is_loopback
        if self._throttle.wait_s(*who):
            return True
        # Nearly always nothing is under way, and then no lane has to be looked up.
        return bool(self._turns) and not self._turns.is_free(
            self._throttle.lane(*who), self._throttle.room(*who)
        )
