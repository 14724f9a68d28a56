"""From accept to the protocol: PROXY header, server name and TLS handshake of a socket.

Each listener has one `Reception`. An arrival is a generator that yields what it waits for; it ends
by handing on the socket, or it is closed: at an error, or when its time is over. Handshakes take
about a millisecond of the processor, so many at once take turns with everything else on the loop.
Source: docs/listeners.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from sys import intern
from typing import TYPE_CHECKING, Final
from typing import Protocol as Interface

from lavinmq.listeners.certificate import LOGINS
from lavinmq.listeners.endpoints import Endpoints, TlsInfo, between
from lavinmq.listeners.proxy_protocol import (
    MAX_BYTES,
    Incomplete,
    ProxyError,
    TrustedSources,
    parse,
)
from lavinmq.listeners.secure import SecureSocket, secured
from lavinmq.listeners.tls import MAX_HELLO, Contexts, NameReader, Protocol, is_in_kernel
from lavinmq.process import log
from lavinmq.process.portions import behind

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.listeners.newcomers import Newcomer
    from lavinmq.process.portions import SharedPortion

TIMEOUT_S: Final = 15.0
LINGER_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 0.25
DISCARDED: Final = 65536
_log = log.get("lmq.listener")

Welcome = Callable[[socket.socket, Endpoints], None]
"""Takes a socket over. After a handshake of TLS it is a SecureSocket, for HTTP one of ssl."""


class Hall(Interface):
    """Who counts those that are on their way."""

    def has_room(self, ends: Endpoints) -> bool:
        """Whether one more may come."""

    def enter(self, newcomer: Newcomer, ends: Endpoints) -> None:
        """One has come."""

    def leave(self, newcomer: Newcomer) -> None:
        """It is through, or gone."""


class _GoneError(Exception):
    """There is nobody to serve, and nothing more to say about it."""


class Wait(Enum):
    """What an arrival waits for."""

    INPUT = "input"
    ROOM = "room"
    MORE = "more"
    """More input than there is. The kernel tells all the time of what is not taken: look later."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What has to happen before the protocol begins."""

    protocol: Protocol
    detects_proxy: bool = False
    trusted: TrustedSources | None = None
    """Whose headers count; None: everybody's."""
    is_tls: bool = False
    is_peer: bool = False
    """From a node of the cluster: a client that has come to it, or itself, without a header."""


