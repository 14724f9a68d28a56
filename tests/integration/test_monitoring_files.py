"""packaging/monitoring: the dashboard and the alerts fit the metrics that the broker has."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lavinmq.http.metrics import cluster
from tests.integration.conftest import Channels
from tests.support.broker import Broker
from tests.support.metrics import DETAILED, names, scrape

FOLDER = Path(__file__).resolve().parents[2] / "packaging" / "monitoring"
ALERTS = FOLDER / "prometheus-alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
VARIABLES: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
METRIC = re.compile(r"\b(?:lavinmq|telemetry)_\w+\b")
LABELS = re.compile(r"\{[^}]*\}|by \([^)]*\)")
WIDTH = 24

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def promtool(*arguments: str, folder: Path = FOLDER) -> None:
    """Run a check. Raises: AssertionError with what it says."""
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def plain(expression: str) -> str:
    """An expression of the dashboard with its variables filled in."""
    filled = expression.replace("${prefix}", "lavinmq").replace("$__rate_interval", "5m")
    return re.sub(r"\$(job|instance|vhost|queue)\b", ".*", filled)


def metrics_in(expression: str) -> set[str]:
    return set(METRIC.findall(LABELS.sub("", plain(expression))))


def alert_expressions() -> list[str]:
    """The expressions of the alerts; read with little, as no YAML library is there."""
    text = ALERTS.read_text()
    found = re.findall(r"^        expr: (?:\|\n((?:^ {10}.*\n)+)|(.*)\n)", text, re.MULTILINE)
    return [block or line for block, line in found]


def of_a_cluster() -> set[str]:
    """Those of its nodes; that they have them is tested with clusters."""
    tables = (*cluster.OF_ALL, *cluster.OF_LEADER, *cluster.OF_FOLLOWER)
    found = [*(metric for metric, _ in tables), cluster.LAG_BYTES, cluster.LAG_S]
    return {f"lavinmq_{metric.name}" for metric in found}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every metric that a broker with a bit of everything has, and a node of a cluster."""
    import pika

    broker = Broker(tmp_path_factory.mktemp("monitoring") / "data", http=True)
    try:
        broker.start()
        parameters = pika.ConnectionParameters(broker.host, broker.port)
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().queue_declare("q", exclusive=True)
            alone = names(scrape(broker)) | names(scrape(broker, DETAILED))
            return alone | of_a_cluster()
    finally:
        broker.close()


def test_every_metric_of_the_dashboard_is_there(known: set[str]) -> None:
    used = set().union(*(metrics_in(target["expr"]) for target in TARGETS))

    assert len(used) > 30
    assert used - known == set()


def test_every_metric_of_the_alerts_is_there(known: set[str]) -> None:
    expressions = alert_expressions()

    used = set().union(*map(metrics_in, expressions))

    assert len(expressions) == ALERTS.read_text().count("- alert:")
    assert len(used) > 15
    assert used - known == set()


def test_every_alert_has_a_severity_and_a_test() -> None:
    text, tests = ALERTS.read_text(), (FOLDER / "prometheus-alerts-test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", text)

    assert len(set(alerts)) == len(alerts) == text.count("severity: ")
    assert text.count("summary: ") == text.count("description: ") == len(alerts)
    assert [alert for alert in alerts if alert not in tests] == []


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x, y in itertools.product(
            range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"]),
            range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"]),
        )
    ]

    assert len(set(ids)) == len(ids)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < WIDTH


def test_everything_in_the_dashboard_uses_its_variables() -> None:
    used = {"type": "prometheus", "uid": "${datasource}"}
    queries = [variable for variable in VARIABLES if variable["type"] == "query"]

    assert {variable["name"] for variable in VARIABLES} >= {"datasource", "prefix", "instance"}
    assert all(thing["datasource"] == used for thing in (*PANELS, *TARGETS, *queries))
    for target in TARGETS:
        assert "lavinmq_" not in target["expr"], "the prefix is the reader's choice"
        assert "$instance" in target["expr"]


def test_variables_ask_for_metrics_that_are_there(known: set[str]) -> None:
    queries = [variable["definition"] for variable in VARIABLES if variable["type"] == "query"]

    assert queries
    for query in queries:
        assert metrics_in(query.removeprefix("label_values(")) <= known


def test_the_dashboard_carries_no_data_source_or_id_of_somebody() -> None:
    assert DASHBOARD["id"] is None
    assert "__inputs" not in DASHBOARD
    assert len({DASHBOARD["uid"], DASHBOARD["title"]}) == 2


@needs_promtool
def test_promtool_accepts_the_alerts_and_the_sample() -> None:
    promtool("check", "rules", ALERTS.name)
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", "prometheus-alerts-test.yml")


@needs_promtool
def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{at}", "expr": plain(target["expr"])}
        for at, target in enumerate(TARGETS)
    ]
    # JSON is YAML.
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )

    promtool("check", "rules", "rules.yml", folder=tmp_path)


def test_the_sample_scrapes_families_that_are_there(
    http_broker: Broker, channel_of: Channels
) -> None:
    channel_of(http_broker).queue_declare("q")
    (families,) = re.findall(r"family: \[(.*)\]", (FOLDER / "prometheus.yml").read_text())

    for family in families.split(", "):
        assert len(names(scrape(http_broker, f"/metrics/detailed?family={family}"))) > 2, family
