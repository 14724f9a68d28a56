"""The backend `local`: the users of `users.json`, with their passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lavinmq.auth.attempt import Attempt
from lavinmq.auth.users import User, UserStore
from lavinmq.auth.verification import Verification

if TYPE_CHECKING:
    from lavinmq.config.values import Config


class Local:
    """The users of the data directory."""

    def __init__(self, users: UserStore, verification: Verification, config: Config) -> None:
        self.users = users
        self._verification = verification
        self.config = config

    def at_once(self, attempt: Attempt) -> User | None:
        """The user, if that can be told without waiting."""
        user = self.users.admit(attempt.name, attempt.is_loopback)
        if user is not None and self._verification.is_known(user, attempt.password):
            return user
        return None

    async def authenticate(self, attempt: Attempt) -> User | None:
        """The user, or None. Raises: HashingBusy."""
        user = self.users.admit(attempt.name, attempt.is_loopback)
        if user is None:
            if not attempt.is_token:  # which somebody else will recognize
                await self._verification.pretend(
                    attempt.password, self.config.password_hashing_algorithm, attempt.address
                )
            return None
        if not await self._verification.is_password(user, attempt.password, attempt.address):
            return None
        # The user may have been deleted, or changed, while we waited.
        return self.at_once(attempt)
