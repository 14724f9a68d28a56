"""AMQP field tables: strict decoding, encoding, and comparison by meaning.

Used for the arguments of methods and for headers that the broker has to look into; headers that
nobody looks into are never decoded. Every length is checked before use and nesting is bounded, so
any bytes either decode or raise `FieldTableError`. Imports nothing of ours. The content of a
table is kept as it came: storing and forwarding use those bytes, not a new encoding.

Grammar (big-endian; a table on the wire is a uint32 byte length and this content):

    content = { key-length:u8 key-bytes type:u8 value }
    t bool u8    b int8   B uint8   s int16  u uint16  I int32  i uint32  l int64
    U int16      L int64  (as AMQP 0-9 peers mean them; never written)
    f float32    d float64          D decimal: scale u8, int32   (read as a double, never written)
    S string and x bytes: uint32 length, bytes       T timestamp int64 (seconds)
    A array: uint32 byte length, { type value }      F table: uint32 byte length, content   V void

Source: docs/protocol.md.
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeAlias, Union

MAX_DEPTH: Final = 64
"""Nested tables and arrays allowed in one table, itself included."""

MAX_KEY: Final = 255


class Timestamp(int):
    """Seconds since 1970, any int64. A type of its own: never equal to a plain number."""


class Long(int):
    """An integer that is written as int64 (`l`) even when it is small."""


Value: TypeAlias = Union[
    bool, int, float, str, bytes, Timestamp, "list[Value]", "tuple[Value, ...]",
    Mapping[str, "Value"], None,
]  # fmt: skip


class FieldTableError(ValueError):
    """The bytes are not a field table, or a value cannot be written as one."""


class FieldTable(dict[str, Value]):
    """A read-only table; made from Python values, or by `decode` from bytes.

    Equality and hash go by meaning (see `equal`), so a table can be part of a dictionary key.
    To change one, build a new one: `FieldTable({**table, "x": 1})`, or `amended` when the bytes
    of the other entries have to stay as they are.
    """

    # The bytes this table was decoded from. A nested table shares those of the outermost one:
    # copying at each level would let 64 levels multiply the memory of a small frame.
    __slots__ = ("_end", "_hash", "_source", "_start")
    _hash: int | None
    _source: bytes | None
    _start: int
    _end: int

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        super().__init__(values or {})
        self._hash = self._source = None
        self._start = self._end = 0

    @property
    def raw(self) -> bytes:
        """The content without its length, big-endian: as received, else encoded now.

        Raises: FieldTableError if a value of a table made from Python values cannot be written.
        """
        if self._source is None:
            self._source = _encode_content(self, 1)
            self._end = len(self._source)
        return self._source[self._start : self._end]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mapping):
            return NotImplemented
        return equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]  # read-only, so hashable unlike dict
        if self._hash is None:
            self._hash = hash(_canonical(self)) if self else _EMPTY_HASH
        return self._hash

    def _read_only(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("a FieldTable is read-only")

    __setitem__ = __delitem__ = __ior__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only

    def __copy__(self) -> "FieldTable":
        return self

    def __deepcopy__(self, _memo: object) -> "FieldTable":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return from_content, (self.raw,)


_EMPTY_HASH: Final = hash(frozenset())
EMPTY: Final = FieldTable()
"""The table without entries; read-only, so one is enough."""


def decode(data: bytes, offset: int = 0) -> tuple[FieldTable, int]:
    """Read a table with its length.

    Args: data: bytes, network order; offset: where the 4-byte length begins.
    Returns: the table and the offset behind it.
    Raises: FieldTableError if it is cut short, nested too deeply, or has an unknown type.
    """
    if offset < 0 or offset + 4 > len(data):
        raise FieldTableError("Field table has no length")
    (size,) = _UINT32.unpack_from(data, offset)
    start = offset + 4
    end = start + size
    if end > len(data):
        raise FieldTableError(f"Field table of {size} bytes is longer than the data")
    return from_content(bytes(data[start:end])), end


def from_content(content: bytes) -> FieldTable:
    """The table with these bytes as its content; they are kept as `raw`.

    Raises: FieldTableError as `decode` does.
    """
    return _table(content, 0, len(content), 1) if content else EMPTY


def count(content: bytes, limit: int) -> int:
    """The entries of a table with these bytes as its content, with those of tables and arrays in
    it; above the limit it stops counting.

    Nothing is decoded. Raises: FieldTableError where a length leads out of the table, or a type is
    unknown; what it does not raise for may still be no table.
    """
    found = 0
    inner = [(0, len(content), True)]
    while inner and found <= limit:
        offset, end, is_table = inner.pop()
        while offset < end and found <= limit:
            found += 1
            if is_table:
                offset = _checked(offset + 1, content[offset], end)
            kind, start, offset = _span(content, offset, end)
            if kind in (_TABLE, _ARRAY):
                inner.append((start, offset, kind == _TABLE))
    return found


def encode(mapping: Mapping[str, Value]) -> bytes:
    """The content of a table, without the length.

    Integers become `I` when they fit in 32 bits, else `l`; floats become `d`.
    Raises: FieldTableError if a key is too long, a value has no AMQP type or is out of range.
    """
    if isinstance(mapping, FieldTable):
        return mapping.raw
    return _encode_content(mapping, 1)


def equal(a: Value, b: Value) -> bool:
    """Whether two values mean the same: key order and integer width do not matter.

    Numbers compare by value, but a bool, a timestamp, a string and bytes each equal only their
    own kind; NaN equals NaN, so that a table is always equal to itself.
    """
    return bool(_canonical(a) == _canonical(b))


def amended(
    table: FieldTable, changes: Mapping[str, Value], removed: Collection[str] = ()
) -> FieldTable:
    """A table with some entries replaced, added or left out; the bytes of the others stay.

    Args: changes: entries to set, appended in their order; removed: keys to leave out.
    Raises: FieldTableError if a new value cannot be written.
    """
    raw = table.raw
    kept = [
        raw[start:end]
        for key, start, end in _entry_spans(raw)
        if key not in changes and key not in removed
    ]
    return from_content(b"".join(kept) + _encode_content(changes, 1))


# --- decoding ---------------------------------------------------------------------------------

_UINT32: Final = struct.Struct(">I")
_DECIMAL: Final = struct.Struct(">Bi")

_FIXED: Final = {
    ord(letter): struct.Struct(">" + code)
    for letter, code in zip("bBsuUIilLfd", "bBhHhiIqqfd", strict=True)
}
_BOOL, _STRING, _BYTES, _ARRAY, _TIME, _TABLE, _VOID, _DEC = b"tSxATFVD"
_INT64: Final = _FIXED[ord("l")]
_SIZES: Final = {kind: form.size for kind, form in _FIXED.items()} | {
    _BOOL: 1, _VOID: 0, _TIME: 8, _DEC: 5
}  # fmt: skip


def _table(data: bytes, start: int, end: int, depth: int) -> FieldTable:
    """Decode the table content data[start:end]; the bounds are within the data."""
    if depth > MAX_DEPTH:
        raise FieldTableError(f"Field table is nested deeper than {MAX_DEPTH} levels")
    values: dict[str, Value] = {}
    offset = start
    while offset < end:
        key, offset = _key(data, offset, end)
        values[key], offset = _value(data, offset, end, depth)
    table = FieldTable(values)
    table._source, table._start, table._end = data, start, end
    return table


def _key(data: bytes, offset: int, end: int) -> tuple[str, int]:
    """Read an entry's key; at least its length byte is there."""
    after = offset + 1 + data[offset]
    if after > end:
        raise FieldTableError("Field table key is cut short")
    return data[offset + 1 : after].decode("utf-8", "surrogateescape"), after


