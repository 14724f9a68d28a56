"""An independent reader of what `GET /api/queues/:vhost/:name/stream/raw` answers.

Source: docs/http-api.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEAD = struct.Struct("<qII")


class Block(NamedTuple):
    """A run of records: the offset of the first, how many, their bytes."""

    offset: int
    count: int
    records: bytes


def blocks(answer: bytes) -> tuple[list[Block], int]:
    """The blocks of an answer, and the offset to go on with.

    Raises AssertionError when it is not whole.
    """
    found, at = [], 0
    while True:
        offset, count, size = HEAD.unpack_from(answer, at)
        at += HEAD.size
        if count == 0:
            assert (size, at) == (0, len(answer)), "something follows the last block"
            return found, offset
        assert at + size <= len(answer), "a block is cut"
        found.append(Block(offset, count, answer[at : at + size]))
        at += size


def joined(answer: bytes) -> tuple[bytes, int, int]:
    """All records of an answer without gaps, the offset of the first one, and where to go on."""
    found, end = blocks(answer)
    at = found[0].offset if found else end
    for block in found:
        assert block.offset == at, f"{at} to {block.offset} are missing"
        at += block.count
    assert at == end
    return b"".join(block.records for block in found), (found[0].offset if found else end), end
