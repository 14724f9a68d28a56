"""Which protocol two releases speak, if they can."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq import __version__
from lavinmq.cluster.frames import PeerError
from lavinmq.cluster.speech import NEWEST, OLDEST, agreed, compression, spoken
from lavinmq.config.values import defaults


def test_two_nodes_of_a_release_speak_its_newest() -> None:
    assert agreed(spoken()) == NEWEST
    assert NEWEST - OLDEST <= 1, "who speaks more has to show that it can"


@pytest.mark.parametrize(
    ("theirs", "ours", "number"),
    [([1, 1], (1, 2), 1), ([1, 2], (1, 1), 1), ([2, 3], (1, 2), 2), ([1, 2], (2, 3), 2),
     (None, (1, 2), 1)],
)  # fmt: skip
def test_releases_next_to_each_other_speak_what_both_know(
    theirs: list[int] | None, ours: tuple[int, int], number: int
) -> None:
    said: dict[str, Any] = {"version": "x"} | ({"protocol": theirs} if theirs else {})
    assert agreed(said, *ours) == number


@pytest.mark.parametrize(
    ("theirs", "ours"), [([3, 4], (1, 2)), ([1, 2], (3, 4)), (None, (2, 3))], ids=str
)
def test_releases_further_apart_are_refused_by_name(
    theirs: list[int] | None, ours: tuple[int, int]
) -> None:
    said: dict[str, Any] = {"version": "7.5"} | ({"protocol": theirs} if theirs else {})
    with pytest.raises(PeerError, match=rf"release 7\.5.*{__version__}.*update by"):
        agreed(said, *ours)


@pytest.mark.parametrize(
    "protocol", [1, "1", [], [1], [1, 2, 3], [2, 1], [0, 1], [1, None], [True, True], {"1": 2}],
    ids=str,
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(protocol: Any) -> None:
    with pytest.raises(PeerError, match="'protocol' is"):
        agreed({"version": "1", "protocol": protocol})


def test_a_release_is_named() -> None:
    with pytest.raises(PeerError, match="'version' is"):
        agreed({"protocol": [1, 1]})


@pytest.mark.parametrize(
    ("wanted", "cert", "is_so"),
    [("auto", None, "auto"), ("auto", "node.pem", "off"), ("on", "node.pem", "on"),
     ("on", None, "on"), ("off", None, "off"), ("off", "node.pem", "off")],
)  # fmt: skip
def test_what_goes_in_tls_is_packed_only_where_that_is_wanted(
    wanted: str, cert: str | None, is_so: str
) -> None:
    config = defaults()
    config.clustering_compression, config.clustering_tls_cert = wanted, cert
    assert compression(config) == is_so
