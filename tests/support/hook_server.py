"""A server for webhooks that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float


Answer = Callable[[Asked], "tuple[int, dict[str, str], bytes]"]


class HookServer:
    """Use as a context manager; `answer` may be replaced at any time."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Answer = lambda _: (204, {}, b"")
        self.connections = 0
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                with outer._lock:
                    outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", "0"))
                headers = {key.lower(): value for key, value in self.headers.items()}
                asked = Asked(self.path, headers, self.rfile.read(length), time.monotonic())
                with outer._lock:
                    outer.asked.append(asked)
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                try:
                    status, more, body = outer.answer(asked)
                finally:
                    with outer._lock:
                        outer.at_once -= 1
                if status == 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                if status not in (204, 304):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if status not in (204, 304):
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Not to the terminal."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """Clients may go at any time."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def uri(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HookServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
