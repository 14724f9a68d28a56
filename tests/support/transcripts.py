# mypy: disable-error-code="no-untyped-call"
"""Plays a recorded AMQP transcript against a running broker, with the input cut in several ways.

Owns the list of recorded scenarios and the ways of splitting. `replay.py` does the comparing;
this module gives it a connection that sends in pieces, and waits where two connections take turns.
Called by the protocol tests.
"""

from __future__ import annotations

import argparse
import enum
import functools
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import replay
from tests.support.broker import Broker
from tests.support.other_end import wait_until_read
from tests.support.patience import PATIENCE

FOLDER = Path(__file__).parent.parent / "fixtures" / "amqp"
FRAME_HEADER_SIZE = 7
FRAME_END_SIZE = 1
PROTOCOL_HEADER_SIZE = 8
ANSWER_TIMEOUT_S = 5.0 * PATIENCE
ADMIN_STEPS = {"http"}

Scenario = dict[str, Any]


class Split(enum.Enum):
    """How the bytes a client sends are cut into writes."""

    WHOLE = "whole"
    EDGES = "frame-edges"
    BYTES = "bytes"


@functools.cache
def scenarios() -> dict[str, Scenario]:
    """Return every recorded scenario by its id."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {scenario["id"]: _with_longer_texts(_with_wide_counts(scenario)) for scenario in found}


def _with_wide_counts(recorded: Any) -> Any:
    """Have x-death count deaths in 64 bits: the recorded broker uses 32 (amqp.md 22.20)."""
    if isinstance(recorded, dict):
        return {key: _with_wide_counts(value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        if recorded[:2] == ["count", "I"]:
            return ["count", "l", recorded[2]]
        return [_with_wide_counts(value) for value in recorded]
    return recorded


def _with_longer_texts(recorded: Any) -> Any:
    """Let a reply text say more at its end, where it says anything: ours name their subject."""
    if isinstance(recorded, dict):
        return {key: _longer(key, value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        return [_with_longer_texts(value) for value in recorded]
    return recorded


def _longer(key: str, value: Any) -> Any:
    if key == "reply_text" and isinstance(value, str) and value.partition(" - ")[2]:
        said = re.split(r"\{\{\w+\}\}", value)  # between names that the broker has chosen
        return {"$re": "^" + ".+".join(map(re.escape, said))}
    return _with_longer_texts(value)


def needs_management(scenario: Scenario) -> bool:
    """Tell whether playing it takes requests to the HTTP API."""
    steps = {step["op"] for step in scenario["steps"]}
    return bool(steps & ADMIN_STEPS or scenario.get("cleanup"))


def bytes_sent(scenario: Scenario) -> int:
    """Return about how many bytes the client sends besides the handshake."""
    sent = [step for step in scenario["steps"] if step["op"] == "send"]
    return sum(len(step.get("raw", step.get("hex", ""))) // 2 for step in sent)


def play(scenario: Scenario, broker: Broker, split: Split) -> list[str]:
    """Run the steps against the broker; return the differences, none when it behaves.

    A scenario with requests to the HTTP API makes its virtual hosts and users by them; the others
    find theirs prepared.
    """
    options = argparse.Namespace(
        host=broker.host,
        amqp_port=broker.port,
        http_port=broker.http_port,
        metrics_port=broker.metrics_port,
        user="guest",
        password="guest",
        timeout=ANSWER_TIMEOUT_S,
        no_admin=not needs_management(scenario),
        bytes=True,
        exact_keys=False,
        lenient=False,
    )
    run = _SplitRun(options, scenario, split)
    try:
        run.prepare()
        run.steps()
        run.final()
    finally:
        run.cleanup()
    differences: list[str] = run.diffs
    return differences


def pieces(data: bytes, split: Split) -> Iterator[bytes]:
    """Yield the data cut at every edge of a frame and its parts, at every byte, or not at all."""
    if split is Split.WHOLE:
        yield data
        return
    start = 0
    for end in _edges(data) if split is Split.EDGES else range(1, len(data) + 1):
        yield data[start:end]
        start = end


def _edges(data: bytes) -> Iterator[int]:
    """Yield where a frame's header, payload and end byte end; what is no frame is one piece."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + FRAME_HEADER_SIZE], "big")
        end = at + FRAME_HEADER_SIZE + size + FRAME_END_SIZE
        if data[at : at + 4] == b"AMQP":
            at += PROTOCOL_HEADER_SIZE
        elif end > len(data):
            at = len(data)
        else:
            yield at + FRAME_HEADER_SIZE
            if size:
                yield at + FRAME_HEADER_SIZE + size
            at = end
        yield min(at, len(data))


class _SplitConn(replay.Conn):
    """The player's connection, writing every piece on its own (the socket does not delay)."""

    def __init__(self, port: int, split: Split) -> None:
        super().__init__("127.0.0.1", port)
        self._split = split

    def send(self, data: bytes) -> None:
        for piece in pieces(data, self._split):
            super().send(piece)


class _SplitRun(replay.Run):
    """The player, opening connections that split."""

    def __init__(self, options: argparse.Namespace, scenario: Scenario, split: Split) -> None:
        super().__init__(options, scenario)
        self._split = split
        self._sender = ""

    def op_send(self, step: Scenario) -> None:
        """Send; what another connection has sent before the broker has read by then."""
        if self._sender not in ("", step["c"]) and self._sender in self.conns:
            wait_until_read(self.conns[self._sender].s)
        super().op_send(step)
        self._sender = step["c"]

    def op_connect(self, step: Scenario) -> None:
        self.conns[step["c"]] = _SplitConn(self.opt.amqp_port, self._split)

    def op_disconnect(self, step: Scenario) -> None:
        """Go, and wait until the broker has noticed: what follows takes it for granted."""
        connection = self.conns.pop(step["c"])
        connection.s.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not connection.eof and time.monotonic() < deadline:
            connection.fill(deadline - time.monotonic())
        connection.close()

    def op_open(self, step: Scenario) -> None:
        self.op_connect(step)
        connection = self.conns[step["c"]]
        connection.keep_hb = step.get("keep_heartbeats", False)
        user = step.get("user", self.opt.user)
        replay.handshake(connection, step | {"user": user, "password": self.password(user)})
