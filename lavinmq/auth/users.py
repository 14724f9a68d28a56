"""Users, their tags and permissions, and `users.json`.

One `UserStore` per broker, on the loop thread. Connections keep the `User` they logged in as; it
is changed in place, so a change of permissions acts at once. `epoch` moves with every change that
can turn an answer, which lets callers remember answers. Changing does not save: call `save` once
after a change or a bulk of them.
Source: command line reference, sections 14 and 15; storage reference, section 9.
"""

import logging
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lavinmq.auth import passwords, permissions
from lavinmq.auth.permissions import Permissions
from lavinmq.datadir import read_regular, write_json_atomic
from lavinmq.errors import DefinitionsError

log = logging.getLogger("lmq.user_store")

TAGS: Final = ("administrator", "monitoring", "management", "policymaker", "impersonator")

DIRECT_USER: Final = "__direct"
"""The hidden user of the broker's own links; has all rights, is never listed or stored."""

FILE_NAME: Final = "users.json"
_REMEDY: Final = "restore it, or remove it to start with the default user alone"


class User:
    """A user: who it is and what it may do. Compare by identity."""

    __slots__ = ("_all_rights", "hashing_algorithm", "name", "password_hash", "permissions", "tags")

    def __init__(
        self,
        name: str,
        password_hash: str = "",
        hashing_algorithm: str | None = None,
        tags: Iterable[str] = (),
        all_rights: bool = False,
    ) -> None:
        self.name = name
        self.password_hash = password_hash
        self.hashing_algorithm = hashing_algorithm
        self.tags = parse_tags(",".join(tags))
        self.permissions: dict[str, Permissions] = {}
        self._all_rights = all_rights

    @property
    def expires_at(self) -> None:
        """A user of the data directory has no end; see `Identity`."""
        return None

    def has_tag(self, tag: str) -> bool:
        """Whether the user has the tag, one of `TAGS`."""
        return tag in self.tags

    def has_vhost(self, vhost: str) -> bool:
        """Whether the user may connect to the virtual host."""
        return self._all_rights or vhost in self.permissions

    def can_configure(self, vhost: str, resource: str) -> bool:
        """Whether the user may declare and delete the queue or exchange."""
        granted = self.permissions.get(vhost)
        return self._all_rights or (granted is not None and granted.configure.allows(resource))

    def can_read(self, vhost: str, resource: str) -> bool:
        """Whether the user may consume, get, purge and bind from the queue or exchange."""
        granted = self.permissions.get(vhost)
        return self._all_rights or (granted is not None and granted.read.allows(resource))

    def can_write(self, vhost: str, resource: str) -> bool:
        """Whether the user may publish and bind to the queue or exchange."""
        granted = self.permissions.get(vhost)
        return self._all_rights or (granted is not None and granted.write.allows(resource))

    def __repr__(self) -> str:
        return f"User({self.name!r}, tags={','.join(self.tags)!r})"


