# mypy: disable-error-code="no-untyped-call"
"""Frames that are wrong in every way: the broker answers properly or closes, and serves others.

After each attack a witness, which was connected before, publishes and gets a message. An answer of
541 (internal error) is a failure: it means that the broker was surprised.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import body, commands, header

from tests.fuzz.peer import (
    CONNECTION_CLOSE,
    METHOD_FRAME,
    PROTOCOL_HEADER,
    assert_proper,
    converse,
)
from tests.support.broker import Broker
from tests.support.replay import enc_frame, enc_table, method_frame
from tests.support.wire import Wire, encode, encode_publish, raw_frame

HEADER_FRAME = 2
DEPTH = 1000
MOST_MEMORY_GROWTH_KIB = 64 * 1024
FRAME_MAX = 131072

EXAMPLES_VARIABLE = "LAVINMQ_TEST_FUZZ_EXAMPLES"

fuzzing = settings(
    max_examples=int(os.environ.get(EXAMPLES_VARIABLE, "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

LOGIN = (
    PROTOCOL_HEADER
    + encode(
        0,
        commands.Connection.StartOk(
            client_properties={"capabilities": {"authentication_failure_close": True}, "n": 1},
            mechanism="PLAIN",
            response="\0guest\0guest",
            locale="en_US",
        ),
        commands.Connection.TuneOk(2047, FRAME_MAX, 0),
        commands.Connection.Open(virtual_host="/"),
    )
    + encode(1, commands.Channel.Open())
)
HEADERS = [["a", "I", 1], ["t", "F", [["n", "l", 2], ["list", "A", [["S", "x"], ["V", None]]]]]]
CONTENT = enc_frame({"type": "header", "ch": 1, "size": 3, "props": {"headers": HEADERS}}) + (
    raw_frame(3, 1, b"abc")
)
FRAMES: list[bytes] = [
    method_frame(2, "channel.open"),
    method_frame(2, "channel.close", reply_code=200),
    method_frame(1, "channel.close-ok"),
    method_frame(1, "exchange.declare", exchange="fuzz-x", type="topic", arguments=HEADERS),
    method_frame(1, "exchange.delete", exchange="fuzz-x"),
    method_frame(1, "queue.declare", queue="fuzz-q", auto_delete=True, arguments=HEADERS),
    method_frame(1, "queue.declare", queue="fuzz-e", exclusive=True),
    method_frame(1, "queue.bind", queue="fuzz-q", exchange="amq.headers", arguments=HEADERS),
    method_frame(1, "queue.bind", queue="fuzz-q", exchange="amq.topic", routing_key="a.*.#"),
    method_frame(1, "queue.unbind", queue="fuzz-q", exchange="amq.topic", routing_key="a.*.#"),
    method_frame(1, "queue.purge", queue="fuzz-q"),
    method_frame(1, "queue.delete", queue="fuzz-q"),
    method_frame(1, "confirm.select"),
    method_frame(1, "basic.qos", prefetch_count=2),
    method_frame(1, "basic.publish", exchange="amq.headers", mandatory=True) + CONTENT,
    method_frame(1, "basic.publish", routing_key="fuzz-q") + CONTENT,
    method_frame(1, "basic.publish", exchange="amq.topic", routing_key="a.b.c") + CONTENT,
    method_frame(1, "basic.get", queue="fuzz-q"),
    method_frame(1, "basic.consume", queue="fuzz-q", consumer_tag="t"),
    method_frame(1, "basic.cancel", consumer_tag="t"),
    method_frame(1, "basic.ack", delivery_tag=1, multiple=True),
    method_frame(1, "basic.nack", delivery_tag=1, requeue=True),
    method_frame(1, "basic.reject", delivery_tag=1, requeue=True),
    method_frame(0, "connection.close", reply_code=200),
    method_frame(0, "connection.tune-ok", frame_max=4096),
    method_frame(0, "connection.start-ok", mechanism="PLAIN", response="\0guest\0guest"),
    raw_frame(8, 0, b""),
]
WHOLE_STREAM = b"".join(FRAMES[3:-4])


class Witness:
    """A connection from before the attacks, and the broker's process."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._wire = Wire.open(broker.port)
        declare = commands.Queue.Declare(exclusive=True)
        self._queue = self._wire.call(1, declare, commands.Queue.DeclareOk).queue or ""

    def assert_served(self) -> None:
        """Publish and get a message on the old connection and on a new one."""
        assert self.broker.is_running(), "the broker is gone"
        self._wire.publish(1, "", self._queue, b"still here")
        self._wire.send(1, commands.Basic.Get(queue=self._queue, no_ack=True))
        assert self._wire.expect_unit(commands.Basic.GetOk, 1).body == b"still here"
        Wire.open(self.broker.port).close()

    def memory_kib(self) -> int:
        """Most memory the broker ever had resident."""
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    def close(self) -> None:
        self._wire.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("fuzz") / "data")
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def witness(attacked: Broker) -> Iterator[Witness]:
    if not attacked.is_running():
        attacked.start()
    watching = Witness(attacked)
    yield watching
    watching.close()


