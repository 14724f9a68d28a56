"""Subscriptions as bindings: what stands in their arguments, and how the message path hears of it.

A subscription of MQTT binds the queue of a session to `mqtt.default`, with the topic filter as the
key. A member of a shared subscription has a binding, too, whose key is the whole `$share/...`: it
says who is a member, and nothing is routed by it; the queue that all members share has one with the
filter. Filters that are longer than names in definitions stand in an argument there.
Source: docs/mqtt.md, docs/formats.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from lavinmq import _core
from lavinmq.fieldtable import FieldTable

if TYPE_CHECKING:
    from lavinmq.files.definitions import BindingDef
    from lavinmq.vhost.destination import Destination

EXCHANGE: Final = "mqtt.default"
PREFIX: Final = "mqtt."
"""Of the names of queues that are sessions; a client identifier follows."""
SHARE: Final = "$share/"
"""Begins the key of a membership, and behind the prefix the name of what is shared."""
QUEUE: Final = "$queue/"
"""Begins the key of a session that takes from a queue or a stream of AMQP, whose name follows."""

QOS: Final = "mqtt.qos"
NO_LOCAL: Final = "mqtt.no-local"
RETAIN_AS_PUBLISHED: Final = "mqtt.retain-as-published"
RETAIN_HANDLING: Final = "mqtt.retain-handling"
SUBSCRIPTION_ID: Final = "mqtt.subscription-id"
APART: Final = "mqtt.apart"
"""Nothing that comes over the bridge from AMQP: the user may not read there."""
FILTER: Final = "mqtt.filter"
"""The whole filter, in definitions only."""

MOST_STORED: Final = 255
"""Bytes of a key in definitions."""
_LONG: Final = "$long/"
_DIGEST: Final = re.compile(r"\$[0-9a-f]{64}")
MOST_GROUP: Final = 120
"""Bytes of the name of a group whose filter does not fit into the name of a queue."""


class Options(NamedTuple):
    """How a client has subscribed."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    subscription_id: int = 0
    apart: bool = False


def options_of(arguments: FieldTable) -> Options:
    """What arguments say; what they do not say, or cannot, is as by default."""
    qos = _number(arguments, QOS)
    return Options(
        min(max(qos, 0), 2),
        arguments.get(NO_LOCAL) is True,
        arguments.get(RETAIN_AS_PUBLISHED) is True,
        _number(arguments, RETAIN_HANDLING),
        _number(arguments, SUBSCRIPTION_ID),
        arguments.get(APART) is True,
    )


def _number(arguments: FieldTable, name: str) -> int:
    value = arguments.get(name)
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 28 else 0


def parts_of(key: str) -> tuple[str, str] | None:
    """Group and filter of a shared subscription, which is known to be one; None of any other."""
    if not key.startswith(SHARE):
        return None
    group, _, text = key[len(SHARE) :].partition("/")
    return group, text


def is_membership(key: str) -> bool:
    """Whether nothing is routed by the key: it says from which other queue a session takes."""
    return key.startswith((SHARE, QUEUE))


def shared_name(group: str, text: str) -> str:
    """The name of the queue of a shared subscription, as it is made.

    In the place of a filter that is too long stands its digest, behind `#/`, which no filter begins
    with: else somebody could subscribe to that name, and share what they may not read.

    Raises: ValueError, when the name of the group is too long.
    """
    name = _named(group, text)
    if len(_raw(name)) <= MOST_STORED and not is_older_digest(text):
        return name
    if len(_raw(group)) > MOST_GROUP:
        raise ValueError(f"the name of a shared subscription has {MOST_GROUP} bytes at most")
    return _named(group, f"#/{_digest(text)}")


def name_among(queues: Mapping[str, Destination], group: str, text: str) -> str:
    """The name of the queue that a shared subscription has in a virtual host, or would have.

    One that an older release has made keeps its name, as long as it is there. It is for the filter
    that it is bound with alone, whatever its name looks like.

    Raises: ValueError, when the name of the group is too long.
    """
    older = _named(group, text)
    if len(_raw(older)) > MOST_STORED:
        older = _named(group, f"${_digest(text)}")
    queue = queues.get(older)
    if queue is not None and any(key == text for _, key, _ in queue.incoming):
        return older
    return shared_name(group, text)


def is_older_digest(text: str) -> bool:
    """Whether a filter is what older releases had in the place of one that is too long."""
    return _DIGEST.fullmatch(text) is not None


def queue_of(queues: Mapping[str, Destination], key: str) -> str | None:
    """The name of the queue of a shared subscription, as it was recorded; None of any other."""
    parts = parts_of(key)
    try:
        return None if parts is None else name_among(queues, *parts)
    except ValueError:
        return None


def _named(group: str, text: str) -> str:
    return f"{PREFIX}{SHARE}{group}/{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(_raw(text)).hexdigest()


@lru_cache(maxsize=64)
def arguments_of(options: Options) -> FieldTable:
    """The arguments of a binding, with those of defaults left out but the QoS; shared by all that
    are the same, for there may be very many."""
    return FieldTable({
        QOS: options.qos,
        **({NO_LOCAL: True} if options.no_local else {}),
        **({RETAIN_AS_PUBLISHED: True} if options.retain_as_published else {}),
        **({RETAIN_HANDLING: options.retain_handling} if options.retain_handling else {}),
        **({SUBSCRIPTION_ID: options.subscription_id} if options.subscription_id else {}),
        **({APART: True} if options.apart else {}),
    })  # fmt: skip


def bind(exchange: _core.Exchange, to: Destination, key: str, arguments: FieldTable) -> None:
    """Have the message path route by a subscription, with these options from now on.

    Raises: ValueError for a filter that is none, or has too many levels with wildcards.
    """
    if is_membership(key):
        return
    options = options_of(arguments)
    if not isinstance(to.core, _core.Queue):
        raise ValueError("only sessions are bound to the exchange of MQTT")
    subscription = _core.Subscription(
        to.core, options.qos, options.no_local, options.retain_as_published,
        options.subscription_id, options.apart,
    )  # fmt: skip
    exchange.bind(_raw(key), b"", subscription)


def unbind(exchange: _core.Exchange, to: Destination, key: str) -> None:
    """Have the message path forget a subscription."""
    if not is_membership(key):
        exchange.unbind(_raw(key), b"", to.core)


def stored(key: str, arguments: FieldTable) -> tuple[str, FieldTable]:
    """Key and arguments as they stand in definitions."""
    raw = _raw(key)
    if len(raw) <= MOST_STORED:
        return key, arguments
    return _LONG + _digest(key), FieldTable({**arguments, FILTER: key})


def loaded(binding: BindingDef) -> tuple[str, FieldTable]:
    """Key and arguments of what stands in definitions."""
    long = binding.arguments.get(FILTER)
    if not isinstance(long, str) or not binding.routing_key.startswith(_LONG):
        return binding.routing_key, binding.arguments
    return long, FieldTable({n: v for n, v in binding.arguments.items() if n != FILTER})


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
