"""Requests to one endpoint of etcd, and their answers as they come, within limits.

Each is one POST on a connection of its own, that can be ended at any time. Answers are parsed by
httptools: etcd ends its refusals with trailers, and there Tornado's client sees a broken answer.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import orjson

from lavinmq.cluster.etcd_values import Fields, Garbled, Lost, Refused, fields_of

MAX_BODY: Final = 1 << 20
"""Bytes of an answer, and of a line of a watch."""
MAX_HEAD: Final = 64 << 10
PIECE: Final = 64 << 10
PORT: Final = 2379
LOGIN: Final = "auth/authenticate"
CLOSED: Final = "the client was closed"
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+)(?::([0-9]{1,5}))?/?", re.ASCII)
_NO_LEADER: Final = ("no leader", "leader changed")


class Endpoint:
    """Where an etcd is, who we are there, and the token that it has given."""

    def __init__(self, text: str) -> None:
        scheme, mark, rest = _split(text)
        login, at, place = rest.rpartition("@")
        found = _PLACE.fullmatch(place)
        self.port = int(found[2] or PORT) if found else 0
        if found is None or not 0 < self.port < 65536 or (at and not login):
            raise ValueError(f"{_shown(text)!r} is no etcd endpoint")
        if scheme not in (("http", "https") if mark else ("",)) or (at and not mark):
            raise ValueError(f"{_shown(text)!r} is no etcd endpoint: http:// or https:// is wanted")
        user, _, password = login.partition(":")
        self.host = found[1].strip("[]")
        self.is_tls = scheme == "https"
        self.user, self.password = unquote(user), unquote(password)
        self.token: str | None = None if self.user else ""
        """None: there is to be one. Empty: none is needed."""
        self._name = f"{found[1]}:{self.port}"

    def __str__(self) -> str:
        return self._name

    def clean(self, text: str) -> str:
        """What it says, without secrets, and fit for one line of a log."""
        for secret in (self.password, self.token):
            if secret:
                text = text.replace(secret, "***")
        return "".join(c if c.isprintable() else " " for c in text[:200])

    def request(self, path: str, body: Fields) -> bytes:
        """A whole request. Without a leader it is refused, and a watch ended."""
        content = orjson.dumps(body)
        lines = [
            f"POST /v3/{path} HTTP/1.1", f"Host: {self}", "Content-Type: application/json",
            f"Content-Length: {len(content)}", "Grpc-Metadata-Hasleader: true", "Connection: close",
        ]  # fmt: skip
        if self.token and path != LOGIN:
            lines.append(f"Authorization: {self.token}")
        return "\r\n".join([*lines, "\r\n"]).encode() + content


class Exchange:
    """One request and its answer as it comes. `end` ends it at any time."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        import httptools

        self.status = 0
        self.is_sent = False
        self._is_whole = self._is_ended = False
        self._n_head = 0
        self._body, self._rest = bytearray(), bytearray()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._connecting = asyncio.ensure_future(
            _connect(endpoint, tls if endpoint.is_tls else None, timeout_s)
        )
        self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def send(self, request: bytes) -> None:
        """Connect and send it. Raises: Lost."""
        try:
            _, writer = await self._connecting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_ended or (task is not None and task.cancelling()):
                raise
            raise Lost(CLOSED, False) from None
        except OSError as error:
            raise Lost(_reason(error), False) from None
        with suppress(OSError):  # of a connection that is gone again
            for option in _KEEPALIVE:
                writer.get_extra_info("socket").setsockopt(*option)
        self.is_sent = True
        writer.write(request)

    async def read(self) -> bytes:
        """More of the body, empty when there is no more. Raises: Lost, Garbled."""
        reader, _ = self._connecting.result()
        while not self._body and not self._is_whole:
            try:
                data = await reader.read(PIECE)
            except OSError as error:
                raise Lost(f"connection lost: {_reason(error)}") from None
            if not data:
                raise Lost(CLOSED if self._is_ended else "the connection ended within the answer")
            self._feed(data)
        found = bytes(self._body)
        self._body.clear()
        return found

    def _feed(self, data: bytes) -> None:
        if self.status == 0:
            self._n_head += len(data)
        if self._n_head > MAX_HEAD + PIECE:
            raise Garbled(f"the head has more than {MAX_HEAD} bytes")
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - whatever a peer sends
            if not self._is_whole:
                raise Garbled(f"it is no HTTP: {error}") from None

    async def whole(self) -> bytes:
        """All of the body. Raises: Lost, Garbled."""
        found = bytearray()
        while more := await self.read():
            found += more
            if len(found) > MAX_BODY:
                raise Garbled(f"it has more than {MAX_BODY} bytes")
        return bytes(found)

    async def line(self) -> bytes:
        """The next line of the body; may be cancelled and asked again. Raises: Lost, Garbled."""
        seen = 0
        while (end := self._rest.find(b"\n", seen)) < 0:
            seen = len(self._rest)
            if seen > MAX_BODY:
                raise Garbled(f"a line has more than {MAX_BODY} bytes")
            more = await self.read()
            if not more and not seen:
                raise Lost("the stream has ended")
            # etcd ends its last words by the end of the stream.
            self._rest += more or b"\n"
        found = bytes(self._rest[:end])
        del self._rest[: end + 1]
        if end > MAX_BODY:
            raise Garbled(f"a line has more than {MAX_BODY} bytes")
        return found

    def end(self) -> None:
        """End it; who waits for it is told so."""
        self._is_ended = True
        task = self._connecting
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result()[1].transport.abort()

    async def ended(self) -> None:
        """Wait until nothing of it is left."""
        await asyncio.wait([self._connecting])
        if not self._connecting.cancelled() and self._connecting.exception() is None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._connecting.result()[1].wait_closed()

    # ---- what httptools calls

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._is_whole:
            self.status, self._n_head = status, 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._is_whole:
            self._body += body

    def on_message_complete(self) -> None:
        """The answer is whole, unless another one follows."""
        self._is_whole = self.status >= 200


