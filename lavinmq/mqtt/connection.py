"""One client of MQTT: what stands behind its link, from CONNECT to the end.

The link walks packets; messages and their acknowledgements never come here. What does: CONNECT,
SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH, topics that it has not asked about, mistakes, the end.
Version 5 hears why before its socket is closed; earlier ones just see that. Owned by the broker's
set of connections. Longer than 500 lines: how a connection comes, lives and ends turns on the same
few attributes. Source: MQTT 5.0 and 3.1.1 chapter 3; docs/mqtt.md.
"""

from __future__ import annotations

import base64
import secrets
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from lavinmq import _core
from lavinmq.auth.standing import Standing
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.listeners.peer import Peer
from lavinmq.mqtt import (
    answers,
    codec,
    connect,
    enhanced,
    filters,
    own_topics,
    properties,
    requests,
    taking,
)
from lavinmq.mqtt.codec import V5
from lavinmq.mqtt.connect import Connect, Refused, Will
from lavinmq.mqtt.enhanced import Enhanced
from lavinmq.mqtt.login import Login
from lavinmq.mqtt.reasons import PacketError, Reason, reason_of
from lavinmq.mqtt.requests import Subscribe, Unsubscribe, Wish
from lavinmq.mqtt.rights import TopicRights, may_subscribe
from lavinmq.vhost import subscribing
from lavinmq.vhost.new_queue import NewQueue
from lavinmq.vhost.subscribing import SHARE, Options, options_of

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.broker import Broker
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.mqtt.sessions import Sessions
    from lavinmq.mqtt.stores import Gifts
    from lavinmq.process.portions import Portions
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

CONNECT_TIMEOUT_S: Final = 15.0
LINGER_S: Final = 2.0
MAX_CONNECT: Final = 65536
"""Bytes of a packet before the session is open."""
ALIASES: Final = 32
"""Topic aliases that a client may have: each may be of a topic of 65 535 bytes."""
NO_RECEIVE_MAXIMUM: Final = 65535
"""As many as there are packet identifiers: not worth telling."""
NO_CHANNELS: Final[Mapping[int, Any]] = {}


class Host(Protocol):
    """Where a client has come to."""

    broker: Broker
    gifts: Gifts
    works: Portions

    def of(self, vhost: VHost) -> Sessions:
        """The sessions of a virtual host."""


class Consumer:
    """What a queue knows of a client that has its messages."""

    __slots__ = ()

    tag: Final = ""
    exclusive: Final = False

    @property
    def connection(self) -> Connection:
        """Whose it is."""
        raise NotImplementedError

    def start(self) -> None:
        """Its turn has come, where a queue of AMQP has turns."""

    def stop(self) -> None:
        """The queue is gone."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The client hears of it by its end."""


class Taker(Consumer):
    """That of a shared subscription, or of a queue of AMQP."""

    __slots__ = ("_connection", "core")

    def __init__(self, connection: Connection, core: _core.Consumer) -> None:
        self._connection = connection
        self.core = core

    @property
    def connection(self) -> Connection:
        """Whose it is."""
        return self._connection

    def start(self) -> None:
        """Its turn has come, where a queue of AMQP has turns."""
        self.core.start()

    def stop(self) -> None:
        """The queue is gone."""
        self.core.cancel()
        self._connection.share_again(self)


