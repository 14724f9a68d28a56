"""Tables of bindings grow and shrink slot by slot, unless they are small: no binding waits for what
the others take."""

from __future__ import annotations

import random

import pytest

from tests.support._matcher import Matcher

DIRECT, TOPIC, HEADERS, FILTERS = 0, 2, 3, 7
AT_ONCE = 5
"""Slots of a large table that one binding may make, or take away."""
SMALL = 4096
"""A table with no more slots has 8, 16, 32 … of them."""
MOST = 3000


def key(kind: int, number: int) -> bytes:
    return b"fleet.%d.*" % number if kind == TOPIC else b"fleet/%d/+" % number


def arguments(number: int) -> bytes:
    text = b"%d" % number
    return b"\x01kS" + len(text).to_bytes(4, "big") + text


def routed(made: Matcher, kind: int, number: int) -> list[int]:
    if kind == HEADERS:
        return made.route(b"", headers=arguments(number))
    if kind == DIRECT:
        return made.route(key(kind, number))
    if kind == TOPIC:
        return made.route(b"fleet.%d.x" % number)
    found: list[tuple[int, int]] = made.route(b"fleet/%d/x" % number)  # type: ignore[assignment]
    return [each for each, _ in found]


@pytest.mark.parametrize("kind", [DIRECT, TOPIC, HEADERS, FILTERS])
def test_a_binding_moves_a_few_slots_however_many_there_are(kind: int) -> None:
    made = Matcher(kind, 7)
    order = list(range(MOST))
    random.Random(kind).shuffle(order)
    widest, longest = (0,) * 4, 0

    def step(number: int, *, binds: bool) -> None:
        nonlocal widest, longest
        before = made.n_slots()
        args = arguments(number) if kind == HEADERS else b""
        if binds:
            assert made.bind(key(kind, number), args, number) == 1
        else:
            assert made.unbind(key(kind, number), args, number) == 1
        after = made.n_slots()
        for new, old in zip(after, before, strict=True):
            if new > SMALL and old:
                longest = max(longest, abs(new - old))
            elif new:
                assert new.bit_count() == 1
        widest = tuple(map(max, after, widest))  # type: ignore[assignment]

    for number in range(MOST):
        step(number, binds=True)
    for number in order[: MOST - 10]:
        step(number, binds=False)

    assert max(widest) > 2 * MOST - 10
    assert 0 < longest <= AT_ONCE
    assert max(made.n_slots()) < 100
    assert len(made) == 10
    for number in order[MOST - 10 :]:
        assert routed(made, kind, number) == [number]
