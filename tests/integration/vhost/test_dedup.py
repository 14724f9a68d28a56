"""Deduplication as clients see it: arguments, counters of none, restarts, and files left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from lavinmq.files.directories import hashed
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEDUP = {"x-message-deduplication": True}
HEADER = "x-deduplication-header"
VHOST = hashed("/")
BOOT_AT = 8
UINT32_MAX = (1 << 32) - 1

UniqueName = Callable[[str], str]


def declare_queue(wire: Wire, queue: str, durable: bool = False, **arguments: Any) -> None:
    request = commands.Queue.Declare(
        queue=queue, durable=durable, exclusive=not durable, arguments=dash(arguments)
    )
    wire.call(1, request, commands.Queue.DeclareOk)


def exchange(name: str, durable: bool = False, **arguments: Any) -> commands.Exchange.Declare:
    return commands.Exchange.Declare(
        exchange=name, exchange_type="fanout", durable=durable, arguments=dash(arguments)
    )


def dash(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in arguments.items()}


def bind(wire: Wire, queue: str, source: str) -> None:
    wire.call(1, commands.Queue.Bind(queue=queue, exchange=source), commands.Queue.BindOk)


def publish(wire: Wire, to: str, key: Any, source: str = "", **headers: Any) -> None:
    """Publish and wait until it has been handled."""
    properties = commands.Basic.Properties(headers={HEADER: key} | dash(headers))
    wire.publish(1, source, to, str(key).encode(), properties)
    wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def count(wire: Wire, queue: str) -> int:
    request = commands.Queue.Declare(queue=queue, passive=True)
    return wire.call(1, request, commands.Queue.DeclareOk).message_count


@pytest.fixture
def wire(broker: Broker) -> Any:
    with Wire.open(broker.port, host=broker.host) as connection:
        yield connection


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-cache-size": "5"}, "x-cache-size header not a Int"),
        ({"x-cache-size": -1}, "x-cache-size header less than minimum value 0"),
        ({"x-cache-size": UINT32_MAX + 1}, "x-cache-size header greater than maximum value"),
        ({"x-cache-ttl": 1.5}, "x-cache-ttl header not a Int"),
        ({"x-cache-ttl": -1}, "x-cache-ttl header less than minimum value 0"),
        ({"x-cache-ttl": (1 << 63) - 1}, "x-cache-ttl header greater than maximum value"),
        ({HEADER: True}, "x-deduplication-header header not a String"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_exchange_refuses_arguments_that_cannot_be_meant(
    wire: Wire, unique: UniqueName, arguments: dict[str, Any], text: str
) -> None:
    """amqp.md 22.27"""
    name = unique("x")
    wire.send(1, exchange(name, **DEDUP | arguments))

    assert text in wire.expect_channel_close(1, 406).reply_text
    wire.open_channel(1)
    wire.call(1, exchange(name, **arguments), commands.Exchange.DeclareOk)  # nobody looks at them


@pytest.mark.parametrize("name", ["x-cache-size", "x-cache-ttl"])
def test_a_queue_refuses_numbers_above_32_bits(wire: Wire, unique: UniqueName, name: str) -> None:
    """amqp.md 22.27"""
    arguments = DEDUP | {name: UINT32_MAX + 1}
    wire.send(1, commands.Queue.Declare(queue=unique("q"), exclusive=True, arguments=arguments))

    text = wire.expect_channel_close(1, 406).reply_text

    assert f"{name} header greater than maximum value {UINT32_MAX}" in text


def test_the_largest_size_is_accepted_and_fewer_keys_are_remembered(
    wire: Wire, unique: UniqueName, broker: Broker
) -> None:
    """amqp.md 22.27"""
    queue, source = unique("q"), unique("x")
    size = {"x-cache-size": UINT32_MAX, "x-cache-ttl": None, HEADER: None}

    declare_queue(wire, queue, **DEDUP | size)
    wire.call(1, exchange(source, **DEDUP | size), commands.Exchange.DeclareOk)

    for name in (queue, source):
        assert f"'{name}': x-cache-size {UINT32_MAX} is more" in broker.log_text()
        publish(wire, name, "a")
        publish(wire, name, "a")
    assert count(wire, queue) == 1


@pytest.mark.parametrize("value", [False, "true", 1, None])
def test_without_a_true_argument_an_exchange_routes_everything(
    wire: Wire, unique: UniqueName, value: object
) -> None:
    queue, source = unique("q"), unique("x")
    declare_queue(wire, queue)
    arguments = {"x-message-deduplication": value}
    wire.call(1, exchange(source, **arguments), commands.Exchange.DeclareOk)
    bind(wire, queue, source)

    for _ in range(2):
        publish(wire, "", "a", source)

    assert count(wire, queue) == 2


# ---- what is dropped


def test_an_unroutable_message_may_come_again(wire: Wire, unique: UniqueName) -> None:
    """amqp.md 22.10"""
    queue, source = unique("q"), unique("x")
    declare_queue(wire, queue)
    wire.call(1, exchange(source, **DEDUP), commands.Exchange.DeclareOk)
    publish(wire, "", "a", source)
    bind(wire, queue, source)

    for _ in range(2):
        publish(wire, "", "a", source)

    assert count(wire, queue) == 1


def test_a_publish_that_fails_in_routing_is_not_remembered(wire: Wire, unique: UniqueName) -> None:
    """amqp.md 22.29"""
    queue, source = unique("q"), unique("x")
    declare_queue(wire, queue)
    wire.call(1, exchange(source, **DEDUP), commands.Exchange.DeclareOk)
    bind(wire, queue, source)
    bad = commands.Basic.Properties(headers={HEADER: "a", "CC": "no array"})
    wire.publish(1, source, "", b"", bad)
    wire.expect_channel_close(1, 406)
    wire.open_channel(1)

    publish(wire, "", "a", source)

    assert count(wire, queue) == 1


def test_a_queue_drops_duplicates_whatever_way_they_come(wire: Wire, unique: UniqueName) -> None:
    queue, plain, outer, inner = unique("q"), unique("plain"), unique("x"), unique("x")
    declare_queue(wire, queue, **DEDUP)
    declare_queue(wire, plain)
    for name in (outer, inner):
        wire.call(1, exchange(name), commands.Exchange.DeclareOk)
        bind(wire, plain, name)
    bind(wire, queue, inner)
    nested = commands.Exchange.Bind(destination=inner, source=outer)
    wire.call(1, nested, commands.Exchange.BindOk)

    publish(wire, queue, "a")
    publish(wire, "", "a", inner)
    publish(wire, "", "a", outer)

    assert (count(wire, queue), count(wire, plain)) == (1, 2)


# ---- restarts


def set_up(wire: Wire) -> None:
    """A queue and an exchange, durable, each with one message seen; a queue behind the exchange."""
    declare_queue(wire, "own", durable=True, **DEDUP)
    declare_queue(wire, "behind", durable=True)
    wire.call(1, exchange("x", durable=True, **DEDUP), commands.Exchange.DeclareOk)
    bind(wire, "behind", "x")
    publish(wire, "own", "a")
    publish(wire, "", "a", "x")


def sent_again(broker: Broker) -> tuple[int, int]:
    """Send the same messages once more; how many are in the two queues then."""
    with Wire.open(broker.port) as wire:
        publish(wire, "own", "a")
        publish(wire, "", "a", "x")
        return count(wire, "own"), count(wire, "behind")


def files(broker: Broker) -> list[Path]:
    """The files of the queue and of the exchange."""
    directory = broker.data_dir / VHOST
    return [directory / hashed("own") / "dedup", directory / f"dedup.{hashed('x')}"]


def other_boot(broker: Broker) -> None:
    """Let the files be of a boot that is over."""
    for path in files(broker):
        content = bytearray(path.read_bytes())
        content[BOOT_AT] ^= 0x80
        path.write_bytes(content)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("is_rebooted", [True, False], ids=["rebooted", "same boot"])
def test_keys_survive_the_broker_and_only_with_an_orderly_stop_the_machine(
    own_broker: Broker, is_killed: bool, is_rebooted: bool
) -> None:
    with Wire.open(own_broker.port) as wire:
        set_up(wire)

    if is_killed:
        own_broker.kill()
    else:
        own_broker.stop()
    if is_rebooted:
        other_boot(own_broker)
    own_broker.start()

    forgotten = is_killed and is_rebooted
    assert sent_again(own_broker) == ((2, 2) if forgotten else (1, 1))
    assert own_broker.log_text().count("has stopped without the broker") == 2 * forgotten


def test_keys_of_transient_things_go_with_the_broker(own_broker: Broker) -> None:
    """And a durable exchange forgets what it gave to transient queues only."""
    with Wire.open(own_broker.port) as wire:
        wire.call(1, exchange("x", durable=True, **DEDUP), commands.Exchange.DeclareOk)
        declare_queue(wire, "transient", **DEDUP)
        bind(wire, "transient", "x")
        publish(wire, "", "a", "x")
        assert count(wire, "transient") == 1
    own_broker.kill()
    own_broker.start()
    with Wire.open(own_broker.port) as wire:
        declare_queue(wire, "transient", **DEDUP)
        bind(wire, "transient", "x")

        publish(wire, "", "a", "x")

        assert count(wire, "transient") == 1


def test_a_new_queue_or_exchange_knows_nothing_of_an_older_one(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        set_up(wire)
        assert all(path.exists() for path in files(own_broker))
        left = files(own_broker)[1].read_bytes()
        wire.call(1, commands.Exchange.Delete(exchange="x"), commands.Exchange.DeleteOk)
        wire.call(1, commands.Queue.Delete(queue="own"), commands.Queue.DeleteOk)
        wait_for(lambda: not any(path.exists() for path in files(own_broker)), "files are left")
        set_up(wire)
        assert (count(wire, "own"), count(wire, "behind")) == (1, 2)
        wire.call(1, commands.Exchange.Delete(exchange="x"), commands.Exchange.DeleteOk)
        wire.call(1, commands.Queue.Delete(queue="own"), commands.Queue.DeleteOk)
        wire.call(1, commands.Queue.Purge(queue="behind"), commands.Queue.PurgeOk)
    own_broker.kill()
    files(own_broker)[1].write_bytes(left)  # as if its removal had been cut short
    own_broker.start()
    with Wire.open(own_broker.port) as wire:
        set_up(wire)

        assert (count(wire, "own"), count(wire, "behind")) == (1, 1)


def test_damaged_missing_and_strange_files_cost_keys_only(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        set_up(wire)
    own_broker.stop()
    own, of_exchange = files(own_broker)
    own.write_bytes(own.read_bytes()[:40])
    of_exchange.unlink()
    of_exchange.mkdir()
    gone = of_exchange.with_name(f"dedup.{hashed('gone')}")
    gone.write_bytes(b"junk")
    kept = of_exchange.with_name("dedup.notes")
    kept.write_bytes(b"not ours")
    of_exchange.with_name(f"dedup.{hashed('directory')}").mkdir()
    own_broker.start()

    assert sent_again(own_broker) == (2, 2)

    log = own_broker.log_text()
    assert "1 of its keys are damaged" in log
    assert "Deduplication keys of 'x' cannot be written" in log
    assert (gone.exists(), kept.exists()) == (False, True)
    assert own_broker.stop() == 0
    of_exchange.rmdir()
    shutil.rmtree(own.parent)
    own_broker.start()
    assert sent_again(own_broker) == (1, 3)
    assert own_broker.stop() == 0
    assert "Traceback" not in own_broker.log_text()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_keys_of_a_queue_that_a_start_found_closed_come_back_with_its_restart(
    http_broker: Broker, is_killed: bool
) -> None:
    """They were not read at that start, nor later: a duplicate came once more."""
    with Wire.open(http_broker.port) as wire:
        set_up(wire)
    if is_killed:
        http_broker.kill()
    else:
        http_broker.stop()
    (segment,) = (http_broker.data_dir / VHOST / hashed("own")).glob("msgs.*")
    content = segment.read_bytes()
    segment.write_bytes(b"\x09" + content[1:])
    http_broker.start()
    api = Api(http_broker)
    place = "/api/queues/%2F/own"
    assert api.get(place)["state"] == "closed"

    segment.write_bytes(content)
    assert api("PUT", f"{place}/restart").status == 204

    assert sent_again(http_broker) == (1, 1)
    with Wire.open(http_broker.port) as wire:
        publish(wire, "own", "b")
        assert count(wire, "own") == 2
    http_broker.stop()
    http_broker.start()
    assert sent_again(http_broker) == (2, 1)
