"""The columns of a message in Spark and in Arrow: one table, and what is made from it.

Spark checks the Arrow schema of the first batch to the letter, so both sides come from here. Types
are names: pyarrow is imported when a schema is asked for. Columns nobody selects cost as much as
the others (Spark asks for the declared schema, always), hence projection by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lavinmq.spark.option_values import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Name: type in Spark, type in Arrow; in the order of the full schema. Any may be null.
COLUMNS: Mapping[str, tuple[str, str]] = {
    "queue": ("string", "string"),
    "offset": ("bigint", "int64"),
    "timestamp": ("timestamp", "timestamp[us, UTC]"),
    "exchange": ("string", "string"),
    "routing_key": ("string", "string"),
    "body": ("binary", "binary"),
    "content_type": ("string", "string"),
    "content_encoding": ("string", "string"),
    "delivery_mode": ("tinyint", "int8"),
    # Publishers send 0 to 255, which a tinyint cannot hold.
    "priority": ("smallint", "int16"),
    "correlation_id": ("string", "string"),
    "reply_to": ("string", "string"),
    "expiration": ("string", "string"),
    "message_id": ("string", "string"),
    "type": ("string", "string"),
    "user_id": ("string", "string"),
    "app_id": ("string", "string"),
    "message_timestamp": ("timestamp", "timestamp[us, UTC]"),
    "headers": ("map<string,string>", "map<string,string>"),
    "headers_json": ("string", "string"),
}

# What files of a data directory tell beyond that.
SEGMENT_COLUMNS: Mapping[str, tuple[str, str]] = {
    **COLUMNS,
    "vhost": ("string", "string"),
    "segment": ("int", "int32"),
    "position": ("bigint", "int64"),
    "acked": ("boolean", "bool"),
    "queue_type": ("string", "string"),
}

# The column that each value of the option includeHeaders adds.
HEADER_COLUMNS: Mapping[str, str] = {"true": "headers", "json": "headers_json"}


def default_columns(
    include_headers: str = "false", columns: Mapping[str, tuple[str, str]] = COLUMNS
) -> tuple[str, ...]:
    """Return the names of all columns, with those headers only that are asked for."""
    left_out = set(HEADER_COLUMNS.values()) - {HEADER_COLUMNS.get(include_headers)}
    return tuple(name for name in columns if name not in left_out)


def check_columns(
    names: Iterable[str], columns: Mapping[str, tuple[str, str]] = COLUMNS
) -> tuple[str, ...]:
    """Return the names. Raises ValueError for an unknown one, one named twice, or none."""
    chosen = tuple(names)
    for name in chosen:
        if name not in columns:
            raise ValueError(f"unknown column {name!r}; there are: {', '.join(columns)}")
        if chosen.count(name) > 1:
            raise ValueError(f"column {name!r} is named twice")
    if not chosen:
        raise ValueError(f"no column is named; there are: {', '.join(columns)}")
    return chosen


def columns_of(
    schema: StructType, columns: Mapping[str, tuple[str, str]] = COLUMNS
) -> tuple[str, ...]:
    """Return the names of a schema, which may be the user's. Raises OptionError."""
    try:
        names = check_columns(schema.fieldNames(), columns)
    except ValueError as error:
        raise OptionError(f"schema: {error}") from None
    for field in schema.fields:
        given, wanted = field.dataType.simpleString(), columns[field.name][0]
        if given != wanted:
            raise OptionError(f"schema: column {field.name!r} is {wanted}, not {given}")
        if not field.nullable:
            raise OptionError(f"schema: column {field.name!r} may be null; leave NOT NULL out")
    return names


def ddl(names: Iterable[str], columns: Mapping[str, tuple[str, str]] = COLUMNS) -> str:
    """Return the Spark schema of these columns, in their order, as Spark's DDL."""
    return ", ".join(f"`{name}` {columns[name][0]}" for name in names)


def arrow_schema(
    names: Iterable[str], columns: Mapping[str, tuple[str, str]] = COLUMNS
) -> pa.Schema:
    """Return the Arrow schema of these columns, in their order; what Spark makes of their `ddl`."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "bool": pa.bool_(),
        "int8": pa.int8(),
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[columns[name][1]]) for name in names])
