"""Retained messages and sessions of MQTT after a kill or a loss of power at any file call.

A program changes both stores and tells what it was told to be on disk. From the log of its disk the
directory is rebuilt as it may be after each call: what was said to be safe is there, or what came
later in its place, and nothing else.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.crash.mqtt_stores as program
from lavinmq import _core
from tests.crash.conftest import EVERY_READING, ROOT
from tests.support.core import FakeEvents
from tests.support.disk import Disk, Record
from tests.support.power_loss import Reading, Survivors

ROUNDS = 40
SHORT_CUTS = 25
STAY = 8
Item = tuple[Any, ...]

pytestmark = pytest.mark.crash


class Books:
    """What the program has told: each change, and how many of them were safe at which time."""

    def __init__(self, output: str) -> None:
        self.changes: list[tuple[Item, Any]] = []
        self.safe: list[tuple[int, int]] = []
        self.cleaning: list[int] = []
        """Times at which it begins and ends, in turn."""
        for line in map(json.loads, output.splitlines()):
            if "safe" in line:
                self.safe.append((line["at_ns"], len(self.changes)))
            elif "cleaning" in line:
                self.cleaning.append(line["at_ns"])
            else:
                self.changes.append((tuple(line["item"]), line["value"]))

    def cleans(self, at_ns: int) -> bool:
        """Whether files were cleaned at a time."""
        return bisect(self.cleaning, at_ns) % 2 == 1

    def allowed(self, before_ns: int) -> dict[Item, list[Any]]:
        """The values that each thing may have when the disk stopped at a time."""
        n_safe = max((count for at_ns, count in self.safe if at_ns < before_ns), default=0)
        found: dict[Item, list[Any]] = defaultdict(lambda: [None])
        for number, (item, value) in enumerate(self.changes):
            affected = [item]
            if item[0] == "session":  # what belonged to it has gone
                affected += [each for each in found if each[1] == item[1] and each != item]
            for each in affected:
                new = value if each == item else None
                found[each] = [new] if number < n_safe else [*found[each], new]
        return found


def state_of(directory: Path) -> dict[Item, Any]:
    """What a start finds."""
    loop = _core.Loop(FakeEvents(), str(directory), False, lambda *_why: None, lambda: None)
    retained = _core.RetainedStore(loop, str(directory), program.FILE_SIZE)
    log = _core.SessionLog(loop, str(directory), program.FILE_SIZE)
    retained.load()
    log.load()
    found: dict[Item, Any] = {}
    walk = retained.walk(b"#")
    while not walk.is_over:
        for topic, payload, *_ in walk.some(100):
            found["topic", topic.decode()] = payload.decode()
    assert retained.lost == 0
    for client in log.client_ids(0, 100)[0]:
        name = client.decode()
        facts = log.facts(client)
        found["session", name] = int(facts.get(b"made", b"0"))
        if b"will" in facts:
            found["fact", name] = facts[b"will"].decode()
        for id in log.packets(client)[0]:
            found["received", name, id] = True
    retained.close()
    log.close()
    return found


def check(directory: Path, allowed: dict[Item, list[Any]]) -> None:
    """All that was safe is there, and nothing that was never said."""
    found = state_of(directory)
    assert found.keys() <= allowed.keys()
    for item, values in allowed.items():
        value = found.get(item)
        if item[0] == "received":
            values = [each or None for each in values]
        assert value in values, f"{item}: {value} of {values}"


@pytest.fixture(scope="module", params=[0, STAY], ids=["few", "several files"])
def run(
    disk_shim: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[list[Record], Books]:
    """The log of a disk, and what was said meanwhile."""
    directory = tmp_path_factory.mktemp("stores")
    data = directory / "data"
    disk = Disk(disk_shim, data, directory)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    env = os.environ | disk.env(log=True) | {"PYTHONPATH": str(ROOT)}
    make = "import os, sys, runpy; os.mkdir(sys.argv[1]); runpy.run_path({!r}, run_name='__main__')"
    done = subprocess.run(
        [
            sys.executable, "-c", make.format(program.__file__), str(data), str(seed),
            str(ROUNDS), str(request.param),
        ],
        env=env, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    records = disk.records()
    disk.close()
    books = Books(done.stdout)
    assert len(books.safe) == ROUNDS
    return records, books


def cuts(
    records: list[Record], books: Books, is_long: bool, chance: random.Random
) -> Iterator[int]:
    """Calls before which it ends; in the short form many of those while files are cleaned."""
    everything = range(1, len(records))
    if is_long:
        yield from everything
        return
    cleaning = [each for each in everything if books.cleans(records[each].time_ns)]
    for each in (everything, cleaning):
        yield from sorted(chance.sample(each, SHORT_CUTS))


def test_after_a_kill_at_any_call_all_is_there_that_was_said_to_be_safe(
    run: tuple[list[Record], Books], tmp_path: Path, is_long: bool
) -> None:
    records, books = run
    for cut in cuts(records, books, is_long, random.Random()):
        root = tmp_path / f"cut-{cut}"
        Survivors(records[:cut]).write_all(root)
        print(f"killed before call {cut}")

        check(root, books.allowed(records[cut].time_ns))


@EVERY_READING
def test_after_a_loss_of_power_at_any_call_all_is_there_that_was_said_to_be_safe(
    run: tuple[list[Record], Books], tmp_path: Path, is_long: bool, reading: Reading
) -> None:
    records, books = run
    chance = random.Random()
    for cut in cuts(records, books, is_long, chance):
        root = tmp_path / f"cut-{cut}"
        seed = chance.randrange(1 << 30)
        print(f"power lost before call {cut}, seed {seed}")
        Survivors(records[:cut], reading=reading).write(root, random.Random(seed))
        if not root.exists():
            continue

        check(root, books.allowed(records[cut].time_ns))
