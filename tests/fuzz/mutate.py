"""Deterministic damage to bytes: the short form of fuzzing, without coverage."""

from __future__ import annotations

import random

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
MOST_CHANGES = 4


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Return `data` with one to four changes; `others` are inputs to take pieces from."""
    for _ in range(chance.randint(1, MOST_CHANGES)):
        data = _changed(data, others, chance)
    return data


def _changed(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    size = chance.choice((1, 1, 2, 4, 8, 40))
    number = chance.choice(NUMBERS)
    width = chance.choice((1, 2, 4, 8))
    value = (number & ((1 << 8 * width) - 1)).to_bytes(width, chance.choice(("big", "little")))
    other = chance.choice(others)
    start = chance.randrange(len(other) + 1)
    changes = (
        lambda: data[:at] + chance.randbytes(1) + data[at + 1 :],
        lambda: data[:at] + bytes([1 << chance.randrange(8) ^ 0x20]) + data[at + 1 :],
        lambda: data[:at] + chance.randbytes(size) + data[at:],
        lambda: data[:at] + data[at + size :],
        lambda: data[:at] + data[at : at + size] * 2 + data[at + size :],
        lambda: data[:at] + value + data[at + width :],
        lambda: data[:at] + other[start : start + 10 * size] + data[at:],
        lambda: data[:at],
    )
    return chance.choice(changes)()
