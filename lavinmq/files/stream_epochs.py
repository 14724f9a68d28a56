"""Epochs of a stream: from which offset on a message may be another than the one that was read.

An end without order, a loss of power above all, may take messages that readers have seen before
they were on disk; others get their offsets. So each start that no orderly stop came before begins
an epoch, at the offset of the next message. Who keeps offsets keeps the epoch too, and asks here.
The list is a small file in the stream's directory. Called by `vhost/queue_files.py` and
`amqp/channel.py`. Source: docs/formats.md, decision 0036.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from lavinmq.files.changes import Changes
from lavinmq.files.whole import read_regular, write_atomic

FILE: Final = "epochs"
FIRST: Final = (1, 1)
MOST: Final = 4096
"""More are not kept, the oldest go."""
_LINE: Final = re.compile(rb"^([1-9]\d{0,17}) ([1-9]\d{0,17})$", re.MULTILINE)

Epoch: TypeAlias = tuple[int, int]
"""Its number and its first offset. Numbers rise; first offsets may fall, when a loss of power has
taken what a crash of the broker had left."""


def load(directory: str) -> list[Epoch]:
    """The epochs of the stream in a directory. Lines that are none are passed over.

    Raises: OSError.
    """
    try:
        return _parsed(read_regular(f"{directory}/{FILE}"))
    except FileNotFoundError:
        return [FIRST]


def begin(directory: str, first_offset: int, changes: Changes) -> list[Epoch]:
    """Begin an epoch, which nobody may hear of before it is on disk: see `sync`.

    Returns: all epochs. Raises: OSError.
    """
    path = f"{directory}/{FILE}"
    try:
        content = read_regular(path)
    except FileNotFoundError:
        content = b""
    epochs = _parsed(content)
    kept = _text(epochs)
    epochs = [*epochs, (epochs[-1][0] + 1, first_offset)][-MOST:]
    if content not in (b"", kept) or len(epochs) == MOST:
        # Damaged, or as long as it may be: once in a long time.
        write_atomic(path, _text(epochs), changes)
        return epochs
    fd = changes.open(path, os.O_CREAT)
    try:
        changes.write(path, fd, _text(epochs)[len(content) :], len(content))
    finally:
        os.close(fd)
    return epochs


def sync(directory: str, by: Callable[[int], object] = os.fsync) -> None:
    """Bring what was begun to the disk. Args: by: is called with the descriptors of the file and of
    its directory. Raises: OSError."""
    for path in (f"{directory}/{FILE}", directory):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            by(fd)
        finally:
            os.close(fd)


def divergence(epochs: Sequence[Epoch], number: int, offset: int) -> Epoch | None:
    """The epoch from which on messages may be others than somebody has read who was at `offset` in
    epoch `number`; None when all that was read is still there.

    One that is not known, because it is too old or of a later state of the data directory, has
    nothing in common with this stream but what came before all epochs that are.
    """
    if not epochs:
        return None
    if number > epochs[-1][0]:
        return epochs[-1]
    later = [each for each in epochs if each[0] > number or number < epochs[0][0]]
    lowest = min(later, key=lambda each: each[1], default=None)
    is_same = lowest is None or (lowest[1] >= offset and number >= epochs[0][0])
    return None if is_same else lowest


def _parsed(content: bytes) -> list[Epoch]:
    """The epochs of a file: a line that was cut, or begins with zeros, is none, and no other has
    told of it."""
    epochs: list[Epoch] = []
    whole = content[: content.rfind(b"\n") + 1]
    for number, first in _LINE.findall(whole):
        if not epochs or int(number) > epochs[-1][0]:
            epochs.append((int(number), int(first)))
    return epochs or [FIRST]


def _text(epochs: Sequence[Epoch]) -> bytes:
    return b"".join(b"%d %d\n" % each for each in epochs)
