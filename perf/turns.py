"""A broker that notes the longest turns of its event loop, and what the garbage collector took.

`perf/pages.py` and its like start it in place of a broker:

    --broker-command ".venv/bin/python perf/turns.py NOTES"

NOTES gets a line for each turn, and each full pass of the collector, above two milliseconds of
processor time of the loop's thread; those of the start are left out. A bystander's "longest turn"
is the sum of the turns that a round trip takes, and of those for which the client had no processor.
"""

from __future__ import annotations

import gc
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

NOTED_MS = 2.0
STARTED_S = 3.0


def main() -> None:
    """Start the broker with the arguments that are left."""
    notes = Path(sys.argv.pop(1)).open("a", buffering=1)  # noqa: SIM115 - as long as the broker
    began = 0
    make = uvloop.new_event_loop

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        now = time.thread_time_ns()
        if phase == "stop" and info["generation"] == 2 and (now - began) / 1e6 > NOTED_MS:
            notes.write(f"{time.time():.3f} collector {(now - began) / 1e6:.2f} ms\n")
        began = now

    def made() -> Any:
        loop = make()
        last = 0

        def turn() -> None:
            nonlocal last
            now = time.thread_time_ns()
            if last and (now - last) / 1e6 > NOTED_MS:
                notes.write(f"{time.time():.3f} turn {(now - last) / 1e6:.2f} ms\n")
            last = time.thread_time_ns()
            loop.call_soon(turn)

        loop.call_later(STARTED_S, turn)
        return loop

    uvloop.new_event_loop = made
    gc.callbacks.append(collected)
    runpy.run_module("lavinmq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
