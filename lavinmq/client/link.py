"""One connection, from its first byte to its last: handshake, channels, answers, heartbeats.

A `Link` is an asyncio protocol around the engine. It reconnects nothing: when it ends, `lost` has
the cause and whoever made it makes another. Everything here runs in the event loop's thread; only
`wake_from_any` may be called from any. Longer than 500 lines: channels, handshake and the end of a
connection are one state.

Source: AMQP 0-9-1 specification, sections 2.2, 4.2 and 4.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar, cast

from lavinmq.client import _engine, methods
from lavinmq.client.config import Config
from lavinmq.client.errors import (
    AuthenticationError,
    ClientConnectionError,
    ClosedError,
    ConnectionLost,
    ConsumerCancelled,
    ProtocolViolation,
    RpcTimeout,
    channel_closed,
    connection_closed,
)
from lavinmq.client.url import Target

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CHUNK: Final = 128 * 1024
ALL: Final = 1 << 60
"""More bytes than there are: for what a method that follows must not overtake."""
WRITE_HIGH: Final = 512 * 1024
CAPABILITIES: Final = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
    "connection.blocked", "authentication_failure_close",
)  # fmt: skip
SILENT: Final = 2
"""Heartbeats that may be missed."""
ABORT_AFTER_S: Final = 1.0
"""A peer that does not say goodbye keeps the socket open no longer."""
PARTING_S: Final = 1.5
"""What closing waits for the end of the socket, which has come by then."""
ANSWERS_MOST: Final = 1000
"""Answers to a peer that asks and asks, and takes none of them."""
FLIPS_S: Final = 0.1
"""A broker that blocks and unblocks more often than that is told of less often."""
NOBODY: Final[frozenset[Any]] = frozenset()
T = TypeVar("T")


Event = tuple[int, int, bytes, _engine.Message | None]
"""Channel, method, payload, and the message that came with it."""


@lru_cache(maxsize=16)
def _decoded(method: int, payload: bytes) -> tuple[Any, ...]:
    """The arguments of a method of a connection: many connections are told the same."""
    return _engine.decode_method(payload, methods.FORMS[method])


async def in_thread(function: Callable[..., T], *values: Any) -> T:
    """Call what may take its time in another thread, but in this one while the interpreter ends:
    no thread begins any more then, and what is buffered is still to be sent."""
    try:
        work = asyncio.get_running_loop().run_in_executor(None, function, *values)
    except RuntimeError:
        return function(*values)
    return await work


async def token_of(function: Callable[[], object]) -> str:
    """Ask the program for an access token, in a thread: it may have to fetch one.

    Raises: ClientConnectionError, whose cause is what the function raised.
    """
    try:
        token = await in_thread(function)
    except Exception as error:
        text = f"the function of option token raised {type(error).__name__}"
        raise ClientConnectionError(text) from error
    if not isinstance(token, str):
        raise ClientConnectionError(
            f"the function of option token returned a {type(token).__name__}, a text is wanted"
        )
    return token


class Sender(Protocol):
    """Who has something to send: a producer or a consumer, attached to a channel."""

    def send(self, out: _engine.Output, most: int) -> None:
        """Put frames into `out` until it holds `most` bytes."""

    def progressed(self) -> None:
        """Something of this channel came, or went."""


class ChannelOwner:
    """Who has a channel, and hears of it from its opening on; by default of nothing."""

    __slots__ = ()

    def chan_closed(self, chan: Chan, error: Exception) -> None:
        """It is closed."""

    def chan_cancelled(self, chan: Chan, tag: str) -> None:
        """The broker ended a consumer, and with it what nobody else uses."""
        chan.fail(ConsumerCancelled(f"the broker ended consumer {tag}"))
        chan.link.discard(chan)

    def chan_returned(self, message: _engine.Message) -> None:
        """No queue took a message."""


NO_OWNER: Final = ChannelOwner()


class Owner(Protocol):
    """Who has a connection."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no messages for now, or (None) does again."""

    def over(self, link: Link) -> None:
        """It has ended; told in another turn of the loop."""


Question = tuple[frozenset[int], asyncio.Future[Any]]
"""Which methods answer it, and who waits for that."""


