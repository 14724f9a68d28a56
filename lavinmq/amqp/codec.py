"""How the arguments of a method are read and written: the machinery behind `methods.py`.

`Method` turns a class whose annotations are the domains of the specification into an immutable
tuple with a *plan*: a short list of steps, made once per class, that decode and encode follow.
Decoding is strict: arguments that are too short, and bytes left over, are errors. Only
`methods.py` uses this module; it knows no method by name.
Source: docs/protocol.md.
"""

import struct
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, dataclass_transform

from lavinmq import fieldtable
from lavinmq.arguments.bounds import TableBounds
from lavinmq.fieldtable import FieldTable, FieldTableError

# The domains of the specification, as Python types. A short string keeps bytes that are not UTF-8
# (surrogateescape), so that any name comes out again as it came in.
Bit = Annotated[bool, "bit"]
Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
Table = Annotated[FieldTable, "table"]

MAX_SHORTSTR: Final = 255

CUT_SHORT: Final = "Frame has reached frame size limit"
"""What a peer is told when the payload ends inside an argument."""

_SECRETS: Final = frozenset(("response", "new_secret"))

_FLAGS: Final = [tuple(octet >> bit & 1 == 1 for bit in range(8)) for octet in range(256)]
"""The bits of an octet, the lowest first."""

_NUMBERS: Final = {"octet": "B", "short": "H", "long": "I", "longlong": "Q"}
_SIZE: Final = struct.Struct(">I")
_IDS: Final = struct.Struct(">HH")

# Kinds of steps in a plan; each step is (kind, struct of the numbers, count of numbers or bits).
_STRUCT, _BITS, _SHORTSTR, _LONGSTR, _TABLE = range(5)
_KINDS: Final = {"shortstr": _SHORTSTR, "longstr": _LONGSTR, "table": _TABLE}
Plan: TypeAlias = tuple[tuple[int, struct.Struct, int], ...]


class CutShortError(Exception):
    """The payload ends inside an argument."""


