"""What was recorded of a virtual host comes back at the start; what cannot is said and kept.

Called by `vhost.py`, once, before anybody is served. Source: docs/formats.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from lavinmq import _core
from lavinmq.arguments.exchange_types import EXCHANGE_TYPES
from lavinmq.files.definitions import BindingDef, ExchangeDef, QueueDef
from lavinmq.files.directories import hashed
from lavinmq.policy.features import mistyped
from lavinmq.process.log import Log
from lavinmq.vhost.bindings import Bindings
from lavinmq.vhost.queue_files import Look
from lavinmq.vhost.recorded import Recorded

MANY: Final = 1_000
"""Queues of which directories are looked into ahead."""
LISTERS: Final = 2
"""Threads that do that: a disk that has to be waited for is asked for more than one thing."""


def load_exchanges(
    stored: Iterable[ExchangeDef],
    add: Callable[[ExchangeDef], object],
    recorded: Recorded,
    log: Log,
) -> Iterator[None]:
    """Add the exchanges of the file, one in each step."""
    for exchange in stored:
        yield
        if not exchange.name and exchange.type != "direct":
            log.warning("the default exchange has type %r: ignored", exchange.type)
            continue
        if exchange.type not in EXCHANGE_TYPES:
            log.warning(
                "exchange %r has type %r, which this release does not have: it is left out",
                exchange.name, exchange.type,
            )  # fmt: skip
            recorded.leave_out(exchange)
            continue
        wrong = mistyped(exchange.arguments, "alternate-exchange")
        if wrong is not None:
            log.warning("exchange %r: %s is no text: left out", exchange.name, wrong)
        type_ = EXCHANGE_TYPES[exchange.type]
        reason = type_.complaint(exchange.arguments)
        if reason is not None:
            log.warning(
                "exchange %r %s in place of what it was declared with: %s",
                exchange.name, type_.instead, reason,
            )  # fmt: skip
        add(exchange)


def load_queues(
    stored: Sequence[QueueDef], root: str, add: Callable[[QueueDef, str, Look], object]
) -> None:
    """Add the queues of the file, each with its directory below `root`, which threads look into
    ahead: that is half of the time that most of very many queues take. Raises: OSError."""
    names = [hashed(queue.name) for queue in stored]
    listing = _core.Listing(root, names)
    threads = started(listing.work, LISTERS) if len(names) >= MANY else []
    try:
        for at, queue in enumerate(stored):
            add(queue, f"{root}/{names[at]}", partial(listing.entries, at))
    finally:
        listing.stop()
        for thread in threads:
            thread.join()


def started(work: Callable[[], object], n: int) -> list[threading.Thread]:
    """Threads that do something; fewer where no more can be started."""
    threads = [threading.Thread(target=work, name="list", daemon=True) for _ in range(n)]
    for at, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            return threads[:at]
    return threads


def load_bindings(
    stored: Iterable[BindingDef], bindings: Bindings, recorded: Recorded, log: Log
) -> Iterator[None]:
    """Bind what the file says, once exchanges and queues are there, one in each step."""
    for binding in stored:
        yield
        try:
            why = "" if bindings.load(binding) else "left out, one of them is missing"
        except ValueError as error:
            why = str(error)
        if why:
            log.warning("binding from %r to %r: %s", binding.source, binding.destination, why)
            recorded.leave_out(binding)
