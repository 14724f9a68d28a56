"""The metrics of sums of stored files. Source: docs/monitoring.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lavinmq.http.metrics.exposition import counter, gauge

if TYPE_CHECKING:
    from lavinmq.http.metrics.exposition import Exposition

DAMAGED: Final = gauge("damaged_files", "Stored files that are damaged or missing")
CHECKED: Final = counter(
    "checked_bytes_total", "Bytes of stored files that were read to check them"
)
LAST: Final = gauge(
    "last_check_timestamp_seconds", "Unix time at which all stored files were checked last, or 0"
)


def figures(out: Exposition, status: dict[str, Any] | None) -> Iterator[str]:
    """All of it. Args: status: None: there are no sums."""
    if status is None:
        return
    yield out.alone(DAMAGED, len(status["damaged_files"]))
    yield out.alone(CHECKED, status["checked_bytes"])
    yield out.alone(LAST, status["last_pass_at"])
