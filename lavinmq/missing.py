"""What LavinMQ 2.9 does and this release does not: one table of it, and what is said about it.

Whoever meets a setting of such a feature tells its line here: the reading of the configuration
(``config/sources.py``). What a release learns to do is taken out here, and its settings get their
attributes in ``config/settings.py``.
"""

from __future__ import annotations

from typing import NamedTuple


class Missing(NamedTuple):
    """One feature: `section` is that of its settings in the ini file."""

    says: str
    section: str = ""


MISSING = (
    Missing("this release takes turns by time, not by bytes", section="experimental"),
)  # fmt: skip


def of_section(section: str) -> str:
    """What is missing for the settings of a section, empty if it is not known."""
    return next((feature.says for feature in MISSING if feature.section == section), "")
