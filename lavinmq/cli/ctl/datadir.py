"""`lavinmqctl definitions DATADIR`: the definitions of a data directory, without a broker.

Only reads, so the directory may be that of a running broker, or a copy that cannot be written. The
result has the form of an export and can be imported.
Source: docs/lavinmqctl.md, docs/formats.md.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lavinmq import __version__
from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.owner import rights_of_owner
from lavinmq.cli.ctl.session import Session
from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import Timestamp
from lavinmq.files.definitions import Definitions, ExchangeDef
from lavinmq.files.definitions import read as read_definitions
from lavinmq.files.vhosts import VHostDef
from lavinmq.files.whole import read_regular

LIMITS = ("max-connections", "max-queues")


def export(data_dir: Path) -> dict[str, Any]:
    """Return all definitions in a data directory.

    Raises: CtlError naming the file that cannot be read or makes no sense.
    """
    if not (data_dir / "users.json").exists() and not (data_dir / "vhosts.json").exists():
        raise CtlError(f"{data_dir} is no data directory: it has no users.json and no vhosts.json")
    users = _entries(data_dir / "users.json")
    vhosts = [VHostDef(_text(row, "name")) for row in _entries(data_dir / "vhosts.json")]
    result: dict[str, Any] = {
        "lavinmq_version": __version__,
        "users": [_user(row) for row in users],
        "vhosts": [_vhost(row) for row in _entries(data_dir / "vhosts.json")],
        "permissions": [each for row in users for each in _permissions(row)],
        "topic_permissions": _entries(data_dir / "topic_permissions.json"),
        "queues": [], "exchanges": [], "bindings": [], "policies": [], "parameters": [],
        "global_parameters": [
            {"name": row.get("name"), "component": None, "value": row.get("value")}
            for row in _entries(data_dir / "parameters.json")
        ],
    }  # fmt: skip
    for vhost in vhosts:
        for key, rows in _of_vhost(data_dir / vhost.directory, vhost.name).items():
            result[key] += rows
    return result


def definitions(session: Session) -> None:
    """Print the definitions, indented."""
    data_dir = Path(session.arguments[0])
    try:
        with rights_of_owner(data_dir):
            content = export(data_dir)
    except OSError as error:
        raise CtlError(f"{error.filename or data_dir}: {error.strerror}") from None
    session.output.json(content, indent=None if session.output.is_json else 2)


def _of_vhost(directory: Path, vhost: str) -> dict[str, list[dict[str, Any]]]:
    """What belongs to one virtual host."""
    path = directory / "definitions.amqp"
    try:
        stored = read_definitions(path) if path.exists() else Definitions()
    except DefinitionsError as error:
        raise CtlError(str(error)) from None
    operator_policies = _entries(directory / "operator_policies.json")
    return {
        "exchanges": [_exchange(each, vhost) for each in stored.exchanges if not each.internal],
        "queues": [
            {"name": each.name, "vhost": vhost, "durable": each.durable,
             "auto_delete": each.auto_delete, "arguments": _plain(each.arguments)}
            for each in stored.queues
        ],
        "bindings": [
            {"source": each.source, "vhost": vhost, "destination": each.destination,
             "destination_type": each.destination_type, "routing_key": each.routing_key,
             "arguments": _plain(each.arguments)}
            for each in stored.bindings
        ],
        "policies": [{**row, "vhost": vhost} for row in _entries(directory / "policies.json")],
        "parameters": [
            *_limits(directory / "limits.json", vhost),
            *(_operator_policy(row, vhost) for row in operator_policies),
            *(
                {"name": row.get("name"), "component": row.get("component"), "vhost": vhost,
                 "value": row.get("value")}
                for row in _entries(directory / "parameters.json")
            ),
        ],
    }  # fmt: skip


def _user(row: dict[str, Any]) -> dict[str, Any]:
    tags = [tag.strip() for tag in str(row.get("tags") or "").split(",")]
    return {
        "name": _text(row, "name"),
        "password_hash": row.get("password_hash") or "",
        "hashing_algorithm": row.get("hashing_algorithm"),
        "tags": [tag for tag in tags if tag],
    }


def _permissions(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for vhost, granted in (row.get("permissions") or {}).items():
        yield {
            "user": row["name"], "vhost": vhost, "configure": granted.get("config", ""),
            "read": granted.get("read", ""), "write": granted.get("write", ""),
        }  # fmt: skip


def _vhost(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "description": row.get("description") or "",
        "tags": row.get("tags") or [],
    }


def _exchange(exchange: ExchangeDef, vhost: str) -> dict[str, Any]:
    """A delayed exchange is written as it is declared: RabbitMQ knows no other way."""
    kind, arguments = exchange.type, dict(exchange.arguments)
    if exchange.delayed:
        arguments.pop("x-delayed-exchange")
        arguments["x-delayed-type"] = kind
        kind = "x-delayed-message"
    return {
        "name": exchange.name, "vhost": vhost, "type": kind, "durable": exchange.durable,
        "auto_delete": exchange.auto_delete, "internal": exchange.internal,
        "arguments": _plain(arguments),
    }  # fmt: skip


def _limits(path: Path, vhost: str) -> Iterator[dict[str, Any]]:
    content = _json(path)
    if content is None:
        return
    if not isinstance(content, dict):
        raise CtlError(f"{path}: not a table of limits")
    value = {key: content[key] for key in LIMITS if key in content}
    if value:
        yield {"name": "limits", "component": "vhost-limits", "vhost": vhost, "value": value}


def _operator_policy(row: dict[str, Any], vhost: str) -> dict[str, Any]:
    value = {key: row.get(key) for key in ("pattern", "definition", "priority", "apply-to")}
    return {
        "name": row.get("name"), "component": "operator_policy", "vhost": vhost, "value": value,
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a value of a field table as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        except (ValueError, OverflowError, OSError):  # a year that has no such form
            return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _entries(path: Path) -> list[dict[str, Any]]:
    """The tables in a list; nothing when there is no file."""
    content = _json(path)
    if content is None:
        return []
    if not isinstance(content, list):
        raise CtlError(f"{path}: not a list")
    return [row for row in content if isinstance(row, dict)]


def _json(path: Path) -> Any:
    try:
        return json.loads(read_regular(str(path)), parse_constant=str)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CtlError(f"{path}: not JSON: {error}") from None


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise CtlError(f"an entry has no {key}: {str(row)[:100]}")
    return value
