"""Wills: packed and unpacked; when those that wait are published."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.mqtt import kept_wills, wills
from lavinmq.mqtt.connect import Will, within
from lavinmq.mqtt.kept_wills import Kept
from lavinmq.process.portions import in_portions

_texts = st.text(st.characters(exclude_characters="\0#+", codec="utf-8"), min_size=1, max_size=20)


@given(
    st.builds(
        Will,
        _texts,
        st.binary(max_size=40),
        st.integers(0, 2),
        st.booleans(),
        st.integers(0, 2**32 - 1),
        st.none() | st.integers(0, 2**32 - 1),
        st.binary(max_size=40),
    ),
    _texts,
    st.integers(0, 2**63),
)
def test_a_will_comes_back(will: Will, user: str, due_ms: int) -> None:
    """What is kept is what is read."""
    kept = Kept(will, user, due_ms)
    assert kept_wills.decode(kept_wills.encode(kept)) == kept


@given(st.binary(max_size=60))
def test_any_bytes_are_a_will_or_none(raw: bytes) -> None:
    """Nothing is raised."""
    assert kept_wills.decode(raw) is None


def test_a_delay_is_no_longer_than_the_session() -> None:
    """5.0 [MQTT-3.1.2-8]."""
    will = Will("t", b"", 0, False, 60)
    assert within(will, 10).delay_s == 10
    assert within(will, 100).delay_s == 60


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def events() -> asyncio.AbstractEventLoop:
    """A loop that does not run: the clock of the test says what time it is."""
    return asyncio.new_event_loop()


def test_wills_wait_for_their_delay(events: asyncio.AbstractEventLoop) -> None:
    """5.0 [MQTT-3.1.3-9]: at once, after a delay, not at all, or with the end of the session."""
    clock, out = _Clock(), list[str]()

    def publish(due: wills.Testament) -> None:
        out.append(due.client_id)

    waiting = wills.Wills(events, publish, clock)
    for client_id, delay_s in (("now", 0), ("soon", 2), ("back", 2), ("ended", 60), ("late", 61)):
        waiting.add(client_id, Will("t", b"", 0, False, delay_s), lambda topic: True)
    assert out == ["now"]
    waiting.cancel("back")
    waiting.release("ended")
    assert out == ["now", "ended"]
    clock.now = 2.5
    waiting._due()
    assert out == ["now", "ended", "soon"]
    waiting._due()
    waiting.release_all()
    assert out == ["now", "ended", "soon", "late"]
    assert not len(waiting)
    events.close()


def test_many_wills_of_one_second_are_published_in_portions(
    events: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wills, "in_portions", partial(in_portions, portion_s=0.0))  # a step each
    clock, out = _Clock(), list[str]()
    waiting = wills.Wills(events, lambda due: out.append(due.client_id), clock)
    for n in range(20):
        waiting.add(f"{n}", Will("t", b"", 0, False, 2), lambda topic: True)
    clock.now = 2.5
    waiting._due()

    assert out == ["0"]

    waiting.cancel("19")
    while len(waiting):
        events.call_soon(events.stop)
        events.run_forever()
    assert out == [f"{n}" for n in range(19)]
    events.close()
