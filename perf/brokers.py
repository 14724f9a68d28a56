"""How each broker under test is started, found ready and stopped.

Owns command lines, configuration files, ports and processes of our broker, RabbitMQ and the null
broker. Called by `procedure.py`, which gives every measurement a broker of its own. Everything a
broker writes goes below the scratch directory it is given.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from perf import measure, topology
from perf.measure import BenchError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
DEFAULT_COMMAND = ".venv/bin/lavinmq"
DEFAULT_OPTIONS = (
    "-D {data} -b 127.0.0.1 -p {port} --http-port {http_port} --mqtt-port {mqtt_port}"
    " --metrics-http-port -1 --control-unix-path {scratch}/control.sock"
)
RABBITMQ_PATHS = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)
CONFIGURATION = "[amqp]\nmax_bindings_per_queue = 0\n"
"""RabbitMQ has no such bound, and one row binds one queue for as long as it runs."""
RABBITMQ_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = false
log.file.level = warning
collect_statistics_interval = 60000
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to start a broker process.

    `helper` is started first, unpinned and uncounted, and must listen on `helper_port`. `stop_name`
    is the process of the tree that takes SIGTERM when the root is only a wrapper around it.
    """

    argv: tuple[str, ...]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    helper: tuple[str, ...] = ()
    helper_port: int = 0
    stop_name: str = ""


@dataclass(frozen=True, slots=True)
class Contender:
    """A column of the report: a broker that can be launched, or is not installed (None).

    `launch(scratch, body)` prepares a start below `scratch`; `body` is the message size in bytes.
    Launching twice on one scratch directory is a restart on the same data.
    """

    name: str
    label: str
    launch: Callable[[Path, int], Launch] | None


def ours(name: str, label: str, command: str) -> Contender:
    """Return our broker started by `command`.

    `command` may hold {data}, {scratch}, {port}, {http_port} and {mqtt_port}; without any of them
    the usual options are added. Raises `BenchError` for an unknown placeholder.
    """
    template = command if "{" in command else f"{command} {DEFAULT_OPTIONS}"

    def launch(scratch: Path, body: int) -> Launch:
        port, http_port, mqtt_port = free_ports(3)
        values = {"port": port, "http_port": http_port, "mqtt_port": mqtt_port}
        places = {"data": scratch / "data", "scratch": scratch}
        try:
            argv = tuple(word.format(**values, **places) for word in shlex.split(template))
        except (KeyError, IndexError, ValueError) as error:
            raise BenchError(f"bad placeholder in broker command {command!r}: {error}") from error
        (scratch / "lavinmq.ini").write_text(CONFIGURATION)
        return Launch(argv, port, {"LAVINMQ_CONFIGURATION_DIRECTORY": str(scratch)})

    return Contender(name, label, launch)


def null_broker(program: Path) -> Contender:
    """Return the null broker, the floor under every other one."""

    def launch(scratch: Path, body: int) -> Launch:
        (port,) = free_ports(1)
        return Launch((str(program), str(port), str(body)), port)

    return Contender("null", "null broker", launch)


