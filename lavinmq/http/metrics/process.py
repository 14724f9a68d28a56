"""The metrics of any process of ours, be it a broker or a node that follows one.

Source: docs/monitoring.md.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lavinmq import __version__
from lavinmq.http.metrics.exposition import Metric, counter, gauge
from lavinmq.stats.system import heap, memory_limit, memory_used

if TYPE_CHECKING:
    from lavinmq.http.metrics.exposition import Exposition
    from lavinmq.stats.system import System

ALWAYS_0: Final = "Always 0: this runtime has no such number"
IDENTITY: Final = gauge("identity_info", "Which broker this is")
BUILD: Final = gauge("build_info", "What the broker was built with")
OPEN_FDS: Final = gauge("process_open_fds", "Descriptors in use")
RESIDENT: Final = gauge("process_resident_memory_bytes", "Resident memory")
MAX_FDS: Final = gauge("process_max_fds", "Descriptors that may be in use")
MEMORY_LIMIT: Final = gauge(
    "resident_memory_limit_bytes", "Memory of the machine, or of the control group that limits it"
)
DISK_FREE: Final = gauge(
    "disk_space_available_bytes", "Space left on the file system of the data directory"
)
DISK_SIZE: Final = gauge("disk_space_bytes", "Size of the file system of the data directory")
UPTIME: Final = gauge("uptime", "Seconds since the broker was started")
CPU_SYSTEM: Final = counter("cpu_system_time_total", "Processor time in the kernel, milliseconds")
CPU_USER: Final = counter("cpu_user_time_total", "Processor time of our own, milliseconds")
CPU: Final = counter("process_cpu_seconds_total", "Processor time, in the kernel and of our own")
HEAP: Final = gauge("gc_heap_size_bytes", "Memory that the allocator holds")
HEAP_FREE: Final = gauge("gc_free_bytes", "Of that, what is free")
CYCLES: Final = counter("gc_cycles_total", "Garbage collections of all generations")
FROM_OS: Final = counter("gc_from_os_obtained_bytes_total", "Most memory resident at once")
SYNCS: Final = Metric("sync_duration_seconds", "histogram", "Time that syncs to disk took")
NO_NUMBERS: Final = (
    gauge("gc_unmapped_bytes", ALWAYS_0),
    gauge("gc_since_recent_collection_allocated_bytes", ALWAYS_0),
    counter("gc_before_recent_collection_allocated_bytes_total", ALWAYS_0),
    gauge("gc_non_candidate_bytes", ALWAYS_0),
    gauge("gc_marker_threads", ALWAYS_0),
    gauge("gc_since_recent_collection_reclaimed_bytes", ALWAYS_0),
    counter("gc_before_recent_collection_reclaimed_bytes_total", ALWAYS_0),
    gauge("gc_since_recent_collection_explicitly_freed_bytes", ALWAYS_0),
)


def identity(out: Exposition, name: str) -> Iterator[str]:
    """What it is. Args: name: of the node."""
    labels = {f"{out.prefix}_version": __version__, f"{out.prefix}_cluster": name}
    yield out.alone(IDENTITY, 1, out.labels(**labels))
    yield out.alone(
        BUILD, 1, out.labels(version=__version__, python=sys.version.split()[0])
    )  # fmt: skip


def machine(out: Exposition, descriptors: int, system: System) -> Iterator[str]:
    """What it has of the machine. Args: descriptors: open ones."""
    disk_size, disk_free = system.disk()
    yield out.alone(OPEN_FDS, descriptors)
    yield out.alone(RESIDENT, memory_used())
    yield out.alone(MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield out.alone(MEMORY_LIMIT, memory_limit())
    yield out.alone(DISK_FREE, disk_free)
    yield out.alone(DISK_SIZE, disk_size)


def usage(out: Exposition, started_at: float) -> Iterator[str]:
    """How long it has run, and on the processor. Args: started_at: monotonic seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield out.alone(UPTIME, int(time.monotonic() - started_at))
    yield out.alone(CPU_SYSTEM, int(used.ru_stime * 1000))
    yield out.alone(CPU_USER, int(used.ru_utime * 1000))
    yield out.alone(CPU, round(used.ru_utime + used.ru_stime, 6))


def runtime(out: Exposition) -> Iterator[str]:
    """The garbage collector and the allocator, as far as Python has such numbers."""
    found = heap()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield out.alone(HEAP, found["heap_size"])
    yield out.alone(HEAP_FREE, found["free_bytes"])
    yield out.alone(CYCLES, found["gc_no"])
    yield out.alone(FROM_OS, peak)
    for metric in NO_NUMBERS:
        yield out.alone(metric, 0)
