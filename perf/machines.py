"""Machines for benchmarks: namespaces on a bridge of the kernel, each with a processor of its own.

The switch of `tests/support/network.py` loses and delays frames, and is slow; here the kernel
passes them on, as large as on the loopback. Frames that come to a machine are handled on its
processors (receive packet steering), where the interrupts of its network card would be: on the
loopback whoever sends does the receiver's part of TCP, too. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self


class Machine:
    """One of them. The bridge makes it."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host

    @property
    def within(self) -> list[str]:
        """What stands in front of a command that is to run there."""
        return ["ip", "netns", "exec", self.name]

    def steer(self, own: Iterable[int], others: Iterable[int]) -> None:
        """Have what comes to it handled by its own processors, and what it sends by others'."""
        _steer([*self.within], "eth0", own)
        _steer([], self.name, others)


class Bridge:
    """The network of one measurement. Use it as a context manager; this process has an address."""

    def __init__(self) -> None:
        self._name = f"lmb{os.getpid() % 100_000}"
        self._net = f"198.{18 + os.getpid() // 256 % 2}.{os.getpid() % 256}"
        self._machines: list[Machine] = []

    def __enter__(self) -> Self:
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for each in self._machines:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", each.name)
        _ip("link", "del", self._name)

    def add(self) -> Machine:
        """Make a machine more."""
        number = len(self._machines) + 1
        machine = Machine(f"{self._name}x{number}", f"{self._net}.{number}")
        _ip("netns", "add", machine.name)
        self._machines.append(machine)
        _ip("link", "add", machine.name, "type", "veth",
            "peer", "name", "eth0", "netns", machine.name)  # fmt: skip
        _ip("link", "set", machine.name, "master", self._name, "up")
        within = ["-n", machine.name]
        _ip(*within, "link", "set", "lo", "up")
        _ip(*within, "addr", "add", f"{machine.host}/24", "dev", "eth0")
        _ip(*within, "link", "set", "eth0", "up")
        return machine


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


def _steer(within: list[str], device: str, cores: Iterable[int]) -> None:
    mask = f"{sum(1 << core for core in cores):x}"
    path = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    subprocess.run([*within, "tee", path], input=mask.encode(), stdout=subprocess.DEVNULL,
                   check=True)  # fmt: skip
