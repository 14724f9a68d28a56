"""The broker's HTTP API, as far as planning needs it: what streams there are and what they hold.

By the driver's planning process, a few calls per batch; never by tasks. Each call has a time-out
and is tried again, because an exception while planning ends a streaming query at once. Errors are
one line that names host and vhost, never the password. Blocking; one connection, made when needed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any
from urllib.parse import quote, urlsplit

from lavinmq.spark.errors import SourceError
from lavinmq.spark.offsets import Bounds, Segment
from lavinmq.spark.options import HTTP_PORT, HTTPS_PORT, ConnectionOptions

TIMEOUT_S = 10.0
PAUSES_S = (0.5, 1.0, 2.0)  # before the first, second and third retry
ANSWER_MAX = 64 * 1024 * 1024
PAGE_ROWS = 500  # of a list; RabbitMQ gives no more
ROWS_MAX = 1_000_000


class NotServed(SourceError):
    """There is no HTTP API for us: nobody listens there, or this user may not use it."""


class Refused(NotServed):
    """The HTTP API does not know this user, or not as one who may use it."""


class Admin:
    """What the HTTP API of one broker tells about the streams of one vhost.

    `is_patient`: it is there, so try again when nobody answers.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        is_patient: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._pauses_s = PAUSES_S if is_patient else ()
        self._sleep = sleep
        self._vhost = quote(options.vhost, safe="")
        self._connection: http.client.HTTPConnection | None = None
        self._urls = http_urls(options)

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def queue(self, name: str) -> tuple[str, Bounds | None] | None:
        """Return the type of a queue, and what its stream holds as far as the broker tells; or None
        when there is none of that name."""
        path = f"/api/queues/{self._vhost}/{_escape(name)}"
        found = self._get(path)
        with self._understanding(path):
            return None if found is None else (queue_type(found), bounds_of(found))

    def queues(self) -> dict[str, str]:
        """Return name and type of each queue of the vhost."""
        path = f"/api/queues/{self._vhost}"
        found = self._list(f"{path}?columns=name,type,arguments&")
        if found is None:
            raise SourceError(f"{self}: there is no such vhost")
        with self._understanding(path):
            return {queue["name"]: queue_type(queue) for queue in found}

    def bound_queues(self, exchange: str) -> list[str]:
        """Return the names of the queues bound to the exchange, sorted."""
        path = f"/api/exchanges/{self._vhost}/{_escape(exchange)}"
        if self._get(path) is None:
            raise SourceError(f"{self}: there is no exchange {exchange!r}")
        found = self._list(f"{path}/bindings/source?")
        with self._understanding(path):
            kinds = (each for each in found or () if each["destination_type"] == "queue")
            return sorted({str(each["destination"]) for each in kinds})

    def offset_at(self, queue: str, time_ms: int) -> int | None:
        """Return the first offset received at that time or later; None if this is not offered.

        Without such a message it is the offset that the next one gets.
        """
        path = f"/api/queues/{self._vhost}/{_escape(queue)}/stream/offset?timestamp={time_ms}"
        found = self._get(path)
        with self._understanding(path):
            return None if found is None else int(found["offset"])

    def segments(self, queue: str, start: int, end: int) -> list[Segment]:
        """Return the segments that have offsets of [start, end), oldest first; none if this is not
        offered. Of very many the broker may tell the first only.
        """
        path = (
            f"/api/queues/{self._vhost}/{_escape(queue)}/stream/segments?offset={start}&end={end}"
        )
        found = self._get(path)
        with self._understanding(path):
            parts = [
                (int(part["first_offset"]), int(part["messages"]), int(part["bytes"]))
                for part in found or ()
                if part["messages"]
            ]
        return [Segment(first, first + n, size) for first, n, size in sorted(parts)]

    def stored(self, queue: str, consumer: str) -> int | None:
        """Return the next offset stored for a consumer's name, or None. Raises SourceError."""
        path = f"/api/queues/{self._vhost}/{_escape(queue)}/stream/consumers"
        found = self._list(f"{path}?")
        if found is None:
            raise SourceError(f"{self}: this broker does not tell the offsets it stores")
        with self._understanding(path):
            return next((int(each["offset"]) for each in found if each["name"] == consumer), None)

    def consumers(self, queue: str) -> list[Mapping[str, Any]]:
        """Return `name`, `offset` and `lag` of each stored position; none if not offered."""
        return self._list(f"/api/queues/{self._vhost}/{_escape(queue)}/stream/consumers?") or []

    def store(self, queue: str, consumer: str, offset: int) -> None:
        """Store the next offset under a consumer's name. Raises SourceError."""
        path = f"/api/queues/{self._vhost}/{_escape(queue)}/stream/consumers/{_escape(consumer)}"
        status, _ = self._request("PUT", path, {"offset": offset})
        if status >= 300:
            raise SourceError(f"{self}: storing the offset of {queue!r} was answered {status}")

    def __str__(self) -> str:
        hosts = ", ".join(urlsplit(url).netloc for url in self._urls)
        return f"HTTP API {hosts} vhost '{self._options.vhost}'"

    # ---- calls -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _understanding(self, path: str) -> Iterator[None]:
        """Tell in one line that an answer has another form than it should."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SourceError(f"{self}: the answer to {path} is not understood") from None

    def _list(self, path: str) -> list[Any] | None:
        """Return all rows of a list, asked for in pages, or None as `_get`. A broker that knows no
        pages gives all of them at once. Args: path: with its query, which goes on."""
        rows: list[Any] = []
        for page in count(1):
            found = self._get(f"{path}page={page}&page_size={PAGE_ROWS}")
            if found is None or isinstance(found, list):
                return found
            with self._understanding(path):
                rows += found["items"]
                if not found["items"] or page >= found["page_count"]:
                    return rows
            if len(rows) > ROWS_MAX:
                raise SourceError(f"{self}: the answer to {path} has more than {ROWS_MAX} rows")
        return None

    def _get(self, path: str) -> Any:
        """Return the answer, or None for 404 and for a method that is not there."""
        status, answer = self._request("GET", path)
        if status in (404, 405):
            return None
        if status != 200:
            raise SourceError(f"{self}: {path} was answered {status}")
        return answer

    def _request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and JSON; tries every host, then again. Raises SourceError."""
        reason = ""
        for pause_s in (*self._pauses_s, None):
            for url in self._urls:
                try:
                    status, content = self._exchange(url, method, path, body)
                except (OSError, http.client.HTTPException) as error:
                    self.close()
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    continue
                if status in (401, 403):
                    user = self._options.user
                    raise Refused(f"{self}: user {user!r} was refused with {status}")
                if status < 500:
                    return status, self._decode(content)
                reason = f"answered {status}"
            if pause_s is not None:
                self._sleep(pause_s)
        raise NotServed(f"{self}: {reason}")

    def _exchange(self, url: str, method: str, path: str, body: object) -> tuple[int, bytes]:
        connection = self._connection or http_connection(self._options, url, TIMEOUT_S)
        # Kept only while it works: a broken one would be used for the next host.
        self._connection = None
        headers = login(self._options)
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, urlsplit(url).path + path, content, headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_MAX + 1)
            if len(answer) > ANSWER_MAX:
                raise SourceError(f"{self}: the answer to {path} is larger than {ANSWER_MAX} bytes")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return response.status, answer

    def _decode(self, content: bytes) -> Any:
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise NotServed(f"{self}: what answers there is no management API") from None


