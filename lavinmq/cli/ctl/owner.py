"""What root does in a data directory is done with the rights of who owns it.

Whoever has taken over a broker may put symbolic links into its directory, and change them while
root writes there: with root's rights that would lead to any file of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def rights_of_owner(path: Path) -> Iterator[None]:
    """Root becomes the owner of a directory, or of the one above that is there; others stay who
    they are. Raises: OSError."""
    found = os.stat(next(each for each in (path, *path.absolute().parents) if each.exists()))
    if os.geteuid() != 0 or found.st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(found.st_gid)
    os.seteuid(found.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextmanager
def own_rights() -> Iterator[None]:
    """Within the rights of an owner: those that the program was started with, for a time."""
    user = os.geteuid()
    os.seteuid(os.getuid())
    try:
        yield
    finally:
        os.seteuid(user)
