"""Passwords and keys in parameters of shovels and federation: who may not see them gets stars.

Who sends the stars back means what was there: a form that was filled from what is shown can be
sent. That counts only where nothing else of the URI was changed, lest a password goes to a server
that its reader has chosen. Source: docs/shovels.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

STARS: Final = "***"
COMPONENTS: Final = frozenset({"shovel", "federation-upstream", "federation-upstream-set"})
_URIS: Final = frozenset({"src-uri", "dest-uri", "uri"})
_SECRETS: Final = frozenset({"dest-secret"})
_LOGIN: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:@?#]*):([^?#]*)@")


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
    return {key: _restored_field(key, each, stored.get(key)) for key, each in value.items()}


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
    if any(isinstance(each, str) and f":{STARS}@" in each for each in texts):
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
    return _LOGIN.sub(rf"\1:{STARS}@", uri) if isinstance(uri, str) else uri


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
