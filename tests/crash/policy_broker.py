"""A broker whose policies change all the time: a program for tests that kill it.

Takes the options that every test gives a broker. Each change is announced in a journal before it
begins and once it has reached every queue; what was written there survives a kill. After the last
change the broker goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.inside import inside

RULED, LOSSY, DEAD = "ruled", "lossy", "dead"
"""Prefixes of the queues that the first policy is for; a queue that drops; one that keeps all."""
TO_DEAD = {"dead-letter-exchange": "", "dead-letter-routing-key": DEAD}
MENU: tuple[dict[str, Any] | None, ...] = (
    None,
    {"max-length": 5, **TO_DEAD},
    {"max-length-bytes": 4000, **TO_DEAD},
    {"message-ttl": 10, **TO_DEAD},
    {"delivery-limit": 2, **TO_DEAD},
    {"max-length": 50, "overflow": "reject-publish", **TO_DEAD},
    {"max-length": 50, "overflow": "reject-publish-dlx", **TO_DEAD},
)
"""What a policy for the ruled queues may say: whatever it drops goes to the dead letters."""
LOSSY_LENGTH = 20
LOSSY_MENU: tuple[dict[str, Any] | None, ...] = (None, {"max-length": LOSSY_LENGTH})

State = dict[str, Any]
"""Definitions of the policies there are, by name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the state it leads to, and when it began and had been carried out, if it was."""

    state: State
    began_ns: int
    done_ns: int | None


def read_journal(path: Path) -> list[Change]:
    """Return all changes; only the last one may not have been carried out."""
    changes: list[Change] = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "done" in entry:
            last = changes.pop()
            changes.append(Change(last.state, last.began_ns, entry["done"]))
        else:
            changes.append(Change(entry["state"], entry["began"], None))
    return changes


def changes(chance: random.Random, state: State) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield names of policies with another definition than they have, or None; keep the state."""
    while True:
        name, menu = chance.choice(((RULED, MENU), (LOSSY, LOSSY_MENU)))
        definition = chance.choice([each for each in menu if each != state.get(name)])
        state.pop(name, None)
        if definition is not None:
            state[name] = definition
        yield name, definition


def main() -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-D", "--data-dir", type=Path)
    parser.add_argument("-b", "--bind")
    parser.add_argument("-p", "--port", type=int)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--changes", type=int, default=1 << 30)
    given, _ = parser.parse_known_args()  # the others are for the command only
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    journal = os.open(given.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(entry: dict[str, Any]) -> None:
        os.write(journal, json.dumps(entry).encode() + b"\n")

    place = {"amqp_bind": given.bind, "amqp_port": given.port, "segment_size": 16384}
    with inside(given.data_dir, **place) as broker:
        state = {each.name: dict(each.definition) for each in broker.vhost().rules.policies.all()}
        sequence = changes(random.Random(given.seed), state)
        for _ in range(given.changes):
            name, definition = next(sequence)
            note({"state": state, "began": time.monotonic_ns()})
            if definition is None:
                broker.delete_policy(name)
            else:
                broker.put_policy(name, f"^{name}", definition, apply_to="queues")
            note({"done": time.monotonic_ns()})
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
