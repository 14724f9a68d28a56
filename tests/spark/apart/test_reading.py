"""`lavinmq/spark/reading.py` against a broker: what a task yields, and how it fails. No Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lavinmq.spark import reading
from lavinmq.spark.connection import ConnectionFailure
from lavinmq.spark.errors import DataLossError
from lavinmq.spark.options import ConnectionOptions, Node
from lavinmq.spark.planner import RangeTask
from lavinmq.spark.reading import read_range
from lavinmq.spark.schema import default_columns
from tests.conftest import BrokerFactory
from tests.spark.batches import rows_of
from tests.spark.streams import Stream, channel, damage, numbers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.deliveries import frame, short
from tests.support.raw_connection import Properties
from tests.support.waiting import wait_for

NARROW = ("offset", "body")
Row = dict[str, Any]


def options_of(broker: Broker, **more: Any) -> ConnectionOptions:
    return ConnectionOptions((Node(broker.host, broker.port),), **more)


def task_of(stream: Stream, start: int, end: int, **more: Any) -> RangeTask:
    columns = more.pop("columns", NARROW)
    more.setdefault("read_timeout_s", 10.0)
    return RangeTask(options_of(stream.broker), stream.name, start, end, columns, **more)


def read(task: RangeTask) -> list[Row]:
    return rows_of(task, read_range(task))


def read_bodies(task: RangeTask) -> list[bytes]:
    """Bodies; the offsets are checked to be those of the range."""
    rows = read(task)
    assert [row["offset"] for row in rows] == list(range(task.start, task.start + len(rows)))
    return [row["body"] for row in rows]


def is_one_line(error: BaseException, *names: str) -> bool:
    text = str(error)
    assert "\n" not in text and "guest:guest" not in text
    for name in names:
        assert name in text, text
    return True


# ---- rows ----------------------------------------------------------------------------------------


def test_a_range_in_the_middle_is_read_exactly(stream: Stream) -> None:
    stream.publish(numbers(1, 5001))

    task = task_of(stream, 1234, 4321, batch_rows=1000, prefetch=50)
    batches = list(read_range(task))

    assert [batch.num_rows for batch in batches] == [1000, 1000, 1000, 87]
    assert read_bodies(task) == numbers(1234, 4321)


def test_an_empty_range_needs_no_broker() -> None:
    options = ConnectionOptions((Node("127.0.0.1", 1),))

    assert list(read_range(RangeTask(options, "nowhere", 5, 5, NARROW))) == []


def test_the_first_offset_may_be_called_0_or_1(stream: Stream) -> None:
    stream.publish(numbers(1, 4))

    assert [row["offset"] for row in read(task_of(stream, 0, 4))] == [1, 2, 3]
    assert [row["offset"] for row in read(task_of(stream, 1, 4))] == [1, 2, 3]


@pytest.mark.parametrize("prefetch", [1, 2, 65535])
def test_any_prefetch_gets_through(stream: Stream, prefetch: int) -> None:
    stream.publish(numbers(1, 301))

    assert read_bodies(task_of(stream, 1, 301, prefetch=prefetch)) == numbers(1, 301)


def test_all_properties_arrive(stream: Stream) -> None:
    from datetime import UTC, datetime

    texts = {
        name: f"the {name}"
        for name in (
            *("content_type", "content_encoding", "correlation_id", "reply_to", "message_id"),
            *("app_id",),
        )
    }
    stamp = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    properties = Properties(
        **texts,
        expiration="60000",
        message_type="the type",
        user_id="guest",
        delivery_mode=2,
        priority=200,
        timestamp=stamp,
        headers={"text": "ü", "number": -5, "yes": True, "table": {"a": [1, None]}},
    )
    before = time.time()
    stream.publish([b"x", b""], properties=properties)
    stream.publish([b"bare"])

    columns = (*default_columns(), "headers", "headers_json")
    first, second, bare = read(task_of(stream, 1, 4, columns=columns))

    assert {name: first[name] for name in texts} == texts
    assert (first["queue"], first["exchange"], first["routing_key"]) == (
        stream.name, "", stream.name,
    )  # fmt: skip
    assert (first["expiration"], first["type"], first["user_id"]) == ("60000", "the type", "guest")
    assert (first["delivery_mode"], first["priority"]) == (2, 200)
    assert first["message_timestamp"] == stamp
    assert before - 1 <= first["timestamp"].timestamp() <= time.time() + 1
    assert first["headers"] == [
        ("number", "-5"), ("table", '{"a":[1,null]}'), ("text", "ü"), ("yes", "true"),
    ]  # fmt: skip
    assert first["headers_json"].startswith('{"number":{"b":-5},"table":{"F":{"a":{"A":[')
    assert second["body"] == b""
    absent = {name for name, value in bare.items() if value is None}
    assert absent == set(columns) - {
        "queue", "offset", "timestamp", "exchange", "routing_key", "body", *given(bare),
    }  # fmt: skip


def given(row: Row) -> set[str]:
    """Properties that the publishing client sets by itself."""
    return {"delivery_mode", "priority"} & {name for name, value in row.items() if value}


def test_the_columns_come_in_the_order_that_is_asked_for(stream: Stream) -> None:
    stream.publish([b"x"])

    (row,) = read(task_of(stream, 1, 2, columns=("body", "queue", "offset")))

    assert list(row.items()) == [("body", b"x"), ("queue", stream.name), ("offset", 1)]


def test_large_bodies_arrive_whole(stream: Stream) -> None:
    large = bytes(range(256)) * 81920  # 20 MiB
    stream.publish([b"before", large, b"", b"behind"])

    assert read_bodies(task_of(stream, 1, 5)) == [b"before", large, b"", b"behind"]


def test_a_batch_ends_at_16_mib(stream: Stream) -> None:
    stream.publish([bytes(6_000_000)] * 7)

    sizes = [batch.num_rows for batch in read_range(task_of(stream, 1, 8))]

    assert sizes == [3, 3, 1]


def test_text_that_is_not_utf8_is_repaired(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    key = b"bad\xffkey"
    with channel(stream.broker) as opened:
        opened.declare_exchange(stream.name, "fanout")
        opened.bind_queue(stream.name, stream.name)
        publish = b"\x00\x3c\x00\x28\x00\x00" + short(stream.name.encode()) + short(key) + b"\0"
        table = b"\x01kS\x00\x00\x00\x02\xc3\x28"
        head = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00\x00\x00\x00\x09" + table
        opened.confirm_select()
        opened._connection.write(frame(1, publish) + frame(2, head))
        opened.confirm(10)
        opened.delete_exchange(stream.name)

    (row,) = read(task_of(stream, 1, 2, columns=("routing_key", "headers")))

    assert row == {"routing_key": "bad\ufffdkey", "headers": [("k", "\ufffd(")]}
    assert "2 strings were not UTF-8" in caplog.text


# ---- the end of a range --------------------------------------------------------------------------


def tagged(stream: Stream, *values: str) -> None:
    for value in values:
        stream.publish([value.encode()], properties=Properties(headers={"kind": value}))


def test_a_filter_leaves_out_rows(stream: Stream) -> None:
    tagged(stream, "a", "b", "a", "c")

    rows = read(task_of(stream, 1, 5, filter='{"kind": "a"}'))
    either = read(
        task_of(stream, 1, 5, filter='[{"kind": "a"}, {"kind": "c"}]', filter_match="any")
    )

    assert [row["offset"] for row in rows] == [1, 3]
    assert [row["offset"] for row in either] == [1, 3, 4]


def test_a_filter_that_matches_nothing_ends_at_once(stream: Stream) -> None:
    tagged(stream, "a", "b")
    began = time.monotonic()

    assert read(task_of(stream, 1, 3, filter='{"kind": "z"}', read_timeout_s=300.0)) == []

    assert time.monotonic() - began < 150  # the broker says so: nobody waits for silence


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not know where a consumer is to end."""
    consume = reading._consume

    def without_end(connection: Any, queue: str, prefetch: int, arguments: Any) -> None:
        known = {key: each for key, each in arguments.items() if key != "x-stream-end-offset"}
        consume(connection, queue, prefetch, known)

    monkeypatch.setattr(reading, "_consume", without_end)


