"""Users that are there when a broker starts, for tests of who may do what."""

from __future__ import annotations

from pathlib import Path

from lavinmq.auth import passwords
from lavinmq.auth.users import UserStore

People = dict[str, tuple[str, dict[str, tuple[str, str, str]]]]
"""Name → tags, and the permissions to configure, read and write by virtual host."""


def write(data_dir: Path, people: People) -> None:
    """Write users.json with guest and these; the password of each is its name and `-pw`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    store = UserStore(data_dir, "guest", passwords.hash_password(b"guest"), True)
    store.load()
    for name, (tags, permissions) in people.items():
        hashed = passwords.hash_password(f"{name}-pw".encode())
        store.add(name, hashed, passwords.DEFAULT_ALGORITHM, tags.split(","))
        for vhost, rights in permissions.items():
            store.set_permissions(name, vhost, *rights)
    store.save()