# ------------------------------------------------------------------ random damage

Mutation = Callable[[bytes], bytes]


@st.composite
def mutations(draw: st.DrawFn) -> Mutation:
    """One change of a byte stream; positions are taken modulo its length."""
    at = draw(st.integers(0, 1 << 16))
    size = draw(st.integers(1, 40))
    junk = draw(st.binary(min_size=1, max_size=40))
    number = draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1]))
    kind = draw(st.sampled_from(["replace", "insert", "delete", "repeat", "cut", "length"]))

    def mutate(data: bytes) -> bytes:
        start = at % (len(data) + 1)
        changes = {
            "replace": data[:start] + junk[:1] + data[start + 1 :],
            "insert": data[:start] + junk + data[start:],
            "delete": data[:start] + data[start + size :],
            "repeat": data[:start] + data[start : start + size] * 2 + data[start + size :],
            "cut": data[:start],
            "length": data[:start] + struct.pack(">I", number) + data[start + 4 :],
        }
        return changes[kind]

    return mutate


def damaged(data: bytes, changes: list[Mutation]) -> bytes:
    for change in changes:
        data = change(data)
    return data


@fuzzing
@given(changes=st.lists(mutations(), min_size=1, max_size=4))
def test_damaged_stream_is_answered_properly(witness: Witness, changes: list[Mutation]) -> None:
    assert_proper(converse(witness.broker.port, LOGIN, damaged(WHOLE_STREAM, changes)))

    witness.assert_served()


@fuzzing
@given(changes=st.lists(mutations(), min_size=1, max_size=4))
def test_damaged_handshake_is_answered_properly(witness: Witness, changes: list[Mutation]) -> None:
    assert_proper(converse(witness.broker.port, damaged(LOGIN, changes)))

    witness.assert_served()


@fuzzing
@given(frames=st.lists(st.sampled_from(FRAMES), max_size=40))
def test_frames_in_any_order_are_answered_properly(witness: Witness, frames: list[bytes]) -> None:
    assert_proper(converse(witness.broker.port, LOGIN, b"".join(frames)))

    witness.assert_served()


@fuzzing
@given(
    kind=st.integers(0, 255),
    channel=st.sampled_from([0, 1, 2, 2047, 2048, 65535]),
    payload=st.binary(max_size=60),
    end=st.sampled_from([b"\xce", b"\xce", b"\x00", b""]),
)
def test_any_frame_is_answered_properly(
    witness: Witness, kind: int, channel: int, payload: bytes, end: bytes
) -> None:
    assert_proper(converse(witness.broker.port, LOGIN, raw_frame(kind, channel, payload, end)))

    witness.assert_served()


