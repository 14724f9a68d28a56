"""Answers in pieces: what is written or sent is not kept until the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from lavinmq.http import encoding
from lavinmq.http.encoding import Pieces


class Counted(bytes):
    """Bytes that know how many of their kind there are."""

    n = 0

    def __new__(cls, content: bytes) -> Counted:
        Counted.n += 1
        return super().__new__(cls, content)

    def __del__(self) -> None:
        Counted.n -= 1


async def whole(pieces: Pieces, size: int) -> bytes:
    return b"".join([bytes(part) async for part in pieces.slices(size)])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_an_array_is_a_list_of_what_is_json_already(n: int) -> None:
    async def elements() -> AsyncIterator[bytes]:
        for number in range(n):
            yield b'"%d"' % number

    async def written() -> bytes:
        return await whole(await encoding.array(elements()), 5)

    assert json.loads(asyncio.run(written())) == [str(number) for number in range(n)]


def test_elements_of_an_array_are_not_kept_until_its_end() -> None:
    most = 0

    async def elements() -> AsyncIterator[bytes]:
        nonlocal most
        for number in range(1000):
            yield Counted(b"%d" % number)
            most = max(most, Counted.n)

    asyncio.run(encoding.array(elements()))

    assert most <= 2


def test_what_has_been_sent_is_not_kept() -> None:
    pieces = Pieces(bytes(encoding.PIECE) for _ in range(10))
    left = []

    async def send() -> None:
        async for _ in pieces.slices(encoding.PIECE):
            left.append(len(pieces.parts))

    asyncio.run(send())

    assert left == list(range(9, -1, -1))
