"""The last elections of a cluster, as one key of etcd has them: which node led, and why no more.

They are written by the transaction that makes a leader, so all nodes show the same. Times are those
of the node that was elected, and for people only: nothing is decided by them.
Source: docs/clustering.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson

MOST: Final = 20
MOST_CHARACTERS: Final = 500
GONE: Final = "its lease ended"
DEAD: Final = "its address refused connections"
ANEW: Final = "it was started anew"
UNAWARE: Final = "it had not learnt that it led"
STOPPED: Final = "it was stopped"
MADE_WAY: Final = "it made way for another node"


class Election(NamedTuple):
    """A node leads from then on. Args: at: seconds since 1970; ended: why it leads no more, empty
    if it does, or nobody has said so."""

    epoch: int
    node: str
    uri: str
    at: float
    ended: str = ""


def began(
    elections: Iterable[Election], epoch: int, node: str, uri: str, why: str
) -> list[Election]:
    """What there is after an election. Args: why: the one before leads no more, if it has not said
    so itself."""
    known = [each for each in elections if each.epoch < epoch]
    if known and not known[-1].ended:
        known[-1] = known[-1]._replace(ended=why)
    return [*known, Election(epoch, node, uri[:MOST_CHARACTERS], round(time.time(), 3))][-MOST:]


def ended(elections: Iterable[Election], epoch: int, why: str) -> list[Election]:
    """What there is after a leader has said why it leads no more."""
    text = why[:MOST_CHARACTERS]
    return [each._replace(ended=text) if each.epoch == epoch else each for each in elections]


def to_json(elections: Iterable[Election]) -> bytes:
    """As it is kept."""
    return orjson.dumps([each._asdict() for each in elections])


def of_json(kept: bytes) -> tuple[Election, ...]:
    """What was kept, oldest first; without what is none, as nothing depends on it."""
    try:
        rows = orjson.loads(kept or b"[]")
    except orjson.JSONDecodeError:
        return ()
    if not isinstance(rows, list):
        return ()
    found = (_election(row) for row in rows[-MOST:])
    return tuple(each for each in found if each is not None)


def _election(row: Any) -> Election | None:
    if not isinstance(row, dict):
        return None
    epoch, at = row.get("epoch"), row.get("at")
    texts = [row.get(name) for name in ("node", "uri", "ended")]
    if not isinstance(epoch, int) or not isinstance(at, int | float):
        return None
    if not all(isinstance(each, str) and len(each) <= MOST_CHARACTERS for each in texts):
        return None
    return Election(epoch, str(texts[0]), str(texts[1]), float(at), str(texts[2]))
