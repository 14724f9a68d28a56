"""Passwords and keys in parameters of shovels and federation: who may not see them gets stars.

Who sends the stars back means what was there: a form that was filled from what is shown can be
sent. That counts only where nothing was changed of what a password is used for: else it would go to
a server that its reader has chosen, or read a queue for him. Source: docs/shovels.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

STARS: Final = "***"
COMPONENTS: Final = frozenset({"shovel", "federation-upstream", "federation-upstream-set"})
_URIS: Final = frozenset({"src-uri", "dest-uri", "uri"})
_SECRETS: Final = frozenset({"dest-secret"})
_AUTHORITY: Final = re.compile(r"[^/?#]*")
_HARMLESS: Final = frozenset({
    "ack-mode", "delete-after", "dest-connect-timeout", "dest-failover", "dest-in-flight",
    "dest-timeout", "expires", "failover", "max-hops", "message-ttl", "prefetch-count",
    "reconnect-delay", "src-delete-after", "src-failover", "src-prefetch-count",
})  # fmt: skip
"""What may be changed by who sends stars: how much, how often, how long."""


def hidden(component: str | None, value: Any) -> Any:
    """The value of a parameter as those see it who may not see what is secret in it."""
    if component not in COMPONENTS:
        return value
    if isinstance(value, list):
        return [hidden(component, each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _field(key, each) for key, each in value.items()}


def restored(component: str | None, value: Any, stored: Any) -> Any:
    """A value with what is secret in `stored` in place of stars."""
    if component not in COMPONENTS:
        return value
    if isinstance(value, list) and isinstance(stored, list):
        known = {each.get("upstream"): each for each in stored if isinstance(each, Mapping)}
        return [
            restored(component, each, known.get(each.get("upstream")))
            if isinstance(each, Mapping)
            else each
            for each in value
        ]
    if not isinstance(value, Mapping) or not isinstance(stored, Mapping):
        return value
    found = {key: _restored_field(key, each, stored.get(key)) for key, each in value.items()}
    is_same = all(
        found.get(key) == stored.get(key) for key in (found.keys() | stored.keys()) - _HARMLESS
    )
    return found if is_same else value


def has_stars(component: str | None, value: Any) -> bool:
    """Whether a value still has stars where something secret should be."""
    if component not in COMPONENTS:
        return False
    if isinstance(value, list):
        return any(has_stars(component, each) for each in value)
    if not isinstance(value, Mapping):
        return False
    texts: list[Any] = []
    for key in _URIS & value.keys():
        texts += value[key] if isinstance(value[key], list) else [value[key]]
    if any(isinstance(each, str) and _is_starred(each) for each in texts):
        return True
    headers = value.get("dest-headers")
    given = [value.get(key) for key in _SECRETS]
    given += list(headers.values()) if isinstance(headers, Mapping) else []
    return STARS in given


def _field(key: str, value: Any) -> Any:
    if key in _URIS:
        if isinstance(value, list):
            return [_uri(each) for each in value]
        return _uri(value)
    if key in _SECRETS:
        return STARS
    if key == "dest-headers" and isinstance(value, Mapping):
        return dict.fromkeys(value, STARS)
    return value


def _uri(uri: Any) -> Any:
    """Without its password, and without the query of a webhook, where keys are."""
    if not isinstance(uri, str):
        return uri
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return STARS if "@" in uri else uri
    found = _AUTHORITY.match(rest)
    authority = found.group() if found is not None else ""
    tail = rest[len(authority) :]
    login, at, host = authority.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        authority = f"{user}:{STARS}@{host}" if colon else authority
    elif "@" in tail and not _is_place(authority):
        return f"{scheme}://{STARS}"  # a password with a slash, which no shovel can use
    path, query, _ = tail.partition("?")
    if query and scheme.strip().lower() in ("http", "https"):
        tail = f"{path}?{STARS}"
    return f"{scheme}://{authority}{tail}"


def _is_place(authority: str) -> bool:
    """Whether it is a host with a port, or none."""
    host, colon, port = authority.rpartition(":")
    return not colon or port.isdigit() or host.startswith("[")


def _is_starred(uri: str) -> bool:
    return f":{STARS}@" in uri or uri.endswith((f"?{STARS}", f"://{STARS}")) or uri == STARS


def _restored_field(key: str, value: Any, stored: Any) -> Any:
    if key in _URIS:
        before = stored if isinstance(stored, list) else [stored]
        known = {_uri(each): each for each in before if isinstance(each, str)}
        if isinstance(value, list):
            return [known.get(each, each) if isinstance(each, str) else each for each in value]
        return known.get(value, value) if isinstance(value, str) else value
    if key in _SECRETS:
        return stored if value == STARS and stored is not None else value
    if key == "dest-headers" and isinstance(value, Mapping) and isinstance(stored, Mapping):
        return {
            name: stored.get(name, each) if each == STARS else each for name, each in value.items()
        }
    return value
