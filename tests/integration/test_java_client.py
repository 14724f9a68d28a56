"""The Java client: the scenarios of `java/Scenarios.java`, compiled once for this module."""

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

SOURCE = Path(__file__).with_name("java") / "Scenarios.java"
# The library logs what it swallows; the last of these writes that to standard error.
LIBRARIES = [f"/usr/share/java/{name}.jar" for name in ("amqp-client", "slf4j-api", "slf4j-simple")]
# Programs this short gain nothing from the optimising compiler.
FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8"]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command that runs a scenario."""
    classes = tmp_path_factory.mktemp("java")
    path = ":".join([str(classes), *(str(library(each)) for each in LIBRARIES)])
    launcher = [program("java"), *FLAGS]
    # The compiler is a module of the run-time image; javac would need the whole JDK.
    compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-encoding", "UTF-8"]
    done = subprocess.run(
        [*launcher, *compiler, "-cp", path, "-d", classes, SOURCE],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*launcher, "-cp", path, "Scenarios"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_client_gets_what_it_expects(
    java: Command, broker: Broker, unique: UniqueName, scenario: str
) -> None:
    assert run(java, broker, scenario, unique("java")) == SCENARIOS[scenario]


def test_headers_of_every_type_arrive_as_they_were_sent(java: Command, broker: Broker) -> None:
    outcome = run(java, broker, "headers")

    array = [
        ["Integer", 1],
        ["LongString", "two"],
        ["Map", {"three": ["Integer", 3]}],
        ["List", [["Boolean", False]]],
    ]
    assert outcome["headers"] == {
        "b": ["Byte", -128],
        "s": ["Short", -32768],
        "I": ["Integer", -(2**31)],
        "l": ["Long", -(2**63)],
        "f": ["Float", 1.5],
        "d": ["Double", math.pi],
        "t": ["Boolean", True],
        "V": ["null", None],
        "D": ["BigDecimal", "-123.45"],
        "S": ["LongString", "ünïcode"],
        "x": ["byte[]", "AP8="],
        "T": ["Date", 1700000000],
        "A": ["List", array],
        "F": ["Map", {"a": ["Map", {"b": ["null", None]}]}],
    }
    plain = ["application/json", "utf-8", 2, 5, "c1", "r1", "60000", "m1", 1700000000]
    assert outcome["properties"] == [*plain, "t1", "guest", "a1", "k1"]
