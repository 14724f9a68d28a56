"""What LavinMQ 2.9 does and this release does not: one table of it, and what is said about it.

Whoever meets a setting or a command of such a feature tells its line here: the reading of the
configuration (``config/sources.py``) and lavinmqctl. A setting that would endanger data, were it
ignored, stops the start; all others only have no effect. What a release learns to do is taken out
here, and its settings get their attributes in ``config/settings.py``.
"""

from __future__ import annotations

from typing import NamedTuple


class Missing(NamedTuple):
    """One feature.

    `section` is that of its settings in the ini file, `commands` are those of lavinmqctl about it.
    `dangers` are the keys that stop the start when they are on, each with what would happen
    otherwise and what to do.
    """

    says: str
    section: str = ""
    commands: tuple[str, ...] = ()
    dangers: tuple[tuple[str, str], ...] = ()


MISSING = (
    Missing(
        "this release runs no cluster",
        section="clustering",
        commands=("cluster_status",),
        dangers=(
            ("enabled", "each node would be a broker of its own, with other messages than the"
             " others. Take the setting out to run a single broker; a cluster needs LavinMQ"),
        ),
    ),
    Missing("this release takes turns by time, not by bytes", section="experimental"),
)  # fmt: skip


def of_section(section: str) -> str:
    """What is missing for the settings of a section, empty if it is not known."""
    return next((feature.says for feature in MISSING if feature.section == section), "")


def of_command(command: str) -> str:
    """What is missing for a command of lavinmqctl, empty for nothing."""
    return next((feature.says for feature in MISSING if command in feature.commands), "")


def danger(section: str, key: str) -> str:
    """Why a setting that is on stops the start, empty if it does not."""
    for feature in MISSING:
        reason = dict(feature.dangers).get(key) if feature.section == section else None
        if reason is not None:
            return f"{feature.says}: {reason}"
    return ""
