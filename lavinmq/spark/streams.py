"""The streams a query reads: which they are, what they hold, where it begins and ends in them.

Asks the HTTP API, and where that does not tell, the stream itself. By the planning process only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Self

from lavinmq.spark import probe
from lavinmq.spark.admin import Admin, NotServed, Refused
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.offsets import LATEST, Bounds, Loss, Segment
from lavinmq.spark.options import SourceOptions

log = logging.getLogger("lavinmq.spark")

RECIPE = (
    "reading it would remove its messages. Bind a stream queue to the same exchange and read that, "
    "or take a look at it with the option mode=peek"
)


class Streams:
    """The streams that the options choose; a context, which holds a connection to the HTTP API.

    `is_told`: the query knows identities of streams, so this broker has an API that tells them.
    """

    def __init__(self, options: SourceOptions, *, is_told: bool = False) -> None:
        self._options = options
        # Where nobody said that there is one, it is looked for once: some brokers have none.
        self._needs_api = is_told or options.connection.http_url is not None
        self._admin = Admin(options.connection, is_patient=self._needs_api)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection to the HTTP API; Spark says nobody when a query has ended."""
        self._admin.close()

    def bounds(self, known: Iterable[str] = (), *, missing_ok: bool = False) -> dict[str, Bounds]:
        """Return what each stream holds; those that are not there are left out.

        Args: `known` are streams that the query has a position in. A stream that the options name
        and that is neither there nor known is an error, unless `missing_ok`. A pattern decides
        for known ones too; what was once part of a super stream is read to its end.
        """
        options, read_before = self._options, set(known)
        wanted = set(options.queues) or self._chosen(read_before)
        found = {}
        for name in sorted(wanted):
            held = self._bounds(name, is_named=bool(options.queues))
            if held is not None:
                found[name] = held
            elif options.queues and name not in read_before and not missing_ok:
                raise SourceError(f"{self._admin}: there is no queue {name!r}")
        return found

    def is_wanted(self, name: str) -> bool:
        """Tell whether the options still ask for a stream that the query has a position in."""
        if self._options.queues:
            return name in self._options.queues
        if self._options.queue_pattern is not None:
            return re.fullmatch(self._options.queue_pattern, name) is not None
        return True

    def offset_at(self, queue: str, time_ms: int, held: Bounds) -> int | None:
        """Return the first offset received at that time or later; None when none is so young."""
        offset = self.first_since(queue, time_ms)
        if offset is None:
            offset = probe.offset_at(self._options.connection, queue, time_ms)
        return None if offset is None or offset >= held.end else max(offset, held.first)

    def first_since(self, queue: str, time_ms: int) -> int | None:
        """Return the first offset received at that time or later, which may be the next one's, as
        the broker tells who knows of each message when it came; None where it does not."""
        try:
            return self._admin.offset_at(queue, time_ms)
        except NotServed:
            return None

    def segments(self, queue: str, range_: tuple[int, int]) -> list[Segment]:
        """Return the segments that a range is in; none where the broker does not tell."""
        try:
            return self._admin.segments(queue, *range_)
        except NotServed:
            return []

    def stored(self, queue: str) -> int | None:
        """Return the next offset that the broker keeps for the consumer of `storeOffsets`."""
        assert self._options.store_offsets is not None
        return self._admin.stored(queue, self._options.store_offsets)

    def store(self, queue: str, offset: int) -> None:
        """Have the broker keep the next offset under the name of `storeOffsets`."""
        assert self._options.store_offsets is not None
        self._admin.store(queue, self._options.store_offsets, offset)

    def starts(self, held: Mapping[str, Bounds], default: str) -> dict[str, int]:
        """Return where a new query begins in each stream; `default` as `startingOffsets`."""
        options = self._options
        if options.starting_ms is not None:
            return {
                queue: self._start_at(queue, of_queue(options.starting_ms, queue), bounds)
                for queue, bounds in held.items()
            }
        starting = default if options.starting is None else options.starting
        if starting == "stored":
            stored = {queue: self.stored(queue) for queue in held}
            return {q: held[q].first if n is None else n for q, n in stored.items()}
        if isinstance(starting, str):
            return {q: b.end if starting == "latest" else b.first for q, b in held.items()}
        self._refuse_unknown("startingOffsets", starting, held)
        return {q: b.resolve(starting.get(q, b.first)) for q, b in held.items()}

    def ends(self, held: Mapping[str, Bounds]) -> dict[str, int]:
        """Return where a batch query ends in each stream."""
        options = self._options
        if options.ending_ms is not None:
            moments = {queue: of_queue(options.ending_ms, queue) for queue in held}
            found = {
                queue: None if ms is None else self.offset_at(queue, ms, held[queue])
                for queue, ms in moments.items()
            }
            return {q: held[q].end if n is None else n for q, n in found.items()}
        if isinstance(options.ending, str):
            return {queue: bounds.end for queue, bounds in held.items()}
        self._refuse_unknown("endingOffsets", options.ending, held)
        ends = {q: b.resolve(options.ending.get(q, LATEST)) for q, b in held.items()}
        for queue, end in ends.items():
            if end > held[queue].end:
                text = f"stream {queue!r}: endingOffsets is {end}, it ends at {held[queue].end}"
                self.report_text(text)
                ends[queue] = held[queue].end
        return ends

    def report(self, loss: Loss) -> None:
        """Raise DataLossError, or warn and go on, as `failOnDataLoss` says."""
        self.report_text(str(loss))

    def report_text(self, text: str) -> None:
        """Raise DataLossError with that text, or warn and go on, as `failOnDataLoss` says."""
        if self._options.fail_on_data_loss:
            hint = "set failOnDataLoss=false to go on without them"
            raise DataLossError(f"{self._options.connection}: data loss: {text}; {hint}")
        log.warning("%s: data loss: %s", self._options.connection, text)

    # ---- which, and what they hold ---------------------------------------------------------------

    def _chosen(self, read_before: set[str]) -> set[str]:
        """Return the streams that a pattern or an exchange chooses now."""
        options = self._options
        if options.queue_pattern is not None:
            kinds = self._admin.queues()
            pattern = re.compile(options.queue_pattern)
            chosen = {q for q, kind in kinds.items() if kind == "stream" and pattern.fullmatch(q)}
            # Rows move from page to page while queues go: who is known is asked for by name.
            return chosen | {q for q in read_before if pattern.fullmatch(q)}
        assert options.super_stream is not None
        return {*self._admin.bound_queues(options.super_stream), *read_before}

    def _bounds(self, name: str, *, is_named: bool) -> Bounds | None:
        """Return what a stream holds; None when it is not there, or is none and was not named."""
        try:
            found = self._admin.queue(name)
        except Refused:
            # AMQP says whether the password is wrong; right ones may still read.
            return probe.bounds(self._options.connection, name)
        except NotServed:
            if self._needs_api:
                raise
            return probe.bounds(self._options.connection, name)
        if found is None:
            return None
        kind, held = found
        if kind != "stream" and not is_named:
            return None
        if kind != "stream":
            raise SourceError(f"{self._admin}: queue {name!r} is a {kind} queue; {RECIPE}")
        return held or probe.bounds(self._options.connection, name)

    def _start_at(self, queue: str, time_ms: int | None, held: Bounds) -> int:
        if time_ms is None:
            return held.first
        offset = self.offset_at(queue, time_ms, held)
        if offset is None and not self._options.latest_when_no_time:
            raise SourceError(
                f"{self._options.connection}: stream {queue!r} has no message received at "
                f"{time_ms} ms or later; to begin at its end, set the option "
                "startingOffsetsByTimestampStrategy=latest"
            )
        return held.end if offset is None else offset

    def _refuse_unknown(
        self, option: str, offsets: Mapping[str, int], held: Mapping[str, Bounds]
    ) -> None:
        for queue in offsets:
            if queue not in held:
                raise SourceError(f"option {option} names {queue!r}, which is not read")


def of_queue(moment: int | Mapping[str, int], queue: str) -> int | None:
    """Return the time that is meant for a queue, or None."""
    return moment if isinstance(moment, int) else moment.get(queue)
