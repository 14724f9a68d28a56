"""Headers about deaths of any shape, delivery counts of any content: survived, not believed."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lavinmq import _core, fieldtable
from tests.support.core import Bench, Session, TimedEvents, properties, publish, settle

NAMES = (
    "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-delivery-count", "CC", "BCC",
)  # fmt: skip
KEYS = ("queue", "reason", "exchange", "count", "time", "routing-keys", "original-expiration")
TEXTS = ("q", "dead", "", "rejected", "expired", "maxlen", "x" * 300)

scalars = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats()
    | st.sampled_from(TEXTS) | st.binary(max_size=8)
)  # fmt: skip
entries = st.dictionaries(st.sampled_from(KEYS), scalars | st.lists(scalars, max_size=3))
values = scalars | entries | st.lists(entries | scalars, max_size=6) | st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(KEYS), inner, max_size=3)
)  # fmt: skip
tables = st.dictionaries(st.sampled_from(NAMES), values)


class Allowing(Session):
    """Lets the link publish what it asks about; there is no exchange but the default one."""

    def __init__(self, opened: Bench) -> None:
        super().__init__()
        self._link = opened.link

    def on_route_miss(self, _channel: int, kind: int, name: bytes, keys: list[bytes]) -> None:
        """A dead letter may go to an exchange that is not there yet."""
        self._link.allow(kind, name, keys, None)


@contextmanager
def bench() -> Iterator[tuple[Bench, _core.Queue, _core.Queue]]:
    """A queue `q` with a limit of length 2, whose dead letters go to `dead`."""
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Bench(Path(directory) / "data", TimedEvents())) as opened,
    ):
        opened.session = opened.link.session = Allowing(opened)
        dead = opened.queue("dead", durable=False)
        rules = {"target": b"", "target_key": b"dead", "max_length": 2}
        yield opened, opened.queue("q", durable=False, **rules), dead


def headers_of(got_properties: bytes) -> fieldtable.FieldTable:
    """The headers of a dead letter, which come first."""
    assert got_properties[0] & 0x20
    return fieldtable.decode(got_properties, 2)[0]


@given(table=tables, expires=st.booleans())
@settings(max_examples=150, deadline=None, database=None)
@example(table={"x-death": [{"queue": "q", "reason": "rejected", "count": (1 << 63) - 1}]},
         expires=False)  # fmt: skip
@example(table={"x-dead-letter-exchange": "dead"}, expires=False)
def test_any_headers_are_survived(table: dict[str, fieldtable.Value], expires: bool) -> None:
    """amqp.md 22.25: no error but for a bad CC, and the newest entry tells of this death."""
    content = fieldtable.encode(table)
    props = properties(headers=content, expiration="100000" if expires else None)
    with bench() as (opened, queue, dead):
        opened.send(publish(b"q", b"body", props))
        opened.run()
        if opened.session.events:
            assert {"CC", "BCC"} & table.keys()
            return
        got = opened.get(queue, no_ack=False)
        assert got is not None
        copies = dead.ready  # CC may name that queue
        for _ in range(copies):
            opened.get(dead)
        opened.send(settle(90, got.tag, 0))
        opened.run()
        assert not opened.session.events
        assert queue.unacked == 0
        assert queue.ready + dead.ready <= 1
        letter = opened.get(dead) or opened.get(queue)
        if letter is None:
            assert table.get("x-dead-letter-exchange") or "x-dead-letter-routing-key" in table
            return
        found = headers_of(letter.properties)
        deaths = found["x-death"]
        assert isinstance(deaths, list)
        newest = deaths[0]
        assert isinstance(newest, dict)
        assert (newest["queue"], newest["reason"]) == ("q", "rejected")
        count = newest["count"]
        assert isinstance(count, int)
        assert count >= 1
        for entry in deaths:
            assert isinstance(entry, dict)
            assert isinstance(entry["queue"], str)
            assert isinstance(entry["reason"], str)
        assert {"x-first-death-reason", "x-first-death-queue"} <= found.keys()
        assert letter.body == b"body"


@given(content=st.binary(max_size=200))
@settings(max_examples=100, deadline=None, database=None)
def test_bytes_that_are_no_table_are_refused(content: bytes) -> None:
    """amqp.md 22.25"""
    with bench() as (opened, queue, _):
        opened.send(publish(b"q", b"body", properties(headers=b"\x07x-death" + content)))
        opened.run()
        assert queue.ready == (0 if opened.session.events else 1)


counts_files = st.binary(max_size=100) | st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 100) | st.just(4), st.integers(0, (1 << 32) - 1))
).map(lambda entries: b"".join(struct.pack("<III", *entry) for entry in entries))


@given(content=counts_files, cut=st.integers(0, 11), levels=st.sampled_from((-1, 3)))
@settings(max_examples=100, deadline=None, database=None)
def test_any_file_of_counts_is_survived(content: bytes, cut: int, levels: int) -> None:
    """amqp.md 22.18: messages stay, or die by the limit; new ones begin anew, also later on."""
    directory = tempfile.TemporaryDirectory()
    root = Path(directory.name) / "data"
    with directory:
        for life in range(3):
            with closing(Bench(root, TimedEvents())) as opened:
                dead = opened.queue("dead")
                queue = opened.queue(
                    "q", max_priority=levels, delivery_limit=2, target=b"", target_key=b"dead"
                )
                assert queue.ready == (3 if life else 0)
                if life == 0:
                    for number in range(3):
                        opened.send(publish(b"q", b"%d" % number))
                    opened.run()
                if life == 2:
                    check_messages(opened, queue, dead)
                for each in (queue, dead):
                    opened.run()
                    each.close()
            if life == 0:
                place = root / "q" / "prio.000" if levels >= 0 else root / "q"
                (place / "deliveries").write_bytes(content[: len(content) - cut])


def check_messages(opened: Bench, queue: _core.Queue, dead: _core.Queue) -> None:
    """Each message is in one of the queues, and a new one is new."""
    opened.send(publish(b"q", b"new"))
    found = []
    while (got := opened.get(queue)) is not None:
        found.append(got.body)
        if got.body == b"new":
            assert not got.redelivered
    opened.run()
    while (got := opened.get(dead)) is not None:
        found.append(got.body)
    assert sorted(found) == [b"0", b"1", b"2", b"new"]
