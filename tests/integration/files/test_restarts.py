# mypy: disable-error-code="no-untyped-call"
"""What is there again after the broker was stopped and started, or only reloaded."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.disk import Call, Disk, compile_shim
from tests.support.segments import encode_record, queue_directory, segment_path
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import (
    bind,
    consume,
    declare,
    get,
    get_all,
    ready,
    synchronise,
)

BrokerFactory = Callable[..., Broker]
LARGE = 16 << 20
NAME = "n" * 255


def test_messages_bindings_and_acks_survive_whatever_the_mode_of_the_message(
    own_broker: Broker,
) -> None:
    """Names and keys of 255 bytes do. edge-cases.md 70, 123, 311, 312"""
    with Wire.open(own_broker.port) as wire:
        declare(wire, NAME, durable=True, exclusive=False)
        made = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
        wire.call(1, made, commands.Exchange.DeclareOk)
        bind(wire, NAME, "x", NAME)
        for number in range(1000):
            wire.publish(1, "x", NAME, b"acked %d" % number)
        for mode in (1, 2):
            wire.publish(1, "", NAME, b"%d" % mode, commands.Basic.Properties(delivery_mode=mode))
        for _ in range(1000):
            assert get(wire, NAME, no_ack=False)
        wire.send(1, commands.Basic.Ack(delivery_tag=1000, multiple=True))
        synchronise(wire)

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        assert get_all(wire, NAME) == [b"1", b"2"]
        wire.publish(1, "x", NAME, b"routed")
        received = get(wire, NAME)
        assert received is not None
        assert received.method.routing_key == NAME


def test_headers_bindings_between_exchanges_match_after_a_restart(own_broker: Broker) -> None:
    """edge-cases.md 95"""
    with Wire.open(own_broker.port) as wire:
        for exchange, kind in (("outer", "headers"), ("inner", "fanout")):
            made = commands.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True)
            wire.call(1, made, commands.Exchange.DeclareOk)
        declare(wire, "q", durable=True, exclusive=False)
        bind(wire, "q", "inner")
        arguments = {"x-match": "any", "a": 1, "b": {"deep": [True]}}
        joined = commands.Exchange.Bind(destination="inner", source="outer", arguments=arguments)
        wire.call(1, joined, commands.Exchange.BindOk)

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        for headers in ({"a": 1}, {"b": {"deep": [True]}}, {"a": 2}, {"c": 1}):
            properties = commands.Basic.Properties(headers=dict(headers))
            wire.publish(1, "outer", "", repr(headers).encode(), properties)
        assert get_all(wire, "q") == [b"{'a': 1}", b"{'b': {'deep': [True]}}"]


def test_large_messages_cost_a_start_no_memory(own_broker: Broker) -> None:
    """edge-cases.md 313"""
    with Wire.open(own_broker.port) as wire:
        declare(wire, "large", durable=True, exclusive=False)
    own_broker.stop()
    directory = queue_directory(own_broker.data_dir, "large")
    for number in range(1, 11):
        write_large_segment(segment_path(directory, number), b"%02d" % number)

    own_broker.start()

    assert peak_bytes(own_broker) < 5 * LARGE
    with Wire.open(own_broker.port) as wire:
        assert ready(wire, "large") == 10
        received = get(wire, "large")
    assert received is not None
    assert len(received.body) == LARGE
    assert received.body == b"01" + bytes(LARGE - 4) + b"01"


def write_large_segment(path: Path, beginning: bytes) -> None:
    """A segment of one message, whose body is a hole but for its beginning and end."""
    head = encode_record(b"", b"large", {}, b"")[:-8] + struct.pack("<Q", LARGE)
    with path.open("wb") as file:
        file.write(struct.pack("<iq", 4, int(time.time() * 1000)) + head)
        file.write(beginning)
        file.seek(LARGE - 2 * len(beginning), os.SEEK_CUR)
        file.write(beginning)


def peak_bytes(broker: Broker) -> int:
    """The most memory it has had so far."""
    [line] = [
        line
        for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def test_the_directory_of_an_auto_delete_queue_goes_with_its_last_consumer(
    own_broker: Broker,
) -> None:
    """edge-cases.md 335"""
    with Wire.open(own_broker.port) as wire:
        declare(wire, "q", durable=True, exclusive=False, auto_delete=True)
        wire.publish(1, "", "q", b"m")
        consume(wire, "q", "c")
        wire.expect(commands.Basic.Deliver)
        assert queue_directory(own_broker.data_dir, "q").exists()

        wire.call(1, commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)

        directory = queue_directory(own_broker.data_dir, "q")
        wait_for(lambda: not directory.exists(), "its directory is left")


def test_files_of_transient_queues_come_late_and_leftovers_are_removed(
    own_broker: Broker,
) -> None:
    """edge-cases.md 334"""
    with Wire.open(own_broker.port) as wire:
        declare(wire, "q", exclusive=False)
        assert transient_files(own_broker) == []
        for _ in range(20):
            wire.publish(1, "", "q", bytes(100_000))
        synchronise(wire)
        wait_for(lambda: transient_files(own_broker) != [], "nothing is ever written")
        own_broker.kill()
    assert transient_files(own_broker) != []

    own_broker.start()

    assert transient_files(own_broker) == []
    with Wire.open(own_broker.port) as wire:
        declare(wire, "q")
        assert ready(wire, "q") == 0


def test_direct_replies_are_never_written(own_broker: Broker) -> None:
    """To a client that reads them, though as many bytes in a transient queue are."""
    address, large = "amq.rabbitmq.reply-to", bytes(100_000)
    with Wire.open(own_broker.port, channels=(1, 2)) as wire:
        declare(wire, "requests")
        consume(wire, address, "replies", no_ack=True)
        properties = commands.Basic.Properties(reply_to=address)
        wire.publish(1, "", "requests", b"request", properties)
        request = get(wire, "requests", channel=2)
        assert request is not None
        assert request.properties is not None
        reply_to = str(request.properties.reply_to)
        for _ in range(20):
            wire.publish(2, "", reply_to, large)
            assert wire.expect_unit(commands.Basic.Deliver, 1).body == large
        assert message_files(own_broker) == []

        for _ in range(20):
            wire.publish(2, "", "requests", large)
        wait_for(lambda: message_files(own_broker) != [], "nothing is ever written")


def message_files(broker: Broker) -> list[Path]:
    return list(broker.data_dir.rglob("msgs.*"))


def transient_files(broker: Broker) -> list[Path]:
    return [path for path in broker.data_dir.glob("*/transient/**/*") if path.is_file()]


# ------------------------------------------------------------------ syncs


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library that stands between brokers and the disk."""
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def watched(
    shim: Path, tmp_path: Path, broker_factory: BrokerFactory
) -> Iterator[tuple[Broker, Disk]]:
    """A broker whose syncs are logged, with an ini file `sync.ini`."""
    data_dir = tmp_path / "data"
    disk = Disk(shim, data_dir, tmp_path)
    (tmp_path / "sync.ini").write_text("")
    args = ["-c", str(tmp_path / "sync.ini")]
    yield broker_factory(args, data_dir=data_dir, env=disk.env(log=True)), disk
    disk.close()


