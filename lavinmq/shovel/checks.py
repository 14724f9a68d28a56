"""Checks of the fields of a parameter, by which shovels and upstreams are read.

Each raises ValueError with a text that names the field. Source: docs/shovels.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from lavinmq.shovel import places
from lavinmq.shovel.places import Place

Check = Callable[[str, Any], None]
ACK_MODES: Final = ("on-confirm", "on-publish", "no-ack")
FAILOVERS: Final = ("ordered", "shuffle", "round-robin")
MAX_PREFETCH: Final = 65_535
MAX_DELAY_S: Final = 2**31 - 1
T = TypeVar("T")


def text(key: str, value: Any) -> None:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"Field '{key}' must be a string")


def name(key: str, value: Any) -> None:
    """A string that AMQP can carry as a name."""
    text(key, value)
    if len(value.encode(errors="surrogateescape")) > 255:
        raise ValueError(f"Field '{key}' is longer than 255 bytes")


def flag(key: str, value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"Field '{key}' must be true or false")


def table(key: str, value: Any) -> None:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"Field '{key}' must be an object")


def number(least: int, most: int) -> Check:
    """A whole number within bounds."""

    def check(key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"Field '{key}' must be a whole number from {least} to {most}")

    return check


def one_of(*words: str) -> Check:
    """One of these words, however it is written: `word` returns it as it stands here."""

    def check(key: str, value: Any) -> None:
        if not isinstance(value, str) or word(value, words) not in words:
            raise ValueError(f"Field '{key}' must be one of {', '.join(words)}")

    return check


def word(value: str, words: tuple[str, ...]) -> str:
    """A word without regard to case and hyphens, or the text itself."""
    plain = value.lower().replace("-", "").replace("_", "")
    return next((each for each in words if each.replace("-", "") == plain), value)


def uris(value: Any) -> list[str]:
    """One URI or a list of them; empty for anything else."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(uri, str) and uri for uri in found):
        return []
    return found


def read_places(key: str, value: Any, vhost: str) -> tuple[Place, ...]:
    """The AMQP URIs of a field. Args: vhost: of a URI that is this broker and names none."""
    return read_each(key, value, lambda uri: places.parse(uri, vhost))


def read_each(key: str, value: Any, parse: Callable[[str], T]) -> tuple[T, ...]:
    """Each URI of a field by `parse`; what is wrong is named by its number in a list."""
    found = []
    for at, uri in enumerate(uris(value)):
        try:
            if not uri.isprintable() or " " in uri:
                raise ValueError("has blanks, or characters that cannot be printed")
            found.append(parse(uri))
        except ValueError as error:
            which = f"Field '{key}'" if isinstance(value, str) else f"Item {at} of '{key}'"
            raise ValueError(f"{which} {error}") from None
    return tuple(found)
