"""The mark of a paused queue: an empty file `paused` in its directory, which survives a restart.

Asked for queues that are stored; what a pause does is in the message path.
Source: docs/formats.md.
"""

from collections.abc import Container
from contextlib import suppress
from typing import Final

from lavinmq.files.changes import Changes

_MARK: Final = "paused"
_OLDER: Final = ".paused"
"""What earlier releases called it."""


def is_marked(directory: str, names: Container[str], changes: Changes) -> bool:
    """Whether the queue of that directory is paused; an older mark gets the present name.

    Args: names: in the directory. Raises: OSError when the older one cannot be renamed.
    """
    if _OLDER in names:
        changes.rename(f"{directory}/{_OLDER}", f"{directory}/{_MARK}")
        return True
    return _MARK in names


def mark(directory: str, changes: Changes) -> None:
    """Leave the mark. Raises: OSError."""
    changes.touch(f"{directory}/{_MARK}")


def unmark(directory: str, changes: Changes) -> None:
    """Remove the mark; one that is not there is no error. Raises: OSError."""
    with suppress(FileNotFoundError):
        changes.unlink(f"{directory}/{_MARK}")
