"""The metrics of `/metrics`: what they mean, and where their values come from.

Each part is a function that yields lines; an empty text says that some work was done, so that
others can have their turn. Names and labels are those of LavinMQ, types are what the numbers are.
Source: docs/monitoring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lavinmq.http.clients import clients, sessions_in, sessions_of, shared_in
from lavinmq.http.metrics import cluster as of_cluster
from lavinmq.http.metrics import integrity as of_integrity
from lavinmq.http.metrics import process as of_process
from lavinmq.http.metrics.exposition import Exposition, Metric, counter, gauge
from lavinmq.mqtt.codec import V5, V31, V311
from lavinmq.mqtt.connection import Connection as MqttConnection
from lavinmq.stats.totals import unacknowledged

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.http.clients import Client
    from lavinmq.vhost.vhost import VHost


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an answer is about. `vhosts`: those that count; `descriptors`: open ones."""

    broker: Broker
    vhosts: list[VHost]
    out: Exposition
    families: list[str]
    descriptors: int


Part = Callable[[Scrape], Iterator[str]]


def connections_of(scrape: Scrape) -> Iterator[Client]:
    """Those to the virtual hosts that count."""
    counted = set(scrape.vhosts)
    for connection in clients(scrape.broker):
        if connection.is_member and connection.vhost in counted:
            yield connection


CHURN: Final = {
    "connection_created": counter("connections_opened_total", "Connections opened since start"),
    "connection_closed": counter("connections_closed_total", "Connections ended since start"),
    "channel_created": counter("channels_opened_total", "Channels opened since start"),
    "channel_closed": counter("channels_closed_total", "Channels ended since start"),
    "queue_declared": counter("queues_declared_total", "Queues declared since start"),
    "queue_deleted": counter("queues_deleted_total", "Queues deleted since start"),
}
OPEN_SOCKETS: Final = gauge("process_open_tcp_sockets", "Connections of clients")
DISK_LOW: Final = gauge("alarm_disk_low", "1 while less disk space is free than has to be")
HELD: Final = gauge("publishers_held", "1 while publishers wait for room on the disk")
BROKEN: Final = counter(
    "queues_broken_total", "Queues closed because their files could not be written"
)


def broker(scrape: Scrape) -> Iterator[str]:
    """The broker as a whole, whatever may be seen."""
    out, broker = scrape.out, scrape.broker
    yield from of_process.identity(out, broker.node_name)
    churn = broker.churn.counters()
    for event, metric in CHURN.items():
        yield out.alone(metric, churn[event])
    yield from of_process.machine(out, scrape.descriptors, broker.system)
    yield out.alone(OPEN_SOCKETS, len(broker.connections))
    yield out.alone(DISK_LOW, int(broker.loop.is_low))
    yield out.alone(HELD, int(broker.loop.is_held))
    yield out.alone(BROKEN, broker.loop.breaks)


TOTALS: Final = {
    "connections": gauge("connections", "Connections that are open"),
    "channels": gauge("channels", "Channels that are open"),
    "consumers": gauge("consumers", "Consumers of all queues"),
    "queues": gauge("queues", "Queues"),
    "bindings": gauge("bindings", "Bindings between exchanges and queues"),
    "ready": gauge("queue_messages_ready", "Messages that can be delivered"),
    "unacked": gauge("queue_messages_unacked", "Messages delivered and not settled"),
    "messages": gauge("queue_messages", "Messages in queues, ready and unsettled ones"),
}


def totals(scrape: Scrape) -> Iterator[str]:
    """Sums over the virtual hosts that count."""
    sums = dict.fromkeys(TOTALS, 0)
    for vhost in scrape.vhosts:
        sums["queues"] += len(vhost.queues)
        for queue in list(vhost.queues.values()):
            sums["ready"] += queue.core.ready
            sums["unacked"] += unacknowledged(queue)
            sums["consumers"] += queue.core.consumers
            yield ""
        for exchange in list(vhost.exchanges.values()):
            sums["bindings"] += len(exchange.bindings)
            yield ""
    for connection in connections_of(scrape):
        sums["connections"] += 1
        sums["channels"] += len(connection.channels)
        yield ""
    sums["messages"] = sums["ready"] + sums["unacked"]
    for name, metric in TOTALS.items():
        yield scrape.out.alone(metric, sums[name])


STATS: Final = counter(
    "stats_collection_duration_seconds_total", "Time spent on sampling rates since start"
)
STATS_RATES: Final = gauge(
    "stats_rates_collection_duration_seconds", "Time that the last sample of rates took"
)
STATS_SYSTEM: Final = gauge(
    "stats_system_collection_duration_seconds", "Time that the last sample of the machine took"
)
MFILES: Final = gauge("mfile_count", "Data files that are mapped; this broker maps none")
LARGE: Final = gauge("large_message_bytes", "Memory in messages too large for pooled buffers")
DEDUP: Final = gauge("deduplication_cache_bytes", "Memory in keys of messages seen")
CONFIRMS: Final = Metric(
    "confirm_duration_seconds", "histogram",
    "From reading the oldest publish that an ack confirms to that ack, once for each ack",
)  # fmt: skip
REQUESTS: Final = Metric(
    "http_request_duration_seconds", "histogram", "Time that answers to HTTP requests took"
)


