"""One client connection: the session behind a `Link` of the message path.

The link reads and walks frames; what it does not do itself arrives here: rare methods, errors, the
first publish to an exchange. An error closes who pays for it: the channel, the connection, or only
the socket during the handshake. Owned by the broker's set of connections. Longer than 500 lines:
how a connection comes, lives and ends turns on the same few attributes.
Source: docs/protocol.md.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.amqp import handshake
from lavinmq.amqp import methods as m
from lavinmq.amqp.channel import LARGE_HEADER, Channel
from lavinmq.amqp.handshake import HandshakeError
from lavinmq.amqp.login import Login
from lavinmq.amqp.walk_errors import walk_error
from lavinmq.arguments.bounds import UNBOUNDED, TableBounds
from lavinmq.arguments.names import refused
from lavinmq.errors import (
    LOW_DISK,
    ChannelError,
    ConnectionError_,
    ProtocolError,
    ReplyCode,
    low_on_disk,
)
from lavinmq.listeners.endpoints import Endpoints, TlsInfo, plain
from lavinmq.listeners.peer import Peer
from lavinmq.process.portions import behind, in_portions
from lavinmq.vhost import rights

if TYPE_CHECKING:
    from lavinmq.auth.standing import Standing
    from lavinmq.broker import Broker
    from lavinmq.config.values import Config
    from lavinmq.process.portions import Portions
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

HANDSHAKE_TIMEOUT_S: Final = 15.0
CLOSE_TIMEOUT_S: Final = 15.0
LINGER_S: Final = 2.0
CHANNEL_OPEN_OK: Final = m.encode(m.ChannelOpenOk())
CHANNEL_CLOSE_OK: Final = m.encode(m.ChannelCloseOk())
CONNECTION_OPEN_OK: Final = m.encode(m.ConnectionOpenOk())
CONNECTION_CLOSE_OK: Final = m.encode(m.ConnectionCloseOk())
UNLIMITED_FRAME: Final = 128 << 20
"""Largest payload accepted when neither side names a limit."""


class Connection(Peer[_core.Link]):
    """A session."""

    logger = "lmq.amqp.client"
    arrival_s = HANDSHAKE_TIMEOUT_S
    protocol: Final = "AMQP 0-9-1"
    """What it speaks, for people."""

    # What few of them need for long is made when it is asked for.
    __slots__ = (
        "_awaited", "_exclusive_queues", "_is_told_when_blocked", "_login", "_over_at", "_tuned",
        "auth_mechanism", "channel_max", "channels", "client_properties", "config", "frame_max",
        "heartbeat_s", "is_told_of_cancels", "n_consumers",
    )  # fmt: skip

    def __init__(self, broker: Broker, sock: socket.socket, ends: Endpoints) -> None:
        super().__init__(broker, sock, ends, _core.Link(broker.loop, sock.fileno(), _core.AMQP))
        self.config: Config = broker.config
        self.channels: dict[int, Channel] = {}
        self._exclusive_queues: set[Queue] | None = None
        self.channel_max = self.frame_max = self.heartbeat_s = 0
        self.auth_mechanism = ""
        self.client_properties = b""
        """Content of a field table: packed, and one for all clients that say the same."""
        self._login: Login | None = Login(self, ends)
        """None: nothing of it is under way."""
        self._awaited: type[m.Method] = m.ConnectionStartOk
        self._is_told_when_blocked = False
        self.is_told_of_cancels = False
        """Whether the client understands basic.cancel."""
        self.n_consumers = 0
        self._over_at = math.inf

    @property
    def exclusive_queues(self) -> set[Queue]:
        """The queues that go with it."""
        if self._exclusive_queues is None:
            self._exclusive_queues = set()
        return self._exclusive_queues

    # --- output -------------------------------------------------------------------------------

    def send(self, channel: int, method: m.Method) -> None:
        """Append a method to the output."""
        self.link.write(m.encode_frame(channel, method))

    def _send_fixed(self, channel: int, payload: bytes) -> None:
        """Append a method that is always the same, encoded once."""
        self.link.write(m.payload_frame(channel, payload))

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once recorded definitions are on disk; the client's next frames wait."""
        self._when(self.vhost.recorded.when_synced, callback)

    def when_bound(self, recorded: bool, callback: Callable[[], None]) -> None:
        """Call back once bindings made so far are in force; the client's next frames wait."""
        self._when(partial(self.vhost.bindings.when_in_force, recorded), callback)

    def when_committed(
        self, callback: Callable[[], None], refused: Callable[[], None] | None = None
    ) -> None:
        """Call back once what a commit published is on disk; the client's next frames wait.

        Args: refused: is called instead when too few nodes are there for that, and resumes."""
        self._when(partial(self.broker.loop.after_sync, refused=refused), callback)

    def when_copied(self, callback: Callable[[], None]) -> None:
        """Call back once what was changed is on other nodes, too; at once where there are none."""
        if self.broker.has_copies:
            self.when_committed(callback)
        else:
            callback()

    def _when(
        self, sync: Callable[[Callable[[], None]], None], callback: Callable[[], None]
    ) -> None:
        self.link.pause()
        sync(partial(self._finish, callback))

    def when_returned(self, callback: Callable[[], None]) -> None:
        """Call back once all deliveries that are on their way back to queues have arrived; the
        client's next frames wait."""
        self._when(self.broker.loop.when_returned, callback)

    def when_done(
        self, portions: Portions, steps: Iterator[object], callback: Callable[[], None]
    ) -> None:
        """Do long work and call back at its end; the client's next frames wait."""
        self.link.pause()
        portions.begin(steps, partial(self._finish, callback))

    def when_made(
        self, channel: int, ids: tuple[int, int], wait: Callable[[Callable[[], object]], object],
        then: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Call back once `wait` says so; the client's next frames wait, and go on waiting if `then`
        says that it waits for more. What it raises closes who pays for it."""
        self.link.pause()
        wait(partial(self._made, channel, ids, then))

    def _made(self, channel: int, ids: tuple[int, int], then: Callable[[], bool]) -> None:
        if self._is_over:
            return
        try:
            is_more = then()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(channel, ids, error)
            is_more = False
        if not is_more:
            self.link.resume()

    def in_turns(self, channel: int, ids: tuple[int, int], step: Callable[[], bool]) -> None:
        """Make steps for the client, one in each turn of the loop, until one says that it was the
        last; the client's next frames wait. What a step raises closes who pays for it."""
        if self._is_over:
            return
        try:
            is_more = step()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(channel, ids, error)
            self.link.resume()
            return
        if is_more:
            self.link.pause()
            behind(self.broker.events.call_soon, self.in_turns, channel, ids, step)

    def when_known(self, wait: Callable[[Callable[[Callable[[], None]], None]], None]) -> None:
        """Have `wait` find something out and hand on what to do then; the next frames wait."""
        self.link.pause()
        wait(self._finish)

    def _finish(self, callback: Callable[[], None]) -> None:
        """What the client waits for has come."""
        if not self._is_over:
            self._guarded(0, (0, 0), callback)
            self.link.resume()

    # --- what the link calls ------------------------------------------------------------------

    def on_header(self, header: bytes) -> None:
        """The first bytes of the connection."""
        if header not in handshake.PROTOCOL_HEADERS:
            self.link.write(handshake.PROTOCOL_HEADERS[0])
            self._hang_up("not AMQP 0-9-1")
            return
        self.link.state = _core.STATE_HANDSHAKE
        self.link.write(handshake.start(self.ends.is_verified, self.broker.given_name))

    def on_method(self, channel: int, payload: bytes) -> None:
        """A method that the message path leaves to us."""
        try:
            self._handle(channel, payload)
        except Exception as error:  # noqa: BLE001 - see _fail
            ids = payload[0] << 8 | payload[1], payload[2] << 8 | payload[3]
            self._fail(channel, ids, error)

    def _guarded(self, channel: int, ids: tuple[int, int], action: Callable[[], None]) -> None:
        """Run an action for the client; what it raises closes who pays for it."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(channel, ids, error)

    def _fail(self, channel: int, ids: tuple[int, int], error: Exception) -> None:
        """What was done for the client has raised: it closes who pays for it."""
        if isinstance(error, ChannelError):
            error.class_id, error.method_id = ids
            self._fail_who_pays(channel, error)
        elif isinstance(error, ConnectionError_):
            self._fail_connection(error)
        elif isinstance(error, HandshakeError):
            self._hang_up(str(error))
        else:  # a bug of ours: this client pays, the others go on
            self._log.error("bug in %s.%s", *ids, exc_info=error)
            self._fail_connection(
                ConnectionError_(ReplyCode.INTERNAL_ERROR, "Unexpected error, please report")
            )

    def on_route_miss(self, channel: int, kind: int, name: bytes, keys: list[bytes]) -> None:
        """A publish that the link has not asked about since the last change."""
        ids = m.BasicPublish.CLASS_ID, m.BasicPublish.METHOD_ID
        self._guarded(channel, ids, partial(self.allow, kind, name, keys))

    def allow(self, kind: int, name: bytes, keys: list[bytes]) -> None:
        """Tell the link that its user may publish so, if that is true. Raises: ChannelError.

        Args: kind: a publish, the copies of one, or where its dead letter goes; see `_core.Link`.
        """
        if self.broker.refuses is not None:
            raise refused(self.broker.refuses())
        exchange_name = name.decode("utf-8", "surrogateescape")
        texts = [key.decode("utf-8", "surrogateescape") for key in keys]
        if kind == _core.ASK_KIND_LETTER_KEY:
            rights.check_letter_key(self.user, self.vhost.name)
            self.link.allow(kind, b"", [], None)
            return
        if kind == _core.ASK_KIND_LETTER:
            found = self.vhost.publishing.check_letter(self.user, exchange_name, texts)
        else:
            found = self.vhost.publishing.check(self.user, exchange_name, texts)
        if self.vhost.publishing.key_rights(self.user, exchange_name) is not None:
            self.link.allow(kind, name, keys, None if found is None else found.core)
        elif found is not None:
            self.link.learn(name, found.core)
        else:
            self.link.allow(kind, name, [], None)

    def on_held(self, channel: int) -> None:
        """A publish while the disk is short of space: it waits, and the client is told so. A client
        that would not understand has its channel closed."""
        if self._is_told_when_blocked:
            self.send(0, m.ConnectionBlocked(LOW_DISK))
            self.is_blocked = True
            self.link.hold()
            return

        def refuse() -> None:
            raise low_on_disk()

        self._guarded(channel, (m.BasicPublish.CLASS_ID, m.BasicPublish.METHOD_ID), refuse)

    def on_released(self) -> None:
        """The disk has room again; the publish that waited is carried out next."""
        self.is_blocked = False
        self.send(0, m.ConnectionUnblocked())

    def on_error(self, kind: int, channel: int, method: int, a: int, b: int, text: bytes) -> None:
        """A frame broke a rule; `method` is class << 16 | method or 0."""
        if self.link.state == _core.STATE_CLOSING:
            self.on_lost("no sense in what follows an error")
            return
        user = self.user.name if self.link.state == _core.STATE_OPEN else ""
        error = walk_error(kind, method, a, b, text, user)
        self._fail_who_pays(channel, error)

    def on_illegal_frame(self) -> None:
        """A frame that has no place in the handshake."""
        self._hang_up("unexpected frame during the handshake")

    def on_timeout(self, why: str) -> None:
        """The handshake or the close took too long, or the peer is silent."""
        self.on_lost(why)

    def on_consumer_timeout(self, channel: int) -> None:
        """A delivery is unacked for longer than its queue allows: the channel pays."""

        def refuse() -> None:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, "consumer timeout")

        self._guarded(channel, (m.BasicConsume.CLASS_ID, m.BasicConsume.METHOD_ID), refuse)

    def refuse_consumer(self, channel: int, error: ChannelError) -> None:
        """A client that does not understand basic.cancel loses the channel with the consumer."""
        error.class_id, error.method_id = m.BasicConsume.CLASS_ID, m.BasicConsume.METHOD_ID
        self._fail_channel(channel, error)

    def on_large_header(self, channel: int) -> None:
        """A message for the channel has a header that no frame of the client holds."""

        def refuse() -> None:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, LARGE_HEADER)

        self._guarded(channel, (m.BasicConsume.CLASS_ID, m.BasicConsume.METHOD_ID), refuse)

    def on_unreadable(self) -> None:
        """A message whose beginning has been sent cannot be read any more: what the client has got
        of it must not be taken for all."""
        self._fail_connection(
            ConnectionError_(ReplyCode.INTERNAL_ERROR, "a message cannot be read")
        )

    def on_stream_end(self, channel: int, tag: bytes) -> None:
        """A consumer of a stream has been sent all that it asked for."""
        if channel in self.channels:
            self.channels[channel].cancel(tag.decode("utf-8", "surrogateescape"))

    def on_lost(self, why: str) -> None:
        """The socket is gone, or given up: requeue, delete exclusive queues, forget everything."""
        if self._is_over:
            return
        if self.link.is_committing:
            self.broker.events.call_soon(self.on_lost, why)
            return
        if self.link.is_awaiting_publishes and not self.broker.loop.is_held:
            self.broker.loop.after_sync(partial(self.on_lost, why))
            return
        self._is_over = True
        if why:
            self._log.info("connection lost: %s", why)
        self._leave_vhost()
        self._cut(is_clean=not why)
        in_portions(self.broker.events.call_soon, self._ending())

    def _ending(self) -> Iterator[None]:
        """Forget everything, however much it is: others get their turn."""
        yield from self._releasing()
        self._close_link()
        self.broker.lost(self)

    def _end_login(self) -> None:
        if self._login is not None:
            self._login.end()

    def user_changed(self) -> None:
        """The tags of its user are others now."""
        raw_user = self.user.name.encode("utf-8", "surrogateescape")
        self.link.set_user(raw_user, self.user.has_tag("impersonator"))

    def close(self, code: ReplyCode, text: str) -> None:
        """Tell the client that the connection ends, and give it time to answer."""
        self.link.drain()  # what has reached us is not lost for want of a moment
        self.expel(code, text)

    def expel(self, code: ReplyCode, text: str) -> None:
        """The same, and nothing more is done for the client: its user may not go on."""
        if self.link.state == _core.STATE_OPEN:
            self._fail_connection(ConnectionError_(code, text))
        elif self.link.state != _core.STATE_CLOSING:
            self.on_lost("")

    # --- methods ------------------------------------------------------------------------------

    def _handle(self, channel: int, payload: bytes) -> None:
        is_login = self.link.state == _core.STATE_HANDSHAKE  # which has limits of its own
        try:
            method = m.decode(payload, UNBOUNDED if is_login else TableBounds.of(self.config))
        except m.UnknownMethod as unknown:
            if self.link.state == _core.STATE_HANDSHAKE:
                raise HandshakeError(str(unknown)) from unknown
            self._not_implemented(channel, unknown.class_id, unknown.method_id)
            return
        except m.MalformedMethod as malformed:
            if self.link.state == _core.STATE_HANDSHAKE:
                raise HandshakeError(str(malformed)) from malformed
            raise ConnectionError_(ReplyCode.FRAME_ERROR, malformed.why) from malformed
        if self.link.state == _core.STATE_HANDSHAKE:
            self._handshake(channel, method, len(payload))
        elif method.CLASS_ID == m.CONNECTION:
            self._connection_method(channel, method)
        elif isinstance(method, m.ChannelOpen):
            self._open_channel(channel)
        elif isinstance(method, m.ChannelClose):
            self._close_channel(channel, partial(self._send_fixed, channel, CHANNEL_CLOSE_OK))
        elif isinstance(method, m.ChannelCloseOk):
            self._close_channel(channel, _say_nothing)
        else:
            self._open(channel, method).handle(method)

    def _not_implemented(self, channel: int, class_id: int, method_id: int) -> None:
        if channel and channel not in self.channels:
            raise ConnectionError_(
                ReplyCode.CHANNEL_ERROR, f"Channel {channel} not open", class_id, method_id
            )
        known = m.METHODS.get((class_id, method_id))
        name = known.NAME if known is not None else f"method {class_id}.{method_id}"
        raise ConnectionError_(
            ReplyCode.NOT_IMPLEMENTED, f"{name} is not implemented", class_id, method_id
        )

    def _open(self, channel: int, method: m.Method) -> Channel:
        found = self.channels.get(channel)
        if channel == 0:
            raise ConnectionError_(
                ReplyCode.UNEXPECTED_FRAME, f"{method.NAME} on channel 0",
                method.CLASS_ID, method.METHOD_ID,
            )  # fmt: skip
        if found is None:
            raise ConnectionError_(
                ReplyCode.CHANNEL_ERROR, f"Channel {channel} not open",
                method.CLASS_ID, method.METHOD_ID,
            )  # fmt: skip
        return found

    def _connection_method(self, channel: int, method: m.Method) -> None:
        ids = method.CLASS_ID, method.METHOD_ID
        if channel:
            raise ConnectionError_(
                ReplyCode.UNEXPECTED_FRAME, f"{method.NAME} on channel {channel}", *ids
            )
        if isinstance(method, m.ConnectionClose):
            if method.reply_text:
                self._log.info("closed by the client: %s", method.reply_text)
            self.link.stop_deliveries()
            self.link.pause()
            in_portions(self.broker.events.call_soon, self._leaving())
        elif isinstance(method, m.ConnectionCloseOk):
            self._hang_up("")
        elif isinstance(method, m.ConnectionUpdateSecret):
            if self._login is None:
                self._login = Login(self, self.ends)
            self._login.renew(method)
        elif self.link.state != _core.STATE_CLOSING:
            raise ConnectionError_(
                ReplyCode.NOT_IMPLEMENTED, f"{method.NAME} is not for clients to send", *ids
            )

    def _leaving(self) -> Iterator[None]:
        """The client hears that the connection is closed when all is back that it has left."""
        yield from self._releasing()
        self.broker.loop.when_returned(partial(self._finish, self._answer_close))

    def _answer_close(self) -> None:
        self._send_fixed(0, CONNECTION_CLOSE_OK)
        self._begin_close(CLOSE_TIMEOUT_S)  # the client closes the socket

    # --- handshake ----------------------------------------------------------------------------

    def _handshake(self, channel: int, method: m.Method, size: int) -> None:
        if channel or not isinstance(method, self._awaited):
            raise HandshakeError(f"unexpected {method.NAME} during the handshake")
        if isinstance(method, m.ConnectionStartOk):
            if size > handshake.max_start_ok(self.config):
                raise HandshakeError("start-ok is too large")
            self._is_told_when_blocked = handshake.has_capability(method, "connection.blocked")
            self.is_told_of_cancels = handshake.has_capability(method, "consumer_cancel_notify")
            self.auth_mechanism = sys.intern(method.mechanism)
            self.client_properties = self.broker.alike.one(method.client_properties.raw)
            assert self._login is not None
            self._login.begin(method)
        elif isinstance(method, m.ConnectionTuneOk):
            handshake.check_tune(self.config, method)
            self._tuned = method
            self._awaited = m.ConnectionOpen
        elif isinstance(method, m.ConnectionOpen):
            self._open_vhost(method)

    def logged_in(self, standing: Standing) -> None:
        """The client is known: it is offered the limits."""
        self.standing, self.user = standing, standing.user
        self._awaited = m.ConnectionTuneOk
        self.send(0, handshake.tune(self.config))

    def _open_vhost(self, method: m.ConnectionOpen) -> None:
        name, ids = method.virtual_host or "/", (method.CLASS_ID, method.METHOD_ID)
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise ConnectionError_(ReplyCode.NOT_ALLOWED, f"vhost not found: '{name}'", *ids)
        if not self.user.has_vhost(name):
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED, f"'{self.user.name}' doesn't have access to '{name}'", *ids
            )
        self._check_limits(vhost, ids)
        self.vhost = vhost
        self.is_member = True
        vhost.connections.add(self)
        self.traffic = vhost.totals.traffic
        vhost.totals.churn.count("connection_created")
        self.channel_max = self._tuned.channel_max or 65535
        self.frame_max, self.heartbeat_s = self._tuned.frame_max, self._tuned.heartbeat
        del self._tuned
        if self._login is not None and self._login.is_over:
            self._login = None
        frame_max = self.frame_max or UNLIMITED_FRAME
        self.link.set_vhost(vhost.core)
        self.user_changed()
        self.link.set_limits(frame_max, self.config.max_message_size, self.heartbeat_s)
        self.link.set_timeout(0)
        self.link.state = _core.STATE_OPEN
        self.broker.newcomers.leave(self)
        self._send_fixed(0, CONNECTION_OPEN_OK)

    def _check_limits(self, vhost: VHost, ids: tuple[int, int]) -> None:
        """Raises: ConnectionError_ 530 when vhost or user have as many connections as they may."""
        limit = vhost.rules.limits.max_connections
        if limit is not None and len(vhost.connections) >= limit:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"access to vhost '{vhost.name}' refused: connection limit ({limit}) is reached",
                *ids,
            )
        limit = self.broker.user_limits.of(self.user.name).get("max-connections")
        if limit is not None and len(self.broker.connections_of(self.user)) >= limit:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"Connection refused for user '{self.user.name}': user connection limit "
                f"({limit}) is reached",
                *ids,
            )

    # --- channels -----------------------------------------------------------------------------

    def _open_channel(self, channel: int) -> None:
        ids = m.ChannelOpen.CLASS_ID, m.ChannelOpen.METHOD_ID
        if channel == 0:
            raise ConnectionError_(
                ReplyCode.CHANNEL_ERROR, "Channel 0 is reserved for the connection", *ids
            )
        if channel in self.channels:
            raise ConnectionError_(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", *ids)
        if len(self.channels) >= self.channel_max:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                f"channel_max ({self.channel_max})", *ids,
            )  # fmt: skip
        self._check_channel_limit(ids)
        self.link.open_channel(channel, self.config.default_consumer_prefetch)
        self.channels[channel] = Channel(self, channel)
        self.vhost.totals.churn.count("channel_created")
        self._send_fixed(channel, CHANNEL_OPEN_OK)

    def _check_channel_limit(self, ids: tuple[int, int]) -> None:
        """Raises: ConnectionError_ 530 when the user has as many channels as it may."""
        limit = self.broker.user_limits.of(self.user.name).get("max-channels")
        if limit is None:
            return
        used = sum(len(each.channels) for each in self.broker.connections_of(self.user))
        if used >= limit:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened for user '{self.user.name}' has reached the maximum "
                f"allowed user limit of ({limit})",
                *ids,
            )

    def _close_channel(self, channel: int, then: Callable[[], None]) -> None:
        """The channel is over for both sides; one that is not open is no error. Whatever it leaves
        is back in its queues when `then` is called; the client's next frames wait."""
        found = self.channels.get(channel)
        if found is None:
            then()
            return
        self.link.pause()
        self.link.set_flow(channel, False)
        in_portions(self.broker.events.call_soon, self._closing(found, then))

    def _closing(self, found: Channel, then: Callable[[], None]) -> Iterator[None]:
        yield from self._closing_steps(found)
        self.broker.loop.when_returned(partial(self._finish, then))

    def _closing_steps(self, found: Channel) -> Iterator[None]:
        yield from found.releasing()
        if self.channels.get(found.id) is found:
            del self.channels[found.id]
            self.link.close_channel(found.id, False)

    def _releasing(self) -> Iterator[None]:
        """Close all channels, of which none gets deliveries any more, and delete exclusive queues:
        whoever sees the connection close may declare them anew, although the socket is open yet."""
        for found in list(self.channels.values()):
            yield from self._closing_steps(found)
        while self._exclusive_queues:
            queue = self._exclusive_queues.pop()
            if self.vhost.queues.get(queue.name) is queue:
                self.vhost.remove_queue(queue)
            yield

    # --- errors -------------------------------------------------------------------------------

    def _fail_who_pays(self, channel: int, error: ProtocolError) -> None:
        """Close the channel, or the connection where the code asks for that."""
        if isinstance(error, ChannelError) and error.code.scope != "connection":
            self._fail_channel(channel, error)
        else:
            self._fail_connection(error)

    def _fail_channel(self, channel: int, error: ChannelError) -> None:
        found = self.channels.get(channel)
        if found is None:
            self._fail_connection(
                ConnectionError_(
                    ReplyCode.UNEXPECTED_FRAME, error.text, error.class_id, error.method_id
                )
            )
            return
        self._log.info("channel %d closed: %s", channel, error)
        self.send(
            channel, m.ChannelClose(error.code, error.reply_text, error.class_id, error.method_id)
        )
        self.link.set_flow(channel, False)
        self.link.close_channel(channel, True)
        # What another channel waits for lets the link go on itself, and no sooner.
        is_waiting = self.link.is_paused
        self.link.pause()
        in_portions(self.broker.events.call_soon, self._failing(found, resumes=not is_waiting))

    def _failing(self, found: Channel, *, resumes: bool) -> Iterator[None]:
        yield from found.releasing()
        if resumes:
            self.link.resume()

    def _fail_connection(self, error: ProtocolError) -> None:
        if self.link.state == _core.STATE_CLOSING:
            return
        self._log.warning("connection closed: %s", error)
        in_handshake = self.link.state == _core.STATE_HANDSHAKE
        self.send(
            0, m.ConnectionClose(error.code, error.reply_text, error.class_id, error.method_id)
        )
        if in_handshake:
            self._hang_up("")
            return
        self.link.stop_deliveries()
        in_portions(self.broker.events.call_soon, self._releasing())
        if error.code == ReplyCode.FRAME_ERROR:  # where its next frame begins is anybody's guess
            self._hang_up("")
            return
        self._begin_close(CLOSE_TIMEOUT_S)

    def _begin_close(self, timeout_s: float) -> None:
        """The end comes in so many seconds, or sooner if that was said before: a peer that goes on
        talking does not live longer for it."""
        self._leave_vhost()
        self.link.state = _core.STATE_CLOSING
        over_at = time.monotonic() + timeout_s
        if over_at < self._over_at:
            self._over_at = over_at
            self.link.set_timeout(timeout_s)

    def _hang_up(self, why: str) -> None:
        """Send what is left and close our side; the peer's end of file ends the rest."""
        if why:
            self._log.info("connection refused: %s", why)
        self._begin_close(LINGER_S)
        self.link.flush()
        if not self.link.unsent_bytes:
            self._end_output()


def amqp_connections(broker: Broker) -> list[Connection]:
    """All sessions of a broker that speak AMQP, in the order of their coming."""
    return [each for each in broker.connections if isinstance(each, Connection)]


def _say_nothing() -> None:
    """The client wants no reply."""


def welcome_socket(
    broker: Broker, sock: socket.socket, peer: tuple[str, int], local: tuple[str, int],
    is_loopback: bool, tls_info: TlsInfo | None = None,
) -> Connection:  # fmt: skip
    """Start a connection on any connected stream socket, such as one end of a socket pair.

    For whoever carries AMQP inside something else. The socket is the connection's from now on.

    Args:
        peer, local: the addresses at both ends, as lists and logs show them.
        is_loopback: whether the client is on this machine.
        tls_info: what TLS protects the way to the client.
    """
    sock.setblocking(False)
    peer_host, host = plain(peer[0]), plain(local[0])
    ends = Endpoints(peer_host, peer[1], host, local[1], is_loopback, tls_info)
    connection = Connection(broker, sock, ends)
    broker.welcome(connection)
    return connection
