"""What was recorded of a virtual host comes back at the start; what cannot is said and kept.

Called by `vhost.py`, once, before anybody is served. Source: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lavinmq.arguments.exchange_types import EXCHANGE_TYPES
from lavinmq.files.definitions import BindingDef, ExchangeDef, QueueDef
from lavinmq.policy.features import mistyped
from lavinmq.process.log import Log
from lavinmq.vhost.bindings import Bindings
from lavinmq.vhost.recorded import Recorded


def load_exchanges(
    stored: Iterable[ExchangeDef],
    add: Callable[[ExchangeDef], object],
    recorded: Recorded,
    log: Log,
) -> None:
    """Add the exchanges of the file."""
    for exchange in stored:
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


def load_queues(stored: Iterable[QueueDef], add: Callable[[QueueDef], object]) -> None:
    """Add the queues of the file."""
    for queue in stored:
        add(queue)


def load_bindings(
    stored: Iterable[BindingDef], bindings: Bindings, recorded: Recorded, log: Log
) -> None:
    """Bind what the file says, once exchanges and queues are there."""
    for binding in stored:
        try:
            why = "" if bindings.load(binding) else "left out, one of them is missing"
        except ValueError as error:
            why = str(error)
        if why:
            log.warning("binding from %r to %r: %s", binding.source, binding.destination, why)
            recorded.leave_out(binding)
