"""Long work in portions of about a millisecond, one for each turn of the event loop.

For work that a change starts and nobody waits for: clients are served between the portions.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

PORTION_S: Final = 0.001
"""Work of one turn. A step begins as long as this is not used up."""


def in_portions(
    call_soon: Callable[..., Any], steps: Iterator[object], portion_s: float = PORTION_S
) -> None:
    """Begin now, and go on by way of `call_soon` until the iterator ends; each step is short."""
    until = time.perf_counter() + portion_s
    for _ in steps:
        if time.perf_counter() >= until:
            call_soon(in_portions, call_soon, steps, portion_s)
            return
