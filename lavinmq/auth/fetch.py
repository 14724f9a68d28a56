"""Small documents from other servers over HTTP, with limits on time and size.

Tornado's client is imported when the first one is fetched. Redirects are not followed: whom we
trust is configured, not told by a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

CONNECT_TIMEOUT_S: Final = 5.0
TIMEOUT_S: Final = 10.0
MAX_BODY: Final = 512 << 10
MAX_DIGITS: Final = 10
MOST_VALUES: Final = 10_000
"""In a document: it is parsed in one go, and very many take longer than others can wait."""

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", re.ASCII | re.IGNORECASE)


class FetchError(Exception):
    """A document could not be fetched; the text says why."""


class Document(NamedTuple):
    """What a server has answered."""

    status: int
    content: Any
    """The JSON value; None when it is none."""
    max_age_s: int | None
    """How long it may be kept (`Cache-Control`), if it says so."""


class Fetch(Protocol):
    """Gets a document, or posts a form. Raises: FetchError."""

    def __call__(self, url: str, form: Mapping[str, str] | None = None) -> Awaitable[Document]:
        """Fetch it."""


class _Body:
    """The body of an answer. It is kept here because Tornado, which ends one that is far too long,
    does not tell why the connection is closed."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.why = ""
        """It is too long; empty when it is not."""

    def see_header(self, line: str) -> None:
        """A line of the head: it may say how long the body is."""
        name, _, value = line.strip().partition(":")
        if name.lower() == "content-length" and value.strip().isdecimal():
            self._look(MAX_BODY + 1 if len(value) > MAX_DIGITS else int(value))

    def take(self, piece: bytes) -> None:
        """A piece of it."""
        self._look(len(self.content) + len(piece))
        if not self.why:
            self.content += piece

    def _look(self, size: int) -> None:
        if size > MAX_BODY:
            self.why = f"the answer has more than {MAX_BODY} bytes"


async def fetch(url: str, form: Mapping[str, str] | None = None) -> Document:
    """Get a JSON document, or post a form and get one, whatever the status.

    Raises: FetchError when there is no answer in time, or one that is too large or too rich.
    """
    from tornado.httpclient import HTTPRequest
    from tornado.simple_httpclient import SimpleAsyncHTTPClient

    client = SimpleAsyncHTTPClient(force_instance=True, max_body_size=2 * MAX_BODY)
    body = _Body()
    try:
        answer = await client.fetch(
            HTTPRequest(
                url,
                method="GET" if form is None else "POST",
                body=None if form is None else urlencode(form),
                headers={"Accept": "application/json"},
                connect_timeout=CONNECT_TIMEOUT_S,
                request_timeout=TIMEOUT_S,
                follow_redirects=False,
                header_callback=body.see_header,
                streaming_callback=body.take,
            ),
            raise_error=False,
        )
    except Exception as error:  # it passes on whatever sockets, TLS and names give
        raise FetchError(f"{url}: {body.why or error}") from error
    finally:
        client.close()
    if body.why:
        raise FetchError(f"{url}: {body.why}")
    if answer.error is not None and answer.code == 599:  # what Tornado makes of no answer
        raise FetchError(f"{url}: {answer.error}")
    found = _MAX_AGE.search(answer.headers.get("Cache-Control", ""))
    return Document(answer.code, _json(url, body.content), int(found[1]) if found else None)


def is_safe(url: str) -> bool:
    """Whether nobody on the way can read or change what is fetched there."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)


def _json(url: str, body: bytearray) -> Any:
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise FetchError(f"{url}: there are more than {MOST_VALUES} values in the answer")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
