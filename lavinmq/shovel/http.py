"""Connections of a webhook: one request at a time on each, kept open, within limits.

Answers are parsed by httptools. Of a body only the beginning is kept; an answer that is too large,
too late or none ends its connection. Redirects are answers like others: they are not followed.
Source: docs/shovels.md#webhooks.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lavinmq.shovel import addresses

if TYPE_CHECKING:
    from lavinmq.shovel.hook import HookPlace

MAX_HEAD: Final = 64 << 10
MAX_BODY: Final = 1 << 20
MAX_RAW: Final = MAX_HEAD + MAX_BODY
"""Of an answer as it comes: sizes of chunks and what follows the body count as well."""
PIECE: Final = 8192
"""Bytes that are looked at in one go: a server may send many small things in few bytes."""
KEPT: Final = 200
"""Bytes of a body that are kept, for people."""
MAX_RETRY_AFTER_S: Final = 3600


class Answer(NamedTuple):
    """What a server says. `retry_after_s`: None if it does not say so; `text`: its first bytes."""

    status: int
    retry_after_s: int | None
    text: str


Done = Callable[[Answer | None, str], None]
"""Is told the answer, or why there is none."""


class Connection(asyncio.Protocol):
    """One connection; `ask` sends a request when no other is under way."""

    def __init__(self, place: HookPlace, gone: Callable[[Connection], None]) -> None:
        self.place = place
        self.is_open = False
        self.is_fresh = True
        """Whether nothing was answered yet: a kept connection may be closed at any moment."""
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._done: Done | None = None
        self._ends_at = self._timeout_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._n_bytes = self._n_body = 0
        self._rest = b""
        self._is_in_body = False
        self._retry_after: int | None = None
        self._body = b""
        self._whole: Answer | None = None
        """The answer that has come; it is told when all that came with it was looked at."""
        self._is_last = False
        """Whether nothing is asked by this connection any more."""

    # ---- what a shovel does

    def ask(self, request: bytes, timeout_s: float, done: Done) -> None:
        """Send a request; `done` is called once, later: when there is an answer, or `look` finds
        that there is none in time."""
        assert self._done is None and self._transport is not None
        self._done = done
        self._reset()
        self._timeout_s = timeout_s
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._transport.write(request)

    def look(self, now: float) -> None:
        """The time of the loop is `now`: an answer may be too late."""
        if self._done is not None and now >= self._ends_at:
            self._end(None, f"no answer within {self._timeout_s:g} s")
            self.close()

    def close(self) -> None:
        """End it; who waits for an answer is told so."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, answer: Answer | None, why: str) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(answer, why)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        import httptools

        # uvloop's transports are none of asyncio's by class.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._done is None:
            self.close()  # it speaks without having been asked
            return
        if self._rest:
            self._rest += data
            return
        if len(data) > PIECE and self._transport is not None:
            self._transport.pause_reading()
            self._rest = data
            self._look_on()
            return
        self._read(data)

    def _look_on(self) -> None:
        """Look at the next piece of much; others come between."""
        piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
        if self._done is None or self._transport is None or self._transport.is_closing():
            self._rest = b""
            self.close()  # it may speak without having been asked, as above
            return
        self._read(piece)
        if self._rest:
            asyncio.get_running_loop().call_soon(self._look_on)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _read(self, data: bytes) -> None:
        self._n_bytes += len(data)
        if self._n_bytes > MAX_HEAD and not self._is_in_body:
            self._fail(f"the head of the answer has more than {MAX_HEAD} bytes")
            return
        if self._n_bytes > MAX_RAW:
            self._end(self._answer(), "")
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - whatever a peer sends
            if self._whole is None:
                cause = error.__context__
                self._fail(f"the answer is no HTTP: {cause or error}")
                return
            self._is_last = True
        if self._whole is not None:
            self._answered(self._whole)

    def _answered(self, answer: Answer) -> None:
        """An answer is whole. What comes behind it is none to what is asked next."""
        self.is_fresh = False
        if self._is_last or self._rest:
            self.is_open, self._rest = False, b""
        self._end(answer, "")
        if not self.is_open:
            self.close()

    def _fail(self, why: str) -> None:
        self._end(None, why)
        self.close()

    def eof_received(self) -> bool:
        """The server has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.is_open = False
        if self._is_in_body and self._done is not None:
            # A body without a length ends by the end of the connection.
            self._end(self._answer(), "")
        self._end(None, f"connection lost: {exc}" if exc else "connection closed")
        self._parser = None
        self._gone(self)

    # ---- what httptools calls

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._done is None or self._whole is not None:
            raise ValueError("an answer to nothing")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head."""
        if name.lower() == b"retry-after":
            text = value.strip()
            if text.isdigit() and len(text) < 8:
                self._retry_after = min(int(text), MAX_RETRY_AFTER_S)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._is_in_body = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._n_body += len(body)
        if len(self._body) < KEPT:
            self._body += body[: KEPT - len(self._body)]
        if self._n_body > MAX_BODY and self._done is not None:
            self._end(self._answer(), "")
            self.close()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        status = self._parser.get_status_code()
        if status < 200:  # there is another one to come
            self._n_bytes = 0
            return
        self._is_in_body = False
        self._is_last = not self._parser.should_keep_alive()
        self._whole = self._answer()

    def _answer(self) -> Answer:
        if not self._body:
            return Answer(self._parser.get_status_code(), self._retry_after, "")
        text = self._body.decode(errors="replace")
        plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return Answer(self._parser.get_status_code(), self._retry_after, plain)


async def connect(
    place: HookPlace, context: ssl.SSLContext | None, timeout_s: float, allows_private: bool,
    gone: Callable[[Connection], None],
) -> Connection:  # fmt: skip
    """Open a connection. Raises: OSError, which says why there is none."""
    loop = asyncio.get_running_loop()
    failure: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s):
            for address in await addresses.lookup(place.host, place.port, allows_private):
                try:
                    _, made = await loop.create_connection(
                        lambda: Connection(place, gone), address, place.port, ssl=context,
                        server_hostname=place.host if context is not None else None,
                    )  # fmt: skip
                except ssl.SSLCertVerificationError as error:
                    failure = OSError(f"the certificate is refused: {error.verify_message}")
                except (OSError, ssl.SSLError) as error:
                    failure = error
                else:
                    return made
    except TimeoutError:
        failure = OSError(f"no connection within {timeout_s:g} s")
    raise OSError(f"no connection to {place.shown}: {failure}") from None