class Chan:
    """A channel as the client sees it; closed for good once `error` is set."""

    __slots__ = (
        "_waiting", "error", "link", "number", "port", "sender",
    )  # fmt: skip

    port: _engine.Port
    """What the input knows of it; a connection itself, channel 0, has none."""

    def __init__(self, link: Link, port: _engine.Port | None) -> None:
        self.link, self.number = link, 0 if port is None else port.number
        if port is not None:
            self.port = port
        self.error: Exception | None = None
        self.sender: Sender | None = None
        """Who has something to send by it."""
        self._waiting: list[Question] | None = None
        """Who waits for an answer, in turn; None: nobody."""

    @property
    def owner(self) -> ChannelOwner | None:
        """Who hears of it, if somebody does."""
        owner: ChannelOwner | None = self.port.owner if self.number else None
        return owner

    def send(self, name: str, *values: Any) -> None:
        """Send a method without waiting. Raises: what ended the channel."""
        if self.error:
            raise self.error
        number = methods.IDS[name]
        frame = _engine.encode_method(self.number, number, methods.FORMS[number], *values)
        self.link.write(frame)

    async def call(self, name: str, *values: Any) -> Any:
        """Send a method and wait for its answer: its arguments, or the message of a get.

        Raises: RpcTimeout, and what ended the channel.
        """
        self.send(name, *values)
        future: asyncio.Future[Any] = self.link.loop.create_future()
        self._waiting = [] if self._waiting is None else self._waiting
        self._waiting.append((methods.REPLIES[methods.IDS[name]], future))
        try:
            async with asyncio.timeout(self.link.config.rpc_timeout):
                return await future
        except TimeoutError:
            error = RpcTimeout(f"no answer to {name} within {self.link.config.rpc_timeout:g} s")
            # What comes late would be taken for the answer to the next question.
            self.fail(error)
            if not self.number:
                self.link.end(error)
            else:
                self.link.discard(self)
            raise error from None

    def answer(self, method: int, payload: bytes, message: _engine.Message | None) -> None:
        """A method came that may be an answer. Raises: ProtocolViolation when nobody asked."""
        while self._waiting and self._waiting[0][1].cancelled():
            # Who asked went away; this is its answer.
            expected, _ = self._waiting.pop(0)
            if method in expected:
                if message is not None:
                    message.nack()  # nobody has it: it goes back
                return
        if not self._waiting or method not in self._waiting[0][0]:
            raise ProtocolViolation(f"{methods.name_of(method)}, which nobody asked for")
        _, future = self._waiting.pop(0)
        self._waiting = self._waiting or None
        if method == methods.IDS["basic.get-empty"]:
            future.set_result(None)
        elif message is not None:
            future.set_result(message)
        else:
            future.set_result(_engine.decode_method(payload, methods.FORMS[method]))

    def fail(self, error: Exception) -> None:
        """Everybody who waits hears why it ends."""
        if self.error is None:
            self.error = error
            owner = self.owner
            if owner is not None:
                owner.chan_closed(self, error)
        waiting, self._waiting = self._waiting, None
        for _, future in waiting or ():
            if not future.done():
                future.set_exception(error)
                future.exception()  # who asked may have gone

    async def close(self) -> None:
        """Close the channel; nothing happens if it is closed."""
        if self.error is None:
            closed = ClosedError("the channel was closed")
            try:
                with contextlib.suppress(RpcTimeout, ConnectionLost):
                    await self.call("channel.close", 200, "", 0, 0)
            except asyncio.CancelledError:
                self.link.part(self)  # the answer is still to come
                self.fail(closed)
                raise
            self.fail(closed)
        self.link.forget(self)


