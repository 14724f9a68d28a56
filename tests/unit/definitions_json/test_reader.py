"""Reading documents of definitions: piece by piece, with refusals that name the place."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.definitions_json.document import Document
from lavinmq.definitions_json.entry import DefinitionsRefused, Entry, doubt, table
from lavinmq.definitions_json.reader import (
    WHOLE,
    MalformedError,
    NotAnObjectError,
    TooLongError,
    TooRichError,
    members,
)
from lavinmq.fieldtable import FieldTableError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
)  # fmt: skip


@given(value=st.dictionaries(st.text(), JSON), indent=st.none() | st.integers(0, 2))
def test_the_pieces_of_an_object_add_up_to_it(value: dict[str, Any], indent: int | None) -> None:
    content = json.dumps(value, indent=indent, ensure_ascii=bool(indent)).encode(
        "utf-8", "surrogatepass"
    )

    found: dict[str, Any] = {}
    lists: dict[str, list[Any]] = defaultdict(list)
    for key, position, each in members(content):
        if position == WHOLE:
            found[key] = each
        else:
            assert position == len(lists[key])
            lists[key].append(each)

    assert found | lists == {key: each for key, each in value.items() if each != []}


@given(content=st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused_as_json_itself_does(content: bytes) -> None:
    try:
        value = json.loads(content.decode("utf-8-sig"), parse_constant=lambda _name: 1 / 0)
        is_object = isinstance(value, dict)
    except (ValueError, ZeroDivisionError):
        is_object = False

    try:
        list(members(content))
    except (MalformedError, NotAnObjectError):
        assert not is_object
    else:
        assert is_object


@given(value=st.dictionaries(st.text(), JSON), piece=st.integers(1, 9))
def test_it_does_not_matter_where_the_bytes_are_cut(value: dict[str, Any], piece: int) -> None:
    content = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")

    with pytest.MonkeyPatch.context() as short:
        short.setattr("lavinmq.definitions_json.reader.PIECE", piece)
        in_pieces = list(members(content))

    assert in_pieces == list(members(content))


@pytest.mark.parametrize(
    "number", [b"1", b"12.5", b"-0.5e-7", b"1e+5", b"1E9"]
)  # what is before the cut is a number as well
def test_a_number_that_is_cut_anywhere_is_read_whole(number: bytes) -> None:
    for piece in range(1, 12):
        with pytest.MonkeyPatch.context() as short:
            short.setattr("lavinmq.definitions_json.reader.PIECE", piece)
            assert list(members(b'{"a":' + number + b"}")) == [("a", WHOLE, json.loads(number))]


def test_an_element_that_is_too_long_is_not_read() -> None:
    """It would be parsed in one go, whatever is in it."""
    content = b'{"a":[' + b"[1]," * 100_000 + b'"' + b"x" * 1_000_000 + b'"]}'

    with pytest.raises(TooLongError):
        list(members(content, 10_000))


@pytest.mark.parametrize(
    "element", [b"[" + b"[1]," * 11 + b"1]", b'{"b":[' + b"1," * 31 + b"1]}", b"[" * 31]
)
def test_an_element_with_too_many_values_is_not_parsed(element: bytes) -> None:
    """Nor one that has no end."""
    content = b'{"a":[' + element + b"]}"

    with pytest.raises(TooRichError):
        list(members(content, 1000, 30))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 16])
def test_what_is_counted_is_read_as_ever(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in strings are none, wherever a string is cut."""
    monkeypatch.setattr("lavinmq.definitions_json.reader.PIECE", piece)
    element = {"b": ["]]", '\\"}', "\\\\", {"[": None}], 'c"': [[], {}, 1.5]}
    content = json.dumps({"a": [element, element], "d": 5}).encode()

    assert list(members(content, 200, 30)) == [("a", 0, element), ("a", 1, element), ("d", -1, 5)]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{"a":[1,]}', b'{"a":[1',
     b'{"a":[1 2]}', b'{"a" 1}', b"{1:2}", b'{"a":1}}', b'{"a":Infinity}', b'{"a":1"b":2}',
     b'{"a":' + b"[" * 10**5, b'{"a":' + b'{"a":' * 10**5, b'{"a":' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_cut_short_or_has_no_sense_is_malformed(content: bytes) -> None:
    with pytest.raises(MalformedError):
        list(members(content))


@pytest.mark.parametrize("piece", [1, 2, 5, 1 << 16])
@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        (b"nojson", 1, 1),
        (b"", 1, 1),
        (b'\xef\xbb\xbf{"a": 1 "b": 2}', 1, 9),
        (b'{"a": [1,\n\n  2 3]}', 3, 5),
        ('{"é": "ü",\r\n "☃": "☃☃" 5}'.encode(), 2, 12),
        (b'{"a": [\n{"b": 1,\n "c" 2}]}', 3, 6),
        (b'{"a":\n [1, 2', 2, 7),
        (b'{"a": 1}\n{}', 2, 1),
        (b'{"a":\n"\xc3\xa9\xff"}', 2, 3),
        (b'{"a":\n  NaN}', 2, 3),
    ],
)
def test_the_place_of_what_is_malformed_is_told(
    monkeypatch: pytest.MonkeyPatch, piece: int, content: bytes, line: int, column: int
) -> None:
    """Lines and characters count from 1, wherever the bytes are cut."""
    monkeypatch.setattr("lavinmq.definitions_json.reader.PIECE", piece)

    with pytest.raises(MalformedError) as raised:
        list(members(content))

    assert (raised.value.line, raised.value.column) == (line, column)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1, ""), ([[{"a": []}]], ""), (10**40, ""),
        (float("inf"), "has a number that is out of range"),
        ({"a": [float("nan")]}, "has a number that is out of range"),
    ],
)  # fmt: skip
def test_what_could_not_be_written_again_is_doubted(value: object, why: str) -> None:
    assert doubt(value) == why


