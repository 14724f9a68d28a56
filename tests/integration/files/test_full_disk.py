"""A disk that is short of space: publishers wait, consumers go on, and nothing confirmed is lost.

A limit on the size of the broker's files stands for a full disk, and `free_disk_min` for one that
is about to be full.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import CAPABILITIES, Wire, WireTimeout

BODY = bytes(10_000)
FILE_LIMIT = 300_000
PLENTY = 1 << 60


def limit_files(broker: Broker, size: int) -> None:
    """No file of the broker may grow beyond this."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, hard))


def publisher(broker: Broker, queue: str, durable: bool) -> Wire:
    """A connection with a queue and a channel in confirm mode."""
    wire = Wire.open(broker.port)
    wire.call(1, commands.Queue.Declare(queue=queue, durable=durable), commands.Queue.DeclareOk)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return wire


def get(wire: Wire, queue: str) -> bytes | None:
    """The next message, taken for good."""
    wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
    unit = wire.receive()
    return unit.body[:3] if isinstance(unit.method, commands.Basic.GetOk) else None


def test_publishers_wait_for_room_and_consumers_go_on(own_broker: Broker) -> None:
    """amqp.md 22.1"""
    limit_files(own_broker, FILE_LIMIT)
    wire = publisher(own_broker, "full", durable=True)

    sent = confirmed = 0
    while not isinstance(method := _publish(wire, sent + 1), commands.Connection.Blocked):
        sent += 1
        if method is None:  # in memory: the next one finds publishers held
            continue
        assert isinstance(method, commands.Basic.Ack)
        confirmed = method.delivery_tag
    sent += 1

    assert sent - 2 <= confirmed < sent
    assert "msgs.0000000001: File too large" in own_broker.log_text()
    other = Wire.open(own_broker.port)
    assert [get(other, "full") for _ in range(5)] == [b"%03d" % n for n in range(1, 6)]
    other.send(1, commands.Queue.Declare(queue="more"))
    assert "low on disk" in other.expect_channel_close(1, 406).reply_text

    limit_files(own_broker, PLENTY)
    acked = confirmed
    while acked < sent:
        unit = wire.receive()
        if isinstance(unit.method, commands.Basic.Ack):
            acked = unit.method.delivery_tag
        else:
            assert isinstance(unit.method, commands.Connection.Unblocked)

    own_broker.kill()
    own_broker.start()
    reader = Wire.open(own_broker.port)
    # What was taken before the kill may be there again; what was confirmed is there.
    kept = [get(reader, "full") for _ in range(sent - 5)]
    assert kept == [b"%03d" % n for n in range(6, sent + 1)]
    for each in (wire, other, reader):
        each.close()


def _publish(wire: Wire, number: int) -> object:
    """Publish one message; returns the answer, None when there is none for a while."""
    wire.publish(1, "", "full", b"%03d" % number + BODY)
    try:
        return wire.receive(0.5).method
    except WireTimeout:
        return None


def test_a_transient_queue_that_finds_no_room_keeps_its_messages(own_broker: Broker) -> None:
    limit_files(own_broker, 100_000)
    wire = publisher(own_broker, "transient", durable=False)
    sent = 0
    while "wait in memory" not in own_broker.log_text():
        for _ in range(10):
            sent += 1
            wire.publish(1, "", "transient", b"%03d" % sent + BODY)
        wire.receive_all(0.02)
        assert sent < 900

    limit_files(own_broker, PLENTY)
    wait_for(lambda: "is written again" in own_broker.log_text(), "the queue is never written")

    other = Wire.open(own_broker.port)
    taken = [get(other, "transient") for _ in range(sent)]
    assert taken == [b"%03d" % n for n in range(1, sent + 1)]
    for each in (wire, other):
        each.close()


@pytest.fixture
def low_broker(broker_factory: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker whose ini file `<data dir>.ini` says how much has to be free."""
    ini = tmp_path / "low.ini"
    ini.write_text("[main]\nstats_interval = 50\n")
    return broker_factory(["--config", str(ini)])


def demand_free(broker: Broker, ini: Path, size: int) -> None:
    """Change the watermark while the broker runs."""
    ini.write_text(f"[main]\nstats_interval = 50\nfree_disk_min = {size}\n")
    before = broker.log_text().count("Configuration reloaded")
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: broker.log_text().count("Configuration reloaded") > before, "no reload")


def test_the_watermark_holds_publishers_until_there_is_room_again(
    low_broker: Broker, tmp_path: Path
) -> None:
    """edge-cases.md 55, 345 and amqp.md 22.1, 22.2"""
    ini = tmp_path / "low.ini"
    with publisher(low_broker, "low", durable=True) as wire, Wire.open(low_broker.port) as other:
        wire.publish(1, "", "low", b"001")
        wire.expect(commands.Basic.Ack)
        demand_free(low_broker, ini, PLENTY)

        wire.publish(1, "", "low", b"002")
        wire.publish(1, "", "low", b"003")
        blocked = wire.expect(commands.Connection.Blocked)
        assert blocked.reason == "Server low on disk space"
        assert get(other, "low") == b"001"
        assert get(other, "low") is None
        other.send(1, commands.Queue.Declare(queue="new"))
        other.expect_channel_close(1, 406)
        wait_for(lambda: "publishers are held" in low_broker.log_text(), "no word in the log")

        demand_free(low_broker, ini, 0)
        wire.expect(commands.Connection.Unblocked)
        assert wire.expect(commands.Basic.Ack).delivery_tag >= 2
        other.open_channel(2)
        other.send(2, commands.Basic.Get(queue="low", no_ack=True))
        assert other.expect_unit(commands.Basic.GetOk).body == b"002"
        other.send(2, commands.Queue.Declare(queue="new", passive=True))
        other.expect_channel_close(2, 404)


def test_a_client_that_does_not_know_blocked_is_refused(
    low_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """edge-cases.md 119 and amqp.md 22.1"""
    monkeypatch.delitem(CAPABILITIES, "connection.blocked")
    demand_free(low_broker, tmp_path / "low.ini", PLENTY)
    with Wire.open(low_broker.port, channels=(1, 2)) as wire:
        wire.publish(1, "", "nowhere", b"refused")

        assert "low on disk" in wire.expect_channel_close(1, 406).reply_text
        wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)


def test_a_held_connection_can_be_closed_from_our_side(low_broker: Broker, tmp_path: Path) -> None:
    demand_free(low_broker, tmp_path / "low.ini", PLENTY)
    with Wire.open(low_broker.port) as wire:
        wire.publish(1, "", "nowhere", b"held")
        wire.expect(commands.Connection.Blocked)

        os.kill(low_broker.pid, signal.SIGTERM)

        wire.expect_connection_close(320)
    wait_for(lambda: not low_broker.is_running(), "the broker waits for a held client")
