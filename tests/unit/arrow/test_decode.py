"""`cext/arrow/decode.pyx`: rows out of the bytes that a consumer of a stream receives."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from lavinmq.spark._arrow import Columns, Decoder
from lavinmq.spark.schema import default_columns
from tests.fuzz.mutate import mutated
from tests.support.deliveries import (
    BODY,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    Delivery,
    frame,
    sent,
)

NARROW = ("offset", "body")
EVERYTHING = (*default_columns(), "headers", "headers_json")
CANCEL = frame(METHOD, bytes.fromhex("003c001e0474616701") + b"")
# A delivery of LavinMQ, written down by hand: frames of method, header and body.
GOLDEN = bytes.fromhex(
    "01 0001 0000001c 003c003c 0a616d712e637461672d78 0000000000000001 00 0178 016b ce"
    "02 0001 00000037 003c 0000 0000000000000002"
    "b000 0a746578742f706c61696e"
    "00000019 0f782d73747265616d2d6f6666736574 6c 0000000000000007 02 ce"
    "03 0001 00000002 6869 ce"
)

Row = dict[str, Any]


def decoder(
    start: int = 1, end: int = 1 << 40, columns: tuple[str, ...] = NARROW, **options: int
) -> tuple[Decoder, Columns]:
    """A decoder and its columns."""
    made = Columns(columns, queue="s")
    return Decoder(made, start, end, **options), made


def feed(reader: Decoder, data: bytes) -> list[int]:
    """Have bytes decoded until they are used up or the range ends; return what `run` said."""
    said = []
    while True:
        room = reader.room()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        reader.received(n)
        data = data[n:]
        while (result := reader.run()) not in (Decoder.MORE, Decoder.END):
            said.append(result)
        said.append(result)
        if not data or result == Decoder.END:
            return said


def rows(columns: Columns) -> list[Row]:
    """What was decoded; the batch is checked as Arrow does it."""
    batch = columns.take()
    batch.validate(full=True)
    found: list[Row] = batch.to_pylist()
    return found


def decoded(data: bytes, columns: tuple[str, ...] = NARROW, **options: int) -> list[Row]:
    """Rows of bytes that come at once."""
    reader, made = decoder(columns=columns, **options)
    feed(reader, data)
    return rows(made)


def expected(deliveries: list[Delivery]) -> list[Row]:
    return [{"offset": each.offset, "body": each.body} for each in deliveries]


# ---- what a message becomes ----------------------------------------------------------------------


def test_golden_bytes_become_a_row() -> None:
    wanted = ("queue", "offset", "exchange", "routing_key", "body", "content_type", "delivery_mode")

    assert decoded(GOLDEN, wanted) == [
        {
            "queue": "s",
            "offset": 7,
            "exchange": "x",
            "routing_key": "k",
            "body": b"hi",
            "content_type": "text/plain",
            "delivery_mode": 2,
        }
    ]


def test_all_properties_become_columns() -> None:
    texts = [b"corr", b"reply", b"5000", b"id-1"]
    behind = bytes([2, 200]) + b"".join(bytes([len(text)]) + text for text in texts)
    behind += struct.pack(">q", 1_700_000_000) + b"\x01t\x01u\x01a"
    message = Delivery(
        3, b"b", b"x", b"k", {"h": 1}, 1_700_000_000_123, 0xDFF8, b"\x02ct\x02ce", behind
    )

    (row,) = decoded(sent([message]), EVERYTHING)

    assert {name: row[name] for name in ("content_type", "content_encoding", "delivery_mode")} == {
        "content_type": "ct",
        "content_encoding": "ce",
        "delivery_mode": 2,
    }
    assert row["priority"] == 200
    assert [row[name] for name in ("correlation_id", "reply_to", "expiration", "message_id")] == [
        "corr",
        "reply",
        "5000",
        "id-1",
    ]
    assert [row["type"], row["user_id"], row["app_id"]] == ["t", "u", "a"]
    assert row["message_timestamp"].timestamp() == 1_700_000_000
    assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert row["headers"] == [("h", "1")]
    assert row["headers_json"] == '{"h":{"I":1}}'


def test_what_the_broker_tells_is_no_header_of_the_publisher() -> None:
    told = Delivery(3, time_ms=5)
    between = Delivery(4, headers={"a": "1", "x-stream-filter-value": "v"}, time_ms=5)

    first, second = decoded(sent([told, between]), ("headers", "headers_json", "delivery_mode"))

    assert first["headers"] is None and first["headers_json"] is None
    assert second["headers"] == [("a", "1"), ("x-stream-filter-value", "v")]


def test_what_the_broker_tells_is_found_at_any_place_of_the_table() -> None:
    message = Delivery(0, headers={"x-stream-offset": 0, "x-stream-timestamp": 0})
    table = (
        b"\x01aS\x00\x00\x00\x01A"
        + b"\x0fx-stream-offsetl" + struct.pack(">q", 9)
        + b"\x01fF\x00\x00\x00\x05\x02ttt\x01"
        + b"\x12x-stream-timestampl" + struct.pack(">q", 1500)
        + b"\x01bt\x01"
    )  # fmt: skip
    properties = struct.pack(">HI", 0x3000, len(table)) + table + b"\x01"
    head = struct.pack(">HHQ", 60, 0, 0) + properties
    data = frame(METHOD, message.method(1)) + frame(HEADER, head)

    (row,) = decoded(data, ("offset", "timestamp", "headers", "delivery_mode"))

    assert (row["offset"], row["delivery_mode"]) == (9, 1)
    assert row["timestamp"].timestamp() == 1.5
    assert row["headers"] == [("a", "A"), ("f", '{"tt":true}'), ("b", "true")]


def test_the_time_is_that_of_the_publisher_when_the_broker_tells_none() -> None:
    stamped = Delivery(1, flags=0x0040, behind=struct.pack(">q", 1000))
    far = Delivery(2, flags=0x0040, behind=struct.pack(">q", 1 << 62))

    found = decoded(sent([stamped, far, Delivery(3)]), ("timestamp",))

    assert found[0]["timestamp"].timestamp() == 1000
    assert found[1:] == [{"timestamp": None}, {"timestamp": None}]


def test_bytes_that_are_not_utf8_are_replaced_and_counted() -> None:
    reader, columns = decoder(columns=("routing_key", "headers"))

    feed(reader, sent([Delivery(1, routing_key=b"a\xffb", headers={"k": "\udcfe"})]))

    assert columns.n_repaired == 2
    assert rows(columns) == [{"routing_key": "a\ufffdb", "headers": [("k", "\ufffd")]}]


def test_a_body_of_many_frames_is_put_together() -> None:
    large = Delivery(2, random.Random(1).randbytes(3_000_000))
    messages = [Delivery(1, b"before"), large, Delivery(3, b""), Delivery(4, b"behind")]

    assert decoded(sent(messages)) == expected(messages)


# ---- the range -----------------------------------------------------------------------------------


def test_rows_outside_of_the_range_are_dropped() -> None:
    messages = [Delivery(offset, b"%d" % offset) for offset in range(1, 20)]
    reader, columns = decoder(5, 10)

    said = feed(reader, sent(messages))

    assert said == [Decoder.END]
    assert [row["offset"] for row in rows(columns)] == [5, 6, 7, 8, 9]
    assert reader.next_offset == 10


def test_the_range_ends_at_an_offset_behind_it() -> None:
    reader, columns = decoder(5, 10)

    said = feed(reader, sent([Delivery(5), Delivery(10), Delivery(11)]))

    assert said == [Decoder.END]
    assert [row["offset"] for row in rows(columns)] == [5]
    assert (reader.next_offset, reader.tag) == (6, 2)


def test_what_is_delivered_again_becomes_no_second_row() -> None:
    messages = [Delivery(offset) for offset in (1, 2, 1, 2, 3)]

    assert [row["offset"] for row in decoded(sent(messages))] == [1, 2, 3]


def test_missing_offsets_are_told_once() -> None:
    reader, _ = decoder(2)

    feed(reader, sent([Delivery(offset) for offset in (2, 3, 6, 7, 9)]))
    seen = reader.gap
    feed(reader, sent([Delivery(10)]))

    assert seen == (4, 9)
    assert reader.gap is None


def test_a_batch_ends_at_its_rows_and_at_its_bytes() -> None:
    messages = [Delivery(offset, bytes(100)) for offset in range(1, 11)]
    by_rows, columns = decoder(batch_rows=4)

    assert feed(by_rows, sent(messages[:3])) == [Decoder.MORE]
    assert feed(by_rows, frame(METHOD, messages[3].method(4)) + frame(HEADER, messages[3].head()))
    feed_body = by_rows.room()
    body = frame(BODY, messages[3].body) + sent(messages[4:])
    feed_body[: len(body)] = body
    by_rows.received(len(body))

    assert by_rows.run() == Decoder.FULL
    assert by_rows.run() == Decoder.FULL, "nobody has taken the rows"
    assert len(rows(columns)) == 4
    assert by_rows.run() == Decoder.FULL
    assert len(rows(columns)) == 4
    assert by_rows.run() == Decoder.MORE
    assert [row["offset"] for row in rows(columns)] == [9, 10]

    by_bytes, columns = decoder(batch_bytes=250)
    room = by_bytes.room()
    data = sent(messages)
    room[: len(data)] = data
    by_bytes.received(len(data))
    assert by_bytes.run() == Decoder.FULL
    assert columns.n_rows == 3


def test_reading_goes_on_after_a_reconnect() -> None:
    messages = [Delivery(offset, b"%d" % offset) for offset in range(1, 7)]
    reader, columns = decoder(1, 7)

    feed(reader, sent(messages[:4])[:-5])
    reader.reset()
    said = feed(reader, sent(messages[2:]))

    assert said == [Decoder.END]
    assert rows(columns) == expected(messages)


# ---- frames of other kinds -----------------------------------------------------------------------


def test_other_frames_are_handed_over_where_they_stand() -> None:
    first, second = Delivery(1, b"a"), Delivery(2, b"b")
    method, head, body = second.frames(2)
    closing = frame(METHOD, bytes.fromhex("000a0032") + bytes(7), channel=0)
    reader, columns = decoder()
    data = sent([first]) + CANCEL + method + HEARTBEAT_FRAME + head + closing + body
    reader.room()[: len(data)] = data
    reader.received(len(data))

    seen = []
    while reader.run() == Decoder.FRAME:
        seen.append((reader.frame[0], reader.frame[1], columns.n_rows))

    assert seen == [(1, 1, 1), (8, 0, 1), (1, 0, 1)]
    assert rows(columns) == expected([first, second])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "larger than was agreed"),
        (frame(METHOD, Delivery(1).method(1))[:-1] + b"\0", "does not end with 206"),
        (frame(7, b""), "unknown type"),
        (frame(BODY, b"", channel=2), "another channel"),
        (frame(METHOD, Delivery(1).method(1)[:-1]), "delivery that is cut short"),
        (frame(METHOD, Delivery(1).method(1) + b"\0"), "too long"),
        (frame(METHOD, b"\0\x3c\0\x3c\xff"), "cut short"),
        (frame(HEADER, Delivery(1).head()), "out of order"),
        (frame(BODY, b"x"), "out of order"),
        (frame(METHOD, Delivery(1).method(1)) * 2, "out of order"),
        (frame(METHOD, Delivery(1).method(1)) + frame(HEADER, b"\0\x3c"), "content header"),
        (frame(METHOD, Delivery(1).method(1)) + frame(HEADER, Delivery(1).head()[:-1]), "header"),
        (sent([Delivery(1, b"ab")])[:-10] + frame(BODY, b"abc"), "longer than announced"),
        (
            frame(METHOD, Delivery(1).method(1))
            + frame(HEADER, struct.pack(">HHQ", 60, 0, 1 << 40) + Delivery(1).properties()),
            "too large",
        ),
        (
            frame(METHOD, Delivery(1).method(1))
            + frame(HEADER, struct.pack(">HHQH", 60, 0, 0, 0x1000) + b"\x02"),
            "not a stream",
        ),
    ],
)
def test_what_is_no_delivery_is_refused(data: bytes, reason: str) -> None:
    reader, columns = decoder()

    with pytest.raises(ValueError, match=reason):
        feed(reader, data)

    assert columns.n_rows == 0


def test_a_batch_of_no_size_is_refused() -> None:
    for options in ({"batch_rows": 0}, {"batch_rows": 1 << 30}, {"batch_bytes": 1 << 40}):
        with pytest.raises(ValueError, match="a batch has"):
            decoder(**options)
    with pytest.raises(ValueError, match="room"):
        decoder()[0].received(1 << 30)


# ---- any input -----------------------------------------------------------------------------------

MESSAGES = [
    Delivery(1, b"first", b"amq.topic", b"a.b", {"a": [1, {"b": "c"}]}, 1_700_000_000_000),
    Delivery(2, b"", flags=0x9000, before=b"\x04text", behind=b"\x02"),
    Delivery(3, bytes(range(256)) * 2, flags=0x0040, behind=struct.pack(">q", 7)),
]


def test_input_may_be_split_anywhere() -> None:
    data = sent(MESSAGES, chunk=200)
    whole = decoded(data, EVERYTHING)
    assert [row["body"] for row in whole] == [each.body for each in MESSAGES]

    for at in range(len(data) + 1):
        reader, columns = decoder(columns=EVERYTHING)
        feed(reader, data[:at])
        feed(reader, data[at:])
        assert rows(columns) == whole, at


def test_input_may_come_byte_by_byte() -> None:
    reader, columns = decoder()

    for byte in sent(MESSAGES, chunk=200):
        feed(reader, bytes([byte]))

    assert rows(columns) == expected(MESSAGES)


names = st.binary(max_size=40)
deliveries = st.builds(
    Delivery,
    offset=st.just(0),
    body=st.binary(max_size=600),
    exchange=names,
    routing_key=names,
    headers=st.dictionaries(
        st.sampled_from(["a", "b", "x-death"]),
        st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=20)),
    ),
    time_ms=st.one_of(st.none(), st.integers(0, 1 << 42)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(deliveries, max_size=30), st.integers(1, 700), st.lists(st.integers(1, 900)))
def test_any_messages_survive_any_framing(
    made: list[Delivery], chunk: int, pieces: list[int]
) -> None:
    from dataclasses import replace

    made = [replace(each, offset=number) for number, each in enumerate(made, 1)]
    data = sent(made, chunk)
    reader, columns = decoder(columns=("offset", "body", "headers"), batch_rows=7)
    found: list[Row] = []
    for size in [*pieces, len(data)]:
        piece, data = data[:size], data[size:]
        room = reader.room()
        room[: len(piece)] = piece
        reader.received(len(piece))
        while reader.run() == Decoder.FULL:
            found += rows(columns)
    found += rows(columns)

    assert [(row["offset"], row["body"]) for row in found] == [
        (each.offset, each.body) for each in made
    ]
    for row, each in zip(found, made, strict=True):
        assert [key for key, _ in row["headers"] or ()] == list(each.headers)


def test_damaged_input_breaks_nothing() -> None:
    chance = random.Random(20)
    seeds = [sent(MESSAGES), sent(MESSAGES, chunk=100), GOLDEN + CANCEL + HEARTBEAT_FRAME]
    refused = 0

    for _ in range(3000):
        data = mutated(chance.choice(seeds), seeds, chance)
        reader, columns = decoder(columns=EVERYTHING)
        try:
            feed(reader, data)
        except ValueError:
            refused += 1
        batch = columns.take()
        batch.validate(full=True)
        offsets = batch.column("offset").to_pylist()
        assert offsets == sorted(set(offsets))

    assert 500 < refused < 3000
