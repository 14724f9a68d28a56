"""Recorded requests to the management API get the recorded answers from this broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.conftest import BrokerFactory
from tests.protocol.http_otherwise import OTHERWISE, otherwise
from tests.support import recordings
from tests.support.broker import Broker

RECORDED = recordings.scenarios()
IN_THE_WORLD = [name for name, scenario in RECORDED.items() if scenario.get("world")]
ALONE = [name for name, scenario in RECORDED.items() if not scenario.get("world")]
AS_RECORDED = {
    "LAVINMQ_MAIN_PASSWORD_HASHING_ALGORITHM": "sha256",
    "LAVINMQ_AMQP_CHANNEL_MAX": "2048",
}
SAMPLED_SOON = {"LAVINMQ_MAIN_STATS_INTERVAL": "100"}


@pytest.fixture(scope="module")
def empty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that nobody else puts anything on: lists over everything are compared whole."""
    directory = tmp_path_factory.mktemp("recordings") / "data"
    broker = Broker(directory, http=True, env=AS_RECORDED | SAMPLED_SOON)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def world(empty_broker: Broker) -> Iterator[tuple[Broker, dict[str, Any]]]:
    """That broker with everything on it that the recorded requests look at."""
    with recordings.world(empty_broker) as variables:
        yield empty_broker, variables


def check(name: str, differences: list[str]) -> None:
    """Compare the steps that were answered otherwise with those that are to be."""
    found = {int(at) for line in differences for at in re.findall(r"^step (\d+) ", line)}
    assert found == set(otherwise(name)), "\n".join(differences)


@pytest.mark.parametrize("name", IN_THE_WORLD)
def test_a_request_to_the_recorded_world(name: str, world: tuple[Broker, dict[str, Any]]) -> None:
    broker, variables = world
    check(name, recordings.play(RECORDED[name], broker, variables))


@pytest.mark.parametrize("name", ALONE)
def test_a_recorded_story(name: str, broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True, env=AS_RECORDED)
    check(name, recordings.play(RECORDED[name], broker))


def test_every_name_in_the_table_is_a_recording() -> None:
    assert all(any(fnmatch(name, pattern) for name in RECORDED) for pattern in OTHERWISE)