class Connection(Peer[_core.MqttLink], Consumer):
    """A client. It is the consumer of its session itself: another object would be 48 bytes."""

    logger = "lmq.mqtt.client"
    arrival_s = CONNECT_TIMEOUT_S
    channel_max: Final = 0
    frame_max: Final = 0
    client_properties: Final = b""
    """What lists show of connections, and MQTT does not have."""

    __slots__ = (
        "_enhanced", "_host", "_login", "_queue", "_session", "_sessions", "_shared", "_terms",
        "_wanted", "_will", "rights",
    )  # fmt: skip

    def __init__(self, host: Host, sock: socket.socket, ends: Endpoints) -> None:
        loop = host.broker.loop
        super().__init__(host.broker, sock, ends, _core.MqttLink(loop, sock.fileno(), _core.MQTT))
        self._host = host
        self.rights: TopicRights
        self._terms = connect.FIRST
        self._session = ""
        """The name of its session: an identifier beside it would be 64 bytes."""
        self._login: Login | None = Login(self.broker, self, ends)
        self._enhanced: Enhanced | None = None
        self._wanted: Connect | None = None
        self._sessions: Sessions
        self._queue: Queue | None = None
        self._shared: dict[str, tuple[Queue, Taker]] | None = None
        self._will: Will | None = None

    # --- what the broker asks -----------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """What it calls itself, or was given; empty before it has logged in."""
        return self._session.removeprefix(subscribing.PREFIX)

    @property
    def level(self) -> int:
        """The version of MQTT, by its number in CONNECT."""
        return self._terms.level

    @property
    def keep_alive_s(self) -> int:
        """Seconds without a packet after which a client should send one, 0: any number."""
        return self._terms.keep_alive_s

    @property
    def receive_maximum(self) -> int:
        """Unacknowledged deliveries that it gets at a time."""
        return self._terms.receive_maximum

    @property
    def _most(self) -> int:
        """Bytes of the largest packet that it takes, 0: any."""
        return self._terms.packet_maximum

    @property
    def protocol(self) -> str:
        """What it speaks, for people."""
        return codec.VERSIONS[self.level]

    @property
    def heartbeat_s(self) -> int:
        """The same, as every connection calls it."""
        return self.keep_alive_s

    @property
    def auth_mechanism(self) -> str:
        """How it has logged in."""
        return self._terms.mechanism

    @property
    def channels(self) -> Mapping[int, Any]:
        """There are none in MQTT."""
        return NO_CHANNELS

    @property
    def has_will(self) -> bool:
        """Whether something is published if it ends without a word."""
        return self._will is not None

    @property
    def has_subscribed(self) -> bool:
        """Whether it has a subscription."""
        return self._queue is not None and len(self._queue.incoming) > 0

    @property
    def consumers(self) -> list[tuple[Queue, Consumer]]:
        """What it is served from: its session, and what it shares with others."""
        if self._queue is None:
            return []
        return [(self._queue, self), *(self._shared or {}).values()]

    @property
    def connection(self) -> Connection:
        """Whose consumer it is."""
        return self

    def start(self) -> None:
        """Begin to read. The queue of a session has no turns."""
        if self._queue is None:
            super().start()

    def stop(self) -> None:
        """Its session is gone: somebody has deleted the queue, or the virtual host."""
        self._queue = None
        # A will does not wait longer than its session.
        self._terms = self._terms._replace(expiry_s=0)
        self._disconnect(Reason.ADMINISTRATIVE_ACTION, "the session was deleted")

    def close(self, code: ReplyCode, text: str) -> None:
        """Tell the client that the connection ends, and end it."""
        self.link.drain()  # what has reached us is not lost for want of a moment
        self.expel(code, text)

    def expel(self, code: ReplyCode, text: str) -> None:
        """The same, and nothing more is done for the client."""
        reason = Reason.ADMINISTRATIVE_ACTION
        if self.broker.is_stopping:
            reason = Reason.SERVER_SHUTTING_DOWN
        self._disconnect(reason, text)

    def user_changed(self) -> None:
        """What its user may do has changed: subscriptions that it may have no more end."""
        if not self.is_member:
            return
        was_limited = self.rights.is_limited
        self._tell_user()
        self.rights = self._sessions.rights_of(self.user, self.client_id)
        if self._queue is None or self._wanted is not None:
            return  # it waits for its session, and CONNACK gives it what it may do then
        if not was_limited and self.rights.is_limited:
            self._disconnect(Reason.ADMINISTRATIVE_ACTION, "the rights of the user have changed")
            return
        self.link.mqtt_cross(self.rights.crosses, self.rights.is_asked)
        self._review(self._queue)

    def _has(self, queue: Queue) -> bool:
        """Whether a session is still this client's: while it is told to close, it may be another's,
        or gone."""
        return self._queue is queue and not self._is_over

    def _review(self, queue: Queue) -> None:
        """Look at its subscriptions: at once, if they are few."""
        self._host.works.begin_unless_few(self._reviewing(queue), len(queue.incoming))

    def _reviewing(self, queue: Queue) -> Iterator[None]:
        """Subscriptions are what the rights of today allow."""
        subscriptions = self._sessions.subscriptions
        for text in subscriptions.of(queue):
            if not self._has(queue):
                return
            if not self._may_subscribe(text):
                self._unsubscribe_one(queue, text)
            elif not subscribing.is_membership(text):
                try:
                    subscriptions.set_apart(queue, text, not self.rights.may_hear(text))
                except ChannelError as error:
                    self._log.error("subscription to %.100s: %s", text, error)
                    self._unsubscribe_one(queue, text)
            yield

    def _may_subscribe(self, text: str) -> bool:
        return may_subscribe(self.user, self.vhost.name, self.rights, text)

    # --- what the link calls ------------------------------------------------------------------

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        """A packet that the message path leaves to us."""
        try:
            self._handle(kind, flags, body)
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)

    def on_packet_error(self, reason: int, text: str) -> None:
        """A packet broke a rule."""
        self._fail(PacketError(reason_of(reason), text))

    def on_topic_miss(self, kind: int, topic: bytes) -> None:
        """A publish to a topic that the link has not asked about since the last change."""
        text = topic.decode(errors="replace")
        may = self.rights.may_publish(text)
        if not may and self.level != V5 and self.broker.config.mqtt_refused_publish == "disconnect":
            self._disconnect(Reason.NOT_AUTHORIZED, f"it may not publish to {text[:100]!r}")
            return
        self.link.mqtt_allow(topic, may, self.rights.may_cross(text))

    def on_held(self, channel: int) -> None:
        """A publish while the disk is short of space: it waits, and nothing more is read."""
        self.is_blocked = True
        self.link.hold()

    def on_released(self) -> None:
        """The disk has room again."""
        self.is_blocked = False

    def on_timeout(self, why: str) -> None:
        """CONNECT took too long, or the client is silent."""
        if self.is_member and self.link.state == _core.STATE_OPEN:
            self._disconnect(Reason.KEEP_ALIVE_TIMEOUT, why)
        else:
            self.on_lost(why)

    def on_large_header(self, channel: int) -> None:
        """A queue of AMQP has a message that is larger than what the client takes."""
        self._disconnect(Reason.PACKET_TOO_LARGE, "a message of a queue is too large")

    def on_unreadable(self) -> None:
        """A message whose beginning has been sent cannot be read any more."""
        self.on_lost("a message cannot be read")

    def on_lost(self, why: str) -> None:
        """The socket is gone, or given up: publish the will, let go of the session."""
        if self._is_over:
            return
        self._is_over = True
        if why:
            self._log.info("connection lost: %s", why)
        self._leave(has_will=True)
        self._cut(is_clean=not why)
        self._close_link()
        self.broker.lost(self)

    # --- packets ------------------------------------------------------------------------------

    def _handle(self, kind: int, flags: int, body: bytes) -> None:
        if kind == codec.CONNECT:
            # One step: a generator of ours, and one that watches over it, would be felt.
            self.link.pause()
            connecting = partial(self._connect, flags, body)
            self._host.works.begin(map(self._guarded, (connecting,)))
        elif kind == codec.DISCONNECT:
            self._disconnected(requests.disconnect(self.level, flags, body))
        elif kind == codec.SUBSCRIBE and self._queue is not None:
            self._work(self._subscribing(requests.subscribe(self.level, flags, body), self._queue))
        elif kind == codec.UNSUBSCRIBE and self._queue is not None:
            asked = requests.unsubscribe(self.level, flags, body)
            self._work(self._unsubscribing(asked, self._queue))
        elif kind == codec.AUTH:
            self._authenticate(requests.auth(self.level, flags, body))
        else:
            raise PacketError(Reason.PROTOCOL_ERROR, "not before CONNACK")

    def _fail(self, error: Exception) -> None:
        """What a client has sent, or what was done for it, has raised: it ends the connection."""
        if isinstance(error, Refused):
            self._terms = self._terms._replace(level=error.version)
            self._refuse(error.reason, str(error))
        elif isinstance(error, PacketError):
            if self.is_member:
                self._disconnect(error.reason, str(error))
            else:
                self.on_lost(str(error))
        else:  # a bug of ours: this client pays, the others go on
            self._log.error("bug", exc_info=error)
            self._disconnect(Reason.UNSPECIFIED, "Unexpected error, please report")

    def _guarded(self, action: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)

    def _work(self, steps: Iterator[object]) -> None:
        """Do what may be long, or what thousands of clients may want at once; the client's next
        packets wait until it says that it is over."""
        self.link.pause()
        self._host.works.begin(self._watched(steps))

    def _watched(self, steps: Iterator[object]) -> Iterator[object]:
        if self._is_over:
            return
        try:
            yield from steps
        except Exception as error:  # noqa: BLE001 - see _fail
            if not self._is_over:
                self._fail(error)

    def _answer(self, packet: bytes, *, is_recorded: bool) -> None:
        """Answer, once what was recorded is on disk, and go on with the client's next packets."""
        if is_recorded:
            self.vhost.recorded.when_synced(partial(self._answer_now, packet))
        else:
            self._answer_now(packet)

    def _answer_now(self, packet: bytes) -> None:
        if self._is_over or not self.is_member:
            return
        if self._most and len(packet) > self._most:
            self._disconnect(Reason.PACKET_TOO_LARGE, "the answer is larger than the client takes")
            return
        self.link.write(packet)
        self.link.resume()

    # --- CONNECT ------------------------------------------------------------------------------

    def _connect(self, flags: int, body: bytes) -> None:
        wanted = connect.decode(flags, body)
        self._wanted = wanted
        self._terms = connect.terms(wanted, self.broker.config.mqtt_max_inflight_messages)
        method = wanted.properties.get(properties.AUTH_METHOD)
        if method is not None:
            if method not in enhanced.METHODS:
                self._refuse(Reason.BAD_AUTHENTICATION_METHOD, "there is no such method")
                return
            self._enhanced = Enhanced(self.broker, self, self.ends, method)
            self.link.resume()  # for AUTH
            self._enhanced.begin(wanted.properties.get(properties.AUTH_DATA, b""))
            return
        if self._login is not None:
            self._login.begin(wanted)

    def _authenticate(self, said: requests.Auth) -> None:
        """AUTH: the next step, or once more from the beginning."""
        if self._enhanced is None or self._enhanced.method != said.method:
            raise PacketError(Reason.PROTOCOL_ERROR, "CONNECT has not named this method")
        if said.reason != Reason.RE_AUTHENTICATE:
            self._enhanced.go_on(said.data)
        elif self._queue is None:
            raise PacketError(Reason.PROTOCOL_ERROR, "not before CONNACK")
        else:
            self._enhanced.begin(said.data, is_again=True)

    def ask(self, data: bytes) -> None:
        """The next step of an authentication."""
        assert self._enhanced is not None
        packet = answers.auth(Reason.CONTINUE_AUTHENTICATION, self._enhanced.method, data)
        if self._most and len(packet) > self._most:
            self.not_proved(Reason.PACKET_TOO_LARGE)
            return
        self.link.write(packet)

    def wait(self) -> None:
        """What comes of an authentication is known later."""
        self.link.pause()

    def proved(self, user: Identity, vhost: str, data: bytes) -> None:
        """An authentication has succeeded."""
        self._guarded(partial(self._proved, user, vhost, data))

    def _proved(self, user: Identity, vhost: str, data: bytes) -> None:
        assert self._enhanced is not None
        method = self._enhanced.method
        standing = Standing(user)
        if self._wanted is not None:
            self._enhanced.proof = data
            name = vhost or self.broker.config.mqtt_default_vhost
            self._enter(standing, name, method)
            return
        if not self.is_member or self.link.state != _core.STATE_OPEN:
            return  # it was told to close meanwhile
        if user.name != self.user.name:
            raise PacketError(Reason.NOT_AUTHORIZED, "it is another user")
        is_new = user is not self.user
        self.user, self.standing = user, standing
        if is_new:
            self.user_changed()
            self.vhost.core.touch()  # links remember where they may publish
            self.broker.revocation.look_again(user.name, is_login=True)  # it may allow less
        if self._is_over or not self.is_member:
            return
        self._watch_end()
        self._answer_now(answers.auth(Reason.SUCCESS, method, data))

    def not_proved(self, reason: Reason) -> None:
        """An authentication has failed."""
        if self._is_over:
            return
        if self.is_member:
            self._disconnect(reason, "")
        else:
            self._refuse(reason)

    def _watch_end(self) -> None:
        """Let the client go when its token runs out."""
        if self.user.expires_at is None:
            self._login = None
            return
        if self._login is None:
            self._login = Login(self.broker, self, self.ends)
        self._login.watch_end(self.user)

    def not_logged_in(self) -> None:
        """Nobody logs in."""
        if not self._is_over:
            self._refuse(Reason.BAD_USER_NAME_OR_PASSWORD)

    def logged_in(self, standing: Standing, vhost: str, mechanism: str) -> None:
        """The client is known, and wants into a virtual host."""
        if self._is_over:
            return
        try:
            self._enter(standing, vhost, mechanism)
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)

    def _enter(self, standing: Standing, name: str, mechanism: str) -> None:
        wanted = self._wanted
        assert wanted is not None
        self.user = standing.user
        self._terms = connect.alike(self._terms._replace(mechanism=mechanism))
        vhost = self.broker.vhosts.get(name)
        if vhost is None or not self.user.has_vhost(name):
            self._log.info("user %r has no access to vhost %r", self.user.name, name)
            self._refuse(Reason.NOT_AUTHORIZED)
            return
        refusal = self._over_limit(vhost)
        if refusal:
            self._refuse(Reason.QUOTA_EXCEEDED, refusal)
            return
        client_id = self._identified(wanted)
        self.vhost, self.is_member = vhost, True
        self._will = wanted.will
        vhost.connections.add(self)
        self.traffic = vhost.totals.traffic
        vhost.totals.churn.count("connection_created")
        self.link.set_vhost(vhost.core)
        self._tell_user()
        self._sessions = self._host.of(vhost)
        self._session = self._sessions.name_of(client_id)
        self.standing = self._sessions.alike(standing)
        self.rights = self._sessions.rights_of(self.user, client_id)
        older = self._sessions.clients.get(self._session)
        self._sessions.clients[self._session] = self
        if older is not None:
            older.take_over()
        self.broker.loop.when_returned(partial(self._guarded, self._begin))

    def _over_limit(self, vhost: VHost) -> str:
        """Why there may be no further connection; empty if there may."""
        limit = vhost.rules.limits.max_connections
        if limit is not None and len(vhost.connections) >= limit:
            return f"connection limit ({limit}) of the virtual host is reached"
        limit = self.broker.user_limits.of(self.user.name).get("max-connections")
        if limit is not None and len(self.broker.connections_of(self.user)) >= limit:
            return f"connection limit ({limit}) of the user is reached"
        return ""

    def _identified(self, wanted: Connect) -> str:
        """The identifier of the client, or one for it. Raises: Refused."""
        name = self.user.name
        is_named = self.broker.config.mqtt_client_id_validation == "username"
        if not wanted.client_id:
            made = base64.b64encode(secrets.token_bytes(32)).decode()
            return name if is_named else made
        if is_named and wanted.client_id != name:
            raise Refused(self.level, Reason.CLIENT_ID_NOT_VALID, "it has to be the user name")
        if wanted.client_id.startswith(SHARE):
            raise Refused(self.level, Reason.CLIENT_ID_NOT_VALID)
        return wanted.client_id

    def _tell_user(self) -> None:
        self.link.set_user(_raw_user(self.user.name), self.user.has_tag("impersonator"))

    def _begin(self) -> None:
        """Nobody else holds the session: resume it, or make one."""
        wanted = self._wanted
        assert wanted is not None
        if not self._sessions.stores.are_well:
            self._refuse(Reason.SERVER_UNAVAILABLE, "files of MQTT cannot be read")
            return
        client_id = self.client_id
        queue, is_recorded = self._sessions.find(client_id), False
        is_anothers = queue is not None and self._sessions.is_anothers(client_id, self.user)
        if is_anothers and not wanted.clean:
            self._log.warning("the session was another user's: it ends, and a new one begins")
        if queue is not None and (wanted.clean or not queue.is_stored or is_anothers):
            is_recorded = queue.is_stored
            self._sessions.end(client_id)
            if self._sessions.find(client_id) is not None:
                self._refuse(Reason.SERVER_UNAVAILABLE, "the session of before cannot be ended")
                return
            queue = None
        elif queue is None:
            self._sessions.wills.release(client_id)
        else:
            self._sessions.wills.cancel(client_id)
        if queue is not None:
            is_recorded = self._sessions.set_expiry(queue, self._terms.expiry_s)
            self._adopt(queue, is_recorded, is_present=True)
            return
        made = partial(self._guarded, partial(self._made, None, is_recorded))
        self._sessions.when_over(client_id, made)

    def _made(self, new: NewQueue[tuple[Queue, bool]] | None, is_recorded: bool) -> None:
        """A new session: there is one, or its directory is being made. `is_recorded`: whether one
        that was on disk ends with its CONNECT."""
        if self._is_over or not self.is_member:
            return
        try:
            outcome = (
                self._sessions.make(self._session, self._terms.expiry_s) if new is None
                else new.declare()
            )  # fmt: skip
        except ChannelError as error:
            is_limit = error.code == ReplyCode.ACCESS_REFUSED
            reason = Reason.QUOTA_EXCEEDED if is_limit else Reason.SERVER_UNAVAILABLE
            self._refuse(reason, error.reply_text)
            return
        if isinstance(outcome, NewQueue):
            made = partial(self._made, outcome, is_recorded)
            outcome.when_made(partial(self._guarded, made))
            return
        queue, was_recorded = outcome
        self._adopt(queue, is_recorded or was_recorded, is_present=False)

    def _adopt(self, queue: Queue, is_recorded: bool, *, is_present: bool) -> None:
        """The session is this client's. CONNACK comes once it is on disk."""
        self._queue = queue
        queue.add_consumer(self)
        client_id = self.client_id
        try:
            is_kept = self._sessions.begun(
                client_id, queue, self._will, self.user, is_present=is_present
            )
        except OSError as error:
            self._refuse(Reason.SERVER_UNAVAILABLE, f"the session cannot be stored: {error}")
            return
        if queue.is_stored:
            self._sessions.note_time(client_id, self._sessions.expiry_s(queue), is_here=True)
        if not (is_kept or is_recorded):
            self._resume(queue, is_present=is_present)
            return
        opened = partial(self._guarded, partial(self._resume, queue, is_present=is_present))
        if is_kept:
            opened = partial(self._sessions.when_kept, opened)
        if is_recorded:
            self.vhost.recorded.when_synced(opened)
        else:
            opened()

    def _resume(self, queue: Queue, *, is_present: bool) -> None:
        """Serve the client. In a session that was there it may have lost rights meanwhile: what it
        may not have any more ends before anything is sent."""
        if not is_present:
            if self._open(queue, is_present=False):
                self.link.resume()
            return
        steps = self._watched(self._resuming(queue))
        self._host.works.begin_unless_few(steps, len(queue.incoming))

    def _resuming(self, queue: Queue) -> Iterator[None]:
        rights = None
        while self._has(queue) and rights is not self.rights:  # they may change meanwhile
            rights = self.rights
            yield from self._reviewing(queue)
        if not self._open(queue, is_present=True):
            return
        for text in self._sessions.subscriptions.memberships(queue):
            self._join(queue, text, bool)
            yield
            if not self._has(queue):
                return
        self.link.resume()

    def _open(self, queue: Queue, *, is_present: bool) -> bool:
        """Send CONNACK, and serve the session from here on. Returns: whether that has begun."""
        wanted, config = self._wanted, self.broker.config
        if wanted is None or not self.is_member:
            return False
        self._wanted = None
        self.broker.newcomers.leave(self)
        self._watch_end()
        if self._is_over:
            return False
        given = self._told(wanted, queue)
        told = answers.connack(self.level, session_present=is_present, given=given)
        if self._most and len(told) > self._most:
            self._refuse(Reason.PACKET_TOO_LARGE)
            return False
        self.link.write(told)
        self.link.set_limits(MAX_CONNECT, config.mqtt_max_packet_size, 1.5 * self.keep_alive_s)
        self.link.mqtt_open(
            self.level, queue.core, self._sessions.exchange.core,
            receive_maximum=self.receive_maximum,
            receive_maximum_in=config.mqtt_max_inflight_messages,
            alias_maximum_in=ALIASES, alias_maximum_out=wanted.topic_alias_maximum,
            maximum_packet_out=wanted.maximum_packet_size or codec.MAX_VARINT + 5,
            maximum_packet_in=config.mqtt_max_packet_size, checks_topics=self.rights.is_asked,
            crosses=self.rights.crosses, is_persistent=queue.is_stored,
            retained=self._sessions.stores.retained,
            log=self._sessions.stores.log,
        )  # fmt: skip
        return True

    def _told(self, wanted: Connect, queue: Queue) -> dict[int, Any]:
        """The properties of CONNACK."""
        if self.level != V5:
            return {}
        told: dict[int, Any] = {}
        granted_s = self._sessions.expiry_s(queue)
        if granted_s != self._terms.expiry_s:
            told[properties.SESSION_EXPIRY] = granted_s
        if not wanted.client_id:
            told[properties.ASSIGNED_CLIENT_ID] = self.client_id
        if self.broker.config.mqtt_max_inflight_messages < NO_RECEIVE_MAXIMUM:
            told[properties.RECEIVE_MAXIMUM] = self.broker.config.mqtt_max_inflight_messages
        told[properties.TOPIC_ALIAS_MAXIMUM] = ALIASES
        if self._enhanced is not None:
            told[properties.AUTH_METHOD] = self._enhanced.method
            if self._enhanced.proof:
                told[properties.AUTH_DATA] = self._enhanced.proof
        most = self.broker.config.mqtt_max_packet_size
        if most < codec.MAX_VARINT:
            told[properties.MAXIMUM_PACKET_SIZE] = most + 5
        return told

    # --- SUBSCRIBE, UNSUBSCRIBE ---------------------------------------------------------------

    def _subscribing(
        self, reading: Generator[None, None, Subscribe], queue: Queue
    ) -> Iterator[None]:
        wanted = yield from reading
        granted: list[int] = []
        shared: list[tuple[int, Wish]] = []
        before: dict[str, Options | None] = {}
        """How it had subscribed to these."""
        is_recorded = False
        for wish in wanted.wishes:
            if not self._has(queue):
                return
            if subscribing.is_membership(wish.filter):
                shared.append((len(granted), wish))
                options = self._sessions.subscriptions.options(queue, wish.filter)
                before.setdefault(wish.filter, options)
            code, was_recorded = self._subscribe_one(queue, wish, wanted.subscription_id)
            granted.append(code)
            is_recorded |= was_recorded
            yield
        if not self._has(queue):
            return
        left = len(shared) + 1

        def one_done(at: int = -1, code: int = 0) -> None:
            nonlocal left
            if code >= Reason.UNSPECIFIED:
                granted[at] = code
                filter_ = wanted.wishes[at].filter
                self._undo(queue, filter_, before[filter_])
            left -= 1
            if not left:
                packet = answers.suback(self.level, wanted.packet_id, granted)
                self._answer(packet, is_recorded=is_recorded or bool(shared))

        for at, wish in shared:
            if granted[at] < Reason.UNSPECIFIED:
                self._join(queue, wish.filter, partial(one_done, at))
            else:
                one_done()
            yield
            if not self._has(queue):
                return
        one_done()

    def _undo(self, queue: Queue, text: str, before: Options | None) -> None:
        """SUBACK refuses a membership that is noted already: it must not be one when the client
        comes again. One of before that is served all the same goes on as it was."""
        serving, _ = (self._shared or {}).get(text, (None, None))
        if serving is None or self.vhost.queues.get(serving.name) is not serving:
            self._unsubscribe_one(queue, text)
            return
        try:
            if before is not None:
                self._sessions.subscriptions.put_back(queue, text, before)
        except ChannelError as error:
            self._log.error("subscription to %.100s keeps its new options: %s", text, error)

    def _subscribe_one(self, queue: Queue, wish: Wish, subscription_id: int) -> tuple[int, bool]:
        """Returns: the code that SUBACK has for it, and whether it was recorded."""
        if not self._may_subscribe(wish.filter):
            return Reason.NOT_AUTHORIZED, False
        was_there = self._sessions.subscriptions.has(queue, wish.filter)
        is_membership = subscribing.is_membership(wish.filter)
        apart = not is_membership and not self.rights.may_hear(wish.filter)
        try:
            is_recorded = self._sessions.subscriptions.add(
                queue, wish, subscription_id, apart=apart
            )
        except ValueError:
            return Reason.TOPIC_FILTER_INVALID, False
        except ChannelError as error:
            self._log.info("subscription to %.100s is refused: %s", wish.filter, error.reply_text)
            return Reason.QUOTA_EXCEEDED, False
        if not is_membership and (
            not wish.retain_handling or (wish.retain_handling == 1 and not was_there)
        ):
            self._give(wish, queue, subscription_id)
        return wish.qos, is_recorded

    def _give(self, wish: Wish, queue: Queue, subscription_id: int) -> None:
        """Have what is there already come for a subscription."""
        if wish.filter.startswith(own_topics.PREFIX):
            self._sessions.tell_numbers(wish.filter, queue, subscription_id)
            return
        sessions, filter_ = self._sessions, wish.filter
        self._host.gifts.begin(
            sessions.stores, filter_, queue, wish.qos, subscription_id,
            partial(sessions.subscriptions.has, queue, filter_),
        )  # fmt: skip

    def _join(self, queue: Queue, text: str, then: Callable[[int], object]) -> None:
        """Become a member of a shared subscription, or one with other options, and call back with
        0 or the reason why not."""
        parts = filters.shared(text)
        if parts is None:
            then(self._take(queue, text))
            return
        joined = partial(self._joined, queue, text, then)
        apart = not self.rights.may_hear(parts.filter)
        self._sessions.subscriptions.with_shared_queue(parts, apart, joined)

    def _take(self, queue: Queue, text: str) -> int:
        """Take from a queue or a stream of AMQP. Returns: 0 or the reason why not."""
        options = self._sessions.subscriptions.options(queue, text)
        name = taking.queue_of(text)
        if options is None or name is None:
            return Reason.UNSPECIFIED
        try:
            taking.check(self, name, options.qos)
            self._quit(text)  # not before: what works stays if this is refused
            found, core = taking.take(self, name, options)
        except ChannelError as error:
            self._log.info("subscription to %.100s is refused: %s", text, error.reply_text)
            return Reason.TOPIC_FILTER_INVALID
        consumer = self._consume(text, found, core)
        if not found.is_single_active or found.active_consumer is consumer:
            core.start()
        return 0

    def _joined(
        self, queue: Queue, text: str, then: Callable[[int], object], found: Queue | Exception
    ) -> None:
        if not self._has(queue):
            return
        arguments = self._sessions.exchange.options(queue, text)
        if arguments is None:
            then(Reason.NOT_AUTHORIZED)  # it was taken from it meanwhile
            return
        if isinstance(found, Exception):
            self._log.warning("shared subscription %.100s: %s", text, found)
            then(Reason.QUOTA_EXCEEDED if isinstance(found, ChannelError) else Reason.UNSPECIFIED)
            return
        self._quit(text)
        options = options_of(arguments)
        core = self.link.mqtt_share(found.core, options.qos, options.subscription_id)
        self._consume(text, found, core)
        then(0)

    def _consume(self, text: str, queue: Queue, core: _core.Consumer) -> Taker:
        """Have a subscription served by a queue that is not the session's."""
        consumer = Taker(self, core)
        queue.add_consumer(consumer)
        if self._shared is None:
            self._shared = {}
        self._shared[text] = queue, consumer
        return consumer

    def share_again(self, taker: Taker) -> None:
        """A queue has been deleted from which it was served. A shared subscription goes on with a
        new one: an operator who deletes what waits there does not end it."""
        texts = [text for text, (_, each) in (self._shared or {}).items() if each is taker]
        for text in filter(filters.shared, texts):
            if self._queue is not None and not self._sessions.stores.are_over():
                self._join(self._queue, text, bool)

    def _quit(self, text: str) -> None:
        """Get nothing of a shared subscription any more."""
        served = (self._shared or {}).pop(text, None)
        if served is not None:
            for _ in self._quitting([served]):
                pass

    def _quitting(self, served: list[tuple[Queue, Taker]]) -> Iterator[None]:
        """No consumer of queues that are not the session's any more, which get nothing once the
        link has left."""
        for queue, consumer in served:
            consumer.core.cancel()
            self.vhost.consumer_left(queue, consumer)
            yield

    def _unsubscribing(
        self, reading: Generator[None, None, Unsubscribe], queue: Queue
    ) -> Iterator[None]:
        wanted = yield from reading
        reasons: list[int] = []
        is_recorded = False
        for text in wanted.filters:
            if not self._has(queue):
                return
            reason, was_recorded = self._unsubscribe_one(queue, text)
            reasons.append(reason)
            is_recorded |= was_recorded
            yield
        packet = answers.unsuback(self.level, wanted.packet_id, reasons)
        self._answer(packet, is_recorded=is_recorded)

    def _unsubscribe_one(self, queue: Queue, text: str) -> tuple[int, bool]:
        """Returns: the reason that UNSUBACK has for it, and whether it was recorded."""
        self._quit(text)
        try:
            is_recorded = self._sessions.subscriptions.remove(queue, text)
        except ChannelError as error:
            self._log.error("subscription to %.100s stays: %s", text, error)
            return Reason.UNSPECIFIED, False
        if is_recorded is None:
            return Reason.NO_SUBSCRIPTION_EXISTED, False
        return Reason.SUCCESS, is_recorded

    # --- the end ------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Another client has come with the same identifier."""
        self._disconnect(Reason.SESSION_TAKEN_OVER, "")

    def _disconnected(self, said: requests.Disconnect) -> None:
        """DISCONNECT."""
        if not self.is_member:
            self.on_lost("")
            return
        if said.session_expiry_s is not None:
            if said.session_expiry_s and not self._terms.expiry_s:
                raise PacketError(Reason.PROTOCOL_ERROR, "a session without end was not asked for")
            if self._queue is not None and said.session_expiry_s != self._terms.expiry_s:
                self._sessions.set_expiry(self._queue, said.session_expiry_s)
            self._terms = self._terms._replace(expiry_s=said.session_expiry_s)
        if said.text:
            self._log.info("closed by the client: %s", said.text)
        self._leave(has_will=said.reason != Reason.SUCCESS)
        self._hang_up()

    def _refuse(self, reason: Reason, text: str = "") -> None:
        """CONNACK says no. The log has said why."""
        self._log.info("connection refused: %s", text or reason.text)
        packet = answers.connack_refused(self.level, reason, text, self._most)
        self._leave(has_will=False)
        if not packet:
            self.on_lost("")
            return
        self.link.write(packet)
        self._hang_up()

    def _disconnect(self, reason: Reason, text: str) -> None:
        """End it from here: version 5 is told why. Idempotent."""
        if self._is_over or self.link.state == _core.STATE_CLOSING:
            return
        self._log.info("closed: %s", text or reason.text)
        is_open = self.is_member and self.link.state == _core.STATE_OPEN
        self._leave(has_will=True)  # messages that wait for the disk are not sent any more
        if is_open and self.level == V5:
            self.link.write(answers.disconnect(self.level, reason, text, self._most))
            self._hang_up()
        else:
            self.on_lost("")

    def _leave(self, *, has_will: bool) -> None:
        """Let go of the session, which lives on or ends with the connection. Idempotent."""
        if not self._leave_vhost():
            return
        will, self._will = self._will, None
        sessions, queue, self._queue = self._sessions, self._queue, None
        is_current = sessions.clients.get(self._session) is self
        if is_current:
            del sessions.clients[self._session]
        self.link.mqtt_close()
        shared, self._shared = self._shared or {}, None
        self._host.works.begin_unless_few(self._quitting(list(shared.values())), len(shared))
        most_s = sessions.granted_s(self._terms.expiry_s)
        if queue is not None:
            most_s = sessions.expiry_s(queue)
            queue.remove_consumer(self)
            if not most_s:
                sessions.remove(queue)
            else:
                self.vhost.left(queue)
                sessions.note_time(self.client_id, most_s, is_here=False)
        if has_will and will is not None:
            sessions.leave_will(self.client_id, connect.within(will, most_s), self.user)
        elif will is not None and is_current:
            sessions.forget_will(self.client_id)

    def _end_login(self) -> None:
        if self._login is not None:
            self._login.end()
            self._login = None
        if self._enhanced is not None:
            self._enhanced.end()

    def _hang_up(self) -> None:
        """Send what is left and close our side; the peer's end of file ends the rest."""
        if self._is_over:
            return
        self.broker.newcomers.leave(self)
        self._end_login()
        self.link.state = _core.STATE_CLOSING
        self.link.set_timeout(LINGER_S)
        self.link.resume()
        self.link.flush()
        if not self.link.unsent_bytes:
            self._end_output()


@lru_cache(maxsize=256)
def _raw_user(name: str) -> bytes:
    """The name of a user for links: many connections have the same one."""
    return name.encode("utf-8", "surrogateescape")