def rabbitmq(plugins: str = "", more: str = "") -> Contender:
    """Return RabbitMQ if it is installed, with its own node, name daemon and directories.

    Args: plugins: their names, with commas between; more: lines for its configuration.
    """
    program = find_rabbitmq()
    if program is None:
        return Contender("rabbitmq", "RabbitMQ", None)

    def launch(scratch: Path, body: int) -> Launch:
        port, dist_port, epmd_port = free_ports(3)
        configuration, enabled = scratch / "rabbitmq.conf", scratch / "enabled_plugins"
        configuration.write_text(RABBITMQ_CONFIGURATION.format(port=port) + more)
        enabled.write_text(f"[{plugins}].\n")
        env = {
            "HOME": str(scratch),  # the Erlang cookie
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_CONF_ENV_FILE": str(scratch / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(enabled),
            "RABBITMQ_NODENAME": "bench@localhost",  # unique at its own name daemon
            "RABBITMQ_NODE_IP_ADDRESS": topology.HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(scratch / "data"),
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_LOG_BASE": str(scratch / "log"),
            "RABBITMQ_PID_FILE": str(scratch / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": topology.HOST,
        }
        helper = ("epmd", "-port", str(epmd_port), "-address", topology.HOST)
        return Launch((str(program),), port, env, helper, epmd_port, "beam.smp")

    return Contender("rabbitmq", "RabbitMQ", launch)


def find_rabbitmq() -> Path | None:
    """Return RabbitMQ's start script.

    The script below /usr/lib comes first: the one on PATH changes the user when run as root.
    """
    for candidate in (*RABBITMQ_PATHS, shutil.which("rabbitmq-server")):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    return None


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((topology.HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class RunningBroker:
    """A broker process pinned to one core, from its launch to its end.

    A context manager: entering starts it and waits until it answers the AMQP header, leaving
    stops it, by force if it must. After the start: `pid`, `port`, `startup_s`, `startup_cpu_s`
    and `version` (what the broker says of itself).
    """

    def __init__(
        self, launch: Launch, core: int, log: Path, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        self._launch = launch
        self._core = core
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._helper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = launch.port
        self.startup_s = 0.0
        self.startup_cpu_s = 0.0
        self.version = ""

    @property
    def pid(self) -> int:
        """The root of the broker's process tree."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # an interrupt, too, must not leave processes behind
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._process is not None and self._process.poll() is None:
                self.stop()
        finally:
            self.kill()

    def stop(self) -> float:
        """Stop by SIGTERM and return the seconds it took. Raises `BenchError` if it does not."""
        assert self._process is not None, "the broker was not started"
        started = time.monotonic()
        for stat in measure.process_tree(self.pid):
            if stat.name == self._launch.stop_name or not self._launch.stop_name:
                os.kill(stat.pid, signal.SIGTERM)
                break
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the broker did not stop in {STOP_TIMEOUT_S:.0f} s") from None
        return time.monotonic() - started

    def kill(self) -> None:
        """End everything that still runs; harmless when nothing does."""
        for process in (self._process, self._helper):
            if process is None:
                continue
            # Each was started as the leader of a session, so orphans are found as well.
            for stat in measure.session_members(process.pid):
                _signal(stat.pid, signal.SIGKILL)
            process.wait()
        self._process = self._helper = None

    def log_tail(self) -> str:
        """Return the last lines the broker wrote to its output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])

    def _start(self) -> None:
        environment = os.environ | dict(self._launch.env)
        with self._log.open("ab") as log:
            if self._launch.helper:
                self._helper = _spawn(self._launch.helper, environment, log.fileno())
                self._wait_until(self._helper, self._helper_listens)
            started = time.monotonic()
            argv = measure.pinned(self._core, self._launch.argv)
            self._process = _spawn(argv, environment, log.fileno())
        self._wait_until(self._process, self._answers)
        self.startup_s = time.monotonic() - started
        self.startup_cpu_s = measure.tree_cpu_s(self.pid)

    def _wait_until(self, process: subprocess.Popen[bytes], is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not is_ready():
            if process.poll() is not None:
                raise BenchError(f"the broker ended at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BenchError(f"no answer in {self._start_timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.002)

    def _helper_listens(self) -> bool:
        try:
            socket.create_connection((topology.HOST, self._launch.helper_port), 1).close()
        except OSError:
            return False
        return True

    def _answers(self) -> bool:
        try:
            with topology.Client(self.port) as client:
                properties = client.server_properties
        except OSError:
            return False
        named = (properties.get(key) for key in ("product", "version", "platform"))
        self.version = " ".join(str(value) for value in named if value)
        return True


def _spawn(
    argv: tuple[str, ...] | list[str], environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt from the keyboard is ours alone to handle
        )
    except OSError as error:
        raise BenchError(f"cannot start {argv[0]}: {error}") from error


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
