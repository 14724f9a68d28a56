"""Segments become batches: reading in windows, and what to do at the end of each segment.

The newest segment of a queue may be written at this moment, or end in what a crash has left: it is
read up to there. Anywhere else the same is damage, and the option `onCorrupt` says what to do.
Of a queue that is no stream the broker may make one record, and a hole, of deleted ones meanwhile.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lavinmq.spark._arrow import Columns, Scanner, resume, walk
from lavinmq.spark.data_directory import FIRST_POSITION, Segment
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.files import Files, OpenFile, files_of, reason
from lavinmq.spark.segment_plan import SegmentTask

log = logging.getLogger("lavinmq.spark")

VERSION = b"\x04\0\0\0"
BATCH_BYTES = 16 << 20
RESUME_MOST = 1 << 28  # bytes behind a damage that are looked at
REREADS = 5  # of a window that is written to meanwhile
DAY_MS = 86_400_000
NEWEST_MS = 1 << 44
_PATTERN_FROM = 64
_FILLER = struct.Struct("<12sQ")  # a record instead of deleted ones; docs/formats.md, Segment
_FILLER_BEGIN = b"\1" + bytes(11)
_MASK = 2**64 - 1
_HIGH_BITS = 0x8080808080808080
_REASONS = {
    Scanner.MORE: "the file ends within a record",
    Scanner.TORN: "a record was not written whole",
    Scanner.CORRUPT: "there is no record",
    Scanner.END: "there is no record",
}


@dataclass
class Report:
    """What a task came by. `unread_bytes` are those behind damage, `torn` ends of newest segments
    that were not written whole, `vanished` segments that were removed since the planning."""

    segments: int = 0
    records: int = 0
    corrupt: int = 0
    unread_bytes: int = 0
    torn: int = 0
    vanished: int = 0
    repaired: int = 0


def read_task(task: SegmentTask, report: Report | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's segments in their order; what is counted goes into the report.

    Raises: SourceError, DataLossError; one line that names file, queue and place.
    """
    report = Report() if report is None else report
    files, _ = files_of(task.options.path)
    columns = None
    identity: tuple[str, str, str] | None = None
    for segment in task.segments:
        if identity != (segment.queue, segment.vhost, segment.queue_type) or columns is None:
            if columns is not None:
                yield from _rest(columns, report)
            identity = (segment.queue, segment.vhost, segment.queue_type)
            columns = Columns(
                task.columns,
                queue=segment.queue,
                vhost=segment.vhost,
                queue_type=segment.queue_type,
            )
        yield from _segment(files, segment, columns, task, report)
    if columns is not None:
        yield from _rest(columns, report)


