"""The power of a node goes while its files are replaced by those of its leader.

What its disk may hold then are the files of before, or those that the leader had, after the node
has gone on with what it was at: never a mixture, and never nothing, since other nodes may have
counted on it. From the moment at which it has said so they are the leader's. A failure prints its
seed and its cut.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tests.crash.joining_node as program
from lavinmq.cluster import joining
from lavinmq.files.snapshot import OWN
from lavinmq.files.standing import Standing
from tests.crash.conftest import EVERY_READING, ROOT
from tests.support.disk import Disk, Record
from tests.support.power_loss import Reading, Survivors

SHORT_CUTS = 40
Files = dict[str, str]

pytestmark = pytest.mark.crash


class Run(NamedTuple):
    """What was there before and after, and what the disk was asked to do meanwhile."""

    before: Files
    after: Files
    records: list[Record]
    began: int
    """The first call of the join."""
    placed: int
    """The first one after the node has said that its files are the leader's."""


def files_of(root: Path) -> Files:
    """All that are not the node's own."""
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in OWN
    }


def different(there: Files, wanted: Files) -> list[str]:
    """Names of what differs."""
    return sorted(
        name for name in {*there, *wanted} if there.get(name) != wanted.get(name)
    )  # fmt: skip


def before_and_after(chance: random.Random) -> tuple[Files, Files]:
    """Files that stay, grow, shrink, differ, come and go, with their directories."""
    before, after = {}, {}
    for number in range(12):
        name = f"{chance.choice(['', 'd/', 'd/e/'])}f{number}"
        text = f"{number}:" + chance.choice("abc") * chance.randrange(1, 9000)
        other = f"{number};" + chance.choice("xyz") * chance.randrange(1, 9000)
        before[name], after[name] = chance.choice([
            (text, text), (text, text + other), (text + other, text), (text, other),
            (text, ""), ("", text),
        ])  # fmt: skip
    # No directory takes the name of a file: of a name that was used for both the model of a disk
    # loses the one change and keeps the other (tests/unit/cluster/test_joining.py has that).
    before |= {"gone": "g" * 5000, "gone-too/a": "a"}
    after |= {"come": "c" * 5000, "come-too/b/a": "a"}
    return before, after


@pytest.fixture(scope="module")
def run(disk_shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    directory = tmp_path_factory.mktemp("join")
    before, after = before_and_after(random.Random(seed))
    leader = directory / "leader"
    for name, text in after.items():
        (leader / name).parent.mkdir(parents=True, exist_ok=True)
        (leader / name).write_text(text)
    begin = directory / "before.json"
    begin.write_text(json.dumps(before))
    data = directory / "data"
    disk = Disk(disk_shim, data, directory)
    done = subprocess.run(
        [sys.executable, str(program.__file__), str(data), str(leader), str(begin)],
        env=os.environ | disk.env(log=True) | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    records = disk.records()
    disk.close()
    assert files_of(data) == after
    at_ns = {each["what"]: each["at_ns"] for each in map(json.loads, done.stdout.splitlines())}
    first = [
        next((n for n, each in enumerate(records) if each.time_ns > at_ns[what]), len(records))
        for what in ("began", "placed")
    ]
    assert first[0] < first[1]
    yield Run(before, after, records, *first)


@EVERY_READING
def test_after_a_loss_of_power_files_are_those_of_before_or_of_the_leader(
    run: Run, tmp_path: Path, is_long: bool, reading: Reading
) -> None:
    chance = random.Random()
    everything = range(run.began, len(run.records) + 1)
    chosen = list(everything) if is_long else chance.choices(everything, k=SHORT_CUTS)
    found = set()
    for cut in chosen:
        seed = chance.randrange(1 << 30)
        print(f"power lost before call {cut} of {run.began} to {len(run.records)}, seed {seed}")
        root = tmp_path / f"cut-{cut}-{seed}"
        Survivors(run.records[:cut], reading=reading).write(root, random.Random(seed))

        standing = Standing(str(root))
        standing.load()
        joining.finish(str(root), standing)

        assert standing.is_whole
        there = files_of(root)
        mixed = different(there, run.before) and different(there, run.after)
        assert not mixed, f"other than the leader has: {mixed}"
        assert there == run.after or cut < run.placed
        found.add(there == run.after)
    assert found == {False, True}, "all cuts came at one side"
