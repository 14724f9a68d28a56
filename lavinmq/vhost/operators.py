"""What operators do to a queue besides declaring and deleting: pause, resume, restart, time-outs.

On the loop thread. Source: docs/http-api.md, docs/durability.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lavinmq.files.saving import Disk
from lavinmq.process.log import Log
from lavinmq.vhost import pause
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.queue_files import QueueFiles
from lavinmq.vhost.recorded import Recorded


class Operators:
    """The queues of one virtual host, as operators handle them.

    Args: queues: what exists, by name; recorded: syncs their directories; files: reads them again;
        timeout_ms: how long a delivery may stay unacked where the queue does not say, 0 = for ever;
        log: that of the virtual host; disk: see `files/saving.py`.
    """

    def __init__(
        self, queues: Mapping[str, Queue], recorded: Recorded, files: QueueFiles, timeout_ms: int,
        log: Log, disk: Disk,
    ) -> None:  # fmt: skip
        self._queues = queues
        self._recorded = recorded
        self._files = files
        self._timeout_ms = timeout_ms
        self._log = log
        self._disk = disk
        self._restarting: set[Queue] = set()

    async def pause(self, name: str) -> None:
        """Deliver nothing from a queue, also after a restart; it goes on taking messages.

        Raises: KeyError when there is none; OSError when the disk refuses the mark.
        """
        await self._set_paused(self._queues[name], True)
        self._log.info("queue %r is paused", name)

    async def resume(self, name: str) -> None:
        """Deliver again. Raises: KeyError; OSError when the mark cannot be removed."""
        await self._set_paused(self._queues[name], False)
        self._log.info("queue %r is resumed", name)

    async def _set_paused(self, queue: Queue, is_paused: bool) -> None:
        """It acts once the mark is there. A queue that is deleted meanwhile is paused no more."""
        if queue.is_stored:
            change = pause.mark if is_paused else pause.unmark
            await self._disk.run_in_order(partial(change, queue.directory, self._disk.changes))
            if self._queues.get(queue.name) is not queue:
                return
            self._recorded.sync_directory(queue.directory)
        queue.core.is_paused = is_paused

    async def restart(self, name: str) -> None:
        """Read the files of a closed queue again. Its consumers are told that they are cancelled.
        Others are served meanwhile.
        A stream is served once `when_synced` says so: who waits for that finds it running.

        Raises: KeyError when there is none; ValueError when it is not closed, is being restarted
            already, or has no files that outlive the broker; ValueError or OSError, naming the
            file, when that cannot be read: it stays closed then.
        """
        queue = self._queues[name]
        if not queue.core.is_closed:
            raise ValueError(f"queue '{name}' is running")
        if not queue.is_stored:
            raise ValueError(f"queue '{name}' has nothing on disk to start from")
        if queue in self._restarting:
            raise ValueError(f"queue '{name}' is being restarted")
        self._restarting.add(queue)
        try:
            await self._files.read_ahead(queue)
            for consumer in queue.take_consumers():
                consumer.stop()
                consumer.cancelled()
            await self._files.restart(queue)
        finally:
            self._restarting.discard(queue)
        self._log.notice(
            "queue %r is restarted with %d messages; while it was closed it missed %d that were"
            " published without confirms", name, queue.core.ready, queue.core.take_missed(),
        )  # fmt: skip

    def set_default_timeout(self, timeout_ms: int) -> None:
        """How long a delivery may stay unacked where the queue does not say, 0 = for ever."""
        if timeout_ms != self._timeout_ms:
            self._timeout_ms = timeout_ms
            for queue in self._queues.values():
                self.set_timeout(queue)

    def set_timeout(self, queue: Queue) -> None:
        """A queue is new, or has new features."""
        own = queue.features.consumer_timeout_ms
        queue.core.consumer_timeout_ms = self._timeout_ms if own is None else own
