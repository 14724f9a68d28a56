"""Ends what those who have logged in may do no more: connections, consumers, long answers.

Whoever changes users, permissions or tokens says so by `look_again`. Then everything that is open
is compared with what counts now, whatever it was that changed, in portions and once for many
changes. What a user publishes is not looked at here: links ask again when the epoch of a virtual
host moves. Source: decision 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from lavinmq.auth.standing import Standing
from lavinmq.auth.users import UserStore
from lavinmq.errors import ReplyCode
from lavinmq.process import log
from lavinmq.process.portions import in_portions

_log = log.get("lmq.revocation")


class Reader(Protocol):
    """A long answer."""

    def may_go_on(self) -> bool:
        """Whether the user may still have it."""

    def close(self) -> None:
        """End it."""


class Named(Protocol):
    """A virtual host."""

    name: str


class Channel(Protocol):
    """A channel, with those of its consumers that may have to go."""

    @property
    def is_over(self) -> bool:
        """Whether it has been closed meanwhile."""

    @property
    def consumers(self) -> Mapping[str, Any]:
        """By tag."""

    def review(self, consumer: Any) -> None:
        """End a consumer that may not go on."""


class Session(Protocol):
    """A connection, as far as it may have to go."""

    @property
    def name(self) -> str:
        """What logs call it."""

    @property
    def standing(self) -> Standing | None:
        """The log-in, once there is one."""

    @property
    def is_member(self) -> bool:
        """Whether it is open to a virtual host."""

    @property
    def vhost(self) -> Named:
        """The one that it is open to."""

    @property
    def channels(self) -> Mapping[int, Channel]:
        """By number."""

    def expel(self, code: ReplyCode, text: str) -> None:
        """End it; nothing more is done for it."""

    def user_changed(self) -> None:
        """What its user may do has changed."""


class Revocation:
    """What is open on one broker, compared with what is allowed.

    Args:
        users: as they are now.
        connections: those that are open, in the handshake too; read when it is needed.
        call_soon: of the event loop.
    """

    def __init__(
        self, users: UserStore, connections: Iterable[Session], call_soon: Callable[..., Any]
    ) -> None:
        self._users = users
        self._connections = connections
        self._call_soon = call_soon
        self.also: list[Callable[[set[str | None]], Iterator[None]]] = []
        """Look, in portions, at what these users have without a connection; None: all users. Not
        asked when only log-ins have changed."""
        self._readers: set[Reader] = set()
        self._names: set[str | None] = set()
        self._changed: set[str | None] = set()
        self._is_looking = False

    def look_again(self, name: str | None = None, *, is_login: bool = False) -> None:
        """Something has changed that may have taken rights away.

        Args: name: of the only user whom it is about; None: it may be about anybody.
            is_login: it is about somebody who has logged in, not about what a user may do.
        Cost: a millisecond now; the rest follows in the next turns of the loop.
        """
        self._names.add(name)
        if not is_login:
            self._changed.add(name)
        if not self._is_looking:
            self._is_looking = True
            in_portions(self._call_soon, self._passes())

    def watch(self, reader: Reader) -> None:
        """End a reader when its user may not go on, until `unwatch`."""
        self._readers.add(reader)

    def unwatch(self, reader: Reader) -> None:
        """It has ended."""
        self._readers.discard(reader)

    def why_not(self, standing: Standing, vhost: str | None = None) -> str:
        """Why somebody may not go on, in a virtual host if one is named; empty if they may."""
        why = standing.why_over(self._users)
        if why or vhost is None or standing.user.has_vhost(vhost):
            return why
        return f"User '{standing.user.name}' has no permissions in vhost '{vhost}' any more"

    def _passes(self) -> Iterator[None]:
        """Look at everything, until nothing has changed meanwhile."""
        try:
            while self._names:
                names, self._names = self._names, set()
                changed, self._changed = self._changed, set()
                for reader in list(self._readers):
                    with _going_on():
                        if not reader.may_go_on():
                            reader.close()
                for connection in list(self._connections):
                    standing = connection.standing
                    if standing is not None and not names.isdisjoint((None, standing.user.name)):
                        with _going_on():
                            yield from self._look_at(connection, standing)
                    yield
                for look in self.also if changed else ():
                    with _going_on():
                        yield from look(changed)
        finally:
            self._is_looking = False

    def _look_at(self, connection: Session, standing: Standing) -> Iterator[None]:
        """One connection: the log-in first, then the tags, then each consumer."""
        vhost = connection.vhost.name if connection.is_member else None
        why = self.why_not(standing, vhost)
        if why:
            _log.info("connection %s is closed: %s", connection.name, why)
            connection.expel(ReplyCode.CONNECTION_FORCED, why)
        if not connection.is_member:
            return
        connection.user_changed()
        for channel in list(connection.channels.values()):
            for consumer in list(channel.consumers.values()):
                if channel.is_over:
                    break
                if channel.consumers.get(consumer.tag) is consumer:  # else it has gone meanwhile
                    channel.review(consumer)
                yield


@contextmanager
def _going_on() -> Iterator[None]:
    """One that cannot be ended must not keep others, who may not go on either, open."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a bug, or no memory: the log says it
        _log.error("what may be no more cannot be ended", exc_info=error)
