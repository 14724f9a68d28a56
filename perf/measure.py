"""CPU, memory and descriptors of a process tree, and facts about the machine.

Owns everything read from `/proc`. Called by `procedure.py`, `generator.py` and `brokers.py`. CPU
is user plus system time of all threads of all processes of a tree, children that have ended
included, in steps of the kernel's clock tick (10 ms). Knows nothing about AMQP or rows.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
KIB = 1024
MIB = 1024 * 1024
DESCRIPTORS = 65_536


class BenchError(Exception):
    """A measurement could not be taken; the text says why."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What one line of `/proc/PID/stat` says; `ticks` includes children that were waited for."""

    pid: int
    name: str
    parent: int
    session: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident and anonymous memory in MiB."""

    rss_mib: float
    anon_mib: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one process holds at a moment; memory in MiB, CPU seconds since its start."""

    rss_mib: float
    anon_mib: float
    descriptors: int
    mappings: int
    threads: int
    cpu_s: float


def parse_stat(line: str) -> Stat:
    """Parse a line of `/proc/PID/stat`; the name may contain blanks and brackets.

    Source: proc_pid_stat(5), fields 1, 2, 4, 6 and 14 to 17.
    """
    head, _, tail = line.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    ticks = sum(int(field) for field in fields[11:15])
    return Stat(int(pid), name, int(fields[1]), int(fields[3]), ticks)


def parse_rollup(text: str) -> Memory:
    """Parse `/proc/PID/smaps_rollup` (values in KiB)."""
    values = dict(line.split(":", 1) for line in text.splitlines() if line.endswith(" kB"))
    return Memory(*(int(values[key].split()[0]) * KIB / MIB for key in ("Rss", "Anonymous")))


def process_tree(root: int) -> list[Stat]:
    """Return the process `root` and all its descendants that are alive."""
    everyone = _everyone()
    children: dict[int, list[Stat]] = {}
    for stat in everyone:
        children.setdefault(stat.parent, []).append(stat)
    tree = [stat for stat in everyone if stat.pid == root]
    for stat in tree:  # grows while it is walked
        tree.extend(children.get(stat.pid, ()))
    return tree


def session_members(leader: int) -> list[Stat]:
    """Return the processes of a session, also those whose parent has ended."""
    return [stat for stat in _everyone() if stat.session == leader]


def tree_cpu_s(root: int) -> float:
    """Return the CPU seconds a process tree has used so far."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return sum(stat.ticks for stat in process_tree(root)) / ticks_per_s


def tree_memory(root: int) -> Memory:
    """Return the memory of a process tree; pages shared by two of its processes count twice."""
    parts = []
    for stat in process_tree(root):
        try:
            parts.append(parse_rollup((PROC / str(stat.pid) / "smaps_rollup").read_text()))
        except (OSError, KeyError):
            continue  # ended meanwhile
    return Memory(sum(part.rss_mib for part in parts), sum(part.anon_mib for part in parts))


def footprint(pid: int) -> Footprint:
    """Return what a process holds, without its children. Raises OSError when it is gone."""
    own = PROC / str(pid)
    memory = parse_rollup((own / "smaps_rollup").read_text())
    ticks = parse_stat((own / "stat").read_text()).ticks
    return Footprint(
        memory.rss_mib,
        memory.anon_mib,
        descriptors=sum(1 for _ in (own / "fd").iterdir()),
        mappings=len((own / "maps").read_text().splitlines()),
        threads=sum(1 for _ in (own / "task").iterdir()),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
    )


def tree_mappings(root: int) -> int:
    """Return how many memory mappings the processes of a tree have together."""
    return sum(
        (PROC / str(stat.pid) / "maps").read_text().count("\n") for stat in process_tree(root)
    )


def tree_descriptors(root: int) -> int:
    """Return how many descriptors the processes of a tree have open together."""
    return sum(len(os.listdir(PROC / str(stat.pid) / "fd")) for stat in process_tree(root))


def raise_descriptor_limit() -> None:
    """Let this process and those it starts open as many descriptors as they may, up to a bound.

    Source: getrlimit(2). Bounded, because some programs make tables as long as the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def disk_mib(directory: Path) -> float:
    """Return the disk space the files below a directory occupy; they may come and go meanwhile."""
    blocks = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                blocks += os.lstat(os.path.join(place, name)).st_blocks
    return blocks * 512 / MIB


def pinned(core: int, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` on one core only."""
    return ["taskset", "-c", str(core), *argv]


def machine_busy_s() -> float:
    """Return the CPU seconds of all cores not spent idle, waiting for I/O or stolen.

    Source: proc_stat(5).
    """
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(field) for field in (PROC / "stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def machine_facts() -> dict[str, Any]:
    """Describe the machine: what figures of another run may be compared with."""
    model = [
        line.split(":", 1)[1].strip()
        for line in (PROC / "cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024**3, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system a path is on, given the text of `/proc/mounts`."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _everyone() -> list[Stat]:
    return [stat for entry in PROC.iterdir() if entry.name.isdigit() for stat in _stat(entry)]


def _stat(entry: Path) -> list[Stat]:
    try:
        return [parse_stat((entry / "stat").read_text())]
    except OSError:
        return []  # ended between listing and reading
