"""Client programs in other languages: how they are run, and what their scenarios must print.

A program is called with a port, the name of a scenario and a name that nothing else on the broker
begins with. It prints one line of JSON and exits with 0 after closing its connections orderly; an
error goes to standard error with exit code 1. `SCENARIOS` is the contract that the programs in
`go/`, `java/`, `php/` and `ruby/` share; what a language shows beyond it, and the one of `node/`
with scenarios of its own, is in a test file for each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker

SCENARIO_TIMEOUT_S = 25.0

Command = list[str | Path]
"""The beginning of a command line; a scenario's arguments follow."""

SCENARIOS: dict[str, Any] = {
    # 1000 messages published, then consumed and acked one by one.
    "order": {"bodies": [str(number) for number in range(1000)], "redelivered": False, "left": 0},
    "confirms": {"confirmed": 500, "ready": 500},
    # An unroutable mandatory message comes back, and is confirmed after that.
    "returned": {
        "events": [
            {
                "code": 312,
                "text": "NO_ROUTE",
                "exchange": "amq.direct",
                "key": "no such key",
                "id": "m1",
                "body": "back",
            },
            "confirmed",
        ]
    },
    # Ten messages, prefetch three: what a consumer holds before and after it acks two at once.
    "prefetch": {"held": [3, 5], "ready": [7, 5]},
    # Bodies and redelivered flags; the second is nacked once, the last is rejected for good.
    "requeue": {
        "seen": [["acked", False], ["again", False], ["again", True], ["dropped", False]],
        "left": 0,
    },
    # Of two messages: body, redelivered flag and number left; nacked after the first time.
    "get": {"empty": True, "got": [["1", False, 1], ["1", True, 1]]},
    # A queue each on a direct, a topic and a headers exchange, one behind two exchanges.
    "routing": {
        "direct": ["hit"],
        "topic": ["a.b.c", "x.b"],
        "headers": ["same"],
        "through": ["far"],
    },
    # Passive declares of a queue and an exchange that are not there, a declare that differs.
    "failure": {"codes": [404, 404, 406], "bodies": ["fine"]},
    # Around the largest frame's payload, and 1 MiB.
    "large": {"lengths": [0, 131064, 131065, 1048576], "same": [True, True, True, True]},
    # Ready messages: published, committed, two more rolled back. Then both taken, their acks
    # rolled back and the channel closed. A commit after each rollback has nothing left to do.
    "transaction": {"ready": [0, 2, 2], "again": [["1", True], ["2", True]]},
    # Another channel deletes the queue; the channel of the consumer goes on.
    "cancelled": {"cancelled": True, "bodies": ["after"]},
    "rpc": {"body": "question answered", "id": "c1"},
    # How a second connection fails to find an exclusive queue, before and after its owner closes.
    "exclusive": {"codes": [405, 404]},
    # A message that was not acked when its consumer's connection closed.
    "close": {"got": [["kept", False], ["kept", True]]},
}


def program(name: str) -> str:
    """Return the path of an installed program; the test fails when it is not there."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is not installed: .ci/setup-debian.sh test", pytrace=False)
    return path


def library(path: str) -> Path:
    """Return the path of an installed client library; the test fails when it is not there."""
    if not Path(path).exists():
        pytest.fail(f"{path} is not there: .ci/setup-debian.sh test", pytrace=False)
    return Path(path)


def environment() -> dict[str, str]:
    """Return the environment of a program that is none of ours: without a sanitizer's runtime."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def run(command: Command, broker: Broker, scenario: str, name: str = "") -> Any:
    """Return what a scenario printed. Raises AssertionError with its error output."""
    done = subprocess.run(
        [*command, str(broker.port), scenario, name],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SCENARIO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{scenario} ended with {done.returncode}:\n{done.stderr}"
    assert done.stderr == "", f"{scenario} complains:\n{done.stderr}"
    return json.loads(done.stdout)
