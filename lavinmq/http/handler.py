"""One request from its first byte to its answer: log-in, size of the body, rights, errors.

Nobody who has not logged in, or may not use the endpoint, can make the broker keep a body, and no
endpoint gets a longer one than it needs. Everything that an endpoint raises
becomes an answer; what is a bug of ours is logged and answered with 500.
Source: docs/http-api.md.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from orjson import JSONDecodeError
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler, stream_request_body

from lavinmq import __version__
from lavinmq.errors import DefinitionsError, ProtocolError
from lavinmq.files.saving import gathered
from lavinmq.http import encoding, fields, listing
from lavinmq.http.access import cors, login, owned
from lavinmq.http.access.origin import Origin
from lavinmq.http.call import Call, Reply
from lavinmq.http.encoding import Pieces
from lavinmq.http.errors import ApiError, bad_request, from_protocol, no_thread, too_large
from lavinmq.http.long_string import LongString, Search, TooWideError
from lavinmq.http.routes import ROUTES, Route
from lavinmq.process import log
from lavinmq.process.worker import NoThreadError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lavinmq.auth.identity import Identity
    from lavinmq.broker import Broker

JSON: Final = "application/json"
SENT_AT_ONCE: Final = 128 << 10
UNREAD_BODY: Final = 64 << 10
"""Of a body that nobody wants; what is longer ends the connection."""
MAX_DIGITS: Final = 20
FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-Ip")
"""What proxies say of their clients. Anybody can write it, so that it gives nothing; it takes."""
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
LASTING: Final = frozenset(
    ["text/event-stream", "application/x-ndjson", "application/octet-stream"]
)
"""Types of answers that last as long as their reader wants or takes."""
_log = log.get("lmq.http.server")
_audit = log.get("lmq.http.audit")


class Handler(RequestHandler):
    """What all requests have in common. Its settings: `broker`, on a node that is one, `config`,
    and `origin`, which listener."""

    SUPPORTED_METHODS = METHODS
    lasts = False
    """Whether how long the answer takes is no latency."""

    @property
    def broker(self) -> Broker:
        """The broker."""
        broker: Broker = self.application.settings["broker"]
        return broker

    @property
    def origin(self) -> Origin:
        """What is known about the listener."""
        origin: Origin = self.application.settings["origin"]
        return origin

    @property
    def is_unix(self) -> bool:
        """Whether the request comes by a unix socket."""
        connection: Any = self.request.connection
        return bool(connection.context.address_family == socket.AF_UNIX)

    @property
    def is_loopback(self) -> bool:
        """Whether the request comes from this machine, as far as it says so itself: a proxy here
        makes everybody come from here, and tells that it does."""
        if any(name in self.request.headers for name in FORWARDED):
            return False
        ip = self.request.remote_ip or ""
        return self.is_unix or ip == "::1" or ip.startswith(("127.", "::ffff:127."))

    @property
    def address(self) -> str:
        """The peer's address, as far as log-ins are counted by it."""
        ip = self.request.remote_ip or ""
        return "127.0.0.1" if self.is_unix else ip.removeprefix("::ffff:")

    def set_default_headers(self) -> None:
        """Say what it is no more than needed."""
        self.clear_header("Server")
        self.clear_header("Content-Type")
        if self.request.protocol == "https":
            self.set_header("Strict-Transport-Security", "max-age=31536000")
        allowed = self.application.settings["config"].cors_allowed_origins
        for name, value in cors.answer_headers(allowed, self.request.headers.get("Origin")).items():
            self.set_header(name, value)

    def compute_etag(self) -> str | None:
        """None: answers change all the time."""
        return None

    def _clear_representation_headers(self) -> None:
        """Keep the type of an answer without content: clients have always got it."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What Tornado itself refuses, such as an unknown method."""
        error = kwargs.get("exc_info", (None, None))[1]
        if status_code >= 500:
            _log.error("bug in %s %s", self.request.method, self.request.path, exc_info=error)
        self.finish_error(ApiError(status_code, "bad_request", self._reason))

    def log_exception(self, *_: Any) -> None:
        """`write_error` says it."""

    def finish_error(self, error: ApiError) -> None:
        """Send an error."""
        self.set_status(error.status)
        self.set_header("Content-Type", JSON)
        if error.error:
            said = {"error": error.error, "reason": error.reason, **error.more}
            self.finish(encoding.encode(said))
        else:
            self.finish()

    def challenge(self) -> None:
        """401. Programs may wait to be asked before they log in; a browser would ask its user."""
        self.set_status(401)
        if "Sec-Fetch-Site" not in self.request.headers:
            self.set_header("WWW-Authenticate", 'Basic realm="LavinMQ"')

    def finish_no_path(self) -> None:
        """Nothing has that path: no resource, so no JSON."""
        self.set_status(404)
        self.set_header("Content-Type", "text/plain")
        self.finish("" if self.request.method == "HEAD" else "404 Not Found\n")

    async def login(self) -> Identity | None:
        """The user of the request. Credentials that were sent count before a cookie's token."""
        oauth = self.broker.chain.oauth
        if (
            oauth is not None
            and self.origin is not Origin.CONTROL
            and self.request.path.startswith("/api/")
            and login.credentials(self.request) is None
            and login.session_token(self.request) is None
        ):
            from lavinmq.http.access import cookies  # only for users who log in elsewhere

            return await cookies.user_of(self, self.broker.config, oauth)
        return await login.user_of(
            self.broker, self.request, self.address, self.is_loopback, self.origin is Origin.CONTROL
        )


