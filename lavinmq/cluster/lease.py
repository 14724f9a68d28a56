"""Leases: one is kept while the event loop is busy with something that takes long, as loading all
data; and those who follow find out that a leader's is over.

Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lavinmq.cluster.etcd import Etcd, EtcdError

MARGIN_S: Final = 0.5
"""Of its lease that a leader does not use."""
FORGOTTEN_S: Final = 0.8
"""After which a lease may have been renewed and have come near its end again."""


@contextmanager
def kept_meanwhile(
    new_etcd: Callable[[], Etcd], lease: int, ttl_s: int, renewed: Callable[[float], object]
) -> Iterator[None]:
    """Have a thread renew a lease inside the block.

    Nobody waits for the thread, whose last question may be on its way for as long as etcd takes:
    it ends behind that. Args: renewed: is told, by the thread, until when by the monotonic clock
    the lease is ours; once more, maybe, behind the block.
    """
    is_over = threading.Event()

    async def renew() -> None:
        etcd = new_etcd()
        try:
            while not is_over.is_set():
                began = time.monotonic()
                with suppress(EtcdError):
                    renewed(began + await etcd.keep_alive(lease))
                await asyncio.get_running_loop().run_in_executor(None, is_over.wait, ttl_s / 4)
        finally:
            await etcd.close()

    threading.Thread(target=lambda: asyncio.run(renew()), name="lease", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class Ending:
    """Tells when a leader has ended by its own clock, because its lease was not renewed: that is
    `MARGIN_S` before its end, and etcd lets go of a lease up to half a second after it.

    Args: time_left: asks etcd, which tells whole seconds and -1 for a lease that is gone.
    """

    def __init__(self, time_left: Callable[[int], Awaitable[tuple[int, int]]]) -> None:
        self._time_left = time_left
        self._lease = 0
        self._since = self._asked_at = 0.0

    async def is_over(self, lease: int) -> bool:
        """Ask; it has to be asked again and again. Raises: EtcdError."""
        left, _ = await self._time_left(lease)
        now = time.monotonic()
        if left > 0:
            self._lease = 0
            return False
        # Less than a second is left: how much, only time tells.
        if lease != self._lease or now - self._asked_at > FORGOTTEN_S:
            self._since = now
        self._lease, self._asked_at = lease, now
        return left < 0 or now - self._since >= 1 - MARGIN_S