@pytest.mark.usefixtures("plain")
def test_silence_ends_a_filtered_range_on_other_brokers(stream: Stream) -> None:
    tagged(stream, "a", "b")

    rows = read(task_of(stream, 1, 3, filter='{"kind": "a"}', read_timeout_s=2.0))

    assert [row["offset"] for row in rows] == [1]


@pytest.mark.usefixtures("plain")
def test_a_range_without_filter_needs_no_end_from_the_broker(stream: Stream) -> None:
    stream.publish(numbers(1, 101))

    assert read_bodies(task_of(stream, 10, 60, prefetch=7)) == numbers(10, 60)


def test_a_range_beyond_the_end_of_the_stream_fails(stream: Stream) -> None:
    stream.publish(numbers(1, 4))

    with pytest.raises(ConnectionFailure, match=r"no message for 2 s at offset 4 of \[2, 9\)") as e:
        read(task_of(stream, 2, 9, read_timeout_s=2.0))

    assert is_one_line(e.value, stream.name, str(stream.broker.port), "vhost '/'")


# ---- what is gone --------------------------------------------------------------------------------


@pytest.fixture
def short_stream(broker_factory: BrokerFactory, tmp_path: Path) -> Stream:
    """A stream that has lost its first messages."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    broker = broker_factory(["-c", str(config)], http=True)
    stream = Stream(broker, "s").declare(**{"x-max-length": 100})
    stream.publish([b"%d" % n + bytes(200) for n in range(1, 501)])
    return stream


def first_kept(stream: Stream) -> int:
    columns = ("offset",)
    task = task_of(stream, 1, 501, columns=columns, fail_on_data_loss=False)
    return int(read(task)[0]["offset"])


def test_a_start_that_is_gone_is_data_loss(short_stream: Stream) -> None:
    first = first_kept(short_stream)
    assert first > 300

    with pytest.raises(DataLossError) as caught:
        read(task_of(short_stream, 5, 501))

    assert is_one_line(caught.value, "'s'", f"offsets 5 to {first - 1} are gone", "failOnDataLoss")


def test_a_whole_range_that_is_gone_is_data_loss(short_stream: Stream) -> None:
    with pytest.raises(DataLossError, match="offsets 5 to 8 are gone"):
        read(task_of(short_stream, 5, 9))


def test_a_filter_does_not_hide_data_loss(short_stream: Stream) -> None:
    with pytest.raises(DataLossError, match="offsets 5 to"):
        read(task_of(short_stream, 5, 501, filter='{"kind": "none"}'))


def test_a_loss_is_told_also_when_the_look_into_it_was_cut(
    short_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages behind a gap were rows already, so the next connection saw no gap."""
    look = reading._Reading._first_from
    cuts = [ConnectionFailure("cut", is_transient=True)]

    def cut_once(self: Any, place: int | str) -> int | None:
        if cuts:
            raise cuts.pop()
        return look(self, place)

    monkeypatch.setattr(reading._Reading, "_first_from", cut_once)

    with pytest.raises(DataLossError, match="offsets 5 to"):
        read(task_of(short_stream, 5, 501))
    assert not cuts


