"""When a follower that cannot follow tries again, and how often it says so."""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lavinmq._cluster import Ring
from lavinmq.cluster import frames
from lavinmq.cluster.following import AGAIN_S, STAGE_S, Following
from lavinmq.cluster.history import History
from lavinmq.cluster.joining import StageFailed
from lavinmq.files.standing import Standing

N = 15
FULL = StageFailed(errno.ENOSPC, "No space left on device")


class Pauses:
    """The event of a node that is to end, after some attempts."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def is_set(self) -> bool:
        return len(self.seen) == N

    def wait(self, seconds: float) -> bool:
        self.seen.append(seconds)
        return self.is_set()


def pauses_after(tmp_path: Path, error: Exception) -> list[float]:
    """How long a node waits between attempts that end like this."""

    def fails() -> None:
        raise error

    made: Any = Following(
        "tcp://127.0.0.1:1", "me", b"", Ring(1 << 22), str(tmp_path), Standing(str(tmp_path)),
        History(), certificates=None, call=print, key=str, on_dead=bool, on_disk=print,
    )  # fmt: skip
    made._is_over, made._once = Pauses(), fails
    made._run()
    seen: list[float] = made._is_over.seen
    return seen


def test_a_node_without_room_to_join_tries_less_and_less_often_and_says_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".joining").mkdir()
    with caplog.at_level(logging.WARNING, "lmq.cluster"):
        found = pauses_after(tmp_path, FULL)

    assert found == sorted(found)
    assert found[0] < AGAIN_S
    assert found[-1] == STAGE_S
    assert [each.message for each in caplog.records] == [
        "does not follow tcp://127.0.0.1:1: what comes finds no place on the disk: No space left on"
        " device"
    ]
    assert not (tmp_path / ".joining").exists(), "others have the room meanwhile"


def test_a_leader_that_does_not_answer_is_tried_often(tmp_path: Path) -> None:
    assert max(pauses_after(tmp_path, TimeoutError("timed out"))) == AGAIN_S


def test_who_leads_since_a_connection_was_refused_is_not_taken_for_dead(tmp_path: Path) -> None:
    """A leader that was started anew is there by another key, at the same address."""
    keys, dead = ["leader/1", "leader/2"], []

    def refused() -> None:
        keys.pop(0)  # meanwhile it leads again
        made._is_over.seen += [0.0] * (N - 1)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    made: Any = Following(
        "tcp://127.0.0.1:1", "me", b"", Ring(1 << 22), str(tmp_path), Standing(str(tmp_path)),
        History(), certificates=None, call=lambda call, *args: call(*args), key=lambda: keys[0],
        on_dead=dead.append, on_disk=print,
    )  # fmt: skip
    made._is_over, made._once = Pauses(), refused
    made._run()

    assert dead == ["leader/1"]


def test_a_machine_that_takes_what_is_sent_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        with ours, server.accept()[0]:
            ours.sendall(b"x")
            assert frames.is_heard(ours, 60)
            assert not frames.is_heard(ours, -1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not frames.is_heard(ours, 60), "the kernel does not tell"


def test_a_node_at_a_limit_of_threads_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread ended, and nobody followed any more."""
    with caplog.at_level(logging.WARNING, "lmq.cluster"):
        found = pauses_after(tmp_path, RuntimeError("can't start new thread"))

    assert len(found) == N
    assert "can't start new thread" in caplog.text


def test_damage_that_is_found_while_files_are_replaced_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = Standing(str(tmp_path))
    standing.note(is_whole=True)

    def repaired(_: float) -> bool:
        standing.note_damage(is_damaged=True)  # found just now, behind what was counted
        return True

    made: Any = Following(
        "tcp://127.0.0.1:1", "me", b"", Ring(1 << 22), str(tmp_path), standing, History(),
        certificates=None, call=print, key=str, on_dead=bool, on_disk=print,
        integrity=cast("Any", SimpleNamespace(repaired=repaired, touches_fd=-1)),
    )  # fmt: skip
    copy = SimpleNamespace(take=lambda _: 0, place=bool, n_same=0, n_compared=0)
    monkeypatch.setattr(frames, "receive", lambda _: {"place": True})
    monkeypatch.setattr(frames, "send", lambda *_: None)

    made._copy(None, copy, 0.0)

    assert standing.is_damaged
