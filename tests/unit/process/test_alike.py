"""Bytes that are alike are one object, and others are forgotten in time."""

from __future__ import annotations

from lavinmq.process.alike import LONGEST, MOST, Alike


def test_bytes_that_are_alike_are_one_object() -> None:
    alike = Alike()
    first = b"pika %d" % 1

    assert alike.one(first) is first
    assert alike.one(b"pika %d" % 1) is first
    assert alike.one(b"pika %d" % 2) == b"pika 2"


def test_no_more_than_a_few_are_known() -> None:
    alike = Alike()
    for number in range(10 * MOST):
        assert alike.one(b"%d" % number) == b"%d" % number

    assert len(alike._known) == MOST


def test_long_ones_are_left_alone() -> None:
    alike = Alike()
    long = bytes(LONGEST + 1)

    assert alike.one(long) is long
    assert not alike._known
