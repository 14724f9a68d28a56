"""A connection whose broker lies: what it can make grow has a bound, and it ends with a word.

Frames go to a `Link` by hand, without a socket. Liars with one: tests/integration/client.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine, methods
from lavinmq.client.config import Config
from lavinmq.client.errors import ClosedError, ConsumerCancelled, ProtocolViolation
from lavinmq.client.link import ANSWERS_MOST, Chan, ChannelOwner, Link
from lavinmq.client.url import parse_url
from tests.support import client_frames as frames

RETURN = ("basic.return", 312, "NO_ROUTE", "", "q")
ASKED = frames.method(1, "channel.flow", True)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is held up."""

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """The other side does."""

    def abort(self) -> None:
        """The other side does."""


class Taker(ChannelOwner):
    """Has a channel, and looks at what comes."""

    def __init__(self, look: Callable[[], object] = list) -> None:
        self.progressed = look
        self.returned: list[_engine.Message] = []

    def chan_returned(self, message: _engine.Message) -> None:
        self.returned.append(message)


async def answered(link: Link, work: Coroutine[Any, Any, Any], *answers: bytes) -> Any:
    """Do what asks the broker, and give it the answers one by one."""
    task = asyncio.create_task(work)
    for answer in answers:
        for _ in range(3):
            await asyncio.sleep(0)
        link.feed(answer)
    return await task


async def connected() -> tuple[Link, Wire]:
    """A connection after its handshake."""
    link, wire = Link(Config(), parse_url("amqp://localhost"), asyncio.get_running_loop()), Wire()
    link.connection_made(wire)
    await answered(
        link,
        link.open(),
        frames.method(0, "connection.start", 0, 9, {}, b"PLAIN", b"en_US"),
        frames.method(0, "connection.tune", 0, 131072, 0),
        frames.method(0, "connection.open-ok", ""),
    )
    return link, wire


async def channel(link: Link, number: int = 1, **options: Any) -> Chan:
    """The next channel of it."""
    opened = frames.method(number, "channel.open-ok", b"")
    chan = await answered(link, link.channel(**options), opened)
    assert isinstance(chan, Chan)
    return chan


def cause_of(play: Callable[[], Coroutine[Any, Any, Link]]) -> str:
    """What a connection ended with, which is a lie that was found out."""

    async def run() -> Exception:
        link = await play()
        assert link.lost is not None
        return link.lost

    cause = asyncio.run(run())
    assert isinstance(cause, ProtocolViolation)
    return str(cause)


def test_deliveries_to_who_only_publishes_are_a_lie() -> None:
    """They would gather where nobody takes them."""

    async def play() -> Link:
        link, _ = await connected()
        await channel(link, ring=_engine.Ring(), owner=Taker())
        link.feed(frames.delivery(1, 1, b"x"))
        return link

    assert cause_of(play) == "a message for who only publishes"


def test_deliveries_to_who_only_declares_are_a_lie() -> None:
    async def play() -> Link:
        link, _ = await connected()
        await channel(link)
        link.feed(frames.delivery(1, 1, b"x"))
        return link

    assert cause_of(play) == "a message where nobody consumes"


def test_no_more_come_back_than_were_published() -> None:
    ring = _engine.Ring()
    ring.configure(confirms=False)
    owner = Taker()

    async def play() -> Link:
        link, _ = await connected()
        await channel(link, ring=ring, owner=owner)
        ring.publish(b"x", mandatory=True)
        link.feed((frames.method(1, *RETURN) + frames.content(1, b"x")) * 100)
        return link

    assert cause_of(play) == "more messages come back than were published"
    assert len(owner.returned) <= 1


def test_properties_that_are_none_end_the_connection_with_a_word() -> None:
    """Who looks at them first may be a consumer, in the loop: the peer is told all the same."""

    async def run() -> tuple[str, bytes]:
        link, wire = await connected()
        tracker = _engine.Tracker()
        tracker.reset(1)

        def look() -> None:
            for message in chan.port.take():
                assert message.headers is None, "nobody can read them"

        chan = await channel(link, tracker=tracker, owner=Taker(look))
        link.feed(frames.delivery(1, 1, b"x", props=b"\x20\x00\x00\x00\x00\x05\x03abc"))
        return str(link.lost), wire.sent

    cause, sent = asyncio.run(run())
    assert cause == "properties are cut short"
    assert cause.encode() in sent