@pytest.mark.parametrize(("levels", "is_refused"), [(64, False), (65, True)])
def test_nesting_is_bounded(levels: int, is_refused: bool) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value]

    assert bool(doubt(value)) is is_refused


def test_integers_of_tables_have_64_bits() -> None:
    assert table({"n": 1, "in": {"n": [2]}}).raw == (
        b"\x01nl\0\0\0\0\0\0\0\x01"
        b"\x02inF\0\0\0\x10\x01nA\0\0\0\x09l\0\0\0\0\0\0\0\x02"
    )  # fmt: skip
    with pytest.raises(FieldTableError):
        table({"n": 2**63})


def read(document: dict[str, Any], vhost: str | None = None) -> Document:
    result = Document(vhost)
    for _ in result.read(json.dumps(document).encode()):
        pass
    result.refusals.check()
    return result


def test_entries_are_named_in_refusals() -> None:
    with pytest.raises(DefinitionsRefused, match=r"^queues\[1\] 'b': field 'durable' must be"):
        read({"queues": [{"name": "a"}, {"name": "b", "durable": 1}]})


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"queus": [{"name": "a"}, {"name": "b"}]}, [("queus", "queues")]),
        ({"binding": {}, "user": [1]}, [("binding", "bindings"), ("user", "users")]),
        ({"queus": None, "unknown_key": 1, "anything": [2]}, [("queus", "queues")]),
    ],
)
def test_a_misspelt_section_is_noted_once_with_the_one_that_was_meant(
    document: dict[str, Any], told: list[tuple[str, str]]
) -> None:
    reason = "unknown section, nothing of it is imported; did you mean '{}'?"

    assert read(document).notes == [(place, reason.format(meant)) for place, meant in told]


def test_what_brokers_write_beside_the_sections_is_not_complained_about() -> None:
    known = [
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "metadata",
        "rabbitmq_definition_format",
        "original_cluster_name",
        "original_vhost_name",
        "explanation",
        "description",
        "default_queue_type",
        "limits",
        "lavinmq_version",
    ]
    document: dict[str, Any] = dict.fromkeys(known, "x") | {"users": [], "topic_permissions": []}

    assert read(document).notes == []
    assert read({"users": [5], "topic_permissions": [5], "global_parameters": []}, "v").notes == []


def test_misspelt_sections_are_not_noted_for_ever() -> None:
    assert len(read({f"queues{number}": 1 for number in range(1500)}).notes) == 1000


def test_a_document_is_refused_with_all_its_bad_entries() -> None:
    document = {"queues": [{"name": ""}, {"name": "good"}, {"name": "b", "durable": 1}],
                "users": [{"name": "u", "tags": 5}], "vhosts": 7}  # fmt: skip

    with pytest.raises(DefinitionsRefused) as raised:
        read(document)

    assert [remark.place for remark in raised.value.remarks] == [
        "queues[0] ''", "queues[2] 'b'", "users[0] 'u'", "",
    ]  # fmt: skip
    assert str(raised.value).count("; ") == 3


def test_a_text_about_many_bad_entries_is_short() -> None:
    with pytest.raises(DefinitionsRefused) as raised:
        read({"queues": [{"name": ""}] * 40})

    assert len(raised.value.remarks) == 40
    assert str(raised.value).endswith("; and 30 more")


def test_nobody_looks_for_bad_entries_for_ever() -> None:
    with pytest.raises(DefinitionsRefused) as raised:
        read({"queues": [{"name": ""}] * 5000})

    assert len(raised.value.remarks) == 1000


def test_bad_entries_can_be_left_out() -> None:
    result = Document(is_skipping=True)
    content = json.dumps({"queues": [{"name": ""}] * 1500 + [{"name": "good"}]}).encode()
    for _ in result.read(content):
        pass

    result.refusals.check()

    assert [item.thing.name for item in result.queues] == ["good"]
    assert len(result.refusals.found) == 1500


def test_for_one_vhost_the_other_sections_are_not_even_looked_at() -> None:
    document = read({"users": [5], "vhosts": {}, "queues": [{"name": "a", "vhost": 5}]}, "v")

    assert [(item.vhost, item.thing.name) for item in document.queues] == [("v", "a")]
    assert document.users == document.vhosts == []


def test_bytes_that_are_no_utf8_come_back_as_exports_escape_them() -> None:
    binding = {"source": "a", "destination": "b", "routing_key": "\udcff\udcc3\udca9"}

    (item,) = read({"bindings": [binding]}).bindings

    assert item.thing.routing_key == "\udcffé"


def test_a_document_lets_go_of_one_entry_in_each_step() -> None:
    queues = [{"name": f"q{number}", "vhost": "/", "durable": True} for number in range(5)]
    document = read({"queues": queues, "vhosts": [{"name": "/"}]})

    left = [len(document.queues) + len(document.vhosts) for _ in document.emptied()]

    assert left == [5, 4, 3, 2, 1, 0]


def test_objects_may_be_lists_of_pairs_as_rabbitmqctl_writes_them() -> None:
    entry = Entry("parameters[0]", {"value": [["message-ttl", 86400000]], "limits": []})

    assert entry.object("value") == {"message-ttl": 86400000}
    assert entry.object("limits") == {}


@pytest.mark.parametrize("value", [[1], [["only-a-key"]], [[1, 2]], "text"])
def test_other_lists_are_no_objects(value: object) -> None:
    with pytest.raises(DefinitionsRefused, match="field 'value' must be an object"):
        Entry("parameters[0]", {"value": value}).object("value")
