"""Properties that are changed on the way: compared with what a table in Python would become."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client._engine import (
    ProtocolViolation,
    Rewriter,
    ValueNotEncodable,
    decode_properties,
    encode_properties,
)

NAMES = st.sampled_from(["a", "b", "CC", "BCC", "hops", "at"])
VALUES = st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.booleans() | st.none()
HEADERS = st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=3), max_size=5)
TEXTS = ("content_type", "content_encoding", "correlation_id", "message_id", "user_id", "app_id")
PROPERTIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(TEXTS, st.text(max_size=9)),
        "priority": st.integers(0, 255), "delivery_mode": st.integers(0, 255), "headers": HEADERS,
    },
)  # fmt: skip


def plain(properties: dict[str, Any]) -> dict[str, Any]:
    """Without an empty table: it says the same as none."""
    found = dict(properties)
    if not found.get("headers"):
        found.pop("headers", None)
    return found


@given(PROPERTIES, PROPERTIES, st.booleans(), st.sets(NAMES), st.booleans(), st.booleans())
def test_it_does_what_a_dictionary_would(
    own: dict[str, Any], fixed: dict[str, Any], drops_user_id: bool, drops: set[str],
    has_array: bool, is_stamped: bool,
) -> None:  # fmt: skip
    rewriter = Rewriter(
        properties=fixed, drops_user_id=drops_user_id, drops=drops - {"hops", "at"},
        array="hops" if has_array else None, entry={"n": 1}, stamp="at" if is_stamped else None,
    )  # fmt: skip
    expected = {name: own[name] for name in own if not (drops_user_id and name == "user_id")}
    headers = dict(expected.pop("headers", {}))
    for name in drops - {"hops", "at"}:
        headers.pop(name, None)
    for name in fixed.get("headers", {}):
        headers.pop(name, None)
    if has_array:
        before = dict(own.get("headers", {})).get("hops")
        headers["hops"] = [*(before if isinstance(before, list) else []), {"n": 1}]
    if is_stamped:
        headers["at"] = ...
    merged = {**headers, **fixed.get("headers", {})}
    expected.update(fixed)
    expected["headers"] = merged

    made = rewriter.apply(encode_properties(own))

    assert made is not None
    found = decode_properties(made)
    if merged.get("at") is ...:
        assert abs(found["headers"]["at"] - time.time()) < 60
        merged["at"] = found["headers"]["at"]
    assert plain(found) == plain(expected)


def test_types_that_a_publisher_chose_stay() -> None:
    raw = b"\x20\x00" + (4).to_bytes(4, "big") + b"\x01nb\x05"  # an octet
    made = Rewriter(array="hops", entry={}).apply(raw)
    assert made is not None and made[6:].startswith(b"\x01nb\x05")


def test_nothing_is_touched_without_need() -> None:
    raw = encode_properties({"headers": {"a": 1}, "priority": 1})
    assert Rewriter(drops_user_id=True).apply(raw) is raw


def test_a_second_array_of_that_name_is_no_word_of_a_link() -> None:
    one = b"\x04hopsA" + (2).to_bytes(4, "big") + b"t\x01"
    raw = b"\x20\x00" + (2 * len(one)).to_bytes(4, "big") + one + one
    made = Rewriter(array="hops", entry={"n": 1}).apply(raw)
    assert made is not None and made.count(b"hops") == 1
    assert decode_properties(made)["headers"]["hops"] == [True, {"n": 1}]


@given(st.integers(0, 0xFFFF), st.binary(max_size=80))
def test_malformed_ones_are_refused_or_become_others(flags: int, raw: bytes) -> None:
    rewriter = Rewriter(
        properties={"priority": 1, "headers": {"a": 1}}, drops=("CC",), array="hops",
        entry={"n": 1}, tells_redelivered=True, most=3, been=({"n": 2},), stamp="at",
    )  # fmt: skip
    with contextlib.suppress(ProtocolViolation):
        rewriter.apply(flags.to_bytes(2, "big") + raw)


@pytest.mark.parametrize("wrong", [{"nothing": 1}, {"priority": 300}, {"headers": {"a": object()}}])
def test_what_cannot_be_written_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueNotEncodable):
        Rewriter(properties=wrong)
