"""Whether somebody who has logged in still is who that was.

Kept by whatever outlives its log-in: connections, and long answers of the HTTP API. What a user may
do is asked of the `Identity`; this is about having logged in at all.
"""

from __future__ import annotations

import time
from typing import Final

from lavinmq.auth.identity import Identity
from lavinmq.auth.users import User, UserStore


class Standing:
    """A log-in that has succeeded.

    Args: by_password: whether it took the password, and so ends when that becomes another.
    """

    __slots__ = ("_hash", "user")

    def __init__(self, user: Identity, *, by_password: bool = True) -> None:
        self.user: Final = user
        # The same password keeps its hash; another hash may be of another password.
        self._hash = user.password_hash if by_password and isinstance(user, User) else None

    def is_like(self, other: Standing) -> bool:
        """Whether both come to the same: one user, by the same password or by none."""
        return self.user is other.user and self._hash == other._hash

    def why_over(self, users: UserStore) -> str:
        """Why it does not count any more, for people; empty as long as it does."""
        user = self.user
        if not isinstance(user, User):
            is_expired = user.expires_at is not None and user.expires_at <= time.time()
            return "token expired" if is_expired else ""
        if not users.has(user):
            return f"User '{user.name}' is deleted"
        if self._hash not in (None, user.password_hash):
            return f"User '{user.name}' has another password"
        return ""
