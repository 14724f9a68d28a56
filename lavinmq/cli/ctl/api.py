"""Requests of lavinmqctl to the HTTP API, over TCP, TLS or the control socket.

`choose` finds out where to go, `Api` goes there: one connection per command, opened by the first
request. Errors are raised with a text for people. Source: docs/lavinmqctl.md.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import socket
import stat
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from lavinmq.cli.ctl.errors import NOT_THE_LEADER, ApiError, CtlError, UnreachableError, UsageError
from lavinmq.config.control_paths import CONTROL_PATHS

PORTS = {"http": 15672, "https": 15671}
URI_PORTS = {"http": 80, "https": 443}
PAGE_ROWS = 10_000
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0
SERVICE_UNAVAILABLE = 503
BROKER_USER = "lavinmq"
CREDENTIALS = struct.Struct("iII")
"""Process, user and group, as Linux has them in struct ucred."""
NOT_THE_API = "The answer makes no sense: is this the API of a broker?"


class Target(NamedTuple):
    """Where the API is. `path` is the control socket, and then there is no host; `is_guessed`:
    nobody has named it."""

    scheme: str = "http"
    host: str = ""
    port: int = 0
    prefix: str = ""
    path: str = ""
    user: str | None = None
    password: str = ""
    is_guessed: bool = False

    @property
    def name(self) -> str:
        """The place for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{self.scheme}://{host}:{self.port}{self.prefix}"


def choose(options: Mapping[str, str], environ: Mapping[str, str]) -> Target:
    """Return the place that the options name, else the environment, else the control socket.

    Raises: UsageError. Source: docs/lavinmqctl.md.
    """
    uri_option = next((name for name in ("--uri", "--host") if options.get(name)), "")
    parts = [name for name in ("--hostname", "--port", "--scheme") if name in options]
    if uri_option and parts:
        raise UsageError(f"{parts[0]} cannot be used together with {uri_option}")
    uri = options.get(uri_option, "")
    # What is said on the command line wins over the environment, whatever it is.
    if not uri and not parts and "--control-unix-path" not in options:
        uri = environ.get("LAVINMQCTL_HOST", "")
    if uri:
        target = _from_uri(uri)
    elif parts:
        target = _from_parts(options)
    else:
        named = options.get("--control-unix-path") or environ.get("LAVINMQCTL_CONTROL_UNIX_PATH")
        target = Target(path=named or _control_path(), is_guessed=not named)
    if "--user" in options:
        return target._replace(user=options["--user"], password=options.get("--password", ""))
    if "--password" in options:
        target = target._replace(password=options["--password"])
    return target


def _control_path() -> str:
    """The first of the usual control sockets that is there, else the last."""
    return next((path for path in CONTROL_PATHS if os.path.exists(path)), CONTROL_PATHS[-1])


