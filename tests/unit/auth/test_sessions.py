"""Log-ins with a browser: how long, how many, and whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavinmq.auth import sessions
from lavinmq.auth.sessions import Sessions, TooManySessions
from lavinmq.auth.users import UserStore


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Somebody:
    """A user of an issuer, who is in no list of ours."""

    tags = ("management",)
    expires_at: float | None = None

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(tmp_path: Path, clock: Clock) -> Sessions:
    return Sessions(UserStore(tmp_path, "guest", "", True), clock)


def open_for(kept: Sessions, name: str) -> str:
    return kept.open(Somebody(name))  # type: ignore[arg-type]


def test_a_token_leads_to_its_user(kept: Sessions) -> None:
    one, other = open_for(kept, "anna"), open_for(kept, "bert")
    found = kept.find(one), kept.find(other)
    assert [each and each.user.name for each in found] == ["anna", "bert"]
    assert kept.find("guessed") is None
    assert kept.find("\udcff") is None


def test_a_log_in_ends_with_its_time(kept: Sessions, clock: Clock) -> None:
    token = open_for(kept, "anna")
    clock.now += sessions.LIFE_S - 1
    assert kept.find(token) is not None
    clock.now += 1
    assert kept.find(token) is None
    assert len(kept) == 0


def test_those_that_nobody_asks_for_any_more_go_with_the_next_one(
    kept: Sessions, clock: Clock
) -> None:
    for _ in range(5):
        open_for(kept, "anna")
    clock.now += sessions.LIFE_S
    open_for(kept, "bert")
    assert len(kept) == 1


def test_the_first_of_too_many_of_a_user_ends(kept: Sessions) -> None:
    tokens = [open_for(kept, "anna") for _ in range(sessions.MAX_OF_USER + 1)]
    assert kept.find(tokens[0]) is None
    assert kept.find(tokens[1]) is not None
    assert len(kept) == sessions.MAX_OF_USER


def test_users_cannot_push_out_others(kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    tokens = [open_for(kept, name) for name in ("anna", "bert", "carl")]
    with pytest.raises(TooManySessions):
        open_for(kept, "dora")
    assert all(kept.find(token) for token in tokens)


def test_a_log_in_that_has_ended_says_so_to_those_who_hold_it(kept: Sessions) -> None:
    one, other, third = open_for(kept, "anna"), open_for(kept, "anna"), open_for(kept, "bert")
    held = [kept.find(token) for token in (one, other, third)]
    kept.close(one)
    kept.close(one)
    assert [each and each.is_over for each in held] == [True, False, False]
    assert kept.close_all("anna") == 1
    assert [each and each.is_over for each in held] == [True, True, False]
