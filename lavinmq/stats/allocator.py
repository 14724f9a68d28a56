"""What the memory allocator of the C library says, and gives back when it is told to.

The only user of `ctypes`, which takes time and memory to import: `system` asks for this module
when somebody wants to know.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache


class MallInfo(ctypes.Structure):
    """Source: mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def heap() -> MallInfo:
    """The numbers of the allocator; zeros where it says nothing."""
    info = MallInfo()
    with suppress(AttributeError):  # not every C library has it
        mallinfo = _libc().mallinfo2
        mallinfo.restype = MallInfo
        info = mallinfo()
    return info


def trim() -> None:
    """Give free memory back to the system; takes its time, with the GIL released."""
    with suppress(AttributeError):
        _libc().malloc_trim(0)
