"""Arguments of streams: what a declaration may say, where a consumer begins, and what it wants.

Called by `arguments/queue.py` and `amqp/channel.py`; the results go to the message path, which
reads them once. Texts of refusals are part of the protocol.
Source: docs/streams.md.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from lavinmq.arguments.interval import interval_ms
from lavinmq.arguments.keys import Kind, arguments_of_queues
from lavinmq.arguments.names import failed
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable, Timestamp, Value

FORBIDDEN: Final = (
    *(
        name for name, key in arguments_of_queues().items()
        if Kind.STREAM not in key.kinds and not key.is_ignored_on_streams
    ),
    "x-single-active-consumer", "x-max-priority",
)  # fmt: skip
"""Arguments that a stream cannot have."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_GENERATED: Final = "amq.ctag-"
_TIME: Final = "%Y-%m-%d %H:%M:%S UTC"

Condition: TypeAlias = tuple[Any, ...]
"""As `_core.Consumer.read_stream` takes it."""
Start: TypeAlias = "str | int | tuple[int]"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a consumer reads a stream; the fields are those of `_core.Consumer.read_stream`, unless
    they say otherwise."""

    start: Start
    is_tracked: bool
    uses_stored: bool
    conditions: list[Condition] = field(default_factory=list)
    is_any: bool = False
    takes_unfiltered: bool = False
    end: int = 0
    tells_time: bool = False
    tells_epoch: bool = False
    epoch: int = 0
    """In which the consumer has come to its offset, 0 = it does not say. Not for `_core`."""


def is_stream(arguments: FieldTable) -> bool:
    """Whether a queue with these arguments is a stream."""
    return arguments.get("x-queue-type") == "stream"


def check_declaration(
    durable: bool, exclusive: bool, auto_delete: bool, arguments: FieldTable
) -> None:
    """Refuse what a stream cannot be. Raises: ChannelError 406."""
    if exclusive:
        raise failed("A stream cannot be exclusive")
    if auto_delete:
        raise failed("A stream cannot be auto-delete")
    if not durable:
        raise failed("A stream cannot be non-durable")
    for name in FORBIDDEN:
        if arguments.get(name) is not None:
            raise failed(f"Argument {name} not allowed for streams")


def check_consumer(
    exclusive: bool, no_ack: bool, prefetch: tuple[int, int], arguments: FieldTable
) -> None:
    """Refuse a consumer that a stream cannot have. Raises: ChannelError 406.

    Args: prefetch: of the consumer, and of its channel; 0 = none.
    """
    if exclusive:
        raise failed("Stream consumers must not be exclusive")
    if no_ack:
        raise failed("Stream consumers must acknowledge messages")
    if not prefetch[0]:
        raise failed("Stream consumers must have a prefetch limit")
    if prefetch[1]:
        raise failed("Stream consumers does not support global prefetch limit")
    if "x-priority" in arguments:
        raise failed("x-priority not supported on streams")


def reading(tag: str, arguments: FieldTable, now_ms: int, max_conditions: int) -> Reading:
    """How the consumer with this tag reads. Raises: ChannelError 406."""
    offset = arguments.get("x-stream-offset")
    wanted = arguments.get("x-stream-automatic-offset-tracking")
    is_tracked = offset is None or wanted is True or wanted == "true"
    is_tracked = is_tracked and not tag.startswith(_GENERATED)
    conditions = _bounded(_conditions(arguments.get("x-stream-filter")), max_conditions)
    epoch = arguments.get("x-stream-epoch")
    return Reading(
        _start(offset, now_ms), is_tracked, is_tracked, conditions,
        _is_any(arguments), _flag("x-stream-match-unfiltered", arguments),
        _end(arguments.get("x-stream-end-offset")), _flag("x-stream-timestamp", arguments),
        epoch is not None and epoch is not False, _epoch(epoch, offset),
    )  # fmt: skip


def _start(offset: Value, now_ms: int) -> Start:
    if offset is None:
        return "first"
    if isinstance(offset, Timestamp):
        return (int(offset) * 1000,)
    if isinstance(offset, int) and not isinstance(offset, bool):
        return int(offset)
    if isinstance(offset, str):
        if offset in ("first", "next", "last"):
            return offset
        age = interval_ms(offset)
        if age is not None:
            return (now_ms - age,)
    raise failed("x-stream-offset must be an integer, a timestamp, 'first', 'next' or 'last'")


def _end(offset: Value) -> int:
    """The first offset that is not wanted, 0 = there is none."""
    if offset is None:
        return 0
    is_offset = isinstance(offset, int) and not isinstance(offset, bool | Timestamp)
    if not is_offset or not 0 < offset < 1 << 63:  # type: ignore[operator]
        raise failed("x-stream-end-offset must be a positive integer")
    return int(offset)  # type: ignore[arg-type]


def _epoch(epoch: Value, offset: Value) -> int:
    """The epoch to compare, 0 = none; `offset` is where the consumer wants to begin."""
    if epoch is None or isinstance(epoch, bool):
        return 0
    if not isinstance(epoch, int) or isinstance(epoch, Timestamp) or epoch <= 0:
        raise failed("x-stream-epoch must be a boolean or a positive integer")
    if not isinstance(offset, int) or isinstance(offset, bool | Timestamp) or offset < 0:
        raise failed("x-stream-epoch needs an offset in x-stream-offset, not below 0")
    return int(epoch)


# --- filters ----------------------------------------------------------------------------------


def _is_any(arguments: FieldTable) -> bool:
    value = arguments.get("x-filter-match-type")
    if value is None:
        return False
    if not isinstance(value, str) or value.lower() not in ("any", "all"):
        raise failed("x-filter-match-type must be 'any' or 'all'")
    return value.lower() == "any"


def _flag(name: str, arguments: FieldTable) -> bool:
    value = arguments.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise failed(f"{name} must be a boolean")
    return value


def _bounded(conditions: Iterator[Condition], most: int) -> list[Condition]:
    """All of them: each costs time for every message. The points of a polygon count, too."""
    found = []
    for condition in conditions:
        most -= len(condition[1]) if condition[0] == "polygon" else 1
        if most < 0:
            raise failed("x-stream-filter has more conditions than max_filter_conditions allows")
        found.append(condition)
    return found


def _conditions(value: Value) -> Iterator[Condition]:
    if value is None:
        return
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, str):
            yield from _values(item)
        elif isinstance(item, Mapping):
            for key, wanted in item.items():
                yield from _entry(key, wanted)
        else:
            raise failed("x-stream-filter must be a string, table, or array")


def _entry(key: str, wanted: Value) -> Iterator[Condition]:
    if key in _GEO:
        if not isinstance(wanted, Mapping):
            raise failed(f"Expected AMQ::Protocol::Table for {key}")
        yield _GEO[key](key, wanted)
    elif key == "x-stream-filter":
        yield from _values(_text(wanted))
    else:
        text = _text(wanted)
        yield "header", _raw(key), _raw(text), _forms(text)


def _values(text: str) -> Iterator[Condition]:
    for part in text.split(","):
        value = part.strip()
        if value:
            yield "value", _raw(value), _forms(value)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(value: Value) -> str:
    """The text form of a value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return _time_text(value) or str(int(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    raise failed("x-stream-filter values must be strings, numbers, booleans or timestamps")


def _time_text(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(_TIME)
    except (ValueError, OverflowError, OSError):
        return None


def _forms(text: str) -> dict[str, Any]:
    """The values that have this text form, so that nobody has to make texts of headers."""
    forms: dict[str, Any] = {}
    if text in ("true", "false"):
        forms["boolean"] = text == "true"
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        if str(int(text)) == text and int(text) in _INT64:
            forms["integer"] = int(text)
    elif re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text, re.ASCII):
        number = float(text)
        if repr(number) == text:
            forms["number"] = number
            if abs(number) < 3e38:
                # A header of 32 bits with this text is the nearest one to it.
                forms["number32"] = struct.unpack("<f", struct.pack("<f", number))[0]
    else:
        try:
            when = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
        except ValueError:
            return forms
        if when.strftime(_TIME) == text:
            forms["seconds"] = int(when.timestamp())
    return forms


def _bad(key: str, why: str) -> ChannelError:
    return failed(f"Invalid value for filter {key}: {why}")


def _number(key: str, table: Mapping[str, Value], name: str) -> float:
    if name not in table:
        raise _bad(key, f'Missing hash key: "{name}"')
    return _coordinate(key, table[name], name)


def _coordinate(key: str, value: Value, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool | Timestamp)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        raise _bad(key, f"{name} must be a number")
    return float(value)  # type: ignore[arg-type]


def _check_place(key: str, lat: float, lon: float) -> None:
    if not -90 <= lat <= 90:
        raise _bad(key, "Latitude must be between -90 and 90")
    if not -180 <= lon <= 180:
        raise _bad(key, "Longitude must be between -180 and 180")


def _radius(key: str, table: Mapping[str, Value]) -> Condition:
    lat, lon, radius = (_number(key, table, name) for name in ("lat", "lon", "radius_km"))
    _check_place(key, lat, lon)
    if radius <= 0:
        raise _bad(key, "Radius must be positive")
    return "radius", lat, lon, radius


def _box(key: str, table: Mapping[str, Value]) -> Condition:
    names = ("min_lat", "max_lat", "min_lon", "max_lon")
    low_lat, high_lat, low_lon, high_lon = (_number(key, table, name) for name in names)
    _check_place(key, low_lat, low_lon)
    _check_place(key, high_lat, high_lon)
    if low_lat > high_lat:
        raise _bad(key, "min_lat must be less than or equal to max_lat")
    if low_lon > high_lon:
        raise _bad(key, "min_lon must be less than or equal to max_lon")
    return "box", low_lat, high_lat, low_lon, high_lon


def _polygon(key: str, table: Mapping[str, Value]) -> Condition:
    if "points" not in table:
        raise _bad(key, 'Missing hash key: "points"')
    points = table["points"]
    if not isinstance(points, list | tuple):
        raise _bad(key, "points must be an array")
    places = []
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise _bad(key, "each point must be an array of latitude and longitude")
        lat, lon = _coordinate(key, point[0], "latitude"), _coordinate(key, point[1], "longitude")
        _check_place(key, lat, lon)
        places.append((lat, lon))
    if len(places) < 3:
        raise _bad(key, f"Polygon must have at least 3 points, got {len(places)}")
    return "polygon", places


_GEO: Final = {"geo-within-radius": _radius, "geo-bbox": _box, "geo-polygon": _polygon}
"""Filters on where a message says that it belongs."""
