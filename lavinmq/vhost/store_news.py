"""What the log says of queues whose files could not be read or written, or can be again.

Owned by a `VHost`, asked after a tick in which something happened to a store. Takes leave of the
consumers of a queue that was closed for it. Source: docs/formats.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from lavinmq.process.log import Log
from lavinmq.vhost.queue import Queue

State: TypeAlias = tuple[int, int, int, bool, bool, int]
"""Records lost, errno of the last read, errno of the last write; whether a publish was missed,
whether messages that are to go elsewhere are parked; how many have come back."""
SPOILED: Final = "the disk gives other bytes than were written"
NOTHING_SAID: Final[State] = (0, 0, 0, False, False, 0)


class StoreNews:
    """Knows what was said already: each thing is said once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._said: WeakKeyDictionary[Queue, State] = WeakKeyDictionary()

    def report(self, queues: Iterable[Queue]) -> None:
        """Log what has changed since the last report; tell the consumers of closed queues."""
        for queue in list(queues):
            self.report_damage(queue)
            core = queue.core
            state = (
                core.lost, core.read_error, core.write_error, core.missed > 0, core.parked > 0,
                core.returned,
            )  # fmt: skip
            before = self._said.get(queue, NOTHING_SAID)
            if state != before:
                self._said[queue] = state
                self._report(queue, before)
            if core.take_broken():
                for consumer in queue.take_consumers():
                    consumer.stop()
                    consumer.cancelled()

    def forget(self, queue: Queue) -> None:
        """The queue has started anew: what was said of it does not count any more."""
        self._said.pop(queue, None)

    def report_damage(self, queue: Queue) -> None:
        """Log the damages that reading has met."""
        for path, position, end in queue.core.take_damage():
            self._log.error(
                "queue %r: %s is damaged at byte %d: %d bytes cannot be read; they are kept as"
                " %s.damaged", queue.name, path, position, end - position, os.path.basename(path),
            )  # fmt: skip

    def _report(self, queue: Queue, before: State) -> None:
        core, name = queue.core, queue.name
        if core.read_error != before[1]:
            closed = ". It is closed; its files are read again at the next start"
            why = SPOILED if core.read_error == errno.EBADMSG else os.strerror(core.read_error)
            self._log.error(
                "queue %r cannot be read: %s%s", name, why, closed if core.is_closed else ""
            )
        if core.lost != before[0]:
            self._log.error(
                "queue %r: %d messages in %s could not be read and were given up",
                name, core.lost, queue.directory,
            )  # fmt: skip
        if core.missed and not before[3]:
            self._log.error(
                "queue %r is closed: it misses what is published to it without confirms", name
            )
        self._report_moves(queue, before)
        if (core.is_stuck, core.write_error) == (False, before[2]):
            return
        if core.is_stuck:
            self._log.error(
                "Cannot write %s: %s. Messages of queue %r wait in memory, publishers are held",
                core.failed_file, os.strerror(core.write_error), name,
            )  # fmt: skip
        elif core.write_error:
            self._log.error(
                "Cannot write %s: %s. Queue %r is closed; its files are read again when it or the "
                "broker is restarted", core.failed_file, os.strerror(core.write_error), name,
            )  # fmt: skip
        elif before[2]:
            self._log.notice("queue %r is written again", name)

    def _report_moves(self, queue: Queue, before: State) -> None:
        core, name = queue.core, queue.name
        if core.parked and not before[4]:
            refuser = core.refuser.decode("utf-8", "replace")
            why = f"queue {refuser!r} cannot be written" if refuser else "they cannot be read"
            self._log.error(
                "queue %r: messages that died or were released there stay, because %s. They are"
                " sent on when it can", name, why,
            )  # fmt: skip
        elif before[4] and not core.parked:
            self._log.notice("queue %r: nothing that is to go to other queues stays there", name)
        if core.returned != before[5]:
            self._log.error(
                "queue %r: %d messages that were to be moved are back, because the other queue"
                " cannot be written", name, core.returned - before[5],
            )  # fmt: skip