def _from_uri(uri: str) -> Target:
    try:
        parts = urlsplit(uri if "://" in uri else f"http://{uri}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"Invalid URI: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise UsageError("Invalid URI: it has to be like http://user:password@host:15672")
    return Target(
        parts.scheme, parts.hostname, port or URI_PORTS[parts.scheme], parts.path.rstrip("/"),
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
    )  # fmt: skip


def _from_parts(options: Mapping[str, str]) -> Target:
    scheme = options.get("--scheme", "http")
    if scheme not in PORTS:
        raise UsageError(f"Invalid scheme: {scheme}")
    text = options.get("--port", str(PORTS[scheme]))
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise UsageError(f"Invalid port: {text}")
    return Target(scheme, options.get("--hostname", "localhost"), int(text))


def path_of(*parts: str) -> str:
    """Return a path of the API; every part is encoded, also a slash in it."""
    # Bytes on the command line that are no UTF-8 are sent as they are.
    return "/api/" + "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)


class Answer(NamedTuple):
    """A successful answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The content. Raises: CtlError for anything but JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise CtlError(NOT_THE_API) from None


class Api:
    """The API at one place."""

    def __init__(self, target: Target) -> None:
        self.notes: list[str] = []
        """What the broker has said beside its answers, for people."""
        self._target = target
        self._connection: http.client.HTTPConnection | None = None

    def get(self, *parts: str, **query: str) -> Any:
        """Return what is there. Raises: CtlError."""
        path = path_of(*parts) + (f"?{urlencode(query)}" if query else "")
        return self.request("GET", path).json()

    def record(self, *parts: str) -> dict[str, Any]:
        """Return the object that is there. Raises: CtlError, also for anything else."""
        answer = self.get(*parts)
        if not isinstance(answer, dict):
            raise CtlError(NOT_THE_API)
        return answer

    def rows(self, *parts: str, **query: str) -> Iterator[dict[str, Any]]:
        """Return a list, fetched in pages. Raises: CtlError."""
        page = 1
        while True:
            answer = self.get(*parts, **query, page=str(page), page_size=str(PAGE_ROWS))
            is_whole = isinstance(answer, list)  # some lists are short and come without pages
            items = answer if is_whole else _field(answer, "items", list)
            for item in items:
                if not isinstance(item, dict):
                    raise CtlError(NOT_THE_API)
                yield item
            if is_whole or page >= _field(answer, "page_count", int):
                return
            page += 1

    def put(self, *parts: str, body: object = None, **query: str) -> Answer:
        """Create or change something. Raises: CtlError."""
        path = path_of(*parts) + (f"?{urlencode(query)}" if query else "")
        return self.request("PUT", path, body)

    def delete(self, *parts: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Delete something. Raises: CtlError."""
        return self.request("DELETE", path_of(*parts), headers=headers)

    def request(
        self, method: str, path: str, body: object = None, *,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Send a request; a body of bytes is sent as it is, any other as JSON.

        Raises: UnreachableError, ApiError for an answer that is no success.
        """
        sent = {"Accept": "application/json", **self._login(), **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        elif method == "DELETE":
            sent["Content-Length"] = "0"
        connection = self._connected()
        try:
            connection.request(method, self._target.prefix + path, data, sent)
            response = connection.getresponse()
            answer = Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"No answer from {self._target.name}: {reason}") from error
        if response.will_close:
            self.close()
        if not 200 <= answer.status < 300:
            raise _error(answer, response.reason)
        note = response.headers.get("Lavinmq-Note")
        if note:
            self.notes.append(unquote(note))
        return answer

    @contextmanager
    def download(self, path: str, body: bytes) -> Iterator[BinaryIO]:
        """What comes in answer to a POST, as it comes. Raises: as `request`."""
        connection = self._connected()
        try:
            try:
                connection.request(
                    "POST",
                    self._target.prefix + path,
                    body,
                    {**self._login(), "Content-Type": "text/plain"},
                )
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
                raise UnreachableError(f"No answer from {self._target.name}: {reason}") from error
            if response.status != 200:
                raise _error(Answer(response.status, response.read()), response.reason)
            yield response
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _login(self) -> dict[str, str]:
        if self._target.user is None:
            return {}
        login = f"{self._target.user}:{self._target.password}"
        encoded = b64encode(login.encode("utf-8", "surrogateescape")).decode()
        return {"Authorization": f"Basic {encoded}"}

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> http.client.HTTPConnection:
        target = self._target
        if target.path:
            connection: http.client.HTTPConnection = _UnixConnection(target.path)
        elif target.scheme == "https":
            connection = http.client.HTTPSConnection(
                target.host, target.port, timeout=CONNECT_TIMEOUT_S
            )
        else:
            connection = http.client.HTTPConnection(
                target.host, target.port, timeout=CONNECT_TIMEOUT_S
            )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _unreachable(target, error) from error
        if target.is_guessed:
            try:
                _refuse_strangers(connection.sock, target.path)
            except CtlError:
                connection.close()
                raise
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        return connection


def _refuse_strangers(sock: socket.socket, path: str) -> None:
    """Where everybody may make a socket, somebody may wait for the passwords that are sent there.

    Raises: CtlError.
    """
    if not os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH:
        return
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(peer)
    trusted = {0, os.geteuid()}
    with suppress(KeyError):
        trusted.add(pwd.getpwnam(BROKER_USER).pw_uid)
    if user not in trusted:
        raise CtlError(
            f"{path} is the socket of the user with the id {user}, who is neither root nor"
            f" {BROKER_USER} nor you. If that is your broker, name it: --control-unix-path {path}"
        )


def _field(answer: Any, name: str, kind: type) -> Any:
    """Return a field of an object. Raises: CtlError if it is not there, or of another kind."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise CtlError(NOT_THE_API)
    return value


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        self.sock.connect(self._path)


def _unreachable(target: Target, error: OSError) -> UnreachableError:
    if target.path and isinstance(error, FileNotFoundError):
        return UnreachableError(f"{target.path} not found. Is LavinMQ running?")
    if target.path and isinstance(error, PermissionError):
        return UnreachableError(
            f"{target.path} may not be used by {_own_name()}."
            " Run this as root or as the user that LavinMQ runs as."
        )
    if target.path and isinstance(error, ConnectionRefusedError):
        return UnreachableError(f"Nobody listens on {target.path}. Is LavinMQ running?")
    reason = error.strerror or str(error)
    return UnreachableError(f"Cannot connect to {target.name}: {reason}")


def _own_name() -> str:
    return f"the user with the id {os.geteuid()}"


def _error(answer: Answer, phrase: str) -> ApiError:
    """Return the error for an answer that is none of 2xx."""
    reason, details = _reason(answer), _details(answer)
    text = f"{answer.status} - {phrase}"
    if details:
        text = f"{text}: {len(details)} entries cannot be"
    elif reason.startswith(f"{phrase}: "):
        text = f"{answer.status} - {reason}"
    elif reason and reason not in (phrase, f"{answer.status} {phrase}"):
        text = f"{text}: {reason}"
    is_check = answer.body.startswith(b"{")
    is_follower = answer.status == SERVICE_UNAVAILABLE and not is_check
    error = ApiError(answer.status, reason, text, NOT_THE_LEADER if is_follower else 1)
    error.details = details
    return error


def _details(answer: Answer) -> list[str]:
    """What is wrong where, if the broker says it of several places."""
    try:
        errors = json.loads(answer.body)["errors"]
        return [": ".join(filter(None, (each["place"], each["reason"]))) for each in errors]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []


def _reason(answer: Answer) -> str:
    try:
        content = json.loads(answer.body)
        return str(content["reason"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return answer.body.decode(errors="replace").strip()[:2000]
