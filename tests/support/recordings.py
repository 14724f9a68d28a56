"""Recorded HTTP exchanges of the management API, played against a broker.

The world (queues, users, connections ... that read-only requests look at) and the stories that
change things are the recordings' own. Words of refusals that name types of the original's language
are not compared; everything else is. See `tests/fixtures/http/README.md`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import replay
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.patience import PATIENCE
from tests.support.waiting import wait_for

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "http"
ANSWER_TIMEOUT_S = 10.0 * PATIENCE
FOREIGN_WORDS = ("Cast from ", "Unknown enum ", "missing terminating ", "Invalid Int32: ")
DEAD_LETTER_BYTES = 366
METRIC_TYPES = (
    (r"^(# TYPE \w+_uptime) counter$", r"\1 gauge"),
    (r"^(# TYPE \w+_stats_collection_duration_seconds_total) gauge$", r"\1 counter"),
    (r"^(# TYPE \w+_explicitly_freed_bytes) counter$", r"\1 gauge"),
)
"""Types that do not fit the number, and those that do."""

Scenario = dict[str, Any]


def scenarios() -> dict[str, Scenario]:
    """Return every recorded scenario but the world, by its id, as it is to be played here."""
    return {each["id"]: _with_our_metrics(_adapted(each)) for each in as_recorded()}


def as_recorded() -> Iterator[Scenario]:
    """Every recorded scenario but the world; one for each user who asks for the same."""
    for path in sorted(FOLDER.glob("http-*.json")):
        recorded = json.loads(path.read_text(encoding="utf-8"))
        yield from _of_each_user(recorded) if "answers" in recorded else [recorded]


def _of_each_user(recorded: dict[str, Any]) -> Iterator[Scenario]:
    """A scenario for each user whose answer to one request is recorded."""
    for answer in recorded["answers"]:
        for user in answer["users"]:
            role = {"guest": "", "-": "-as-anonymous"}.get(user, f"-as-{user.removeprefix('w-')}")
            request = recorded["req"] | ({} if user == "guest" else {"user": user})
            yield {
                "id": recorded["id"] + role,
                "title": f"{recorded['title']} as {user}",
                "tags": recorded["tags"],
                "world": True,
                "steps": [{"op": "http", "req": request, "res": answer["res"]}],
            }


def _with_our_metrics(scenario: Scenario) -> Scenario:
    """The same with metrics as they are said right: with a version and types that fit, without the
    texts for people, which are the original's own."""
    for step in scenario["steps"]:
        answer = step.get("res", {})
        if not answer.get("lines"):
            continue
        lines = [line for line in answer["lines"] if not line.startswith("# HELP ")]
        for wrong, right in METRIC_TYPES:
            lines = [re.sub(wrong, right, line) for line in lines]
        answer["lines"] = sorted(lines)
        kind = "^application/json$" if answer["status"] == 400 else "^text/plain; version=0.0.4; "
        answer["headers"]["content-type"] = {"$re": kind}
    return scenario


def _adapted(recorded: Any) -> Any:
    """The same with what differs everywhere, and nowhere matters.

    Counts in `x-death` have 64 bits, so dead letters are larger. A reason that only the original
    can give may be any text.
    """
    if isinstance(recorded, dict):
        return {key: _adapted_value(key, value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        return [_adapted(value) for value in recorded]
    return recorded


def _adapted_value(key: str, value: Any) -> Any:
    if key == "reason" and isinstance(value, str) and value.startswith(FOREIGN_WORDS):
        return {"$type": "string"}
    if key == "reason" and isinstance(value, str):
        return {"$re": f"^{re.escape(value)}"}  # ours may say more, which names the subject
    if key.endswith(("_bytes", "bytes_ready")) and value == DEAD_LETTER_BYTES:
        return value + 4
    return _adapted(value)


def _is_sampled(broker: Broker) -> bool:
    totals = Api(broker).get("/api/overview")["queue_totals"]
    return bool(totals["messages_log"][-1:] == [totals["messages"]])


def options(broker: Broker) -> argparse.Namespace:
    """How the player reaches a broker."""
    return argparse.Namespace(
        host=broker.host,
        amqp_port=broker.port,
        http_port=broker.http_port,
        metrics_port=broker.metrics_port,
        user="guest",
        password="guest",
        timeout=ANSWER_TIMEOUT_S,
        no_admin=False,
        bytes=False,
        exact_keys=False,
        lenient=False,
    )


def play(scenario: Scenario, broker: Broker, variables: dict[str, Any] | None = None) -> list[str]:
    """Run the steps; return the differences, none when the broker behaves."""
    run = replay.Run(options(broker), scenario, variables)
    try:
        run.prepare()
        run.steps()
        run.final()
    finally:
        run.cleanup()
    differences: list[str] = run.diffs
    return differences


@contextmanager
def world(broker: Broker) -> Iterator[dict[str, Any]]:
    """Build what the read-only scenarios look at; yields the variables captured on the way."""
    recorded = json.loads((FOLDER / "world.json").read_text(encoding="utf-8"))
    # The recorder slept until the statistics had turned over; here that is waited for.
    recorded["steps"] = [step for step in recorded["steps"] if step["op"] != "sleep"]
    run = replay.Run(options(broker), recorded)
    try:
        run.prepare()
        run.steps()
        assert not run.diffs, "\n".join(run.diffs)
        wait_for(lambda: _is_sampled(broker), "no statistics of all messages")
        yield run.vars
    finally:
        run.cleanup()
