"""Which messages and bindings go on: by rules of hops, for whatever stands in headers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client._engine import (
    ProtocolViolation,
    Rewriter,
    decode_properties,
    encode_properties,
)
from lavinmq.federation.hops import BOUND, RECEIVED, Here, bound_from, marker

HERE = Here("host", "/", "down", "1a2b")
NAMES = st.sampled_from(["up", "down", "other"])
NAMED = st.fixed_dictionaries({"cluster-name": NAMES, "vhost": st.sampled_from(["/", "v"])})
SENT = st.fixed_dictionaries({"to": st.sampled_from(["1a2b:/", "1a2b:v", "3c4d:/"])})
ENTRIES = st.lists(NAMED | SENT, max_size=6)
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "x-received-fro"]), st.integers(0, 9))


def marking(most: int, *, ends_here: bool = True, trusts_user: bool = False) -> Rewriter:
    entry = {"uri": "amqp://up", "exchange": "x", "cluster-name": "up", "vhost": "/"}
    return marker(entry, HERE, most, ends_here=ends_here, trusts_user=trusts_user)


@given(ENTRIES, st.integers(1, 5), HEADERS, st.booleans(), st.booleans())
def test_a_message_goes_on_until_it_has_passed_enough_or_was_here(
    passed: list[dict[str, Any]], most: int, headers: dict[str, int], again: bool, has_user: bool
) -> None:
    given_headers: dict[str, Any] = {**headers, **({RECEIVED: passed} if passed else {})}
    properties: dict[str, Any] = {"headers": given_headers, "content_type": "t", "priority": 1}
    if has_user:
        properties["user_id"] = "u"
    made = marking(most).apply(encode_properties(properties), again)
    was_here = {"cluster-name": "down", "vhost": "/"} in passed or {"to": "1a2b:/"} in passed
    assert (made is None) is (len(passed) >= most or was_here)
    if made is not None:
        found = decode_properties(made)
        assert len(found["headers"][RECEIVED]) == len(passed) + 1
        assert found["headers"][RECEIVED][:-1] == passed
        assert found["headers"][RECEIVED][-1]["redelivered"] is again
        assert {k: v for k, v in found["headers"].items() if k != RECEIVED} == headers
        assert "user_id" not in found and (found["content_type"], found["priority"]) == ("t", 1)


@given(st.integers(0, 0xFFFF), st.binary(max_size=60), st.booleans())
def test_no_properties_that_a_peer_sends_break_it(flags: int, raw: bytes, is_whole: bool) -> None:
    if is_whole:
        raw = len(raw).to_bytes(4, "big") + raw
    with contextlib.suppress(ProtocolViolation):
        marking(5).apply(flags.to_bytes(2, "big") + raw)


@given(st.integers(1, 9), st.lists(st.integers(-2, 9), max_size=4))
def test_a_binding_goes_no_further_than_its_hops(most: int, before: list[int]) -> None:
    entries = [{"cluster-name": f"c{n}", "hops": hops} for n, hops in enumerate(before)]
    made = bound_from({BOUND: entries} if entries else {}, HERE, "x", most)
    left = min(before[0] - 1, most) if before else most
    assert (made is None) is (left <= 0)
    if made is not None:
        assert made[0] == {"id": "1a2b", "vhost": "/", "exchange": "x", "hops": left}
        assert made[1:] == entries


def test_a_binding_that_has_been_here_ends() -> None:
    mine = {"id": "1a2b", "vhost": "/", "exchange": "x", "hops": 5}
    assert bound_from({BOUND: [{"cluster-name": "o", "hops": 9}, mine]}, HERE, "x", 9) is None


@pytest.mark.parametrize("odd", [None, 5, "text", [1, None], [{}], [{"hops": True}]])
def test_what_is_no_list_of_hops_counts_for_nothing(odd: Any) -> None:
    made = marking(9).apply(encode_properties({"headers": {RECEIVED: odd}}))
    assert made is not None
    entries = decode_properties(made)["headers"][RECEIVED]
    assert entries[-1]["uri"] == "amqp://up"
    assert entries[:-1] == (odd if isinstance(odd, list) else [])
    bound_from({BOUND: odd}, HERE, "x", 3)
