"""What pages show, told as it changes: each answer of the API is made once for all who watch it.

A stream names its *views*: paths of the API as a page asks for them. Every so many seconds the
answers are made anew, one after the other and in portions, and sent to those for whom they are
different from what they have. Streams of the same rate have their turn at the same second, so that
they share an answer; who sees everything shares it with all who do, others only with themselves.
A stream whose last events have not been taken is passed over: nothing waits for a slow reader.
Source: decision 0081, docs/http-api.md, https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import zlib
from typing import TYPE_CHECKING, Any, Final

from lavinmq.errors import ProtocolError
from lavinmq.http import encoding, listing
from lavinmq.http.access import owned
from lavinmq.http.call import Call
from lavinmq.http.encoding import Pieces
from lavinmq.http.errors import ApiError, from_protocol
from lavinmq.process import log
from lavinmq.process.portions import others_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lavinmq.broker import Broker
    from lavinmq.http.handler import ApiHandler

MAX_STREAMS: Final = 256
MAX_OF_USER: Final = 32
MAX_OF_LOGIN: Final = 3
"""A browser opens six connections to a host and no more: half of them stay free for questions."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer that is told; what is longer a page asks for itself."""
AHEAD: Final = 64 << 10
"""A longer event waits for the next turn when the one before it has not been taken."""
SECOND_S: Final = 1.0
"""Of which there is a turn in each; tests have shorter ones."""
TIMEOUT_S: Final = 2.0
REST: Final = 3
"""After a turn there is a rest of so many times what it took."""
GZIP: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""The head of a stream whose pieces are compressed each for itself. Source: RFC 1952."""
BEAT: Final = b"event: beat\ndata: {}\n\n"
"""Says that all is told: a page that misses it asks itself."""
_log = log.get("lmq.http.live")


class View:
    """A path that a stream watches. Args: text: as the page names it; call: what it asks for."""

    __slots__ = ("call", "sent", "text")

    def __init__(self, text: str, call: Call) -> None:
        self.text = text
        self.call = call
        self.sent = b""

    @property
    def key(self) -> tuple[Any, ...]:
        """Whoever has the same key gets the same answer. An administrator sees everything, whoever
        it is; two tokens of one name may see different things."""
        user = self.call.user
        return (self.text, user.tags if user.has_tag("administrator") else id(user))

    def refusal(self) -> ApiError | None:
        """Why the answer may not be seen any more."""
        try:
            self.call.check_rights()
        except ApiError as error:
            return error
        return None


class Stream:
    """One reader. Args: views: what it watches; rate_s: how often; tab: the page that reads."""

    def __init__(self, call: Call, views: list[View], rate_s: int, tab: str) -> None:
        self.views = views
        self.rate_s = rate_s
        self.tab = tab
        self.user = call.user.name
        self.session = call.session
        self.next_s = 0
        self.is_packed = "gzip" in call.headers.get("Accept-Encoding", "")
        self._call = call
        self._handler: ApiHandler = call.handler
        self._taken: asyncio.Future[None] | None = None
        self._over = asyncio.Event()

    def may_go_on(self) -> bool:
        """Whether the log-in still counts."""
        return self._call.is_allowed_still()

    def close(self) -> None:
        """It has gone, or has to go. Idempotent."""
        self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether it has been closed."""
        return self._over.is_set()

    async def over(self) -> None:
        """Wait until it is closed."""
        await self._over.wait()

    @property
    def is_busy(self) -> bool:
        """Whether the reader has not taken what was sent last."""
        return self._taken is not None and not self._taken.done()

    def begin(self) -> None:
        """Send the head."""
        handler = self._handler
        handler.set_header("Content-Type", "text/event-stream")
        handler.set_header("Cache-Control", "no-store, no-transform")  # proxies compress and hold
        handler.set_header("X-Accel-Buffering", "no")
        if self.is_packed:
            handler.set_header("Content-Encoding", "gzip")
            handler.set_header("Vary", "Accept-Encoding")
            handler.write(GZIP)
        self.send(_Event([b":\n\n"]))

    def send(self, event: _Event) -> None:
        """Put an event on its way; one that waits already goes first."""
        for part in event.packed() if self.is_packed else event.parts:
            self._handler.write(part)
        self._taken = asyncio.ensure_future(self._handler.flush())
        self._taken.add_done_callback(self._sent)

    def _sent(self, taken: asyncio.Future[None]) -> None:
        if not taken.cancelled() and taken.exception() is not None:
            self.close()


class _Event:
    """Bytes of one event, compressed at most once for all who take them so.

    Args: mark: tells it from others of its view; is_answer: it shows what not everybody may see.
    """

    __slots__ = ("_packed", "is_answer", "mark", "parts", "size")

    def __init__(
        self, parts: Sequence[bytes | bytearray], mark: bytes = b"", *, is_answer: bool = False
    ) -> None:
        self.parts = [bytes(part) for part in parts]
        self.size = sum(map(len, self.parts))
        self.mark = mark
        self.is_answer = is_answer
        self._packed: list[bytes] = []

    async def pack(self) -> None:
        """Compress in portions. It refers to nothing before it, so it fits into any stream."""
        packer = zlib.compressobj(encoding.LEVEL, wbits=-zlib.MAX_WBITS)
        packed = [packer.compress(part) async for part in listing.in_portions(self.parts)]
        self._packed = [b"".join([*packed, packer.flush(zlib.Z_SYNC_FLUSH)])]

    def packed(self) -> list[bytes]:
        """The event compressed; one that has not been is short, and a block as it is."""
        if not self._packed:
            length = self.size.to_bytes(2, "little")
            negated = (self.size ^ 0xFFFF).to_bytes(2, "little")
            self._packed = [b"\0", length, negated, *self.parts]  # RFC 1951, 3.2.4
        return self._packed


