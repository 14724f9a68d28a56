"""The history of one thing's rates against plain lists, and the memory that it takes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.stats.track import Track

NAMES = ("in", "out", "lost")
growths = st.tuples(*(st.just(0) | st.integers(0, 50) for _ in NAMES))


@given(st.lists(growths, min_size=1, max_size=30), st.integers(1, 8))
def test_any_growth_gives_the_histories_that_lists_would(
    grown: list[tuple[int, ...]], size: int
) -> None:
    track = Track()
    counters = dict.fromkeys(NAMES, 0)
    model: dict[str, list[float]] = {name: [] for name in NAMES}
    for number, step in enumerate(grown, 1):
        for name, growth in zip(NAMES, step, strict=True):
            counters[name] += growth
            model[name].append(round(growth / 5.0, 1))
        track.sample(counters, 5.0, min(number, size))

        samples = min(number, size)
        for name in NAMES:
            assert track.log(name, samples) == pytest.approx(model[name][-samples:])
            assert track.rate(name) == pytest.approx(model[name][-1])
            if any(model[name][-samples:]):
                assert track.has_moved(name)


def test_a_counter_that_begins_late_has_zeros_before() -> None:
    track = Track()
    track.sample({"in": 5, "out": 0}, 1.0, 1)
    track.sample({"in": 6, "out": 0}, 1.0, 2)
    track.sample({"in": 6, "out": 3}, 1.0, 3)

    assert track.log("in", 3) == [5.0, 1.0, 0.0]
    assert track.log("out", 3) == [0.0, 0.0, 3.0]


def test_what_has_been_still_for_a_history_has_not_moved() -> None:
    track = Track()
    track.sample({"in": 5, "out": 0}, 1.0, 3)
    for _ in range(3):
        track.sample({"in": 5, "out": 0}, 1.0, 3)
    assert not track.has_moved("in")

    track.sample({"in": 5, "out": 2}, 1.0, 3)
    assert not track.has_moved("in")
    assert track.log("out", 3) == [0.0, 0.0, 2.0]


def test_a_counter_that_rests_while_another_grows_is_let_go_of() -> None:
    track = Track()
    for count in range(5):
        track.sample({"in": 5, "out": count}, 1.0, 3)

    assert not track.has_moved("in")
    assert track.has_moved("out")


def test_things_that_have_moved_once_share_their_names_and_take_few_bytes() -> None:
    tracks = [Track() for _ in range(2)]
    for track in tracks:
        track.sample({"in": 47, "out": 4, "lost": 0}, 5.0, 120)

    assert tracks[0]._moved is tracks[1]._moved
    assert sys.getsizeof(tracks[0]) + sys.getsizeof(tracks[0]._packed) <= 128
