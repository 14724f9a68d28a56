"""Listening sockets for AMQP: accepts connections and gives each its `Connection`.

TCP and unix sockets. Accepting is bounded per wake-up, and pauses for a moment when few descriptors
are left. Source: command line reference, section 13.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import TYPE_CHECKING, Final

from lavinmq import log
from lavinmq.amqp.connection import Connection

if TYPE_CHECKING:
    from lavinmq.server import Server

BACKLOG: Final = 1024
ACCEPTS_PER_WAKEUP: Final = 64
RETRY_S: Final = 0.5
RESERVE: Final = 64
"""Descriptors that clients do not get: queues need them to write and sync."""
_log = log.get("lmq.server")


class Listener:
    """One listening socket."""

    def __init__(self, server: Server, sock: socket.socket, name: str) -> None:
        self.name = name
        self._server = server
        self._socket = sock
        self._events = server.events
        self._is_full = False

    @classmethod
    def tcp(cls, server: Server, host: str, port: int) -> Listener:
        """Listen on an address; `::` serves IPv4 too. Raises: OSError naming the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno, f"cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        return cls(server, sock, f"{host}:{sock.getsockname()[1]}")

    @classmethod
    def unix(cls, server: Server, path: str) -> Listener:
        """Listen on a unix socket, mode 0666; an old file is removed. Raises: OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if os.path.exists(path):
                os.unlink(path)
            sock.bind(path)
            os.chmod(path, 0o666)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from error
        return cls(server, sock, path)

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Begin to accept."""
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._events.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting. Idempotent."""
        if self._socket.fileno() < 0:
            return
        self._events.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPTS_PER_WAKEUP):
                _check_descriptors(self._socket)
                self._welcome(*self._socket.accept())
                self._is_full = False
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
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

    def _welcome(self, sock: socket.socket, address: tuple[str, int] | str) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            peer, local, is_loopback = "127.0.0.1:0", "127.0.0.1:0", True
        else:
            is_loopback = _is_loopback(address[0])
            try:
                local = shown(sock.getsockname())
                _set_options(self._server, sock, is_loopback)
            except OSError as error:  # the peer is gone already
                _log.debug("connection from %s: %s", address, error)
                sock.close()
                return
            peer = shown(address)
        self._server.welcome(Connection(self._server, sock, peer, local, is_loopback))


def _check_descriptors(sock: socket.socket) -> None:
    """A new descriptor has the lowest free number. Raises: OSError when too few are left."""
    fd = os.dup(sock.fileno())
    os.close(fd)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and fd >= limit - min(RESERVE, limit // 8):
        raise OSError(errno.EMFILE, "Few file descriptors are left")


def _set_options(server: Server, sock: socket.socket, is_loopback: bool) -> None:
    config = server.config
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, config.tcp_nodelay)
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


def _is_loopback(host: str) -> bool:
    """Loopback, also as an IPv4 address inside an IPv6 one; the kernel writes it one way only."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def shown(address: tuple[str, int] | str) -> str:
    """An address for names and logs; a socket of `::` sees IPv4 peers as IPv6 ones."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
