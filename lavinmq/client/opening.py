"""From an endpoint to an open link: name, socket, TLS, WebSocket, handshake, within one time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from lavinmq.client.config import Config, keepalive
from lavinmq.client.errors import ClientConnectionError, ConfigError, ConnectionLost
from lavinmq.client.link import Link, in_thread
from lavinmq.client.sockets import Sockets
from lavinmq.client.url import Endpoint, Target
from lavinmq.client.websocket import WebSocket


def tls_context(config: Config) -> ssl.SSLContext:
    """What TLS is spoken with. Raises: ConfigError for files that cannot be read."""
    if config.ssl_context is not None:
        return config.ssl_context
    try:
        context = ssl.create_default_context(cafile=config.cacertfile)
        if config.certfile:
            context.load_cert_chain(config.certfile, config.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cacertfile, certfile or keyfile cannot be used: {error}") from None
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def open_link(
    config: Config, target: Target, endpoint: Endpoint, name: str = "",
    sockets: Sockets | None = None,
) -> Link:  # fmt: skip
    """Connect and shake hands. Args: name: the connection's, in place of that of `config`; sockets:
    among which it is, if it is plain TCP. Raises: ClientConnectionError and the like, ssl.SSLError.
    """
    link = Link(config, target, asyncio.get_running_loop(), name)
    try:
        async with asyncio.timeout(config.connect_timeout):
            await _connect(link, config, endpoint, sockets)
            await link.open()
    except TimeoutError:
        error = ClientConnectionError(
            f"no connection to {endpoint} within {config.connect_timeout:g} s"
        )
        link.end(error)
        raise error from None
    except ssl.SSLError as failure:
        link.end(ConnectionLost("TLS failed"))
        raise failure
    except OSError as failure:
        if isinstance(failure, ClientConnectionError):
            link.end(failure)
            raise
        error = ClientConnectionError(f"no connection to {endpoint}: {failure}")
        link.end(error)
        raise error from None
    except BaseException as failure:
        link.end(failure if isinstance(failure, Exception) else ConnectionLost("given up"))
        raise
    return link


async def _connect(link: Link, config: Config, endpoint: Endpoint, sockets: Sockets | None) -> None:
    """Make the transport of a link. Raises: OSError."""
    loop = link.loop
    made = link if not endpoint.is_websocket else WebSocket(link, endpoint)
    if endpoint.scheme == "unix":
        await loop.create_unix_connection(lambda: made, endpoint.path)
        return
    tls = tls_context(config) if endpoint.is_tls else None
    sock = await _reach(loop, endpoint)
    try:
        _prepare(sock, config)
    except BaseException:
        sock.close()
        raise
    if sockets is not None and endpoint.scheme == "amqp":
        sockets.add(link, sock)
        return
    name = (config.server_name or endpoint.host) if tls else None
    await loop.create_connection(lambda: made, sock=sock, ssl=tls, server_hostname=name)
    if isinstance(made, WebSocket):
        await made.ready


async def _reach(loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> socket.socket:
    """Connect to the first of the addresses of a host that answers. Raises: OSError."""
    failure: OSError | None = None
    for row in await _addresses(endpoint.host, endpoint.port):
        sock = socket.socket(row[0], row[1] | socket.SOCK_NONBLOCK, row[2])
        try:
            await loop.sock_connect(sock, row[4])
        except OSError as error:
            sock.close()
            failure = failure or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{endpoint.host} has no address")


async def _addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    """What `getaddrinfo` finds; a number needs no other thread. Raises: OSError."""
    kind, numeric = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    with contextlib.suppress(OSError):
        return list(socket.getaddrinfo(host, port, type=kind, flags=numeric))
    return list(await in_thread(socket.getaddrinfo, host, port, 0, kind))


def _prepare(sock: socket.socket, config: Config) -> None:
    """Send at once; notice a peer that has gone without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    alive = keepalive(config.tcp_keepalive)
    if alive is None or not hasattr(socket, "TCP_KEEPIDLE"):
        return
    idle, interval, count = alive
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        patience_ms = (idle + interval * count) * 1000
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
