"""Shovels and links in `/metrics/detailed`: whether each runs, and what it has moved.

Source: docs/monitoring.md, docs/shovels.md, docs/federation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.metrics.exposition import counter, gauge

if TYPE_CHECKING:
    from lavinmq.http.metrics.exposition import Metric
    from lavinmq.http.metrics.families import Scrape
    from lavinmq.shovel.runner import Runner

Rows = dict[str, dict[str, int]]
"""Numbers by name, by labels."""

RUNNING: Final = gauge("detailed_shovel_running", "1: messages go through, 0: they do not")
IN_FLIGHT: Final = gauge("detailed_shovel_messages_in_flight", "Messages whose end is not known")
ERROR_AT: Final = gauge(
    "detailed_shovel_last_error_seconds", "When it failed last, Unix time; 0: never"
)
COUNTERS: Final = {
    "message_count": counter("detailed_shovel_messages_taken_total", "Messages taken"),
    "bytes": counter("detailed_shovel_bytes_total", "Bytes of these messages"),
    "confirmed": counter("detailed_shovel_messages_moved_total", "Messages that have arrived"),
    "refused": counter("detailed_shovel_refused_total", "Attempts that the destination refused"),
    "unroutable": counter("detailed_shovel_unroutable_total", "Attempts that no queue took"),
    "dead_lettered": counter("detailed_shovel_dead_lettered_total", "Messages rejected"),
    "requests": counter("detailed_shovel_requests_total", "Requests of webhooks"),
    "reconnects": counter("detailed_shovel_reconnects_total", "Connections that were made again"),
}  # fmt: skip


LINK_RUNNING: Final = gauge("detailed_federation_link_running", "1: messages come, 0: they do not")
LINK_IN_FLIGHT: Final = gauge(
    "detailed_federation_link_messages_in_flight", "Messages whose end is not known"
)
LINK_COUNTERS: Final = {
    "message_count": counter("detailed_federation_link_messages_taken_total", "Messages taken"),
    "bytes": counter("detailed_federation_link_bytes_total", "Bytes of these messages"),
    "confirmed": counter("detailed_federation_link_messages_total", "Messages that are safe here"),
    "dropped": counter(
        "detailed_federation_link_dropped_total", "Messages that have passed too many links"
    ),
    "reconnects": counter(
        "detailed_federation_link_reconnects_total", "Connections that were made again"
    ),
}


def shovels(scrape: Scrape) -> Iterator[str]:
    """How shovels go, those that are paused included."""
    known: Any = scrape.broker.shovels
    rows: Rows = {}
    for vhost in scrape.vhosts:
        for shovel in known.of(vhost.name):
            labels = scrape.out.labels(vhost=vhost.name, shovel=shovel.name)
            rows[labels] = {**shovel.figures(), **_now(shovel)}
        yield ""
    gauges = {"running": RUNNING, "in_flight": IN_FLIGHT, "error_at": ERROR_AT}
    yield from _told(scrape, gauges | COUNTERS, rows)


def federation(scrape: Scrape) -> Iterator[str]:
    """How links of federation go, those that are paused included."""
    known: Any = scrape.broker.federation
    rows: Rows = {}
    for vhost in scrape.vhosts:
        for link in known.links(vhost.name):
            labels = scrape.out.labels(
                vhost=vhost.name,
                upstream=link.upstream.name,
                type=link.kind,
                resource=link.resource,
            )
            now = {**link.figures(), **_now(link)}
            # Copies of a set may have the same upstream: they are told together.
            before = rows.get(labels)
            if before is not None:
                running = min(before["running"], now["running"])
                now = {name: before[name] + count for name, count in now.items()}
                now["running"] = running
            rows[labels] = now
        yield ""
    gauges = {"running": LINK_RUNNING, "in_flight": LINK_IN_FLIGHT}
    yield from _told(scrape, gauges | LINK_COUNTERS, rows)


def _now(runner: Runner) -> dict[str, int]:
    return {"running": int(runner.state == "Running"), "error_at": round(runner.error_at or 0)}


def _told(scrape: Scrape, metrics: dict[str, Metric], rows: Rows) -> Iterator[str]:
    for name, metric in metrics.items():
        yield scrape.out.head(metric)
        for labels, figures in rows.items():
            yield scrape.out.sample(metric, figures[name], labels)
