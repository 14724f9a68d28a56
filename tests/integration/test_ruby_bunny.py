"""Ruby's Bunny: the scenarios of `ruby/scenarios.rb`."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest

from tests.integration.client_program import SCENARIOS, Command, program, run
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

PROGRAM = Path(__file__).with_name("ruby") / "scenarios.rb"


@pytest.fixture(scope="module")
def ruby() -> Command:
    """The command that runs a scenario."""
    found = program("ruby")
    if subprocess.run([found, "-e", 'gem "bunny"'], capture_output=True, check=False).returncode:
        pytest.fail("bunny is not installed: .ci/setup-debian.sh test", pytrace=False)
    return [found, PROGRAM]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_ruby_client_gets_what_it_expects(
    ruby: Command, broker: Broker, unique: UniqueName, scenario: str
) -> None:
    assert run(ruby, broker, scenario, unique("ruby")) == SCENARIOS[scenario]


def test_headers_of_every_type_arrive_as_they_were_sent(ruby: Command, broker: Broker) -> None:
    outcome = run(ruby, broker, "headers")

    none = ["NilClass", None]
    three = ["Hash", {"three": ["Integer", 3]}]
    two = ["Array", [["String", "two"]]]
    assert outcome["headers"] == {
        "integer": ["Integer", -(2**63)],
        "float": ["Float", math.pi],
        "true": ["TrueClass", True],
        "false": ["FalseClass", False],
        "nothing": none,
        "single": ["Float", 1.5],
        "string": ["String", "ünïcode"],
        "time": ["Time", 1700000000],
        "decimal": ["BigDecimal", 12345],
        "array": ["Array", [none, ["FalseClass", False], ["Integer", 1], three, two]],
        "table": ["Hash", {"inner": ["Hash", {"none": none}]}],
    }
    assert outcome["properties"] == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 5,
        "correlation_id": "c1",
        "reply_to": "r1",
        "expiration": "60000",
        "message_id": "m1",
        "timestamp": 1700000000,
        "type": "t1",
        "user_id": "guest",
        "app_id": "a1",
    }
