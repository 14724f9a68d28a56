"""Who may nothing learns nothing: every AMQP method is refused with 403 before anything else.

Each request here would be answered with another error, or with an effect, for the state of what it
names; somebody without any right gets the same refusal whatever that state is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import base, commands

from tests.support.inside import Inside, inside
from tests.support.wire import Wire

NOTHING = ("^$", "^$", "^$")
HEADERS = {"x-match": "neither"}
BAD_TTL = {"x-message-ttl": "soon"}
STREAM = {"x-queue-type": "stream"}

REQUESTS: dict[str, base.Frame] = {
    "declare a queue": commands.Queue.Declare(queue="new"),
    "declare one with bad arguments": commands.Queue.Declare(queue="new", arguments=BAD_TTL),
    "declare a queue that the broker names": commands.Queue.Declare(queue=""),
    "declare one as it is not": commands.Queue.Declare(queue="full", arguments=BAD_TTL),
    "declare another's": commands.Queue.Declare(queue="locked"),
    "declare another's as one's own": commands.Queue.Declare(queue="locked", exclusive=True),
    "declare a shared one as one's own": commands.Queue.Declare(queue="full", exclusive=True),
    "declare an exchange": commands.Exchange.Declare(exchange="new"),
    "declare one of no type": commands.Exchange.Declare(exchange="new", exchange_type="none"),
    "declare an exchange as it is not": commands.Exchange.Declare(
        exchange="used", exchange_type="topic"
    ),
    "delete a queue": commands.Queue.Delete(queue="full"),
    "delete it if empty": commands.Queue.Delete(queue="full", if_empty=True),
    "delete one that is empty": commands.Queue.Delete(queue="empty", if_empty=True),
    "delete it if unused": commands.Queue.Delete(queue="used", if_unused=True),
    "delete another's": commands.Queue.Delete(queue="locked"),
    "delete an internal queue": commands.Queue.Delete(queue="amq.delayed-later"),
    # perm-x-delete: the recorded original tells everybody that there is none
    "delete no queue": commands.Queue.Delete(queue="missing"),
    "delete no queue if empty": commands.Queue.Delete(queue="missing", if_empty=True),
    "delete no exchange": commands.Exchange.Delete(exchange="missing"),
    "delete no exchange if nothing is bound": commands.Exchange.Delete(
        exchange="missing", if_unused=True
    ),
    "purge none": commands.Queue.Purge(queue="missing"),
    "delete an exchange": commands.Exchange.Delete(exchange="used"),
    "delete it if nothing is bound": commands.Exchange.Delete(exchange="used", if_unused=True),
    "purge": commands.Queue.Purge(queue="full"),
    "purge another's": commands.Queue.Purge(queue="locked"),
    "bind": commands.Queue.Bind(queue="full", exchange="used", routing_key="k"),
    "bind another's": commands.Queue.Bind(queue="locked", exchange="used", routing_key="k"),
    "bind by headers that cannot be": commands.Queue.Bind(
        queue="full", exchange="amq.headers", routing_key="", arguments=HEADERS
    ),
    "bind a delayed exchange to its own queue": commands.Queue.Bind(
        queue="amq.delayed-later", exchange="later", routing_key="k"
    ),
    "unbind": commands.Queue.Unbind(queue="full", exchange="used", routing_key="k"),
    "unbind by headers that cannot be": commands.Queue.Unbind(
        queue="full", exchange="amq.headers", routing_key="", arguments=HEADERS
    ),
    "bind exchanges": commands.Exchange.Bind(destination="used", source="later"),
    "bind by a weight that is none": commands.Exchange.Bind(
        destination="used", source="hashing", routing_key="heavy"
    ),
    "bind none": commands.Queue.Bind(queue="missing", exchange="used", routing_key="k"),
    "bind to none": commands.Queue.Bind(queue="full", exchange="missing", routing_key="k"),
    "unbind none": commands.Queue.Unbind(queue="missing", exchange="used", routing_key="k"),
    "unbind from none": commands.Queue.Unbind(queue="full", exchange="missing", routing_key="k"),
    "bind an exchange that is none": commands.Exchange.Bind(destination="missing", source="used"),
    "bind an exchange to none": commands.Exchange.Bind(destination="used", source="missing"),
    "unbind an exchange that is none": commands.Exchange.Unbind(
        destination="missing", source="used"
    ),
    "unbind an exchange from none": commands.Exchange.Unbind(destination="used", source="missing"),
    "unbind exchanges": commands.Exchange.Unbind(destination="used", source="later"),
    "unbind by a weight that is none": commands.Exchange.Unbind(
        destination="used", source="hashing", routing_key="heavy"
    ),
    "get": commands.Basic.Get(queue="full"),
    "get from another's": commands.Basic.Get(queue="locked"),
    "get from a stream": commands.Basic.Get(queue="stream"),
    "get from none": commands.Basic.Get(queue="missing"),
    "consume": commands.Basic.Consume(queue="full"),
    "consume another's": commands.Basic.Consume(queue="locked"),
    "consume with a priority that is none": commands.Basic.Consume(
        queue="full", arguments={"x-priority": "high"}
    ),
    "consume a stream without a limit": commands.Basic.Consume(queue="stream", no_ack=True),
    "consume what another consumes alone": commands.Basic.Consume(queue="used"),
    "consume what waits in a delayed exchange": commands.Basic.Consume(queue="amq.delayed-later"),
    "consume none": commands.Basic.Consume(queue="missing"),
}
PUBLISHES = {
    "publish": ("used", "k"),
    "publish to the default exchange": ("", "full"),
    "publish to an internal exchange": ("inner", "k"),
    "publish to none": ("missing", "k"),
}


@pytest.fixture(scope="module")
def world() -> Iterator[Inside]:
    """A broker with something in every state that a refusal could tell of."""
    with inside() as broker:
        broker.add_user("nobody", rights=NOTHING)
        with Wire.open(broker.port, channels=(1, 2)) as owner:
            for name, arguments in (("full", {}), ("empty", {}), ("used", {}), ("stream", STREAM)):
                owner.call(
                    1, commands.Queue.Declare(queue=name, durable=True, arguments=arguments),
                    commands.Queue.DeclareOk,
                )  # fmt: skip
            owner.call(
                1, commands.Queue.Declare(queue="locked", exclusive=True), commands.Queue.DeclareOk
            )
            for name, kind, internal, arguments in (
                ("used", "direct", False, {}),
                ("inner", "direct", True, {}),
                ("hashing", "x-consistent-hash", False, {}),
                ("later", "x-delayed-message", False, {"x-delayed-type": "direct"}),
            ):
                declare = commands.Exchange.Declare(
                    exchange=name, exchange_type=kind, internal=internal, arguments=arguments
                )
                owner.call(1, declare, commands.Exchange.DeclareOk)
            bind = commands.Queue.Bind(queue="used", exchange="used", routing_key="k")
            owner.call(1, bind, commands.Queue.BindOk)
            consume = commands.Basic.Consume(queue="used", exclusive=True)
            owner.call(2, consume, commands.Basic.ConsumeOk)
            owner.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            owner.publish(1, "", "full", b"m")
            owner.expect(commands.Basic.Ack, 1)
            yield broker


def nobody(world: Inside) -> Wire:
    """A connection of the user who may do nothing."""
    return Wire.open(world.port, user="nobody", password="nobody")


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_without_rights_every_method_is_refused_before_anything_else(
    world: Inside, request_: base.Frame
) -> None:
    with nobody(world) as wire:
        wire.send(1, request_)
        close = wire.expect_channel_close(1, 403)

    assert close.reply_text.startswith("ACCESS_REFUSED")
    assert "permission" in close.reply_text


@pytest.mark.parametrize(("exchange", "key"), PUBLISHES.values(), ids=PUBLISHES.keys())
def test_without_rights_every_publish_is_refused_before_anything_else(
    world: Inside, exchange: str, key: str
) -> None:
    with nobody(world) as wire:
        wire.publish(1, exchange, key, b"m")
        close = wire.expect_channel_close(1, 403)

    text = f"ACCESS_REFUSED - User 'nobody' not allowed to publish to exchange '{exchange}'"
    assert close.reply_text == text


def test_a_full_virtual_host_and_a_full_disk_are_not_told_to_those_without_rights(
    world: Inside,
) -> None:
    limits = world.vhost().rules.limits
    world.call(limits.set, "max-queues", 1)
    try:
        with nobody(world) as wire:
            wire.send(1, commands.Queue.Declare(queue="new"))
            text = wire.expect_channel_close(1, 403).reply_text
    finally:
        world.call(limits.set, "max-queues", -1)

    assert text == "ACCESS_REFUSED - User 'nobody' doesn't have permissions to queue 'new'"


def test_nothing_has_happened(world: Inside) -> None:
    """What was refused above has left everything as it was."""
    assert world.queue("full").core.ready == 1
    assert "used" in world.vhost().exchanges and "new" not in world.vhost().queues
