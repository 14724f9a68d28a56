"""Whose the sessions of one virtual host are: kept in their log, for the time without a client.

A session is that of the user who has it, and nobody else gets what waits in it. When rights of that
user are taken while the client is away, subscriptions end as they do for one that is there. Of a
user who came with an access token nobody knows the rights then: they are asked when the client is
back. On the loop's thread. Source: docs/mqtt.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq.auth.users import User
from lavinmq.errors import ChannelError
from lavinmq.mqtt.rights import may_subscribe
from lavinmq.process import log
from lavinmq.vhost import subscribing
from lavinmq.vhost.subscribing import PREFIX, SHARE

if TYPE_CHECKING:
    from lavinmq import _core
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.users import UserStore
    from lavinmq.mqtt.rights import TopicRights
    from lavinmq.mqtt.stores import Stores
    from lavinmq.mqtt.subscriptions import Subscriptions
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

_log = log.get("lmq.mqtt")
Names = set[str | None]
"""Of users; with None in it, all."""
_USER: Final = b"user"
_TOKEN: Final = b"token"
"""Of the facts in the log: the name of a user of ours, and of one that an access token names."""


class Sessions(Protocol):
    """Those of a virtual host."""

    vhost: VHost
    subscriptions: Subscriptions
    stores: Stores

    @property
    def clients(self) -> Mapping[str, object]:
        """Who is there, by the names of their sessions."""

    def rights_of(self, user: Identity, client_id: str) -> TopicRights:
        """What a client may do as of now."""


def note(log_: _core.SessionLog, raw: bytes, user: Identity) -> bool:
    """A stored session is this user's. Returns: whether that was not known. Raises: OSError."""
    is_ours, name, is_new = isinstance(user, User), _raw(user.name), False
    for key, value in ((_USER, name if is_ours else None), (_TOKEN, None if is_ours else name)):
        if log_.fact(raw, key) != value:
            log_.set_fact(raw, key, value)
            is_new = True
    return is_new


def is_anothers(log_: _core.SessionLog | None, raw: bytes, user: Identity) -> bool:
    """Whether a session is that of somebody else. Of one that LavinMQ or an earlier release has
    left nobody knows: it is whose client identifier it is."""
    if log_ is None or raw not in log_:
        return False
    owner = log_.fact(raw, _USER) or log_.fact(raw, _TOKEN)
    return owner is not None and owner != _raw(user.name)


def review(sessions: Sessions, users: UserStore, names: Names) -> Iterator[None]:
    """Rights of users have changed: those of their sessions whose clients are away have the
    subscriptions that they allow."""
    for queue in list(sessions.vhost.queues.values()):
        if _is_away(sessions, queue):
            yield from _review(sessions, users, names, queue)
        yield


def _is_away(sessions: Sessions, queue: Queue) -> bool:
    """Whether a queue is a session without its client, with subscriptions."""
    return (
        queue.is_session and queue.is_stored and bool(queue.incoming)
        and queue.name not in sessions.clients and not queue.name.startswith(PREFIX + SHARE)
        and sessions.vhost.queues.get(queue.name) is queue
    )  # fmt: skip


def _review(sessions: Sessions, users: UserStore, names: Names, queue: Queue) -> Iterator[None]:
    client_id = queue.name.removeprefix(PREFIX)
    kept, raw = sessions.stores.log, _raw(client_id)
    owner = kept.fact(raw, _USER) if kept is not None and raw in kept else None
    name = None if owner is None else owner.decode(errors="surrogateescape")
    if name is None or names.isdisjoint((None, name)):
        return
    user, vhost, subscriptions = users.get(name), sessions.vhost.name, sessions.subscriptions
    if user is not None and not user.has_vhost(vhost):
        user = None
    rights = None if user is None else sessions.rights_of(user, client_id)
    for text in subscriptions.of(queue):
        try:
            if user is None or rights is None or not may_subscribe(user, vhost, rights, text):
                subscriptions.remove(queue, text)
            elif not subscribing.is_membership(text):
                subscriptions.set_apart(queue, text, not rights.may_hear(text))
        except ChannelError as error:
            _log.error("subscription of %r to %.100s stays: %s", client_id, text, error)
        yield
        if not _is_away(sessions, queue):
            return  # who is back looks at them anew


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
