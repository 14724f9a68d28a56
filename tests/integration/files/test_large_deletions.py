# mypy: disable-error-code="no-untyped-call"
"""Deleting what has very many consumers, files or queues: in portions, and whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pamqp import commands

from lavinmq.files.directories import hashed
from lavinmq.process.portions import AT_ONCE
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import consume, declare, synchronise

MANY = 3 * AT_ONCE


def small_segments(broker_factory: Callable[..., Broker], tmp_path: Path) -> Broker:
    path = tmp_path / "lavinmq.ini"
    path.write_text("[main]\nsegment_size = 4096\n")
    return broker_factory(["-c", str(path)], http=True)


def test_all_consumers_of_a_deleted_queue_are_told(broker: Broker) -> None:
    with Wire.open(broker.port) as wire, Wire.open(broker.port) as other:
        declare(other, "consumed by many", exclusive=False)
        tags = {f"c{number}" for number in range(MANY)}
        for tag in tags:
            consume(wire, "consumed by many", tag)

        other.call(1, commands.Queue.Delete(queue="consumed by many"), commands.Queue.DeleteOk)

        told = {wire.expect(commands.Basic.Cancel, 1).consumer_tag for _ in tags}
        assert told == tags
        consume(wire, declare(wire, "another"), "c0")  # its tag is free again
        synchronise(wire)


def test_the_files_of_a_large_queue_go_and_its_name_is_free_at_once(
    broker_factory: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = small_segments(broker_factory, tmp_path)
    vhost = broker.data_dir / hashed("/")
    with Wire.open(broker.port) as wire:
        declare(wire, "large", durable=True, exclusive=False)
        for _ in range(20):
            wire.publish(1, "", "large", bytes(1000))
        synchronise(wire)
        assert len(list((vhost / hashed("large")).glob("msgs.*"))) > 2

        wire.call(1, commands.Queue.Delete(queue="large"), commands.Queue.DeleteOk)
        declare(wire, "large", durable=True, exclusive=False)

    assert not list((vhost / hashed("large")).glob("msgs.*"))
    wait_for(lambda: not list((vhost / "transient").iterdir()), "old files are left")
    assert not list(vhost.glob("*.left-*"))


def test_a_virtual_host_goes_with_all_that_is_in_it(
    broker_factory: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = small_segments(broker_factory, tmp_path)
    api = Api(broker)
    assert api("PUT", "/api/vhosts/gone").status == 201
    with Wire(broker.port) as wire:
        wire.login("guest", "guest", "gone")
        wire.open_channel(1)
        for number in range(AT_ONCE):
            name = declare(wire, f"q{number}", durable=True, exclusive=False)
            wire.send(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
            wire.expect(commands.Queue.BindOk, 1)
        for _ in range(10):
            wire.publish(1, "amq.fanout", "", bytes(100))
        synchronise(wire)
        consume(wire, "q0", "c")

        assert api("DELETE", "/api/vhosts/gone").status == 204

    assert [each["name"] for each in api("GET", "/api/vhosts").json] == ["/"]
    wait_for(lambda: not list(broker.data_dir.glob(f"{hashed('gone')}*")), "files are left")
    assert api("PUT", "/api/vhosts/gone").status == 201
    assert api("GET", "/api/queues/gone").json == []
