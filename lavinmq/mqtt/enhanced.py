"""Log-in by AUTH packets, version 5: SCRAM-SHA-256, and access tokens, which are renewed so.

A client names the method in CONNECT, and may come back to it at any time to say anew who it is: a
token is replaced by a fresh one without a new connection. What is guessed wrong makes the next
attempts wait, as any other log-in does. Owned by its connection, which it tells what came of it.
Source: MQTT 5.0 section 4.12; RFC 5802, RFC 7628; docs/mqtt.md, docs/authentication.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from lavinmq.auth import scram
from lavinmq.auth.attempt import TokenError, shown_name
from lavinmq.auth.scram import ScramError
from lavinmq.mqtt.reasons import Reason, protocol_error
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.broker import Broker
    from lavinmq.listeners.endpoints import Endpoints

_log = log.get("lmq.mqtt.login")
BEARER: Final = "OAUTHBEARER"
METHODS: Final = (scram.MECHANISM, BEARER)
_AUTH: Final = b"\x01auth=Bearer "


class Guest(Protocol):
    """Whose log-in it is."""

    user: Identity

    def ask(self, data: bytes) -> None:
        """Send the next step, and hear the answer."""

    def wait(self) -> None:
        """What comes next is known later."""

    def proved(self, user: Identity, vhost: str, data: bytes) -> None:
        """It is who it says; the virtual host that it has named, empty for none, and the last word
        to it."""

    def not_proved(self, reason: Reason) -> None:
        """It is not."""


class Enhanced:
    """The authentication of one client. Args: ends: where it is."""

    __slots__ = (
        "_broker", "_ends", "_exchange", "_guest", "_task", "is_running", "method", "proof",
    )  # fmt: skip

    def __init__(self, broker: Broker, guest: Guest, ends: Endpoints, method: str) -> None:
        self.method: Final = method
        self.is_running = False
        """Whether the client is expected to say more, or waits for what comes of it."""
        self._broker = broker
        self._guest = guest
        self._ends = ends
        self.proof = b""
        """What CONNACK has to say of it."""
        self._exchange: scram.Exchange | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, data: bytes, *, is_again: bool = False) -> None:
        """The client begins, with its first message or without. Args: is_again: it has logged in
        before. Raises: PacketError."""
        if self.is_running:
            raise protocol_error("an authentication is under way")
        self.is_running = True
        if self.method == BEARER:
            token = _token(data)
            self._start(self._renew(token) if is_again else self._take(token))
            return
        self._exchange = scram.Exchange()
        if data:
            self.go_on(data)
        else:
            self._guest.ask(b"")

    def go_on(self, data: bytes) -> None:
        """The client has sent the next message. Raises: PacketError."""
        exchange = self._exchange
        if not self.is_running or exchange is None or self._task is not None:
            raise protocol_error("nothing was asked")
        if exchange.name:
            self._start(self._judge(exchange, data))
            return
        try:
            answer = exchange.first(data, self._keys_for)
        except ScramError as error:
            self._refuse(exchange.name, str(error))
            return
        self._guest.ask(answer)

    def end(self) -> None:
        """The connection is over."""
        if self._task is not None:
            self._task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._guest.wait()
        self._task = self._broker.chain.tasks.start(work)

    def _keys_for(self, name: str) -> scram.Keys | None:
        return self._broker.chain.scram_keys_for(_parts(name)[1], self._ends.is_loopback)

    async def _judge(self, exchange: scram.Exchange, data: bytes) -> None:
        vhost, name = _parts(exchange.name)
        answer = b""

        def check() -> str:
            nonlocal answer
            try:
                answer = exchange.final(data)
            except ScramError as error:
                return str(error)
            return ""

        ends = self._ends
        user, why = await self._broker.chain.judge(name, ends.peer_host, ends.is_loopback, check)
        if user is None:
            self._refuse(name, why)
        else:
            self._admit(user, vhost, answer)

    async def _take(self, token: bytes) -> None:
        reasons: list[str] = []
        ends = self._ends
        user = await self._broker.chain.authenticate(
            "", token, ends.peer_host, ends.is_loopback, reasons
        )
        if user is None:
            self._refuse("", "; ".join(reasons))
        else:
            self._admit(user, "", b"")

    async def _renew(self, token: bytes) -> None:
        try:
            fresh = await self._broker.chain.renew(self._guest.user, token)
        except TokenError as error:
            self._refuse(self._guest.user.name, str(error))
        else:
            self._admit(fresh, "", b"")

    def _admit(self, user: Identity, vhost: str, answer: bytes) -> None:
        self._over(lambda: self._guest.proved(user, vhost, answer))

    def _refuse(self, name: str, why: str) -> None:
        """The log hears why, the client does not."""
        _log.warning(
            "log-in of user %s with %s from %s failed: %s",
            shown_name(name), self.method, self._ends.peer, why,
        )  # fmt: skip
        self._over(lambda: self._guest.not_proved(Reason.NOT_AUTHORIZED))

    def _over(self, tell: Callable[[], object]) -> None:
        self._task = self._exchange = None
        self.is_running = False
        tell()


def _parts(name: str) -> tuple[str, str]:
    """Virtual host, empty for none, and user in `vhost:user` or `user`."""
    vhost, colon, user = name.partition(":")
    return (vhost, user) if colon else ("", name)


def _token(data: bytes) -> bytes:
    """The token in the message of a client: as RFC 7628 wraps it, or bare."""
    _, found, rest = data.partition(_AUTH)
    return rest.partition(b"\x01")[0] if found else data
