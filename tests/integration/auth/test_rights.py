# mypy: disable-error-code="no-untyped-call"
"""What users may do who may not do everything, on a broker that knows a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pamqp import base, commands

from tests.support.broker import Broker
from tests.support.prepare import prepare
from tests.support.wire import Wire
from tests.support.wire_actions import bind, declare, get_all

NOTHING = ["^$", "^$", "^$"]
USERS = [
    {"name": "nobody", "permissions": {"/": NOTHING}},
    {"name": "reader", "permissions": {"/": ["", "", ".*"]}},
    {"name": "writer", "permissions": {"/": ["", ".*", ""]}},
    {"name": "actor", "tags": "impersonator", "permissions": {"/": ["", ".*", ""]}},
    {"name": "owner", "permissions": {"/": ["^own-", "^own-dead$", "^own-"]}},
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with these users, shared by the tests of this module."""
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    prepare(data_dir, [{"users": USERS}])
    broker = Broker(data_dir)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def guest(guarded: Broker) -> Iterator[Wire]:
    """A connection of the administrator."""
    with Wire.open(guarded.port) as wire:
        yield wire


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return f"rights-{uuid4().hex[:12]}"


def login(broker: Broker, user: str) -> Wire:
    """A connection of that user with channel 1 open."""
    return Wire.open(broker.port, user=user, password=f"{user}-pw")


@pytest.mark.parametrize(
    "make",
    [
        lambda name: commands.Queue.Declare(queue=name + "-new"),
        lambda name: commands.Exchange.Declare(exchange=name + "-new"),
        lambda name: commands.Queue.Delete(queue=name),
        lambda name: commands.Exchange.Delete(exchange=name),
        lambda name: commands.Queue.Purge(queue=name),
        lambda name: commands.Queue.Bind(queue=name, exchange=name, routing_key="k"),
        lambda name: commands.Queue.Unbind(queue=name, exchange=name, routing_key="k"),
        lambda name: commands.Exchange.Bind(destination=name, source="amq.fanout"),
        lambda name: commands.Exchange.Unbind(destination=name, source="amq.fanout"),
        lambda name: commands.Basic.Get(queue=name),
        lambda name: commands.Basic.Consume(queue=name),
    ],
    ids=["declare-queue", "declare-exchange", "delete-queue", "delete-exchange", "purge", "bind",
         "unbind", "bind-exchange", "unbind-exchange", "get", "consume"],
)  # fmt: skip
def test_nothing_is_possible_without_the_permission_for_it(
    guarded: Broker, guest: Wire, name: str, make: object
) -> None:
    """edge-cases.md 301, 304, 306"""
    assert callable(make)
    declare(guest, name, exclusive=False)
    made = commands.Exchange.Declare(exchange=name)
    guest.call(1, made, commands.Exchange.DeclareOk)

    with login(guarded, "nobody") as wire:
        wire.send(1, make(name))
        wire.expect_channel_close(1, 403)

    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    guest.call(1, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)


def test_publishing_needs_write_on_the_exchange(guarded: Broker, guest: Wire, name: str) -> None:
    """edge-cases.md 301"""
    declare(guest, name, exclusive=False)
    with login(guarded, "nobody") as wire:
        wire.publish(1, "", name, b"m")
        wire.expect_channel_close(1, 403)

    assert get_all(guest, name) == []
    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_passive_and_matching_declares_need_no_permission(
    guarded: Broker, guest: Wire, name: str
) -> None:
    """edge-cases.md 14, 302"""
    declare(guest, name, exclusive=False)
    with login(guarded, "nobody") as wire:
        for passive in (True, False):
            queue = commands.Queue.Declare(queue=name, passive=passive)
            wire.call(1, queue, commands.Queue.DeclareOk)
            exchange = commands.Exchange.Declare(
                exchange="amq.topic", exchange_type="topic", durable=True, passive=passive
            )
            wire.call(1, exchange, commands.Exchange.DeclareOk)
    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


@pytest.mark.parametrize(
    ("user", "lacks"), [("reader", "write permissions to queue"), ("writer", "read permissions to")]
)
@pytest.mark.parametrize("method", [commands.Queue.Bind, commands.Queue.Unbind])
def test_binding_needs_write_on_the_queue_and_read_on_the_exchange(
    guarded: Broker, guest: Wire, name: str, user: str, lacks: str, method: type[base.Frame]
) -> None:
    """edge-cases.md 303"""
    declare(guest, name, exclusive=False)
    bind(guest, name, "amq.direct", name)

    with login(guarded, user) as wire:
        wire.send(1, method(queue=name, exchange="amq.direct", routing_key=name))
        assert lacks in wire.expect_channel_close(1, 403).reply_text

    guest.publish(1, "amq.direct", name, b"still bound")
    assert get_all(guest, name) == [b"still bound"]
    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def test_reading_is_enough_to_purge(guarded: Broker, guest: Wire, name: str) -> None:
    """edge-cases.md 304"""
    declare(guest, name, exclusive=False)
    guest.publish(1, "", name, b"m")
    with login(guarded, "reader") as wire:
        purged = wire.call(1, commands.Queue.Purge(queue=name), commands.Queue.PurgeOk)
    with login(guarded, "writer") as wire:
        wire.send(1, commands.Queue.Purge(queue=name))
        wire.expect_channel_close(1, 403)

    assert purged.message_count == 1
    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


@pytest.mark.parametrize(
    ("user", "claims", "is_allowed"),
    [("actor", "actor", True), ("actor", "guest", True), ("writer", "writer", True),
     ("writer", "guest", False), ("guest", "somebody", False)],
)  # fmt: skip
def test_only_an_impersonator_may_claim_to_be_somebody_else(
    guarded: Broker, guest: Wire, name: str, user: str, claims: str, is_allowed: bool
) -> None:
    """edge-cases.md 134"""
    declare(guest, name, exclusive=False)
    password = "guest" if user == "guest" else f"{user}-pw"
    with Wire.open(guarded.port, user=user, password=password) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", name, b"m", commands.Basic.Properties(user_id=claims))
        if is_allowed:
            wire.expect(commands.Basic.Ack, 1)
        else:
            wire.expect_channel_close(1, 406)

    assert get_all(guest, name) == [b"m"] * is_allowed
    guest.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


@pytest.mark.parametrize(("exchange", "is_allowed"), [("own-dead", True), ("amq.direct", False)])
def test_a_dead_letter_exchange_needs_write_on_it_and_read_on_the_queue(
    guarded: Broker, exchange: str, is_allowed: bool
) -> None:
    """amqp.md 22.13"""
    declaration = commands.Queue.Declare(
        queue="own-queue", exclusive=True, arguments={"x-dead-letter-exchange": exchange}
    )
    with login(guarded, "owner") as wire:
        wire.send(1, declaration)
        if is_allowed:
            wire.expect(commands.Queue.DeclareOk, 1)
        else:
            wire.expect_channel_close(1, 403)
