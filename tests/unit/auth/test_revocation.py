"""What may be no more ends, whatever happens to another one meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from lavinmq.auth.revocation import Named, Revocation
from lavinmq.errors import ReplyCode


@dataclass
class _User:
    name: str = "guest"


class _Standing:
    """A log-in that is over."""

    user = _User()

    def why_over(self, _users: object) -> str:
        return "deleted"


@dataclass
class _Session:
    """A connection whose end fails, or not."""

    name: str
    fails: bool
    ended: list[str]
    standing: Any = field(default_factory=_Standing)
    is_member: bool = False
    channels: Mapping[int, Any] = field(default_factory=dict)

    @property
    def vhost(self) -> Named:
        raise NotImplementedError

    def expel(self, code: ReplyCode, text: str) -> None:
        if self.fails:
            raise MemoryError
        self.ended.append(self.name)

    def user_changed(self) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class _Reader:
    name: str
    fails: bool
    ended: list[str]

    def may_go_on(self) -> bool:
        return False

    def close(self) -> None:
        if self.fails:
            raise OSError
        self.ended.append(self.name)


def test_one_that_cannot_be_ended_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    later: list[partial[object]] = []
    connections = [_Session("bad", fails=True, ended=ended), _Session("a", False, ended)]
    users: Any = None
    revocation = Revocation(users, connections, lambda *call: later.append(partial(*call)))
    for reader in (_Reader("bad reader", True, ended), _Reader("reader", False, ended)):
        revocation.watch(reader)

    def look() -> None:
        revocation.look_again("guest")
        while later:  # on a busy machine the portion may be over
            later.pop(0)()

    look()
    assert ended == ["reader", "a"]
    assert "cannot be ended" in caplog.text
    assert "MemoryError" in caplog.text
    assert "OSError" in caplog.text

    look()
    assert ended == ["reader", "a"] * 2


def test_others_are_asked_when_rights_have_changed_and_not_for_a_log_in() -> None:
    """Who has something of a user without a connection."""
    asked: list[set[str | None]] = []
    later: list[partial[object]] = []
    users: Any = None
    revocation = Revocation(users, [], lambda *call: later.append(partial(*call)))

    def also(names: set[str | None]) -> Iterator[None]:
        asked.append(names)
        yield

    revocation.also.append(also)
    for name, is_login in (("token", True), ("guest", False), (None, False)):
        revocation.look_again(name, is_login=is_login)
        while later:
            later.pop(0)()

    assert asked == [{"guest"}, {None}]