def _value(data: bytes, offset: int, end: int, depth: int) -> tuple[Value, int]:
    """Read a type letter and its value; nothing at or behind `end` is touched."""
    if offset >= end:
        raise FieldTableError("Field value is missing")
    kind = data[offset]
    offset += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        after = _checked(offset, fixed.size, end)
        value: Value = fixed.unpack_from(data, offset)[0]
        return value, after
    if kind in b"SxAF":
        return _sized_value(kind, data, offset, end, depth)
    if kind == _BOOL:
        after = _checked(offset, 1, end)
        return data[offset] != 0, after
    if kind == _VOID:
        return None, offset
    if kind == _TIME:
        after = _checked(offset, 8, end)
        return Timestamp(_INT64.unpack_from(data, offset)[0]), after
    if kind == _DEC:
        after = _checked(offset, 5, end)
        scale, digits = _DECIMAL.unpack_from(data, offset)
        return digits / 10**scale, after
    raise FieldTableError(f"Unknown field type {chr(kind)!r}")


def _sized_value(kind: int, data: bytes, offset: int, end: int, depth: int) -> tuple[Value, int]:
    """Read a value that begins with its byte length: a string, bytes, array or table."""
    start = _checked(offset, 4, end)
    (size,) = _UINT32.unpack_from(data, offset)
    after = _checked(start, size, end)
    if kind == _STRING:
        return data[start:after].decode("utf-8", "surrogateescape"), after
    if kind == _BYTES:
        return data[start:after], after
    if kind == _TABLE:
        return (_table(data, start, after, depth + 1) if size else EMPTY), after
    return _array(data, start, after, depth + 1), after