def syncs(disk: Disk) -> int:
    return sum(record.kind == Call.SYNC for record in disk.records())


def confirmed(wire: Wire, count: int) -> list[int]:
    """Wait until so many publishes are acked; return the tags of the acks in their order."""
    tags = [0]
    while tags[-1] < count:
        tags.append(wire.expect(commands.Basic.Ack, 1).delivery_tag)
    return tags[1:]


def test_concurrent_publishes_share_few_syncs(watched: tuple[Broker, Disk]) -> None:
    """edge-cases.md 129"""
    broker, disk = watched
    wires = [Wire.open(broker.port) for _ in range(10)]
    declare(wires[0], "q", durable=True, exclusive=False)
    for wire in wires:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    before = syncs(disk)

    for wire in wires:
        for number in range(50):
            wire.publish(1, "", "q", b"%d" % number)
    for wire in wires:
        confirmed(wire, 50)

    assert 0 < syncs(disk) - before < 250
    assert ready(wires[0], "q") == 500
    for wire in wires:
        wire.close()


def test_sync_may_be_switched_while_confirms_are_outstanding(
    watched: tuple[Broker, Disk], tmp_path: Path
) -> None:
    """edge-cases.md 130, 131"""
    broker, _ = watched
    count = 300
    with Wire.open(broker.port) as wire:
        declare(wire, "q", durable=True, exclusive=False)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(count):
            wire.publish(1, "", "q", b"%d" % number)
            if number % 100 == 50:
                is_on = number % 200 == 50
                (tmp_path / "sync.ini").write_text(f"[main]\nsync = {str(not is_on).lower()}\n")
                os.kill(broker.pid, signal.SIGHUP)

        tags = confirmed(wire, count)

        assert tags == sorted(set(tags))
        assert get_all(wire, "q") == [b"%d" % number for number in range(count)]
        wait_for(lambda: "Configuration reloaded" in broker.log_text(), "no reload")
        assert "restart" not in broker.log_text()


def test_a_quorum_queue_is_a_durable_queue_and_the_log_says_so(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        declare(wire, "q", durable=True, exclusive=False, arguments={"x-queue-type": "quorum"})
        wire.publish(1, "", "q", b"kept")
        synchronise(wire)

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        assert get_all(wire, "q") == [b"kept"]
    assert "queue 'q' of type 'quorum' is an ordinary queue here" in own_broker.log_text()
