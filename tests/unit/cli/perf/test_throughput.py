"""A run of lavinmqperf whose clients raise what nobody expects."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq import _perf
from lavinmq.cli.perf.throughput import Throughput
from lavinmq.cli.perf.throughput_options import ThroughputOptions


class Broken:
    """A client with a mistake in it, before it has connected or when it works."""

    def __init__(self, name: str, *, at_work: bool) -> None:
        self.name = name
        self.engine: Any = SimpleNamespace(published=0, consumed=0, nacked=0, mismatched=0)
        self._at_work = at_work

    def set_up(self, _connection: Any) -> None:
        """Before the first message."""
        if not self._at_work:
            raise KeyError("mistake")

    def work(self, _connection: Any) -> None:
        """The messages."""
        raise KeyError("mistake")


@pytest.mark.parametrize("at_work", [False, True])
def test_a_run_ends_and_fails_when_its_clients_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at_work: bool
) -> None:
    """It waited for them until somebody interrupted it."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))
    connection = SimpleNamespace(abort=bool, close=bool)
    clients = [Broken(name, at_work=at_work) for name in ("publisher 1", "consumer 1")]
    run = Throughput(
        ThroughputOptions(quiet=True), _perf.Run(), clients[:1], clients[1:],
        lambda _: connection, lambda _: "",
    )  # fmt: skip

    assert run.run() == 1

    assert [type(error) for error in raised] == [KeyError, KeyError]
    assert ("2 of 2 clients never got to work" in capsys.readouterr().err) is not at_work
