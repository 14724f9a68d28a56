"""Listening sockets: accept connections and hand them on to a protocol, PROXY header and TLS done.

TCP, TLS and unix sockets, bound here or passed by systemd; any protocol, which says by `welcome`
who takes over. All listeners share a portion of each turn of the loop, and one pauses for a moment
when few descriptors are left. Source: docs/listeners.md.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from typing import Protocol as Interface

from lavinmq import _core
from lavinmq.listeners.arrival import Hall, Reception, Steps, Welcome
from lavinmq.listeners.endpoints import UNIX, Endpoints, between, shown
from lavinmq.listeners.proxy_protocol import TrustedSources
from lavinmq.listeners.tls import Contexts, Protocol
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.process.portions import SharedPortion

BACKLOG: Final = 1024
RETRY_S: Final = 0.5
RUN: Final = "/run"
RESERVE: Final = 64
"""Descriptors that clients do not get: queues need them to write and sync."""
ANY_HOST: Final = "::"
_log = log.get("lmq.server")


class Host(Interface):
    """What a listener needs of the broker."""

    events: asyncio.AbstractEventLoop
    config: Config
    tls: Contexts
    arrivals: SharedPortion
    """Of all listeners: for accepting, and for handshakes."""

    @property
    def peers(self) -> Container[str]:
        """Hosts of the cluster's other nodes, which say by PROXY headers whom they bring."""


class Door(Hall, Interface):
    """Who says whether one more connection may come."""

    def refuse(self, sock: socket.socket, is_tls: bool) -> None:
        """Send one away, and close its socket."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the configuration wants a protocol to listen. Ports: -1: not there, 0: a free one."""

    bind: str
    port: int
    tls_port: int
    unix_path: str | None


class Listener:
    """One listening socket; made by `tcp`, `unix` or `listeners`.

    Args: protocol: what is spoken behind it; welcome: takes over each connection; door: says
        whether there is room for one more, None: there is.
    """

    def __init__(
        self, host: Host, sock: socket.socket, protocol: Protocol, welcome: Welcome, *,
        is_tls: bool = False, door: Door | None = None,
    ) -> None:  # fmt: skip
        self.protocol = protocol
        self._door = door
        self.is_tls = is_tls
        self.path: str | None = None
        """Of a unix socket."""
        self.bind, self._port = "", -1
        self._is_unix = sock.family == socket.AF_UNIX
        if self._is_unix:
            self.path = os.fsdecode(sock.getsockname())
        else:
            self.bind, self._port = sock.getsockname()[:2]
        self.reception = Reception(host.events, host.config, host.tls, host.arrivals, welcome, door)
        self._host = host
        self._portion = host.arrivals
        self._config = host.config
        self._events = host.events
        self._socket = sock
        self._fd = sock.fileno()
        # As numbers: the names of each would be looked up for each connection. One that is made so
        # does not block, which `accept` has seen to.
        self._kind = int(sock.family), int(sock.type | socket.SOCK_NONBLOCK), sock.proto
        self._is_prompt = False
        """Whether small packets of who is accepted do not wait, as things are."""
        self._is_full = False
        self._owned: tuple[int, int] | None = None
        self._trusted = TrustedSources(())
        self._plain = Steps(protocol)

    @classmethod
    def tcp(
        cls, host: Host, bind: str, port: int, protocol: Protocol, welcome: Welcome, *,
        is_tls: bool = False, door: Door | None = None,
    ) -> Listener:  # fmt: skip
        """Listen on an address; `::` serves IPv4 too. Raises: OSError naming the address."""
        if bind == ANY_HOST and not _has_ipv6():
            _log.warning("this machine has no IPv6, 0.0.0.0 takes the place of ::")
            bind = "0.0.0.0"
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((bind, port))
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno, f"cannot listen on {shown(bind, port)}: {error.strerror}"
            ) from error
        return cls(host, sock, protocol, welcome, is_tls=is_tls, door=door)

    @classmethod
    def unix(
        cls, host: Host, path: str, protocol: Protocol, welcome: Welcome, *, mode: int = 0o666,
        door: Door | None = None,
    ) -> Listener:  # fmt: skip
        """Listen on a unix socket; one that nobody listens on any more is replaced. A directory of
        its own below /run is made: the service has systemd do it, a container has nobody.

        Raises: OSError naming the path.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _make_run_directory(path)
            _remove_stale(path)
            sock.bind(path)
            os.chmod(path, mode)
            made = cls(host, sock, protocol, welcome, door=door)
            made._owned = _identity(path)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from error
        return made

    @property
    def port(self) -> int:
        """The TCP port; -1 of a unix socket."""
        return self._port

    @property
    def name(self) -> str:
        """The address, for logs."""
        return self.path if self.path is not None else shown(self.bind, self._port)

    def start(self) -> None:
        """Begin to accept. Raises: OSError, for example when somebody else listens there."""
        self._socket.setblocking(False)
        is_new = not self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_new and not self._is_unix and self._config.tcp_nodelay:
            # Who connects has it from here: a system call less for each, unless it changes.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            self._is_prompt = True
        self._socket.listen(BACKLOG)
        self._events.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and give up who was not through. Idempotent."""
        self.reception.close()
        if self._socket.fileno() < 0:
            return
        self._events.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._owned is not None and self.path is not None:
            with suppress(OSError):
                if _identity(self.path) == self._owned:  # else somebody else's by now
                    os.unlink(self.path)

    def _accept(self) -> None:
        try:
            most = _most_descriptors(self._socket)
            for _ in self._portion.steps():
                accepted = _core.accept(self._fd)
                if accepted is None:
                    return
                fd, peer, own = accepted
                self._receive(socket.socket(*self._kind, fileno=fd), peer, own)
                self._is_full = False
                _check_descriptor(fd + 1, most)  # of the next one
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            if not self._is_full:
                _log.error("cannot accept on %s: %s", self.name, error.strerror)
            self._is_full = True
            self._events.remove_reader(self._socket.fileno())
            self._events.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        if self._socket.fileno() >= 0:
            self._events.add_reader(self._socket.fileno(), self._accept)

    def _receive(self, sock: socket.socket, peer: tuple[str, int], own: tuple[str, int]) -> None:
        try:
            ends = UNIX if self._is_unix else between(peer, own)
            if self._door is not None and not self._door.has_room(ends):
                self._door.refuse(sock, self.is_tls)
                return
            if not self._is_unix:
                config = self._config
                if config.tcp_nodelay is not self._is_prompt:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, config.tcp_nodelay)
                _set_options(config, sock, ends.is_loopback)
        except OSError as error:  # the peer is gone already
            _log.debug("connection to %s: %s", self.name, error)
            sock.close()
            return
        self.reception.receive(sock, ends, self._steps(ends))

    def _steps(self, ends: Endpoints) -> Steps:
        """What a connection that comes now has to go through."""
        if ends.peer_host in self._host.peers and self.path is None:
            return Steps(self.protocol, detects_proxy=True, is_tls=self.is_tls, is_peer=True)
        if self.is_tls:
            return Steps(self.protocol, is_tls=True)
        if self.protocol == "http":
            return self._plain
        if self.path is not None:
            return Steps(self.protocol, detects_proxy=True)
        if not self._config.tcp_proxy_protocol:
            return self._plain
        networks = self._config.proxy_protocol_trusted_sources
        if networks != self._trusted.texts:
            self._trusted = TrustedSources(networks)
        return Steps(self.protocol, detects_proxy=True, trusted=self._trusted)


