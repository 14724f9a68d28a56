"""A disk that does not answer while a follower is sent what is on it: the leader goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest

from tests.support.disk import Action, Call, Disk
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.crash
WAIT_S = 20.0 * PATIENCE


@pytest.mark.parametrize("compression", ["off", "on"])
def test_a_file_that_cannot_be_read_for_a_follower_holds_up_no_change(
    tmp_path: Path, disk_shim: Path, compression: str
) -> None:
    """The one lets the kernel read the file, the other reads it to pack it."""
    root = tmp_path / "data"
    said: SimpleQueue[str] = SimpleQueue()
    with closing(Disk(disk_shim, root, tmp_path)) as disk:
        disk.plan(Action.HOLD, Call.READ, "q/msgs.*")
        command = [sys.executable, "-m", "tests.crash.feeding", str(root), compression]
        feeding = subprocess.Popen(
            command, env=os.environ | disk.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        with feeding:
            assert feeding.stdin is not None and feeding.stdout is not None
            lines = feeding.stdout
            Thread(target=lambda: [said.put(line.strip()) for line in lines], daemon=True).start()
            try:
                assert said.get(timeout=WAIT_S) == "sends"
                disk.wait_for_strikes()
                print(file=feeding.stdin, flush=True)

                assert said.get(timeout=WAIT_S) == "written"

                disk.heal()
                print(file=feeding.stdin, flush=True)
                assert said.get(timeout=WAIT_S) == "it is too far behind"
            finally:
                feeding.kill()
