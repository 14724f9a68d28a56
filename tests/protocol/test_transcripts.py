"""Every recorded AMQP transcript, played against the broker whole and cut into pieces.

The recordings are the reference for what clients see. `done_right.py` names those that show a
weakness of the original.
"""

from __future__ import annotations

import pytest

from tests.protocol.done_right import DONE_RIGHT
from tests.support.broker import Broker
from tests.support.transcripts import Split, bytes_sent, play, scenarios

MOST_BYTES_SENT_SINGLY = 5000


def matched() -> list[str]:
    """Return the ids of the scenarios the broker has to match."""
    return [name for name in scenarios() if name not in DONE_RIGHT]


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
    differences = play(scenarios()[name], transcript_broker, split)

    assert not differences, "\n".join([scenarios()[name]["title"], *differences])


def test_the_table_names_only_recorded_scenarios() -> None:
    assert set(DONE_RIGHT) <= set(scenarios())


def test_weaknesses_of_the_original_are_never_matched() -> None:
    weak = {name for name, each in scenarios().items() if "lavinmq-defect" in each["tags"]}

    assert weak <= set(DONE_RIGHT)


def test_every_way_of_splitting_is_played() -> None:
    assert {split for _, split in plays()} == set(Split)
