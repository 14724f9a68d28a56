"""A blocking AMQP 0-9-1 connection for a task: one socket, one channel, one caller.

`reading` and `sink` build on it. Methods off the hot path go through `call` and `send`; the bytes
of content come by `read_into` and go by `write` as they are. A thread of its own sends the
heartbeats, so that a task may work, or wait for Spark, for as long as it likes. Methods are written
and read by the client library; its connections make a message of each delivery. Every wait has an
end, and every error is one line that says where: node, vhost and what the task is about, never
the password. Longer than 500 lines: every wait shares the socket's few states.
Source: AMQP 0-9-1 specification, sections 2.2 and 4.2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Self

from lavinmq.client import frames
from lavinmq.client.errors import ProtocolViolation
from lavinmq.client.link import HEARTBEAT, PROTOCOL_HEADER
from lavinmq.spark.options import ConnectionOptions, Node

_LOG = logging.getLogger(__name__)

CHANNEL = 1
TIMEOUT_S = 10.0  # for connecting, for each step of the handshake and for each reply
STALL_S = 60.0  # how long a write may wait for a broker that takes nothing
HEARTBEAT_S = 30
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # between rounds of all nodes; the last one repeats
AHEAD_MAX = 16 * 1024 * 1024  # of bytes that came while something else was waited for
TEXT_MAX = 400  # characters of a peer's words in an error

CAPABILITIES = (
    *("publisher_confirms", "basic.nack", "consumer_cancel_notify"),
    *("authentication_failure_close", "connection.blocked"),
)
CLOSE, CHANNEL_CLOSE = frames.id_of("connection.close"), frames.id_of("channel.close")
BLOCKED, UNBLOCKED = frames.id_of("connection.blocked"), frames.id_of("connection.unblocked")
ACCESS_REFUSED, NOT_ALLOWED = 403, 530
# Replies after which the same again may succeed: the broker stops, or had an accident.
TRANSIENT_CODES = frozenset({320, 541})


class ConnectionFailure(Exception):
    """The broker cannot be reached, refused something or broke off; the text is one line.

    `code` is the reply code, 0 without one. `is_transient`: trying again may help.
    """

    def __init__(self, text: str, code: int = 0, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.code, self.is_transient = code, is_transient


def connect(
    options: ConnectionOptions, subject: str = "", *, name: str = "", patience_s: float = 30.0
) -> Connection:
    """Connect to the first node that answers, and open a channel.

    When none does, all are tried again, with growing pauses, until `patience_s` is over; what
    would be refused again (a wrong password, an unknown vhost) is raised at once. `subject` is
    what errors are about, for instance "queue 'orders'"; `name` is shown by the broker.
    Raises: ConnectionFailure, OptionError when the password's file cannot be read.
    """
    secret = options.secret()
    deadline = time.monotonic() + patience_s
    pauses = iter(BACK_OFF_S)
    pause_s = 0.0
    while True:
        for node in options.nodes:
            connection = Connection(node, options, subject)
            try:
                connection.open(secret, name or options.client_name)
            except ConnectionFailure as failure:
                connection.abort()
                if not failure.is_transient:
                    raise
                latest = failure
            except BaseException:
                connection.abort()
                raise
            else:
                return connection
        pause_s = next(pauses, pause_s)
        if time.monotonic() + pause_s > deadline:
            raise latest
        time.sleep(pause_s)


class Connection:
    """One connection with its channel; made by `connect`, used by one thread at a time.

    `blocked` is the broker's reason while it takes no publishes (connection.blocked), else None.
    `product` is what the broker calls itself.
    `frame_max` bounds the payload of a frame with its 8 bytes of frame.
    """

    channel = CHANNEL

    def __init__(self, node: Node, options: ConnectionOptions, subject: str = "") -> None:
        self._node = node
        self._options = options
        self._where = f"{node} vhost '{options.vhost}'" + (f" {subject}" if subject else "")
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._reader = frames.Reader()
        self._ahead: deque[frames.Frame] = deque()
        self._n_ahead = 0
        self._heard = time.monotonic()
        self._sending = threading.Lock()  # a frame is sent whole
        self._using = threading.Lock()  # an SSL object is used by one thread at a time
        self._unsent = b""
        self._is_closing = threading.Event()
        self._beating: threading.Thread | None = None
        self._secret = ""
        self.frame_max = frames.FRAME_MAX
        self.heartbeat_s = 0
        self.stall_s = STALL_S
        self.blocked: str | None = None
        self.product = ""

    # ---- life ------------------------------------------------------------------------------------

    def open(self, secret: str, name: str) -> None:
        """Connect, log in and open the channel. Raises: ConnectionFailure."""
        self._secret = secret
        self._connect()
        self.write(PROTOCOL_HEADER)
        self.product = str(self._expect("connection.start")[2].get("product"))
        response = f"\0{self._options.user}\0{secret}"
        self._send(0, "connection.start-ok", properties(name), "PLAIN", response, "en_US")
        channel_max, frame_max, heartbeat_s = self._expect("connection.tune")
        self.frame_max = min(frame_max or frames.FRAME_MAX, frames.FRAME_MAX)
        self.heartbeat_s = min(HEARTBEAT_S, heartbeat_s or HEARTBEAT_S)
        self._send(0, "connection.tune-ok", channel_max, self.frame_max, self.heartbeat_s)
        self._send(0, "connection.open", self._options.vhost, "", False)
        self._expect("connection.open-ok")
        self.call("channel.open", "")
        self._beating = threading.Thread(target=self._beat, name="lavinmq-heartbeat", daemon=True)
        self._beating.start()

    def close(self) -> None:
        """Say goodbye if the broker still listens, and disconnect. Raises nothing."""
        if self._socket is not None and not self._is_closing.is_set():
            self.stall_s = 1.0
            with contextlib.suppress(ConnectionFailure):
                self._send(0, "connection.close", *frames.GOODBYE)
        self.abort()

    def abort(self) -> None:
        """Disconnect without a word."""
        self._is_closing.set()
        if self._beating is not None and self._beating is not threading.current_thread():
            self._beating.join()
            self._beating = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        node = self._node
        try:
            sock = socket.create_connection((node.host, node.port), TIMEOUT_S)
            self._socket = sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if node.tls:
                self._socket = self._context().wrap_socket(sock, server_hostname=node.host)
        except ssl.SSLCertVerificationError as error:
            raise self.failure(f"cannot verify the broker: {error.verify_message}") from None
        except ssl.SSLError as error:
            is_cut = isinstance(error, ssl.SSLEOFError)
            reason = error.reason or str(error)
            raise self.failure(f"no TLS: {reason}", is_transient=is_cut) from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise self.failure(f"cannot connect: {reason}", is_transient=True) from None
        self._socket.setblocking(False)
        self._poll.register(self._socket, select.POLLIN)
        self._heard = time.monotonic()

    def _context(self) -> ssl.SSLContext:
        """What TLS is done with. Raises: ConnectionFailure naming the option that is wrong."""
        options = self._options
        for name in ("ssl_ca_file", "ssl_cert_file", "ssl_key_file"):
            path = getattr(options, name)
            if path is not None and not os.access(path, os.R_OK):
                option = "ssl" + "".join(part.title() for part in name.split("_")[1:])
                raise self.failure(f"{option}: cannot read {path}")
        try:
            context = ssl.create_default_context(cafile=options.ssl_ca_file)
            if options.ssl_cert_file is not None:
                context.load_cert_chain(options.ssl_cert_file, options.ssl_key_file, "")
        except (ssl.SSLError, OSError) as error:
            reason = error.strerror or str(error)
            raise self.failure(f"sslCaFile, sslCertFile or sslKeyFile: {reason}") from None
        if not options.ssl_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    # ---- methods ---------------------------------------------------------------------------------

    def call(self, name: str, *values: Any, timeout_s: float = TIMEOUT_S) -> tuple[Any, ...]:
        """Send a method on the channel, wait for its reply and return the arguments of that.

        What else comes is kept. Raises: ConnectionFailure.
        """
        self._send(CHANNEL, name, *values)
        return self._expect(f"{name}-ok", CHANNEL, timeout_s)

    def send(self, name: str, *values: Any) -> None:
        """Send a method on the channel. Raises: ConnectionFailure."""
        self._send(CHANNEL, name, *values)

    def count(self, queue: str) -> int:
        """Return how many messages are ready in a queue. Raises: ConnectionFailure."""
        flags = (True, False, False, False, False)
        return int(self.call("queue.declare", 0, queue, *flags, {})[1])

    def consume(
        self, queue: str, prefetch: int, tag: str = "", arguments: Mapping[str, Any] | None = None
    ) -> str:
        """Begin to consume, with at most `prefetch` messages unsettled; return the consumer's tag.

        Raises: ConnectionFailure.
        """
        self.call("basic.qos", 0, prefetch, False)
        flags = (False, False, False, False)
        return str(self.call("basic.consume", 0, queue, tag, *flags, arguments or {})[0])

    def take(self, kind: int, channel: int, payload: bytes) -> bool:
        """Deal with a frame of the connection, or a close; say whether it was one.

        Raises: ConnectionFailure when the broker closes channel or connection.
        """
        if kind == frames.HEARTBEAT:
            return True
        if kind != frames.METHOD:
            return False
        ids = payload[:4]
        if ids == CLOSE:
            self._give_up(0, "connection.close-ok", payload)
        if ids == CHANNEL_CLOSE:
            self._give_up(CHANNEL, "channel.close-ok", payload)
        if channel:
            return False
        if ids == BLOCKED:
            (reason,) = self.arguments(payload)
            self.blocked = _one_line(reason) or "no reason given"
            _LOG.warning("%s: the broker takes no messages now: %s", self._where, self.blocked)
        elif ids == UNBLOCKED:
            self.blocked = None
            _LOG.warning("%s: the broker takes messages again", self._where)
        else:
            return False
        return True

    def failure(self, text: str, code: int = 0, *, is_transient: bool = False) -> ConnectionFailure:
        """Make an error of this connection: one line, with its node, vhost and subject."""
        line = _one_line(text)
        # Somebody's password may be a word that brokers use: then it tells nothing.
        if len(self._secret) > 5 and self._secret != self._options.user:
            line = line.replace(self._secret, "***")
        return ConnectionFailure(f"{self._where}: {line}", code, is_transient=is_transient)

    def _send(self, channel: int, name: str, *values: Any) -> None:
        try:
            frame = frames.method(channel, name, *values)
        except ValueError as error:
            raise self.failure(str(error)) from None
        self.write(frame)

    def _expect(self, name: str, channel: int = 0, timeout_s: float = TIMEOUT_S) -> tuple[Any, ...]:
        """Wait for a method; frames of content that come before it are kept."""
        ids = frames.id_of(name)
        deadline = time.monotonic() + timeout_s
        while (frame := self._arriving(deadline)) is not None:
            if frame.kind == frames.METHOD and frame.payload[:4] == ids:
                return self.arguments(frame.payload)
            if frame.channel != CHANNEL or channel == 0:
                raise self.failure(f"a frame of type {frame.kind} came before {name}")
            self._keep(frame)
        raise self.failure(f"no {name} within {timeout_s:g} s", is_transient=True)

    def arguments(self, payload: bytes) -> tuple[Any, ...]:
        """Read a method that came. Raises: ConnectionFailure when it is none."""
        try:
            return frames.arguments(payload)
        except ProtocolViolation as error:
            raise self.failure(str(error)) from None

    def _give_up(self, channel: int, answer: str, payload: bytes) -> None:
        """The broker closed; answer if no frame is half sent, and raise what it said."""
        if not self._sending.locked():
            with contextlib.suppress(ConnectionFailure):
                self._send(channel, answer)
        try:
            closed = frames.close_of(payload)
        except ProtocolViolation as error:
            raise self.failure(str(error)) from None
        text = f"{closed.code} {closed.text}"
        if closed.code in (ACCESS_REFUSED, NOT_ALLOWED):
            text += f" (user '{self._options.user}')"
        is_transient = closed.code in TRANSIENT_CODES
        raise self.failure(text, closed.code, is_transient=is_transient)

    # ---- bytes -----------------------------------------------------------------------------------

    def read_into(self, view: memoryview, timeout_s: float) -> int:
        """Receive once into `view`: how many bytes; 0 when none came in time.

        What came while a reply was awaited is first. Frames are the caller's to cut, and to show to
        `take`. Raises: ConnectionFailure.
        """
        ahead = b"".join(frames.frame(*frame) for frame in self._ahead) + self._reader.take()
        self._ahead.clear()
        self._n_ahead = 0
        if ahead:
            n = min(len(ahead), len(view))
            view[:n] = ahead[:n]
            self._reader.feed(ahead[n:])
            return n
        deadline = time.monotonic() + timeout_s
        while not (n := self._receive(view)):
            if not self._wait(select.POLLIN, deadline):
                return 0
        return n

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send whole frames. While the broker takes none, what it says is read and kept.

        Raises: ConnectionFailure, also after `stall_s` without any progress, unless blocked.
        """
        with self._sending:
            view = memoryview(self._unsent + data if self._unsent else data).cast("B")
            self._unsent = b""
            deadline = time.monotonic() + self.stall_s
            while view:
                if n := self._transmit(view):
                    view = view[n:]
                    deadline = time.monotonic() + self.stall_s
                elif not self._stall(deadline):
                    if self.blocked is None:
                        text = f"the broker takes nothing for {self.stall_s:g} s"
                        raise self.failure(text, is_transient=True)
                    # It has said why, and is alive: its heartbeats are watched.
                    deadline = time.monotonic() + self.stall_s

    def _stall(self, deadline: float) -> bool:
        """Wait until something can be sent, reading meanwhile; False when it is too late."""
        events = select.POLLOUT
        if self._n_ahead < AHEAD_MAX:
            events |= select.POLLIN
        ready = self._wait(events, deadline)
        if ready & select.POLLIN:
            self._fill()
            for frame in self._cut():
                self._keep(frame)
        return bool(ready)

    def _arriving(self, deadline: float) -> frames.Frame | None:
        """The next frame behind those that are kept; None when it is too late."""
        while True:
            for frame in self._cut():
                return frame
            if not self._fill() and not self._wait(select.POLLIN, deadline):
                return None

    def _cut(self) -> Iterator[frames.Frame]:
        """Yield the whole frames that were received and are not of the connection itself."""
        while True:
            try:
                frame = self._reader.next()
            except ProtocolViolation as error:
                raise self.failure(str(error)) from None
            if frame is None:
                return
            if not self.take(*frame):
                yield frame

    def _keep(self, frame: frames.Frame) -> None:
        self._n_ahead += len(frame.payload)
        if self._n_ahead > AHEAD_MAX + frames.FRAME_MAX:
            raise self.failure("the broker sends too much before its reply")
        self._ahead.append(frame)

    def _fill(self) -> int:
        buffer = bytearray(65536)
        n = self._receive(memoryview(buffer))
        self._reader.feed(bytes(buffer[:n]))
        return n

    def _receive(self, view: memoryview) -> int:
        """Receive what is there; 0 for nothing."""
        try:
            with self._using:
                n = self._usable().recv_into(view)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise self._lost(error) from None
        if n == 0:
            raise self.failure("the broker hung up without a reason", is_transient=True)
        self._heard = time.monotonic()
        return n

    def _transmit(self, view: memoryview) -> int:
        """Send what is taken; 0 for nothing."""
        try:
            with self._using:
                return self._usable().send(view)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise self._lost(error) from None

    def _wait(self, events: int, deadline: float) -> int:
        """Wait until the socket is ready: for what; 0 when the deadline is over.

        Raises: ConnectionFailure when the peer has been silent for two heartbeats.
        """
        while True:
            now = time.monotonic()
            until = deadline
            if self.heartbeat_s:
                silent = self._heard + 2 * self.heartbeat_s
                if now > silent:
                    text = f"nothing heard for {2 * self.heartbeat_s} s, the peer seems dead"
                    raise self.failure(text, is_transient=True)
                until = min(until, silent + 0.01)
            self._poll.modify(self._usable(), events)
            ready = self._poll.poll(max(0.0, until - now) * 1000)
            if ready:
                return ready[0][1]
            if time.monotonic() >= deadline:
                return 0

    def _usable(self) -> socket.socket:
        if self._socket is None:
            raise self.failure("the connection is closed")
        return self._socket

    def _lost(self, error: OSError) -> ConnectionFailure:
        reason = error.strerror or str(error) or type(error).__name__
        return self.failure(f"connection lost: {reason}", is_transient=True)

    def _beat(self) -> None:
        """Send a heartbeat twice per interval, unless something else is just being sent."""
        while not self._is_closing.wait(self.heartbeat_s / 2):
            if not self._sending.acquire(blocking=False):
                continue
            try:
                if not self._unsent:
                    n = self._transmit(memoryview(HEARTBEAT))
                    # What TLS has begun to send must be what it is given next.
                    self._unsent = HEARTBEAT[n:]
            except ConnectionFailure:
                return  # whoever uses the connection notices too
            finally:
                self._sending.release()


def properties(name: str) -> dict[str, Any]:
    """Who we are."""
    made: dict[str, Any] = {
        "product": "lavinmq spark",
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }
    return made | {"connection_name": name} if name else made


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else line[:TEXT_MAX] + "…"