def test_what_retention_takes_from_before_a_filter_is_data_loss(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    """The broker has a reader go on behind what it removes; with a filter there are gaps anyway."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    stream = Stream(broker_factory(["-c", str(config)], http=True), "s")
    stream.declare(**{"x-max-length": 100})
    tagged(stream, "b", *"a" * 20)
    task = task_of(stream, 1, 401, prefetch=1, batch_rows=1, filter='{"kind": "a"}')

    batches = read_range(task)
    next(batches)
    tagged(stream, *"a" * 379, "end")

    with pytest.raises(DataLossError, match=r"'s': offsets \d+ to \d+ are gone"):
        list(batches)


@pytest.mark.parametrize("end", [401, 202])
def test_messages_that_the_broker_finds_damaged_are_data_loss(
    broker_factory: BrokerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, end: int
) -> None:
    """They were left out without a word, or at the end of a range waited for until the time-out."""
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\nsegment_size = 65536\n")
    stream = Stream(broker_factory(["-c", str(config)]), "s").declare()
    stream.publish([b"body %04d" % n + bytes(200) for n in range(1, 501)])
    damage(stream.broker, b"body 0201")
    task = task_of(stream, 1, end)

    with pytest.raises(DataLossError, match="'s': offsets 201 to 201 are gone"):
        read(task)
    rows = read(replace(task, fail_on_data_loss=False))

    assert [row["offset"] for row in rows] == [n for n in range(1, end) if n != 201]
    assert "offsets 201 to 201 are gone: 1 messages" in caplog.text


def test_lost_messages_are_skipped_and_counted_on_demand(
    short_stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    first = first_kept(short_stream)
    caplog.clear()

    rows = read(task_of(short_stream, 5, 501, fail_on_data_loss=False))

    assert [row["offset"] for row in rows] == list(range(first, 501))
    assert f"{first - 5} messages" in caplog.text


# ---- brokers that break off ----------------------------------------------------------------------


def test_a_broker_that_is_killed_costs_no_row_and_doubles_none(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory()
    stream = Stream(broker, "s").declare()
    stream.publish([b"%d" % n + bytes(500) for n in range(1, 20_001)])
    batches = read_range(task_of(stream, 1, 20_001, prefetch=50, batch_rows=500))

    rows = [row for _ in range(5) for row in next(batches).to_pylist()]
    broker.kill()
    broker.start()
    rows += [row for batch in batches for row in batch.to_pylist()]

    assert [row["offset"] for row in rows] == list(range(1, 20_001))
    assert all(row["body"].startswith(b"%d\0" % row["offset"]) for row in rows)


def test_a_broker_that_stops_in_order_costs_nothing_with_a_filter_either(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory()
    stream = Stream(broker, "s").declare()
    bodies = [b"%d" % n + bytes(500) for n in range(1, 5001)]
    stream.publish(bodies, properties=Properties(headers={"kind": "a"}))
    task = task_of(stream, 1, 5001, prefetch=50, batch_rows=500, filter='{"kind": "a"}')
    batches = read_range(task)

    rows = next(batches).to_pylist()
    stopping = threading.Thread(target=broker.restart)
    stopping.start()
    wait_for(lambda: "Stopping" in broker.log_text(), "the broker stops")
    rows += [row for batch in batches for row in batch.to_pylist()]
    stopping.join()

    assert [row["offset"] for row in rows] == list(range(1, 5001))


def test_a_broker_that_stays_away_fails_the_task_in_time(broker_factory: BrokerFactory) -> None:
    broker = broker_factory()
    stream = Stream(broker, "s").declare()
    stream.publish([bytes(500)] * 5000)
    batches = read_range(task_of(stream, 1, 5001, prefetch=50, batch_rows=500, read_timeout_s=0.5))

    next(batches)
    broker.kill()

    with pytest.raises(ConnectionFailure, match="cannot connect") as caught:
        list(batches)
    assert is_one_line(caught.value, str(broker.port), "'s'")


def test_a_queue_that_is_deleted_meanwhile_fails_the_task(stream: Stream) -> None:
    stream.publish([bytes(500)] * 5000)
    batches = read_range(task_of(stream, 1, 5001, prefetch=50, batch_rows=500))

    next(batches)
    stream.delete()

    with pytest.raises(ConnectionFailure) as caught:
        list(batches)
    assert is_one_line(caught.value, "404 NOT_FOUND", stream.name)


def test_the_socket_is_closed_when_nobody_wants_more(stream: Stream) -> None:
    stream.publish([bytes(500)] * 5000)
    api = Api(stream.broker)
    name = f"task of {stream.name}"

    def is_connected() -> bool:
        listed = api.get("/api/connections")
        return any(each["client_properties"].get("connection_name") == name for each in listed)

    task = task_of(stream, 1, 5001, prefetch=50, batch_rows=100, client_name=name)
    batches: Iterator[Any] = read_range(task)
    next(batches)
    wait_for(is_connected, "the connection of the task is listed")

    batches.close()  # type: ignore[attr-defined]

    wait_for(lambda: not is_connected(), "the connection is closed")


# ---- refusals ------------------------------------------------------------------------------------


def refusal(task: RangeTask, *names: str) -> ConnectionFailure:
    """What the task fails with: at once, and in one line."""
    began = time.monotonic()
    with pytest.raises(ConnectionFailure) as caught:
        read(replace(task, read_timeout_s=300.0))
    assert not caught.value.is_transient
    assert time.monotonic() - began < 150, "it was tried again and again"
    assert is_one_line(caught.value, str(task.connection.nodes[0]), task.queue, *names)
    return caught.value


def test_a_wrong_password_is_said_without_it(stream: Stream) -> None:
    task = replace(
        task_of(stream, 1, 2), connection=options_of(stream.broker, password="sesame-open")
    )

    failure = refusal(task, "403 ACCESS_REFUSED", "user 'guest'")

    assert "sesame" not in str(failure) and "sesame" not in repr(failure)


def test_an_unknown_vhost_is_named(stream: Stream) -> None:
    task = replace(task_of(stream, 1, 2), connection=options_of(stream.broker, vhost="nowhere"))

    refusal(task, "530 NOT_ALLOWED", "vhost 'nowhere'")


def test_a_missing_queue_is_named(stream: Stream) -> None:
    refusal(replace(task_of(stream, 1, 2), queue="no-such-queue"), "404 NOT_FOUND")


def test_a_queue_that_is_no_stream_is_refused(stream: Stream) -> None:
    name = f"{stream.name}-classic"
    classic = Stream(stream.broker, name)
    with channel(stream.broker) as opened:
        opened.declare_queue(name, durable=True)
    classic.publish([b"x"])

    refusal(task_of(classic, 1, 2), "not a stream")

    with channel(stream.broker) as opened:
        wait_for(
            lambda: opened.declare_queue(name, passive=True).message_count == 1,
            "the message is back",
        )
        opened.delete_queue(name)


def test_no_permission_to_read_is_said(stream: Stream) -> None:
    Api(stream.broker).as_user("writer", "", **{"/": ("", ".*", "")})
    options = options_of(stream.broker, user="writer", password="writer-pw")

    refusal(replace(task_of(stream, 1, 2), connection=options), "403 ACCESS_REFUSED", "writer")
