"""What the process uses of the machine: memory, processor, disk; and what it may use.

Read from /proc, cgroups and the kernel's counters of this process; nothing here takes longer than
some ten microseconds, unless it says so. Sampled together with the rates of messages.
Source: docs/monitoring.md.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lavinmq.process.worker import NoThreadError, aside
from lavinmq.stats.sampler import Gauge

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
CGROUPS: Final = Path("/sys/fs/cgroup")
GAUGES: Final = (
    "mem_used", "io_write", "io_read", "cpu_user", "cpu_sys", "disk_total", "disk_free",
)  # fmt: skip
NO_LIMIT_FROM: Final = 1 << 60
"""How version 1 of cgroups says that there is no limit: a number near the largest."""


class System:
    """The numbers of this process, with their history. Args: data_dir: whose disk counts."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._gauges = {name: Gauge() for name in GAUGES}
        self._sampled_at = time.monotonic()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self.duration_s = 0.0
        """How long the last sample took."""

    def sample(self, samples: int) -> None:
        """Take a sample. Args: samples: length of a history now."""
        now, usage = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        elapsed_s, before = max(now - self._sampled_at, 0.001), self._usage
        self._sampled_at, self._usage = now, usage
        disk = self.disk()
        values = {
            "mem_used": memory_used(),
            "io_write": (usage.ru_oublock - before.ru_oublock) / elapsed_s,
            "io_read": (usage.ru_inblock - before.ru_inblock) / elapsed_s,
            "cpu_user": (usage.ru_utime - before.ru_utime) / elapsed_s,
            "cpu_sys": (usage.ru_stime - before.ru_stime) / elapsed_s,
            "disk_total": disk[0],
            "disk_free": disk[1],
        }
        for name, value in values.items():
            self._gauges[name].sample(value, samples)
        self.duration_s = time.monotonic() - now

    def log(self, name: str, samples: int) -> list[float]:
        """The history of a gauge, see `Gauge.log`."""
        return self._gauges[name].log(samples)

    def disk(self) -> tuple[int, int]:
        """Bytes of the file system of the data directory: all, free; zeros when it is silent."""
        with suppress(OSError):
            found = os.statvfs(self._data_dir)
            return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return 0, 0

    async def stats(self, samples: int) -> dict[str, Any]:
        """The numbers now with their history, as the API shows them."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        disk_total, disk_free = self.disk()
        shown: dict[str, Any] = {
            "os_pid": str(os.getpid()),
            "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "fd_used": await descriptors_used(),
            "processors": processors(),
            "mem_limit": memory_limit(),
            "mem_used": memory_used(),
            "io_write_count": usage.ru_oublock,
            "io_read_count": usage.ru_inblock,
            "cpu_user_time": int(usage.ru_utime * 1000),
            "cpu_sys_time": int(usage.ru_stime * 1000),
            "disk_total": disk_total,
            "disk_free": disk_free,
        }
        for name, gauge in self._gauges.items():
            shown[f"{name}_details"] = {"log": gauge.log(samples)}
        return shown


def memory_used() -> int:
    """Bytes of memory that are resident; 0 where /proc does not say."""
    return _statm(1)


def memory_limit() -> int:
    """Bytes of memory that we may use: what the machine has, or less if a cgroup says so."""
    machine = os.sysconf("SC_PHYS_PAGES") * PAGE
    return min([machine, *_cgroup_limits(_own_cgroups(), CGROUPS)])


def processors() -> int:
    """Processors that we may run on."""
    return len(os.sched_getaffinity(0))


async def descriptors_used() -> int:
    """Open descriptors, 0 when they cannot be counted. Older kernels have them listed, which is
    left to a thread."""
    with suppress(OSError, NoThreadError):
        known = os.stat("/proc/self/fd").st_size  # since Linux 6.2
        return known or len(await aside(os.listdir, "/proc/self/fd"))
    return 0


def _own_cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _cgroup_limits(own: str, root: Path) -> list[int]:
    """The limits of our cgroups and of those around them.

    Args: own: lines `hierarchy:controllers:path`; version 2 has no controllers. root: where they
        are mounted; in a container often our own one, whatever the path says.
    Source: cgroups(7).
    """
    limits = []
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        words = [word for word in path.split("/") if word]
        for depth in range(len(words) + 1):
            limit = _number(top.joinpath(*words[:depth], name))
            if limit is not None and limit < NO_LIMIT_FROM:
                limits.append(limit)
    return limits


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _statm(field: int) -> int:
    """Bytes of a field of /proc/self/statm. Source: proc(5)."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(256).split()[field]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


# --- memory of the interpreter and of the C library -------------------------------------------


def heap() -> dict[str, int]:
    """What the collector and the allocator of the C library say; zeros where they say nothing."""
    from lavinmq.stats import allocator  # which needs ctypes

    info = allocator.heap()
    return {
        "gc_no": sum(generation["collections"] for generation in gc.get_stats()),
        "heap_size": info.arena + info.hblkhd,
        "free_bytes": info.fordblks,
        "obtained_from_os_bytes": _statm(5),
    }


async def collect() -> None:
    """Collect garbage and give free memory back.

    Blocks while the collector runs, some ten milliseconds for a broker with many objects.
    """
    from lavinmq.stats import allocator

    gc.collect()
    try:
        await aside(allocator.trim)
    except NoThreadError:
        allocator.trim()  # as long again as the collector