def context_of(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """How TLS is spoken. Raises: ValueError, for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ValueError(f"{ca!r} holds no authorities for etcd: {_reason(error)}") from None
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except OSError as error:
            raise ValueError(f"{cert!r} is no certificate for etcd: {_reason(error)}") from None
    return context


def answer_of(endpoint: Endpoint, status: int, content: bytes) -> Fields:
    """What an answer holds. Raises: Lost, Refused, Garbled."""
    is_lost = status >= 500 or status == 408
    try:
        fields = fields_of(content)
    except Garbled:
        if status == 200:
            raise
        fields = {}
    if status == 200 and "error" not in fields:
        inner = fields.get("result", fields)
        if not isinstance(inner, dict):
            raise Garbled("'result' is no object")
        return inner
    found = fields.get("error")
    told = found if isinstance(found, dict) else fields
    message = told.get("message") or found
    text = message if isinstance(message, str) else f"status {status}"
    if is_lost or any(each in text for each in _NO_LEADER):
        raise Lost(endpoint.clean(text))
    raise Refused(endpoint.clean(text), False)


async def _connect(
    endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Try the addresses of a host, each for its share of the time. Raises: OSError."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    try:
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("that is no name of a host") from None
    left = list(dict.fromkeys(str(row[4][0]) for row in found))
    failure: OSError = OSError("the host has no address")
    while left:
        share_s = (ends_at - loop.time()) / len(left)
        address = left.pop(0)
        try:
            async with asyncio.timeout(share_s):
                return await asyncio.open_connection(
                    address, endpoint.port, limit=PIECE, ssl=tls,
                    server_hostname=endpoint.host if tls is not None else None,
                )  # fmt: skip
        except TimeoutError:
            failure = OSError(f"no connection within {timeout_s:g} s")
        except OSError as error:
            failure = error
    raise failure


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    return str(error.strerror or error)


def _split(text: str) -> tuple[str, str, str]:
    scheme, mark, rest = text.partition("://")
    return (scheme, mark, rest) if mark else ("", "", text)


def _shown(text: str) -> str:
    """An endpoint without user and password; what may be one for want of a host is none, too."""
    scheme, mark, rest = _split(text)
    place = re.sub(r":(?![0-9]+/?$).*", ":…", rest.rpartition("@")[2])
    return f"{scheme if scheme.isalpha() else ''}{mark}{place}"
