"""Columns of a row that is to be published: which are used, and as what the encoder takes them.

`check` is called where the query is planned, with the names and types of the input, so that a
mistake is found before anything is sent; `prepare` for each batch of a task. Casting is by column,
never by row, but for `headers_json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lavinmq.spark.headers_json import encode_table
from lavinmq.spark.options import OptionError, SinkOptions
from lavinmq.spark.schema import SEGMENT_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = (
    *("exchange", "routing_key", "content_type", "content_encoding", "correlation_id"),
    *("reply_to", "expiration", "message_id", "type", "user_id", "app_id"),
)
NUMBERS = ("delivery_mode", "priority")
ORIGIN = ("queue", "offset")
# Where and when a row of a source was read is not sent, unless keepOrigin asks for it.
PASSED_OVER = ("queue", "offset", "timestamp")

DEDUP_HEADER = "x-deduplication-header"
ORIGIN_HEADERS = ("x-origin-queue", "x-origin-offset")

# Types as Spark's `simpleString` says them.
INTEGERS = ("tinyint", "smallint", "int", "bigint")
ALLOWED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TEXTS, ("string",)),
    **dict.fromkeys(NUMBERS, INTEGERS),
    "body": ("binary", "string"),
    "message_timestamp": ("timestamp",),
    "headers": ("map<string,string>",),
    "headers_json": ("string",),
    "queue": ("string",),
    "offset": INTEGERS,
    "timestamp": ("timestamp",),
}
ID_TYPES = ("string", "binary", *INTEGERS)


def check(fields: Iterable[tuple[str, str]], options: SinkOptions) -> None:
    """Refuse columns that cannot be published.

    Args: fields: name and Spark type of each column. Raises: OptionError, one line that names it.
    """
    types = dict(fields)
    for name, kind in types.items():
        if name == options.id_column:
            _check_type(f"idColumn {name}", kind, ID_TYPES)
        elif name in ALLOWED:
            _check_type(f"column {name}", kind, ALLOWED[name])
        elif not options.ignore_extra_columns:
            raise OptionError(_extra(name))
    if "body" not in types:
        raise OptionError("there is no column body to publish")
    is_addressed = options.exchange or options.routing_key is not None
    if not is_addressed and not {"exchange", "routing_key"} & types.keys():
        raise OptionError("give the option routingKey or exchange, or a column of either")
    if {"headers", "headers_json"} <= types.keys():
        raise OptionError("there are the columns headers and headers_json; drop one of them")
    if options.id_column is not None and options.id_column not in types:
        raise OptionError(f"there is no column {options.id_column}, which idColumn names")
    if options.keep_origin and (missing := [name for name in ORIGIN if name not in types]):
        raise OptionError(f"keepOrigin needs the column {missing[0]}")


def prepare(batch: pa.RecordBatch, options: SinkOptions) -> dict[str, Any]:
    """Return the columns of a batch that are published, as `Encoder.load` takes them."""
    import pyarrow as pa

    taken: dict[str, pa.Array] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name == options.id_column:
            taken["id"] = _text(array)
        if name in ORIGIN and options.keep_origin:
            taken[name] = _text(array) if name == "queue" else array.cast(pa.int64())
        elif name in TEXTS or name == "body":
            taken[name] = _text(array)
        elif name in NUMBERS:
            taken[name] = array.cast(pa.int64())
        elif name == "message_timestamp":
            taken[name] = _seconds(array)
        elif name == "headers":
            taken[name] = _map(array)
        elif name == "headers_json":
            taken["table"] = _tables(array, ours(options))
    return taken


def ours(options: SinkOptions) -> tuple[str, ...]:
    """Names of the headers that the sink writes: a row's own ones of these names are left out."""
    dedup = () if options.dedup == "none" else (DEDUP_HEADER,)
    return dedup + (ORIGIN_HEADERS if options.keep_origin else ())


def _check_type(what: str, kind: str, allowed: tuple[str, ...]) -> None:
    if kind not in allowed:
        raise OptionError(f"{what} is of type {kind}, it has to be {' or '.join(allowed)}")


def _extra(name: str) -> str:
    hint = "ignoreExtraColumns=true leaves it out"
    if name in SEGMENT_COLUMNS:
        return f"column {name} tells where a row is from and is not published; {hint}"
    known = ", ".join((*TEXTS, "body", *NUMBERS, "message_timestamp", "headers", "headers_json"))
    return f"column {name} is no part of a message; {hint}; there are: {known}"


def _text(array: pa.Array) -> pa.Array:
    """Strings or binaries with offsets, whatever they came as; numbers in digits."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    kind = str(array.type)
    if kind in ("string", "binary", "large_string", "large_binary"):
        return array
    if kind in ("binary_view", "fixed_size_binary") or pa.types.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array.cast(pa.large_string())


def _seconds(array: pa.Array) -> pa.Array:
    """AMQP's timestamps are in seconds; fractions are cut off."""
    import pyarrow as pa

    seconds = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False)
    return seconds.cast(pa.int64())


def _map(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    wanted = pa.map_(pa.string(), pa.string())
    return array if str(array.type) == "map<string, string>" else array.cast(wanted)


def _tables(array: pa.Array, left_out: tuple[str, ...]) -> pa.Array:
    """Encode typed headers; rows with the same text as others, as most have, cost a look-up."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    tables = [
        None if text is None else encode_table(text, left_out)
        for text in array.dictionary.to_pylist()
    ]
    encoded = pa.array(tables, pa.large_binary())
    return encoded.take(array.indices)