@dataclass_transform(frozen_default=True)
class Method(tuple[Any, ...]):
    """Base of all methods: an immutable tuple of arguments with names, defaults and ids.

    A subclass is one line of the specification: `class QueuePurge(Method, ids=(50, 30))` with
    its arguments as annotations. Two methods are equal when their types and arguments are.
    """

    __slots__ = ()
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    NAME: ClassVar[str]
    """The name in the specification, such as `queue.declare-ok`."""
    SUPPORTED: ClassVar[bool]
    FIELDS: ClassVar[tuple[str, ...]]
    IDS: ClassVar[bytes]
    """Class and method id as they stand at the head of the payload."""
    PLAN: ClassVar[Plan]
    DEFAULTS: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, ids: tuple[int, int], supported: bool = True) -> None:
        domains = {name: hint.__metadata__[0] for name, hint in cls.__annotations__.items()}
        cls.CLASS_ID, cls.METHOD_ID = ids
        cls.IDS = _IDS.pack(*ids)
        cls.NAME = _specification_name(cls.__name__)
        cls.SUPPORTED = supported
        cls.FIELDS = tuple(domains)
        cls.PLAN = _plan(list(domains.values()))
        cls.DEFAULTS = {name: cls.__dict__[name] for name in domains if name in cls.__dict__}
        for index, name in enumerate(domains):
            setattr(cls, name, property(itemgetter(index)))

    def __new__(cls, *args: Any, **named: Any) -> Self:
        """Positional arguments in the order of the specification, named ones, or defaults."""
        if named or len(args) != len(cls.FIELDS):
            args = cls._complete(args, named)
        return tuple.__new__(cls, args)

    @classmethod
    def _complete(cls, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, from positional and named ones and the defaults."""
        given = cls.DEFAULTS | dict(zip(cls.FIELDS, args, strict=False)) | named
        wrong = given.keys() ^ set(cls.FIELDS)
        if wrong or len(args) > len(cls.FIELDS):
            raise TypeError(f"{cls.__name__}: missing, unknown or too many arguments {wrong}")
        return tuple(given[name] for name in cls.FIELDS)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), tuple(self)))

    def __repr__(self) -> str:
        shown = ((name, "…" if name in _SECRETS else repr(self[i]))
                 for i, name in enumerate(self.FIELDS))  # fmt: skip
        return f"{self.NAME}({', '.join(f'{name}={text}' for name, text in shown)})"


def read_arguments(
    plan: Plan, payload: bytes, offset: int, bounds: TableBounds
) -> tuple[list[Any], int]:
    """Follow a plan through the payload.

    Args: bounds: of a table, which is measured before it is decoded.
    Returns: the arguments and the offset behind the last one, at most len(payload).
    Raises: CutShortError; FieldTableError when a table inside is not one, or too large.
    """
    values: list[Any] = []
    size = len(payload)
    for kind, numbers, count in plan:
        if kind == _SHORTSTR:
            start = offset + 1
            offset = start + payload[offset] if offset < size else size + 1
            if offset > size:
                raise CutShortError
            values.append(payload[start:offset].decode("utf-8", "surrogateescape"))
            continue
        start = offset
        offset += numbers.size
        if offset > size:
            raise CutShortError
        if kind == _STRUCT:
            values += numbers.unpack_from(payload, start)
        elif kind == _BITS:
            values += _FLAGS[payload[start]][:count]
        else:
            offset += _SIZE.unpack_from(payload, start)[0]
            if offset > size:
                raise CutShortError
            content = payload[start + 4 : offset]
            if kind == _LONGSTR:
                values.append(content)
                continue
            bounds.check_content(content)
            values.append(fieldtable.from_content(content))
    return values, offset


def write_arguments(plan: Plan, values: tuple[Any, ...]) -> bytes:
    """The bytes of all arguments.

    Raises: ValueError when a value does not fit its domain (FieldTableError is one).
    """
    parts: list[bytes] = []
    at = 0
    for kind, numbers, count in plan:
        if kind == _STRUCT:
            parts.append(_pack(numbers, values[at : at + count]))
        elif kind == _BITS:
            parts.append(bytes((sum(bool(values[at + bit]) << bit for bit in range(count)),)))
        elif kind == _SHORTSTR:
            text = values[at].encode("utf-8", "surrogateescape")
            if len(text) > MAX_SHORTSTR:
                raise ValueError(f"short string is longer than {MAX_SHORTSTR} bytes")
            parts += (bytes((len(text),)), text)
        else:
            content = values[at] if kind == _LONGSTR else fieldtable.encode(values[at])
            parts += (_SIZE.pack(len(content)), content)
        at += count
    return b"".join(parts)


def _pack(numbers: struct.Struct, values: tuple[Any, ...]) -> bytes:
    """Pack numbers, with the error type that all wrong values have."""
    try:
        return numbers.pack(*values)
    except struct.error as error:
        raise ValueError(f"{values}: {error}") from error


def _plan(domains: list[str]) -> Plan:
    """The steps for arguments of these domains: numbers in a row and up to 8 bits are one step."""
    steps: list[tuple[int, struct.Struct, int]] = []
    at = 0
    while at < len(domains):
        if domains[at] in _NUMBERS:
            run = _run(domains, at, _NUMBERS)
            codes = "".join(_NUMBERS[domain] for domain in domains[at : at + run])
            steps.append((_STRUCT, struct.Struct(">" + codes), run))
        elif domains[at] == "bit":
            run = min(_run(domains, at, ("bit",)), 8)
            steps.append((_BITS, struct.Struct("B"), run))
        else:
            run = 1
            steps.append((_KINDS[domains[at]], _SIZE, 1))
        at += run
    return tuple(steps)


def _run(domains: list[str], at: int, wanted: Any) -> int:
    """How many domains from `at` on are among those wanted."""
    end = at
    while end < len(domains) and domains[end] in wanted:
        end += 1
    return end - at


def _specification_name(class_name: str) -> str:
    """`QueueDeclareOk` is queue.declare-ok."""
    dashed = "".join("-" + c.lower() if c.isupper() else c for c in class_name)
    return dashed[1:].replace("-", ".", 1)


__all__ = [
    "CUT_SHORT", "Bit", "CutShortError", "FieldTableError", "Long", "LongLong", "LongStr",
    "Method", "Octet", "Short", "ShortStr", "Table", "read_arguments", "write_arguments",
]  # fmt: skip
