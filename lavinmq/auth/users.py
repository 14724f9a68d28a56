"""Users, their tags and permissions, `users.json` and what stands beside it about topics.

One `UserStore` per broker, on the loop thread. Connections keep the `User` they logged in as; it
is changed in place, so a change of permissions acts at once. `epoch` moves with every change that
can turn an answer, which lets callers remember answers. Changing does not save: call `save` once
after a change or a bulk of them. What cannot be saved is taken back. Longer than 500 lines: what is
stored of a user, and how it changes and is taken back, stands in one place.
Source: docs/authentication.md, docs/formats.md.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from lavinmq.auth import passwords, permissions, scram, topics
from lavinmq.auth.permissions import Permissions, allows
from lavinmq.auth.scram_file import Row, ScramFile
from lavinmq.auth.topics import TopicFile, TopicPermissions, TopicRow
from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import Disk, SavedFile, json_list
from lavinmq.files.whole import read_regular

log = logging.getLogger("lmq.user_store")

TAGS: Final = ("administrator", "monitoring", "management", "policymaker", "impersonator")

DIRECT_USER: Final = "__direct"
"""The hidden user of the broker's own links; has all rights, is never listed or stored."""

FILE_NAME: Final = "users.json"
SCRAM_KEY: Final = "scram_sha_256"
"""Of users in definitions; other brokers pass over it."""
_REMEDY: Final = "restore it, or remove it to start with the default user alone"


Topics: TypeAlias = Mapping[str, Mapping[str, TopicPermissions]]
"""Topic permissions by virtual host and exchange; never changed, but replaced."""


class User:
    """A user: who it is and what it may do. Compare by identity."""

    __slots__ = (
        "_all_rights", "hashing_algorithm", "name", "password_hash", "permissions", "scram", "tags",
        "topics",
    )  # fmt: skip

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
        self.scram = ""
        """What a log-in by SCRAM-SHA-256 needs, see `auth/scram.py`; empty: there is none."""
        self.tags = parse_tags(",".join(tags))
        self.permissions: dict[str, Permissions] = {}
        self.topics: Topics = {}
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
        return self._all_rights or (granted is not None and allows(granted.configure, resource))

    def can_read(self, vhost: str, resource: str) -> bool:
        """Whether the user may consume, get, purge and bind from the queue or exchange."""
        granted = self.permissions.get(vhost)
        return self._all_rights or (granted is not None and allows(granted.read, resource))

    def can_write(self, vhost: str, resource: str) -> bool:
        """Whether the user may publish and bind to the queue or exchange."""
        granted = self.permissions.get(vhost)
        return self._all_rights or (granted is not None and allows(granted.write, resource))

    def can_write_all(self, vhost: str) -> bool:
        """Whether the user may publish to whatever exchange there is or will be, with every key."""
        granted = self.permissions.get(vhost)
        if granted is None or granted.write.regex not in permissions.EVERYTHING:
            return self._all_rights
        return all(about.is_any_written for about in self.topics.get(vhost, {}).values())

    def key_rights(self, vhost: str, exchange: str) -> TopicPermissions | None:
        """What the user may do with the keys of a topic exchange; None: anything."""
        about = self.topics.get(vhost)
        return about.get(exchange) if about else None

    def topic_rows(self) -> Iterator[TopicRow]:
        """The topic permissions of the user."""
        for vhost, about in self.topics.items():
            for exchange, granted in about.items():
                yield TopicRow(self.name, vhost, exchange, granted.write, granted.read)

    def become(self, other: "User") -> None:
        """Be what another one of this name is."""
        self.password_hash, self.hashing_algorithm = other.password_hash, other.hashing_algorithm
        self.scram, self.tags = other.scram, other.tags
        self.permissions, self.topics = other.permissions, other.topics

    def __repr__(self) -> str:
        return f"User({self.name!r}, tags={','.join(self.tags)!r})"


