"""What a user may do with the routing keys of one topic exchange: two regular expressions.

Without an entry for an exchange every key is allowed there, as in RabbitMQ; the permissions of the
virtual host say who may use the exchange at all. `{username}` and `{vhost}` stand for their names,
whatever characters these have. `{client_id}` has a value for clients of MQTT only: here it matches
nothing. The empty expression matches the empty key.
Source: documentation of RabbitMQ's topic authorisation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

from lavinmq.auth import permissions
from lavinmq.auth.permissions import Rule
from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import Text, json_list
from lavinmq.files.whole import read_regular

FILE_NAME: Final = "topic_permissions.json"
"""Beside users.json, in which LavinMQ would not understand it."""

_NO_KEY: Final = "(?!)"
_CLIENT_ID: Final = "{client_id}"


class KeyRights(Protocol):
    """What somebody may do with the keys of an exchange on which not all are allowed."""

    @property
    def is_any_written(self) -> bool:
        """Whether every key may be written, also those of messages that others send."""

    def can_write(self, key: str) -> bool:
        """Whether messages with the routing key may be published."""

    def can_read(self, key: str) -> bool:
        """Whether the exchange may be bound with the key."""

    def of_client(self, client_id: str) -> KeyRights:
        """The same for a client of MQTT, whose identifier is known."""


class TopicRow(NamedTuple):
    """A topic permission as it is stored, shown, and stands in definitions."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """One as it is stored. Raises: ValueError."""
        if not isinstance(entry, dict):
            raise ValueError("not a topic permission")
        values = [value for name in cls._fields if isinstance(value := entry.get(name), str)]
        if len(values) != len(cls._fields):
            raise ValueError(f"a topic permission has texts for {', '.join(cls._fields)}")
        return cls(*values)


class TopicPermissions:
    """The patterns of one user for one exchange; see `check` for input."""

    __slots__ = ("_names", "_read", "_write", "is_any_written", "read", "write")

    def __init__(
        self, user: str, vhost: str, write: str, read: str, client_id: str | None = None
    ) -> None:
        self.write = write
        self.read = read
        self.is_any_written = write in permissions.EVERYTHING
        self._names = user, vhost
        self._write = Rule(_expanded(write, user, vhost, client_id), ())
        self._read = Rule(_expanded(read, user, vhost, client_id), ())

    def of_client(self, client_id: str) -> TopicPermissions:
        """The same for a client of MQTT, whose identifier is known."""
        if _CLIENT_ID not in self.write and _CLIENT_ID not in self.read:
            return self
        return TopicPermissions(*self._names, self.write, self.read, client_id)

    def can_write(self, key: str) -> bool:
        """Whether messages with the routing key may be published."""
        return self._write.allows(key)

    def can_read(self, key: str) -> bool:
        """Whether the exchange may be bound with the key."""
        return self._read.allows(key)


def check(regex: str) -> None:
    """Refuse an expression that could never be used. Raises: ValueError, saying why."""
    permissions.check(_expanded(regex, "user", "vhost"))


class TopicFile:
    """topic_permissions.json, which is replaced together with users.json, just before it.

    So at no moment a user is stored without what restricts him: what belongs to users who go stays
    in it until they have gone.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = str(data_dir / FILE_NAME)
        self._going: list[TopicRow] = []
        self._is_due = False
        self._is_unfinished = False
        self._content: list[bytes] | None = None

    def load(self) -> list[TopicRow]:
        """What is stored.

        Raises: DefinitionsError naming the file when it, or an entry of it, cannot be read or
            understood: it restricts users, who must not be let in without it.
        """
        try:
            entries = json.loads(read_regular(self._path), parse_constant=str)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DefinitionsError(f"{self._path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise DefinitionsError(f"{self._path}: not JSON: {error}; restore it") from error
        if not isinstance(entries, list):
            raise DefinitionsError(f"{self._path}: not a list; restore it")
        rows = []
        for number, entry in enumerate(entries, 1):
            try:
                rows.append(TopicRow.from_json(entry))
            except ValueError as error:
                raise DefinitionsError(
                    f"{self._path}: entry {number}: {error}; mend or restore it"
                ) from error
        return rows

    def changed(self, going: Iterable[TopicRow] = ()) -> None:
        """It is to be replaced. Args: going: what a user has had who is being deleted."""
        self._is_due = True
        self._going += going

    def preparing(self, rows: Iterable[TopicRow]) -> Iterator[None]:
        """Make what `changes` returns next, if anything has changed, in short steps on the loop."""
        self._content = None
        if not (self._is_due or self._is_unfinished):
            return
        self._is_due, self._is_unfinished = False, True  # what changes now is for the next time
        text = Text()
        entries = (row._asdict() for row in chain(rows, self._going))  # which may still grow
        for piece in json_list(entries):
            text.add(piece)
            yield
        self._content = text.pieces()
        self._is_due |= bool(self._going)  # once more, without those
        self._is_unfinished = False
        self._going.clear()

    def changes(self) -> list[tuple[str, Sequence[bytes]]]:
        """Path and pieces of the file, if it is to be replaced; in any thread."""
        return [] if self._content is None else [(self._path, self._content)]


def _expanded(regex: str, user: str, vhost: str, client_id: str | None = None) -> str:
    """The expression with its variables replaced; the empty one matches the empty key."""
    for name, text in (("username", re.escape(user)), ("vhost", re.escape(vhost))):
        regex = regex.replace(f"{{{name}}}", text)
    client = _NO_KEY if client_id is None else re.escape(client_id)
    return regex.replace(_CLIENT_ID, client) or "^$"