@fuzzing
@given(
    ids=st.sampled_from([(c, m) for c in (10, 20, 40, 50, 60, 85, 90) for m in range(0, 130, 10)]),
    arguments=st.binary(max_size=60),
)
def test_any_arguments_are_answered_properly(
    witness: Witness, ids: tuple[int, int], arguments: bytes
) -> None:
    payload = struct.pack(">HH", *ids) + arguments

    assert_proper(converse(witness.broker.port, LOGIN, raw_frame(METHOD_FRAME, 1, payload)))

    witness.assert_served()


@fuzzing
@given(properties=st.binary(max_size=60), size=st.sampled_from([0, 3, 1 << 20, (1 << 64) - 1]))
def test_any_content_header_is_answered_properly(
    witness: Witness, properties: bytes, size: int
) -> None:
    content_header = struct.pack(">HHQ", 60, 0, size) + properties
    publish = method_frame(1, "basic.publish", exchange="amq.headers")
    stream = publish + raw_frame(HEADER_FRAME, 1, content_header) + raw_frame(3, 1, b"abc")

    assert_proper(converse(witness.broker.port, LOGIN, stream))

    witness.assert_served()


# ------------------------------------------------------------------ chosen damage


def nested_tables(depth: int) -> bytes:
    """Return a table inside a table, `depth` deep, with its length in front."""
    table = struct.pack(">I", 0)
    for _ in range(depth):
        table = struct.pack(">I", len(table) + 3) + b"\x01nF" + table
    return table


def nested_arrays(depth: int) -> bytes:
    """Return a table that holds an array inside an array, `depth` deep."""
    array = struct.pack(">I", 0)
    for _ in range(depth):
        array = struct.pack(">I", len(array) + 1) + b"A" + array
    return struct.pack(">I", len(array) + 3) + b"\x01nA" + array


def declare_with(table: bytes) -> bytes:
    """Return queue.declare with these bytes for its arguments."""
    plain: bytes = method_frame(1, "queue.declare", queue="fuzz-nested", auto_delete=True)
    return raw_frame(METHOD_FRAME, 1, plain[7:-5] + table)


def publish_with(table: bytes, exchange: str = "amq.headers") -> bytes:
    """Return a publish with these bytes for its headers."""
    content_header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + table
    publish: bytes = method_frame(1, "basic.publish", exchange=exchange)
    return publish + raw_frame(HEADER_FRAME, 1, content_header)


@pytest.mark.parametrize("nested", [nested_tables, nested_arrays])
@pytest.mark.parametrize("depth", [DEPTH, 20 * DEPTH])
@pytest.mark.parametrize("carrier", [declare_with, publish_with])
def test_tables_nested_very_deep_are_answered_properly(
    witness: Witness,
    nested: Callable[[int], bytes],
    depth: int,
    carrier: Callable[[bytes], bytes],
) -> None:
    bind = method_frame(1, "queue.declare", queue="fuzz-bound", exclusive=True) + method_frame(
        1, "queue.bind", queue="fuzz-bound", exchange="amq.headers", arguments=[["n", "I", 1]]
    )

    assert_proper(converse(witness.broker.port, LOGIN, bind + carrier(nested(depth))))

    witness.assert_served()


def test_client_properties_nested_very_deep_are_answered_properly(witness: Witness) -> None:
    payload = struct.pack(">HH", 10, 11) + nested_tables(500) + b"\x05PLAIN" + bytes(4) + b"\x00"

    assert_proper(converse(witness.broker.port, PROTOCOL_HEADER, raw_frame(1, 0, payload)))

    witness.assert_served()


