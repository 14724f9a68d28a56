"""What a listener for HTTP is for. Source: docs/authentication.md."""

from __future__ import annotations

from enum import Enum


class Origin(Enum):
    """What a listener is for, and so what is served by it, and to whom."""

    MANAGEMENT = "management"
    CONTROL = "control"
    """The socket of lavinmqctl: whoever can open it is an administrator."""
    METRICS = "metrics"
    """Numbers and health, without a log-in."""
