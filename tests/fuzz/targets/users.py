"""Any bytes as users.json: refused with a DefinitionsError, or the same after writing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lavinmq.auth import passwords
from lavinmq.auth.users import FILE_NAME, UserStore
from lavinmq.errors import DefinitionsError
from tests.fuzz.targets import Target


def meaning(store: UserStore) -> list[Any]:
    """Everything that is kept of the users, comparable."""
    users = store.all()
    granted = {
        (user.name, vhost): (rules.configure.regex, rules.read.regex, rules.write.regex)
        for user in users
        for vhost, rules in user.permissions.items()
    }
    known = [(user.name, user.password_hash, user.hashing_algorithm, user.tags) for user in users]
    return [*known, granted]


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def load() -> UserStore:
        store = UserStore(directory, "guest", "", True)
        store.load()
        return store

    def read(data: bytes) -> None:
        (directory / FILE_NAME).write_bytes(data)
        try:
            store = load()
        except DefinitionsError:
            return
        before = meaning(store)
        for user in store.all():
            if not passwords.is_slow(user.hashing_algorithm):
                store.authenticate(user.name, b"password", True)
            user.can_write("/", "queue")
        store.save()
        assert meaning(load()) == before

    yield read
