"""The files the broker writes, byte by byte: segments, acks, metas, definitions, directories.

An independent reader (`tests/support/segments.py`) takes them apart after an orderly stop, so
that the original could go on with the same directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.segments import (
    FIRST_POSITION,
    Definition,
    directory_name,
    encode_record,
    queue_directory,
    read_acks,
    read_definitions,
    read_meta,
    read_queue,
    read_segment,
    segment_numbers,
    segment_path,
)
from tests.support.typed import TypedClient
from tests.support.waiting import wait_for

SEGMENT_SIZE = 4096
DECLARE_EXCHANGE, DELETE_EXCHANGE = (40, 10), (40, 20)
DECLARE_QUEUE, BIND_QUEUE, DELETE_QUEUE, UNBIND_QUEUE = (50, 10), (50, 20), (50, 40), (50, 50)
DEFAULT_EXCHANGES = [
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
]


@pytest.fixture
def client(own_broker: Broker) -> Iterator[TypedClient]:
    with TypedClient(own_broker.port) as connected:
        yield connected


@pytest.fixture
def small_segments(tmp_path: Path, broker_factory: Callable[..., Broker]) -> Broker:
    """A broker that starts a new segment every 4096 bytes."""
    config = tmp_path / "lavinmq.ini"
    config.write_text(f"[main]\nsegment_size = {SEGMENT_SIZE}\n")
    return broker_factory(["-c", str(config)])


def declare(client: TypedClient, queue: str, **arguments: Any) -> None:
    """Declare a durable queue."""
    answer = client.call("queue.declare", queue=queue, durable=True, **arguments)
    assert answer["method"] == "queue.declare-ok"


def stop(broker: Broker, client: TypedClient) -> None:
    """Stop the broker once it has handled what the client sent; it would wait for the client."""
    client.synchronise()
    client.close()
    assert broker.stop() == 0


def definitions_of(broker: Broker) -> list[Definition]:
    return read_definitions(broker.data_dir / directory_name("/") / "definitions.amqp")


def kinds(definitions: list[Definition]) -> list[tuple[int, int]]:
    return [(each.class_id, each.method_id) for each in definitions]


# ------------------------------------------------------------------ segments


def test_smallest_record_is_written_as_in_the_format(
    own_broker: Broker, client: TypedClient
) -> None:
    declare(client, "q")
    client.publish("", "q", b"hello")

    stop(own_broker, client)

    (record,) = read_queue(queue_directory(own_broker.data_dir, "q"))
    assert record.raw[8:].hex(" ") == "00 01 71 00 00 05 00 00 00 00 00 00 00 68 65 6c 6c 6f"
    assert abs(record.timestamp_ms - time.time() * 1000) < 60_000


def test_record_with_properties_is_written_as_in_the_format(
    own_broker: Broker, client: TypedClient
) -> None:
    declare(client, "q")
    client.call("queue.bind", queue="q", exchange="amq.topic", routing_key="#")
    headers = [["a", "I", 1]]
    client.publish("amq.topic", "a.b", b"hi", headers=headers, delivery_mode=2, expiration="500")

    stop(own_broker, client)

    (record,) = read_segment(segment_path(queue_directory(own_broker.data_dir, "q")))
    assert record.raw[8:] == bytes.fromhex(
        "09 61 6d 71 2e 74 6f 70 69 63 03 61 2e 62"
        "00 31 07 00 00 00 01 61 49 00 00 00 01 02 03 35 30 30 02 00 00 00 00 00 00 00 68 69"
    )
    assert len(record.raw) == 50


def test_record_keeps_all_fourteen_properties(own_broker: Broker, client: TypedClient) -> None:
    texts: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "86400000",
        "message_id": "m" * 255,
        "type": "",
        "user_id": "guest",
        "app_id": "grüße",
        "reserved": "x",
    }
    numbers: dict[str, Any] = {"delivery_mode": 1, "priority": 255, "timestamp": -2}
    declare(client, "q")
    client.publish("", "q", b"", headers=[["D", "D", [2, 314]]], **texts, **numbers)

    stop(own_broker, client)

    (record,) = read_queue(queue_directory(own_broker.data_dir, "q"))
    wanted = {name: text.encode() for name, text in texts.items()} | numbers
    table = b"\x01DD" + bytes([2]) + (314).to_bytes(4, "big")
    assert record.without_timestamp == encode_record(b"", b"q", wanted | {"headers": table}, b"")


def test_segment_is_cut_to_its_used_size_by_an_orderly_stop(
    own_broker: Broker, client: TypedClient
) -> None:
    declare(client, "q")
    for number in range(3):
        client.publish("", "q", bytes(100 * number))

    stop(own_broker, client)

    path = segment_path(queue_directory(own_broker.data_dir, "q"))
    records = read_segment(path)
    assert [len(record.body) for record in records] == [0, 100, 200]
    assert path.stat().st_size == FIRST_POSITION + sum(len(record.raw) for record in records)


def test_empty_queue_holds_a_segment_of_a_header_only_or_none(
    own_broker: Broker, client: TypedClient
) -> None:
    """The original makes the first segment with the queue, and opens a queue without any."""
    declare(client, "q")

    stop(own_broker, client)

    directory = queue_directory(own_broker.data_dir, "q")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert files.pop(".queue") == b"q"
    assert files in ({}, {"msgs.0000000001": bytes([4, 0, 0, 0])})


def test_body_of_many_frames_is_one_record(own_broker: Broker, client: TypedClient) -> None:
    body = bytes(range(256)) * 100
    declare(client, "q")
    client.publish("", "q", body)

    stop(own_broker, client)

    (record,) = read_queue(queue_directory(own_broker.data_dir, "q"))
    assert record.without_timestamp == encode_record(b"", b"q", {}, body)


# ------------------------------------------------------------------ acks and rolling


def test_acks_file_lists_positions_in_the_order_of_settling(
    own_broker: Broker, client: TypedClient
) -> None:
    declare(client, "q")
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    tags = [unit["args"]["delivery_tag"] for unit in client.get_all("q")]
    client.send("basic.ack", delivery_tag=tags[3])
    client.send("basic.reject", delivery_tag=tags[1], requeue=False)

    stop(own_broker, client)

    directory = queue_directory(own_broker.data_dir, "q")
    at = [record.position for record in read_segment(segment_path(directory))]
    assert read_acks(directory / "acks.0000000001") == [at[3], at[1]]
    assert (directory / "acks.0000000001").stat().st_size == 8


def test_no_acks_file_before_the_first_delete(own_broker: Broker, client: TypedClient) -> None:
    """edge-cases.md 322"""
    declare(client, "q")
    client.publish("", "q", b"m")
    client.get_all("q")

    stop(own_broker, client)

    assert not list(queue_directory(own_broker.data_dir, "q").glob("acks.*"))


def test_full_segment_is_closed_with_its_message_count(small_segments: Broker) -> None:
    """edge-cases.md 332"""
    with TypedClient(small_segments.port) as client:
        declare(client, "q")
        for number in range(100):
            client.publish("", "q", b"%0100d" % number)
        client.synchronise()

    small_segments.stop()

    directory = queue_directory(small_segments.data_dir, "q")
    numbers = segment_numbers(directory)
    found = {number: read_segment(segment_path(directory, number)) for number in numbers}
    assert numbers == list(range(1, len(numbers) + 1))
    assert [int(record.body) for records in found.values() for record in records] == [*range(100)]
    for number, records in found.items():
        size = segment_path(directory, number).stat().st_size
        assert size == FIRST_POSITION + sum(len(record.raw) for record in records)
        assert size <= SEGMENT_SIZE
    metas = {int(path.suffix[1:]): read_meta(path) for path in directory.glob("meta.*")}
    assert metas == {number: len(found[number]) for number in numbers[:-1]}


def test_message_larger_than_a_segment_has_a_file_of_its_size(small_segments: Broker) -> None:
    """edge-cases.md 327"""
    body = bytes(3 * SEGMENT_SIZE)
    with TypedClient(small_segments.port) as client:
        declare(client, "q")
        client.publish("", "q", b"small")
        client.publish("", "q", body)
        client.publish("", "q", b"small")
        client.synchronise()

    small_segments.stop()

    directory = queue_directory(small_segments.data_dir, "q")
    found = [read_segment(segment_path(directory, n)) for n in segment_numbers(directory)]
    assert [[len(record.body) for record in records] for records in found] == [
        [5],
        [len(body)],
        [5],
    ]


def test_segments_whose_messages_are_all_gone_are_removed(small_segments: Broker) -> None:
    """edge-cases.md 318"""
    with TypedClient(small_segments.port) as client:
        declare(client, "q")
        for number in range(100):
            client.publish("", "q", b"%0100d" % number)
        client.get_all("q", no_ack=True)
        for number in range(100, 150):
            client.publish("", "q", b"%0100d" % number)
        client.synchronise()

    small_segments.restart()
    small_segments.stop()

    directory = queue_directory(small_segments.data_dir, "q")
    left = read_queue(directory)
    assert [int(record.body) for record in left] == [*range(100, 150)]
    first = segment_numbers(directory)[0]
    assert first > 1
    assert {int(path.suffix[1:]) for path in directory.glob("*.0*")} == set(
        segment_numbers(directory)
    )


# ------------------------------------------------------------------ definitions


def test_new_directory_defines_the_default_exchanges(own_broker: Broker) -> None:
    wanted = [
        b"\0\0"
        + bytes([len(name)])
        + name.encode()
        + bytes([len(kind)])
        + kind.encode()
        + b"\2"
        + bytes(4)
        for name, kind in DEFAULT_EXCHANGES
    ]

    found = definitions_of(own_broker)

    assert kinds(found) == [DECLARE_EXCHANGE] * 6
    assert [each.fields for each in found] == wanted


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "0000 066f7264657273 02 00000000"),
        (
            [["x-message-ttl", "I", 60000]],
            "0000 066f7264657273 02 13000000 0d782d6d6573736167652d74746c 490000ea60",
        ),
    ],
    ids=["plain", "with-ttl"],
)
def test_durable_queue_is_defined_before_it_is_confirmed(
    own_broker: Broker, client: TypedClient, arguments: list[list[object]], wanted: str
) -> None:
    declare(client, "orders", arguments=arguments)

    *_, last = definitions_of(own_broker)

    assert kinds([last]) == [DECLARE_QUEUE]
    assert last.fields == bytes.fromhex(wanted)


def test_changes_of_definitions_are_appended_in_order(
    own_broker: Broker, client: TypedClient
) -> None:
    before = len(definitions_of(own_broker))
    place = {"queue": "orders", "exchange": "amq.direct", "routing_key": "new"}

    declare(client, "orders")
    client.call("queue.bind", **place)
    client.call("queue.unbind", **place)
    client.call("queue.delete", queue="orders")
    client.call("exchange.declare", exchange="x", type="topic", durable=True)
    client.call("exchange.delete", exchange="x")

    appended = definitions_of(own_broker)[before:]
    assert kinds(appended) == [
        DECLARE_QUEUE,
        BIND_QUEUE,
        UNBIND_QUEUE,
        DELETE_QUEUE,
        DECLARE_EXCHANGE,
        DELETE_EXCHANGE,
    ]
    assert appended[1].fields == bytes.fromhex(
        "0000 066f7264657273 0a616d712e646972656374 036e6577 00 00000000"
    )
    assert appended[2].fields == appended[1].fields[:-5] + bytes(4)


@pytest.mark.parametrize(
    "flags",
    [{"durable": False}, {"exclusive": True}, {"durable": True, "exclusive": True}],
    ids=["transient", "exclusive", "durable-exclusive"],
)
def test_queue_that_must_not_last_is_not_defined(
    own_broker: Broker, client: TypedClient, flags: dict[str, bool]
) -> None:
    """edge-cases.md 58 and amqp.md 22.19"""
    before = definitions_of(own_broker)

    client.call("queue.declare", queue="q", **flags)
    client.call("queue.bind", queue="q", exchange="amq.direct", routing_key="k")

    assert definitions_of(own_broker) == before


def test_change_that_changes_nothing_is_not_appended(
    own_broker: Broker, client: TypedClient
) -> None:
    """edge-cases.md 72"""
    place = {"queue": "orders", "exchange": "amq.direct", "routing_key": "new"}
    declare(client, "orders")
    client.call("queue.bind", **place)
    before = definitions_of(own_broker)

    declare(client, "orders")
    client.call("queue.bind", **place)
    client.call("queue.unbind", **place | {"routing_key": "unknown"})
    client.call("queue.delete", queue="missing")
    client.call("exchange.declare", exchange="amq.topic", type="topic", durable=True)

    assert definitions_of(own_broker) == before


# ------------------------------------------------------------------ directories


def test_directories_are_named_after_what_they_hold(
    own_broker: Broker, client: TypedClient
) -> None:
    declare(client, "orders")

    vhost = own_broker.data_dir / "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"
    queue = vhost / "9658403816409e66eba2175f8eff8b53a9681573"
    assert (vhost / ".vhost").read_bytes() == b"/"
    assert (queue / ".queue").read_bytes() == b"orders"


def test_directory_says_its_version_vhosts_and_users(own_broker: Broker) -> None:
    users = json.loads((own_broker.data_dir / "users.json").read_text())
    vhosts = json.loads((own_broker.data_dir / "vhosts.json").read_text())

    assert (own_broker.data_dir / "schema_version").read_text().strip() == "4"
    assert [vhost["name"] for vhost in vhosts] == ["/"]
    assert vhosts[0]["dir"] == directory_name("/")
    (guest,) = users
    assert guest["name"] == "guest"
    assert guest["tags"] == "administrator"
    assert guest["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert guest["permissions"]["/"] == {"config": ".*", "read": ".*", "write": ".*"}


def test_deleted_queue_leaves_no_directory(own_broker: Broker, client: TypedClient) -> None:
    declare(client, "q")
    client.publish("", "q", b"m")
    directory = queue_directory(own_broker.data_dir, "q")
    assert directory.exists()

    client.call("queue.delete", queue="q")

    wait_for(lambda: not directory.exists(), "its directory is left")


def test_queue_created_again_does_not_find_old_messages(
    own_broker: Broker, client: TypedClient
) -> None:
    """edge-cases.md 51"""
    declare(client, "q")
    client.publish("", "q", b"old")
    client.call("queue.delete", queue="q")
    declare(client, "q")

    stop(own_broker, client)
    own_broker.start()

    with TypedClient(own_broker.port) as again:
        assert again.get("q") is None


def test_transient_queues_leave_nothing(own_broker: Broker, client: TypedClient) -> None:
    """edge-cases.md 334"""
    client.call("queue.declare", queue="q")
    client.publish("", "q", bytes(10000))

    stop(own_broker, client)

    assert not list(own_broker.data_dir.glob("*/transient/*"))
    assert not queue_directory(own_broker.data_dir, "q").exists()
