"""What a producer has in a file beside its ring: how messages go there, come back, and end.

From the first message in the file on all go there until it is empty, so the order stays. `put` is
called by any thread; all else belongs to the loop's, but `forked`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lavinmq.client.errors import BufferFullError, ClosedError
from lavinmq.client.spill import Spill

if TYPE_CHECKING:
    from lavinmq.client._engine import Receipt, Ring

Prepared = tuple[bytes | None, bytes | None, int]


class Reserve:
    """The file of one producer.

    Args: changed: is told when it is empty, or is not any more; failed: of a disk that does not
    work, once.
    """

    def __init__(
        self,
        ring: Ring,
        spill: Spill,
        changed: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._ring, self._changed, self._failed = ring, changed, failed
        self._spill: Spill | None = spill
        self._lock = threading.Lock()
        self._is_due = False
        """Whether the loop is to look, and was told so."""
        self.error: OSError | None = None
        """Why the file could not be read, or told what is done, when that was tried last."""

    @property
    def count(self) -> int:
        """Messages that are in the file alone."""
        spill = self._spill
        return spill.count if spill is not None else 0

    def put(self, body: bytes, prepared: Prepared) -> Receipt:
        """Append a message. Raises: BufferFullError, ClosedError."""
        ring = self._ring
        with self._lock:
            spill = self._spill
            if spill is None:
                raise ClosedError("the producer was closed")
            props, target, flags = ring.stamped(prepared)
            try:
                number = spill.append(flags, props, target, body)
                if number is None:
                    raise BufferFullError(f"the spill holds {spill.limit} bytes")
            except OSError as error:
                raise BufferFullError(f"the spill takes nothing: {error}") from error
            finally:
                self._changed()
            receipt = ring.loose_receipt()
            spill.receipts[number] = receipt
            # Once until the loop has looked: threads write faster than it would be woken.
            is_first, self._is_due = not self._is_due, True
        if is_first:
            ring.wake()
        return receipt

    def look(self) -> None:
        """Note what is with the broker, and take back what there is room for; if the disk fails,
        tell it once, and wait for the next look."""
        try:
            self._note()
            self._refill()
            self.error = None
        except OSError as error:
            is_new, self.error = self.error is None, error
            if is_new:
                self._failed(error)

    def _note(self) -> None:
        spill, place = self._spill, None
        if spill is None:
            return
        first = self._ring.first
        while spill.places and spill.places[0][0] < first:
            place = spill.places.popleft()[1]
        if place is not None:
            with self._lock:
                spill.done(place)

    def _refill(self) -> None:
        spill, ring = self._spill, self._ring
        if spill is None or (not spill.count and ring.accepting):
            return
        with self._lock:
            self._is_due = False
            while found := spill.read():
                (flags, props, target, body), place = found
                receipt = spill.receipts.get(spill.n_taken)
                is_counted = spill.n_taken >= spill.n_before
                number = ring.last
                if not ring.add_spilled(body, props, target, flags, receipt, is_counted):
                    break
                spill.advance(place)
                spill.places.append((number, place))
            self._changed()

    def close(self) -> None:
        """Let go of the file; what it holds is the next program's, and who waits hears so."""
        if self._spill is None:
            return
        try:
            self._note()
        except OSError as error:
            self._failed(error)
        with self._lock:
            spill, self._spill = self._spill, None
            spill.close()
        for receipt in list(spill.receipts.values()):
            self._ring.leave_in_file(receipt)

    def forked(self) -> None:
        """In the child of a fork: the file is the parent's."""
        spill, self._spill = self._spill, None  # no lock: who had it is not in this process
        if spill is not None:
            spill.close()
