"""Direct reply-to: unlisted queues behind addresses that cannot be guessed.

Each belongs to one channel, and is found by the default exchange only: nobody else can consume,
bind or delete it. Source: docs/protocol.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from lavinmq import _core
from lavinmq.arguments.names import REPLY_PREFIX
from lavinmq.fieldtable import EMPTY
from lavinmq.files.directories import hashed
from lavinmq.vhost.exchange import Exchange, raw_key
from lavinmq.vhost.queue import Queue


class ReplyQueues(dict[str, Queue]):
    """Those of one virtual host, by name.

    Args:
        exchanges: what exists, the default exchange among them.
        loop: the message path's shared state.
        directory: of transient queues.
        segment_size: bytes of a finished segment file.
        remove_files: of a deleted queue.
    """

    def __init__(
        self, exchanges: Mapping[str, Exchange], loop: _core.Loop, directory: str,
        segment_size: int, remove_files: Callable[[Queue], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self._exchanges = exchanges
        self._loop = loop
        self._directory = directory
        self._segment_size = segment_size
        self._remove_files = remove_files

    def add(self) -> Queue:
        """A queue for the replies to one channel."""
        name = REPLY_PREFIX + secrets.token_urlsafe(24)
        path = f"{self._directory}/{hashed(name)}"
        core = _core.Queue(self._loop, path, self._segment_size, False)
        self._exchanges[""].core.bind(raw_key(name), b"", core)
        queue = self[name] = Queue(name, core, False, False, None, EMPTY)
        return queue

    def remove(self, queue: Queue) -> None:
        """Its consumer has gone: the address is void."""
        del self[queue.name]
        self._exchanges[""].core.unbind(raw_key(queue.name), b"", queue.core)
        if queue.core.delete():
            self._remove_files(queue)
