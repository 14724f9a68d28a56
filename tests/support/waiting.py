"""Waiting for what a broker does in its own time: asked again and again, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.patience import PATIENCE


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 10.0 * PATIENCE) -> None:
    """Return when the condition holds. Raises AssertionError, saying `what`, when it does not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
