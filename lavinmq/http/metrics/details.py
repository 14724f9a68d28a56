"""The metrics of `/metrics/detailed`: of single queues, channels, connections and virtual hosts.

A part for each family that can be asked for; see `families.py`.
Source: docs/monitoring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from lavinmq.http.metrics import links
from lavinmq.http.metrics.exposition import Metric, counter, gauge
from lavinmq.http.metrics.families import CHURN, Part, Scrape, connections_of
from lavinmq.stats.totals import unacknowledged

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue

DETAILED_CHURN: Final = {
    event: counter(f"detailed_{metric.name}", metric.help) for event, metric in CHURN.items()
} | {
    "consumer_added": counter("detailed_consumers_added_total", "Consumers added since start"),
    "consumer_removed": counter("detailed_consumers_removed_total", "Consumers gone since start"),
}


def churn(scrape: Scrape) -> Iterator[str]:
    """What comes and goes."""
    counts = scrape.broker.churn.counters()
    for event, metric in DETAILED_CHURN.items():
        yield scrape.out.alone(metric, counts[event])


QueueValue = Callable[["Queue"], int]
QUEUES: Final[tuple[tuple[Metric, QueueValue], ...]] = (
    (
        gauge("detailed_queue_messages_ready", "Messages that can be delivered"),
        attrgetter("core.ready"),
    ),
    (
        gauge("detailed_queue_messages_unacked", "Messages delivered and not settled"),
        unacknowledged,
    ),
    (
        gauge("detailed_queue_messages", "Messages, ready and unsettled ones"),
        lambda queue: _messages(queue),
    ),
    (
        counter("detailed_queue_deduplication", "Messages dropped as duplicates"),
        lambda queue: queue.counters()["dedup"],
    ),
    (
        counter("detailed_queue_messages_published_total", "Messages that came in"),
        lambda queue: queue.counters()["publish"],
    ),
    (
        counter("detailed_queue_messages_delivered_total", "Messages delivered or fetched"),
        lambda queue: _delivered(queue),
    ),
    (
        counter("detailed_queue_messages_acked_total", "Messages acknowledged"),
        lambda queue: queue.counters()["ack"],
    ),
)
QUEUE_CONSUMERS: Final = gauge("detailed_queue_consumers", "Consumers of the queue")


def queues(scrape: Scrape) -> Iterator[str]:
    """What is in queues, and what has gone through them."""
    for metric, value in QUEUES:
        yield from _of_queues(scrape, metric, value)


def queue_consumers(scrape: Scrape) -> Iterator[str]:
    """How many serve a queue."""
    yield from _of_queues(scrape, QUEUE_CONSUMERS, attrgetter("core.consumers"))


def _of_queues(scrape: Scrape, metric: Metric, value: QueueValue) -> Iterator[str]:
    out = scrape.out
    yield out.head(metric)
    for vhost in scrape.vhosts:
        for queue in list(vhost.queues.values()):
            labels = out.labels(queue=queue.name, vhost=vhost.name)
            yield out.sample(metric, value(queue), labels)


def _messages(queue: Queue) -> int:
    return queue.core.ready + unacknowledged(queue)


def _delivered(queue: Queue) -> int:
    counters = queue.counters()
    return sum(counters[name] for name in ("deliver", "deliver_no_ack", "get", "get_no_ack"))


CONNECTIONS: Final = (
    counter("detailed_connection_incoming_bytes_total", "Bytes that came by the connection"),
    counter("detailed_connection_outgoing_bytes_total", "Bytes that went by the connection"),
    gauge("detailed_connection_channels", "Channels of the connection"),
)
CHANNELS: Final = (
    gauge("detailed_channel_consumers", "Consumers of the channel"),
    gauge("detailed_messages_unacked", "Messages delivered by the channel and not settled"),
    gauge("detailed_channel_prefetch", "Messages that a consumer to come may have unsettled"),
)


def connections(scrape: Scrape) -> Iterator[str]:
    """Bytes and channels. The label for a connection is called channel, as in LavinMQ."""

    def rows() -> Iterator[tuple[str, tuple[int, int, int]]]:
        for each in connections_of(scrape):
            labels = scrape.out.labels(channel=each.name)
            yield labels, (each.link.received_bytes, each.link.sent_bytes, len(each.channels))

    yield from _table(scrape, CONNECTIONS, rows())


def channels(scrape: Scrape) -> Iterator[str]:
    """What channels do for consumers."""

    def rows() -> Iterator[tuple[str, tuple[int, int, int]]]:
        for connection in connections_of(scrape):
            for each in list(connection.channels.values()):
                if each.is_over:
                    continue
                labels = scrape.out.labels(
                    channel=each.name, vhost=connection.vhost.name, connection=connection.name
                )
                prefetch = connection.link.prefetch(each.id)[0]
                yield labels, (len(each.consumers), connection.link.unacked(each.id), prefetch)

    yield from _table(scrape, CHANNELS, rows())


def _table(
    scrape: Scrape, metrics: tuple[Metric, ...], rows: Iterable[tuple[str, tuple[int, ...]]]
) -> Iterator[str]:
    """Several metrics of the same things. Connections of a unix socket all have one name: their
    numbers are added, as no two samples may have the same labels."""
    sums: dict[str, tuple[int, ...]] = {}
    for labels, values in rows:
        former = sums.get(labels)
        if former is not None:
            values = tuple(a + b for a, b in zip(former, values, strict=True))
        sums[labels] = values
        yield ""
    for at, metric in enumerate(metrics):
        yield scrape.out.head(metric)
        for labels, values in sums.items():
            yield scrape.out.sample(metric, values[at], labels)


EXCHANGE_DEDUP: Final = counter(
    "detailed_exchange_deduplication", "Messages dropped as duplicates"
)  # fmt: skip


def exchanges(scrape: Scrape) -> Iterator[str]:
    """What exchanges have dropped."""
    out = scrape.out
    yield out.head(EXCHANGE_DEDUP)
    for vhost in scrape.vhosts:
        for exchange in list(vhost.exchanges.values()):
            labels = out.labels(exchange=exchange.name, vhost=vhost.name)
            yield out.sample(EXCHANGE_DEDUP, exchange.counters()["dedup"], labels)


VHOST_PUBLISHED: Final = counter(
    "detailed_vhost_messages_published_total", "Messages published to the virtual host"
)
VHOST_DELIVERED: Final = counter(
    "detailed_vhost_messages_delivered_total", "Messages delivered or fetched there"
)
VHOST_QUEUES: Final = gauge("detailed_vhost_queues", "Queues of the virtual host")


def vhost_messages(scrape: Scrape) -> Iterator[str]:
    """Messages of whole virtual hosts, each counted once."""
    out = scrape.out
    found = [
        (out.labels(vhost=vhost.name), vhost.core.counters(), len(vhost.queues))
        for vhost in scrape.vhosts
    ]
    for metric, name in ((VHOST_PUBLISHED, "publish"), (VHOST_DELIVERED, "deliver_get")):
        yield out.head(metric)
        for labels, counters, _ in found:
            yield out.sample(metric, counters[name], labels)
    yield out.head(VHOST_QUEUES)
    for labels, _, n_queues in found:
        yield out.sample(VHOST_QUEUES, n_queues, labels)


FAMILIES: Final[dict[str, Part]] = {
    "connection_churn_metrics": churn,
    "queue_coarse_metrics": queues,
    "queue_consumer_count": queue_consumers,
    "connection_coarse_metrics": connections,
    "connection_metrics": connections,
    "channel_metrics": channels,
    "exchange_metrics": exchanges,
    "vhost_message_stats": vhost_messages,
    "shovel_metrics": links.shovels,
    "federation_metrics": links.federation,
}
"""What `/metrics/detailed` can be asked for."""
