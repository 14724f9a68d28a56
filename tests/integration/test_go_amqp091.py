"""Go's amqp091-go: the scenarios of `go/scenarios.go`, compiled once for this module."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest

from tests.integration.client_program import (
    SCENARIOS,
    Command,
    environment,
    library,
    program,
    run,
)
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

SOURCE = Path(__file__).with_name("go") / "scenarios.go"
# Where Debian puts the sources of libraries.
GOPATH = "/usr/share/gocode"
LIBRARY = f"{GOPATH}/src/github.com/rabbitmq/amqp091-go"
# Kept between runs; go locks it against others.
CACHE = Path(__file__).parents[2] / "build" / "go-cache"


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command that runs a scenario."""
    library(LIBRARY)
    built = tmp_path_factory.mktemp("go") / "scenarios"
    settings = {"GO111MODULE": "off", "GOPATH": GOPATH, "GOCACHE": str(CACHE)}
    done = subprocess.run(
        [program("go"), "build", "-o", built, SOURCE],
        env=environment() | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [built]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_go_client_gets_what_it_expects(
    go: Command, broker: Broker, unique: UniqueName, scenario: str
) -> None:
    assert run(go, broker, scenario, unique("go")) == SCENARIOS[scenario]


def test_headers_of_every_type_arrive_as_they_were_sent(go: Command, broker: Broker) -> None:
    outcome = run(go, broker, "headers")

    three = ["amqp091.Table", {"three": ["int32", 3]}]
    array = [["int32", 1], ["string", "two"], three, ["[]interface {}", [["bool", False]]]]
    assert outcome["headers"] == {
        "b": ["int8", -128],
        "B": ["uint8", 255],
        "s": ["int16", -32768],
        "I": ["int32", -(2**31)],
        "l": ["int64", -(2**63)],
        "f": ["float32", 1.5],
        "d": ["float64", math.pi],
        "t": ["bool", True],
        "V": ["<nil>", None],
        "D": ["amqp091.Decimal", [-12345, 2]],
        "S": ["string", "ünïcode"],
        "x": ["[]uint8", "00ff"],
        "T": ["time.Time", 1700000000],
        "A": ["[]interface {}", array],
        "F": ["amqp091.Table", {"a": ["amqp091.Table", {"b": ["<nil>", None]}]}],
    }
    plain = ["application/json", "utf-8", 2, 5, "c1", "r1", "60000", "m1", 1700000000]
    assert outcome["properties"] == [*plain, "t1", "guest", "a1"]
