"""What a virtual host comes to as a whole: churn, messages, bytes, and how they have changed.

Sampled together with all the parts (see `sampler.py`), in one pass over them. Bytes of connections
that are over stay counted, so that no history is rewritten when a connection goes.
Source: docs/monitoring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq.stats.churn import Churn
from lavinmq.stats.sampler import Gauge, Tracked

if TYPE_CHECKING:
    from lavinmq import _core
    from lavinmq.stats.lags import Lags
    from lavinmq.stats.track import Track

MESSAGES: Final = (
    "ack", "confirm", "deliver", "deliver_no_ack", "get", "get_no_ack", "deliver_get", "publish",
    "redeliver", "reject", "return_unroutable",
)  # fmt: skip
"""Counters of messages of a channel and of a whole virtual host."""


class Queue(Tracked, Protocol):
    """A queue, as far as it is counted."""

    core: _core.Queue

    @property
    def is_stream(self) -> bool:
        """Whether its messages stay when they are read."""


class VHost(Protocol):
    """A virtual host, as far as it is counted."""

    totals: Totals
    core: _core.Vhost

    @property
    def exchanges(self) -> Mapping[str, Tracked]:
        """By name."""

    @property
    def queues(self) -> Mapping[str, Queue]:
        """By name."""


class Session(Tracked, Protocol):
    """A connection, as far as it is counted."""

    traffic: Traffic | None
    """Of its virtual host, once it is open to one."""

    @property
    def link(self) -> _core.Link:
        """What it reads and writes by."""

    @property
    def channels(self) -> Mapping[int, Tracked]:
        """By number."""


class Traffic:
    """Bytes of all connections to a virtual host."""

    __slots__ = ("gone_received", "gone_sent", "received", "sent", "track")

    def __init__(self) -> None:
        self.gone_received = self.gone_sent = 0
        self.received = self.sent = 0
        self.track: Track | None = None

    def leave(self, received: int, sent: int) -> None:
        """A connection is over, after so many bytes."""
        self.gone_received += received
        self.gone_sent += sent

    def counters(self) -> dict[str, int]:
        """Bytes at the last sample."""
        return {"recv_oct": self.received, "send_oct": self.sent}


class Messages:
    """Messages of a virtual host, each counted once however many queues it reached."""

    __slots__ = ("_vhost", "track")

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self.track: Track | None = None

    def counters(self) -> dict[str, int]:
        """Messages since the start."""
        return self._vhost.core.counters()


def unacknowledged(queue: Queue) -> int:
    """Messages that are delivered and not settled; those of a stream are ready all the time."""
    return 0 if queue.is_stream else queue.core.unacked


class Totals:
    """Of one virtual host. Args: whole: the churn of the broker."""

    __slots__ = ("churn", "messages", "ready", "traffic", "unacked")

    def __init__(self, vhost: VHost, whole: Churn | None) -> None:
        self.churn = Churn(whole)
        self.messages = Messages(vhost)
        self.traffic = Traffic()
        self.ready = Gauge()
        self.unacked = Gauge()


def sampled(
    vhosts: Iterable[VHost], connections: Iterable[Session], lags: Lags,
    samples: Callable[[], int],
) -> Iterator[Tracked]:  # fmt: skip
    """Everything whose rates are shown, for the sampler; gauges are sampled on the way.

    Args: samples: the length of a history now.
    """
    # One moment for both: who leaves during the round is either gone before or still in the list.
    vhosts, connections = list(vhosts), list(connections)
    bytes_ = {
        vhost.totals.traffic: [vhost.totals.traffic.gone_received, vhost.totals.traffic.gone_sent]
        for vhost in vhosts
    }
    lags.begin()
    for vhost in vhosts:
        yield from list(vhost.exchanges.values())
        ready = unacked = 0
        for queue in list(vhost.queues.values()):
            ready += queue.core.ready
            if queue.is_stream:
                lags.sample(queue, samples())
            else:
                unacked += queue.core.unacked
            yield queue
        vhost.totals.ready.sample(ready, samples())
        vhost.totals.unacked.sample(unacked, samples())
        yield vhost.totals.messages
        yield vhost.totals.churn
    for connection in connections:
        sums = bytes_.get(connection.traffic) if connection.traffic is not None else None
        if sums is not None:
            sums[0] += connection.link.received_bytes
            sums[1] += connection.link.sent_bytes
        yield connection
        yield from list(connection.channels.values())
    for traffic, (received, sent) in bytes_.items():
        traffic.received, traffic.sent = received, sent
        yield traffic
