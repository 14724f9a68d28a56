"""What a task does with `transport=http`: read a range of a stream as the records it is stored in.

The broker sends blocks of whole records, straight from its files, and the scanner of segments makes
rows of them: no frames, no acknowledgements, no filter. A broken answer is asked for again behind
the last whole block. Offsets that no block has are lost: the broker passes over damage.
Source: docs/http-api.md, Streams.
"""

from __future__ import annotations

import http.client
import logging
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from lavinmq.spark.admin import Admin, http_connection, http_urls, login
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.planner import RangeTask

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 16 * 1024 * 1024
BLOCK = struct.Struct("<QII")  # first offset, number of records, their bytes
BLOCK_MAX = 1 << 30
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
GONE, NOT_SATISFIABLE = 410, 416

log = logging.getLogger("lavinmq.spark")


class _BrokenOff(Exception):
    """An answer ended too early, or was one that may be another the next time."""


def read_blocks(task: RangeTask) -> Iterator[pa.RecordBatch]:
    """Yield the messages with offsets [start, end) of a stream, in their order.

    Raises: SourceError, DataLossError, OptionError.
    """
    return _Bulk(task).batches()


class _Bulk:
    """One range being read; `_next` is behind the last record that is in the columns."""

    def __init__(self, task: RangeTask) -> None:
        from lavinmq.spark._arrow import Columns

        self._task = task
        self._columns = Columns(task.columns, queue=task.queue)
        self._next = task.start
        urls = http_urls(task.connection)
        self._urls = urls
        self._where = f"HTTP API {', '.join(urlsplit(url).netloc for url in urls)}"
        self._where += f" vhost '{task.connection.vhost}' queue '{task.queue}'"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read until the range is finished, in as many requests as it takes."""
        failures, deadline = 0, 0.0
        while self._next < self._task.end:
            before = self._next
            try:
                yield from self._attempt(self._urls[failures % len(self._urls)])
                if self._next == before:
                    raise _BrokenOff("nothing came")
            except (OSError, http.client.HTTPException, _BrokenOff) as error:
                if failures == 0 or self._next > before:
                    failures, deadline = 0, time.monotonic() + self._task.read_timeout_s
                if time.monotonic() > deadline:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise SourceError(f"{self._where}: {reason}, at offset {self._next}") from None
                time.sleep(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
                failures += 1
        if self._columns.n_rows:
            yield self._columns.take()
        if self._columns.n_repaired:
            log.warning("%s: %d strings were not UTF-8", self._where, self._columns.n_repaired)

    def _attempt(self, url: str) -> Iterator[pa.RecordBatch]:
        """Read what one request gives. Raises: _BrokenOff, OSError, HTTPException to try again."""
        task = self._task
        vhost, queue = (quote(name, safe="") for name in (task.connection.vhost, task.queue))
        path = f"{urlsplit(url).path}/api/queues/{vhost}/{queue}/stream/raw"
        connection = http_connection(task.connection, url, task.read_timeout_s)
        try:
            query = f"?offset={self._next}&end={task.end}"
            connection.request("GET", path + query, headers=login(task.connection))
            response = connection.getresponse()
            if response.status == GONE:
                self._skip_lost()
                return
            self._check(response.status)
            while (block := BLOCK.unpack(_exactly(response, BLOCK.size)))[1]:
                yield from self._block(block[0], block[1], _exactly(response, block[2]))
            self._pass_over(block[0])
        finally:
            connection.close()

    def _block(self, offset: int, count: int, records: bytes) -> Iterator[pa.RecordBatch]:
        from lavinmq.spark._arrow import Scanner

        task = self._task
        if offset >= task.end:
            raise SourceError(f"{self._where}: a block of offset {offset} came, at {self._next}")
        self._pass_over(offset)
        behind = min(offset + count, task.end)
        scanner = Scanner(self._columns, offset=offset, offsets=(self._next, task.end))
        position, result = 0, Scanner.FULL
        while result == Scanner.FULL:
            result = scanner.scan(
                records, position, start=position, max_rows=task.batch_rows, max_bytes=BATCH_BYTES
            )
            position = scanner.position
            if result == Scanner.FULL:
                yield self._columns.take()
        if scanner.offset != behind:
            raise SourceError(f"{self._where}: there is no record at offset {scanner.offset}")
        self._next = max(self._next, behind)

    def _check(self, status: int) -> None:
        """Raises: SourceError for a refusal, _BrokenOff for what may be over soon."""
        if status == 200:
            return
        if status >= 500:
            raise _BrokenOff(f"answered {status}")
        reason = {
            401: f"user {self._task.connection.user!r} was refused with 401",
            403: f"user {self._task.connection.user!r} may not read it",
            404: "no such stream, or a broker that does not send records; use transport=amqp",
            NOT_SATISFIABLE: f"it ends before offset {self._next}",
        }.get(status, f"answered {status}")
        raise SourceError(f"{self._where}: {reason}")

    def _skip_lost(self) -> None:
        """Go on at the first offset there is. Raises: DataLossError when that is not wanted."""
        admin = Admin(self._task.connection)
        try:
            found = admin.queue(self._task.queue)
        finally:
            admin.close()
        held = None if found is None else found[1]
        if held is None or held.first <= self._next:
            raise _BrokenOff("its first offset is not known")
        self._pass_over(held.first)

    def _pass_over(self, offset: int) -> None:
        """The broker goes on at an offset: what is before it is lost. Raises: DataLossError when
        that is not wanted."""
        task, start = self._task, max(self._next, 1)  # there is no offset 0
        last = min(offset, task.end) - 1
        if last < start:
            return
        text = f"{self._where}: data loss: offsets {start} to {last} are gone"
        if task.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on without them")
        log.warning("%s, %d messages", text, last + 1 - start)
        self._next = last + 1


def _exactly(response: http.client.HTTPResponse, size: int) -> bytes:
    """Read that many bytes. Raises: _BrokenOff when there are fewer."""
    if size > BLOCK_MAX:
        raise _BrokenOff(f"a block of {size} bytes")
    data = response.read(size)
    if len(data) < size:
        raise _BrokenOff("the answer ended too early")
    return data