def test_who_asks_and_takes_no_answer_is_left() -> None:
    async def play() -> Link:
        link, _ = await connected()
        await channel(link)
        for _ in range(10):
            link.feed(ASKED * ANSWERS_MOST)
        assert link.lost is None
        link.pause_writing()
        link.feed(ASKED * ANSWERS_MOST)
        link.resume_writing()
        assert link.lost is None
        link.pause_writing()
        link.feed(ASKED * (ANSWERS_MOST + 1))
        return link

    assert cause_of(play) == "the broker asks on and on, and takes no answer"


def test_two_cancels_of_a_plain_channel_are_no_mistake_of_ours() -> None:
    """The first one ends the channel, at the broker as well: its number is free then."""

    async def run() -> tuple[Exception | None, bool, bytes]:
        link, wire = await connected()
        chan = await channel(link)
        cancel = frames.method(1, "basic.cancel", "c", False)
        link.feed(cancel + cancel)
        await asyncio.sleep(0)
        await channel(link, 2)
        link.feed(frames.method(1, "channel.close-ok"))
        await channel(link, 1)
        return chan.error, link.lost is not None, wire.sent

    error, is_lost, sent = asyncio.run(run())
    assert isinstance(error, ConsumerCancelled) and not is_lost
    assert frames.method(1, "channel.close", 200, "", 0, 0) in sent


def test_a_broker_that_blocks_and_unblocks_is_told_of_now_and_then() -> None:
    """A program's callbacks may be slow, and the last word counts."""
    told: list[str | None] = []
    blocked = frames.method(0, "connection.blocked", "no")
    unblocked = frames.method(0, "connection.unblocked")

    async def run() -> None:
        link, _ = await connected()
        link.owner = SimpleNamespace(blocked=told.append, over=lambda link: None)
        link.feed((blocked + unblocked) * 1000 + blocked)
        assert told == ["no"]
        assert link.blocked_since is not None
        link.feed(unblocked)
        while len(told) < 2:
            await asyncio.sleep(0.01)
        link.end(ConnectionError("that was all"))

    asyncio.run(asyncio.wait_for(run(), 5))
    assert told == ["no", None]


def any_method() -> st.SearchStrategy[bytes]:
    """A method of those that there are, with arguments or with what is none."""

    def payloads(number: int) -> st.SearchStrategy[bytes]:
        head = struct.pack(">I", number)
        values = [VALUES[kind] for kind in methods.FORMS[number]]
        proper = st.tuples(*values).map(
            lambda found: _engine.encode_method(0, number, methods.FORMS[number], *found)[7:-1]
        )
        return st.one_of(proper, st.binary(max_size=30).map(lambda rest: head + rest))

    return st.sampled_from(sorted(methods.FORMS)).flatmap(payloads)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "B": st.integers(0, 255), "H": st.integers(0, 0xFFFF), "L": st.integers(0, 0xFFFFFFFF),
    "Q": st.integers(0, 3), "s": st.sampled_from(["", "c", "q"]), "S": st.binary(max_size=9),
    "T": st.just({"a": 1}), "b": st.booleans(),
}  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), any_method()), max_size=8))
def test_whatever_methods_come_only_a_lie_ends_the_connection(
    said: list[tuple[int, bytes]],
) -> None:
    """No other error leaves the connection: the loop would take it for a mistake of ours."""

    async def run() -> None:
        link, _ = await connected()
        ring, tracker = _engine.Ring(), _engine.Tracker()
        ring.configure()
        quiet = Taker()
        await channel(link, 1, ring=ring, owner=quiet)
        await channel(link, 2, tracker=tracker, owner=quiet)
        tracker.reset(2)
        for number, payload in said:
            link.feed(frames.frame(1, number, payload))
        link.end(ClosedError("that was all"))

    asyncio.run(run())
