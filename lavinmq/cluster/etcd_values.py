"""What an etcd is asked and answers, as values: entries, transactions, events, and their JSON.

Keys and values are base64, 64-bit numbers are strings, and what is zero is left out. Whatever is
wrong with an answer is `Garbled`, never an error of types or keys.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final, Literal, NamedTuple

import orjson

MAX_NUMBER: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_COMPARED: Final = {
    "CREATE": "create_revision", "MOD": "mod_revision", "VALUE": "value", "LEASE": "lease",
}  # fmt: skip

Fields = dict[str, Any]


class EtcdError(Exception):
    """etcd refused, or answered nonsense; the text names the call and the reason."""

    maybe_done = False
    """Whether a transaction may have been carried out though this is all that is known of it."""


class Unreachable(EtcdError):
    """No endpoint answered in time; the text names all of them with reasons."""


class NoLease(EtcdError):
    """The lease is gone."""


class Entry(NamedTuple):
    """A key as it is; `created` and `modified` are revisions, `lease` is 0 without one."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int


class Compare(NamedTuple):
    """What has to be equal; with `end`, for all keys of a range.

    A key that is not there equals 0, unless its value is asked for: that equals nothing. So
    CREATE of 0 with a range says that there is no key in it.
    """

    key: str
    target: Literal["CREATE", "MOD", "VALUE", "LEASE"]
    value: int | bytes
    end: str = ""


class Put(NamedTuple):
    """What a transaction writes."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """What a transaction deletes; with `end`, all keys of a range."""

    key: str
    end: str = ""


class Event(NamedTuple):
    """A change of a key; `entry` is None when it was deleted."""

    key: str
    entry: Entry | None


class Failed(Exception):
    """A request of one endpoint has failed; `is_sent`: it may have been carried out."""

    def __init__(self, reason: str, is_sent: bool = True) -> None:
        super().__init__(reason)
        self.is_sent = is_sent


class Lost(Failed):
    """There is no answer, or none of a cluster with a leader: another endpoint may know more."""


class Garbled(Failed):
    """The answer makes no sense."""


class Refused(Failed):
    """etcd has said no."""


def prefix_end(prefix: str) -> str:
    """The range end of all keys that begin with a prefix. The empty one is that of all keys."""
    first = raw(prefix)
    return (first[:-1] + bytes([first[-1] + 1])).decode(errors="surrogateescape") if first else "\0"


def raw(key: str) -> bytes:
    """The bytes of a key. What is no UTF-8 comes and goes as surrogates."""
    return key.encode(errors="surrogateescape")


def coded(content: str | bytes) -> str:
    """A key or a value for JSON."""
    return base64.b64encode(raw(content) if isinstance(content, str) else content).decode()


def range_of(prefix: str) -> Fields:
    """All keys with a prefix."""
    return {"key": coded(prefix or "\0"), "range_end": coded(prefix_end(prefix))}


def compared(compare: Compare) -> Fields:
    """A condition of a transaction. Raises: ValueError, for a value that does not fit it."""
    is_value = compare.target == "VALUE"
    if compare.target not in _COMPARED or isinstance(compare.value, bytes) != is_value:
        raise ValueError(f"{compare.target} is not compared with {type(compare.value).__name__}")
    value = coded(compare.value) if isinstance(compare.value, bytes) else str(compare.value)
    fields = {"key": coded(compare.key), "target": compare.target, "result": "EQUAL",
              _COMPARED[compare.target]: value}  # fmt: skip
    return fields | ({"range_end": coded(compare.end)} if compare.end else {})


def operation(change: Put | Delete) -> Fields:
    """What a transaction does."""
    if isinstance(change, Put):
        return {"request_put": {"key": coded(change.key), "value": coded(change.value),
                                "lease": str(change.lease)}}  # fmt: skip
    end = {"range_end": coded(change.end)} if change.end else {}
    return {"request_delete_range": {"key": coded(change.key)} | end}


def fields_of(content: bytes) -> Fields:
    """An object of JSON. Raises: Garbled."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Garbled(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Garbled("it is no object of JSON")
    return found


def number(
    fields: Fields, name: str, *, least: int = -MAX_NUMBER - 1, most: int = MAX_NUMBER,
    or_zero: bool = False,
) -> int:  # fmt: skip
    """A number of an answer. Args: or_zero: it may be left out. Raises: Garbled."""
    value = fields.get(name, 0 if or_zero else None)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Garbled(f"'{name}' is missing" if value is None else f"'{name}' is no such number")
    return value


def flag(fields: Fields, name: str) -> bool:
    """Whether something is so. Raises: Garbled."""
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Garbled(f"'{name}' is neither true nor false")
    return value


def rows(fields: Fields, name: str) -> list[Fields]:
    """A list of objects. Raises: Garbled."""
    found = fields.get(name, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Garbled(f"'{name}' is no list of objects")
    return found


def revision_of(fields: Fields) -> int:
    """The revision of an answer. Raises: Garbled."""
    return number(header_of(fields), "revision", least=1)


def header_of(fields: Fields) -> Fields:
    """What every answer has. Raises: Garbled."""
    header = fields.get("header")
    if not isinstance(header, dict):
        raise Garbled("'header' is missing")
    return header


def entry_of(fields: Fields) -> Entry:
    """A key, as it is. Raises: Garbled."""
    return Entry(
        key_of(fields), _decoded(fields, "value"), number(fields, "create_revision", least=1),
        number(fields, "mod_revision", least=1), number(fields, "lease", or_zero=True),
    )  # fmt: skip


def key_of(fields: Fields) -> str:
    """The name of a key. Raises: Garbled."""
    found = _decoded(fields, "key")
    if not found:
        raise Garbled("'key' is missing")
    return found.decode(errors="surrogateescape")


def event_of(fields: Fields) -> tuple[Event, int]:
    """A change and its revision. Raises: Garbled."""
    found, kind = fields.get("kv"), fields.get("type", "PUT")
    if not isinstance(found, dict) or kind not in ("PUT", "DELETE"):
        raise Garbled("an event is none")
    event = Event(key_of(found), entry_of(found) if kind == "PUT" else None)
    return event, number(found, "mod_revision", least=1)


def _decoded(fields: Fields, name: str) -> bytes:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise Garbled(f"'{name}' is no text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Garbled(f"'{name}' is no base64") from None
