"""How much one table of arguments may hold: bytes as they stand on the wire, and entries.

A table of short values becomes Python objects of a hundred times its bytes, so it is measured
before it is converted: `check_content` what came over AMQP, `check_values` what came as JSON. Both
stop at the limit: a table that is far too large costs no more than one that is just too large.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from lavinmq import fieldtable
from lavinmq.fieldtable import FieldTableError


class TableTooLargeError(FieldTableError):
    """A table is above the limits of the operator; the text names the setting."""


class Limits(Protocol):
    """What of `config.values.Config` is needed."""

    max_arguments_bytes: int
    max_arguments_entries: int


class TableBounds(NamedTuple):
    """The limits in force; those of `config` may change while the broker runs."""

    max_bytes: int
    max_entries: int

    @classmethod
    def of(cls, config: Limits) -> "TableBounds":
        """The limits that the operator has set."""
        return cls(config.max_arguments_bytes, config.max_arguments_entries)

    def check_content(self, content: bytes) -> None:
        """Measure the content of a table that was received.

        Raises: TableTooLargeError; FieldTableError for bytes that are no table.
        """
        self._check_size(len(content))
        # An entry of a table has two bytes at least, one of an array has one.
        if len(content) > self.max_entries:
            self._check_count(fieldtable.count(content, self.max_entries))

    def check_values(self, values: Mapping[str, Any]) -> None:
        """Measure a table in JSON, whose strings are counted by their characters here: what it
        comes to is for `check_content` to see. Raises: TableTooLargeError."""
        size = count = 0
        waiting: list[Any] = [values]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, Mapping | list):
                count += len(value)
                self._check_count(count)
                if isinstance(value, Mapping):
                    size += sum(map(len, value))
                waiting += value.values() if isinstance(value, Mapping) else value
            self._check_size(size)

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise TableTooLargeError(
                f"it has more than the {self.max_bytes} bytes of max_arguments_bytes"
            )

    def _check_count(self, count: int) -> None:
        if count > self.max_entries:
            raise TableTooLargeError(
                f"it has more than the {self.max_entries} entries of max_arguments_entries"
            )


UNBOUNDED: Final = TableBounds(2**32, 2**32)
"""For what this broker has written itself."""
