"""The method codec: against pamqp, against recorded bytes, and against any bytes at all."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from lavinmq.amqp import methods
from lavinmq.amqp.codec import CUT_SHORT, Method
from lavinmq.amqp.methods import MalformedMethod, UnknownMethod
from lavinmq.fieldtable import EMPTY, FieldTable

SUPPORTED = [method for method in methods.METHODS.values() if method.SUPPORTED]
SHARED = [m for m in SUPPORTED if struct.unpack(">I", m.IDS)[0] in commands.INDEX_MAPPING]

PER_METHOD = 15  # examples for each of some sixty methods

# Names and text that pamqp can write: it has a stricter idea of most of them.
_names = st.text("abcXYZ019-_.:", max_size=40)
_tables = st.dictionaries(
    _names, st.booleans() | st.integers(-(2**63), 2**63 - 1) | _names | st.none(), max_size=4
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 0xFF),
    "short": st.integers(0, 0xFFFF),
    "long": st.integers(0, 0xFFFFFFFF),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": _names,
    "longstr": _names,
    "table": _tables,
}


def other_class(method: type[Method]) -> Any:
    """The class of pamqp for one of ours."""
    return commands.INDEX_MAPPING[struct.unpack(">I", method.IDS)[0]]


def peer_values(method: type[Method]) -> st.SearchStrategy[list[Any]]:
    """Arguments of pamqp's class, in order; reserved ones have their only legal value."""
    other = other_class(method)
    has_reserved = any(name.startswith("reserved") for name in method.FIELDS)
    defaults = other() if has_reserved else None
    return st.tuples(
        *(
            st.just(getattr(defaults, name))
            if ours.startswith("reserved")
            else _VALUES[other.amqp_type(name)]
            for name, ours in zip(other.__slots__, method.FIELDS, strict=True)
        )
    ).map(list)


def ours(method: type[Method], values: list[Any]) -> Method:
    """Our method with the values of pamqp's: a long string is bytes, a table a FieldTable."""
    other = other_class(method)
    kinds = [other.amqp_type(name) for name in other.__slots__]
    convert = {"longstr": lambda v: (v or "").encode(), "table": lambda v: FieldTable(v or {})}
    return method(
        *(convert.get(kind, lambda v: v)(value) for kind, value in zip(kinds, values, strict=True))
    )


@pytest.mark.parametrize("method", SHARED, ids=lambda method: method.NAME)
@settings(max_examples=PER_METHOD, deadline=None)
@given(data=st.data())
def test_methods_written_by_pamqp_are_understood(method: type[Method], data: st.DataObject) -> None:
    values = data.draw(peer_values(method))

    payload = method.IDS + other_class(method)(*values).marshal()

    assert methods.decode(payload) == ours(method, values)


@pytest.mark.parametrize("method", SHARED, ids=lambda method: method.NAME)
@settings(max_examples=PER_METHOD, deadline=None)
@given(data=st.data())
def test_methods_are_written_so_that_pamqp_understands(
    method: type[Method], data: st.DataObject
) -> None:
    values = data.draw(peer_values(method))
    other = object.__new__(other_class(method))

    other.unmarshal(methods.encode(ours(method, values))[4:])

    assert [getattr(other, name) or None for name in other.__slots__] == [v or None for v in values]


def test_every_method_of_pamqp_is_known() -> None:
    known = {struct.unpack(">I", method.IDS)[0] for method in methods.METHODS.values()}

    assert known > commands.INDEX_MAPPING.keys()


_any_text = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_any_values = _VALUES | {
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": _any_text,
    "longstr": st.binary(max_size=300),
    "table": _tables.map(FieldTable),
}


@pytest.mark.parametrize("method", SUPPORTED, ids=lambda method: method.NAME)
@settings(max_examples=PER_METHOD, deadline=None)
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same_method(
    method: type[Method], data: st.DataObject
) -> None:
    domains = [hint.__metadata__[0] for hint in method.__annotations__.values()]
    message = method(*(data.draw(_any_values[domain]) for domain in domains))

    decoded = methods.decode(methods.encode(message))

    assert decoded == message
    assert type(decoded) is method


