"""A message that says where it goes when it dies gets to no exchange that its publisher may not
write to, whether that exists when it is published or comes later."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from pamqp import commands

from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire

MINE = ("^mine", "^mine", "^(mine|amq\\.default)")
Properties = commands.Basic.Properties


@pytest.fixture(scope="module")
def started() -> Iterator[Inside]:
    """A broker with a user who is limited to `^mine` and the default exchange."""
    with inside() as broker:
        broker.add_user("limited", rights=MINE)
        yield broker


@pytest.fixture
def wire(started: Inside) -> Iterator[Wire]:
    """A connection of that user, with a queue `mine-q`."""
    with Wire.open(started.port, user="limited", password="limited", channels=(1, 2)) as wire:
        wire.call(
            2, commands.Queue.Declare(queue="mine-q", exclusive=True), commands.Queue.DeclareOk
        )
        yield wire


def letter(exchange: str, key: str = "k", expiration: str | None = "0") -> Properties:
    """Properties of a message that says where it goes when it dies."""
    headers = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}
    return Properties(expiration=expiration, headers=headers)


def refusal(wire: Wire, channel: int = 1) -> str:
    """The text of the 403 that closes the channel."""
    return str(wire.expect_channel_close(channel, 403).reply_text)


@pytest.mark.parametrize("exchange", ["amq.fanout", "not-there-yet"])
@pytest.mark.parametrize("is_tx", [False, True])
def test_rights_are_asked_by_the_name_whether_it_exists_or_not(
    wire: Wire, exchange: str, is_tx: bool
) -> None:
    if is_tx:
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    wire.publish(1, "", "mine-q", b"no", letter(exchange))

    assert f"not allowed to publish to exchange '{exchange}'" in refusal(wire)


def test_many_letters_to_an_exchange_that_is_not_there_are_taken(
    started: Inside, wire: Wire
) -> None:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for number in range(20):
        properties = letter(f"mine-later-{number % 3}", f"k{number}", expiration=None)
        wire.publish(1, "", "mine-q", b"m", properties)
    wait_for(lambda: started.queue("mine-q").core.ready == 20, "the messages")
    wire.publish(1, "", "mine-q", b"no", letter("later"))
    while not isinstance((unit := wire.receive()).method, commands.Channel.Close):
        assert isinstance(unit.method, commands.Basic.Ack)


def test_an_internal_exchange_that_comes_later_gets_no_letter_of_a_client(
    started: Inside, wire: Wire
) -> None:
    confirm = commands.Confirm.Select()
    wire.call(1, confirm, commands.Confirm.SelectOk)
    wire.publish(1, "", "mine-q", b"m", letter("mine-inner", expiration=None))
    wire.expect(commands.Basic.Ack, 1)
    with Wire.open(started.port) as guest:
        for name, is_internal in (("mine-inner", True), ("outer", False)):
            declare = commands.Exchange.Declare(
                exchange=name, exchange_type="fanout", internal=is_internal
            )
            guest.call(1, declare, commands.Exchange.DeclareOk)
            declare_queue = commands.Queue.Declare(queue=f"of-{name}", exclusive=True)
            guest.call(1, declare_queue, commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=f"of-{name}", exchange=name, routing_key="")
            guest.call(1, bind, commands.Queue.BindOk)
        # What a queue names is the choice of who has declared it, and may be internal.
        own = {"x-dead-letter-exchange": "mine-inner"}
        guest.call(
            1, commands.Queue.Declare(queue="own-choice", exclusive=True, arguments=own),
            commands.Queue.DeclareOk,
        )  # fmt: skip
        guest.publish(1, "", "own-choice", b"d", Properties(expiration="0"))
        wait_for(lambda: started.queue("of-mine-inner").core.ready == 1, "the queue's letter")

        wire.call(2, commands.Basic.Get(queue="mine-q"), commands.Basic.GetOk)
        wire.send(2, commands.Basic.Reject(delivery_tag=1, requeue=False))
        wire.call(2, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)

        assert started.queue("of-mine-inner").core.ready == 1
        assert started.queue("mine-q").core.ready == 0


@pytest.mark.parametrize("exchange", ["amq.fanout", "not-there-yet"])
def test_the_same_over_http(broker: Broker, exchange: str) -> None:
    api, name = Api(broker), f"letters-{uuid4().hex[:8]}"
    user = api.as_user(name, "management", **{"/": ("^mine", "^(mine|amq.default)", "^mine")})
    headers = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "k"}
    body = {
        "properties": {"headers": headers}, "routing_key": "k", "payload": "p",
        "payload_encoding": "string",
    }  # fmt: skip
    path = "/api/exchanges/%2F/amq.default/publish"

    assert user("POST", path, body).status == 403
    headers["x-dead-letter-exchange"] = "mine-later"
    assert user("POST", path, body).status == 200
    api("DELETE", f"/api/users/{name}")


KEY_ALONE = {"x-dead-letter-routing-key": "victim"}


def guests_queue(started: Inside) -> None:
    """A queue that the limited user may write to, and whose letters go where he may not."""
    with Wire.open(started.port) as guest:
        for name, arguments in (
            ("victim", {}),
            ("mine-jobs", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mine-dead"}),
        ):
            declare = commands.Queue.Declare(queue=name, arguments=arguments)
            guest.call(1, declare, commands.Queue.DeclareOk)


@pytest.mark.parametrize("exchange", [None, 7, "e" * 256])
@pytest.mark.parametrize("is_tx", [False, True])
def test_a_key_alone_does_not_lead_the_letters_of_a_queue_elsewhere(
    started: Inside, exchange: object, is_tx: bool
) -> None:
    guests_queue(started)
    started.add_user("jobs", rights=("^$", "^mine", "^(mine|amq\\.default$)"))
    named = {} if exchange is None else {"x-dead-letter-exchange": exchange}
    with Wire.open(started.port, user="jobs", password="jobs") as wire:
        if is_tx:
            wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        properties = Properties(expiration="0", headers=named | KEY_ALONE)
        wire.publish(1, "", "mine-jobs", b"m", properties)

        assert "has to name the exchange of dead letters" in refusal(wire)

    assert started.queue("victim").core.ready == 0


def test_who_may_write_everywhere_may_name_a_key_alone(started: Inside) -> None:
    guests_queue(started)
    with Wire.open(started.port) as guest:
        for _ in range(3):
            guest.publish(1, "", "mine-jobs", b"m", Properties(expiration="0", headers=KEY_ALONE))
        wait_for(lambda: started.queue("victim").core.ready == 3, "the letters")
        guest.call(1, commands.Queue.Purge(queue="victim"), commands.Queue.PurgeOk)


def test_a_key_alone_over_http(broker: Broker) -> None:
    api, name = Api(broker), f"letters-{uuid4().hex[:8]}"
    user = api.as_user(name, "management", **{"/": ("^mine", "^(mine|amq.default)", "^mine")})
    body = {
        "properties": {"headers": KEY_ALONE}, "routing_key": "k", "payload": "p",
        "payload_encoding": "string",
    }  # fmt: skip
    path = "/api/exchanges/%2F/amq.default/publish"

    answer = user("POST", path, body)

    assert answer.status == 403 and b"has to name the exchange" in answer.content
    assert api("POST", path, body).status == 200
