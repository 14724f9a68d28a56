"""Has what brokers read of their segments compared with sums, by the compiled half.

It gives them the sums that there are: those of before when a broker begins, others when they are
made or have been compared. In the thread that has the shelves. Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.integrity.sums import is_older

if TYPE_CHECKING:
    from lavinmq.integrity.life import Life
    from lavinmq.integrity.shelves import Shelves
    from lavinmq.integrity.sums import FileSums

MESSAGES: Final = re.compile(r"msgs\.[0-9]{10}\Z")
MOST: Final = (1 << 32) - 1
"""Bytes of a segment."""


class Readers:
    """The brokers of one data directory: one, or none yet.

    Args: takes_older: as `Scrub` has it.
    """

    def __init__(self, root: str, *, takes_older: bool) -> None:
        self._root = root
        self._takes_older = takes_older
        self.loops: tuple[_core.Loop, ...] = ()
        """Another one each time: other threads go through them."""

    def add(self, loop: _core.Loop) -> None:
        """A broker is about to read. From any thread."""
        self.loops = (*self.loops, loop)

    def remove(self, loop: _core.Loop) -> None:
        """A broker reads nothing any more. From any thread."""
        self.loops = tuple(each for each in self.loops if each is not loop)

    def watch(self, path: str) -> None:
        """A file is about to be read, for `know`."""
        if MESSAGES.match(path.rpartition("/")[2]):
            for loop in self.loops:
                _core.watch_sums(loop, path)

    def know(self, path: str, known: FileSums) -> None:
        """The file that is watched was made sums of, or is as they say."""
        if not self.loops or not _is_known(path.rpartition("/")[2], known):
            return
        sums = _little(known.sums).tobytes()
        for loop in self.loops:
            _core.know_sums(loop, path, known.covered, sums, known.unknown)

    def forget(self, path: str) -> None:
        """A file is taken as it is."""
        for loop in self.loops:
            _core.forget_sums(loop, path)

    def load(self, loop: _core.Loop, shelves: Shelves, life: Life) -> None:
        """Give a broker all sums that are beyond doubt, before it reads anything. Raises:
        OSError."""
        doubtful = max(life.foreign, life.lost)
        for directory in shelves.directories():
            for number in shelves.numbers(directory):
                for name, known in shelves.get((directory, number)).items():
                    path = f"{directory}/{name}"
                    is_good = known.life > doubtful and _is_known(name, known)
                    if is_good and not self._is_brought_back(path, known):
                        _core.watch_sums(loop, path)
                        _core.know_sums(
                            loop, path, known.covered, _little(known.sums).tobytes(), known.unknown
                        )

    def _is_brought_back(self, path: str, known: FileSums) -> bool:
        """Whether somebody has put an older file in the place of a segment."""
        if not self._takes_older:
            return False
        try:
            return is_older(known, os.stat(os.path.join(self._root, path)))
        except OSError:
            return False

    def spoiled(self) -> list[str]:
        """Files of which something else was read than was written, since the last call."""
        return [path for loop in self.loops for path in _core.take_spoiled(loop)]


def _is_known(name: str, known: FileSums) -> bool:
    """Whether there are sums of a segment. No broker reads what is larger than one can be."""
    return bool(MESSAGES.match(name)) and 0 < known.covered <= MOST


def _little(sums: array[int]) -> array[int]:
    if sys.byteorder == "big":
        sums = array("I", sums)
        sums.byteswap()
    return sums
