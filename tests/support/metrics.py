"""What the broker says on `/metrics`, asked for and read as Prometheus would."""

from __future__ import annotations

import http.client
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import Answer


class Measured(Protocol):
    """A broker with such a port."""

    @property
    def host(self) -> str:
        """Where it listens."""

    @property
    def metrics_port(self) -> int:
        """And on which port."""


ALL_FAMILIES = (
    "connection_churn_metrics", "queue_coarse_metrics", "queue_consumer_count",
    "connection_coarse_metrics", "channel_metrics", "exchange_metrics", "vhost_message_stats",
)  # fmt: skip
DETAILED = "/metrics/detailed?" + "&".join(f"family={name}" for name in ALL_FAMILIES)
"""The path with everything that there is in detail."""
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0"}


def scrape(
    broker: Measured, path: str = "/metrics", *, method: str = "GET", **headers: str
) -> Answer:
    """Ask the listener for metrics, which asks nobody who it is."""
    connection = http.client.HTTPConnection(broker.host, broker.metrics_port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def values(answer: Answer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples of an answer by name and labels."""
    assert answer.status == 200, answer.content
    found = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def value(answer: Answer, name: str, **labels: str) -> float:
    """One sample, by its name without the prefix."""
    return values(answer)[(f"lavinmq_{name}", tuple(sorted(labels.items())))]


def names(answer: Answer) -> set[str]:
    """The names of all samples."""
    return {name for name, _ in values(answer)}


def vhosts_of(answer: Answer) -> set[str]:
    """The virtual hosts in labels."""
    return {dict(labels)["vhost"] for _, labels in values(answer) if "vhost" in dict(labels)}
