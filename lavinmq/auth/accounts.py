"""Users and permissions as administrators change them while the broker runs.

Each change acts at once, also on connections that are open, and is then saved, see
`files/saving.py`. One that cannot be saved is taken back, and DefinitionsError is raised, here or
where the save is waited for; the connections that it has ended stay ended. What else is kept of a
user goes when the user has gone from the disk, and, should that have failed, before another one
gets the name: limits without a user limit nobody, and a user without his limits might do too much.
Source: docs/authentication.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lavinmq.auth import passwords, scram
from lavinmq.auth.users import UserStore
from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import gathered
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.chain import Chain
    from lavinmq.auth.topics import TopicRow
    from lavinmq.config.values import Config


_log = log.get("lmq.accounts")


class PasswordHash(NamedTuple):
    """A stored hash: what `put_user` takes as `password_hash` and `hashing_algorithm`."""

    text: str
    algorithm: str | None
    keys: str | None = None
    """Of SCRAM, see `auth/scram.py`."""


class Accounts:
    """The users of a broker and what hangs on them.

    Args:
        users: the store behind.
        on_permissions: is told that somebody's permissions have changed, in one virtual host or,
            for None, in all: open connections have to ask again.
        on_user: is told the name of a user who may have lost something, after `on_permissions`;
            None: it may have been anybody. Other tags, another password and the end count too.
        on_deleted: is told the name of a user who is gone: nothing else may be left of him. Raises:
            DefinitionsError when that cannot be saved.
        chain: computes slow hashes without holding up the loop.
        config: names the kind of new hashes; read when it is needed.
    """

    def __init__(
        self, users: UserStore, on_permissions: Callable[[str | None], None],
        on_user: Callable[[str | None], None], on_deleted: Callable[[str], None],
        chain: Chain, config: Config,
    ) -> None:  # fmt: skip
        self._users = users
        self._on_permissions = on_permissions
        self._on_user = on_user
        self._on_deleted = on_deleted
        self._chain = chain
        self.config = config
        users.on_undone = self._tell_all

    async def hash_password(
        self, password: bytes, name: str = "", origin: str = ""
    ) -> PasswordHash:
        """The hash for a password that an administrator gives to a user; then call `put_user`.

        Args: name: of the user, who keeps the present hash if the password is the present one;
            origin: the address of the administrator.
        Raises: HashingBusy; ValueError for a password that cannot be hashed.
        Cost: 50 ms in a thread, and nothing on the loop.
        """
        user = self._users.get(name)
        if user is not None:
            # What is found out is about this one; another may be given meanwhile.
            present = PasswordHash(user.password_hash, user.hashing_algorithm, user.scram)
            if await self._chain.verification.is_password(user, password, origin):
                keys = present.keys or await self._chain.scram_keys(password, origin)
                return present._replace(keys=keys)
        kind = self.config.password_hashing_algorithm
        keys = await self._chain.scram_keys(password, origin)
        return PasswordHash(*await self._chain.hash_password(password, kind, origin), keys)

    async def clear(self, name: str) -> None:
        """Await it before somebody gets the name of a user: nothing is left of an earlier one then.

        Raises: DefinitionsError when that cannot be saved.
        """
        if self._users.get(name) is None:
            await self._users.saved()  # else a deletion could be taken back that has gone too far
        if self._users.get(name) is None:
            async with gathered():
                self._on_deleted(name)

    def put_user(
        self, name: str, *, password: bytes | None = None, password_hash: str | None = None,
        hashing_algorithm: str | None = passwords.DEFAULT_ALGORITHM,
        keys: str | None = None, tags: Iterable[str] | None = None,
    ) -> bool:  # fmt: skip
        """Create a user, or change one; see `clear`.

        Args:
            password: hashed here, which holds up the caller for some 50 ms: on a loop that
                others need, await `hash_password` before. The one that the user has keeps its hash.
            password_hash: a hash made elsewhere; the empty one forbids log-in.
            keys: of SCRAM for the same password, see `auth/scram.py`; None: those that there are
                for that hash, if any.
            tags: unknown ones are ignored; None: as they are.
        Returns: whether the user is new.
        Raises: ValueError for a new user without either, for the hidden name and for a hash that
            cannot be used; DefinitionsError.
        """
        user = self._users.get(name)
        if user is None and password is None and password_hash is None:
            raise ValueError(
                "Field 'password_hash' or 'password' is required when creating new user"
            )
        if password is not None:
            if user is None or not self._users.is_password(user, password):
                kind = self.config.password_hashing_algorithm
                password_hash = passwords.hash_password(password, kind)
                hashing_algorithm = passwords.ALGORITHMS[kind]
                keys = str(scram.keys_of(password))
            else:
                keys = user.scram or str(scram.keys_of(password))
                password_hash, hashing_algorithm = user.password_hash, user.hashing_algorithm
        elif password_hash is None and user is not None:
            password_hash, hashing_algorithm = user.password_hash, user.hashing_algorithm
        if tags is None:
            tags = user.tags if user is not None else ()
        self._users.add(
            name, password_hash or "", hashing_algorithm if password_hash else None, tags, keys
        )
        if user is not None:
            self._on_user(name)
        self._users.save()
        return user is None

    def delete_users(self, *names: str) -> list[str]:
        """Delete users; what they may do ends at once, and so do their connections.

        Returns: those that there were; the others are ignored. Raises: DefinitionsError.
        """
        deleted = [name for name in names if self._users.delete(name)]
        if deleted:
            self._on_permissions(None)
            for name in deleted:
                self._on_user(name)
            self._users.save(partial(self._forget, deleted))
        return deleted

    def _forget(self, names: list[str]) -> None:
        """They have gone from the disk, or so it was: names may have been given anew."""
        for name in names:
            if self._users.get(name) is None:
                try:
                    self._on_deleted(name)
                except DefinitionsError as error:
                    _log.error("user %r is gone, his limits are not yet: %s", name, error)

    def set_permissions(self, name: str, vhost: str, configure: str, read: str, write: str) -> bool:
        """Set what a user may do in a virtual host, which the caller knows to exist.

        Returns: whether it had none there. Raises: KeyError for an unknown user, ValueError for an
            expression that does not compile, DefinitionsError.
        """
        user = self._users.get(name)
        had = user is not None and user.has_vhost(vhost)
        self._users.set_permissions(name, vhost, configure, read, write)
        self._on_permissions(vhost)
        self._on_user(name)
        self._users.save()
        return not had

    def remove_permissions(self, name: str, vhost: str) -> bool:
        """Take a virtual host from a user. Returns: whether it had permissions there.

        Raises: KeyError for an unknown user, DefinitionsError.
        """
        removed = self._users.remove_permissions(name, vhost)
        if removed:
            self._on_permissions(vhost)
            self._on_user(name)
            self._users.save()
        return removed

    def set_topic_permissions(self, row: TopicRow) -> bool:
        """Set what a user may do with the keys of an exchange.

        Returns: whether nothing was said about that exchange. Raises: as `set_permissions`.
        """
        user = self._users.get(row.user)
        had = user is not None and row.exchange in user.topics.get(row.vhost, ())
        self._users.set_topic_permissions(row)
        self._on_permissions(row.vhost)
        self._on_user(row.user)
        self._users.save()
        return not had

    def remove_topic_permissions(self, name: str, vhost: str, exchange: str | None = None) -> bool:
        """Allow a user all keys of an exchange again, or of all exchanges of a virtual host.

        Returns: whether anything was said about them. Raises: KeyError for an unknown user,
            DefinitionsError.
        """
        removed = self._users.remove_topic_permissions(name, vhost, exchange)
        if removed:
            self._on_permissions(vhost)
            self._on_user(name)
            self._users.save()
        return removed

    def changed(self) -> None:
        """Users and permissions have been changed in the store, many at once: tell of it and save.

        Raises: DefinitionsError.
        """
        self._tell_all()
        self._users.save()

    def _tell_all(self) -> None:
        self._on_permissions(None)
        self._on_user(None)
