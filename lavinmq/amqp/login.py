"""Who a connection acts for: from connection.start-ok until its token, if it has one, runs out.

Most clients are known at once; for the others the link is paused while a task of the chain finds
out, within the time that the handshake has. Owned by its connection.
Source: docs/protocol.md, docs/authentication.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.amqp import handshake
from lavinmq.amqp import methods as m
from lavinmq.auth.attempt import TokenError, shown_name
from lavinmq.auth.standing import Standing
from lavinmq.errors import ConnectionError_, ReplyCode
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.amqp.connection import Connection
    from lavinmq.auth.identity import Identity
    from lavinmq.listeners.endpoints import Endpoints

_log = log.get("lmq.amqp.login")
LONGEST_WAIT_S: Final = 3600.0
"""The clock may be set meanwhile, and timers have limits: look again after so long."""

Action = Callable[[], None]


class Login:
    """The log-in of one connection. `ends`: where the client is, and whom its certificate names."""

    __slots__ = ("_chain", "_connection", "_ends", "_task", "_timer")

    def __init__(self, connection: Connection, ends: Endpoints) -> None:
        self._connection = connection
        self._chain = connection.broker.chain
        self._ends = ends
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _certified(self) -> str | None:
        """The user whom the client's verified certificate names."""
        return self._ends.tls.login if self._ends.tls else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way, and nothing will come by itself."""
        return self._timer is None and (self._task is None or self._task.done())

    def begin(self, method: m.ConnectionStartOk) -> None:
        """Log in with what the client has sent, or with its certificate: then what it says does
        not count. Raises: HandshakeError; ConnectionError_ 403 when the client wants to be told."""
        if method.mechanism == "EXTERNAL" and self._certified is not None:
            users = self._connection.broker.users
            certified = users.admit(self._certified, self._ends.is_loopback)
            if certified is None or certified is users.direct_user:
                why = users.why_not(self._certified, self._ends.is_loopback)
                raise self._refused(method, self._certified, why)
            self._admit(Standing(certified, by_password=False))
            return
        try:
            name, password = handshake.credentials(method.mechanism, method.response)
        except handshake.HandshakeError as error:
            self._tell_refusal(method.mechanism, "", str(error))
            raise
        attempt = name, password, self._ends.peer_host, self._ends.is_loopback
        user = self._chain.at_once(*attempt)
        if user is not None:
            self._admit(Standing(user))
        else:
            self._wait_for(partial(self._authenticated, method, *attempt))

    def renew(self, method: m.ConnectionUpdateSecret) -> None:
        """connection.update-secret: go on with a fresh token. A password needs no renewal."""
        connection = self._connection
        if connection.link.state != _core.STATE_OPEN or connection.user.expires_at is None:
            connection.send(0, m.ConnectionUpdateSecretOk())
        else:
            self._wait_for(partial(self._renewed, method))

    def end(self) -> None:
        """The connection is over."""
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _wait_for(self, work: Callable[[], Awaitable[Action]]) -> None:
        """Pause the link until it is known what is to be done."""

        async def find_out(then: Callable[[Action], None]) -> None:
            try:
                action = await work()
            except Exception as error:  # noqa: BLE001 - the connection tells bugs from refusals
                action = partial(_raise, error)
            then(action)

        def wait(then: Callable[[Action], None]) -> None:
            self._task = self._chain.tasks.start(find_out(then))

        self._connection.when_known(wait)

    async def _authenticated(
        self, method: m.ConnectionStartOk, name: str, password: bytes, address: str,
        is_loopback: bool,
    ) -> Action:  # fmt: skip
        reasons: list[str] = []
        user = await self._chain.authenticate(name, password, address, is_loopback, reasons)
        if user is None:
            return partial(_raise, self._refused(method, name, "; ".join(reasons)))
        return partial(self._admit, Standing(user))

    def _refused(self, method: m.ConnectionStartOk, name: str, why: str) -> Exception:
        """What to raise when nobody logs in. The log hears why, the client does not."""
        self._tell_refusal(method.mechanism, name, why)
        return handshake.refusal(method, name)

    def _tell_refusal(self, mechanism: str, name: str, why: str) -> None:
        _log.warning(
            "log-in of user %s with %.20s from %s failed: %s",
            shown_name(name), mechanism, self._ends.peer, why,
        )  # fmt: skip

    async def _renewed(self, method: m.ConnectionUpdateSecret) -> Action:
        try:
            fresh = await self._chain.renew(self._connection.user, method.new_secret)
        except TokenError as error:
            ids = method.CLASS_ID, method.METHOD_ID
            return partial(_raise, ConnectionError_(ReplyCode.ACCESS_REFUSED, str(error), *ids))
        return partial(self._replace, fresh)

    def _admit(self, standing: Standing) -> None:
        connection = self._connection
        connection.logged_in(standing)
        _log.debug(
            "user %r logged in with %s from %s",
            standing.user.name, connection.auth_mechanism, self._ends.peer,
        )  # fmt: skip
        self._watch_end()

    def _replace(self, fresh: Identity) -> None:
        """The rights of the fresh token count from here on."""
        connection = self._connection
        if connection.link.state != _core.STATE_OPEN:
            return  # it was told to close meanwhile
        connection.user, connection.standing = fresh, Standing(fresh)
        connection.user_changed()
        connection.vhost.core.touch()  # links remember where they may publish
        self._watch_end()
        connection.send(0, m.ConnectionUpdateSecretOk())
        # It may allow less.
        connection.broker.revocation.look_again(fresh.name, is_login=True)

    def _watch_end(self) -> None:
        """Close the connection when the token runs out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expires_at = self._connection.user.expires_at
        if expires_at is None:
            return
        left_s = expires_at - time.time()
        if left_s <= 0:
            self._connection.expel(ReplyCode.CONNECTION_FORCED, "token expired")
            return
        # A loop's clock may round down: a little later is not too early.
        wait_s = min(left_s + 0.001, LONGEST_WAIT_S)
        self._timer = self._connection.broker.events.call_later(wait_s, self._watch_end)


def _raise(error: Exception) -> None:
    raise error
