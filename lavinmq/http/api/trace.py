"""Trace: follow the messages of one exchange or queue live for a while, as a sample.

Messages are looked at as they pass (`cext/queue/sample.pyx`): nothing is bound, taken or changed,
and what is not shown is only counted. A trace is bounded in messages, bytes and time, and a reader
who does not keep up is shown fewer. Source: decision 0082, docs/http-api.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tornado.iostream import StreamClosedError

from lavinmq import _core
from lavinmq.http import encoding, message
from lavinmq.http.access.table import DEFAULT
from lavinmq.http.api.messages import SHOWN
from lavinmq.http.api.queues import check_not_locked, queue_of
from lavinmq.http.call import Call, found
from lavinmq.http.errors import ApiError, access_refused, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.routes import ROUTES

if TYPE_CHECKING:
    from lavinmq.http.handler import ApiHandler
    from lavinmq.vhost.exchange import Exchange

LINES: Final = "application/x-ndjson"
EVERY_S: Final = 0.2
"""Between two looks at what has passed."""
MAX_SECONDS: Final = 60
MAX_RATE: Final = 100
MAX_BODY: Final = 4096
ROOM: Final = 256 << 10
"""Bytes of messages between two looks."""
MAX_TRACES: Final = 8
FIELDS: Final = {
    "seconds": Field("integer", f"How long, {MAX_SECONDS} at most", default=MAX_SECONDS),
    "rate": Field("integer", f"Messages in a second, {MAX_RATE} at most", default=20),
    "truncate": Field("integer", f"Show so much of a body, {MAX_BODY} bytes at most", default=1024),
    "encoding": SHOWN["encoding"],
}


class Reader:
    """Whoever follows. Args: may_go_on: whether it may still see messages."""

    def __init__(self, may_go_on: Callable[[], bool]) -> None:
        self.may_go_on = may_go_on
        self.over = asyncio.Event()

    def close(self) -> None:
        """It has gone, or has to go."""
        self.over.set()


@ROUTES.post(
    "/api/exchanges/:vhost/:name/trace", FIELDS, failures=(503,), content=LINES
)  # fmt: skip
async def trace_exchange(call: Call) -> None:
    """Follow a sample of the messages that are published to an exchange."""
    name = call.path["name"]
    if name in ("", DEFAULT):
        raise bad_request("The default exchange cannot be followed: follow the queue")
    vhost = call.vhost
    exchange: Exchange = found(vhost.exchanges.get(name), "exchange", name, vhost.name)
    if not _sees_all_keys(call, exchange):
        raise access_refused(
            f"User has topic permissions on exchange '{exchange.name}': it cannot be followed"
        )
    sample = _sample(call)
    may_go_on = partial(_sees_all_keys, call, exchange)
    await _follow(call, sample, _passing(call, exchange, sample), may_go_on)


@ROUTES.post(
    "/api/queues/:vhost/:name/trace", FIELDS, failures=(503,), content=LINES
)  # fmt: skip
async def trace_queue(call: Call) -> None:
    """Follow a sample of the messages that arrive in a queue."""
    queue = queue_of(call)
    check_not_locked(call, queue)
    sample = _sample(call)
    await _follow(call, sample, _attached(queue.core, sample))


def _sees_all_keys(call: Call, exchange: Exchange) -> bool:
    """Who may bind with some keys only must not see what is published with others."""
    rights = call.user.key_rights(call.path["vhost"], exchange.name)
    return not exchange.is_topic or rights is None


def _sample(call: Call) -> _core.Sample:
    """Raises: ApiError 400."""
    for name, least, most in (
        ("seconds", 1, MAX_SECONDS), ("rate", 1, MAX_RATE), ("truncate", 0, MAX_BODY),
    ):  # fmt: skip
        value = call.body[name]
        if value is None or not least <= value <= most:
            raise bad_request(f"Field '{name}' must be between {least} and {most}")
    return _core.Sample(call.body["truncate"])


@contextmanager
def _passing(call: Call, exchange: Exchange, sample: _core.Sample) -> Iterator[None]:
    """Have the messages of an exchange pass a sample. Raises: ApiError 503 when another follows."""
    if exchange.core.is_followed:
        raise ApiError(503, "traced_already", "Somebody follows it already")
    vhost, place = call.vhost, f"{call.broker.config.data_dir}/trace"
    exchange.core.follow(_core.Queue(call.broker.loop, place, 4096, False), sample)  # no files
    vhost.core.touch()
    try:
        yield
    finally:
        exchange.core.follow(None, None)
        vhost.core.touch()


@contextmanager
def _attached(core: _core.Queue, sample: _core.Sample) -> Iterator[None]:
    """The same of a queue."""
    if core.is_followed:
        raise ApiError(503, "traced_already", "Somebody follows it already")
    core.follow(sample)
    try:
        yield
    finally:
        core.follow(None)


async def _follow(
    call: Call, sample: _core.Sample, attached: Any, may_go_on: Callable[[], bool] = lambda: True
) -> None:
    """Show messages until the time is over. Raises: ApiError 503 when there are too many traces.

    Args: may_go_on: whether the caller may still see them, as far as the endpoint does not say it.
    """
    handler = call.handler
    traces: set[Reader] = handler.application.settings["traces"]
    if len(traces) >= MAX_TRACES:
        raise ApiError(503, "too_many_traces", f"{MAX_TRACES} traces are under way")
    reader = Reader(lambda: call.is_allowed_still() and may_go_on())
    traces.add(reader)
    call.broker.revocation.watch(reader)
    try:
        with attached:
            handler.on_gone = reader.close
            handler.set_header("Content-Type", LINES)
            handler.set_header("Cache-Control", "no-store, no-transform")
            handler.set_header("X-Accel-Buffering", "no")
            async with asyncio.timeout(call.body["seconds"] + 1):
                await _show(call, handler, sample, reader)
    except (StreamClosedError, TimeoutError):
        pass  # the reader has gone, or does not read
    finally:
        traces.discard(reader)
        call.broker.revocation.unwatch(reader)
        if handler._headers_written:
            handler.end()


async def _show(call: Call, handler: ApiHandler, sample: _core.Sample, reader: Reader) -> None:
    """Write a line for each message of the sample, and one for each look."""
    body = call.body
    ends, shown, share = time.monotonic() + body["seconds"], 0, body["rate"] * EVERY_S
    due = 1.0
    sample.take(1, ROOM)
    await _line(handler, {"seen": 0, "shown": 0})
    while (now := time.monotonic()) < ends:
        try:
            async with asyncio.timeout(min(EVERY_S, ends - now)):
                await reader.over.wait()
        except TimeoutError:
            pass
        if reader.over.is_set() or handler.is_gone or not reader.may_go_on():
            return
        due = min(due + share, max(share, 1.0))
        rows = sample.take(int(due), ROOM)
        due -= int(due)
        for row in rows:
            handler.write(await _shown(row, body["encoding"]))
        shown += len(rows)
        await _line(handler, {"seen": sample.seen, "shown": shown})


async def _line(handler: ApiHandler, said: dict[str, Any]) -> None:
    """Write how much has passed; who does not read is waited for, and shown less."""
    handler.write(encoding.encode(said) + b"\n")
    await handler.flush()


async def _shown(row: tuple[int, bytes, bytes, bytes, int, bytes], how: str) -> bytes:
    """The JSON of a row of `Sample.take`."""
    at_ms, exchange, key, raw, size, body = row
    return await message.to_json({"at": at_ms}, exchange, key, raw, size, body, how) + b"\n"