class UserStore:
    """All users of the broker. Call `load` before anything else.

    Args:
        default_user: created on the first start, an administrator with all rights on `/`.
        default_password_hash: its salted hash; the text tells of which kind.
        default_user_only_loopback: whether it may log in from this machine only; may be changed.
        default_password: hashed when that user is created, instead of the hash that is given.
    """

    def __init__(
        self,
        data_dir: Path,
        default_user: str,
        default_password_hash: str,
        default_user_only_loopback: bool,
        default_password: str | None = None,
    ) -> None:
        self.path = data_dir / FILE_NAME
        self.default_user = default_user
        self.default_password_hash = default_password_hash
        self.default_user_only_loopback = default_user_only_loopback
        self._default_password = default_password
        self.epoch = 0
        self.direct_password = secrets.token_urlsafe(32)
        self.direct_user = User(
            DIRECT_USER,
            passwords.hash_password(self.direct_password.encode()),
            passwords.DEFAULT_ALGORITHM,
            ("administrator",),
            all_rights=True,
        )
        self._users: dict[str, User] = {}
        self._kept: list[Any] = []  # entries that make no sense, for who repairs them

    def load(self, create_default: bool = True) -> None:
        """Read users.json; if there is none, make one with the default user, or with nobody.

        A bad entry is logged and kept in the file: that user cannot log in.
        Raises: DefinitionsError naming the file when it cannot be read, understood or written. The
            default user is never made then: damage must not open a door with a known password.
        """
        try:
            data = read_regular(str(self.path))
        except FileNotFoundError:
            self._first_start(create_default)
            return
        except OSError as error:
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error
        self._users, self._kept = {}, []
        for number, entry in enumerate(_parse(self.path, data), 1):
            try:
                user = _user(self.path, number, entry)
            except DefinitionsError as error:
                log.error("%s: it is ignored", error)
                self._kept.append(entry)
                continue
            if user.name != DIRECT_USER:
                self._users[user.name] = user
        self.epoch += 1
        log.debug("%d users loaded", len(self._users))

    def save(self) -> None:
        """Write users.json atomically. Raises: DefinitionsError when the disk refuses."""
        try:
            users = [_to_json(user) for user in self._users.values()]
            write_json_atomic(str(self.path), users + self._kept)
        except OSError as error:
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error

    def admit(self, name: str, is_loopback: bool) -> User | None:
        """The user of that name, the hidden one too, if it may come from there; else None."""
        user = self.direct_user if name == DIRECT_USER else self._users.get(name)
        if user is None:
            return None
        if name == self.default_user and self.default_user_only_loopback and not is_loopback:
            log.warning("user %r may only log in from this machine", name)
            return None
        return user

    def authenticate(self, name: str, password: bytes, is_loopback: bool) -> User | None:
        """The user, if name and password are right and it may come from there; else None.

        Cost: one digest; with a slow hash as long as that asks. Connections ask the chain instead.
        """
        user = self.admit(name, is_loopback)
        return user if user is not None and self.is_password(user, password) else None

    def is_password(self, user: User, password: bytes) -> bool:
        """Whether it is the user's password. Cost: as `authenticate`."""
        return passwords.verify(password, user.password_hash, user.hashing_algorithm)

    def get(self, name: str) -> User | None:
        """The user of that name; the hidden one is not found."""
        return self._users.get(name)

    def all(self) -> list[User]:
        """All users in the order of their creation, without the hidden one."""
        return list(self._users.values())

    def add(
        self, name: str, password_hash: str, hashing_algorithm: str | None, tags: Iterable[str] = ()
    ) -> User:
        """Create a user, or give an existing one another password and tags.

        Raises: PasswordHashError when the hash cannot be used; ValueError for the hidden name.
        """
        if name == DIRECT_USER:
            raise ValueError(f"{DIRECT_USER} is the name of the broker's own user")
        passwords.validate(password_hash, hashing_algorithm)
        user = self._users.setdefault(name, User(name))
        user.password_hash = password_hash
        user.hashing_algorithm = hashing_algorithm
        user.tags = parse_tags(",".join(tags))
        self.epoch += 1
        return user

    def delete(self, name: str) -> bool:
        """Remove a user; what it may do ends at once. Returns: whether there was one."""
        user = self._users.pop(name, None)
        if user is None:
            return False
        user.permissions.clear()
        self.epoch += 1
        return True

    def set_permissions(self, name: str, vhost: str, configure: str, read: str, write: str) -> None:
        """Set what a user may do in a virtual host.

        Raises: KeyError when there is no such user, ValueError when an expression is invalid.
        """
        user = self._users[name]
        for regex in (configure, read, write):
            permissions.check(regex)
        user.permissions[vhost] = Permissions.of(configure, read, write)
        self.epoch += 1

    def grant(self, name: str, vhost: str) -> None:
        """Give a user all rights in a virtual host. Raises: KeyError."""
        self.set_permissions(name, vhost, ".*", ".*", ".*")

    def remove_permissions(self, name: str, vhost: str) -> bool:
        """Take a virtual host from a user. Returns: whether it had it. Raises: KeyError."""
        removed = self._users[name].permissions.pop(vhost, None) is not None
        self.epoch += removed
        return removed

    def forget_vhost(self, vhost: str) -> None:
        """Take a deleted virtual host from all users."""
        for user in self._users.values():
            user.permissions.pop(vhost, None)
        self.epoch += 1

    def _first_start(self, create_default: bool) -> None:
        """Make the file, with the default user unless definitions are going to be imported."""
        if create_default:
            if self._default_password:
                password_hash = passwords.hash_password(self._default_password.encode())
            else:
                password_hash = self.default_password_hash
            self.add(
                self.default_user,
                password_hash,
                passwords.algorithm_of(password_hash),
                ("administrator",),
            )
            self.grant(self.default_user, "/")
        self.save()


def parse_tags(text: str) -> tuple[str, ...]:
    """Tags from a comma-separated list, each once; unknown ones are ignored."""
    given = (tag.strip().lower() for tag in text.split(","))
    return tuple(dict.fromkeys(tag for tag in given if tag in TAGS))


def _to_json(user: User) -> dict[str, Any]:
    """One entry of users.json; note `config`, not `configure`."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": ",".join(user.tags),
        "permissions": {
            vhost: {
                "config": granted.configure.regex,
                "read": granted.read.regex,
                "write": granted.write.regex,
            }
            for vhost, granted in user.permissions.items()
        },
    }


def _parse(path: Path, data: bytes) -> list[Any]:
    """The entries of a file. Raises: DefinitionsError naming the file."""
    import json

    try:
        entries = json.loads(data, parse_constant=str)  # NaN could not be written again
    except (ValueError, RecursionError) as error:
        raise DefinitionsError(f"{path}: not JSON: {error}; {_REMEDY}") from error
    if not isinstance(entries, list):
        raise DefinitionsError(f"{path}: not a list of users; {_REMEDY}")
    return entries


def _user(path: Path, number: int, entry: Any) -> User:
    """One entry of users.json. Raises: DefinitionsError."""
    try:
        user = User(
            _text(entry["name"]),
            _text(entry["password_hash"] or ""),
            _text(entry["hashing_algorithm"]) if entry.get("hashing_algorithm") else None,
            _text(entry.get("tags") or "").split(","),
        )
        for vhost, granted in (entry.get("permissions") or {}).items():
            user.permissions[vhost] = Permissions.of(
                _text(granted.get("config") or ""),
                _text(granted.get("read") or ""),
                _text(granted.get("write") or ""),
            )
    except KeyError as error:
        raise DefinitionsError(f"{path}: user {number} has no {error}") from error
    except (AttributeError, TypeError) as error:
        raise DefinitionsError(f"{path}: user {number} is malformed: {error}") from error
    return user


def _text(value: Any) -> str:
    """The value, which has to be a string. Raises: TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"string expected, not {type(value).__name__}")
    return value