def process(scrape: Scrape) -> Iterator[str]:
    """What the process does and uses."""
    out, broker = scrape.out, scrape.broker
    yield from of_process.usage(out, broker.started_at)
    yield out.alone(STATS, round(broker.sampler.total_s, 6))
    yield out.alone(STATS_RATES, round(broker.sampler.duration_s, 6))
    yield out.alone(STATS_SYSTEM, round(broker.system.duration_s, 6))
    yield out.alone(MFILES, 0)
    yield out.alone(LARGE, broker.loop.large_bytes)
    yield out.alone(DEDUP, broker.loop.dedup_bytes)
    yield out.histogram(CONFIRMS, broker.loop.confirm_times())
    yield out.histogram(of_process.SYNCS, broker.loop.sync_times())
    yield out.histogram(REQUESTS, broker.request_times.values())


def runtime(scrape: Scrape) -> Iterator[str]:
    """The garbage collector and the allocator."""
    yield from of_process.runtime(scrape.out)


def integrity(scrape: Scrape) -> Iterator[str]:
    """The sums of stored files."""
    known = scrape.broker.integrity
    yield from of_integrity.figures(scrape.out, None if known is None else known.status())


def cluster(scrape: Scrape) -> Iterator[str]:
    """The cluster that this broker leads; without one there are no followers."""
    known = scrape.broker.cluster
    yield from of_cluster.figures(scrape.out, None if known is None else known.status())


MESSAGES: Final = {
    "publish": counter("global_messages_published_total", "Messages published"),
    "deliver_get": counter("global_messages_delivered_total", "Messages delivered or fetched"),
    "redeliver": counter("global_messages_redelivered_total", "Messages delivered once more"),
    "ack": counter("global_messages_acknowledged_total", "Messages acknowledged by consumers"),
    "reject": counter("global_messages_rejected_total", "Messages rejected by consumers"),
    "confirm": counter("global_messages_confirmed_total", "Messages confirmed to publishers"),
    "return_unroutable": counter("global_messages_returned_total", "Messages returned"),
}


def messages(scrape: Scrape) -> Iterator[str]:
    """Messages of all virtual hosts, those that were deleted included."""
    counted = scrape.broker.vhosts.messages()
    for name, metric in MESSAGES.items():
        yield scrape.out.alone(metric, counted[name])


MQTT: Final = {
    "clients": gauge("mqtt_clients", "Clients of MQTT that are connected"),
    "sessions": gauge("mqtt_sessions", "Sessions of MQTT, of clients that are away as well"),
    "subscriptions": gauge("mqtt_subscriptions", "Subscriptions of MQTT clients"),
    "shared": gauge("mqtt_shared_subscriptions", "Shared subscriptions of MQTT clients"),
    "in_flight": gauge(
        "mqtt_messages_in_flight", "Messages that connected MQTT clients have not acknowledged"
    ),
    "retained": gauge("mqtt_retained_messages", "Retained messages"),
    "retained_bytes": gauge("mqtt_retained_bytes", "Bytes of the files of retained messages"),
    "wills": gauge("mqtt_wills_waiting", "Wills whose delay has not passed"),
}
PUBLISHERS: Final = gauge("global_publishers", "MQTT clients that have published, by protocol")
CONSUMERS: Final = gauge("global_consumers", "MQTT clients that have subscribed, by protocol")
PROTOCOLS: Final = {V31: "mqtt310", V311: "mqtt311", V5: "mqtt50"}
"""What RabbitMQ calls them."""


def mqtt(scrape: Scrape) -> Iterator[str]:
    """What there is of MQTT in the virtual hosts that count."""
    out, sums = scrape.out, dict.fromkeys(MQTT, 0)
    for vhost in scrape.vhosts:
        for _ in sessions_in(vhost):
            sums["sessions"] += 1
            yield ""
        sums["shared"] += sum(1 for _ in shared_in(vhost))
        yield ""
        known = sessions_of(scrape.broker, vhost)
        if known is None:
            continue
        sums["subscriptions"] += len(known.exchange.bindings)
        sums["wills"] += len(known.wills)
        retained = known.stores.retained
        if retained is not None:
            sums["retained"] += len(retained)
            sums["retained_bytes"] += retained.file_bytes
    sums["subscriptions"] -= sums["shared"]
    publishers, consumers = dict.fromkeys(PROTOCOLS, 0), dict.fromkeys(PROTOCOLS, 0)
    for connection in connections_of(scrape):
        if isinstance(connection, MqttConnection):
            counters = connection.link.mqtt_counters()
            sums["clients"] += 1
            sums["in_flight"] += counters.get("in_flight", 0)
            publishers[connection.level] += counters.get("publish", 0) > 0
            consumers[connection.level] += connection.has_subscribed
        yield ""
    for name, metric in MQTT.items():
        yield out.alone(metric, sums[name])
    for metric, counts in ((PUBLISHERS, publishers), (CONSUMERS, consumers)):
        yield out.head(metric)
        for level, name in PROTOCOLS.items():
            yield out.sample(metric, counts[level], out.labels(protocol=name))


OVERVIEW: Final[tuple[Part, ...]] = (
    broker, totals, process, cluster, integrity, runtime, messages, mqtt,
)  # fmt: skip
