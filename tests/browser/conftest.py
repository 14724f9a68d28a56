"""A real browser in front of a broker: Chromium, steered by Playwright.

It is the one without a window that `make test` unpacks, which does the same by a third of the work,
or Debian's. It is found by its path, never downloaded. It lives as long as a
worker runs tests of this directory, one after the other: while it does, Playwright's event loop
counts as running in this thread, and tests of other directories start loops of their own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.support.broker import Broker

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VHOSTS = [{"name": "foo"}, {"name": "bar"}]
TIMEOUT_MS = 15_000
"""Until something is given up that a busy machine may do late. No test is slower for it."""
NODE_MODULES = Path(__file__).parent / "node_modules"
WITHOUT_WINDOW = NODE_MODULES / ".chromium/headless-shell"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The browser of this directory's tests."""
    path = next(filter(None, map(shutil.which, (str(WITHOUT_WINDOW), *NAMES))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, broker: Broker) -> Iterator[Any]:
    """A page of somebody who has not logged in, in a context of its own."""
    context = browser.new_context(
        base_url=broker.http_url, viewport={"width": 1400, "height": 900}, locale="en-US"
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    # Seen with what has failed.
    page.on("requestfailed", lambda request: print(f"{request.url}: {request.failure}"))
    page.on("console", lambda message: print(message.text))
    yield page
    context.close()


@pytest.fixture
def visitor(browser: Any, broker: Broker) -> Iterator[Any]:
    """A page of somebody who has not logged in."""
    with opened(browser, broker) as page:
        yield page


def log_in(page: Any, user: str = "guest", password: str = "guest") -> None:
    """Log in without the form."""
    given = {"username": user, "password": password}
    answer = page.context.request.post("/session", data=given)
    assert answer.status == 204, answer.text()


@pytest.fixture
def page(visitor: Any) -> Any:
    """A page of guest, who is an administrator; no script of it may fail."""
    log_in(visitor)
    errors: list[str] = []
    visitor.on("pageerror", lambda error: errors.append(str(error)))
    yield visitor
    assert errors == []


TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def until(page: Any, condition: str) -> None:
    """Wait until an expression is true; Playwright's own way is refused by the pages' policy."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never came true: {condition}")


class Visit:
    """Goes to one page after another, and waits until each has asked for all and shown it."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._waiting: set[Any] = set()
        page.on("request", self._asked)
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: self._waiting.discard(request))

    def __call__(self, address: str) -> None:
        """Go there, and load it also where only what is behind `#` differs from the page before."""
        here, there = urlsplit(self._page.url), urlsplit(address)
        if here.path == there.path:
            self._page.goto("about:blank")
        self._waiting.clear()
        self._page.goto(address)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is asked for, and what was answered is shown."""
        quiet = 0
        for _ in range(600):
            self._page.evaluate(TWO_FRAMES)  # scripts go on, and may ask for more
            quiet = 0 if self._waiting else quiet + 1
            if quiet == 2:
                return
        raise AssertionError([each.url for each in self._waiting])

    def answered(self) -> None:
        """Wait until nothing is asked for, on a page whose clock stands still."""
        quiet = 0
        for _ in range(TIMEOUT_MS // 50):
            self._page.wait_for_timeout(50)
            quiet = 0 if self._waiting else quiet + 1
            if quiet == 2:
                return
        raise AssertionError([each.url for each in self._waiting])

    def _asked(self, request: Any) -> None:
        if request.resource_type != "eventsource":  # which never ends
            self._waiting.add(request)


@pytest.fixture
def visit(visitor: Any) -> Visit:
    """Goes to pages and waits for them."""
    return Visit(visitor)


class Requests:
    """What a page asks for."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.all: list[Any] = []
        page.on("request", lambda request: self.all.append(request))

    def find(self, method: str, path: str) -> list[Any]:
        """The requests so far of a method and a path, what is behind `?` aside."""
        return [
            each for each in self.all if each.method == method and urlsplit(each.url).path == path
        ]

    def wait(self, method: str, path: str, n: int = 1, **query: str) -> Any:
        """Wait until there are so many, with that in their query. Returns: the last one."""
        for _ in range(TIMEOUT_MS // 50):
            found = [
                each for each in self.find(method, path)
                if query.items() <= dict(parse_qsl(urlsplit(each.url).query)).items()
            ]  # fmt: skip
            if len(found) >= n:
                return found[-1]
            self._page.wait_for_timeout(50)
        asked = [f"{each.method} {each.url}" for each in self.all]
        raise AssertionError(f"no {method} {path} {query} ({n}): {asked}")


@pytest.fixture
def requests(visitor: Any) -> Requests:
    """What the page of the test asks for."""
    return Requests(visitor)


Stub = Callable[..., None]


@pytest.fixture
def stub(visitor: Any) -> Stub:
    """Have the API answer a path with what is given, in place of the broker."""

    def put(path: str, content: Any = None, *, status: int = 200, headers: Any = None) -> None:
        visitor.route("**/api/live?*", lambda route: route.abort())  # which would tell the truth
        sent = {"Content-Type": "application/json"} | (headers or {})
        pattern = re.compile(rf"^https?://[^/]+{re.escape(path)}(\?.*)?$")
        visitor.route(
            pattern,
            lambda route: route.fulfill(status=status, json=content, headers=sent),
        )

    return put


@pytest.fixture
def refreshes(visitor: Any, requests: Requests, visit: Visit) -> Callable[[str, str], None]:
    """Check that a page asks again and again, each time within ten seconds of its own clock."""

    def check(address: str, path: str) -> None:
        visitor.clock.install()
        visitor.goto(address)
        for n in (1, 2, 3):
            requests.wait("GET", path, n)
            visit.answered()  # the answer plans the next one
            visitor.clock.run_for(10_000)

    return check


def listed(rows: list[Any], **counts: int) -> dict[str, Any]:
    """A page of a list, as the API answers."""
    n = len(rows)
    usual = {
        "items": rows, "filtered_count": n, "item_count": n, "page": 1, "page_count": 1,
        "page_size": 100, "total_count": n,
    }  # fmt: skip
    return usual | counts


def queue(name: str = "orders", vhost: str = "foo", **more: Any) -> dict[str, Any]:
    """A queue, as the API shows it."""
    shown: dict[str, Any] = {
        "name": name, "vhost": vhost, "durable": True, "auto_delete": False, "exclusive": False,
        "arguments": {}, "consumers": 0, "messages": 0, "messages_ready": 0, "state": "running",
        "messages_unacknowledged": 0, "total_bytes": 0, "message_stats": {},
    }  # fmt: skip
    return shown | more