class Reception:
    """The arrivals of a listener.

    Args: events: the loop; config: the values in force; contexts: for those that speak TLS;
        portion: of each turn, for all who arrive; welcome: takes over who is through; hall: counts
        who is not, None: nobody does.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop, config: Config, contexts: Contexts,
        portion: SharedPortion, welcome: Welcome, hall: Hall | None = None,
    ) -> None:  # fmt: skip
        self._hall = hall
        self.events = events
        self.config = config
        self.contexts = contexts
        self.welcome = welcome
        self._portion = portion
        self._arrivals: set[Arrival] = set()
        self._ready: deque[Arrival] = deque()
        self._names: NameReader | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    def receive(self, sock: socket.socket, ends: Endpoints, steps: Steps) -> None:
        """Take over a non-blocking socket that was accepted."""
        if not (steps.detects_proxy or steps.is_tls):
            self.welcome(sock, ends)
            return
        arrival = Arrival(self, sock, ends, steps)
        self._arrivals.add(arrival)
        if self._hall is not None:
            self._hall.enter(arrival, ends)
        arrival.watch(Wait.INPUT)

    def close(self) -> None:
        """Close all that are not through. Idempotent."""
        for arrival in list(self._arrivals):
            arrival.close("")

    def discard(self, arrival: Arrival) -> None:
        """An arrival is over."""
        self._arrivals.discard(arrival)
        if self._hall is not None:
            self._hall.leave(arrival)

    def recount(self, arrival: Arrival, ends: Endpoints) -> bool:
        """Count an arrival as one of somebody else. Returns: whether there is room for that."""
        if self._hall is None:
            return True
        self._hall.leave(arrival)  # else it may be the one that makes room
        has_room = self._hall.has_room(ends)
        self._hall.enter(arrival, ends)
        return has_room

    def ready(self, arrival: Arrival) -> None:
        """An arrival can go on, when its turn has come."""
        if not self._ready:
            self.events.call_soon(self._take_turns)
        self._ready.append(arrival)

    def _take_turns(self) -> None:
        try:
            for _ in self._portion.steps():
                if not self._ready:
                    break
                self._ready.popleft().advance()
        finally:  # a bug in one must not stop the others
            if self._ready:
                behind(self.events.call_soon, self._take_turns)

    def name_in(self, hello: bytes) -> str | None:
        """Return the host that a client asks for. Raises: ssl.SSLWantReadError."""
        if self._names is None:
            self._names = NameReader()
        return self._names.read(hello)


class Arrival:
    """One socket on its way."""

    def __init__(
        self, reception: Reception, sock: socket.socket, ends: Endpoints, steps: Steps
    ) -> None:
        self._reception = reception
        self._events = reception.events
        self._socket = sock
        self._ends = ends
        self._steps = steps
        self._watched: Wait | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._log = log.get("lmq.listener", client=ends.peer)
        self._way = self._go()
        self._deadline = self._events.call_later(TIMEOUT_S, self._time_is_over)
        self._is_over = False

    # --- the loop -----------------------------------------------------------------------------

    def watch(self, what: Wait) -> None:
        """Be called when that is there."""
        self._watched = what
        fd = self._socket.fileno()
        if what is Wait.INPUT:
            self._events.add_reader(fd, self._on_event)
        elif what is Wait.ROOM:
            self._events.add_writer(fd, self._on_event)
        else:
            self._pause = self._events.call_later(self._pause_s, self._on_event)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _unwatch(self) -> None:
        fd = self._socket.fileno()
        if self._watched is Wait.INPUT:
            self._events.remove_reader(fd)
        elif self._watched is Wait.ROOM:
            self._events.remove_writer(fd)
        elif self._pause is not None:
            self._pause.cancel()
        self._watched = None

    def _on_event(self) -> None:
        self._unwatch()
        self._reception.ready(self)

    def advance(self) -> None:
        """Go on to the next wait, or to the end."""
        if self._is_over:
            return
        try:
            wait = next(self._way)
        except StopIteration:
            self._hand_on()
        except _GoneError:
            self.close("")
        except (OSError, ProxyError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
            self.close(str(reason or error))
        else:
            self.watch(wait)

    def _hand_on(self) -> None:
        self._end()
        self._reception.welcome(self._socket, self._ends)

    def make_room(self) -> None:
        """See `newcomers.py`."""
        self.close("it is the oldest of too many")

    def _time_is_over(self) -> None:
        steps = self._steps
        if steps.is_peer and not steps.is_tls and self._watched is Wait.INPUT:
            self._hand_on()  # nothing has come, so there is no header: the protocol has patience
        else:
            self.close("it took too long")

    def close(self, why: str) -> None:
        """Give the socket up; says why, if there is something to say. Idempotent."""
        if self._is_over:
            return
        if why:
            self._log.info("connection refused: %s", why)
        self._end()
        self._socket.close()

    def _end(self) -> None:
        self._is_over = True
        self._unwatch()
        self._deadline.cancel()
        self._way.close()
        self._reception.discard(self)

    # --- the way ------------------------------------------------------------------------------

    def _go(self) -> Generator[Wait, None, None]:
        if self._steps.detects_proxy:
            yield from self._read_proxy_header()
        if self._steps.is_tls:
            yield from self._secure()

    def _read_proxy_header(self) -> Iterator[Wait]:
        """Take the header, if there is one, from the socket, and nothing of what follows."""
        while True:
            data = self._socket.recv(MAX_BYTES, socket.MSG_PEEK)
            if not data:
                raise _GoneError
            try:
                header = parse(data)
                break
            except Incomplete:
                yield Wait.MORE
            except ProxyError as error:
                raise ProxyError(f"PROXY header: {error}") from None
        if header is None:
            return
        left = header.size
        while left:
            left -= len(self._socket.recv(left))
        trusted = self._steps.trusted
        if trusted is not None and self._ends.peer_host not in trusted:
            self._log.warning("its PROXY header is ignored, it is not a trusted source")
            # A proxy here that nobody has listed would make everybody a client of this machine.
            self._ends = self._ends.afar()
        elif header.peer is not None and header.local is not None:
            self._ends = between(header.peer, header.local, header.tls)
        elif header.tls is not None:
            self._ends = self._ends.with_tls(header.tls)
        if self._steps.is_peer and not self._reception.recount(self, self._ends):
            raise _GoneError

    def _secure(self) -> Iterator[Wait]:
        """Do the handshake of TLS; the context is that of the host that the client asks for."""
        contexts, protocol = self._reception.contexts, self._steps.protocol
        name = None
        if contexts.has_hosts(protocol):
            name = yield from self._read_name()
        context = contexts.choose(protocol, name)
        tls = secured(context, self._socket)
        self._socket = tls
        try:
            yield from self._shake_hands(tls)
        except OSError as error:
            yield from self._refuse(error)
        self._ends = self._ends.with_tls(self._tls_info(tls))

    def _read_name(self) -> Generator[Wait, None, str | None]:
        while True:
            hello = self._socket.recv(MAX_HELLO, socket.MSG_PEEK)
            try:
                return self._reception.name_in(hello)
            except ssl.SSLWantReadError:
                if not hello or len(hello) == MAX_HELLO:
                    return None  # the handshake itself will find fault with it
            yield Wait.MORE

    def _shake_hands(self, tls: ssl.SSLSocket | SecureSocket) -> Iterator[Wait]:
        while True:
            try:
                tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                yield Wait.INPUT
            except ssl.SSLWantWriteError:
                yield Wait.ROOM

    def _refuse(self, error: OSError) -> Iterator[Wait]:
        """Wait for the client's end: closing upon unread input would destroy what it was told."""
        self._deadline.cancel()
        self._deadline = self._events.call_later(LINGER_S, self.close, "")
        self._log.info(
            "TLS handshake failed: %s", getattr(error, "reason", None) or error.strerror or error
        )
        with suppress(OSError):
            # Of the socket below TLS: what comes is not looked at.
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            while True:
                yield Wait.INPUT
                if not socket.socket.recv(self._socket, DISCARDED):
                    break
        raise _GoneError

    def _tls_info(self, tls: ssl.SSLSocket | SecureSocket) -> TlsInfo:
        """What was agreed on; logs it."""
        version, cipher = intern(tls.version() or ""), intern((tls.cipher() or ("",))[0])
        ktls = "on" if is_in_kernel(tls) else "off"
        self._log.info("TLS connection: version=%s, cipher=%s, kTLS=%s", version, cipher, ktls)
        # Empty unless it was verified. Nobody logs in to HTTP by it, and ssl raises at odd names.
        certificate = tls.getpeercert() if isinstance(tls, SecureSocket) else None
        login_from = LOGINS[self._reception.config.tls_cert_login_from]
        return TlsInfo(version, cipher, login_from(certificate) if certificate else None)
