"""The setting set_timestamp: messages without a time get that at which they came."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from os import kill
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire, encode_publish

LONG = b"x" * 300_000
GIVEN = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
ALL_BEFORE = {
    "content_type": "text/plain", "content_encoding": "utf-8", "headers": {"n": 1},
    "delivery_mode": 2, "priority": 3, "correlation_id": "c", "reply_to": "r", "message_id": "m",
}  # fmt: skip
ALL_BEHIND = {"message_type": "t", "user_id": "guest", "app_id": "a"}


def through(wire: Wire, body: bytes, **properties: Any) -> commands.Basic.Properties:
    """Publish and get a message. Returns: its properties."""
    wire.publish(1, "", "q", body, commands.Basic.Properties(**properties))
    wire.send(1, commands.Basic.Get(queue="q", no_ack=True))
    unit = wire.expect_unit(commands.Basic.GetOk)
    assert unit.body == body
    assert unit.properties is not None
    return unit.properties


def check(properties: commands.Basic.Properties, given: dict[str, Any], since_s: float) -> None:
    """All that was given is there, and a time that is not before `since_s`."""
    stamp = properties.timestamp
    assert isinstance(stamp, datetime)
    assert int(since_s) <= stamp.timestamp() <= time.time()
    assert {key: getattr(properties, key) for key in given} == given
    others = {"timestamp", *given}
    assert not [key for key, value in properties if key not in others and value not in (None, "")]


@pytest.fixture(scope="module")
def stamping() -> Any:
    with inside(set_timestamp=True) as broker:
        yield broker


@pytest.fixture
def wire(stamping: Inside) -> Any:
    with Wire.open(stamping.port) as opened:
        declare = commands.Queue.Declare(queue="q", exclusive=True)
        opened.call(1, declare, commands.Queue.DeclareOk)
        yield opened


@pytest.mark.parametrize("body", [b"", b"short", LONG], ids=["empty", "short", "long"])
@pytest.mark.parametrize(
    "given", [{}, ALL_BEFORE, ALL_BEHIND, ALL_BEFORE | ALL_BEHIND],
    ids=["none", "before", "behind", "all"],
)  # fmt: skip
def test_a_message_without_a_time_gets_one(wire: Wire, body: bytes, given: dict[str, Any]) -> None:
    """edge-cases.md 122"""
    since_s = time.time()

    check(through(wire, body, **given), given, since_s)


@pytest.mark.parametrize("body", [b"", b"short", LONG], ids=["empty", "short", "long"])
def test_a_time_that_is_there_is_kept(wire: Wire, body: bytes) -> None:
    """edge-cases.md 122"""
    found = through(wire, body, timestamp=GIVEN, **(ALL_BEFORE | ALL_BEHIND))

    assert found.timestamp == GIVEN


def test_messages_in_one_piece_byte_by_byte_and_in_transactions_get_one(wire: Wire) -> None:
    """edge-cases.md 122"""
    since_s = time.time()
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    one = encode_publish(1, "", "q", b"body", commands.Basic.Properties(message_id="m"))
    wire.send_bytes(one * 3)
    for byte in one:
        wire.send_bytes(bytes([byte]))
    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    for _ in range(4):
        wire.send(1, commands.Basic.Get(queue="q", no_ack=True))
        unit = wire.expect_unit(commands.Basic.GetOk)
        assert unit.properties is not None
        check(unit.properties, {"message_id": "m"}, since_s)


def test_a_returned_message_has_one_too(wire: Wire) -> None:
    wire.publish(1, "", "nowhere", b"body", mandatory=True)

    unit = wire.expect_unit(commands.Basic.Return)

    assert unit.properties is not None
    check(unit.properties, {}, 0)


def test_the_address_for_direct_replies_and_the_time_are_both_set(wire: Wire) -> None:
    reply_to = "amq.rabbitmq.reply-to"
    consume = commands.Basic.Consume(queue=reply_to, no_ack=True)
    wire.call(1, consume, commands.Basic.ConsumeOk)

    found = through(wire, b"body", reply_to=reply_to, message_id="m", app_id="a")

    assert found.reply_to not in (None, "", reply_to)
    assert (found.message_id, found.app_id) == ("m", "a")
    assert isinstance(found.timestamp, datetime)


def test_it_is_off_by_default_and_switched_while_the_broker_runs(
    tmp_path: Path, broker_factory: Callable[..., Broker]
) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text("[main]\n")
    broker = broker_factory(["-c", str(config)])
    with Wire.open(broker.port) as wire:
        declare = commands.Queue.Declare(queue="q", exclusive=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        assert through(wire, b"body").timestamp is None

        for value in (True, False):
            config.write_text(f"[main]\nset_timestamp = {value}\n".lower())
            kill(broker.pid, signal.SIGHUP)
            wait_for(
                lambda value=value: (through(wire, b"body").timestamp is not None) == value,
                "the setting is not taken over",
            )
    assert "no effect" not in broker.log_text()
