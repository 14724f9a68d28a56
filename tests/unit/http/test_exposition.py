"""The text for Prometheus: names, escapes, numbers, both formats, and which one is wanted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lavinmq._core import DURATION_BOUNDS
from lavinmq.http.metrics.exposition import Exposition, Metric, number, prefers_open_metrics

READY = Metric("ready", "gauge", "Messages")
SEEN = Metric("seen_total", "counter", "Messages")
ODD = Metric("odd", "counter", "A counter whose name does not say so")
TOOK = Metric("took_seconds", "histogram", "Time")
BARE = Metric("telemetry_x", "gauge", "X", is_bare=True)


def text() -> Exposition:
    return Exposition("p", is_open=False)


def open_metrics() -> Exposition:
    return Exposition("p", is_open=True)


def test_a_metric_has_its_type_its_help_and_its_sample() -> None:
    assert text().alone(READY, 5) == "# TYPE p_ready gauge\n# HELP p_ready Messages\np_ready 5\n"


def test_a_bare_metric_takes_no_prefix() -> None:
    assert text().sample(BARE, 1) == "telemetry_x 1\n"


@pytest.mark.parametrize(
    ("metric", "is_open", "family", "sample"),
    [
        (SEEN, False, "p_seen_total", "p_seen_total"),
        (SEEN, True, "p_seen", "p_seen_total"),
        (ODD, False, "p_odd", "p_odd"),
        (ODD, True, "p_odd", "p_odd_total"),
        (READY, True, "p_ready", "p_ready"),
    ],
)
def test_counters_of_openmetrics_end_in_total(
    metric: Metric, is_open: bool, family: str, sample: str
) -> None:
    lines = Exposition("p", is_open).alone(metric, 1).splitlines()

    assert lines[0] == f"# TYPE {family} {metric.type}"
    assert lines[1].startswith(f"# HELP {family} ")
    assert lines[2] == f"{sample} 1"


def test_labels_keep_their_order() -> None:
    assert text().labels(queue="a", vhost="/") == '{queue="a", vhost="/"}'
    assert open_metrics().labels(queue="a", vhost="/") == '{queue="a",vhost="/"}'


def test_only_openmetrics_has_an_end() -> None:
    assert text().end() == ""
    assert open_metrics().end() == "# EOF\n"


def test_a_histogram_counts_up_to_each_bound() -> None:
    counts = [1, 2] + [0] * (len(DURATION_BOUNDS) - 2) + [4]

    lines = text().histogram(TOOK, (counts, 1.5)).splitlines()

    assert lines[2:4] == ['p_took_seconds_bucket{le="1e-05"} 1', 'p_took_seconds_bucket{le="2.5e-05"} 3']  # fmt: skip  # noqa: E501
    assert lines[-3:] == ['p_took_seconds_bucket{le="+Inf"} 7', "p_took_seconds_sum 1.5", "p_took_seconds_count 7"]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (True, "1"), (2**64, "18446744073709551616"), (0.5, "0.5"), (math.inf, "+Inf"),
     (-math.inf, "-Inf"), (math.nan, "NaN")],
)  # fmt: skip
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(queue=NAMES, vhost=NAMES, value=st.integers(0, 2**50))
def test_any_name_can_be_read_again_from_openmetrics(queue: str, vhost: str, value: int) -> None:
    out = open_metrics()
    content = out.alone(SEEN, value, out.labels(queue=queue, vhost=vhost)) + out.end()

    (family,) = parse_open(content)

    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"queue": queue, "vhost": vhost}, value)


@given(queue=NAMES, value=st.integers(0, 2**50))
def test_any_name_can_be_read_again_from_text(queue: str, value: int) -> None:
    out = text()

    (family,) = parse_text(out.alone(READY, value, out.labels(queue=queue)))

    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"queue": queue}, value)


def test_octets_that_are_no_utf8_are_shown() -> None:
    shown = text().labels(queue=b"a\xff".decode("utf-8", "surrogateescape"))

    assert shown == '{queue="a\\\\udcff"}'
    shown.encode()


def test_a_histogram_can_be_read_again() -> None:
    out = open_metrics()
    counts = list(range(len(DURATION_BOUNDS) + 1))

    (family,) = parse_open(out.histogram(TOOK, (counts, 12.25)) + out.end())

    values = {sample.name: sample.value for sample in family.samples}
    assert values["p_took_seconds_sum"] == 12.25
    assert values["p_took_seconds_count"] == sum(counts)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html, application/xhtml+xml, */*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ('application/openmetrics-text;version="1.0.0"', True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.7", False),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
         "version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("APPLICATION/OpenMetrics-Text ; Q=1 , text/*;q=0.1", True),
        ("application/openmetrics-text;q=nonsense", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=7,text/plain", True),
        (";;,,=;q", False),
    ],
)  # fmt: skip
def test_openmetrics_is_for_who_prefers_it(accept: str, wanted: bool) -> None:
    assert prefers_open_metrics(accept) is wanted


@given(st.text(max_size=60))
def test_no_accept_header_breaks_anything(accept: str) -> None:
    prefers_open_metrics(accept)
