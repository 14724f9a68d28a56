"""How messages flow through the broker, to show the compiler which of our C code is used most.

Runs the executable whose modules of ours count (extensions.py), as broker and as `lavinmqperf`
beside it. What Python does of its own is training.py's part.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import training

MESSAGES = 300_000
LOADS = (
    ("--size", "100"),
    ("--size", "100", "--ack", "1"),
    ("--size", "1000", "--ack", "100", "--persistent", "--confirm", "1000"),
    ("--size", "100", "--ack", "10", "--confirm", "100", "--publishers", "4", "--consumers", "4"),
    ("--exchange", "amq.topic", "--routing-key", "orders.created.eu"),
    ("--exchange", "amq.fanout", "--consumers", "2"),
    ("--ack", "50", "--persistent", "--queue-args", '{"x-queue-type": "stream"}'),
    ("--poll", "--ack", "1", "--pmessages", "20000", "--cmessages", "20000"),
)
"""Options of `lavinmqperf throughput`; what is said last counts."""


def train(runner: list[str], executable: Path) -> None:
    """Run everything with the modules that count. Raises: BuildError.

    Args: runner: the command that programs of the processor are run by, if it is not this one.
    """
    with tempfile.TemporaryDirectory() as place:
        broker = training.Broker(runner, executable, Path(place))
        for number, options in enumerate(LOADS):
            # A start for each: it reads what the one before has written.
            with broker.running():
                some = ["-C", str(MESSAGES), "-D", str(MESSAGES), "--queue", f"flow{number}"]
                broker.load("throughput", "--quiet", *some, *options)
