"""The sessions of one virtual host: who is connected by which identifier, and what outlives that.

A session is a queue `mqtt.<client id>`, durable when it is kept without its client; how long is its
argument `x-expires`. So lists, policies and limits know it, and a restart finds it. Subscriptions
are in `subscriptions.py`, whose a session is in `owners.py`. Made with the first client; on the
loop's thread.
Source: MQTT 5.0 section 4.1; docs/mqtt.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq import _core
from lavinmq.auth.users import User
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable
from lavinmq.mqtt import groups, kept_wills, own_topics, owners
from lavinmq.mqtt.connect import NEVER, Will, within
from lavinmq.mqtt.kept_wills import Kept
from lavinmq.mqtt.rights import TopicRights
from lavinmq.mqtt.stores import Stores
from lavinmq.mqtt.subscriptions import Subscriptions
from lavinmq.mqtt.wills import Testament, Wills
from lavinmq.process import log
from lavinmq.process.portions import in_portions
from lavinmq.vhost.subscribing import EXCHANGE, PREFIX, SHARE

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.standing import Standing
    from lavinmq.broker import Broker
    from lavinmq.process.portions import Portions
    from lavinmq.vhost.new_queue import Declared
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

_EXPIRES: Final = "x-expires"
_TYPE: Final = {"x-queue-type": "mqtt"}


class Client(Protocol):
    """Who holds a session."""

    def user_changed(self) -> None:
        """What it may do has to be looked up anew."""

    def take_over(self) -> None:
        """Somebody else has come with the same identifier: let go of the session at once."""


class Sessions:
    """The sessions of one virtual host. `works`: what may be long is done there."""

    def __init__(self, broker: Broker, vhost: VHost, works: Portions) -> None:
        self.vhost = vhost
        self.exchange = vhost.exchanges[EXCHANGE]
        self.subscriptions = Subscriptions(vhost, self.exchange)
        self.clients: dict[str, Client] = {}
        """By the names of their sessions, which their queues have as well."""
        self.wills = Wills(broker.events, self._publish, works)
        self._broker = broker
        self._published: dict[str, Testament] = {}
        self._unsafe: dict[str, int] = {}
        """Clients of whose sessions the log has something that the disk has not, and how often."""
        self._plain_rights: dict[tuple[bool, ...], TopicRights] = {}
        self._latest_rights: tuple[Identity, int, TopicRights] | None = None
        """Of a user as of an epoch, whatever its client is called."""
        self._standing: Standing | None = None
        self._ending: set[str] = set()
        """Clients whose sessions have ended, which the log does not say yet."""
        self._groups: dict[int, _core.Queue] | None = None
        """Queues of shared subscriptions, while sessions are restored."""
        self._log = log.get("lmq.mqtt", vhost=vhost.name)
        self.stores = Stores(broker, vhost)
        self._rules = self._rules_now()
        vhost.on_session_end = self._ended
        vhost.on_parameters = self._rights_changed
        for queue in vhost.queues.values():
            if queue.is_session and queue.is_stored:
                self._limit(queue)

    def _rights_changed(self) -> None:
        """Permission groups may be others, or the exchange behind the bridge."""
        self._latest_rights = None
        rules, self._rules = self._rules, self._rules_now()
        in_portions(self._broker.events.call_soon, self._telling(is_other=rules != self._rules))

    def _rules_now(self) -> tuple[str, list[object]]:
        """What decides about rights besides the users."""
        given = self.vhost.rules.parameters.all(groups.COMPONENT)
        return self.vhost.bridge.exchange, [each.value for each in given]

    def _telling(self, *, is_other: bool) -> Iterator[None]:
        for client in list(self.clients.values()):
            client.user_changed()
            yield
        if is_other:
            yield from self.review({None})

    def review(self, names: owners.Names) -> Iterator[None]:
        """What these users may do has changed: sessions without their clients have to do with it,
        too."""
        return owners.review(self, self._broker.users, names)

    def _limit(self, queue: Queue) -> None:
        """A session that a start has found: those of LavinMQ say nothing of their end. One of ours
        that does not either may have been left so by a kill; then the log knows it."""
        if _EXPIRES in queue.arguments or queue.name.startswith(PREFIX + SHARE):
            return
        kept, raw = self.stores.log, _raw(queue.name.removeprefix(PREFIX))
        noted_s = kept.times(raw)[0] if kept is not None and raw in kept else NEVER
        self.set_expiry(queue, noted_s)

    # --- what outlives the broker ---------------------------------------------------------------

    def restore(self) -> None:
        """The broker has started: have sessions go on with their packet ids, and wills of clients
        that were there when it ended."""
        kept = self.stores.log
        if kept is None:
            return
        is_changed = kept.is_in_doubt and self._settle(kept)
        over: list[str] = []
        for client_id in list(self.stores.client_ids()):
            queue = self.find(client_id)
            if queue is None or not self.expiry_s(queue):
                over.append(client_id)
            elif self._go_on(kept, client_id, queue):
                is_changed = True
        self._drop_taken(kept, over)
        for client_id in over:
            if (queue := self.find(client_id)) is not None:
                self.remove(queue)  # it was to end with the connection, which the broker has ended
            if self._go_on(kept, client_id, self.find(client_id)):
                is_changed = True
        self._groups = None
        if is_changed:
            self._secure(kept)

    def _go_on(self, kept: _core.SessionLog, client_id: str, queue: Queue | None) -> bool:
        """Have a session, which may have ended, go on with its packet ids, its will and its time.
        Returns: whether the log says something that has to be on disk."""
        raw, gone = _raw(client_id), list[int]()
        will = kept_wills.decode(kept.fact(raw, kept_wills.KEY) or b"") if raw in kept else None
        if queue is not None:
            gone = self._restore_packets(kept, raw, queue)
            for packet_id in gone:
                kept.note(raw, _core.SESSION_CHANGES["REC"], packet_id)
            left_ms = kept.times(raw)[1]
            ago_s = time.time() - left_ms / 1000 if left_ms else 0.0
            self.vhost.left(queue, max(ago_s, 0.0))
        if will is not None:
            self._restore_will(client_id, will, queue)
        elif queue is None and raw in kept:
            kept.end(raw)
        return bool(gone)

    def _drop_taken(self, kept: _core.SessionLog, over: list[str]) -> None:
        """What clients were being sent of shared subscriptions ends with their sessions: on disk,
        before the log forgets whose it was. `over`: sessions that have ended, with the broker or
        just before it."""
        is_changed = False
        for raw in map(_raw, over):
            taken = kept.taken(raw)
            if taken and _core.mqtt_drop_taken(
                self.exchange.core, kept, taken, self._shared_queues(kept)
            ):
                is_changed = True
        if is_changed and self._broker.config.sync:
            try:
                _core.sync_file_system(os.fspath(self.vhost.directory))
            except OSError as error:
                self._log.error("messages of shared subscriptions may come again: %s", error)

    def _restore_packets(self, kept: _core.SessionLog, raw: bytes, queue: Queue) -> list[int]:
        """Have a session go on with its packet ids. Returns: those that are released."""
        gone = _core.mqtt_restore(queue.core, *kept.packets(raw))
        taken = kept.taken(raw)
        if not taken:
            return gone
        return gone + _core.mqtt_restore_taken(
            queue.core, self.exchange.core, kept, taken, self._shared_queues(kept)
        )

    def _shared_queues(self, kept: _core.SessionLog) -> dict[int, _core.Queue]:
        """Those of shared subscriptions, by the keys that the log has for them."""
        if self._groups is None:
            self._groups = {
                kept.key(queue.core): queue.core
                for queue in self.vhost.queues.values()
                if queue.name.startswith(PREFIX + SHARE)
            }
        return self._groups

    def _secure(self, kept: _core.SessionLog) -> None:
        """Other messages are going to come to the places that the log has just let go of."""
        try:
            kept.secure()
        except OSError as error:
            self._log.error("the log of sessions cannot be written yet: %s", error)

    def _settle(self, kept: _core.SessionLog) -> bool:
        """The log may know of messages that are not in their queues: have it forget them. Returns:
        True."""
        queues = [queue.core for queue in self.vhost.queues.values() if queue.is_stored]
        forgotten = kept.settle(queues, self.stores.retained)
        if forgotten:
            self._log.info(
                "%d messages of QoS 2 that nobody was told to be safe are not on disk: what their"
                " clients send again is new", len(forgotten),
            )  # fmt: skip
        return True

    def _restore_will(self, client_id: str, kept: Kept, queue: Queue | None) -> None:
        """A client has not come to its end: its will is due after its delay, which goes on, and at
        the latest with its session."""
        user = None if kept.is_token else self._broker.users.get(kept.user)
        if user is None:
            why = "with the access token of" if kept.is_token else "there is no user"
            self._log.info("will of %r is dropped: %s %r", client_id, why, kept.user)
            self.forget_will(client_id)
            return
        will = within(kept.will, 0 if queue is None else self.expiry_s(queue))
        if kept.due_ms:
            will = within(will, max(0, kept.due_ms // 1000 - int(time.time())))
        self.wills.add(client_id, will, user, is_kept=True)

    def begun(
        self, client_id: str, queue: Queue, will: Will | None, user: Identity, *, is_present: bool
    ) -> bool:
        """A client has its session: what it needs in files is there. Returns: whether something has
        to be on disk before it is told. Raises: OSError."""
        kept, raw = self.stores.log, _raw(client_id)
        self._published.pop(client_id, None)
        if kept is None:
            return False
        was_there = raw in kept
        if not queue.is_stored and will is None:
            if was_there:
                kept.end(raw)
                self._note_unsafe(kept, client_id)
            return client_id in self._unsafe
        if is_new := not (is_present and was_there):
            kept.make(raw)
        had_will = kept.fact(raw, kept_wills.KEY) is not None
        kept.set_fact(
            raw, kept_wills.KEY, None if will is None else kept_wills.encode(Kept.of(user, will))
        )
        is_given = queue.is_stored and owners.note(kept, raw, user)
        if is_new or is_given or had_will or will is not None:
            self._note_unsafe(kept, client_id)
        return client_id in self._unsafe

    def _note_unsafe(self, kept: _core.SessionLog, client_id: str) -> None:
        """What the log says of a session is not on disk yet. A client that comes meanwhile is told
        nothing before, either: the one before it may have gone without having been told."""
        self._unsafe[client_id] = self._unsafe.get(client_id, 0) + 1
        kept.synced(partial(self._note_safe, client_id))

    def _note_safe(self, client_id: str) -> None:
        left = self._unsafe[client_id] - 1
        if left:
            self._unsafe[client_id] = left
        else:
            del self._unsafe[client_id]

    def when_kept(self, then: Callable[[], object]) -> None:
        """Call back once what `begun` has noted is on disk."""
        if self.stores.log is not None:
            self.stores.log.synced(then)

    def leave_will(self, client_id: str, will: Will, user: Identity) -> None:
        """Its client has gone: publish it when it is due, which the log says, too."""
        kept, raw, is_kept = self.stores.log, _raw(client_id), False
        if kept is not None and raw in kept and will.delay_s:
            due_ms = time.time_ns() // 1_000_000 + will.delay_s * 1000
            left = Kept.of(user, will, due_ms)
            try:
                kept.set_fact(raw, kept_wills.KEY, kept_wills.encode(left))
                is_kept = not left.is_token  # of that one the next start knows too little
            except OSError as error:
                self._log.error("will of %r is in memory alone: %s", client_id, error)
        self.wills.add(client_id, will, user, is_kept=is_kept)

    def note_time(self, client_id: str, expiry_s: int, *, is_here: bool) -> None:
        """The client of a stored session has come or gone, which counts over a restart, too."""
        kept, raw = self.stores.log, _raw(client_id)
        left_ms = 0 if is_here else time.time_ns() // 1_000_000
        try:
            if kept is not None and raw in kept:
                kept.set_times(raw, expiry_s, left_ms)
        except (OSError, ValueError) as error:
            self._log.error("the time of session %r is in memory alone: %s", client_id, error)

    def tell_numbers(self, text: str, queue: Queue, subscription_id: int) -> None:
        """Give a session that has subscribed to them the numbers of the broker."""
        if self._broker.config.mqtt_sys_interval:
            own_topics.give(self._broker, self, text, queue, subscription_id)

    def forget_will(self, client_id: str) -> None:
        """It is published, or never will be."""
        kept, raw = self.stores.log, _raw(client_id)
        queue = self.find(client_id)
        try:
            if kept is None or raw not in kept:
                return
            if queue is not None and queue.is_stored:
                kept.set_fact(raw, kept_wills.KEY, None)
            else:
                kept.end(raw)
        except (OSError, ValueError) as error:
            self._log.error("will of %r may come again: %s", client_id, error)

    def _ended(self, queue: Queue) -> None:
        """The queue of a session has gone, whoever has taken it away: its will waits no longer."""
        client_id = queue.name.removeprefix(PREFIX)
        self.wills.hasten(client_id)
        kept, raw = self.stores.log, _raw(client_id)
        if kept is None or raw not in kept or kept.fact(raw, kept_wills.KEY) is not None:
            return
        if kept.taken(raw):
            self._ending.add(client_id)
            self._when_left(partial(self._end_kept, client_id))
        else:
            self._end_kept(client_id)

    def _end_kept(self, client_id: str) -> None:
        """Have the log forget a session that has no queue."""
        kept, raw = self.stores.log, _raw(client_id)
        self._ending.discard(client_id)
        try:
            if kept is not None and raw in kept and self.find(client_id) is None:
                kept.end(raw)
        except (OSError, ValueError) as error:
            self._log.error("session %r may come again: %s", client_id, error)

    def _when_left(self, then: Callable[[], object]) -> None:
        """Call back once the queues of shared subscriptions do not have on disk any more what was
        moved to sessions: the next sync has the moves, the one behind it that they are over."""
        self._broker.loop.after_sync(partial(self._broker.loop.after_sync, then))

    def when_over(self, client_id: str, then: Callable[[], object]) -> None:
        """Call back when the log may have another session of a client. As long as it knows the one
        that has ended, a start knows whose messages of shared subscriptions are that it was sent.
        """
        if client_id in self._ending:
            self._when_left(then)
        else:
            then()

    # --- sessions -------------------------------------------------------------------------------

    def rights_of(self, user: Identity, client_id: str) -> TopicRights:
        """What a client may do as of now. Those of most are alike, and so the same."""
        is_asked = self._broker.config.mqtt_permission_check_enabled
        epoch, latest = self._broker.users.epoch, self._latest_rights
        if latest is not None and not is_asked and latest[0] is user and latest[1] == epoch:
            return latest[2]
        rights = TopicRights(user, self.vhost, client_id, is_asked=is_asked)
        plain = rights.plain
        if plain is None:
            return rights
        rights = self._plain_rights.setdefault(plain, rights)
        # Where permissions are asked, the name of the session's queue is asked about, too.
        self._latest_rights = None if is_asked else (user, epoch, rights)
        return rights

    def alike(self, standing: Standing) -> Standing:
        """A log-in, or one before that says the same: many clients have one user."""
        if self._standing is None or not standing.is_like(self._standing):
            self._standing = standing
        return self._standing

    def name_of(self, client_id: str) -> str:
        """What the session of a client is called: the one string for it, if it is there."""
        name = PREFIX + client_id
        queue = self.vhost.queues.get(name)
        return name if queue is None else queue.name

    def find(self, client_id: str) -> Queue | None:
        """The session of a client, if there is one."""
        return self.vhost.queues.get(PREFIX + client_id)

    def is_anothers(self, client_id: str, user: Identity) -> bool:
        """Whether the session of a client is that of another user."""
        return owners.is_anothers(self.stores.log, _raw(client_id), user)

    def expiry_s(self, queue: Queue) -> int:
        """The seconds that a session is kept without its client; 0: it ends with the connection."""
        if not queue.is_stored:
            return 0
        expires_ms = queue.arguments.get(_EXPIRES)
        return expires_ms // 1000 if isinstance(expires_ms, int) else NEVER

    def granted_s(self, wanted_s: int) -> int:
        """The seconds that a session may be kept for which a client wants so many."""
        return min(wanted_s, self._broker.config.mqtt_max_session_expiry)

    def make(self, name: str, wanted_s: int) -> Declared:
        """A new session, which is called so. Raises: ChannelError."""
        granted_s = self.granted_s(wanted_s)
        return self.vhost.declare_session(name, granted_s > 0, _arguments(granted_s or NEVER))

    def set_expiry(self, queue: Queue, wanted_s: int) -> bool:
        """A session is to be kept for so long. Returns: whether that was recorded."""
        try:
            return self.vhost.change_session(queue, _arguments(self.granted_s(wanted_s)))
        except ChannelError as error:
            self._log.error("session %r: %s", queue.name, error)
            return False

    def end(self, client_id: str) -> None:
        """The session ends, with all that is in it; its will is due if it waits."""
        queue = self.find(client_id)
        if queue is not None:
            self.remove(queue)
        self.wills.release(client_id)

    def remove(self, queue: Queue) -> None:
        """Take a session away."""
        try:
            self.vhost.remove_queue(queue)
        except ChannelError as error:
            self._log.error("session %r stays: %s", queue.name, error)

    def _publish(self, testament: Testament) -> Generator[None]:
        """Publish a will, if its author may, in portions."""
        will = testament.will
        if self.stores.are_over():
            return  # with all that it could go to
        self._published[testament.client_id] = testament
        rights = self._rights_now(testament)
        if rights is None or not rights.may_publish(will.topic):
            self._log.info("will of %r is dropped: not allowed", testament.client_id)
            self._published_safely(testament)
            return
        if self._broker.loop.is_held:
            self._log.warning("will of %r is dropped: low on disk", testament.client_id)
            self._published_safely(testament)
            return
        topic, expiry_s = will.topic.encode(), -1 if will.expiry_s is None else will.expiry_s
        if will.retain:
            self.stores.keep(topic, will.payload, will.qos, will.properties, expiry_s)
        publishing = _core.MqttPublish(
            self._broker.loop, self.exchange.core, topic, will.payload, will.qos, will.retain,
            will.properties, expiry_s, rights.may_cross(will.topic),
        )  # fmt: skip
        for _ in publishing:
            yield
            if self.stores.are_over():
                return
        if self._broker.is_stopping:  # which writes and syncs everything
            self._published_safely(testament)
        else:
            self._broker.loop.after_sync(partial(self._published_safely, testament))

    def _rights_now(self, testament: Testament) -> TopicRights | None:
        """What the author of a will may do as of now, however long it has waited; None: the user is
        gone, or has nothing to do with the virtual host any more."""
        author = testament.author
        if isinstance(author, User) and not self._broker.users.has(author):
            self._log.info("there is no user %r any more", author.name)
            return None
        if not author.has_vhost(self.vhost.name):
            return None
        return self.rights_of(author, testament.client_id)

    def _published_safely(self, testament: Testament) -> None:
        """A will is on disk in the sessions that get it: until now the log had to have it."""
        client_id = testament.client_id
        if self._published.get(client_id) is not testament:
            return  # the client has come again, and perhaps gone: that counts now
        del self._published[client_id]
        if PREFIX + client_id not in self.clients:
            self.forget_will(client_id)


def _raw(client_id: str) -> bytes:
    return client_id.encode(errors="surrogateescape")


@lru_cache(maxsize=64)
def _arguments(expiry_s: int) -> FieldTable:
    """The arguments of a session that is kept for so many seconds; shared by all that are the
    same, for there may be very many."""
    if expiry_s == NEVER:
        return FieldTable(_TYPE)
    # A stored one that is to end with its connection ends with a kill, too: after the least time
    # that there is. None at all would be for ever.
    return FieldTable({**_TYPE, _EXPIRES: expiry_s * 1000 or 1})
