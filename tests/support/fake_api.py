"""A stand-in for the HTTP API: records requests and gives the answers it was told to.

Used by the tests of lavinmqctl. It listens on a TCP port and on a Unix socket at once.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, NamedTuple

NO_CONTENT = 204


class Request(NamedTuple):
    """A request as it came; the path with its query, not decoded."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class FakeApi:
    """Answers by method and path; what it was not told of is 404."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self.path = ""
        self._answers: dict[tuple[str, str], list[tuple[int, bytes]]] = {}

    def answer(self, method: str, path: str, status: int = 200, content: object = b"") -> None:
        """Answer so from now on; of several answers each is given once, the last for ever."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._answers.setdefault((method, path), []).append((status, body))

    def take(self, request: Request) -> tuple[int, bytes]:
        """Note a request and return its answer; a path is also found without its query."""
        self.requests.append(request)
        bare = request.path.partition("?")[0]
        for path in (request.path, bare):
            answers = self._answers.get((request.method, path))
            if answers:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return 404, b'{"error":"Object Not Found","reason":"Not Found"}'

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Method and path of each request."""
        return [(request.method, request.path) for request in self.requests]


@contextmanager
def serving(directory: Path, certificate: Path | None = None) -> Iterator[FakeApi]:
    """Give an API that listens until the end; its socket lies in the directory.

    With a certificate and its key in a file the TCP port speaks TLS.
    """
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            status, content = api.take(
                Request(self.command, self.path, body, dict(self.headers.items()))
            )
            self.send_response(status)
            if status != NO_CONTENT:
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if content:
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def address_string(self) -> str:
            return "client"  # a Unix socket has none

    class UnixServer(ThreadingMixIn, UnixStreamServer):
        daemon_threads = True

    api.path = str(directory / "api.sock")
    tcp = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tcp.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        tcp.socket = context.wrap_socket(tcp.socket, server_side=True)
    api.port = tcp.server_address[1]
    servers = (tcp, UnixServer(api.path, Handler))
    threads = [threading.Thread(target=each.serve_forever, args=(0.02,)) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield api
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