@pytest.mark.parametrize(
    "table",
    [
        pytest.param("00000004 01614900", id="table-ends-inside-a-value"),
        pytest.param("00000002 0561", id="key-longer-than-the-table"),
        pytest.param("00000001 00", id="key-without-a-type"),
        pytest.param("000000ff 01615400", id="table-longer-than-the-frame"),
        pytest.param("ffffffff", id="table-of-four-gibibytes"),
        pytest.param("80000000 0161", id="table-length-negative-as-signed"),
        pytest.param("00000008 016153 ffffffff 61", id="string-of-four-gibibytes"),
        pytest.param("00000008 016178 00000002 61", id="bytes-longer-than-the-table"),
        pytest.param("00000008 016141 00000009 49", id="array-longer-than-the-table"),
        pytest.param("00000008 016141 00000001 49", id="array-ends-inside-a-value"),
        pytest.param("00000008 016146 00000001 05", id="inner-table-ends-inside-a-key"),
        pytest.param("00000003 01615a", id="unknown-type"),
        pytest.param("00000003 016100", id="type-zero"),
    ],
)
def test_wrong_lengths_in_a_table_are_frame_errors(witness: Witness, table: str) -> None:
    frames = converse(witness.broker.port, LOGIN, declare_with(bytes.fromhex(table)))

    assert frames[-1].method == CONNECTION_CLOSE
    assert frames[-1].reply_code in (501, 502)
    witness.assert_served()


@pytest.mark.parametrize("claimed", [FRAME_MAX + 1, 1 << 24, 1 << 31, (1 << 32) - 1])
def test_frame_that_claims_to_be_huge_is_refused_at_once(witness: Witness, claimed: int) -> None:
    before = witness.memory_kib()

    frames = converse(witness.broker.port, LOGIN, struct.pack(">BHI", 3, 1, claimed))

    assert frames[-1].reply_code == 501
    assert witness.memory_kib() - before < MOST_MEMORY_GROWTH_KIB
    witness.assert_served()


def test_message_that_claims_to_be_huge_takes_no_memory(witness: Witness) -> None:
    before = witness.memory_kib()
    publish = encode(1, commands.Basic.Publish(routing_key="fuzz-q"))
    sizes = [128 << 20, (128 << 20) + 1, 1 << 40, (1 << 63) - 1]

    for size in sizes:
        announced = publish + encode(1, header.ContentHeader(body_size=size))
        assert_proper(converse(witness.broker.port, LOGIN, announced + raw_frame(3, 1, b"abc")))

    assert witness.memory_kib() - before < MOST_MEMORY_GROWTH_KIB
    witness.assert_served()


def test_many_unfinished_contents_end_with_their_connection(witness: Witness) -> None:
    stream = b"".join(
        encode(
            channel,
            commands.Channel.Open(),
            commands.Basic.Publish(routing_key="fuzz-q"),
            header.ContentHeader(body_size=1 << 20),
            body.ContentBody(b"x" * 1000),
        )
        for channel in range(2, 500)
    )

    assert_proper(converse(witness.broker.port, LOGIN, stream))

    witness.assert_served()


def test_empty_body_frames_are_harmless(witness: Witness) -> None:
    publish = encode(1, commands.Basic.Publish(), header.ContentHeader(body_size=1))

    frames = converse(witness.broker.port, LOGIN, publish + raw_frame(3, 1, b"") * 5000)

    assert_proper(frames)
    witness.assert_served()


def test_peer_that_never_reads_does_not_stop_the_others(witness: Witness) -> None:
    with Wire.open(witness.broker.port) as deaf:
        deaf.call(
            1, commands.Queue.Declare(queue="fuzz-deaf", exclusive=True), commands.Queue.DeclareOk
        )
        deaf.call(
            1, commands.Basic.Consume(queue="fuzz-deaf", no_ack=True), commands.Basic.ConsumeOk
        )
        with Wire.open(witness.broker.port) as publisher:
            message = encode_publish(1, "", "fuzz-deaf", bytes(100_000))
            for _ in range(100):
                publisher.send_bytes(message)
            publisher.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

            witness.assert_served()


def test_table_of_many_keys_is_answered_properly(witness: Witness) -> None:
    table = enc_table([[f"key-{number}", "I", number] for number in range(8000)])

    assert_proper(converse(witness.broker.port, LOGIN, declare_with(table)))
    assert_proper(converse(witness.broker.port, LOGIN, publish_with(table)))

    witness.assert_served()
