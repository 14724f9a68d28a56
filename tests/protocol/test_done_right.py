# mypy: disable-error-code="no-untyped-call"
"""Where this broker does better than the recorded original: one test per weakness.

The ids in `done_right.DONE_RIGHT` name the recordings that show the weakness. Every test works on
the shared broker with names of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast
from uuid import uuid4

import pytest
from pamqp import base, body, commands, frame, header

from tests.support.broker import Broker
from tests.support.replay import method_frame
from tests.support.transcripts import Split, pieces, play, scenarios
from tests.support.wire import Wire, encode, raw_frame

METHOD_FRAME = 1
CLOSED = (commands.Channel.Close, commands.Connection.Close)


@pytest.fixture(params=list(Split), ids=lambda split: split.value)
def wire(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Wire]:
    """A connection with channels 1 and 2 open, which sends in pieces."""

    class SplitWire(Wire):
        def send_bytes(self, data: bytes) -> None:
            for piece in pieces(data, request.param):
                super().send_bytes(piece)

    with SplitWire.open(broker.port, host=broker.host, channels=(1, 2)) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return f"done-right-{uuid4().hex[:12]}"


def declare(wire: Wire, queue: str, channel: int = 1) -> None:
    """Declare a transient queue that goes with the connection."""
    wire.call(
        channel, commands.Queue.Declare(queue=queue, exclusive=True), commands.Queue.DeclareOk
    )


def is_usable(wire: Wire, channel: int) -> bool:
    """Tell whether the channel answers."""
    wire.call(channel, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    return True


# ------------------------------------------------------------------ confirms (cf-bad-cc)


def test_a_publish_that_fails_in_routing_is_not_confirmed(wire: Wire, name: str) -> None:
    """amqp.md 22.29"""
    declare(wire, name)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    wire.publish(1, "", name, b"m", commands.Basic.Properties(headers={"CC": name}))

    wire.expect_channel_close(1, 406)
    assert wire.receive_all(0.3) == []
    assert is_usable(wire, 2)


# ---------------------------------------- queue types (q-good-args, q-bad-x-queue-type)


@pytest.mark.parametrize("split", [Split.WHOLE], indirect=True)
def test_good_arguments_of_queues_are_taken_but_for_an_unknown_type(
    transcript_broker: Broker,
) -> None:
    """edge-cases.md 60, 61, 66"""
    scenario = scenarios()["q-good-args"]
    known = [step for step in scenario["steps"] if "nonsense" not in str(step)]

    assert len(known) == len(scenario["steps"]) - 1
    assert play({**scenario, "steps": known[:-1]}, transcript_broker, Split.WHOLE) == []


@pytest.mark.parametrize("type_", ["nonsense", 5])
def test_an_unknown_queue_type_is_refused(wire: Wire, name: str, type_: object) -> None:
    wire.send(1, commands.Queue.Declare(queue=name, arguments={"x-queue-type": type_}))

    wire.expect_channel_close(1, 406)


# ------------------------------------------------------------------ settling (ak-unknown)


def test_nack_of_everything_with_nothing_outstanding_changes_nothing(wire: Wire) -> None:
    """amqp.md 22.34"""
    wire.send(1, commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=False))

    assert is_usable(wire, 1)


def test_ack_of_everything_with_nothing_outstanding_changes_nothing(wire: Wire) -> None:
    """edge-cases.md 25"""
    for _ in range(3):
        wire.send(1, commands.Basic.Ack(delivery_tag=0, multiple=True))

    assert is_usable(wire, 1)


@pytest.mark.parametrize(
    ("settlement", "method_id"),
    [
        (commands.Basic.Ack(delivery_tag=0, multiple=False), 80),
        (commands.Basic.Nack(delivery_tag=0, multiple=False), 120),
        (commands.Basic.Nack(delivery_tag=6, multiple=True), 120),
        (commands.Basic.Reject(delivery_tag=5), 90),
        (commands.Basic.Reject(delivery_tag=0), 90),
    ],
)
def test_settling_an_unknown_tag_closes_the_channel(
    wire: Wire, settlement: base.Frame, method_id: int
) -> None:
    """edge-cases.md 24"""
    tag = cast(int, dict(settlement)["delivery_tag"])

    wire.send(1, settlement)

    close = wire.expect_channel_close(1, 406)
    assert close.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {tag}"
    assert (close.class_id, close.method_id) == (60, method_id)
    assert is_usable(wire, 2)


def test_delivery_tags_are_unsigned(wire: Wire) -> None:
    tag = 1 << 63

    wire.send_bytes(method_frame(1, "basic.ack", delivery_tag=tag, multiple=True))

    assert wire.expect_channel_close(1, 406).reply_text.endswith(f"unknown delivery tag {tag}")


def test_settling_a_message_twice_closes_the_channel(wire: Wire, name: str) -> None:
    declare(wire, name)
    wire.publish(1, "", name, b"m1")
    wire.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)

    wire.send(1, commands.Basic.Ack(delivery_tag=1), commands.Basic.Ack(delivery_tag=1))

    assert wire.expect_channel_close(1, 406).reply_text.endswith("unknown delivery tag 1")


def test_settling_a_message_delivered_without_ack_closes_the_channel(wire: Wire, name: str) -> None:
    declare(wire, name)
    wire.publish(1, "", name, b"m1")
    wire.call(1, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk)

    wire.send(1, commands.Basic.Ack(delivery_tag=1))

    assert wire.expect_channel_close(1, 406).reply_text.endswith("unknown delivery tag 1")


# ------------------------------------------------------------------ channel 0 (ch-*-zero)


def test_opening_channel_zero_closes_the_connection(wire: Wire) -> None:
    """amqp.md 22.36"""
    wire.send(0, commands.Channel.Open())

    close = wire.expect_connection_close(504)
    assert (close.class_id, close.method_id) == (20, 10)


def test_method_of_a_channel_on_channel_zero_closes_the_connection(wire: Wire, name: str) -> None:
    """amqp.md 22.36"""
    wire.send(0, commands.Queue.Declare(queue=name))

    close = wire.expect_connection_close(505)
    assert (close.class_id, close.method_id) == (50, 10)


# ------------------------------------------------------------------ channel not open


@pytest.mark.parametrize(
    ("request_name", "ids"), [("exchange.declare", (40, 10)), ("queue.declare", (50, 10))]
)
def test_declare_on_a_channel_that_is_not_open_is_refused(
    wire: Wire, name: str, request_name: str, ids: tuple[int, int]
) -> None:
    """amqp.md 22.12"""
    wire.send_bytes(method_frame(7, request_name, exchange=name, queue=name, type="direct"))

    close = wire.expect_connection_close(504)
    assert close.reply_text == "CHANNEL_ERROR - Channel 7 not open"
    assert (close.class_id, close.method_id) == ids


@pytest.mark.parametrize("request_name", ["exchange.declare", "queue.declare"])
def test_declare_on_a_channel_that_is_not_open_declares_nothing(
    broker: Broker, wire: Wire, name: str, request_name: str
) -> None:
    """amqp.md 22.12"""
    wire.send_bytes(method_frame(7, request_name, exchange=name, queue=name, type="direct"))
    wire.expect_connection_close(504)

    with Wire.open(broker.port, host=broker.host) as other:
        other.send_bytes(method_frame(1, request_name, exchange=name, queue=name, passive=True))
        other.expect_channel_close(1, 404)


def test_declare_on_a_channel_that_awaits_close_ok_declares_nothing(wire: Wire, name: str) -> None:
    """amqp.md 22.12"""
    missing = commands.Queue.Declare(queue=f"{name}-missing", passive=True)
    wire.send(1, missing, commands.Queue.Declare(queue=name))
    wire.expect_channel_close(1, 404)

    wire.send(2, commands.Queue.Declare(queue=name, passive=True))

    wire.expect_channel_close(2, 404)


# ------------------------------------------------------------------ consumers (cs-dup-tag)


def test_consumer_tag_in_use_on_the_channel_is_refused(wire: Wire, name: str) -> None:
    """amqp.md 22.16"""
    declare(wire, name)
    consume = commands.Basic.Consume(queue=name, consumer_tag="t")
    wire.call(1, consume, commands.Basic.ConsumeOk)

    wire.send(1, consume)

    close = wire.expect_connection_close(530)
    assert (close.class_id, close.method_id) == (60, 20)


def test_consumer_tag_may_be_used_on_another_channel(wire: Wire, name: str) -> None:
    declare(wire, name)
    consume = commands.Basic.Consume(queue=name, consumer_tag="t")

    wire.call(1, consume, commands.Basic.ConsumeOk)
    wire.call(2, consume, commands.Basic.ConsumeOk)

    assert is_usable(wire, 2)


def test_consumer_tag_may_be_used_again_after_cancel(wire: Wire, name: str) -> None:
    """edge-cases.md 35"""
    declare(wire, name)
    consume = commands.Basic.Consume(queue=name, consumer_tag="t")
    wire.call(1, consume, commands.Basic.ConsumeOk)
    wire.call(1, commands.Basic.Cancel(consumer_tag="t"), commands.Basic.CancelOk)

    assert wire.call(1, consume, commands.Basic.ConsumeOk).consumer_tag == "t"


def test_exclusive_consume_is_refused_while_others_consume(wire: Wire, name: str) -> None:
    """amqp.md 22.17"""
    declare(wire, name)
    consume = commands.Basic.Consume(queue=name, consumer_tag="shared")
    wire.call(1, consume, commands.Basic.ConsumeOk)

    wire.send(2, commands.Basic.Consume(queue=name, exclusive=True))

    close = wire.expect_channel_close(2, 403)
    assert (close.class_id, close.method_id) == (60, 20)


# ------------------------------------------------------------------ names (*-name-utf8)


def test_queue_name_may_be_any_utf8_text(wire: Wire, name: str) -> None:
    """amqp.md 22.43"""
    queue = f"{name}-grüße-日本-🐇"
    wire.send_bytes(method_frame(1, "queue.declare", queue=queue, exclusive=True))

    assert wire.expect(commands.Queue.DeclareOk, 1).queue == queue


def test_exchange_name_may_be_any_utf8_text(wire: Wire, name: str) -> None:
    """amqp.md 22.43"""
    exchange = f"{name}-grüße-日本-🐇"
    declare(wire, name)
    wire.send_bytes(method_frame(1, "exchange.declare", exchange=exchange, type="fanout"))
    wire.expect(commands.Exchange.DeclareOk, 1)
    wire.send_bytes(method_frame(1, "queue.bind", queue=name, exchange=exchange))
    wire.expect(commands.Queue.BindOk, 1)

    wire.send_bytes(method_frame(1, "basic.publish", exchange=exchange))
    wire.send(1, header.ContentHeader(body_size=1), body.ContentBody(b"m"))
    message = wire.call(1, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk)

    assert message.exchange == exchange
    wire.send_bytes(method_frame(1, "exchange.delete", exchange=exchange))
    wire.expect(commands.Exchange.DeleteOk, 1)


@pytest.mark.parametrize("character", ["\0", "\n", "\x1f", "\x7f"])
def test_queue_name_with_a_control_character_is_refused(
    wire: Wire, name: str, character: str
) -> None:
    """amqp.md 22.43"""
    wire.send_bytes(method_frame(1, "queue.declare", queue=f"{name}{character}", exclusive=True))

    assert wire.expect_channel_close(1, 406).class_id == 50


def test_queue_name_that_is_not_utf8_is_refused(wire: Wire) -> None:
    wire.send_bytes(method_frame(1, "queue.declare", queue={"$hex": "ff41"}, exclusive=True))

    close = wire.receive().method
    assert isinstance(close, CLOSED)
    assert close.reply_code in (406, 501)


# ------------------------------------------------------------------ framing (fr-*)


def test_unknown_field_type_is_a_frame_error(wire: Wire, name: str) -> None:
    """amqp.md 22.37"""
    queue = name.encode()
    table = b"\x01aZ\x01"
    arguments = b"\x00\x00" + bytes([len(queue)]) + queue + b"\x00"
    payload = struct.pack(">HH", 50, 10) + arguments + struct.pack(">I", len(table)) + table

    wire.send_bytes(raw_frame(METHOD_FRAME, 1, payload))

    wire.expect_connection_close(501)


# ------------------------------------------------------------------ who pays (fr-notimpl-*, pb-*)


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize(
    ("payload", "ids", "what"),
    [
        pytest.param("001e000a052f646174611f", (30, 10), "access.request", id="access-request"),
        pytest.param("003c006401", (60, 100), "basic.recover-async", id="recover-async"),
        pytest.param("00630001" + "ab" * 200, (99, 1), "method 99.1", id="unknown-class"),
        pytest.param("0032003c" + "ce" * 9, (50, 60), "method 50.60", id="unknown-method"),
    ],
)
def test_an_unknown_method_closes_the_connection(
    wire: Wire, channel: int, payload: str, ids: tuple[int, int], what: str
) -> None:
    """amqp.md 22.33"""
    wire.send_bytes(raw_frame(METHOD_FRAME, channel, bytes.fromhex(payload)))

    close = wire.expect_connection_close(540)
    assert close.reply_text == f"NOT_IMPLEMENTED - {what} is not implemented"
    assert (close.class_id, close.method_id) == ids


def test_a_method_for_brokers_closes_the_connection(wire: Wire) -> None:
    wire.send(1, commands.Basic.CancelOk(consumer_tag="t"))

    close = wire.expect_connection_close(540)
    assert close.reply_text == "NOT_IMPLEMENTED - basic.cancel-ok is not for clients to send"


def test_a_prefetch_in_bytes_closes_the_connection(wire: Wire) -> None:
    wire.send(1, commands.Basic.Qos(prefetch_size=1, prefetch_count=1))

    close = wire.expect_connection_close(540)
    assert close.reply_text == "NOT_IMPLEMENTED - prefetch_size is not supported"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        pytest.param(
            [header.ContentHeader(body_size=1)],
            "content header that no basic.publish has announced",
            id="header-without-publish",
        ),
        pytest.param(
            [body.ContentBody(b"b")],
            "content body without a content header",
            id="body-without-header",
        ),
        pytest.param(
            [commands.Basic.Publish(), body.ContentBody(b"b")],
            "content body without a content header",
            id="body-after-publish",
        ),
        pytest.param(
            [commands.Basic.Publish(), header.ContentHeader(body_size=2), commands.Basic.Publish()],
            "basic.publish before the content of another one is complete",
            id="publish-in-content",
        ),
    ],
)
def test_content_out_of_turn_closes_the_connection(
    wire: Wire, sent: list[frame.FrameTypes], text: str
) -> None:
    wire.send(1, *sent)

    assert wire.expect_connection_close(505).reply_text == f"UNEXPECTED_FRAME - {text}"


def test_a_content_header_of_another_class_closes_the_connection(wire: Wire, name: str) -> None:
    head = header.ContentHeader(body_size=0).marshal()
    wire.send(1, commands.Basic.Publish(routing_key=name))
    wire.send_bytes(raw_frame(2, 1, b"\x00\x32" + head[2:]))

    wire.expect_connection_close(505)


# ------------------------------------------------------------------ expiration, redeclaring


def test_an_expiration_that_is_empty_is_refused(wire: Wire, name: str) -> None:
    declare(wire, name, channel=2)
    head = struct.pack(">HHQHB", 60, 0, 0, 0x0100, 0)

    wire.send(1, commands.Basic.Publish(routing_key=name))
    wire.send_bytes(raw_frame(2, 1, head))

    close = wire.expect_channel_close(1, 406)
    assert close.reply_text == "PRECONDITION_FAILED - Expiration not a number"
    wire.call(2, commands.Basic.Get(queue=name), commands.Basic.GetEmpty)


def test_an_unknown_argument_makes_no_queue_another_one(wire: Wire, name: str) -> None:
    def declared(**arguments: object) -> commands.Queue.Declare:
        return commands.Queue.Declare(
            queue=name, exclusive=True, arguments={"x-max-length": 5, **arguments}
        )

    for other in ({"x-note": "a"}, {"x-note": "b"}, {"x-note": 1, "x-more": [1]}, {}):
        wire.call(1, declared(**other), commands.Queue.DeclareOk)

    wire.send(1, declared(**{"x-note": "a", "x-max-length": 6}))
    wire.expect_channel_close(1, 406)


def test_body_longer_than_announced_is_an_error(wire: Wire, name: str) -> None:
    """amqp.md 22.26"""
    declare(wire, name)
    publish = commands.Basic.Publish(routing_key=name)

    wire.send(1, publish, header.ContentHeader(body_size=2), body.ContentBody(b"three"))

    close = wire.receive().method
    assert isinstance(close, CLOSED)
    assert close.reply_code in (501, 505)


def test_body_longer_than_announced_is_not_stored(broker: Broker, wire: Wire, name: str) -> None:
    """amqp.md 22.26"""
    wire.call(2, commands.Queue.Declare(queue=name), commands.Queue.DeclareOk)
    publish = commands.Basic.Publish(routing_key=name)
    wire.send(1, publish, header.ContentHeader(body_size=2), body.ContentBody(b"three"))
    assert isinstance(wire.receive().method, CLOSED)

    with Wire.open(broker.port, host=broker.host) as other:
        deleted = other.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)

    assert deleted.message_count == 0


# ------------------------------------------------------------------ last queue (q-last-scope)


def test_last_declared_queue_is_remembered_per_channel(wire: Wire, name: str) -> None:
    """amqp.md 22.15"""
    declare(wire, f"{name}-1", channel=1)
    declare(wire, f"{name}-2", channel=2)
    wire.publish(1, "", f"{name}-1", b"in the first")
    wire.publish(1, "", f"{name}-2", b"in the second")
    is_usable(wire, 1)

    bodies = []
    for channel in (1, 2):
        wire.send(channel, commands.Basic.Get(queue="", no_ack=True))
        bodies.append(wire.expect_unit(commands.Basic.GetOk, channel).body)

    assert bodies == [b"in the first", b"in the second"]


# ------------------------------------------------------------------ x-queue-type


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {"x-queue-type": "classic"}), ({"x-queue-type": "classic"}, {})],
    ids=["none-then-classic", "classic-then-none"],
)
def test_queue_type_classic_and_none_are_the_same(
    wire: Wire, name: str, first: dict[str, str], second: dict[str, str]
) -> None:
    """amqp.md 22.41"""

    def declare_with(arguments: dict[str, str]) -> commands.Queue.DeclareOk:
        request = commands.Queue.Declare(queue=name, exclusive=True, arguments=dict(arguments))
        return wire.call(1, request, commands.Queue.DeclareOk)

    declare_with(first)

    assert declare_with(second).queue == name


def test_queue_redeclared_with_another_type_is_refused(wire: Wire, name: str) -> None:
    declare(wire, name)
    arguments = {"x-queue-type": "quorum"}

    wire.send(1, commands.Queue.Declare(queue=name, exclusive=True, arguments=dict(arguments)))

    wire.expect_channel_close(1, 406)


# ------------------------------------------------------------------ update-secret


def test_update_secret_of_a_password_user_is_answered_ok(wire: Wire) -> None:
    """amqp.md 22.39"""
    request = commands.Connection.UpdateSecret("guest", "refreshed")

    wire.call(0, request, commands.Connection.UpdateSecretOk)

    assert is_usable(wire, 1)


def test_frames_after_a_connection_close_are_ignored(wire: Wire, name: str) -> None:
    wire.send_bytes(raw_frame(9, 1, b"") + encode(1, commands.Queue.Declare(queue=name)))

    wire.expect_connection_close(501)


# ------------------------------------------------------------------ cs-cancel-notify, q-gen


def test_delete_ok_comes_before_the_cancel_of_the_deleter_s_own_consumer(
    wire: Wire, name: str
) -> None:
    """amqp.md 22.44"""
    declare(wire, name)
    wire.call(1, commands.Basic.Consume(queue=name, consumer_tag="mine"), commands.Basic.ConsumeOk)

    wire.send(1, commands.Queue.Delete(queue=name))

    wire.expect(commands.Queue.DeleteOk, 1)
    assert wire.expect(commands.Basic.Cancel, 1).consumer_tag == "mine"


# ------------------------------------------------------------------ transactions


def test_acking_everything_in_a_transaction_with_nothing_outstanding_changes_nothing(
    wire: Wire,
) -> None:
    """amqp.md 22.4"""
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)

    wire.send(1, commands.Basic.Ack(delivery_tag=0, multiple=True))

    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
    assert is_usable(wire, 1)


def test_recover_in_a_transaction_leaves_deliveries_alone_that_it_has_acked(
    wire: Wire, name: str
) -> None:
    """amqp.md 22.5"""
    declare(wire, name)
    wire.publish(1, "", name, b"acked")
    wire.publish(1, "", name, b"recovered")
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    first = wire.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)
    wire.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)
    wire.send(1, commands.Basic.Ack(delivery_tag=first.delivery_tag))

    wire.call(1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)

    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
    again = wire.call(1, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk)
    assert again.redelivered
    wire.call(1, commands.Basic.Get(queue=name), commands.Basic.GetEmpty)


def test_a_commit_to_an_exchange_that_has_gone_changes_nothing(wire: Wire, name: str) -> None:
    """amqp.md 22.29"""
    declare(wire, name)
    wire.call(2, commands.Exchange.Declare(exchange=name), commands.Exchange.DeclareOk)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    wire.publish(1, "", name, b"first half")
    wire.publish(1, name, "key", b"second half")
    is_usable(wire, 1)
    wire.call(2, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)

    wire.send(1, commands.Tx.Commit())

    wire.expect_channel_close(1, 404)
    wire.call(2, commands.Basic.Get(queue=name), commands.Basic.GetEmpty)


def test_recover_without_requeue_delivers_to_the_same_consumer_again(wire: Wire, name: str) -> None:
    """amqp.md 22.3"""
    declare(wire, name)
    wire.call(1, commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
    wire.publish(1, "", name, b"once more")
    assert not wire.expect(commands.Basic.Deliver, 1).redelivered

    wire.call(1, commands.Basic.Recover(requeue=False), commands.Basic.RecoverOk)

    again = wire.expect(commands.Basic.Deliver, 1)
    assert (again.redelivered, again.delivery_tag) == (True, 2)
    wire.send(1, commands.Basic.Ack(delivery_tag=2))
    assert is_usable(wire, 1)


def test_a_commit_to_very_many_exchanges(wire: Wire, name: str) -> None:
    """A link remembers a few exchanges; a commit must not depend on how many it needs."""
    exchanges = [f"{name}-{number}" for number in range(40)]
    declare(wire, name)
    for exchange in exchanges:
        made = commands.Exchange.Declare(
            exchange=exchange, exchange_type="fanout", auto_delete=True
        )
        wire.call(1, made, commands.Exchange.DeclareOk)
        bound = commands.Queue.Bind(queue=name, exchange=exchange)
        wire.call(1, bound, commands.Queue.BindOk)
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    for exchange in exchanges:
        wire.publish(1, exchange, "", exchange.encode())
    # Exchanges change meanwhile, so that all of them have to be asked about again.
    other = commands.Exchange.Declare(exchange=f"{name}-other", auto_delete=True)
    wire.call(2, other, commands.Exchange.DeclareOk)
    wire.call(2, commands.Exchange.Delete(exchange=f"{name}-other"), commands.Exchange.DeleteOk)

    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    for exchange in exchanges:
        wire.send(2, commands.Basic.Get(queue=name, no_ack=True))
        assert wire.expect_unit(commands.Basic.GetOk).body == exchange.encode()


# ------------------------------------------------------------------ alternates (ex-arg-ae-int)


@pytest.mark.parametrize("argument", ["alternate-exchange", "x-alternate-exchange"])
def test_an_alternate_exchange_that_is_no_text_is_refused(
    wire: Wire, name: str, argument: str
) -> None:
    """Rights: tests/integration/auth/test_permission_table.py (perm-x-ae)."""
    wire.send(1, commands.Exchange.Declare(exchange=name, arguments={argument: 5}))

    wire.expect_channel_close(1, 406)
    wire.send(2, commands.Exchange.Declare(exchange=name, passive=True))
    wire.expect_channel_close(2, 404)


# ------------------------------------------------------------------ headers (rt-headers-bad)


@pytest.mark.parametrize("mode", ["all-with-x", "any-with-x"])
def test_headers_bindings_may_ask_for_names_that_begin_with_x(
    wire: Wire, name: str, mode: str
) -> None:
    declare(wire, name)
    arguments = {"x-match": mode, "x-kind": "wanted"}
    bind = commands.Queue.Bind(queue=name, exchange="amq.headers", arguments=arguments)
    wire.call(1, bind, commands.Queue.BindOk)
    for kind in ("other", "wanted"):
        properties = commands.Basic.Properties(headers={"x-kind": kind})
        wire.publish(1, "amq.headers", "", kind.encode(), properties)

    wire.send(1, commands.Basic.Get(queue=name, no_ack=True))

    unit = wire.expect_unit(commands.Basic.GetOk, 1)
    assert (unit.body, unit.method.message_count) == (b"wanted", 0)
