"""Tables of AMQP in JSON: arguments of queues, exchanges and bindings, and headers of messages.

A table is measured before it is converted. From JSON every integer becomes 64 bits wide and every
fraction a double, whatever its size. The other way is `encoding.py`'s.
Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lavinmq import fieldtable
from lavinmq.arguments.bounds import TableBounds
from lavinmq.fieldtable import EMPTY, FieldTable, FieldTableError, Long
from lavinmq.http.errors import bad_request


def table(values: Mapping[str, Any], what: str, bounds: TableBounds) -> FieldTable:
    """A JSON object as a field table. Raises: ApiError 400 that begins with `what`."""
    if not values:
        return EMPTY
    try:
        bounds.check_values(values)
        content = fieldtable.encode(_wide(values))
        bounds.check_content(content)
        return fieldtable.from_content(content)
    except (FieldTableError, RecursionError) as error:
        raise bad_request(f"{what}: {error}") from error


def _wide(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return Long(value)
    if isinstance(value, dict):
        return {key: _wide(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_wide(each) for each in value]
    return value