class UserStore:
    """All users of the broker. Call `load` before anything else.

    Args:
        default_user: created on the first start, an administrator with all rights on `/`.
        default_password_hash: its salted hash; the text tells of which kind.
        default_user_only_loopback: whether it may log in from this machine only; may be changed.
        default_password: hashed when that user is created, instead of the hash that is given.
        disk: see `files/saving.py`.
    """

    def __init__(
        self,
        data_dir: Path,
        default_user: str,
        default_password_hash: str,
        default_user_only_loopback: bool,
        default_password: str | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.path = data_dir / FILE_NAME
        self._topic_file = TopicFile(data_dir)
        self._scram_file = ScramFile(data_dir)
        self._file = SavedFile(
            self.path, disk, lambda: self._topic_file.changes() + self._scram_file.changes()
        )
        self._undo: list[Callable[[], object]] = []  # what has changed since the last save
        self.on_undone: Callable[[], object] = bool
        """Is called when changes were taken back, because they could not be saved."""
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
            # What is moved keeps the user whom its broker has checked.
            ("administrator", "impersonator"),
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
        self._load_others()
        self.epoch += 1
        log.debug("%d users loaded", len(self._users))

    def read_anew(self) -> "UserStore":
        """What the files say, which somebody else writes. Blocking; from any thread. Raises:
        DefinitionsError."""
        if not self.path.exists():
            raise DefinitionsError(f"{self.path} is missing")
        found = UserStore(self.path.parent, "", "", True)
        found.load(create_default=False)
        return found

    def follow(self, found: "UserStore") -> None:
        """Have the users that were read anew: those that stay are the same objects, so whoever has
        logged in goes by what counts now. Nothing is written."""
        for name, user in found._users.items():
            known = self._users.get(name)
            if known is not None:
                known.become(user)
                found._users[name] = known
        self._users, self._kept = found._users, found._kept
        self.epoch += 1

    def save(self, act: Callable[[], object] = bool) -> None:
        """Save what has changed since the last time; what cannot be saved is taken back.

        Args: act: is called when it is on disk.
        Raises: DefinitionsError when the disk refuses at once.
        """
        changes, self._undo = self._undo, []
        undo = partial(self._take_back, changes)
        try:
            self._file.save(self._text, undo, changes, act)
        except DefinitionsError:
            undo()
            raise

    async def saved(self) -> None:
        """Wait until all changes so far are on disk, or taken back."""
        await self._file.saved()

    def _text(self) -> Iterator[str]:
        yield from json_list(chain(map(_to_json, self.all()), self._kept))
        for _ in self._topic_file.preparing(self.topic_rows()):
            yield ""  # others have their turn
        for _ in self._scram_file.preparing(self._scram_rows()):
            yield ""

    def _scram_rows(self) -> Iterator[Row]:
        for user in self.all():
            if user.scram:
                yield Row(user.name, user.password_hash, user.scram)

    def _take_back(self, changes: list[Callable[[], object]]) -> None:
        for each in reversed(changes):
            each()
        self._topic_file.changed()
        self._scram_file.changed()
        self.epoch += 1
        self.on_undone()

    def topic_rows(self) -> Iterator[TopicRow]:
        """The topic permissions of all users. It bears changes meanwhile."""
        for user in self.all():
            yield from user.topic_rows()

    def _load_others(self) -> None:
        """Read the topic permissions, of which what does not compile denies everything, and what
        SCRAM needs. Raises: DefinitionsError."""
        for row in self._scram_file.load():
            known = self._users.get(row.user)
            if known is not None and known.password_hash == row.password_hash:
                known.scram = row.keys
        for each in self._topic_file.load():
            user = self._users.get(each.user)
            if user is None:
                log.warning("topic permission of user %r, who is not there: ignored", each.user)
            else:
                user.topics = _with_topic(user, each)

    def admit(self, name: str, is_loopback: bool) -> User | None:
        """The user of that name, the hidden one too, if it may come from there; else None."""
        user = self.direct_user if name == DIRECT_USER else self._users.get(name)
        if user is None:
            return None
        return None if self.is_kept_out(name, is_loopback) else user

    def why_not(self, name: str, is_loopback: bool) -> str:
        """Why somebody who claims that name did not log in, for the log."""
        user = self.direct_user if name == DIRECT_USER else self._users.get(name)
        if user is None:
            return "there is no such user"
        if self.is_kept_out(name, is_loopback):
            return "this user may only log in from this machine (default_user_only_loopback)"
        return "wrong password" if user.password_hash else "this user has no password"

    def is_kept_out(self, name: str, is_loopback: bool) -> bool:
        """Whether a local user of that name may not come from there."""
        return name == self.default_user and self.default_user_only_loopback and not is_loopback

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

    def has(self, user: User) -> bool:
        """Whether it is one of these, and not a deleted one, whose name somebody else may have."""
        return user is self.direct_user or self._users.get(user.name) is user

    def all(self) -> list[User]:
        """All users in the order of their creation, without the hidden one."""
        return list(self._users.values())

    def add(
        self, name: str, password_hash: str, hashing_algorithm: str | None,
        tags: Iterable[str] = (), keys: str | None = None,
    ) -> User:  # fmt: skip
        """Create a user, or give an existing one another password and tags.

        Args: keys: see `User.scram`; None: what there is stays with the same hash.
        Raises: PasswordHashError when the hash cannot be used; ValueError for the hidden name, or
            keys that are none.
        """
        if name == DIRECT_USER:
            raise ValueError(f"{DIRECT_USER} is the name of the broker's own user")
        passwords.validate(password_hash, hashing_algorithm)
        if keys:
            scram.parse(keys)
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = User(name)
            self._undo.append(partial(self._users.pop, name, None))
        else:
            self._undo.append(
                partial(
                    _restore, user, user.password_hash, user.hashing_algorithm, user.scram,
                    user.tags,
                )
            )  # fmt: skip
        before = user.scram
        if keys is not None:
            user.scram = keys
        elif password_hash != user.password_hash:
            user.scram = ""
        if (user.scram or before) and (user.scram, password_hash) != (before, user.password_hash):
            self._scram_file.changed()
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
        if user.scram:
            self._scram_file.changed()
        self._undo.append(partial(self._users.__setitem__, name, user))
        for vhost in list(user.permissions):
            self._remove_permissions(user, vhost)
        self._set_topics(user, {}, going=list(user.topic_rows()))
        self.epoch += 1
        return True

    def set_permissions(self, name: str, vhost: str, configure: str, read: str, write: str) -> None:
        """Set what a user may do in a virtual host.

        Raises: KeyError when there is no such user, ValueError when an expression is invalid.
        """
        user = self._users[name]
        for regex in (configure, read, write):
            permissions.check(regex)
        self._undo.append(_permission_back(user, vhost))
        user.permissions[vhost] = Permissions.of(configure, read, write)
        self.epoch += 1

    def grant(self, name: str, vhost: str) -> None:
        """Give a user all rights in a virtual host. Raises: KeyError."""
        self.set_permissions(name, vhost, ".*", ".*", ".*")

    def remove_permissions(self, name: str, vhost: str) -> bool:
        """Take a virtual host from a user. Returns: whether it had it. Raises: KeyError."""
        removed = self._remove_permissions(self._users[name], vhost)
        self.epoch += removed
        return removed

    def _remove_permissions(self, user: User, vhost: str) -> bool:
        if vhost not in user.permissions:
            return False
        self._undo.append(_permission_back(user, vhost))
        del user.permissions[vhost]
        return True

    def set_topic_permissions(self, row: TopicRow) -> None:
        """Set what a user may do with the keys of an exchange.

        Raises: KeyError when there is no such user, ValueError when an expression is invalid.
        """
        user = self._users[row.user]
        for regex in (row.write, row.read):
            topics.check(regex)
        self._set_topics(user, _with_topic(user, row))
        self.epoch += 1

    def remove_topic_permissions(self, name: str, vhost: str, exchange: str | None = None) -> bool:
        """Allow all keys of an exchange again, or those of all exchanges of a virtual host.

        Returns: whether there was anything to take away. Raises: KeyError for an unknown user.
        """
        user = self._users[name]
        about = user.topics.get(vhost, {})
        left = {x: each for x, each in about.items() if exchange is not None and x != exchange}
        removed = len(left) < len(about)
        self._set_topics(user, {**user.topics, vhost: left} if left else _without(user, vhost))
        self.epoch += removed
        return removed

    def _set_topics(self, user: User, new: Topics, going: Iterable[TopicRow] = ()) -> None:
        if new != user.topics:
            self._undo.append(partial(setattr, user, "topics", user.topics))
            self._topic_file.changed(going)
            user.topics = new

    def forget_vhost(self, vhost: str) -> bool:
        """Take a virtual host that is not there from all users. Returns: whether one had rights."""
        had_rights = False
        for user in self._users.values():
            had_rights |= vhost in user.permissions or vhost in user.topics
            self._remove_permissions(user, vhost)
            self._set_topics(user, _without(user, vhost))
        self.epoch += 1
        return had_rights

    def _first_start(self, create_default: bool) -> None:
        """Make the file, with the default user unless definitions are going to be imported."""
        if self._topic_file.load():
            self._topic_file.changed()  # those were others
        if create_default:
            self.add_default()
        self.save()

    def add_default(self) -> None:
        """Add the default user, as the first start does. Cost: up to 40 ms for a plain password."""
        keys = None
        if self._default_password:
            password = self._default_password.encode()
            password_hash = passwords.hash_password(password)
            keys = str(scram.keys_of(password))
        else:
            password_hash = self.default_password_hash
        self.add(
            self.default_user,
            password_hash,
            passwords.algorithm_of(password_hash),
            ("administrator",),
            keys,
        )
        self.grant(self.default_user, "/")


def _restore(
    user: User, password_hash: str, algorithm: str | None, keys: str, tags: tuple[str, ...]
) -> None:
    user.password_hash, user.hashing_algorithm = password_hash, algorithm
    user.scram, user.tags = keys, tags


def _with_topic(user: User, row: TopicRow) -> Topics:
    """The topic permissions of a user with another one."""
    granted = TopicPermissions(row.user, row.vhost, row.write, row.read)
    return {**user.topics, row.vhost: {**user.topics.get(row.vhost, {}), row.exchange: granted}}


def _without(user: User, vhost: str) -> Topics:
    """Those of all other virtual hosts."""
    return {name: about for name, about in user.topics.items() if name != vhost}


def _permission_back(user: User, vhost: str) -> Callable[[], object]:
    """What takes a change of permissions back."""
    old = user.permissions.get(vhost)
    if old is None:
        return partial(user.permissions.pop, vhost, None)
    return partial(user.permissions.__setitem__, vhost, old)


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
