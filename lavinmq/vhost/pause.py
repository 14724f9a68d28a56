"""The mark of a paused queue: an empty file `paused` in its directory, which survives a restart.

Asked for queues that are stored; what a pause does is in the message path.
Source: docs/formats.md.
"""

import os
from contextlib import suppress
from typing import Final

from lavinmq.files.changes import Changes

_MARK: Final = "paused"
_OLDER: Final = ".paused"
"""What earlier releases called it."""


def is_marked(directory: str, changes: Changes) -> bool:
    """Whether the queue of that directory is paused; an older mark gets the present name.

    Raises: OSError when the older one cannot be renamed, or the disk does not say.
    """
    mark, older = f"{directory}/{_MARK}", f"{directory}/{_OLDER}"
    if _is_there(older):
        changes.rename(older, mark)
    return _is_there(mark)


def mark(directory: str, changes: Changes) -> None:
    """Leave the mark. Raises: OSError."""
    changes.touch(f"{directory}/{_MARK}")


def unmark(directory: str, changes: Changes) -> None:
    """Remove the mark; one that is not there is no error. Raises: OSError."""
    with suppress(FileNotFoundError):
        changes.unlink(f"{directory}/{_MARK}")


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True
