"""php-amqplib: the scenarios of `php/scenarios.php`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.client_program import SCENARIOS, Command, library, program, run
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

PROGRAM = Path(__file__).with_name("php") / "scenarios.php"
LIBRARY = "/usr/share/php/PhpAmqpLib/autoload.php"


@pytest.fixture(scope="module")
def php() -> Command:
    """The command that runs a scenario."""
    library(LIBRARY)
    return [program("php"), PROGRAM]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_php_client_gets_what_it_expects(
    php: Command, broker: Broker, unique: UniqueName, scenario: str
) -> None:
    assert run(php, broker, scenario, unique("php")) == SCENARIOS[scenario]


def test_headers_of_every_type_arrive_as_they_were_sent(php: Command, broker: Broker) -> None:
    outcome = run(php, broker, "headers")

    assert outcome["headers"] == {
        "b": ["b", -128],
        "B": ["B", 255],
        "s": ["s", -32768],
        "u": ["u", 65535],
        "I": ["I", -(2**31)],
        "i": ["i", 2**32 - 1],
        "l": ["l", -(2**63)],
        "D": ["D", [-12345, 2]],
        "T": ["T", 1700000000],
        "V": ["V", None],
        "t": ["t", True],
        "S": ["S", "ünïcode"],
        "x": ["x", "00ff"],
        "A": ["A", [["I", 1], ["S", "two"], ["F", {"three": ["I", 3]}], ["A", [["t", False]]]]],
        "F": ["F", {"a": ["F", {"b": ["V", None]}]}],
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
        "cluster_id": "k1",
    }
