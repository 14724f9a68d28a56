"""What a broker process costs: memory, descriptors, threads, processor time; read from /proc.

Anonymous memory is what the process has allocated and touched. File pages and the kernel's socket
buffers are not in it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KIB = 1 << 10
MIB = 1 << 20


class Process:
    """A running process, by its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._directory = Path(f"/proc/{pid}")

    @property
    def anonymous_bytes(self) -> int:
        """Anonymous memory that is resident now."""
        return self._status("RssAnon") * KIB

    @property
    def resident_bytes(self) -> int:
        """All memory that is resident now, file pages included."""
        return self._status("VmRSS") * KIB

    @property
    def peak_resident_bytes(self) -> int:
        """Most memory that was ever resident, or since `forget_peak`."""
        return self._status("VmHWM") * KIB

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        (self._directory / "clear_refs").write_text("5")

    @property
    def descriptors(self) -> int:
        """Open descriptors, without event descriptors: threads begin and end with theirs."""
        return sum(not target.endswith("[eventfd]") for target in self._targets())

    @property
    def threads(self) -> int:
        """Threads."""
        return self._status("Threads")

    @property
    def cpu_s(self) -> float:
        """Processor time used so far, in user and kernel mode."""
        fields = (self._directory / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def limit_descriptors(self, n: int) -> None:
        """No descriptor numbered n or above from now on."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (n, hard))

    def wait_for_descriptors(self, n: int, timeout_s: float = 15.0) -> None:
        """Wait until exactly n descriptors are open. Raises: AssertionError."""
        deadline = time.monotonic() + timeout_s
        while self.descriptors != n:
            assert time.monotonic() < deadline, f"{self.descriptors} descriptors, wanted {n}"
            time.sleep(0.02)

    def wait_for_memory(self, n: int, timeout_s: float = 15.0) -> None:
        """Wait until no more than n bytes of anonymous memory are left. Raises: AssertionError."""
        deadline = time.monotonic() + timeout_s
        while (now := self.anonymous_bytes) > n:
            assert time.monotonic() < deadline, f"{now // MIB} MiB, wanted {n // MIB} at most"
            time.sleep(0.02)

    def _targets(self) -> Iterator[str]:
        directory = self._directory / "fd"
        for name in os.listdir(directory):
            with suppress(FileNotFoundError):
                yield os.readlink(directory / name)

    def _status(self, name: str) -> int:
        for line in (self._directory / "status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0])
        raise KeyError(name)
