"""Delayed exchanges of one virtual host: each has an internal queue, in which its messages wait.

An exchange is delayed by its arguments or by a policy. The end of a policy releases what waits, in
portions, and the queue goes when that is safe where it is then. Called by `vhost.py`, on the loop
thread; what a message waits for is the business of the message path.
Source: docs/delayed.md.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from lavinmq import _core, fieldtable
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.directories import hashed
from lavinmq.policy.features import queue_features
from lavinmq.process.log import Log
from lavinmq.process.portions import in_portions
from lavinmq.vhost.exchange import Exchange, raw_key
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.queue_files import QueueFiles

MAX_NAME: Final = 244
"""Bytes of the name of a delayed exchange, as in LavinMQ; that of its queue is longer."""


class MakeQueue(Protocol):
    """How the virtual host makes a queue that nobody knows yet."""

    def __call__(
        self, name: str, durable: bool, auto_delete: bool, owner: None, arguments: FieldTable
    ) -> Queue:
        """Returns: the queue."""


class DelayedExchanges:
    """What waits in the exchanges of one virtual host.

    Args:
        queues: what exists, by name; the internal ones come and go here.
        make: makes a queue.
        files: reads and removes those of internal queues.
        core: whose epoch moves with changes.
        loop: whose sync makes a release safe.
        call_soon: of the event loop.
        log: that of the virtual host.
    """

    def __init__(
        self, queues: dict[str, Queue], make: MakeQueue, files: QueueFiles, core: _core.Vhost,
        loop: _core.Loop, call_soon: Callable[..., Any], log: Log,
    ) -> None:  # fmt: skip
        self._queues = queues
        self._make = make
        self._files = files
        self._core = core
        self._loop = loop
        self._call_soon = call_soon
        self._log = log
        self._wished: set[Exchange] = set()
        """That are delayed once there is a directory."""

    def wish(
        self, name: str, *, is_delayed: bool
    ) -> Callable[[Callable[[], object]], object] | None:
        """What a new durable exchange has to wait for before it can be, if anything: for a
        directory, if it is to be delayed. Else none may be left of an earlier one of its name, from
        which a start would release messages (`release_left`).

        Raises: OSError saying why there can be no directory, or one stays.
        """
        if len(raw_key(name)) > MAX_NAME:
            return None
        if not is_delayed:
            left = next(filter(self._files.is_left, _queue_names(name)), None)
            return None if left is None else partial(self._files.set_aside, left)
        if not self._files.is_beside:
            return None
        queue = self._queue_name(name)
        if self._files.found(queue) is not None:
            return None
        return partial(self._files.wish, queue, is_stream=False)

    def changed(self, exchange: Exchange, is_new: bool) -> None:
        """An exchange may be delayed since now, or not any more.

        Args: is_new: what a queue of that name has left belongs to no one; else it was loaded.
        """
        queue = exchange.waiting
        if exchange.is_delayed and queue is None:
            self._add(exchange, is_new)
        elif exchange.is_delayed and queue is not None:
            exchange.core.set_delayed(raw_key(exchange.name), queue.core)
            self._core.touch()
        elif queue is not None:
            self._release(exchange, queue)

    def release_left(self, exchanges: Iterable[Exchange]) -> None:
        """At the start: release what waits in exchanges that a policy had made delayed, when it is
        gone since."""
        for exchange in exchanges:
            if not exchange.durable or exchange.waiting is not None:
                continue
            if (self._files.directory / hashed(self._queue_name(exchange.name))).is_dir():
                queue = self._add(exchange, False)
                if queue is not None:
                    self._release(exchange, queue)

    def remove(self, exchange: Exchange) -> None:
        """The exchange is not delayed any more, or goes: its queue goes with what is in it."""
        queue, exchange.waiting = exchange.waiting, None
        self._wished.discard(exchange)
        if queue is None:
            return
        exchange.core.set_delayed(b"", None)
        self._core.touch()
        del self._queues[queue.name]
        if queue.core.delete():
            self._files.remove(queue)

    def _add(self, exchange: Exchange, is_new: bool) -> Queue | None:
        """Give a delayed exchange the queue in which its messages wait; at the start with those
        from before. Returns: the queue, None when there can be none."""
        if len(raw_key(exchange.name)) > MAX_NAME:
            self._log.error("exchange %r has too long a name to be delayed", exchange.name)
            return None
        name = self._queue_name(exchange.name)
        is_beside = self._files.is_beside
        if (
            exchange.durable
            and is_new
            and not (
                self._has_directory(exchange, name) if is_beside else self._clear_directory(name)
            )
        ):
            return None
        arguments = fieldtable.amended(
            EMPTY, {"x-dead-letter-exchange": exchange.name, "auto-delete": exchange.auto_delete}
        )
        queue = self._make(name, exchange.durable, False, None, arguments)
        queue.is_internal = True
        queue.features = queue_features(arguments)
        self._queues[name] = exchange.waiting = queue
        exchange.core.set_delayed(raw_key(exchange.name), queue.core)
        self._core.touch()
        if exchange.durable and not (is_new and is_beside):
            self._files.load(queue, queue.directory)
        return queue

    def _queue_name(self, exchange: str) -> str:
        """The name of an exchange's queue; older releases had another one."""
        name, older = _queue_names(exchange)
        is_older = (self._files.directory / hashed(older)).exists()
        return older if is_older else name

    def _has_directory(self, exchange: Exchange, name: str) -> bool:
        """Take the directory that was made for the queue, or have one made: then the exchange is
        delayed from when it is there. Returns: whether it is there."""
        try:
            is_made = self._files.found(name) is not None
        except OSError as error:
            self._log.error("files of an earlier queue %r are in the way: %s", name, error)
            return False
        if is_made:
            self._files.take(name)
        elif exchange not in self._wished:
            self._wished.add(exchange)
            self._files.wish(name, partial(self._made, exchange), is_stream=False)
        return is_made

    def _made(self, exchange: Exchange) -> None:
        """There is a directory, or there can be none."""
        if exchange in self._wished:
            if exchange.is_delayed and exchange.waiting is None:
                self._add(exchange, True)
                self._files.sync_names()  # a policy has made it so, and nothing is recorded
            self._wished.discard(exchange)

    def _clear_directory(self, name: str) -> bool:
        """Set aside what an exchange that was deleted has left. Returns: whether that went well."""
        try:
            self._files.make_way(name)
        except OSError as error:
            self._log.error("files of an earlier queue %r are in the way: %s", name, error)
            return False
        return True

    def _release(self, exchange: Exchange, queue: Queue) -> None:
        """The exchange is not delayed any more: what waits goes on now."""
        exchange.core.end_delay()
        self._core.touch()
        in_portions(self._call_soon, self._releases(exchange, queue))

    def _releases(self, exchange: Exchange, queue: Queue) -> Iterator[None]:
        """Release a few milliseconds' worth with each step, as long as nothing else is decided."""
        while queue.core.release_some():
            yield
            if exchange.is_delayed or exchange.waiting is not queue or queue.core.is_closed:
                return
        exchange.core.set_delayed(b"", None)
        self._core.touch()
        self._loop.after_sync(partial(self._released, exchange, queue))

    def _released(self, exchange: Exchange, queue: Queue) -> None:
        """What was released is on disk. What could not be read stays, for the next start."""
        if exchange.is_delayed or exchange.waiting is not queue:
            return
        if queue.core.is_closed or queue.core.ready:
            self._log.error(
                "messages of queue %r could not be read, they stay there until the next start",
                queue.name,
            )
        elif self._queues.get(queue.name) is queue:
            self.remove(exchange)


def _queue_names(exchange: str) -> tuple[str, str]:
    """The name of an exchange's queue, and the one that older releases gave it."""
    return f"amq.delayed-{exchange}", f"amq.delayed.{exchange}"
