"""Starts brokers for tests: from a process that has loaded a broker's modules, and forks.

Four fifths of what a start costs is to load them, and a run of the tests has a thousand starts. The
process is one for each worker, begins with the first broker, and makes nothing itself: what it
forks gets the arguments, variables, directory, umask and limits that a new interpreter would have,
and goes on as `python -m lavinmq`, or as a script of a test. One more has the shim of `disk.py`
preloaded, for brokers with a disk of their own. Who wants another program, or other variables that
the interpreter or the loader reads, gets a new interpreter; so do all with `LAVINMQ_TEST_COMMAND`.
One thing is otherwise than in these: the hash of a new password takes a millisecond in place of
forty, which a run of the tests has a thousand times.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

COMMAND_VARIABLE = "LAVINMQ_TEST_COMMAND"
DISK_VARIABLE = "DISK_SHIM_ROOT"
ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 1 << 17
"""Of an order: what a socket takes as one message."""
LIMITS = (
    resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_AS,
    resource.RLIMIT_STACK,
)  # fmt: skip


class Forked:
    """A broker's process, used as a `Popen` is. The nursery is its parent."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._end = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        with self._lock:
            if self.returncode is None and _ends_within(self._end, 0):
                self.returncode = self._nursery.exit_code(self.pid)
                os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Returns: the exit code. Raises: subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = 60.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("lavinmq", timeout or 0)
            with self._lock:
                end = os.dup(self._end) if self.returncode is None else -1
            if end >= 0:
                _ends_within(end, left)
                os.close(end)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)  # until the nursery is asked, nobody else has this number

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks brokers, with a library preloaded or none."""

    def __init__(self, preload: str) -> None:
        own = {"LD_PRELOAD": preload} if preload else {}
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
                pass_fds=[theirs.fileno()], env=os.environ | own,
            )  # fmt: skip
        atexit.register(self.close)

    def close(self) -> None:
        """End it; what it has forked stays. Idempotent."""
        self._sock.close()
        self._process.wait()

    def fork(
        self, script: str, argv: Sequence[str], env: Mapping[str, str], log: int
    ) -> Forked:  # fmt: skip
        """Have a broker start, or a script. Raises: RuntimeError: the nursery is gone."""
        order = {
            "argv": [script, *argv], "env": dict(env), "cwd": os.getcwd(), "umask": _umask(),
            "limits": [[each, *resource.getrlimit(each)] for each in LIMITS],
        }  # fmt: skip
        return Forked(self, self._answer(order, [log]))

    def exit_code(self, pid: int) -> int:
        """How a child has ended that has."""
        return self._answer({"ended": pid}, [])

    def _answer(self, order: dict[str, Any], fds: list[int]) -> int:
        text = json.dumps(order).encode()
        assert len(text) < MOST_BYTES, "too long for one message"
        with self._lock:
            socket.send_fds(self._sock, [text], fds)
            answer = self._sock.recv(64)
        if not answer:
            raise RuntimeError("the process that starts brokers is gone; its error is above")
        return int(answer)


Process = subprocess.Popen[bytes] | Forked
_nurseries: dict[tuple[int, str], Nursery] = {}
_making = threading.Lock()


def broker_command() -> list[str]:
    """Return the command line that starts the broker under test, without its options."""
    return shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or [sys.executable, "-m", "lavinmq"]


def begin(
    command: Sequence[str], args: Sequence[str], env: dict[str, str], log: IO[Any]
) -> Process:
    """Start a broker whose output goes into a file.

    Args: command: another program than usual; env: beside those of this process that are not about
        the broker.
    """
    rest = {k: v for k, v in os.environ.items() if not k.startswith("LAVINMQ_")}
    is_script = len(command) == 2 and command[0] == sys.executable and command[1].endswith(".py")
    is_ours = (is_script or not command) and _are_ours(env)
    if is_ours and COMMAND_VARIABLE not in os.environ:
        nursery, script = _nursery(env.get("LD_PRELOAD", "")), command[1] if is_script else ""
        return nursery.fork(script, args, rest | env, log.fileno())
    return subprocess.Popen(
        [*(command or broker_command()), *args], stdin=subprocess.DEVNULL, stdout=log,
        stderr=subprocess.STDOUT, env=rest | env,
    )  # fmt: skip


def _are_ours(env: dict[str, str]) -> bool:
    """Whether only a broker reads these variables, or the shim of a disk."""
    has_disk = DISK_VARIABLE in env
    return all(
        name.startswith("LAVINMQ_")
        or (has_disk and (name.startswith("DISK_SHIM_") or name == "LD_PRELOAD"))
        or (name, value) == ("PYTHONPATH", str(ROOT))  # the nursery finds our modules, too
        for name, value in env.items()
    )


def _nursery(preload: str) -> Nursery:
    """That of this process."""
    with _making:
        key = os.getpid(), preload
        if key not in _nurseries:
            _nurseries[key] = Nursery(preload)
        return _nurseries[key]


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _ends_within(end: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# ---- in the nursery


def _serve(sock: socket.socket) -> list[str]:
    """Fork until the other end is closed. Returns: in a child, its script and its arguments."""
    while True:
        text, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, 1)
        if not text:
            sys.exit()
        order = json.loads(text)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            sock.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            sock.close()
            _become(order, fds[0])
            return order["argv"]  # type: ignore[no-any-return]
        os.close(fds[0])
        sock.send(b"%d" % pid)


def _become(order: dict[str, Any], log: int) -> None:
    """Be as a new process with these arguments would."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    for which, soft, hard in order["limits"]:
        resource.setrlimit(which, (soft, hard))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = order["argv"]
    if DISK_VARIABLE in os.environ:
        ctypes.CDLL(None).disk_shim_begin()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who runs the tests
    import tornado.platform.asyncio  # noqa: F401
    import uvloop  # noqa: F401

    import lavinmq.__main__
    import lavinmq.auth.passwords
    import lavinmq.cluster.run
    import lavinmq.http.listeners
    import lavinmq.server

    cheap = lavinmq.auth.passwords._NEW_COST._replace(ln=9)
    vars(lavinmq.auth.passwords)["_NEW_COST"] = cheap
    script, *arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if not script:
        sys.exit(lavinmq.__main__.main(arguments))
    runpy.run_path(script, run_name="__main__")
