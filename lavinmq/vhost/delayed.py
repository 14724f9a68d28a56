"""Delayed exchanges of one virtual host: each has an internal queue, in which its messages wait.

An exchange is delayed by its arguments or by a policy. The end of a policy releases what waits, in
portions, and the queue goes when that is safe where it is then. Called by `vhost.py`, on the loop
thread; what a message waits for is the business of the message path.
Source: AMQP reference, section 19.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from lavinmq import _core, fieldtable
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.directories import hashed
from lavinmq.policy.features import queue_features
from lavinmq.process.log import Log
from lavinmq.process.portions import in_portions
from lavinmq.vhost.exchange import Exchange, raw_key
from lavinmq.vhost.queue import Queue

MAX_NAME: Final = 244
"""Bytes of the name of a delayed exchange, as in LavinMQ; that of its queue is longer."""


class QueueKeeper(Protocol):
    """Who makes internal queues and removes their files: the virtual host."""

    directory: Path
    core: _core.Vhost
    queues: dict[str, Queue]

    def make_internal(self, name: str, durable: bool, arguments: FieldTable) -> Queue:
        """A queue that nobody knows yet."""

    def load_internal(self, queue: Queue) -> None:
        """Read what its directory holds, and make one where there is none."""

    def remove_files(self, queue: Queue) -> None:
        """Remove the directory of a deleted queue."""

    def make_way(self, directory: Path, name: str) -> None:
        """Have nothing there where a new queue of that name is going to be."""


class DelayedExchanges:
    """What waits in the exchanges of one virtual host.

    Args: keeper: the virtual host; loop: whose sync makes a release safe; call_soon: of the event
        loop; log: that of the virtual host.
    """

    def __init__(
        self, keeper: QueueKeeper, loop: _core.Loop, call_soon: Callable[..., Any], log: Log
    ) -> None:
        self._keeper = keeper
        self._loop = loop
        self._call_soon = call_soon
        self._log = log

    def changed(self, exchange: Exchange, is_new: bool) -> None:
        """An exchange may be delayed since now, or not any more.

        Args: is_new: what a queue of that name has left belongs to no one; else it was loaded.
        """
        queue = exchange.waiting
        if exchange.is_delayed and queue is None:
            self._add(exchange, is_new)
        elif exchange.is_delayed and queue is not None:
            exchange.core.set_delayed(raw_key(exchange.name), queue.core)
            self._keeper.core.touch()
        elif queue is not None:
            self._release(exchange, queue)

    def release_left(self, exchanges: Iterable[Exchange]) -> None:
        """At the start: release what waits in exchanges that a policy had made delayed, when it is
        gone since."""
        for exchange in exchanges:
            if not exchange.durable or exchange.waiting is not None:
                continue
            if (self._keeper.directory / hashed(self._queue_name(exchange))).is_dir():
                queue = self._add(exchange, False)
                if queue is not None:
                    self._release(exchange, queue)

    def remove(self, exchange: Exchange) -> None:
        """The exchange is not delayed any more, or goes: its queue goes with what is in it."""
        queue, exchange.waiting = exchange.waiting, None
        if queue is None:
            return
        exchange.core.set_delayed(b"", None)
        self._keeper.core.touch()
        del self._keeper.queues[queue.name]
        if queue.core.delete():
            self._keeper.remove_files(queue)

    def _add(self, exchange: Exchange, is_new: bool) -> Queue | None:
        """Give a delayed exchange the queue in which its messages wait; at the start with those
        from before. Returns: the queue, None when there can be none."""
        if len(raw_key(exchange.name)) > MAX_NAME:
            self._log.error("exchange %r has too long a name to be delayed", exchange.name)
            return None
        name = self._queue_name(exchange)
        if exchange.durable and is_new and not self._clear_directory(name):
            return None
        arguments = fieldtable.amended(
            EMPTY, {"x-dead-letter-exchange": exchange.name, "auto-delete": exchange.auto_delete}
        )
        queue = self._keeper.make_internal(name, exchange.durable, arguments)
        queue.is_internal = True
        queue.features = queue_features(arguments)
        self._keeper.queues[name] = exchange.waiting = queue
        exchange.core.set_delayed(raw_key(exchange.name), queue.core)
        self._keeper.core.touch()
        if exchange.durable:
            self._keeper.load_internal(queue)
        return queue

    def _queue_name(self, exchange: Exchange) -> str:
        """The name of an exchange's queue; older releases had another one."""
        older = f"amq.delayed.{exchange.name}"
        is_older = (self._keeper.directory / hashed(older)).exists()
        return older if is_older else f"amq.delayed-{exchange.name}"

    def _clear_directory(self, name: str) -> bool:
        """Set aside what an exchange that was deleted has left. Returns: whether that went well."""
        try:
            self._keeper.make_way(self._keeper.directory / hashed(name), name)
        except OSError as error:
            self._log.error("files of an earlier queue %r are in the way: %s", name, error)
            return False
        return True

    def _release(self, exchange: Exchange, queue: Queue) -> None:
        """The exchange is not delayed any more: what waits goes on now."""
        exchange.core.end_delay()
        self._keeper.core.touch()
        in_portions(self._call_soon, self._releases(exchange, queue))

    def _releases(self, exchange: Exchange, queue: Queue) -> Iterator[None]:
        """Release a few milliseconds' worth with each step, as long as nothing else is decided."""
        while queue.core.release_some():
            yield
            if exchange.is_delayed or exchange.waiting is not queue or queue.core.is_closed:
                return
        exchange.core.set_delayed(b"", None)
        self._keeper.core.touch()
        self._loop.after_sync(partial(self._released, exchange, queue))

    def _released(self, exchange: Exchange, queue: Queue) -> None:
        """What was released is on disk. What could not be read stays, for the next start."""
        if exchange.is_delayed or exchange.waiting is not queue:
            return
        if queue.core.is_closed or queue.core.ready:
            self._log.error("messages stay in queue %r until the next start", queue.name)
        elif self._keeper.queues.get(queue.name) is queue:
            self.remove(exchange)