@stream_request_body
class ApiHandler(Handler):
    """`/api/…`: finds the endpoint and calls it."""

    user: Identity | None = None
    """Who sends the request; endpoints are called for somebody only."""
    _route: Route | None = None
    _call: Call | None = None
    _limit = UNREAD_BODY
    """Bytes of the body, as far as it is read."""
    _refusal: ApiError | None = None
    """What is answered when the body has come, which nobody keeps."""

    is_gone = False
    """Whether the client has hung up."""
    on_gone: Callable[[], None]
    """Is called then; set by who works on an answer."""

    def initialize(self) -> None:
        """The client may go before `prepare` is called, or without that."""
        self.on_gone = _nothing

    def on_connection_close(self) -> None:
        """Tell who works on an answer that it may stop."""
        self.is_gone = True
        super().on_connection_close()
        self.on_gone()

    def cut_off(self) -> None:
        """Close the connection of who has not taken what was sent: nobody waits for that."""
        connection: Any = self.request.connection
        if connection.stream is not None and connection.stream.writing():
            connection.stream.close()

    def end(self) -> None:
        """An answer that lasts is over. Idempotent."""
        self.cut_off()
        if not self._finished and not self.is_gone:
            self.finish()

    async def prepare(self) -> None:
        """Before the body comes: who is it, and is there anything at that path?"""
        self._body = bytearray()  # grows where it is: joining megabytes would hold up others
        self._size = 0
        if self.broker.config.cors_allowed_origins and cors.is_preflight(
            self.request.method, self.request.headers
        ):
            for name, value in cors.preflight_headers().items():
                self.set_header(name, value)
            self.set_status(204)
            self.finish()
            return
        user = await self.login()
        if user is None:
            if self._has_long_body():
                self.set_header("Connection", "close")  # its body is not read
                self.challenge()
                self.finish()
            return
        self.user = user
        self._find(user)
        config, route = self.broker.config, self._route
        is_large = route is not None and route.has_large_body
        if self._refusal is None:
            self._limit = config.max_body_size
            if not is_large:
                self._limit = min(self._limit, config.max_json_size)
        connection = self.request.connection
        connection.set_max_body_size(self._limit)  # type: ignore[union-attr]
        length = _length(self.request.headers.get("Content-Length", ""))
        if length is not None and length > self._limit:
            self.set_header("Connection", "close")  # its body is not read
            if self._call is None:
                self.finish_no_path()
                return
            self._set_api_headers()
            self.finish_error(self._refusal or too_large(self._limit))

    def _find(self, user: Identity) -> None:
        """Find the endpoint; whether the caller may use it is known before the body comes."""
        request = self.request
        found = ROUTES.find(request.method or "", request.path)
        if found is None:
            return
        self._route, path = found
        self.lasts = self._route.content in LASTING
        call = self._call = Call(
            self.broker, user, self._route, path, _query(request.query), request.headers
        )
        call.handler = self
        call.session = login.session_of(self.broker, request)
        try:
            call.check_rights()
        except ApiError as error:
            self._refusal = error

    def _has_long_body(self) -> bool:
        """Whether it is not worth reading what somebody sends who is not let in."""
        length = _length(self.request.headers.get("Content-Length", "0"))
        is_short = length is not None and length <= UNREAD_BODY
        return not is_short or "Transfer-Encoding" in self.request.headers

    def data_received(self, chunk: bytes) -> None:
        """A piece of the body; nobody keeps that of somebody who is not let in."""
        if self.user is None or self._refusal is not None:
            return
        self._size += len(chunk)
        if self._size > self._limit:
            self._refusal = too_large(self._limit)
            self._body.clear()
        else:
            self._body += chunk

    async def _answer(self) -> None:
        """The whole request is here."""
        if self.user is None:
            self.challenge()
            self.finish()
            return
        self._set_api_headers()
        try:
            await self._perform(self._call)
        except ApiError as error:
            self.finish_error(error)
        except ProtocolError as error:
            self.finish_error(from_protocol(error))
        except NoThreadError as error:
            _log.error("%s %s: %s", self.request.method, self.request.path, error)
            if not self._finished:
                self.finish_error(no_thread(error))
        except DefinitionsError as error:
            _log.error("%s %s: %s", self.request.method, self.request.path, error)
            self.finish_error(ApiError(500, "internal_server_error", str(error)))
        except asyncio.CancelledError:
            raise
        except StreamClosedError:
            pass  # who asked has gone
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the connection
            answer = self._refused_for_vhost()
            if answer is None:
                _log.error("bug in %s %s", self.request.method, self.request.path, exc_info=error)
                answer = ApiError(500, "internal_server_error", "Internal Server Error")
            if not self._finished:
                self.finish_error(answer)

    def _refused_for_vhost(self) -> ApiError | None:
        """What the caller would be told now if the virtual host has gone in which something was
        being done, and has failed for that."""
        call = self._call
        if call is not None and call.is_vhost_gone:
            try:
                call.check_rights()
            except ApiError as error:
                return error
        return None

    get = post = put = delete = head = options = patch = _answer

    def _set_api_headers(self) -> None:
        self.set_header("LavinMQ-Version", __version__)
        self.set_header("Content-Type", JSON)

    async def _perform(self, call: Call | None) -> None:
        if call is None:
            self.finish_no_path()
            return
        if self._refusal is not None:
            raise self._refusal
        if call.is_log_in_over:  # this and the rights may have changed while the body came
            self.challenge()
            self.finish()
            return
        call.check_rights()
        await owned.find(call)
        call.content = self._content()
        if call.route.fields is not None and self._size:
            self.check_content_type()
        payload = await self._payload(call)
        if payload is None:
            call.parse_body()
        else:
            call.take_payload(payload)
        async with gathered():  # what is changed is on disk when it is answered
            answer = call.route.endpoint(call)
            if inspect.isawaitable(answer):
                answer = await answer
        if not self._finished:
            await self._send(call, answer)

    async def _payload(self, call: Call) -> LongString | None:
        """The payload of a message, if long; nothing else may be. Raises: ApiError 400, 413."""
        limit = self.broker.config.max_json_size
        if call.route.fields is None or self._size <= limit:
            return None
        search = Search(call.content or b"", limit)
        try:
            async for _ in listing.in_portions(search.steps()):
                pass
        except TooWideError:
            raise too_large(limit) from None
        except JSONDecodeError:
            raise bad_request("Malformed JSON") from None
        return search.found

    def on_finish(self) -> None:
        """The answer is on its way: note who has changed what, or was kept from it.

        The body is not noted, it may hold secrets; of what is behind the question mark only a dry
        run is, which changes nothing.
        """
        if self.user is not None and self._route is not None and self._route.is_change:
            is_dry = fields.to_boolean(_query(self.request.query).get("dry_run", [""])[-1])
            _audit.info(
                "user %r from %s: %s %s%s: %d", self.user.name, self.address, self.request.method,
                self.request.path, " (dry run)" if is_dry else "", self.get_status(),
            )  # fmt: skip

    def _content(self) -> bytes | bytearray | None:
        """The body; None when none was announced."""
        headers = self.request.headers
        if not self._body and not {"Content-Length", "Transfer-Encoding"} & set(headers):
            return None
        body, self._body = self._body, bytearray()
        return body

    def check_content_type(self) -> None:
        """Raises: ApiError 415."""
        given = self.request.headers.get("Content-Type", "")
        if given.partition(";")[0].strip().lower() not in ("", JSON):
            raise ApiError(
                415, "unsupported_content_type", f"Unsupported content type {given}"
            )  # fmt: skip

    async def _send(self, call: Call, answer: Any) -> None:
        self.set_header("Content-Type", JSON)
        content: Any
        if isinstance(answer, listing.Listing):
            page, rows = await listing.answer(answer, listing.wish(call.query))
            content = await encoding.encode_list(page, rows)
        elif isinstance(answer, Reply):
            self.set_status(answer.status)
            for name, value in answer.headers.items():
                self.set_header(name, value)
            content = answer.content
            if not isinstance(content, bytes | Pieces):
                content = b"" if content is None else encoding.encode(content)
        else:
            content = answer if isinstance(answer, Pieces) else encoding.encode(answer)
        await self._send_content(call, content)

    async def _send_content(self, call: Call, content: bytes | Pieces) -> None:
        """Finish the answer, compressed if the client takes that and it pays.

        Raises: ApiError 403 when who only looks may not any more.
        """
        if not call.route.is_change:
            call.check_still()
        pieces = content if isinstance(content, Pieces) else Pieces([content])
        accepted = self.request.headers.get("Accept-Encoding", "")
        if pieces.size >= encoding.COMPRESS_FROM and "gzip" in accepted:
            pieces = await encoding.compressed(pieces)
            self.set_header("Content-Encoding", "gzip")
            self.set_header("Vary", "Accept-Encoding")
        last = None
        if pieces.size <= SENT_AT_ONCE:
            last = b"".join(pieces.parts) or None
        else:
            # The socket of a fast reader takes megabytes in one go: others wait meanwhile.
            self.set_header("Content-Length", str(pieces.size))
            async for part in pieces.slices(SENT_AT_ONCE):
                if not (call.route.is_change or call.is_allowed_still()):
                    self.request.connection.stream.close()  # type: ignore[union-attr]
                    return
                self.write(bytes(part))
                await self.flush()
        sent: Awaitable[None] = self.finish(last)
        await sent


