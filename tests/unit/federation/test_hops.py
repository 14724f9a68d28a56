"""Which messages and bindings go on: by rules of hops, for whatever stands in headers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from lavinmq.client._engine import (
    add_header,
    decode_properties,
    encode_header,
    encode_properties,
)
from lavinmq.federation.hops import BOUND, RECEIVED, Here, Marker, bound_from
from tests.support import client_frames as frames

HERE = Here("host", "/", "down", "1a2b")
NAMES = st.sampled_from(["up", "down", "other"])
NAMED = st.fixed_dictionaries({"cluster-name": NAMES, "vhost": st.sampled_from(["/", "v"])})
SENT = st.fixed_dictionaries({"to": st.sampled_from(["1a2b:/", "1a2b:v", "3c4d:/"])})
ENTRIES = st.lists(NAMED | SENT, max_size=6)
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "x-received-fro"]), st.integers(0, 9))


def delivered(raw: bytes, *, redelivered: bool = False) -> _engine.Message:
    """A message as a client gets it."""
    source = _engine.Input()
    port = _engine.Port(2, tracker=_engine.Tracker(0))
    source.open(port)
    source.feed(frames.delivery(2, 1, b"x", props=raw, redelivered=redelivered))
    [message] = port.take()
    return message


def marker(most: int, *, ends_here: bool = True, trusts_user: bool = False) -> Marker:
    entry = {"uri": "amqp://up", "exchange": "x", "cluster-name": "up", "vhost": "/"}
    return Marker(entry, HERE, most, ends_here=ends_here, trusts_user=trusts_user)


@given(ENTRIES, st.integers(1, 5), HEADERS, st.booleans(), st.booleans())
def test_a_message_goes_on_until_it_has_passed_enough_or_was_here(
    passed: list[dict[str, Any]], most: int, headers: dict[str, int], again: bool, has_user: bool
) -> None:
    given_headers: dict[str, Any] = {**headers, **({RECEIVED: passed} if passed else {})}
    properties: dict[str, Any] = {"headers": given_headers, "content_type": "t", "priority": 1}
    if has_user:
        properties["user_id"] = "u"
    made = marker(most).marked(delivered(encode_properties(properties), redelivered=again))
    was_here = {"cluster-name": "down", "vhost": "/"} in passed or {"to": "1a2b:/"} in passed
    assert (made is None) is (len(passed) >= most or was_here)
    if made is not None:
        found = decode_properties(made)
        assert len(found["headers"][RECEIVED]) == len(passed) + 1
        assert found["headers"][RECEIVED][:-1] == passed
        assert found["headers"][RECEIVED][-1]["redelivered"] is again
        assert {k: v for k, v in found["headers"].items() if k != RECEIVED} == headers
        assert "user_id" not in found and (found["content_type"], found["priority"]) == ("t", 1)


@given(st.binary(max_size=60))
def test_no_properties_that_a_peer_sends_break_it(raw: bytes) -> None:
    header = encode_header(RECEIVED, [{"uri": "amqp://up"}])
    made = add_header(raw, RECEIVED, header)
    assert made is None or len(made) in (len(raw) + len(header), len(raw) + len(header) + 4)


@given(st.dictionaries(st.sampled_from(["a", "bb"]), st.integers() | st.text()), st.booleans())
def test_a_header_is_added_to_what_is_there(headers: dict[str, Any], has_type: bool) -> None:
    properties: dict[str, Any] = {"content_type": "t"} if has_type else {"message_id": "m"}
    if headers:
        properties["headers"] = headers
    try:
        raw = encode_properties(properties)
    except ValueError:
        return
    made = add_header(raw, RECEIVED, encode_header(RECEIVED, [1]))
    assert made is not None
    found = decode_properties(made)
    assert found.pop("headers") == {RECEIVED: [1], **headers}
    properties.pop("headers", None)
    assert found == properties


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
    message = delivered(encode_properties({"headers": {RECEIVED: odd}}))
    assert marker(9).marked(message) is not None
    bound_from({BOUND: odd}, HERE, "x", 3)