def test_a_recorded_queue_declare_is_decoded() -> None:
    declared = methods.decode(
        bytes.fromhex("0032000a0000066f726465727302000000130d782d6d6573736167652d74746c490000ea60")
    )

    assert isinstance(declared, methods.QueueDeclare)
    assert (declared.queue, declared.durable, declared.exclusive) == ("orders", True, False)
    assert declared.arguments == {"x-message-ttl": 60000}
    assert declared.arguments.raw == bytes.fromhex("0d782d6d6573736167652d74746c490000ea60")
    assert declared == methods.QueueDeclare(
        queue="orders", durable=True, arguments=FieldTable({"x-message-ttl": 60000})
    )


def test_a_frame_is_encoded_as_recorded() -> None:
    frame = methods.encode_frame(1, methods.QueueDeclareOk("q1", 0, 0))

    assert frame == bytes.fromhex("0100010000000f0032000b0271310000000000000000ce")


def test_a_short_string_that_claims_less_than_was_sent_names_the_byte_found() -> None:
    payload = bytes.fromhex("003c00280000002c") + b"k" * 300 + b"\x00"

    with pytest.raises(MalformedMethod) as caught:
        methods.decode(payload)

    assert caught.value.why == "Frame-end was 107, expected 206"
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


DECLARE = methods.encode(methods.QueueDeclare(queue="q", arguments=FieldTable({"a": "b"})))


@pytest.mark.parametrize("size", range(len(DECLARE)))
def test_arguments_that_are_too_short_are_refused(size: int) -> None:
    with pytest.raises(MalformedMethod, match=CUT_SHORT):
        methods.decode(DECLARE[:size])


def test_a_broken_table_says_what_is_wrong() -> None:
    payload = bytes.fromhex("0032000a0000027131000000000401615a01")

    with pytest.raises(MalformedMethod, match="Unknown field type 'Z'"):
        methods.decode(payload)


@pytest.mark.parametrize("ids", [(10, 99), (50, 60), (99, 10), (30, 10), (60, 100), (10, 21)])
def test_methods_that_are_not_supported_are_unknown(ids: tuple[int, int]) -> None:
    with pytest.raises(UnknownMethod) as caught:
        methods.decode(struct.pack(">HH", *ids) + b"any arguments")

    assert (caught.value.class_id, caught.value.method_id) == ids


@pytest.mark.parametrize(
    "message",
    [
        methods.QueueDeclareOk("q" * 256, 0, 0),
        methods.QueueDeclareOk("q", 2**32, 0),
        methods.QueueDeclareOk("q", -1, 0),
        methods.QueueDeclare(arguments=FieldTable({"k": 2**64})),
    ],
)
def test_arguments_that_do_not_fit_are_refused(message: Method) -> None:
    with pytest.raises(ValueError):
        methods.encode(message)


@settings(deadline=None)
@given(st.sampled_from(SUPPORTED), st.binary(max_size=120))
def test_any_arguments_decode_or_raise_a_declared_error(method: type[Method], raw: bytes) -> None:
    try:
        decoded = methods.decode(method.IDS + raw)
    except MalformedMethod as error:
        assert error.why
        return
    assert methods.decode(methods.encode(decoded)) == decoded


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_payload_decodes_or_raises_a_declared_error(payload: bytes) -> None:
    try:
        decoded = methods.decode(payload)
    except (MalformedMethod, UnknownMethod) as error:
        assert str(error)
        return
    assert payload[:4] == decoded.IDS


def test_methods_without_arguments_are_equal_only_to_their_own_kind() -> None:
    assert methods.TxSelectOk() == methods.TxSelectOk()
    assert methods.TxSelectOk() != methods.TxCommitOk()
    assert len({methods.TxSelectOk(), methods.TxCommitOk()}) == 2


def test_missing_unknown_and_surplus_arguments_are_refused() -> None:
    make: Any = methods.QueueDeclareOk
    for arguments, named in (((), {}), (("q", 1, 2, 3), {}), (("q", 1, 2), {"queues": 1})):
        with pytest.raises(TypeError):
            make(*arguments, **named)


def test_a_method_cannot_be_changed() -> None:
    message: Any = methods.QueueDeclare(queue="q")

    with pytest.raises(AttributeError):
        message.queue = "other"


def test_passwords_are_not_shown() -> None:
    login = methods.ConnectionStartOk(EMPTY, "PLAIN", b"\0guest\0secret")

    assert repr(login).startswith("connection.start-ok(client_properties={}, mechanism='PLAIN'")
    assert "secret" not in repr(login)


def test_names_are_those_of_the_specification() -> None:
    names = {method.NAME for method in methods.METHODS.values()}

    assert {"connection.update-secret-ok", "basic.get-empty", "queue.declare", "tx.select"} < names