class Live:
    """The streams of one listener's pages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._streams: dict[Stream, None] = {}
        self._turns: asyncio.Task[None] | None = None
        self._beat = _Event([BEAT])

    def open(self, stream: Stream) -> None:
        """Tell a stream from now on; an older one of the same page ends.

        Raises: ApiError 503 when there are too many.
        """
        mine = [each for each in self._streams if each.user == stream.user]
        for each in mine:
            if each.tab and each.tab == stream.tab:
                each.close()
                self._streams.pop(each, None)
        mine = [each for each in mine if each in self._streams]
        login = [each for each in mine if stream.session is not None
                 and each.session is stream.session]  # fmt: skip
        for several, most, whose in (
            (login, MAX_OF_LOGIN, " of this log-in"), (mine, MAX_OF_USER, " of this user"),
            (self._streams, MAX_STREAMS, ""),
        ):  # fmt: skip
            if len(several) >= most:
                raise ApiError(503, "too_many_streams", f"{most} pages{whose} are told already")
        self._streams[stream] = None
        self._broker.revocation.watch(stream)
        if self._turns is None or self._turns.done():
            self._turns = asyncio.create_task(self._run())

    def close(self, stream: Stream) -> None:
        """It has ended."""
        self._streams.pop(stream, None)
        self._broker.revocation.unwatch(stream)

    async def _run(self) -> None:
        """A turn at each full second, as long as there is somebody to tell."""
        clock = asyncio.get_running_loop().time
        rest_s = 0.0
        while self._streams:
            now = clock() / SECOND_S
            for stream in self._streams:
                stream.next_s = stream.next_s or _next(now, stream)
            await asyncio.sleep(max((1 - now % 1) * SECOND_S, rest_s))
            began = clock()
            due = [each for each in self._streams if 0 < each.next_s <= began / SECOND_S]
            for stream in due:
                stream.next_s = _next(began / SECOND_S, stream)
            await self._turn(due)
            rest_s = (clock() - began) * REST

    async def _turn(self, due: list[Stream]) -> None:
        """Make the answers that are due, and tell those who have others."""
        due = [stream for stream in due if not stream.is_busy and self._is_open(stream)]
        groups: dict[tuple[Any, ...], list[tuple[Stream, View]]] = {}
        for stream in due:
            for view in stream.views:
                groups.setdefault(view.key, []).append((stream, view))
        for several in groups.values():
            try:
                await self._tell(several)
            except Exception as error:  # noqa: BLE001 - a bug of ours must not end the others' streams
                _log.error("bug in %s", several[0][1].text, exc_info=error)
            await others_first()
        for stream in due:
            if self._is_open(stream):
                stream.send(self._beat)

    def _is_open(self, stream: Stream) -> bool:
        """Whether somebody may still be told; who may not is sent away."""
        if stream.is_over or not stream.may_go_on():
            stream.close()
            return False
        return True

    async def _tell(self, several: list[tuple[Stream, View]]) -> None:
        """Tell an answer to all who watch it and may see it."""
        allowed = [(stream, view) for stream, view in several if view.refusal() is None]
        answer: Pieces | ApiError
        if allowed:
            try:
                answer = await _made(allowed[0][1].call)
            except ApiError as error:
                answer = error
            self._send(allowed, await _told(allowed[0][1], answer))
        for stream, view in several:  # the rights may have changed meanwhile
            if (refusal := view.refusal()) is not None:
                self._send([(stream, view)], await _told(view, refusal))

    def _send(self, several: list[tuple[Stream, View]], event: _Event) -> None:
        for stream, view in several:
            is_seen = not event.is_answer or view.refusal() is None
            is_taken = event.size < AHEAD or not stream.is_busy
            if view.sent != event.mark and is_seen and is_taken and self._is_open(stream):
                view.sent = event.mark
                stream.send(event)


def _next(now: float, stream: Stream) -> int:
    """The next second at which a stream has its turn: a multiple of its rate."""
    return (int(now) // stream.rate_s + 1) * stream.rate_s


async def _made(call: Call) -> Pieces:
    """The answer of the API. Raises: ApiError."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await owned.find(call)
            answer = call.route.endpoint(call)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, listing.Listing):
                page, rows = await listing.answer(answer, listing.wish(call.query))
                pieces = await encoding.encode_list(page, rows)
            elif isinstance(answer, Pieces):
                pieces = answer
            else:
                pieces = Pieces([encoding.encode(answer)])
    except ProtocolError as error:
        raise from_protocol(error) from None
    except TimeoutError:
        raise ApiError(503, "too_slow", "It takes too long to be told") from None
    if pieces.size > MAX_ANSWER:
        raise ApiError(413, "payload_too_large", "It is too long to be told")
    return pieces


async def _told(view: View, answer: Pieces | ApiError) -> _Event:
    """The event of an answer. A page whose view is refused asks itself, and is told why."""
    if isinstance(answer, ApiError):
        head = encoding.encode({"view": view.text, "status": answer.status})
        event = _Event([b"data: ", head, b"\n\n"], str(answer.status).encode())
    else:
        digest = hashlib.blake2b(digest_size=16)
        for part in answer.parts:
            digest.update(part)
        head = encoding.encode({"view": view.text, "status": 200})[:-1] + b',"answer":'
        parts: list[bytes | bytearray] = [b"data: ", head, *answer.parts, b"}\n\n"]
        event = _Event(parts, digest.digest(), is_answer=True)
    await event.pack()
    return event