class Robots(Handler):
    """`/robots.txt`: nothing here is for search engines."""

    def get(self) -> None:
        """Say so."""
        self.set_header("Content-Type", "text/plain;charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.finish("User-agent: *\nDisallow: /\n")


@stream_request_body
class Refused(Handler):
    """What a page of others asks for; its body is not read."""

    def initialize(self, error: ApiError) -> None:
        """Args: error: why."""
        self._error = error

    def prepare(self) -> None:
        """Say why, also to the operator."""
        _log.warning("%s %s from %s refused: %s", self.request.method, self.request.path,
                     self.address, self._error.reason)  # fmt: skip
        self.set_header("Connection", "close")
        self.finish_error(self._error)

    def data_received(self, chunk: bytes) -> None:
        """Nobody keeps it."""


class NotFound(Handler):
    """Any other path."""

    async def prepare(self) -> None:
        """Say that there is nothing, on a management port only to whom it knows."""
        if self.origin is not Origin.METRICS and await self.login() is None:
            self.challenge()
            self.finish()
        else:
            self.finish_no_path()


def _nothing() -> None:
    """Most endpoints answer at once."""


def _length(text: str) -> int | None:
    """Bytes of a body; None for what is no number, which is refused when the body is read."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else None


def _query(text: str) -> dict[str, list[str]]:
    return parse_qs(text, keep_blank_values=True, errors="surrogateescape")
