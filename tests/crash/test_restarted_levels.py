"""A priority queue that was restarted: the directory of a level that is new then is on disk when
its first message is, as that of any other queue. The lowest level is in memory from the beginning,
so that is the one that could forget what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.disk import Call, Disk

pytestmark = pytest.mark.crash

SCRIPT = """
import sys
from contextlib import closing
from pathlib import Path

from lavinmq import _core
from tests.support.core import Bench, properties, publish

root = Path(sys.argv[1])
with closing(Bench(root, sync=True)) as bench:
    bench.loop.sync_one_by_one()
    queue = bench.queue("q", max_priority=3)
    bench.send(publish(b"q", b"m" * 900, properties(priority=3)))
    bench.run()
    queue.close()
    segment, = (root / "q" / "prio.003").glob("msgs.*")
    whole = segment.read_bytes()
    segment.write_bytes(bytes([9, 0, 0, 0]) + whole[4:])
    queue = _core.Queue(bench.loop, str(root / "q"), 4096, True, name=b"q", vhost=bench.vhost,
                        max_priority=3)
    try:
        queue.load()
    except ValueError:
        segment.write_bytes(whole)
    assert queue.is_closed
    queue.restart()
    assert queue.ready == 1
    bench.exchange.unbind(b"q", b"", bench._queues[0])
    bench.exchange.bind(b"q", b"", queue)
    bench.link.select_confirms(1)
    bench.send(publish(b"q", b"m"))
    bench.run()
    bench.loop.finish()
    assert queue.ready == 2
"""


def test_the_directory_of_a_new_level_is_synced_with_its_first_message(
    disk_shim: Path, tmp_path: Path
) -> None:
    with closing(Disk(disk_shim, tmp_path / "data", tmp_path)) as disk:
        subprocess.run(
            [sys.executable, "-c", SCRIPT, tmp_path / "data"],
            check=True, env=os.environ | disk.env(log=True),
        )  # fmt: skip
        records = disk.records()
    made = max(n for n, each in enumerate(records)
               if each.kind == Call.MKDIR and each.path.endswith("prio.000"))  # fmt: skip
    synced = [each.path for each in records[made:] if each.kind in (Call.SYNC, Call.SYNCED)]
    assert "q" in [path.strip("/") for path in synced], synced
