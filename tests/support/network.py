"""Machines of a test's own network: namespaces of the kernel, joined by a switch that this process
is, which delays, drops and cuts what goes from one to another.

Each machine has a TCP of its own, so what a lost or late packet does to it is real: it sends again,
keepalive fails, an address answers nothing. The test itself is a machine, too, so that it reaches
the others. Needs root. Tells nothing about what runs there; `WHY_NOT` says why it cannot be used.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TAP = Path("/dev/net/tun")
SET_NAME, WITHOUT_HEAD = 0x400454CA, 0x1002
MTU = 9000
MOST_FRAME = MTU + 32
QUEUE = 2000
"""Frames of a machine that wait for the switch."""
QUEUE_S = 0.1


def _why_not() -> str:
    if os.geteuid() != 0 or not TAP.exists() or shutil.which("ip") is None:
        return "needs root, ip and /dev/net/tun: what a bad network does is NOT tested"
    name = f"lmqtry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode == 0:
        _ip("netns", "del", name)
    return "" if tried.returncode == 0 else "namespaces cannot be made: bad networks are NOT tested"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


WHY_NOT = _why_not()
"""Why there can be no such network; empty if there can."""


@dataclass
class Way:
    """What happens to frames from one machine to another. Args: loss: of 1; rate: bytes per second,
    0: any; what would wait for longer than QUEUE_S is lost then."""

    is_cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate: float = 0.0


class Machine:
    """One of them. The network makes it."""

    def __init__(self, number: int, host: str, namespace: str, tap: int) -> None:
        self.number, self.host, self.namespace, self.tap = number, host, namespace, tap

    @property
    def within(self) -> list[str]:
        """What stands in front of a command that is to run there."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


@dataclass(order=True)
class _Late:
    due: float
    order: int
    to: Machine = field(compare=False)
    frame: bytes = field(compare=False)


class Network:
    """Machines and the switch between them. Use it as a context manager. What comes late comes in
    its order."""

    def __init__(self, seed: int = 1) -> None:
        self.machines: list[Machine] = []
        self._name = f"lmq{os.getpid() % 100_000}"
        self._net = f"198.{18 + os.getpid() // 256 % 2}.{os.getpid() % 256}"
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._ways: dict[tuple[int, int], Way] = defaultdict(Way)
        self._late: list[_Late] = []
        self._last: dict[tuple[int, int], float] = {}
        self._n_late = 0
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        try:
            self.ours = self.add(is_ours=True)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._close()

    def _close(self) -> None:
        self._is_over = True
        os.write(self._wake, b"!")
        self._thread.join()
        for each in self.machines:
            os.close(each.tap)
            if each.namespace:
                with suppress(subprocess.CalledProcessError):
                    _ip("netns", "del", each.namespace)
        os.close(self._woken)
        os.close(self._wake)
        self._selector.close()

    def add(self, *, is_ours: bool = False) -> Machine:
        """Make a machine more."""
        number = len(self.machines) + 1
        name, host = f"{self._name}x{number}", f"{self._net}.{number}"
        tap = os.open(TAP, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(tap, SET_NAME, struct.pack("16sH22x", name.encode(), WITHOUT_HEAD))
            machine = Machine(number, host, "" if is_ours else name, tap)
            within: list[str] = []
            if not is_ours:
                _ip("netns", "add", name)
                _ip("link", "set", name, "netns", name)
                within = ["-n", name]
                _ip(*within, "link", "set", "lo", "up")
            address = f"02:00:00:00:{os.getpid() % 256:02x}:{number:02x}"
            _ip(*within, "link", "set", name, "address", address, "mtu", str(MTU),
                "txqueuelen", str(QUEUE))  # fmt: skip
            _ip(*within, "addr", "add", f"{host}/24", "dev", name)
            _ip(*within, "link", "set", name, "up")
        except BaseException:
            os.close(tap)
            raise
        with self._lock:
            self.machines.append(machine)
        self._selector.register(tap, selectors.EVENT_READ, machine)
        os.write(self._wake, b"!")
        return machine

    # ---- what it is like

    def set(self, one: Machine, other: Machine, *, back: bool = True, **values: Any) -> None:
        """Have a way be otherwise: fields of `Way`. Args: back: the way back, too."""
        with self._lock:
            for ends in [(one, other), (other, one)] if back else [(one, other)]:
                for name, value in values.items():
                    setattr(self._ways[ends[0].number, ends[1].number], name, value)

    def cut(self, one: Machine, *others: Machine, back: bool = True) -> None:
        """Let nothing pass from one machine to others. Args: back: nor from these."""
        for each in others:
            self.set(one, each, back=back, is_cut=True)

    def heal(self) -> None:
        """Let all pass, at once."""
        with self._lock:
            self._ways.clear()

    # ---- the switch

    def _run(self) -> None:
        while not self._is_over:
            left = self._late[0].due - time.monotonic() if self._late else None
            for key, _ in self._selector.select(None if left is None else max(left, 0)):
                if key.data is None:
                    os.read(self._woken, 4096)
                else:
                    self._take(key.data)
            now = time.monotonic()
            while self._late and self._late[0].due <= now:
                self._give(heapq.heappop(self._late))

    def _take(self, source: Machine) -> None:
        with suppress(BlockingIOError):
            for _ in range(64):
                self._pass(source, os.read(source.tap, MOST_FRAME))

    def _pass(self, source: Machine, frame: bytes) -> None:
        is_for_all = frame[0] & 1
        with self._lock:
            for each in self.machines:
                if each is source or not (is_for_all or frame[5] == each.number):
                    continue
                way = self._ways[source.number, each.number]
                if way.is_cut or (way.loss and self._chance.random() < way.loss):
                    continue
                late_s = way.delay_s + way.jitter_s * self._chance.random()
                ends = (source.number, each.number)
                due = max(time.monotonic() + late_s, self._last.get(ends, 0.0))
                if way.rate:
                    if due > time.monotonic() + late_s + QUEUE_S:
                        continue
                    due += len(frame) / way.rate
                self._last[ends] = due
                self._n_late += 1
                heapq.heappush(self._late, _Late(due, self._n_late, each, frame))

    def _give(self, late: _Late) -> None:
        with suppress(OSError):  # its queue is full: that is what a network does then
            os.write(late.to.tap, late.frame)
