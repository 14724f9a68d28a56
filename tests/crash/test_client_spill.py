"""Loss of power while a client writes messages into a file: nothing there is synced, and what is
left is read in order, or kept and told of; it never stops the next program."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lavinmq.client import spill as spills
from tests.crash.conftest import EVERY_READING
from tests.support.disk import Action, Call, Disk, compile_shim
from tests.support.power_loss import Reading, Survivors

PROGRAM = """
import sys
from pathlib import Path
from lavinmq.client import spill as spills
spills.SEGMENT_BYTES = 3000
spill = spills.Spill(Path(sys.argv[1]), 1 << 20)
places = []
for n in range(60):
    spill.append(0, b"props", b"target", b"%d " % n + b"x" * (37 * n % 700))
    if n % 2:
        places.append(spill.read()[1])
        spill.advance(places[-1])
    if n % 7 == 6:
        spill.done(places[len(places) // 2])
"""
SEEDS, LONG_SEEDS, EVERY = 2, 40, 5

pytestmark = pytest.mark.crash


def numbers(spill: spills.Spill) -> list[int]:
    found: list[int] = []
    while each := spill.read():
        (_, props, target, body), place = each
        number, filling = body.split(b" ")
        assert (props, target, len(filling)) == (b"props", b"target", 37 * int(number) % 700)
        found.append(int(number))
        spill.advance(place)
        spill.done(place)
    return found


@EVERY_READING
def test_what_a_loss_of_power_leaves_is_read_in_order_and_goes_on(
    tmp_path: Path, is_long: bool, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = Disk(compile_shim(tmp_path), root, tmp_path)
    disk.plan(Action.NOTHING, Call.CHANGES)
    env = {**os.environ, **disk.env(log=True)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(root)], env=env, check=True)
    records = disk.records()
    disk.close()
    monkeypatch.setattr(spills, "SEGMENT_BYTES", 3000)

    most = 0
    for cut in range(1, len(records) + 1, 1 if is_long else EVERY):
        for seed in range(LONG_SEEDS if is_long else SEEDS):
            left = tmp_path / f"{cut}-{seed}"
            Survivors(records[:cut], reading=reading).write(left, random.Random(f"{cut} {seed}"))
            spill = spills.Spill(left, 1 << 20)
            found = numbers(spill)
            assert found == sorted(set(found)), (cut, seed)
            for n in (100, 101):
                spill.append(0, b"props", b"target", b"%d " % n + b"x" * (37 * n % 700))
            spill.close()
            again = spills.Spill(left, 1 << 20)
            assert numbers(again) == [100, 101] and not again.damaged, (cut, seed)
            again.close()
            most = max(most, len(found))
    assert most > 10, "with luck most is there"
