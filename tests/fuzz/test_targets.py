"""The targets of `make fuzz` on their corpus, on what was found, and on deterministic damage."""

from __future__ import annotations

import os
import random
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


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_the_corpus_and_those_found_break_nothing(name: str, tmp_path: Path) -> None:
    paths = inputs(name)
    assert paths, "the corpus is empty"
    with opened(name, tmp_path) as target:
        for path in paths:
            try:
                target(path.read_bytes())
            except Exception as error:
                raise AssertionError(f"{path.relative_to(FUZZ)}: {error!r}") from error


@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_break_nothing(name: str, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get(SEED_VARIABLE, "1")))
    corpus = [path.read_bytes() for path in inputs(name)]
    with opened(name, tmp_path) as target:
        for _ in range(ROUNDS.get(name, ROUNDS_OTHERWISE)):
            data = mutated(chance.choice(corpus), corpus, chance)
            try:
                target(data)
            except Exception as error:
                raise AssertionError(f"{error!r} with {data!r}") from error


def test_every_target_has_a_maker_of_seeds() -> None:
    assert sorted(seeds.MAKERS) == sorted(NAMES)
