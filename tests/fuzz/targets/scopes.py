"""Any JSON as the claims of a verified token: a user with rights, or refused in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.auth.attempt import TokenError
from lavinmq.auth.scopes import ClaimReader
from lavinmq.auth.users import TAGS
from tests.fuzz.targets import Target


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    reader = ClaimReader("broker", ("sub", "client_id"), ("more",), "")

    def read(data: bytes) -> None:
        try:
            claims = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(claims, dict):
            return
        try:
            user = reader.user(claims | {"exp": 1})
        except TokenError:
            return
        assert user.name.isprintable() and set(user.tags) <= set(TAGS)
        for vhost in ("/", "v", ""):
            rights = (user.can_configure(vhost, "q"), user.can_read(vhost, "q"))
            assert user.has_vhost(vhost) or not any(rights)

    yield read
