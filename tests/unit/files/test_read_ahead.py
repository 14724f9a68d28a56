"""What of a queue's files is read before the loop reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lavinmq.files.read_ahead import read_ahead


def test_what_a_queue_walks_when_it_is_opened_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that have a count and lost no message are not: they may be many."""
    names = [
        "msgs.0000000001", "meta.0000000001",
        "msgs.0000000002", "meta.0000000002", "acks.0000000002",
        "msgs.0000000003",
        "msgs.0000000004", "meta.0000000004",
        "dedup", "deliveries", "consumer_offsets", "prio.002/msgs.0000000001",
    ]  # fmt: skip
    (tmp_path / "prio.002").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 10)
    read: set[str] = set()
    real = os.read

    def watched(fd: int, n: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.startswith(str(tmp_path)):
            read.add(path.removeprefix(f"{tmp_path}/"))
        return real(fd, n)

    monkeypatch.setattr(os, "read", watched)

    read_ahead(tmp_path)

    assert read == {*names} - {"msgs.0000000001", "dedup"}


def test_what_cannot_be_read_is_left_to_who_needs_it(tmp_path: Path) -> None:
    (tmp_path / "msgs.0000000001").mkdir()
    (tmp_path / "msgs.0000000002").symlink_to("nowhere")

    read_ahead(tmp_path)
    read_ahead(tmp_path / "missing")
