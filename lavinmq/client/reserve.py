"""What a producer has in a file beside its ring: how messages go there, come back, and end.

From the first message in the file on all go there until it is empty, so the order stays. `put` is
called by any thread; all else belongs to the loop's, but `forked`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lavinmq.client.errors import BufferFullError, ClosedError
from lavinmq.client.spill import Spill

if TYPE_CHECKING:
    from lavinmq.client._engine import Receipt, Ring

Prepared = tuple[bytes | None, bytes | None, int]
LOOK_WAIT_S: Final = 0.1
CLOSE_WAIT_S: Final = 1.0
PUT_WAIT_S: Final = 30.0
GIVE_WAY_S: Final = 0.001
"""What is waited for the lock: a disk may stand still, and in the main thread a signal may come."""


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
        self._is_waiting = self.is_missed = False
        """Whether it waits for the lock: others let it go first. Whether it could not have it: who
        has it wakes the loop, or else the poll looks."""
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
        if self._is_waiting:
            time.sleep(GIVE_WAY_S)
        if not self._lock.acquire(timeout=PUT_WAIT_S):
            raise BufferFullError("the spill is busy with another message")
        try:
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
        finally:
            self._lock.release()
            if self.is_missed:
                self.is_missed = False
                ring.wake()
        if is_first:
            ring.wake()
        return receipt

    def look(self) -> None:
        """Note what is with the broker, and take back what there is room for; if the disk fails,
        tell it once, and wait for the next look."""
        spill = self._spill
        if spill is None or not (spill.places or spill.count or not self._ring.accepting):
            self.error = None
            return
        # Who has the lock may be stopped by a signal, and its handler wait for this thread.
        self._is_waiting = True
        has_lock = self._lock.acquire(timeout=LOOK_WAIT_S)
        self._is_waiting, self.is_missed = False, not has_lock
        if not has_lock:
            return
        failed: OSError | None = None
        try:
            self._note(spill)
            self._refill(spill)
        except OSError as error:
            failed = error
        finally:
            self._lock.release()
        is_new, self.error = self.error is None, failed
        if failed is not None and is_new:
            self._failed(failed)

    def _note(self, spill: Spill) -> None:
        place = None
        first = self._ring.first
        while spill.places and spill.places[0][0] < first:
            place = spill.places.popleft()[1]
        if place is not None:
            spill.done(place)

    def _refill(self, spill: Spill) -> None:
        ring = self._ring
        if not spill.count and ring.accepting:
            return
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
        spill, self._spill = self._spill, None
        if spill is None:
            return
        has_lock = self._lock.acquire(timeout=CLOSE_WAIT_S)
        try:
            self._note(spill)
        except OSError as error:
            self._failed(error)
        finally:
            spill.close()
            if has_lock:
                self._lock.release()
        for receipt in list(spill.receipts.values()):
            self._ring.leave_in_file(receipt)

    def forked(self) -> None:
        """In the child of a fork: the file is the parent's."""
        spill, self._spill = self._spill, None  # no lock: who had it is not in this process
        if spill is not None:
            spill.close()
