"""Which recorded HTTP scenarios the broker does not match yet, or on purpose never will.

Data for `test_http_recordings.py`. What is done better has a test of its own and stands in
docs/differences.md.
"""

from __future__ import annotations

LATER: tuple[str, ...] = ("http-*",)
"""Patterns of ids of scenarios whose endpoints are not there yet."""

DONE_RIGHT: dict[str, str] = {}
"""Scenario id → what this broker does instead of the recorded weakness."""