def http_urls(options: ConnectionOptions) -> list[str]:
    """Return where the management API may be: at `httpUrl`, or on the usual port of each node.

    Where AMQP is encrypted this is, too: the password goes with each request.
    """
    if options.http_url:
        return [options.http_url]
    hosts: dict[str, bool] = {}
    for node in options.nodes:
        hosts.setdefault(f"[{node.host}]" if ":" in node.host else node.host, node.tls)
    return [
        f"https://{host}:{HTTPS_PORT}" if is_tls else f"http://{host}:{HTTP_PORT}"
        for host, is_tls in hosts.items()
    ]


def http_connection(
    options: ConnectionOptions, url: str, timeout_s: float
) -> http.client.HTTPConnection:
    """Return a connection to the API, not yet open, with the TLS that the options ask for."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_s)
    context = ssl.create_default_context(cafile=options.ssl_ca_file)
    if not options.ssl_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.ssl_cert_file:
        context.load_cert_chain(options.ssl_cert_file, options.ssl_key_file)
    port = parts.port or 443
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def login(options: ConnectionOptions) -> dict[str, str]:
    """Return the header that logs the user in."""
    given = f"{options.user}:{options.secret()}".encode()
    return {"Authorization": "Basic " + base64.b64encode(given).decode()}


def queue_type(queue: Mapping[str, Any]) -> str:
    """Return the type that the details of a queue tell, `classic` by default."""
    arguments = queue.get("arguments") or {}
    return str(queue.get("type") or arguments.get("x-queue-type") or "classic")


def bounds_of(queue: Mapping[str, Any]) -> Bounds | None:
    """Return what the details of a queue tell of its stream; None when they tell nothing."""
    stream = queue.get("stream")
    if not isinstance(stream, dict) or stream.get("last_offset") is None:
        return None
    end = int(stream["last_offset"]) + 1
    first = stream.get("first_offset")
    created = stream.get("created")
    epochs = stream.get("epochs") or ()
    # One that holds nothing has no first offset, or one behind its last.
    return Bounds(
        end if first is None else min(int(first), end),
        end,
        None if created is None else str(created),
        tuple((int(each["epoch"]), int(each["first_offset"])) for each in epochs),
    )


def _escape(name: str) -> str:
    return quote(name, safe="")
