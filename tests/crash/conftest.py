"""What the crash tests share: how long they may take, and brokers on a disk that can fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest

from tests.support.broker import Broker
from tests.support.disk import Disk, compile_shim
from tests.support.power_loss import Reading

LONG_VARIABLE = "CRASH_TESTS_LONG"
SEGMENT_SIZE = 16384
MAX_DELETED = 3
ROOT = Path(__file__).parents[2]
BrokerFactory = Callable[..., Broker]
EVERY_READING = pytest.mark.parametrize("reading", Reading, ids=lambda reading: reading.value)


HERE = "tests/crash/"
LONG_S = 3600


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test goes through hundreds of points in the long form, which takes what it takes. In the
    short one a disk is read in one way in each test, always the same, and in all ways in others."""
    ours = [item for item in items if item.nodeid.startswith(HERE)]
    if os.environ.get(LONG_VARIABLE):
        for item in ours:
            item.add_marker(pytest.mark.timeout(LONG_S))
        return
    if any("[" in each for each in config.args):
        return  # somebody names the one to run
    left_out = {item for item in ours if not _is_short(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_short(item: pytest.Item) -> bool:
    """Whether a test belongs to the short form."""
    assert isinstance(item, pytest.Function)
    reading = getattr(item, "callspec", None) and item.callspec.params.get("reading")
    if not isinstance(reading, Reading):
        return True
    ways = list(Reading)
    name = item.nodeid.replace(reading.value, "")
    return reading is ways[crc32(name.encode()) % len(ways)]


@pytest.fixture(scope="session")
def is_long() -> bool:
    """Whether to try every point instead of a sample."""
    return bool(os.environ.get(LONG_VARIABLE))


@pytest.fixture(scope="session")
def disk_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim between a broker and its disk."""
    return compile_shim(tmp_path_factory.mktemp("disk-shim"))


class DiskFactory:
    """Makes brokers that have a disk of their own each, and ends them after the test."""

    def __init__(self, shim: Path, directory: Path, broker_factory: BrokerFactory) -> None:
        self._shim = shim
        self._directory = directory
        self._broker_factory = broker_factory
        self._disks: list[Disk] = []

    def __call__(
        self,
        *args: str,
        log: bool = False,
        segment_size: int = SEGMENT_SIZE,
        http: bool = False,
        mqtt: bool = False,
        program: ModuleType | None = None,
    ) -> tuple[Broker, Disk]:
        """Return a broker, not started, with small segments, and its disk; `http`: with the
        management interface; `mqtt`: listening for that; `program`: started instead of the usual
        one."""
        directory = self._directory / f"disk-{len(self._disks)}"
        directory.mkdir()
        disk = Disk(self._shim, directory / "data", directory)
        self._disks.append(disk)
        settings = directory / "lavinmq.ini"
        settings.write_text(
            f"[main]\nsegment_size = {segment_size}\nmax_deleted_definitions = {MAX_DELETED}\n"
        )
        options = ["-c", str(settings), *args]
        command = [sys.executable, str(program.__file__)] if program else []
        env = disk.env(log=log) | ({"PYTHONPATH": str(ROOT)} if program else {})
        broker = self._broker_factory(
            options, data_dir=directory / "data", start=False, env=env, http=http, mqtt=mqtt,
            command=command,
        )  # fmt: skip
        return broker, disk

    def close(self) -> None:
        """Let go of the disks."""
        for disk in self._disks:
            disk.close()


@pytest.fixture
def on_disk(
    disk_shim: Path, tmp_path: Path, broker_factory: BrokerFactory
) -> Iterator[DiskFactory]:
    """Call it to get a broker, not started yet, and the disk that it is going to use."""
    factory = DiskFactory(disk_shim, tmp_path, broker_factory)
    yield factory
    factory.close()
