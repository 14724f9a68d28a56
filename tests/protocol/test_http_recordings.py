"""Recorded requests to the management API get the recorded answers from this broker."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.conftest import BrokerFactory
from tests.protocol.http_later import DONE_RIGHT, LATER
from tests.support import recordings
from tests.support.broker import Broker

RECORDED = recordings.scenarios()
PLAYED = {
    name: scenario
    for name, scenario in RECORDED.items()
    if name not in DONE_RIGHT and not any(fnmatch(name, later) for later in LATER)
}
IN_THE_WORLD = [name for name, scenario in PLAYED.items() if scenario.get("world")]
ALONE = [name for name, scenario in PLAYED.items() if not scenario.get("world")]


@pytest.fixture(scope="module")
def empty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that nobody else puts anything on: lists over everything are compared whole."""
    broker = Broker(tmp_path_factory.mktemp("recordings") / "data", http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def world(empty_broker: Broker) -> Iterator[tuple[Broker, dict[str, Any]]]:
    """That broker with everything on it that the recorded requests look at."""
    with recordings.world(empty_broker) as variables:
        yield empty_broker, variables


@pytest.mark.parametrize("name", IN_THE_WORLD)
def test_a_request_to_the_recorded_world(name: str, world: tuple[Broker, dict[str, Any]]) -> None:
    broker, variables = world
    assert not recordings.play(PLAYED[name], broker, variables)


@pytest.mark.parametrize("name", ALONE)
def test_a_recorded_story(name: str, broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    assert not recordings.play(PLAYED[name], broker)


def test_every_name_in_the_tables_is_a_recording() -> None:
    assert set(DONE_RIGHT) <= set(RECORDED)
    assert all(any(fnmatch(name, later) for name in RECORDED) for later in LATER)
