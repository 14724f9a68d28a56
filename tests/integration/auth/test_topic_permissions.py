"""Topic permissions in force: publishing, binding, and every way around."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import base, commands

from lavinmq.auth.topics import TopicRow
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import get_all

ALL = (".*", ".*", ".*")
Properties = commands.Basic.Properties


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    """Topic exchanges, of which a user may use routing keys of its own only."""
    with inside() as started:
        for name in ("limited", "other"):
            started.add_user(name, rights=ALL)
        with Wire.open(started.port) as wire:
            for name, kind in (("events", "topic"), ("free", "topic"), ("plain", "direct")):
                declare = commands.Exchange.Declare(exchange=name, exchange_type=kind)
                wire.call(1, declare, commands.Exchange.DeclareOk)
        for name in ("events", "plain", "to-come"):
            limit(started, name, write="^own\\.", read="^(own|{username})\\.")
        yield started


def limit(broker: Inside, exchange: str, *, write: str, read: str, user: str = "limited") -> None:
    """Set a topic permission."""
    row = TopicRow(user, "/", exchange, write, read)
    broker.call(broker.inner.accounts.set_topic_permissions, row)


@pytest.fixture
def wire(broker: Inside) -> Iterator[Wire]:
    """A connection of the limited user, with two channels; one has an exclusive queue `mine`."""
    with Wire.open(broker.port, user="limited", password="limited", channels=(1, 2)) as connection:
        declare = commands.Queue.Declare(queue="mine", exclusive=True)
        connection.call(2, declare, commands.Queue.DeclareOk)
        yield connection


@pytest.fixture
def sink(broker: Inside) -> Iterator[Wire]:
    """A connection of guest whose queue `sink` gets all that `events` has."""
    with Wire.open(broker.port) as connection:
        for method, reply in (
            (commands.Queue.Declare(queue="sink", exclusive=True), commands.Queue.DeclareOk),
            (
                commands.Queue.Bind(queue="sink", exchange="events", routing_key="#"),
                commands.Queue.BindOk,
            ),
        ):
            connection.call(1, method, reply)
        yield connection


def confirmed(wire: Wire, exchange: str, key: str, properties: Properties | None = None) -> None:
    """Publish on channel 1 and wait until it is routed."""
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    wire.publish(1, exchange, key, key.encode(), properties)
    wire.expect(commands.Basic.Ack, 1)


def refused(wire: Wire, channel: int = 1) -> str:
    """The text of the 403 that closes the channel."""
    return str(wire.expect_channel_close(channel, 403).reply_text)


# --- publishing -------------------------------------------------------------------------------


def test_only_keys_that_are_allowed_are_published(wire: Wire, sink: Wire) -> None:
    confirmed(wire, "events", "own.a")
    wire.publish(1, "events", "others.a", b"no")

    assert refused(wire) == (
        "ACCESS_REFUSED - User 'limited' not allowed to publish to exchange 'events' with routing"
        " key 'others.a'"
    )
    assert get_all(sink, "sink") == [b"own.a"]


def test_many_keys_in_turn_are_each_told_apart(wire: Wire, sink: Wire) -> None:
    """More than the link remembers, back and forth."""
    keys = [f"own.{number % 1500}" for number in range(3000)]
    for key in keys:
        wire.publish(1, "events", key, b"")
    wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    wire.publish(1, "events", "secret", b"")
    refused(wire)

    assert len(get_all(sink, "sink")) == len(keys)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_keys_of_copies_count_too(wire: Wire, sink: Wire, header: str) -> None:
    confirmed(wire, "events", "own.a", Properties(headers={header: ["own.b", "own.c"]}))
    confirmed(wire, "events", "own.a")  # the route is kept now
    wire.publish(1, "events", "own.a", b"no", Properties(headers={header: ["own.b", "secret"]}))

    assert "with routing key 'secret'" in refused(wire)
    assert get_all(sink, "sink") == [b"own.a", b"own.a"]


def test_a_first_message_with_copies_is_not_let_through(wire: Wire, sink: Wire) -> None:
    wire.publish(1, "events", "own.a", b"no", Properties(headers={"BCC": ["secret"]}))

    assert "with routing key 'secret'" in refused(wire)
    assert get_all(sink, "sink") == []


@pytest.mark.parametrize("exchange", ["free", "plain", "amq.topic", "amq.direct", ""])
def test_other_exchanges_are_free(wire: Wire, exchange: str) -> None:
    """Those without an entry, and those that are no topic exchanges."""
    confirmed(wire, exchange, "any.key", Properties(headers={"CC": ["secret"]}))


def test_others_are_free(broker: Inside, sink: Wire) -> None:
    with Wire.open(broker.port, user="other", password="other") as wire:
        confirmed(wire, "events", "secret")
    assert get_all(sink, "sink") == [b"secret"]


def test_a_change_acts_on_open_connections(broker: Inside, sink: Wire) -> None:
    broker.add_user("changing", rights=ALL)
    with Wire.open(broker.port, user="changing", password="changing", channels=(1, 2)) as wire:
        confirmed(wire, "events", "a")
        limit(broker, "events", write="^b", read="", user="changing")
        wire.publish(1, "events", "a", b"no")
        refused(wire)
        remove = broker.inner.accounts.remove_topic_permissions
        assert broker.call(remove, "changing", "/", "events")
        wire.publish(2, "events", "a", b"yes")
        wire.call(2, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)

    assert get_all(sink, "sink") == [b"a", b"yes"]


def test_a_transaction_is_asked_again_when_rights_have_changed(broker: Inside, sink: Wire) -> None:
    broker.add_user("tx", rights=ALL)
    limit(broker, "events", write="^(a|b)", read="", user="tx")
    with Wire.open(broker.port, user="tx", password="tx", channels=(1, 2)) as wire:
        for channel in (1, 2):
            wire.call(channel, commands.Tx.Select(), commands.Tx.SelectOk)
            wire.publish(channel, "events", "a", b"a", Properties(headers={"CC": ["b"]}))
            wire.publish(channel, "events", "a2", b"a2")
        wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
        limit(broker, "events", write="^a", read="", user="tx")
        wire.send(2, commands.Tx.Commit())
        assert "with routing key 'b'" in refused(wire, 2)

    assert get_all(sink, "sink") == [b"a", b"a2"]


# --- dead letters -----------------------------------------------------------------------------


def letter(exchange: str, key: str | None = None) -> Properties:
    """Properties of a message that dies at once, and where its letter goes."""
    headers = {"x-dead-letter-exchange": exchange}
    if key is not None:
        headers["x-dead-letter-routing-key"] = key
    return Properties(expiration="0", headers=headers)


def test_the_key_of_a_letter_counts_too(broker: Inside, wire: Wire, sink: Wire) -> None:
    confirmed(wire, "", "mine", letter("events", "own.letter"))
    wait_for(lambda: broker.queue("sink").core.ready == 1, "the letter")
    wire.publish(1, "", "mine", b"no", letter("events", "secret"))

    assert "with routing key 'secret'" in refused(wire)


@pytest.mark.parametrize("exchange", ["events", "to-come"])
def test_a_letter_has_to_name_its_key_where_not_every_key_is_allowed(
    wire: Wire, exchange: str
) -> None:
    wire.publish(1, "", "mine", b"no", letter(exchange))

    assert "has to name the routing key of dead letters" in refused(wire)


def test_a_letter_for_an_exchange_that_comes_later_is_checked_by_its_name(wire: Wire) -> None:
    confirmed(wire, "", "mine", letter("to-come", "own.letter"))
    wire.publish(1, "", "mine", b"no", letter("to-come", "secret"))

    assert "with routing key 'secret'" in refused(wire)


# --- binding ----------------------------------------------------------------------------------

BINDS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "queue.bind": (commands.Queue.Bind, {"queue": "mine", "exchange": "events"}),
    "queue.unbind": (commands.Queue.Unbind, {"queue": "mine", "exchange": "events"}),
    "exchange.bind": (commands.Exchange.Bind, {"destination": "free", "source": "events"}),
    "exchange.unbind": (commands.Exchange.Unbind, {"destination": "free", "source": "events"}),
}
REPLIES = {
    "queue.bind": commands.Queue.BindOk,
    "queue.unbind": commands.Queue.UnbindOk,
    "exchange.bind": commands.Exchange.BindOk,
    "exchange.unbind": commands.Exchange.UnbindOk,
}


@pytest.mark.parametrize("method", list(BINDS))
def test_only_keys_that_may_be_read_are_bound(wire: Wire, method: str) -> None:
    kind, ends = BINDS[method]
    for key in ("own.#", "limited.*"):
        wire.call(1, kind(**ends, routing_key=key), REPLIES[method])
        if method.endswith(".bind"):
            kind_off, _ = BINDS[method.replace(".bind", ".unbind")]
            off = REPLIES[method.replace(".bind", ".unbind")]
            wire.call(1, kind_off(**ends, routing_key=key), off)
    wire.send(1, kind(**ends, routing_key="#"))

    assert "permissions to routing key '#' of exchange 'events'" in refused(wire)


AROUND: dict[str, base.Frame] = {
    "bind an exchange": commands.Exchange.Bind(destination="events", source="free"),
    "alternate": commands.Exchange.Declare(
        exchange="new", arguments={"alternate-exchange": "events"}
    ),
    "alternate to come": commands.Exchange.Declare(
        exchange="new", arguments={"x-alternate-exchange": "to-come"}
    ),
    "dead letters": commands.Queue.Declare(
        queue="new", arguments={"x-dead-letter-exchange": "events"}
    ),
    "dead letters with a key": commands.Queue.Declare(
        queue="new",
        arguments={
            "x-dead-letter-exchange": "events", "x-dead-letter-routing-key": "own.a",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("request_", AROUND.values(), ids=AROUND.keys())
def test_no_way_leads_messages_with_any_key_to_where_not_every_key_is_allowed(
    broker: Inside, wire: Wire, request_: base.Frame
) -> None:
    """A message may name another routing key for its dead letter than its queue does."""
    wire.send(1, request_)
    refused(wire)
    assert "new" not in broker.vhost().queues and "new" not in broker.vhost().exchanges


def test_who_may_write_every_key_may_lead_messages_there(broker: Inside) -> None:
    broker.add_user("reading", rights=ALL)
    limit(broker, "events", write=".*", read="^own", user="reading")
    with Wire.open(broker.port, user="reading", password="reading") as wire:
        declare = commands.Queue.Declare(
            queue="led", exclusive=True, arguments={"x-dead-letter-exchange": "events"}
        )
        wire.call(1, declare, commands.Queue.DeclareOk)
        confirmed(wire, "events", "any", letter("events"))
        wire.send(1, commands.Queue.Bind(queue="led", exchange="events", routing_key="#"))
        refused(wire)


def test_what_is_stored_survives_a_restart(tmp_path: Any) -> None:
    data_dir = tmp_path / "data"
    with inside(data_dir) as first:
        first.add_user("kept", rights=ALL)
        limit(first, "amq.topic", write="^own", read="", user="kept")
    assert json.loads((data_dir / "topic_permissions.json").read_bytes())
    with inside(data_dir) as again, Wire.open(again.port, user="kept", password="kept") as wire:
        wire.publish(1, "amq.topic", "secret", b"no")
        refused(wire)
