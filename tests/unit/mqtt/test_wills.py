"""Wills: packed and unpacked; when those that wait are published."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.auth.users import User
from lavinmq.mqtt import kept_wills, wills
from lavinmq.mqtt.connect import Will, within
from lavinmq.mqtt.kept_wills import Kept
from lavinmq.process.portions import Portions, SharedPortion

AUTHOR = User("u", "", "SHA256")
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
    st.booleans(),
)
def test_a_will_comes_back(will: Will, user: str, due_ms: int, is_token: bool) -> None:
    """What is kept is what is read."""
    kept = Kept(will, user, due_ms, is_token)
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
def events() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs when the test says so: its clock says what time it is."""
    with contextlib.closing(asyncio.new_event_loop()) as made:
        yield made


def publishing(out: list[str], steps: int = 1) -> wills.Publish:
    """Notes whose wills are published, in so many steps."""

    def publish(due: wills.Testament) -> Generator[None]:
        for _ in range(steps - 1):
            yield
        out.append(due.client_id)
        yield

    return publish


def test_wills_wait_for_their_delay(events: asyncio.AbstractEventLoop) -> None:
    """5.0 [MQTT-3.1.3-9]: at once, after a delay, not at all, or with the end of the session."""
    clock, out = _Clock(), list[str]()

    waiting = wills.Wills(events, publishing(out), Portions(events.call_soon), clock)
    for client_id, delay_s in (("now", 0), ("soon", 2), ("back", 2), ("ended", 60), ("late", 61)):
        waiting.add(client_id, Will("t", b"", 0, False, delay_s), AUTHOR)
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


def test_a_delay_ends_with_the_session(events: asyncio.AbstractEventLoop) -> None:
    """5.0 [MQTT-3.1.2-8]: once, and not of who has none."""
    out = list[str]()
    waiting = wills.Wills(events, publishing(out), Portions(events.call_soon))
    waiting.add("c", Will("t", b"", 0, False, 60), AUTHOR)
    for _ in range(2):
        waiting.hasten("c")
        waiting.hasten("other")

    assert out == ["c"]
    assert not len(waiting)


@pytest.fixture
def works(events: asyncio.AbstractEventLoop) -> Portions:
    """Does one step in each turn."""
    ticks = itertools.count()
    return Portions(events.call_soon, SharedPortion(events.call_soon, lambda: float(next(ticks))))


def turn(events: asyncio.AbstractEventLoop) -> None:
    """One turn of the loop."""
    events.call_soon(events.stop)
    events.run_forever()


def test_many_wills_of_one_second_are_published_in_portions(
    events: asyncio.AbstractEventLoop, works: Portions
) -> None:
    clock, out = _Clock(), list[str]()
    waiting = wills.Wills(events, publishing(out), works, clock)
    for n in range(20):
        waiting.add(f"{n}", Will("t", b"", 0, False, 2), AUTHOR)
    clock.now = 2.5
    waiting._due()
    turn(events)

    assert len(out) == 1

    waiting.cancel("19")
    while len(waiting):
        turn(events)
    assert out == [f"{n}" for n in range(19)]


def test_many_wills_that_are_due_at_once_are_published_in_portions(
    events: asyncio.AbstractEventLoop, works: Portions
) -> None:
    """Who is back, or begins anew, has its will out before; an end of the broker publishes all."""
    out = list[str]()
    waiting = wills.Wills(events, publishing(out), works)
    for n in range(20):
        waiting.add(f"{n}", Will("t", b"", 0, False, 0), AUTHOR)
    turn(events)
    assert out == ["0"]

    waiting.cancel("19")
    waiting.release("18")
    assert out == ["0", "19", "18"]

    for _ in range(9):
        turn(events)
    assert out[3:5] == ["1", "2"]
    assert len(waiting) > 9

    waiting.release_all()
    assert sorted(out, key=int) == [f"{n}" for n in range(20)]
    assert not len(waiting)


def test_a_will_that_is_long_to_publish_is_whole_before_an_end(
    events: asyncio.AbstractEventLoop, works: Portions
) -> None:
    """Many sessions get it: the broker stops in the midst of it. A deleted host needs it not."""
    out, dropped = list[str](), list[str]()
    waiting = wills.Wills(events, publishing(out, steps=50), works)
    others = wills.Wills(events, publishing(dropped, steps=50), works)
    for each in (waiting, others):
        for client_id in ("a", "b"):
            each.add(client_id, Will("t", b"", 0, False, 0), AUTHOR)
    for _ in range(4):
        turn(events)
    assert out == dropped == []

    waiting.release_all()
    others.stop()
    for _ in range(300):
        turn(events)
    assert sorted(out) == ["a", "b"]
    assert dropped == []


def test_what_the_next_start_goes_on_with_is_left_to_it(events: asyncio.AbstractEventLoop) -> None:
    """5.0 [MQTT-3.1.3-9]: its client may be back in time. What is due goes out all the same."""
    out = list[str]()
    waiting = wills.Wills(events, publishing(out), Portions(events.call_soon))
    for client_id, delay_s, is_kept in (("kept", 60, True), ("lost", 60, False), ("due", 0, True)):
        waiting.add(client_id, Will("t", b"", 0, False, delay_s), AUTHOR, is_kept=is_kept)

    waiting.release_all()

    assert sorted(out) == ["due", "lost"]


def test_nothing_is_published_after_a_stop(
    events: asyncio.AbstractEventLoop, works: Portions
) -> None:
    """The virtual host has gone."""
    out = list[str]()
    waiting = wills.Wills(events, publishing(out), works)
    for n in range(3):
        waiting.add(f"{n}", Will("t", b"", 0, False, 0), AUTHOR)
    waiting.stop()
    for _ in range(9):
        turn(events)

    assert out == []


@pytest.mark.parametrize("delay_s", [0, 2])
@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_will_that_fails_keeps_no_other_one_back(
    events: asyncio.AbstractEventLoop, works: Portions, caplog: pytest.LogCaptureFixture,
    delay_s: int, is_stopping: bool,
) -> None:  # fmt: skip
    """A bug in one is told, and the others go on: those that wait for the same second, too, and
    those that an end of the broker publishes."""
    clock, out = _Clock(), list[str]()

    def publish(due: wills.Testament) -> Generator[None]:
        if due.client_id == "bad":
            raise ValueError("a bug")
        out.append(due.client_id)
        yield

    waiting = wills.Wills(events, publish, works, clock)
    for client_id in ("bad", "held"):
        waiting.add(client_id, Will("t", b"", 0, False, delay_s), AUTHOR)
    if is_stopping:
        waiting.release_all()
    else:
        clock.now = 2.5
        waiting._due()
    for _ in range(9):
        turn(events)

    assert out == ["held"]
    assert not len(waiting)
    assert "will of 'bad' is not published" in caplog.text
    assert "a bug" in caplog.text


def test_a_will_that_is_due_is_not_lost_to_that_of_the_next_connection(
    events: asyncio.AbstractEventLoop, works: Portions
) -> None:
    """Another connection of the client has come and gone before its turn: both are published."""
    out = list[str]()

    def publish(due: wills.Testament) -> Generator[None]:
        out.append(due.will.topic)
        yield

    waiting = wills.Wills(events, publish, works)
    for topic in ("first", "second", "third"):
        waiting.add("c", Will(topic, b"", 0, False), AUTHOR)
    while len(waiting):
        turn(events)

    assert out == ["first", "second", "third"]