def listeners(
    host: Host, places: Places, passed: list[socket.socket], protocol: Protocol, welcome: Welcome,
    door: Door | None = None,
) -> Iterator[Listener]:  # fmt: skip
    """Make the listeners of a protocol, plain TCP first; the caller starts and closes them.

    Args: passed: sockets from systemd. One takes the place of the listener with its port or path;
        others serve besides.
    Raises: OSError naming the address.
    """
    left = list(passed)
    try:
        if places.port >= 0:
            sock = _pick(left, lambda sock: _port(sock) == places.port)
            if sock is not None:
                yield Listener(host, sock, protocol, welcome, door=door)
            else:
                yield Listener.tcp(host, places.bind, places.port, protocol, welcome, door=door)
        sock = _pick(left, lambda sock: _port(sock) == places.tls_port)
        if places.tls_port >= 0 and host.tls.is_enabled:
            if sock is not None:
                yield Listener(host, sock, protocol, welcome, is_tls=True, door=door)
            else:
                bind, port = places.bind, places.tls_port
                yield Listener.tcp(host, bind, port, protocol, welcome, is_tls=True, door=door)
        elif sock is not None:
            _log.warning("port %d of systemd stays closed: there is no certificate", _port(sock))
            sock.close()
        if places.unix_path:
            sock = _pick(left, lambda sock: sock.getsockname() == places.unix_path)
            if sock is not None:
                yield Listener(host, sock, protocol, welcome, door=door)
            else:
                yield Listener.unix(host, places.unix_path, protocol, welcome, door=door)
        while left:
            yield Listener(host, left.pop(0), protocol, welcome, door=door)
    finally:
        for sock in left:
            sock.close()


def _pick(left: list[socket.socket], fits: Callable[[socket.socket], bool]) -> socket.socket | None:
    """Take the first socket that fits."""
    for sock in left:
        if fits(sock):
            left.remove(sock)
            return sock
    return None


def _port(sock: socket.socket) -> int:
    """Return the TCP port; -2 of a unix socket, which no setting means."""
    return -2 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _make_run_directory(path: str) -> None:
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.dirname(directory) == RUN and not os.path.isdir(directory):
        os.mkdir(directory, 0o755)


def _remove_stale(path: str) -> None:
    """Remove what a broker has left that is gone. Raises: OSError when it is anything else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue of connections is a sign of life as well
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another process listens there")


def _most_descriptors(sock: socket.socket) -> int:
    """The highest number that another connection's descriptor should have. A new one has the lowest
    that is free. Raises: OSError when too few are left."""
    fd = os.dup(sock.fileno())
    os.close(fd)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if limit == resource.RLIM_INFINITY else limit - min(RESERVE, limit // 8) - 1
    _check_descriptor(fd, most)
    return most


def _check_descriptor(fd: int, most: int) -> None:
    if fd > most:
        raise OSError(errno.EMFILE, "Few file descriptors are left")


def _set_options(config: Config, sock: socket.socket, is_loopback: bool) -> None:
    if config.tcp_keepalive is not None and not is_loopback:
        idle, interval, count = config.tcp_keepalive
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    if config.tcp_recv_buffer_size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.tcp_recv_buffer_size)
    if config.tcp_send_buffer_size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.tcp_send_buffer_size)
