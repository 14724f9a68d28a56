"""The text of `/metrics` and `/metrics/detailed`: formats, pieces, and what it has from LavinMQ."""

from __future__ import annotations

import gzip
import http.client
import re
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from tests.integration.conftest import Channels
from tests.support.api import Answer, Api
from tests.support.broker import Broker
from tests.support.metrics import DETAILED, OPEN, names, scrape, value, values, vhosts_of
from tests.support.recordings import as_recorded

ODD_QUEUE = 'odd "\\ ü {}=,# name'
TYPES_DONE_RIGHT = {
    "lavinmq_uptime": "gauge",
    "lavinmq_stats_collection_duration_seconds_total": "counter",
    "lavinmq_gc_since_recent_collection_explicitly_freed_bytes": "gauge",
}
NAMES_KEPT = {
    'lavinmq_mfile_count non-histogram and non-summary metrics should not have "_count" suffix',
    'lavinmq_detailed_queue_deduplication counter metrics should have "_total" suffix',
    'lavinmq_detailed_exchange_deduplication counter metrics should have "_total" suffix',
}
"""What `promtool` has against names that LavinMQ has chosen."""


def test_any_name_of_a_queue_leaves_the_answer_readable(
    http_broker: Broker, channel_of: Channels
) -> None:
    channel = channel_of(http_broker)
    channel.queue_declare(ODD_QUEUE)
    Api(http_broker)("PUT", "/api/vhosts/" + "v%22%5C%0Ax", {})

    text = scrape(http_broker, DETAILED)
    open_metrics = scrape(http_broker, DETAILED, **OPEN)

    assert value(text, "detailed_queue_messages_ready", queue=ODD_QUEUE, vhost="/") == 0
    assert 'v"\\\nx' in vhosts_of(text)
    assert ODD_QUEUE in {sample.labels.get("queue") for sample in samples(open_metrics)}


def samples(answer: Answer) -> list[Sample]:
    return [sample for family in parse_open(answer.content.decode()) for sample in family.samples]


@pytest.mark.parametrize("path", ["/metrics", DETAILED])
def test_openmetrics_is_there_for_who_wants_it(http_broker: Broker, path: str) -> None:
    answer = scrape(http_broker, path, **OPEN)

    assert answer.headers["content-type"] == (
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert answer.content.endswith(b"# EOF\n")
    assert "Accept" in answer.headers["vary"]
    by_format = {sample.name for sample in samples(answer)}
    as_text = names(scrape(http_broker, path))
    assert {name.removesuffix("_total") for name in by_format} == {
        name.removesuffix("_total") for name in as_text
    }


def test_an_answer_is_compressed_for_who_takes_that(broker: Broker) -> None:
    answer = scrape(broker, **{"Accept-Encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    content = gzip.decompress(answer.content).decode()
    assert "lavinmq_uptime" in {
        sample.name for family in parse_text(content) for sample in family.samples
    }


@pytest.mark.slow
def test_a_long_answer_comes_in_pieces_while_clients_are_served(
    http_broker: Broker, channel_of: Channels
) -> None:
    channel = channel_of(http_broker)
    for at in range(3000):
        channel.queue_declare(f"queue-{at}", exclusive=True, arguments=None)
    connection = http.client.HTTPConnection(http_broker.host, http_broker.metrics_port, timeout=30)
    connection.request("GET", DETAILED)
    response = connection.getresponse()
    first = response.read(1000)

    channel.queue_declare("in between", exclusive=True)  # answered although the rest is not read

    rest = response.read()
    connection.close()
    answer = Answer(response.status, {}, first + rest)
    assert response.headers["Transfer-Encoding"] == "chunked"
    assert len(vhosts_of(answer)) == 1
    shown = {dict(labels).get("queue") for name, labels in values(answer)
             if name == "lavinmq_detailed_queue_messages_ready"}  # fmt: skip
    assert {f"queue-{at}" for at in range(3000)} <= shown


def test_who_leaves_in_the_middle_hurts_nobody(http_broker: Broker, channel_of: Channels) -> None:
    channel = channel_of(http_broker)
    for at in range(500):
        channel.queue_declare(f"queue-{at}", exclusive=True)
    for _ in range(5):
        connection = http.client.HTTPConnection(http_broker.host, http_broker.metrics_port)
        connection.request("GET", DETAILED)
        connection.getresponse().read(10)
        connection.close()

    assert scrape(http_broker).status == 200
    assert "bug" not in http_broker.log_text()


# --- what tools and the recordings say ------------------------------------------------------------


def recorded(path: str) -> set[str]:
    """The lines of LavinMQ's answer."""
    for scenario in as_recorded():
        step = scenario["steps"][0]
        if step["req"]["path"] == path and step["res"]["status"] == 200:
            return set(step["res"]["lines"])
    raise AssertionError(f"no recording of {path}")


RECORDED = (
    "/metrics",
    "/metrics/detailed?family=queue_coarse_metrics",
    "/metrics/detailed?family=queue_consumer_count&family=exchange_metrics&vhost=w1",
    "/metrics/detailed?family=vhost_message_stats",
)


@pytest.mark.parametrize("path", RECORDED)
def test_names_and_types_are_those_of_lavinmq(broker: Broker, path: str) -> None:
    lines = {line for line in recorded(path) if line.startswith("# TYPE ")}
    wanted = {line.split()[2]: line.split()[3] for line in lines} | {
        name: type_ for name, type_ in TYPES_DONE_RIGHT.items() if f"# TYPE {name} " in str(lines)
    }

    content = scrape(broker, path.replace("&vhost=w1", "")).content.decode()

    types = {line.split()[2]: line.split()[3] for line in content.splitlines()
             if line.startswith("# TYPE ")}  # fmt: skip
    assert {name: types.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("path", RECORDED)
def test_labels_are_those_of_lavinmq(http_broker: Broker, channel_of: Channels, path: str) -> None:
    channel_of(http_broker).queue_declare("q")
    pattern = re.compile(r"^(\w+)\{(.*)\}")

    def labels(lines: set[str]) -> dict[str, list[str]]:
        found = (pattern.match(line) for line in lines)
        return {
            match[1]: re.findall(r'(\w+)="', match[2]) for match in found if match is not None
        }  # fmt: skip

    wanted = labels(recorded(path))
    content = scrape(http_broker, path.replace("&vhost=w1", "")).content.decode()

    shown = labels(set(content.splitlines()))
    assert wanted
    assert {name: shown.get(name) for name in wanted} == wanted


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("path", ["/metrics", DETAILED])
def test_promtool_has_nothing_against_it(
    http_broker: Broker, channel_of: Channels, path: str
) -> None:
    channel_of(http_broker).queue_declare(ODD_QUEUE)

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(http_broker, path).content,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip

    complaints = set((checked.stdout + checked.stderr).decode().splitlines())
    assert complaints <= NAMES_KEPT
