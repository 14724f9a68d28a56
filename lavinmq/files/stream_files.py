"""What the directory of a stream holds, for who reads it while somebody else writes it.

Nothing is put right, and nothing but names, sizes and small files is read. What changes meanwhile
is told by who knows of the changes. From any thread. Called by `cluster/view.py`.
Source: docs/formats.md, decision 0121.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lavinmq.files import stream_epochs
from lavinmq.files.stream_epochs import Epoch
from lavinmq.files.whole import read_regular

SEGMENT: Final = re.compile(r"msgs\.(\d{10})", re.ASCII)
AHEAD: Final = re.compile(r"tmp\.msgs\.(\d{10})", re.ASCII)
"""A segment that a large message begins, while that is still coming."""
MARKER: Final = re.compile(r"first\.(\d{10})\.(\d{1,18})", re.ASCII)
CREATED: Final = re.compile(r"created\.([!-~]{1,47})", re.ASCII)
PAUSED: Final = "paused"
"""A mark of operators, see `vhost/pause.py`."""
_META: Final = struct.Struct("<Iqqq")
_HEADER: Final = 4
_RECORD: Final = 18
"""Bytes that each record has at least."""
_OFFSET_MAX: Final = 1 << 62
_NEWEST_MS: Final = 1 << 44
"""The year 2527: what is above is no time."""
_MOST: Final = 0xFFFFFFFF
"""Bytes of a segment, and its number, are below."""

Sealed = tuple[int, int, int, int, int, int]
"""Number of a segment, its bytes, messages, first offset (0: behind the one before), first and last
time in Unix milliseconds."""


@dataclass(slots=True)
class StreamFiles:
    """What was found."""

    sealed: list[Sealed] = field(default_factory=list)
    """The segments at the beginning that are finished, and whose facts are known."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Of the others: bytes by number."""
    ahead: dict[int, int] = field(default_factory=dict)
    """Of those that are to be segments: bytes by number."""
    first: tuple[int, int] | None = None
    """A segment whose first offset a name tells, and that."""
    created: str = ""
    is_paused: bool = False
    epochs: list[Epoch] = field(default_factory=list)


def look(directory: str) -> StreamFiles | None:
    """What there is; None: there is no such directory. Raises: OSError."""
    found = StreamFiles()
    numbers: list[int] = []
    try:
        names = os.listdir(directory)
        found.epochs = stream_epochs.load(directory)
    except FileNotFoundError:
        return None
    for name in names:
        if match := SEGMENT.fullmatch(name):
            numbers.append(int(match[1]))
        elif match := AHEAD.fullmatch(name):
            with suppress(FileNotFoundError):
                found.ahead[int(match[1])] = os.stat(f"{directory}/{name}").st_size
        elif match := MARKER.fullmatch(name):
            found.first = max(found.first or (0, 0), (int(match[1]), int(match[2])))
        elif match := CREATED.fullmatch(name):
            found.created = min(found.created or match[1], match[1])
    found.is_paused = PAUSED in names
    numbers = sorted(each for each in numbers if 0 < each < _MOST)
    for number in numbers:
        try:
            size = os.stat(f"{directory}/msgs.{number:010d}").st_size
        except FileNotFoundError:
            continue  # after its time
        facts = _facts(directory, number, size) if number != numbers[-1] else None
        if facts is None or found.sizes:
            found.sizes[number] = min(size, _MOST)
        else:
            found.sealed.append(_placed(found, facts))
    return found


def _facts(directory: str, number: int, size: int) -> Sealed | None:
    """What the meta file of a finished segment says, None: nothing that makes sense."""
    try:
        data = read_regular(f"{directory}/meta.{number:010d}")
    except FileNotFoundError:
        return None
    if len(data) < _META.size or not _HEADER < size < _MOST:
        return None
    count, first, first_ms, last_ms = _META.unpack_from(data)
    if not is_possible(size, count, first, first_ms, last_ms):
        return None
    return number, size, count, first, first_ms, last_ms


def is_possible(size: int, count: int, first: int, first_ms: int, last_ms: int) -> bool:
    """Whether a meta file can be right about a segment of so many bytes. Who writes the stream
    counts by itself if not (cext/stream/stream_load.pyx): all have to come to the same offsets."""
    times = first_ms, last_ms
    return (
        0 < count <= size // _RECORD
        and 0 < first < _OFFSET_MAX
        and all(0 < each < _NEWEST_MS for each in times)
    )


def _placed(found: StreamFiles, facts: Sealed) -> Sealed:
    """Offsets are counted from segment to segment, unless one is missing or a name tells more."""
    number = facts[0]
    is_next = bool(found.sealed) and found.sealed[-1][0] == number - 1
    if is_next and (found.first is None or found.first[0] != number):
        return number, *facts[1:3], 0, *facts[4:]
    return facts
