"""Limits on how many of something a virtual host or a user may have, and their files.

`limits.json` of a virtual host is LavinMQ's. Users have theirs in `user_limits.json`, a file of our
own: `users.json` has to stay readable by LavinMQ, which would drop what it does not know when it
writes it; and a global parameter, which it would keep, may be changed by policymakers.
A negative limit is none. Only what comes anew is measured. Without a file that is there nobody is
served whom it limits. What is left of a user who is not there is forgotten before another one gets
the name, see `auth/accounts.py`.
Source: docs/policies.md, docs/formats.md.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from lavinmq.arguments.keys import is_integer
from lavinmq.errors import DefinitionsError
from lavinmq.files.json_file import JsonFile
from lavinmq.files.saving import Disk
from lavinmq.process.log import get

log = get("lmq.limits")

VHOST_LIMITS: Final = ("max-connections", "max-queues")
USER_LIMITS: Final = ("max-connections", "max-channels")


class VHostLimits:
    """The limits of one virtual host. Call `load` once. Args: disk: see `files/saving.py`."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._file = JsonFile(path, disk, is_needed=True)
        self._values: dict[str, Any] = {}

    def load(self) -> None:
        """Read the file. Raises: DefinitionsError when it cannot be read or understood."""
        self._values = self._file.load(dict, _check_vhost) or {}

    def release(self) -> None:
        """Write nothing more. In a thread."""
        self._file.release()

    @property
    def max_connections(self) -> int | None:
        """How many connections it may have."""
        return self.all().get("max-connections") if self._values else None

    @property
    def max_queues(self) -> int | None:
        """How many queues it may have."""
        return self.all().get("max-queues") if self._values else None

    def all(self) -> dict[str, int]:
        """The limits that are set."""
        return _usable(self._values, VHOST_LIMITS)

    def set(self, limit: str, value: int) -> None:
        """Set a limit, or take it away by a negative value.

        Raises: ValueError for another limit or no integer; DefinitionsError when the file cannot be
            saved; nothing has changed then, or it is taken back when that turns out later.
        """
        values = _changed(self._values, limit, value, VHOST_LIMITS)
        self._file.save(values, partial(setattr, self, "_values", self._values))
        self._values = values

    def clear(self, limit: str) -> None:
        """Take a limit away, if there is one. Raises: as `set`."""
        self.set(limit, -1)


class UserLimits:
    """The limits of all users. Call `load` once. Args: disk: see `files/saving.py`."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._file = JsonFile(path, disk, is_needed=True)
        self._values: dict[str, Any] = {}

    def load(self) -> None:
        """Read the file. Raises: DefinitionsError when it cannot be read or understood."""
        self._values = self._file.load(dict, _check_users) or {}

    def of(self, user: str) -> dict[str, int]:
        """The limits of one user."""
        values = self._values.get(user)
        return _usable(values, USER_LIMITS) if isinstance(values, dict) else {}

    def all(self) -> dict[str, dict[str, int]]:
        """Users with limits."""
        return {user: limits for user in self._values if (limits := self.of(user))}

    def set(self, user: str, limit: str, value: int) -> None:
        """Set a limit, or take it away by a negative value. Raises: as `VHostLimits.set`."""
        old = self._values.get(user)
        limits = _changed(old if isinstance(old, dict) else {}, limit, value, USER_LIMITS)
        self._change(user, limits or None)

    def forget(self, user: str) -> None:
        """The user is gone. Raises: DefinitionsError when the file cannot be saved."""
        if user in self._values:
            self._change(user, None)

    def _change(self, user: str, limits: dict[str, int] | None) -> None:
        """Give a user other limits, or none, and have that saved. Each change costs the same,
        however many users have limits: the file is made of what there is when it is written."""
        undo = partial(self._put, user, self._values.get(user))
        self._put(user, limits)
        try:
            self._file.save_table(self._rows, undo)
        except DefinitionsError:
            undo()
            raise

    def _put(self, user: str, limits: dict[str, Any] | None) -> None:
        if limits is None:
            self._values.pop(user, None)
        else:
            self._values[user] = limits

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """What there is, also while it changes."""
        for user in list(self._values):
            if limits := self._values.get(user):
                yield user, limits


def _check_vhost(values: dict[str, Any]) -> None:
    """Look at what a file says. Raises: ValueError when it does not tell how much is allowed."""
    _check(values, VHOST_LIMITS)


def _check_users(values: dict[str, Any]) -> None:
    """The same for the limits of users."""
    for user, limits in values.items():
        if not isinstance(limits, dict):
            raise ValueError(f"the limits of user {user!r} are not an object")
        _check(limits, USER_LIMITS)


def _check(values: dict[str, Any], known: tuple[str, ...]) -> None:
    for limit in known:
        if not (values.get(limit) is None or is_integer(values[limit])):
            raise ValueError(f"{limit} is {values[limit]!r}, which is no integer")


def _usable(values: dict[str, Any], known: tuple[str, ...]) -> dict[str, int]:
    """What of the stored values limits something."""
    if not values:
        return {}
    return {key: values[key] for key in known if is_integer(values.get(key)) and values[key] >= 0}


def _changed(
    values: dict[str, Any], limit: str, value: int, known: tuple[str, ...]
) -> dict[str, Any]:
    """The values with one more, or one less. Raises: ValueError."""
    if limit not in known:
        raise ValueError(f"Unknown limit {limit!r}; one of {', '.join(known)}")
    if not is_integer(value):
        raise ValueError(f"Limit {limit} has to be an integer")
    rest = {key: old for key, old in values.items() if key != limit}
    return rest if value < 0 else {**rest, limit: value}