def _rest(columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    if columns.n_rows:
        yield columns.take()
    report.repaired += columns.n_repaired


def _segment(
    files: Files, segment: Segment, columns: Columns, task: SegmentTask, report: Report
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that fill up while one segment is read."""
    report.segments += 1
    try:
        # First the acks: what is acked in between is then still there.
        acks = None if segment.queue_type == "stream" else _acks(files, segment)
        file = files.open(segment.path)
    except FileNotFoundError:
        _vanished(segment, task, report)
        return
    except OSError as error:
        raise SourceError(f"{segment}: {reason(error)}") from None
    try:
        reading = _Reading(files, file, segment, columns, task, report, acks)
        yield from reading.batches()
    except OSError as error:
        raise SourceError(f"{segment}: {reason(error)}") from None
    finally:
        file.close()


def _acks(files: Files, segment: Segment) -> bytes:
    try:
        return files.small(segment.acks_path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SourceError(f"{segment.acks_path}: {reason(error)}") from None


def _vanished(segment: Segment, task: SegmentTask, report: Report) -> None:
    """Note a segment that is gone. All its messages were deleted: of a stream, by retention."""
    report.vanished += 1
    if segment.queue_type != "stream":
        return
    if task.options.fail_on_data_loss:
        raise DataLossError(
            f"{segment}: removed since the query was planned, from offset {segment.first_offset} "
            "on; with failOnDataLoss=false the query goes on without it"
        )
    log.warning("%s: removed since the query was planned; going on without it", segment)


def filling_pattern(head: bytes) -> bytes:
    """Return the 16 bytes that a broker fills a segment with ahead of its data.

    Args: head: its first 64 bytes; fewer have no pattern. Source: docs/formats.md, Segment.
    """
    if len(head) < _PATTERN_FROM:
        return b""
    state = 0
    for (word,) in struct.iter_unpack("<Q", head[:_PATTERN_FROM]):
        state = _mix(state + word + 1)
    return struct.pack("<QQ", state | _HIGH_BITS, _mix(state + 1) | _HIGH_BITS)


def _mix(value: int) -> int:
    for _ in range(2):
        value &= _MASK
        value = (value ^ value >> 32) * 0xD6E8FEB86659FD93 & _MASK
    return value ^ value >> 32


class _Reading:
    """One segment that is being read."""

    def __init__(
        self,
        files: Files,
        file: OpenFile,
        segment: Segment,
        columns: Columns,
        task: SegmentTask,
        report: Report,
        acks: bytes | None,
    ) -> None:
        self._window = files.window
        self._file = file
        self._segment = segment
        self._columns = columns
        self._options = task.options
        self._report = report
        self._head = bytes(file.read(0, _PATTERN_FROM))
        self._pattern = filling_pattern(self._head)
        self._scanner = Scanner(
            columns,
            segment=segment.number,
            offset=segment.first_offset,
            acks=acks,
            with_acked=task.options.with_acked,
            offsets=task.options.offsets,
            times_ms=task.options.times_ms,
            pattern=self._pattern,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch whenever one is full."""
        position: int | None = FIRST_POSITION
        if not self._head.startswith(VERSION):
            if any(self._head[:12]):
                self._damage(0, "it does not begin with version 4")
            return  # else nothing was ever written to it
        while position is not None:
            size = max(self._window, self._scanner.needed)
            position, data = self._read(position, size)
            is_last = len(data) < size
            if self._segment.is_newest:
                data, is_last = self._settled(data, position, is_last)
            code = yield from self._window_batches(data, position)
            unread = bytes(data[self._scanner.position - position :][:20])
            position = self._next(code, unread, is_last)
        self._report.records += self._scanner.n_records

    def _read(self, position: int, size: int) -> tuple[int, bytes | memoryview]:
        """Return where to read on, and the bytes from there: behind a hole, if one was made."""
        for _ in range(REREADS):
            data = self._file.read(position, size)
            if self._segment.queue_type == "stream" or not self._file.changed():
                return position, data
            position = self._behind_hole(position)
        return position, self._file.read(position, size)

    def _behind_hole(self, position: int) -> int:
        """Return where a record begins: at a position where one did, or behind what covers it."""
        before = self._file.read(FIRST_POSITION, position - FIRST_POSITION)
        at = FIRST_POSITION + walk(before)[1]
        head = self._file.again(at, _FILLER.size)
        if at == position or not head.startswith(_FILLER_BEGIN) or len(head) < _FILLER.size:
            return position
        return max(position, at + _FILLER.size + int(_FILLER.unpack(head)[1]))

    def _settled(
        self, data: bytes | memoryview, position: int, is_last: bool
    ) -> tuple[bytes | memoryview, bool]:
        """Return the window without a last record that is being written, and if it is the last.

        LavinMQ writes a record in place, field by field: until its names are there it looks like
        an empty one, and a body that is half there differs when it is read again.
        """
        code, end, last, count = walk(data)
        if not count or not (is_last or code == Scanner.END):
            return data, is_last
        record = bytes(data[last:end])
        if record[8:10] != b"\0\0" and self._file.again(position + last, end - last) == record:
            return data, is_last
        self._report.torn += 1
        return data[:last], True

    def _window_batches(
        self, data: bytes | memoryview, position: int
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield the batches that fill up in a window; return why there are no more."""
        at, max_rows = position, self._options.batch_rows
        while True:
            try:
                code = self._scanner.scan(
                    data, at, start=at - position, max_rows=max_rows, max_bytes=BATCH_BYTES
                )
            except ValueError as error:
                raise SourceError(
                    f"{self._segment}: byte {self._scanner.position}: {error}"
                ) from None
            at = self._scanner.position
            if code != Scanner.FULL:
                return code
            yield self._columns.take()

    def _next(self, code: int, unread: bytes, is_last: bool) -> int | None:
        """Return where to read on, None at the end. `unread` are the first bytes left."""
        at = self._scanner.position
        if code == Scanner.END and self._is_end(at):
            return None
        if code == Scanner.MORE and is_last and not any(unread):
            return None
        if code == Scanner.MORE and not is_last:
            return at
        if code in (Scanner.MORE, Scanner.TORN) and self._segment.is_newest:
            self._report.torn += 1
            return None
        return self._damage(at, _REASONS[code])

    def _is_end(self, position: int) -> bool:
        """Whether a time of zero ends the data: only zeros and filling are behind it."""
        wanted = self._options.offsets
        if wanted is not None and (self._scanner.offset or 0) >= wanted[1]:
            return True
        at = position
        while data := bytes(self._file.read(at, self._window)):
            rest = data.lstrip(b"\0")
            at += len(data) - len(rest)
            if rest:
                filling = self._pattern[at % 16 :] + self._pattern[: at % 16]
                is_filling = bool(filling) and rest.startswith(filling[: len(rest)])
                # Records are written in rising order: what is zero still was so then.
                return is_filling or any(self._file.again(position, 8))
        return True

    def _damage(self, position: int, why: str) -> int | None:
        """Do what the option says; return where to read on, or None."""
        where, on_corrupt = f"{self._segment}: {why} at byte {position}", self._options.on_corrupt
        if on_corrupt == "fail":
            raise SourceError(where)
        self._report.corrupt += 1
        found = self._resume(position) if on_corrupt == "skip" and position else None
        if found is None:
            self._report.unread_bytes += max(0, self._segment.size - position)
            log.warning("%s; the rest of the segment is not read", where)
            return None
        skipped, n_behind = found
        self._report.unread_bytes += skipped
        log.warning("%s; reading goes on at byte %d", where, position + skipped)
        if self._segment.first_offset is not None and self._segment.count is not None:
            # What is behind keeps its offsets: they are counted from the segment's end.
            counted = self._segment.first_offset + self._segment.count - n_behind
            self._scanner.offset = max(self._scanner.offset or 0, counted)
        return position + skipped

    def _resume(self, position: int) -> tuple[int, int] | None:
        """Return how many bytes are no records, and how many records follow; None if none do."""
        rest = self._file.read(position, RESUME_MOST)
        if len(rest) == RESUME_MOST:
            return None
        (first_ms,) = struct.unpack_from("<Q", self._head.ljust(12, b"\0"), FIRST_POSITION)
        return resume(
            rest,
            position=position,
            pattern=self._pattern,
            oldest_ms=first_ms - DAY_MS if DAY_MS < first_ms < NEWEST_MS else 0,
        )
