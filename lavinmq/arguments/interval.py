"""Intervals as arguments and policies write them, such as `7D`.

Source: docs/streams.md.
"""

import re
from typing import Final

FOREVER_MS: Final = 1 << 60

_INTERVAL: Final = re.compile(r"(\d+)([YMDhms])", re.ASCII)
_UNIT_MS: Final = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000,
    "h": 3_600_000, "m": 60_000, "s": 1000,
}  # fmt: skip


def interval_ms(text: str) -> int | None:
    """Milliseconds of a text like "7D": a number and one of Y, M, D, h, m, s; None for others.

    A year has 365 days and a month 30. What is longer than history counts as `FOREVER_MS`."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return None
    digits = found[1].lstrip("0") or "0"
    return FOREVER_MS if len(digits) > 12 else min(int(digits) * _UNIT_MS[found[2]], FOREVER_MS)
