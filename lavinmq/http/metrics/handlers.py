"""`/metrics` and `/metrics/detailed`: the numbers of the broker for Prometheus.

The listener for management wants a user and shows the virtual hosts that it may see; the one for
metrics alone asks nobody. An answer is made in portions of about a millisecond and sent as it is
made, so that clients are served while ten thousand queues are listed.
Source: docs/monitoring.md.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import parse_qs

from tornado.iostream import StreamClosedError

from lavinmq.auth.identity import Identity
from lavinmq.http import encoding
from lavinmq.http.access.origin import Origin
from lavinmq.http.access.table import Role
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.handler import Handler
from lavinmq.http.metrics.details import FAMILIES
from lavinmq.http.metrics.exposition import NAME, Exposition, Metric, prefers_open_metrics
from lavinmq.http.metrics.families import OVERVIEW, Scrape
from lavinmq.process import log
from lavinmq.process.portions import others_first
from lavinmq.stats.system import descriptors_used
from lavinmq.vhost.vhost import VHost

DEFAULT_PREFIX: Final = "lavinmq"
MAX_PREFIX: Final = 20
PORTION_S: Final = 0.0005
SENT_FROM: Final = 64 << 10
"""Characters that are sent before more are made."""

SCRAPE_DURATION: Final = Metric(
    "telemetry_scrape_duration_seconds", "gauge", "Time this answer took so far", is_bare=True
)
SCRAPE_MEM: Final = Metric(
    "telemetry_scrape_mem", "gauge", "Bytes of this answer so far, before compression", is_bare=True
)
_log = log.get("lmq.metrics.server")


def exposition(query: Mapping[str, list[str]], accept: str) -> Exposition:
    """What makes the lines of an answer. Args: accept: that header. Raises: ApiError 400."""
    prefix = query.get("prefix", [DEFAULT_PREFIX])[-1]
    if len(prefix.encode("utf-8", "surrogateescape")) > MAX_PREFIX:
        raise bad_request(f"Prefix too long (max {MAX_PREFIX} characters)")
    if not NAME.fullmatch(prefix):
        raise bad_request("Prefix has to be letters, digits, underscores and colons")
    return Exposition(prefix, prefers_open_metrics(accept))


class Metrics(Handler):
    """`/metrics`: the broker as a whole."""

    async def get(self) -> None:
        """Send all of it."""
        try:
            scrape = await self._scrape()
        except ApiError as error:
            self.finish_error(error)
            return
        if scrape is None:
            self.challenge()
            await self.finish()
            return
        self.set_header("Content-Type", scrape.out.content_type)
        self.set_header("Vary", "Accept, Accept-Encoding")
        if self.request.method == "HEAD":
            await self.finish()
            return
        await self._send(scrape)

    head = get

    def parts(self, scrape: Scrape) -> Iterator[str]:
        """The lines, some at a time; an empty text is a step of work."""
        for part in OVERVIEW:
            yield from part(scrape)

    async def _scrape(self) -> Scrape | None:
        """What was asked for, None when nobody may. Raises: ApiError 400."""
        user = None
        if self.origin is not Origin.METRICS:
            user = await self.login()
            if user is None:
                return None
        query = parse_qs(self.request.query, keep_blank_values=True, errors="surrogateescape")
        out = exposition(query, self.request.headers.get("Accept", ""))
        vhosts = self._visible(user, query.get("vhost"))
        return Scrape(
            self.broker, vhosts, out, query.get("family", []), await descriptors_used()
        )  # fmt: skip

    def _visible(self, user: Identity | None, wanted: list[str] | None) -> list[VHost]:
        """The virtual hosts that count. Args: user: None: everything may be seen."""
        is_all = user is None or any(user.has_tag(tag) for tag in Role.MONITORING.value)
        return [
            vhost
            for name, vhost in self.broker.vhosts.items()
            if (is_all or (user is not None and user.has_vhost(name)))
            and (wanted is None or name in wanted)
        ]

    async def _send(self, scrape: Scrape) -> None:
        """Make and send, a portion in each turn of the loop."""
        sink = _Sink(self)
        began = until = time.perf_counter()
        try:
            for text in self.parts(scrape):
                sink.add(text)
                if time.perf_counter() < until + PORTION_S:
                    continue
                if sink.waiting >= SENT_FROM:
                    await sink.flush()
                else:
                    await others_first()
                until = time.perf_counter()
            out = scrape.out
            sink.add(out.alone(SCRAPE_DURATION, round(time.perf_counter() - began, 6)))
            sink.add(out.alone(SCRAPE_MEM, sink.total))
            sink.add(out.end())
            await sink.finish()
        except StreamClosedError:  # who asked has gone
            self._finished = True
        except Exception as error:
            if not self._headers_written:
                raise  # else nobody can be told any more but by a cut: half a list is worse
            _log.error("bug in %s", self.request.path, exc_info=error)
            self._finished = True
            self.request.connection.stream.close()  # type: ignore[union-attr]


class Detailed(Metrics):
    """`/metrics/detailed`: single queues, connections and so on, by families that are asked for."""

    def parts(self, scrape: Scrape) -> Iterator[str]:
        """The families asked for, each once; unknown ones are none."""
        for part in dict.fromkeys(FAMILIES[name] for name in scrape.families if name in FAMILIES):
            yield from part(scrape)


class _Sink:
    """The answer on its way out, compressed if the client takes that."""

    def __init__(self, handler: Metrics) -> None:
        self._handler = handler
        self._parts: list[str] = []
        self._packer = None
        self.waiting = 0
        """Characters that were not sent yet."""
        self.total = 0
        """Characters of the whole answer so far."""
        if "gzip" in handler.request.headers.get("Accept-Encoding", ""):
            self._packer = zlib.compressobj(encoding.LEVEL, wbits=31)
            handler.set_header("Content-Encoding", "gzip")

    def add(self, text: str) -> None:
        """Keep a part until enough has come together."""
        if text:
            self._parts.append(text)
            self.waiting += len(text)
            self.total += len(text)

    def _content(self) -> bytes:
        content = "".join(self._parts).encode()
        self._parts.clear()
        self.waiting = 0
        return content if self._packer is None else self._packer.compress(content)

    async def flush(self) -> None:
        """Send what is there; returns when the client may have more."""
        self._handler.write(self._content())
        await self._handler.flush()

    async def finish(self) -> None:
        """Send the rest."""
        content = self._content()
        await self._handler.finish(content + self._packer.flush() if self._packer else content)
