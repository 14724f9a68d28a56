"""CC and BCC: further routing keys of a message, the latter hidden from everybody who gets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.integration.conftest import UniqueName
from tests.support.broker import Broker
from tests.support.wire import Unit, Wire

Headers = dict[str, object]


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A connection with channel 1 open."""
    with Wire.open(broker.port) as connection:
        yield connection


def declare(wire: Wire, *queues: str) -> None:
    for queue in queues:
        method = commands.Queue.Declare(queue=queue, exclusive=True)
        wire.call(1, method, commands.Queue.DeclareOk)


def publish(
    wire: Wire, exchange: str, key: str, headers: Headers | None, *, mandatory: bool = False
) -> None:
    properties = commands.Basic.Properties(headers=headers)
    wire.publish(1, exchange, key, b"m", properties, mandatory=mandatory)


def get(wire: Wire, queue: str) -> Unit | None:
    """The next message, or None."""
    wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
    unit = wire.receive()
    return unit if isinstance(unit.method, commands.Basic.GetOk) else None


def headers_of(unit: Unit | None) -> Headers | None:
    assert unit is not None
    assert unit.properties is not None
    return unit.properties.headers


def test_each_key_is_routed_and_a_queue_gets_one_copy(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 77, 96, 97"""
    to, cc, bcc = (unique(word) for word in ("to", "cc", "bcc"))
    declare(wire, to, cc, bcc)

    publish(wire, "", to, {"a": 1, "CC": [cc, to, cc], "BCC": [bcc, cc], "z": "last"})

    for queue in (to, cc, bcc):
        assert headers_of(get(wire, queue)) == {"a": 1, "CC": [cc, to, cc], "z": "last"}
        assert get(wire, queue) is None


def test_a_message_without_copies_after_one_with_goes_to_its_key_alone(
    wire: Wire, unique: UniqueName
) -> None:
    to, cc = unique("to"), unique("cc")
    declare(wire, to, cc)

    publish(wire, "", to, {"x": 1})
    publish(wire, "", to, {"CC": [cc]})
    publish(wire, "", to, {"x": 2})

    assert [get(wire, to) is not None for _ in range(4)] == [True, True, True, False]
    assert [get(wire, cc) is not None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("bcc", [["q"], []], ids=["one", "none"])
def test_headers_that_are_only_bcc_leave_an_empty_table(
    wire: Wire, unique: UniqueName, bcc: list[str]
) -> None:
    queue = unique("q")
    declare(wire, queue)

    publish(wire, "", queue, {"BCC": bcc})
    publish(wire, "", queue, {"n": {"deep": [1, "x"]}, "BCC": bcc})

    assert headers_of(get(wire, queue)) == {}
    assert headers_of(get(wire, queue)) == {"n": {"deep": [1, "x"]}}


def test_bcc_is_hidden_from_consumers_also_when_delivered_again(
    wire: Wire, unique: UniqueName
) -> None:
    """edge-cases.md 97"""
    to, bcc = unique("to"), unique("bcc")
    declare(wire, to, bcc)
    publish(wire, "", to, {"BCC": [bcc], "k": True})
    wire.call(1, commands.Basic.Consume(queue=to), commands.Basic.ConsumeOk)

    first = wire.expect_unit(commands.Basic.Deliver)
    wire.send(1, commands.Basic.Recover(requeue=False))
    wire.expect(commands.Basic.RecoverOk)
    again = wire.expect_unit(commands.Basic.Deliver)

    assert headers_of(first) == headers_of(again) == {"k": True}
    assert headers_of(get(wire, bcc)) == {"k": True}


def test_a_returned_message_has_no_bcc(wire: Wire, unique: UniqueName) -> None:
    headers: Headers = {"CC": [unique("cc")], "BCC": [unique("bcc")]}

    publish(wire, "", unique("nowhere"), headers, mandatory=True)

    returned = wire.expect_unit(commands.Basic.Return)
    assert headers_of(returned) == {"CC": headers["CC"]}


def test_a_message_that_only_a_copy_reaches_is_not_returned(wire: Wire, unique: UniqueName) -> None:
    queue = unique("q")
    declare(wire, queue)

    publish(wire, "", unique("nowhere"), {"BCC": [queue]}, mandatory=True)

    assert get(wire, queue) is not None


def test_copies_are_topic_keys_and_follow_bindings_between_exchanges(
    wire: Wire, unique: UniqueName
) -> None:
    outer, inner, queue = unique("outer"), unique("inner"), unique("q")
    declare(wire, queue)
    for name in (outer, inner):
        method = commands.Exchange.Declare(exchange=name, exchange_type="topic", auto_delete=True)
        wire.call(1, method, commands.Exchange.DeclareOk)
    bind = commands.Queue.Bind(queue=queue, exchange=inner, routing_key="a.*.c")
    wire.call(1, bind, commands.Queue.BindOk)
    bind_x = commands.Exchange.Bind(destination=inner, source=outer, routing_key="#.c")
    wire.call(1, bind_x, commands.Exchange.BindOk)

    publish(wire, outer, "x", {"CC": ["a.b.c", "a.d.c", "a.c"]})

    assert get(wire, queue) is not None
    assert get(wire, queue) is None


def test_the_alternate_exchange_is_asked_when_no_key_matches(
    wire: Wire, unique: UniqueName
) -> None:
    main, spare, known, left = (unique(word) for word in ("main", "spare", "known", "left"))
    declare(wire, known, left)
    for name, kind, arguments in (
        (spare, "fanout", {}),
        (main, "direct", {"alternate-exchange": spare}),
    ):
        method = commands.Exchange.Declare(
            exchange=name, exchange_type=kind, auto_delete=True, arguments=arguments
        )
        wire.call(1, method, commands.Exchange.DeclareOk)
    for queue, exchange in ((known, main), (left, spare)):
        bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key="known")
        wire.call(1, bind, commands.Queue.BindOk)

    publish(wire, main, "unknown", {"CC": ["known"]})
    publish(wire, main, "unknown", {"CC": ["unknown too"]})

    assert [get(wire, known) is not None for _ in range(2)] == [True, False]
    assert [get(wire, left) is not None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(
    "value", ["text", 5, ["good", 5], [["deep"]], {"a": "b"}, [None]],
    ids=["string", "int", "int-in-array", "array-in-array", "table", "void-in-array"],
)  # fmt: skip
def test_a_header_that_is_no_array_of_strings_is_refused_and_nothing_is_stored(
    wire: Wire, unique: UniqueName, header: str, value: object
) -> None:
    """edge-cases.md 96"""
    queue = unique("q")
    declare(wire, queue)

    publish(wire, "", queue, {header: value})

    close = wire.expect_channel_close(1, 406)
    assert close.reply_text == f"PRECONDITION_FAILED - {header} header not a string array"
    assert (close.class_id, close.method_id) == (60, 40)
    wire.open_channel(1)
    assert get(wire, queue) is None


def test_void_copies_count_as_absent(wire: Wire, unique: UniqueName) -> None:
    queue = unique("q")
    declare(wire, queue)

    publish(wire, "", queue, {"CC": None, "BCC": None})

    assert headers_of(get(wire, queue)) == {"CC": None}