def _span(data: bytes, offset: int, end: int) -> tuple[int, int, int]:
    """Type of a value, where its content begins and where it ends."""
    if offset >= end:
        raise FieldTableError("Field value is missing")
    kind, offset = data[offset], offset + 1
    if kind in b"SxAF":
        start = _checked(offset, 4, end)
        return kind, start, _checked(start, _UINT32.unpack_from(data, offset)[0], end)
    size = _SIZES.get(kind)
    if size is None:
        raise FieldTableError(f"Unknown field type {chr(kind)!r}")
    return kind, offset, _checked(offset, size, end)


def _array(data: bytes, start: int, end: int, depth: int) -> "list[Value]":
    """Decode the array content data[start:end]; the bounds are within the data."""
    if depth > MAX_DEPTH:
        raise FieldTableError(f"Field table is nested deeper than {MAX_DEPTH} levels")
    values: list[Value] = []
    offset = start
    while offset < end:
        value, offset = _value(data, offset, end, depth)
        values.append(value)
    return values


def _checked(offset: int, size: int, end: int) -> int:
    """The offset behind `size` bytes, after making sure that they are there."""
    after = offset + size
    if after > end:
        raise FieldTableError(f"Field value is cut short: {size} bytes wanted, {end - offset} left")
    return after


def _entry_spans(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each entry of valid table content, in their order."""
    offset, end = 0, len(content)
    while offset < end:
        start = offset
        key, offset = _key(content, offset, end)
        _, offset = _value(content, offset, end, 1)
        yield key, start, offset


# --- encoding ---------------------------------------------------------------------------------


def _encode_content(mapping: Mapping[str, Value], depth: int) -> bytes:
    """The bytes of all entries; `depth` counts the nesting from 1."""
    if depth > MAX_DEPTH:
        raise FieldTableError(f"Field table is nested deeper than {MAX_DEPTH} levels")
    parts: list[bytes] = []
    for key, value in mapping.items():
        name = _text(key)
        if len(name) > MAX_KEY:
            raise FieldTableError(f"Field table key is longer than {MAX_KEY} bytes")
        parts += (bytes((len(name),)), name, _encode_value(value, depth))
    return b"".join(parts)


def _encode_value(value: Value, depth: int) -> bytes:
    """Type letter and bytes of one value."""
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, str):
        return _sized(b"S", _text(value))
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _sized(b"x", bytes(value))
    if isinstance(value, Mapping):
        if isinstance(value, FieldTable) and value._source is not None:
            return _sized(b"F", value.raw)
        return _sized(b"F", _encode_content(value, depth + 1))
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            raise FieldTableError(f"Field table is nested deeper than {MAX_DEPTH} levels")
        return _sized(b"A", b"".join(_encode_value(item, depth + 1) for item in value))
    raise FieldTableError(f"{type(value).__name__} has no field type")


def _encode_int(value: int) -> bytes:
    """An integer in the width its type or its size asks for."""
    if not -(2**63) <= value < 2**63:
        raise FieldTableError(f"Integer {value} does not fit in 64 bits")
    if isinstance(value, Timestamp):
        return b"T" + struct.pack(">q", value)
    if isinstance(value, Long) or not -(2**31) <= value < 2**31:
        return b"l" + struct.pack(">q", value)
    return b"I" + struct.pack(">i", value)


def _sized(letter: bytes, content: bytes) -> bytes:
    """Type letter, length and content."""
    if len(content) > 0xFFFFFFFF:
        raise FieldTableError("Field value is longer than 4 GiB")
    return letter + _UINT32.pack(len(content)) + content


def _text(value: str) -> bytes:
    """UTF-8; bytes that were not UTF-8 when they came in come out again as they were."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise FieldTableError(f"Text cannot be written as UTF-8: {error.reason}") from error


# --- comparison -------------------------------------------------------------------------------


def _canonical(value: Value) -> Any:
    """A hashable form that is equal exactly when the values mean the same."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, Timestamp):
        return ("time", int(value))
    if isinstance(value, (int, float)):
        # NaN is the only number that differs from itself.
        return value if value == value else ("nan",)
    if isinstance(value, Mapping):
        return frozenset((key, _canonical(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ("array", *map(_canonical, value))
    raise FieldTableError(f"{type(value).__name__} has no field type")
