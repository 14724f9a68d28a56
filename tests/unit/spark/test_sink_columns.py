"""Columns that can be published, and what is made of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
from lavinmq.spark.options import OptionError, SinkOptions  # noqa: E402
from lavinmq.spark.schema import COLUMNS  # noqa: E402
from lavinmq.spark.sink_columns import check, prepare  # noqa: E402

URL = "amqp://localhost"
MAP = pa.map_(pa.string(), pa.string())


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"url": URL, "routingKey": "q", **given})


def test_a_row_of_the_source_can_be_published() -> None:
    fields = [(name, kind) for name, (kind, _) in COLUMNS.items() if name != "headers_json"]

    check(fields, options())
    check(fields, options(keepOrigin="true"))


@pytest.mark.parametrize(
    ("fields", "given", "text"),
    [
        ({}, {}, "no column body"),
        ({"body": "int"}, {}, "column body is of type int, it has to be binary or string"),
        ({"body": "binary", "colour": "int"}, {}, "column colour is no part of a message"),
        ({"body": "binary", "vhost": "string"}, {}, "column vhost tells where a row is from"),
        ({"body": "binary", "priority": "double"}, {}, "column priority is of type double"),
        ({"body": "binary", "headers": "map<string,int>"}, {}, "column headers is of type map"),
        (
            {"body": "binary", "headers": "map<string,string>", "headers_json": "string"},
            {},
            "headers and headers_json",
        ),
        ({"body": "binary"}, {"idColumn": "id"}, "no column id, which idColumn names"),
        ({"body": "binary", "id": "double"}, {"idColumn": "id"}, "idColumn id is of type double"),
        ({"body": "binary", "offset": "bigint"}, {"keepOrigin": "true"}, "needs the column queue"),
    ],
)
def test_other_columns_are_refused(
    fields: dict[str, str], given: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        check(fields.items(), options(**given))


def test_rows_need_an_address() -> None:
    bare = SinkOptions.parse({"url": URL})
    empty = SinkOptions.parse({"url": URL, "exchange": ""})

    for found in (bare, empty):
        with pytest.raises(OptionError, match="routingKey or exchange"):
            check([("body", "binary")], found)
    check([("body", "binary"), ("routing_key", "string")], bare)
    check([("body", "binary")], SinkOptions.parse({"url": URL, "exchange": "e"}))


def test_extra_columns_are_passed_over_when_that_is_asked_for() -> None:
    given = options(ignoreExtraColumns="true")
    check([("body", "binary"), ("colour", "int")], given)
    batch = pa.record_batch({"body": pa.array([b""]), "colour": pa.array([1])})

    assert set(prepare(batch, given)) == {"body"}


def test_columns_become_what_the_encoder_takes() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "id": pa.array([7], pa.int32()),
            "body": pa.array(["x"]).dictionary_encode(),
            "routing_key": pa.array(["k"]).dictionary_encode(),
            "type": pa.array(["t"], pa.string_view()),
            "priority": pa.array([3], pa.int32()),
            "message_timestamp": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.string())),
            "queue": pa.array(["s"]),
            "offset": pa.array([5]),
            "timestamp": pa.array([moment], pa.timestamp("us", tz="UTC")),
        }
    )

    found = prepare(batch, options(idColumn="id", keepOrigin="true"))

    values = {name: array.to_pylist()[0] for name, array in found.items()}
    assert values == {
        "id": "7",
        "body": "x",
        "routing_key": "k",
        "type": "t",
        "priority": 3,
        "message_timestamp": int(moment.timestamp()),
        "headers": [("a", "b")],
        "queue": "s",
        "offset": 5,
    }
    load_into_an_encoder(found)


def load_into_an_encoder(columns: dict[str, Any]) -> None:
    from lavinmq.spark._arrow import Encoder

    encoder = Encoder()
    encoder.load(columns, 1)
    assert encoder.encode(1) == 1


def test_typed_headers_are_encoded_once_for_each_text() -> None:
    texts = ['{"a":{"I":1},"x-origin-queue":{"S":"old"}}', None, '{"b":{"V":null}}'] * 3
    columns = {"body": pa.array([b""] * 9), "headers_json": pa.array(texts)}
    batch = pa.record_batch({**columns, "queue": ["q"] * 9, "offset": list(range(9))})

    (tables, kept) = (
        prepare(batch.slice(3, 3), options(keepOrigin=keep))["table"].to_pylist()
        for keep in ("true", "false")
    )

    assert tables == [b"\x01aI\0\0\0\x01", None, b"\x01bV"]
    assert kept[0] == b"\x01aI\0\0\0\x01\x0ex-origin-queueS\0\0\0\x03old"


def test_wrong_typed_headers_are_an_error_of_one_line() -> None:
    batch = pa.record_batch({"body": [b""], "headers_json": ['{"a":1}']})

    with pytest.raises(ValueError, match=r'headers_json \{"a":1\} is not typed: the value of'):
        prepare(batch, options())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"declare": "stream", "exchange": "e"}, "declare needs the default exchange"),
        ({"dedup": "id"}, "dedup=id needs idColumn"),
        ({"confirm": "true", "transactional": "true"}, "one of the options confirm and"),
        ({"confirmTimeout": "soon"}, "confirmTimeout"),
        ({"maxInFlight": "0"}, "maxInFlight"),
        ({"ratePerSecond": "0"}, "ratePerSecond"),
        ({"mandatroy": "true"}, "mandatory"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given)


def test_a_column_of_ids_means_deduplication_unless_that_is_said_otherwise() -> None:
    assert options(idColumn="id").dedup == "id"
    assert options(idColumn="id", dedup="none").dedup == "none"
    assert options().dedup == "none"
