"""Proxies between browser and broker: one passes the stream of changes on, one holds it back."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Requests
from tests.support.api import Api
from tests.support.broker import Broker

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Proxy(ThreadingHTTPServer):
    """Reads all of an answer before it sends any, unless it is asked not to and obeys."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, broker: Broker, *, is_obedient: bool) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.broker = broker
        self.is_obedient = is_obedient
        self.upstream: list[http.client.HTTPConnection] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Relay(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Proxy

    def do_GET(self) -> None:
        """Pass on a request and its answer."""
        to = http.client.HTTPConnection(self.server.broker.host, self.server.broker.http_port)
        self.server.upstream.append(to)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        errors = (OSError, http.client.HTTPException, AttributeError, ValueError)
        with closing(to), suppress(*errors):
            to.request(self.command, self.path, body, dict(self.headers.items()))
            answer = to.getresponse()
            is_passed_on = self.server.is_obedient and answer.headers["X-Accel-Buffering"] == "no"
            content = b"" if is_passed_on else answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            while is_passed_on and (piece := answer.read1(65536)):
                self.wfile.write(piece)
                self.wfile.flush()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def behind(broker: Broker, page: Any) -> Iterator[Callable[..., Any]]:
    """Starts a proxy and returns its address; pages are told each second."""
    proxies: list[Proxy] = []

    def start(*, is_obedient: bool) -> str:
        proxies.append(Proxy(broker, is_obedient=is_obedient))
        threading.Thread(target=proxies[-1].serve_forever, daemon=True).start()
        page.add_init_script("localStorage.setItem('lmq.rate', '1000')")
        return proxies[-1].url

    yield start
    page.close()
    for proxy in proxies:
        proxy.shutdown()
        proxy.server_close()
        for each in proxy.upstream:
            if each.sock is not None:
                each.sock.shutdown(2)


@contextmanager
def temporary(broker: Broker, name: str) -> Iterator[None]:
    """A queue."""
    Api(broker)("PUT", f"/api/queues/%2F/{name}", {})
    yield
    Api(broker)("DELETE", f"/api/queues/%2F/{name}")


def test_a_proxy_is_asked_to_pass_the_stream_on(
    page: Any, behind: Callable[..., str], broker: Broker, requests: Requests
) -> None:
    page.goto(behind(is_obedient=True) + "/queues")
    asked = requests.wait("GET", "/api/live")
    expect(page.locator("#table tbody tr").first).to_be_attached()
    page.route("**/api/queues?*", lambda route: route.abort())

    with temporary(broker, "told-through-a-proxy"):
        expect(page.locator("#table")).to_contain_text("told-through-a-proxy")

    assert "no-transform" in asked.response().headers["cache-control"]
    expect(page.locator("#live-state")).to_have_text("")


def test_a_page_asks_and_says_so_when_a_proxy_holds_the_stream_back(
    page: Any, behind: Callable[..., str], broker: Broker, requests: Requests
) -> None:
    page.goto(behind(is_obedient=False) + "/queues")
    requests.wait("GET", "/api/live")

    with temporary(broker, "asked-for-through-a-proxy"):
        expect(page.locator("#table")).to_contain_text("asked-for-through-a-proxy")

    expect(page.locator("#live-state")).to_have_text("Asking", timeout=15_000)
    expect(page.locator("#live-state")).to_have_attribute("title", re.compile("proxy"))
