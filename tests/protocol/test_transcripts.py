"""Every recorded AMQP transcript, played against the broker whole and cut into pieces.

The recordings are the reference for what clients see. `later_work.py` names those that are
matched later or, being weaknesses of the original, never.
"""

from __future__ import annotations

import pytest

from tests.protocol.later_work import DONE_RIGHT, LATER, LATER_DONE_RIGHT
from tests.support.broker import Broker
from tests.support.transcripts import Split, bytes_sent, needs_management, play, scenarios

MOST_BYTES_SENT_SINGLY = 5000
TABLES = (LATER, DONE_RIGHT, LATER_DONE_RIGHT)


def matched() -> list[str]:
    """Return the ids of the scenarios the broker has to match."""
    return [name for name in scenarios() if not any(name in table for table in TABLES)]


def ways(name: str) -> list[Split]:
    """Return how a scenario's input is cut; long input not byte by byte."""
    is_short = bytes_sent(scenarios()[name]) <= MOST_BYTES_SENT_SINGLY
    return [split for split in Split if split is not Split.BYTES or is_short]


def plays() -> list[tuple[str, Split]]:
    return [(name, split) for name in matched() for split in ways(name)]


@pytest.mark.parametrize(
    ("name", "split"),
    plays(),
    ids=[f"{name}-{split.value}" for name, split in plays()],
    indirect=["split"],
)
def test_broker_answers_as_recorded(name: str, split: Split, transcript_broker: Broker) -> None:
    differences = play(scenarios()[name], transcript_broker.port, split)

    assert not differences, "\n".join([scenarios()[name]["title"], *differences])


@pytest.mark.parametrize("table", TABLES, ids=["later", "done-right", "later-done-right"])
def test_table_names_only_recorded_scenarios(table: dict[str, str]) -> None:
    assert set(table) <= set(scenarios())


def test_no_scenario_is_in_two_tables() -> None:
    named = [name for table in TABLES for name in table]

    assert sorted(named) == sorted(set(named))


def test_weaknesses_of_the_original_are_never_matched() -> None:
    weak = {name for name, each in scenarios().items() if "lavinmq-defect" in each["tags"]}

    assert weak <= set(DONE_RIGHT) | set(LATER_DONE_RIGHT)


def test_scenarios_that_need_the_management_interface_are_not_played() -> None:
    assert not [name for name in matched() if needs_management(scenarios()[name])]


def test_every_way_of_splitting_is_played() -> None:
    assert {split for _, split in plays()} == set(Split)
