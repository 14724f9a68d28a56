"""The addresses of pages, and what goes with every answer of them.

A page is `static/shell.html` with a fragment of its own in it. No data of the broker is ever put
into HTML here: pages ask the API for it. Source: docs/pages.md; decision 0060.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

from lavinmq.http.access.login import COOKIE, session_token
from lavinmq.http.access.origin import Origin
from lavinmq.http.handler import Handler
from lavinmq.http.handler import NotFound as Unknown
from lavinmq.http.ui import files
from lavinmq.http.ui.session import SessionHandler
from lavinmq.process.worker import NoThreadError

POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
        "connect-src 'self'", "form-action 'none'", "base-uri 'none'", "frame-ancestors 'self'",
        "require-trusted-types-for 'script'",
    )
)  # fmt: skip
"""Scripts and styles are files of ours; none can be written into a page, nor any text as HTML. A
browser sends no form: one without its script would do so by an address, with what was typed."""
LOGIN: Final = "login"
"""Its page has the browser fetch what the overview needs, while somebody types."""
FOR_EVER: Final = "public, max-age=31536000, immutable"


class Place(NamedTuple):
    """A page: what the browser shows as its title; whether it has the frame, needs a log-in."""

    title: str
    has_frame: bool = True
    is_open: bool = False


PLACES: Final = {
    "overview": Place("Overview"),
    "nodes": Place("Nodes"),
    "logs": Place("Logs"),
    "connections": Place("Connections"),
    "connection": Place("Connection"),
    "channels": Place("Channels"),
    "channel": Place("Channel"),
    "consumers": Place("Consumers"),
    "mqtt": Place("MQTT"),
    "mqtt-session": Place("MQTT session"),
    "exchanges": Place("Exchanges"),
    "exchange": Place("Exchange"),
    "queues": Place("Queues"),
    "queue": Place("Queue"),
    "stream": Place("Stream"),
    "unacked": Place("Unacked"),
    "map": Place("Map"),
    "shovels": Place("Shovels"),
    "federation": Place("Federation"),
    "vhosts": Place("Virtual hosts"),
    "vhost": Place("Virtual host"),
    "users": Place("Users"),
    "user": Place("User"),
    "policies": Place("Policies"),
    "operator-policies": Place("Operator policies"),
    "login": Place("Log in", has_frame=False, is_open=True),
    "401": Place("Not allowed", has_frame=False, is_open=True),
    "404": Place("Not found", has_frame=False, is_open=True),
}
DOCS: Final = Place("HTTP API", has_frame=False, is_open=True)


def document(found: files.Files, name: str, place: Place, root: str) -> bytes:
    """A page as HTML. Args: root: the way from the page's directory to that of all pages."""
    shell = found.fragments["shell.html" if place.has_frame else "bare.html"]
    content = found.fragments[f"pages/{name}.html"]
    assets = f"{root}ui/{found.digest}"
    ahead = found.modules["pages/overview.js"] if name == LOGIN else ()
    links = (
        f'<link rel="modulepreload" fetchpriority="low" href="{assets}/{each}">' for each in ahead
    )
    words = {
        "content": content, "page": name, "title": place.title, "root": root, "assets": assets,
        "modules": "\n".join(links),
    }  # fmt: skip
    for word, text in words.items():
        shell = shell.replace(f"{{{{{word}}}}}", text)
    return shell.encode()


class Guarded(Handler):
    """What all pages and their files have in common."""

    def set_default_headers(self) -> None:
        """What keeps others from using our pages, and browsers from guessing."""
        super().set_default_headers()
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Frame-Options", "SAMEORIGIN")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")

    def send_packed(self, file: files.File) -> None:
        """Send a file, unpacked to those who do not take gzip."""
        self.set_header("Content-Type", file.kind)
        self.set_header("Vary", "Accept-Encoding")
        content = file.content
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        else:
            content = zlib.decompress(content, wbits=31)
        self.finish(content)

    async def loaded(self) -> files.Files | None:
        """All files. None: they cannot be read now, which was answered."""
        try:
            return await files.loaded()
        except NoThreadError as error:
            self.set_status(503)
            self.set_header("Content-Type", "text/plain")
            self.finish(f"{error}\n")
            return None

    async def send_page(self, name: str, place: Place, root: str = "") -> None:
        """Send a page."""
        found = await self.loaded()
        if found is None:
            return
        self.set_header("Content-Type", "text/html;charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        mark = f'W/"{found.digest}"'
        self.set_header("ETag", mark)
        if self.get_status() == 200 and self.request.headers.get("If-None-Match") == mark:
            self.set_status(304)
            self.finish()
            return
        content = document(found, name, place, root)
        self.send_packed(files.File("text/html;charset=utf-8", files.packed(content)))

    @property
    def has_session(self) -> bool:
        """Whether the browser has what looks like a log-in; the API finds out whether it counts."""
        token = session_token(self.request)
        if token is not None:
            return self.broker.sessions.find(token) is not None
        names = [COOKIE]
        if self.broker.chain.oauth is not None:
            from lavinmq.auth.oauth_login import TOKEN_COOKIE  # only where tokens are taken

            names.append(TOKEN_COOKIE)
        cookies = self.request.cookies
        return any(name in cookies and cookies[name].value for name in names)


class Page(Guarded):
    """`/queues`, also as `/queues.html`; `/` is the overview."""

    async def get(self, name: str = "overview") -> None:
        """Send it, or the browser to the page for logging in."""
        place = PLACES[name]
        if place.is_open or self.has_session:
            await self.send_page(name, place)
            return
        self.set_status(307)
        self.set_header("Location", "login")
        self.set_header("Cache-Control", "no-store")
        self.finish()

    head = get


class Docs(Guarded):
    """`/docs/`: the API's description, for everybody."""

    async def get(self) -> None:
        """Send it."""
        await self.send_page("docs", DOCS, "../")

    head = get


class Asset(Guarded):
    """A file that pages load."""

    async def get(self, digest: str, name: str) -> None:
        """Send it; nothing to those who come from another release."""
        found = await self.loaded()
        if found is None:
            return
        file = found.assets.get(name)
        if file is None or digest != found.digest:
            self.finish_no_path()
            return
        self.set_header("Cache-Control", FOR_EVER)
        self.send_packed(file)

    head = get


class NotFound(Unknown, Guarded):
    """Any other path: a page for people who read HTML, with no word of what is there."""

    async def prepare(self) -> None:
        """Say that there is nothing."""
        is_read = "text/html" in self.request.headers.get("Accept", "")
        is_page = self.request.method in ("GET", "HEAD") and is_read
        if self.origin is Origin.METRICS or not is_page:
            await super().prepare()
            return
        self.set_status(404)
        depth = self.request.path.count("/") - 1
        await self.send_page("404", PLACES["404"], "../" * depth)


_NAMES: Final = "|".join(PLACES)
ROUTES: Final[list[Any]] = [
    (r"/", Page),
    (rf"/({_NAMES})(?:\.html)?", Page),
    (r"/docs/(?:index\.html)?", Docs),
    (r"/ui/([0-9a-f]+)/(.+)", Asset),
    (r"/session", SessionHandler),
]
