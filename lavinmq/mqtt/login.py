"""Who a client of MQTT acts for: from CONNECT until its token, if it has one, runs out.

A client says so by user name and password, of which the password may be an access token; by its
certificate; or not at all, where the configuration has a user for those. Most are known at once;
for the others a task of the chain finds out, within the time that CONNECT has. Owned by its
connection. Source: docs/mqtt.md, docs/authentication.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq.auth.attempt import shown_name
from lavinmq.auth.standing import Standing
from lavinmq.errors import ReplyCode
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.broker import Broker
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.mqtt.connect import Connect

_log = log.get("lmq.mqtt.login")
LONGEST_WAIT_S: Final = 3600.0
"""The clock may be set meanwhile, and timers have limits: look again after so long."""


class Guest(Protocol):
    """Whose log-in it is."""

    def logged_in(self, standing: Standing, vhost: str, mechanism: str) -> None:
        """It is known, and wants into a virtual host of that name."""

    def not_logged_in(self) -> None:
        """Nobody logs in."""

    def expel(self, code: ReplyCode, text: str) -> None:
        """Its time is over."""


class Login:
    """The log-in of one client. Args: ends: where it is, and whom its certificate names."""

    __slots__ = ("_broker", "_ends", "_guest", "_task", "_timer")

    def __init__(self, broker: Broker, guest: Guest, ends: Endpoints) -> None:
        self._broker = broker
        self._guest = guest
        self._ends = ends
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wanted: Connect) -> None:
        """Log in with what the client has sent; it is told what has come of it, now or later."""
        vhost, name = self._place(wanted.user_name or "")
        certified = self._ends.tls.login if self._ends.tls else None
        if wanted.password is None and certified is not None:
            self._trust(certified, vhost, "EXTERNAL")
            return
        if wanted.user_name is None and wanted.password is None:
            self._trust(self._broker.config.mqtt_anonymous_user, vhost, "ANONYMOUS")
            return
        attempt = name, wanted.password or b"", self._ends.peer_host, self._ends.is_loopback
        user = self._broker.chain.at_once(*attempt)
        if user is not None:
            self._admit(user, vhost, "PLAIN")
            return
        self._task = self._broker.chain.tasks.start(self._find_out(vhost, *attempt))

    def _place(self, given: str) -> tuple[str, str]:
        """Virtual host and user in a user name, `vhost:user` or `user`."""
        vhost, colon, name = given.partition(":")
        return (vhost, name) if colon else (self._broker.config.mqtt_default_vhost, given)

    def _trust(self, name: str, vhost: str, mechanism: str) -> None:
        """Log in somebody who needs no password."""
        users = self._broker.users
        user = users.admit(name, self._ends.is_loopback) if name else None
        if user is None or user is users.direct_user:
            why = users.why_not(name, self._ends.is_loopback) if name else "no user name was given"
            self._refuse(name, mechanism, why)
            return
        self._guest.logged_in(Standing(user, by_password=False), vhost, mechanism)

    async def _find_out(
        self, vhost: str, name: str, password: bytes, address: str, is_loopback: bool
    ) -> None:
        reasons: list[str] = []
        user = await self._broker.chain.authenticate(name, password, address, is_loopback, reasons)
        self._task = None
        if user is None:
            self._refuse(name, "PLAIN", "; ".join(reasons))
        else:
            self._admit(user, vhost, "PLAIN")

    def _admit(self, user: Identity, vhost: str, mechanism: str) -> None:
        if _log.logger.isEnabledFor(logging.DEBUG):
            _log.debug("user %r logged in with %s from %s", user.name, mechanism, self._ends.peer)
        self._guest.logged_in(Standing(user), vhost, mechanism)

    def _refuse(self, name: str, mechanism: str, why: str) -> None:
        """The log hears why, the client does not."""
        _log.warning(
            "log-in of user %s with %s from %s failed: %s",
            shown_name(name), mechanism, self._ends.peer, why,
        )  # fmt: skip
        self._guest.not_logged_in()

    def watch_end(self, user: Identity) -> None:
        """Expel the client when the token of its user runs out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if user.expires_at is None:
            return
        left_s = user.expires_at - time.time()
        if left_s <= 0:
            self._guest.expel(ReplyCode.CONNECTION_FORCED, "token expired")
            return
        # A loop's clock may round down: a little later is not too early.
        wait_s = min(left_s + 0.001, LONGEST_WAIT_S)
        self._timer = self._broker.events.call_later(wait_s, partial(self.watch_end, user))

    def end(self) -> None:
        """The connection is over."""
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