class Link(asyncio.BufferedProtocol):
    """One connection; `opened` once the handshake is done, `lost` once it has ended."""

    __slots__ = (
        "_answers", "_blocked", "_closing", "_ended", "_expected", "_flips", "_gone", "_parted",
        "_scheduled", "_stoppers", "_timer", "_writers", "bytes_out", "channel_max", "config",
        "frame_max", "heartbeat", "input", "is_open", "is_paused", "last_read", "last_write",
        "loop", "lost", "name", "out", "owner", "root", "server_properties", "target", "transport",
    )  # fmt: skip

    def __init__(
        self, config: Config, target: Target, loop: asyncio.AbstractEventLoop, name: str = ""
    ) -> None:
        self.config, self.target, self.loop = config, target, loop
        self.name = name or config.program_name
        """The one that the broker shows."""
        self.input = _engine.Input(config.frame_max, config.max_message_size)
        self.out = _engine.Output()
        self.transport: asyncio.Transport | None = None
        self.lost: Exception | None = None
        """Why it has ended."""
        self._ended: asyncio.Future[None] | None = None
        self._parted: asyncio.Future[None] | None = None
        """Until it has ended, and until the transport is gone; who closes waits for them."""
        self.root = Chan(self, None)
        self.frame_max, self.channel_max, self.heartbeat = config.frame_max, 0, 0
        self.server_properties: dict[str, Any] = {}
        self.is_open = self.is_paused = False
        self._blocked: tuple[float, str] | None = None
        """Since when the broker takes no messages, and why."""
        self._flips: asyncio.TimerHandle | None = None
        """Until the owner may be told of that again."""
        self._answers = 0
        """Since the peer has stopped taking."""
        self.owner: Owner | None = None
        self.bytes_out = 0
        self.last_read = self.last_write = loop.time()
        self._expected: dict[int, asyncio.Future[tuple[Any, ...]]] | None = None
        """Of the handshake."""
        self._scheduled = self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._stoppers: frozenset[object] = NOBODY
        self._gone: frozenset[int] = NOBODY
        self._writers: list[asyncio.Future[None]] | None = None
        """Who waits until the peer takes more; None: nobody."""

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The bytes can flow."""
        # uvloop's is none by its class.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self.input)

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self.heard(self.input.advance, nbytes)

    def feed(self, data: bytes) -> None:
        """Bytes came by another way than the buffer."""
        self.heard(self.input.feed, data)

    def heard(self, read: Callable[[Any], list[Event]], what: Any) -> None:
        """Deal with what came; whatever breaks the protocol ends the connection."""
        if self.lost is not None:
            return
        self.last_read = self.loop.time()
        try:
            for event in read(what):
                self._on_event(*event)
            for port in self.input.take_touched():
                if port.owner is not None:
                    port.owner.progressed()
                elif port.take():
                    raise ProtocolViolation("a message where nobody consumes")
        except ProtocolViolation as error:
            self._say_goodbye(501, str(error))
            self.end(error)
            return
        if self.input.has_more:
            self.hold_reading(self.input, True)
            self.loop.call_soon(self.heard, self.input.advance, 0)
        elif self.input in self._stoppers:
            self.hold_reading(self.input, False)
        if self.is_open:
            self.pump()
        else:
            self.flush()

    def eof_received(self) -> bool:
        """The peer sends no more."""
        self.end(ConnectionLost("the broker closed the connection without a reason"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        self.end(ConnectionLost(str(exc) if exc else "the connection was closed"))
        self.transport = None
        _let_go(self._parted)

    def pause_writing(self) -> None:
        """The peer takes no more for now."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self.is_paused = False
        self._answers = 0
        waiters, self._writers = self._writers, None
        _let_go(*waiters or ())
        self.pump()

    async def writable(self) -> None:
        """Wait until the peer takes more."""
        while self.is_paused and self.lost is None:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._writers = [] if self._writers is None else self._writers
            self._writers.append(waiter)
            await waiter

    async def all_sent(self) -> None:
        """Wait until what was published on channels that are open has gone out."""
        self.pump()
        while self.is_paused and self.lost is None:
            await self.writable()
            self.pump()

    def hold_reading(self, who: object, is_held: bool) -> None:
        """Read nothing while somebody has more than it can hold."""
        before = bool(self._stoppers)
        self._stoppers = (self._stoppers | {who} if is_held else self._stoppers - {who}) or NOBODY
        if self.transport is None or self.transport.is_closing():
            return
        if self._stoppers and not before:
            self.transport.pause_reading()
        elif before and not self._stoppers:
            self.transport.resume_reading()

    # ---- sending

    def write(self, frame: bytes) -> None:
        """Send frames with what else is to be sent in this turn. Raises: what ended it."""
        if self.lost is not None:
            raise self.lost
        self.out.put(frame)
        self._schedule()

    def flush(self) -> None:
        """Hand what is gathered to the transport."""
        if len(self.out) and self.transport is not None:
            data = self.out.take()
            self.bytes_out += len(data)
            self.last_write = self.loop.time()
            self.transport.write(data)

    def wake(self) -> None:
        """Somebody has something to send; from the thread of the loop."""
        self._schedule()

    def wake_from_any(self) -> None:
        """As `wake`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send what producers and consumers have, as long as the peer takes it."""
        self._scheduled = False
        if self.lost is not None:
            return
        while not self.is_paused and self._round():
            pass
        self.flush()

    def _round(self) -> bool:
        """Let each one send a piece; whether there may be more."""
        is_busy = False
        for port in self.input.all_ports():
            chan: Chan | None = port.chan
            if chan is None or chan.sender is None:
                continue
            chan.sender.send(self.out, CHUNK)
            if len(self.out) >= CHUNK:
                is_busy = True
                self.flush()
                if self.is_paused:
                    return False
        return is_busy

    def rest(self) -> bool:
        """Give back buffers, unless bytes come all the time; whether they do not."""
        is_quiet = self.input.rest()
        if is_quiet:
            self.out.rest()
        return is_quiet

    @property
    def is_closing(self) -> bool:
        """Whether it has said goodbye."""
        return self._closing

    @property
    def is_held(self) -> bool:
        """Whether nothing is read now."""
        return bool(self._stoppers)

    # ---- the handshake

    async def open(self) -> None:
        """Go from protocol header to open-ok. Raises: AuthenticationError and the like."""
        start = self._expect("connection.start")
        self.out.put(PROTOCOL_HEADER)
        self.flush()
        _, _, properties, mechanisms, _ = await start
        self.server_properties = properties
        tune = self._expect("connection.tune")
        mechanism, response = self._login(mechanisms.split(), await self._secret())
        self.root.send("connection.start-ok", self._properties(), mechanism, response, "en_US")
        channel_max, frame_max, heartbeat = await tune
        self.frame_max = min(frame_max or self.config.frame_max, self.config.frame_max)
        if self.frame_max < 4096:
            raise ProtocolViolation(f"frames of {self.frame_max} bytes at most are too small")
        self.channel_max = min(channel_max or self.config.channel_max, self.config.channel_max)
        self.heartbeat = min(heartbeat or self.config.heartbeat, self.config.heartbeat)
        self.input.tune(self.frame_max)
        self.root.send("connection.tune-ok", self.channel_max, self.frame_max, self.heartbeat)
        opened = self._expect("connection.open-ok")
        self.root.send("connection.open", self.target.vhost, "", False)
        await opened
        self.is_open = True
        self._expected = None
        self._beat()

    async def _secret(self) -> bytes:
        """The password, or a new token. Raises: ClientConnectionError."""
        if self.config.auth != "token" or self.config.token is None:
            return self.target.password.encode()
        return (await token_of(self.config.token)).encode()

    def _login(self, offered: list[bytes], password: bytes) -> tuple[str, bytes]:
        """Choose how to log in. Raises: AuthenticationError when the broker offers no such way."""
        user = self.target.user.encode()
        mechanism = {"external": "EXTERNAL", "amqplain": "AMQPLAIN"}.get(self.config.auth, "PLAIN")
        if mechanism.encode() not in offered:
            raise AuthenticationError(403, f"the broker does not offer {mechanism}")
        if mechanism == "EXTERNAL":
            return mechanism, b""
        if mechanism == "AMQPLAIN":
            table = {"LOGIN": user.decode(), "PASSWORD": password.decode()}
            return mechanism, _engine.encode_table(table)[4:]
        return mechanism, b"\0" + user + b"\0" + password

    def _properties(self) -> dict[str, Any]:
        """Who we are."""
        return {
            "product": "lavinmq.client",
            "platform": f"Python {platform.python_version()}",
            "connection_name": self.name,
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            **self.config.client_properties,
        }

    def _expect(self, name: str) -> asyncio.Future[tuple[Any, ...]]:
        future: asyncio.Future[tuple[Any, ...]] = self.loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost)
        else:
            self._expected = {**(self._expected or {}), methods.IDS[name]: future}
        return future

    # ---- events

    def _on_event(
        self, number: int, method: int, payload: bytes, message: _engine.Message | None
    ) -> None:
        if number in self._gone:
            self._on_gone(number, method)
            return
        if number == 0:
            self._on_connection(method, payload)
            return
        port = self.input.port(number)
        chan: Chan | None = None if port is None else port.chan
        if chan is None:
            return  # it was closed by what came before in the same piece
        name = methods.name_of(method)
        if name == "channel.close":
            code, text, _, _ = _engine.decode_method(payload, methods.FORMS[method])
            self._reply(chan, "channel.close-ok")
            self.forget(chan)
            chan.fail(channel_closed(code, text))
        elif name == "basic.cancel":
            tag, no_wait = _engine.decode_method(payload, methods.FORMS[method])
            if not no_wait:
                self._reply(chan, "basic.cancel-ok", tag)
            (chan.owner or NO_OWNER).chan_cancelled(chan, tag)
        elif name == "channel.flow":
            self._reply(chan, "channel.flow-ok", *_engine.decode_method(payload, "b"))
        elif name == "basic.return" and message is not None:
            if chan.owner is not None:
                chan.owner.chan_returned(message)
        else:
            chan.answer(method, payload, message)

    def _reply(self, chan: Chan, name: str, *values: Any) -> None:
        """Answer what the peer asks. Raises: ProtocolViolation when it takes no answers."""
        self._answers += self.is_paused
        if self._answers > ANSWERS_MOST:
            raise ProtocolViolation("the broker asks on and on, and takes no answer")
        chan.send(name, *values)

    def _on_gone(self, number: int, method: int) -> None:
        """A channel that we close without waiting: only the answer to that counts."""
        if method in (methods.IDS["channel.close-ok"], methods.IDS["channel.close"]):
            self._gone = self._gone - {number} or NOBODY
            self.input.forget(number)

    def _on_connection(self, method: int, payload: bytes) -> None:
        name = methods.name_of(method)
        if method not in methods.FORMS:
            raise ProtocolViolation(f"{name} is not known")
        values = _decoded(method, payload)
        expected = self._expected.pop(method, None) if self._expected else None
        if expected is not None:
            if not expected.done():
                expected.set_result(values)
        elif name == "connection.close":
            self.root.send("connection.close-ok")
            self.flush()
            self.end(connection_closed(values[0], values[1], self.is_open))
        elif name == "connection.blocked":
            self._on_blocked((self.blocked_since or self.loop.time(), values[0]))
        elif name == "connection.unblocked":
            self._on_blocked(None)
        elif name == "connection.close-ok" and self._closing:
            self.end(ClosedError("the connection was closed"))
        else:
            self.root.answer(method, payload, None)

    @property
    def blocked_since(self) -> float | None:
        """When the broker began to take no messages; None: it takes them."""
        return self._blocked[0] if self._blocked else None

    def _on_blocked(self, blocked: tuple[float, str] | None) -> None:
        self._blocked = blocked
        if self._flips is None:
            self._tell_blocked()

    def _tell_blocked(self) -> None:
        """Tell the owner, but no more often than a program's callbacks can follow."""
        reason = self._blocked[1] if self._blocked else None
        if self.owner is not None:
            self.owner.blocked(reason)
        self._flips = self.loop.call_later(FLIPS_S, self._tell_last, reason)

    def _tell_last(self, told: str | None) -> None:
        """It may have changed since."""
        self._flips = None
        if self.lost is None and told != (self._blocked[1] if self._blocked else None):
            self._tell_blocked()

    # ---- channels

    async def channel(
        self,
        *,
        ring: _engine.Ring | None = None,
        tracker: _engine.Tracker | None = None,
        owner: Any = None,
    ) -> Chan:
        """Open a channel. Raises: ClientConnectionError."""
        limit = self.channel_max or 65_535
        number = next((n for n in range(1, limit + 1) if self.input.port(n) is None), 0)
        if not number:
            raise ConnectionLost(f"all {limit} channels of the connection are in use")
        port = _engine.Port(number, ring, tracker, owner)
        chan = port.chan = Chan(self, port)
        self.input.open(port)
        try:
            await chan.call("channel.open", "")
        except asyncio.CancelledError:
            self.discard(chan)
            raise
        return chan

    def forget(self, chan: Chan) -> None:
        """A channel is closed on both sides; its number may be used again."""
        if chan.number and chan.port.chan is chan:
            chan.port.chan = None
            self.input.forget(chan.number)

    def discard(self, chan: Chan) -> None:
        """Close a channel without waiting for the answer."""
        if self.part(chan):
            number = methods.IDS["channel.close"]
            self.write(_engine.encode_method(chan.number, number, "HsHH", 200, "", 0, 0))

    def part(self, chan: Chan) -> bool:
        """Pass over what still comes for a channel, until its end; False: it has ended."""
        is_open, chan.port.chan = chan.port.chan is chan, None
        if not is_open or self.lost is not None:
            return False
        self._gone |= {chan.number}
        return True

    # ---- the end

    def is_watched(self) -> None:
        """Whoever has it comes by every `health_interval`: if that is often enough, it needs no
        timer of its own."""
        if self._timer is not None and self.config.health_interval <= self.heartbeat / 2:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        """Twice per interval, if nobody else does it."""
        self.beat()
        if self.heartbeat and self.lost is None:
            self._timer = self.loop.call_later(self.heartbeat / 2, self._beat)

    def beat(self) -> None:
        """Send when we were silent, end when the peer is."""
        if self.lost is not None or not self.heartbeat:
            return
        now = self.loop.time()
        if now - self.last_read > self.heartbeat * SILENT and not self._stoppers:
            self.end(ConnectionLost(f"the broker was silent for {now - self.last_read:.1f} s"))
            return
        if now - self.last_write >= self.heartbeat / 2:
            self.out.put(HEARTBEAT)
            self.flush()

    def _say_goodbye(self, code: int, text: str) -> None:
        """Tell the peer why, if it still listens."""
        if self.transport is not None and not self.transport.is_closing():
            number = methods.IDS["connection.close"]
            text = text.encode()[:255].decode(errors="ignore")
            self.out.put(_engine.encode_method(0, number, "HsHH", code, text, 0, 0))
            self.flush()

    async def close(self) -> None:
        """Say goodbye and wait for the answer, not for ever."""
        if self.is_open and self.lost is None:
            self._closing = True
            self._say_goodbye(200, "bye")
            if self._ended is None:
                self._ended = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self.config.rpc_timeout, 2.0)):
                    await asyncio.shield(self._ended)
        self.end(ClosedError("the connection was closed"))
        if self.transport is not None:
            # Both sides of TLS say goodbye. Who ends the loop next must not leave a socket open.
            if self._parted is None:
                self._parted = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING_S):
                    await asyncio.shield(self._parted)

    def end(self, cause: Exception) -> None:
        """The connection is over. Everything that waits hears of it, once."""
        if self.lost is not None:
            return
        self.is_open = False
        self.lost = cause
        _let_go(self._ended, *self._writers or ())
        if self._timer:
            self._timer.cancel()
        for expected in (self._expected or {}).values():
            if not expected.done():
                expected.set_exception(cause)
                expected.exception()
        self._expected = None
        self.root.fail(cause)
        for port in self.input.all_ports():
            if port.chan is not None:
                port.chan.fail(cause)
        if self.owner is not None:
            self.loop.call_soon(self.owner.over, self)
        if self.transport is not None:
            if isinstance(cause, (ClosedError, ProtocolViolation)) or self.transport.is_closing():
                self.transport.close()
                self.loop.call_later(ABORT_AFTER_S, self.transport.abort)
            else:
                self.transport.abort()


def _let_go(*waiting: asyncio.Future[None] | None) -> None:
    """Who waits goes on."""
    for each in waiting:
        if each is not None and not each.done():
            each.set_result(None)
