"""Users and their permissions, as documents speak of them."""

from __future__ import annotations

from typing import NamedTuple


class UserDef(NamedTuple):
    """A user with limits; no algorithm: it cannot log in with a password."""

    name: str
    password_hash: str
    hashing_algorithm: str | None
    tags: tuple[str, ...]
    limits: dict[str, int]
    keys: str | None = None
    """Of SCRAM, for the same password; None: those that there are for that hash, if any."""


class PermissionDef(NamedTuple):
    """What a user may do in a virtual host: three regular expressions."""

    user: str
    configure: str
    read: str
    write: str


class TopicPermissionDef(NamedTuple):
    """What a user may do with the routing keys of an exchange: two regular expressions."""

    user: str
    exchange: str
    write: str
    read: str
