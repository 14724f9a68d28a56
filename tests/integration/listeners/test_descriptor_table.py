"""The kernel's table of descriptors has room before there are threads that wait while it grows."""

import os
import resource
from pathlib import Path

import pytest

from lavinmq.process import descriptors
from lavinmq.process.descriptors import TABLE
from tests.support.broker import Broker


def test_a_broker_has_a_wide_table_of_descriptors_at_the_start(broker: Broker) -> None:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = TABLE if hard == resource.RLIM_INFINITY else min(TABLE, hard)
    assert size >= allowed


def test_the_table_is_widened_in_a_root_directory_without_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "devnull", "/nowhere/null")
    before = set(os.listdir("/proc/self/fd"))

    descriptors.widen_table()

    assert set(os.listdir("/proc/self/fd")) == before
