"""Shovels and links in `/metrics/detailed`: whether each runs, and what it has moved.

Source: docs/monitoring.md, docs/shovels.md, docs/federation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lavinmq.http.metrics.families import Scrape, counter, gauge

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


def shovels(scrape: Scrape) -> Iterator[str]:
    """How shovels go, those that are paused included."""
    links: Any = scrape.broker.links
    out, rows = scrape.out, []
    for vhost in scrape.vhosts:
        for shovel in links.of(vhost.name):
            labels = out.labels(vhost=vhost.name, shovel=shovel.name)
            rows.append((labels, shovel, shovel.figures()))
        yield ""
    yield out.head(RUNNING)
    for labels, shovel, _ in rows:
        yield out.sample(RUNNING, int(shovel.state == "Running"), labels)
    yield out.head(IN_FLIGHT)
    for labels, _, figures in rows:
        yield out.sample(IN_FLIGHT, figures["in_flight"], labels)
    yield out.head(ERROR_AT)
    for labels, shovel, _ in rows:
        yield out.sample(ERROR_AT, round(shovel.error_at or 0), labels)
    for name, metric in COUNTERS.items():
        yield out.head(metric)
        for labels, _, figures in rows:
            yield out.sample(metric, figures[name], labels)


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


def federation(scrape: Scrape) -> Iterator[str]:
    """How links of federation go, those that are paused included."""
    all_: Any = scrape.broker.federation
    out = scrape.out
    rows: dict[str, tuple[int, dict[str, int]]] = {}
    for vhost in scrape.vhosts:
        for link in all_.links(vhost.name):
            labels = out.labels(
                vhost=vhost.name,
                upstream=link.upstream.name,
                type=link.kind,
                resource=link.resource,
            )
            # Copies of a set may have the same upstream: they are told together.
            state, figures = rows.get(labels, (1, dict.fromkeys(link.figures(), 0)))
            for name, count in link.figures().items():
                figures[name] += count
            rows[labels] = min(state, int(link.state == "Running")), figures
        yield ""
    yield out.head(LINK_RUNNING)
    for labels, (state, _) in rows.items():
        yield out.sample(LINK_RUNNING, state, labels)
    yield out.head(LINK_IN_FLIGHT)
    for labels, (_, figures) in rows.items():
        yield out.sample(LINK_IN_FLIGHT, figures["in_flight"], labels)
    for name, metric in LINK_COUNTERS.items():
        yield out.head(metric)
        for labels, (_, figures) in rows.items():
            yield out.sample(metric, figures[name], labels)
