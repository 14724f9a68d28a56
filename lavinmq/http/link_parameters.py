"""Checks of the parameters that make shovels, federation upstreams, and MQTT's bridge.

Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from lavinmq.http.errors import bad_request
from lavinmq.mqtt import groups
from lavinmq.vhost import bridge

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity

_OF_MQTT: Final[Mapping[str, Callable[[Any], object]]] = {
    bridge.COMPONENT: bridge.check,
    groups.COMPONENT: groups.parse,
}


def check(component: str, value: Any, user: Identity, vhost: str) -> None:
    """Refuse what cannot work. Other components may say anything.

    Args: user: who needs rights on what a shovel uses in this broker without logging in.
    Raises: ApiError 400.
    """
    if component == "shovel":
        _check_shovel(_object(value), user, vhost)
    elif component == "federation-upstream":
        if not _uris(_object(value).get("uri")):
            raise bad_request("Federation upstream requires field 'uri', a string or an array")
    elif component in _OF_MQTT:
        try:
            _OF_MQTT[component](value)
        except ValueError as error:
            raise bad_request(str(error)) from error
    elif component == "federation-upstream-set" and not _is_upstream_set(value):
        raise bad_request("Field 'value' must be an array of objects with field 'upstream'")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request("Field 'value' must be an object")
    return value


def _is_upstream_set(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("upstream"), str) for each in value
    )


def _check_shovel(value: dict[str, Any], user: Identity, vhost: str) -> None:
    source = _texts(value, "src-queue", "src-exchange")
    if not any(source):
        raise bad_request("Shovel source requires a queue or an exchange")
    destinations = _uris(value.get("dest-uri"))
    queue, exchange = _texts(value, "dest-queue", "dest-exchange")
    is_http = bool(destinations) and all(
        uri.startswith(("http:", "https:")) for uri in destinations
    )
    if not is_http and queue is None and exchange is None:
        raise bad_request("Shovel destination requires queue and/or exchange")
    for field in ("src-uri", "dest-uri"):
        if not _uris(value.get(field)):
            raise bad_request(f"Shovel requires field '{field}', a string or an array")
    for there in _local(value["src-uri"], vhost):
        for name in filter(None, source):
            if not (user.can_read(there, name) and user.can_configure(there, name)):
                raise bad_request(f"{user.name} can't access source '{name}' in vhost '{there}'")
    for there in _local(value["dest-uri"], vhost):
        may_exchange = exchange is None or (
            user.can_write(there, exchange) and user.can_configure(there, exchange)
        )
        if not may_exchange:
            raise bad_request(
                f"{user.name} can't access destination '{exchange}' in vhost '{there}'"
            )
        if queue and not user.can_configure(there, queue):
            raise bad_request(f"{user.name} can't access destination '{queue}' in vhost '{there}'")


def _texts(value: dict[str, Any], *fields: str) -> list[str | None]:
    """The fields, None where there is none. Raises: ApiError 400 for other types."""
    for field in fields:
        if not isinstance(value.get(field), str | None):
            raise bad_request(f"Field '{field}' must be a string")
    return [value.get(field) for field in fields]


def _uris(value: Any) -> list[str]:
    """One URI or a list of them; empty for anything else."""
    uris = [value] if isinstance(value, str) else value
    if not isinstance(uris, list) or not all(isinstance(uri, str) and uri for uri in uris):
        return []
    return uris


def _local(value: Any, vhost: str) -> list[str]:
    """The virtual hosts meant by URIs without user and host: those are reached without a log-in."""
    found = []
    for uri in _uris(value):
        try:
            parts = urlsplit(uri)
            is_local = (
                parts.scheme in ("amqp", "amqps") and not parts.username and not parts.hostname
            )
        except ValueError:
            continue
        if is_local:
            path = parts.path.removeprefix("/")
            found.append(unquote(path, errors="surrogateescape") if path else vhost)
    return found
