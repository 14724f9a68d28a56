"""Keeps a lease while the event loop is busy with something that takes long, as loading all data.

Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lavinmq.cluster.etcd import Etcd, EtcdError


@contextmanager
def kept_meanwhile(
    new_etcd: Callable[[], Etcd], lease: int, ttl_s: int, renewed: Callable[[float], object]
) -> Iterator[None]:
    """Have a thread renew a lease inside the block.

    Args: renewed: is told, by the thread, until when by the monotonic clock it is ours.
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

    thread = threading.Thread(target=lambda: asyncio.run(renew()), name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
