"""The targets of `make fuzz` on their corpus, on what was found, and on deterministic damage."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import seeds
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import FUZZ, NAMES, inputs, opened

ROUNDS = {"frames": 600, "segments": 150, "definitions": 150, "users": 300, "vhosts": 300,
          "policies": 100,
          "documents": 150, "scan": 200,
          "retained": 400, "sessions": 400}  # fmt: skip
ROUNDS_OTHERWISE = 1000
SEED_VARIABLE = "LAVINMQ_TEST_FUZZ_SEED"
MEMORY, ROOM_BYTES = Path("/dev/shm"), 48 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is room: thousands of files are made and removed, and a
    disk would be waited for each time."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)) or (
        shutil.disk_usage(MEMORY).free < ROOM_BYTES
    ):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="lavinmq-fuzz-") as place:
        yield Path(place)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_the_corpus_and_those_found_break_nothing(name: str, directory: Path) -> None:
    paths = inputs(name)
    assert paths, "the corpus is empty"
    with opened(name, directory) as target:
        for path in paths:
            try:
                target(path.read_bytes())
            except Exception as error:
                raise AssertionError(f"{path.relative_to(FUZZ)}: {error!r}") from error


@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_break_nothing(name: str, directory: Path) -> None:
    chance = random.Random(int(os.environ.get(SEED_VARIABLE, "1")))
    corpus = [path.read_bytes() for path in inputs(name)]
    with opened(name, directory) as target:
        for _ in range(ROUNDS.get(name, ROUNDS_OTHERWISE)):
            data = mutated(chance.choice(corpus), corpus, chance)
            try:
                target(data)
            except Exception as error:
                raise AssertionError(f"{error!r} with {data!r}") from error


def test_every_target_has_a_maker_of_seeds() -> None:
    assert sorted(seeds.MAKERS) == sorted(NAMES)
