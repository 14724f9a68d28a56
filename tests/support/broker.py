"""A broker process for tests: start, stop, kill and restart it on one data directory.

Owns the child process, its port, its data directory path and its log file. Called by the
fixtures in `tests/conftest.py` and by tests that need several brokers. Speaks AMQP only as far
as "does the port answer"; never looks into the data directory.
"""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.control import control_path
from tests.support.nursery import Process, begin, broker_command
from tests.support.patience import PATIENCE
from tests.support.ports import HOST, free_port

START_TIMEOUT_S = 20.0 * PATIENCE
STOP_TIMEOUT_S = 20.0 * PATIENCE
PORT_VARIABLE = "LAVINMQ_TEST_AMQP_PORT"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


class BrokerError(Exception):
    """The broker process did not do what it was told; the text ends with its log."""


def is_answering(host: str, port: int) -> bool:
    """Tell whether an AMQP server answers the protocol header on this port."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(PROTOCOL_HEADER)
            return bool(connection.recv(1))
    except OSError:
        return False


class Broker:
    """One broker on one data directory; the port stays the same over restarts.

    Args: `data_dir` need not exist; `args` are options added to the command line;
    `log_path` defaults to `<data_dir>.log`; `command` starts another program than usual; `http`
    turns the management interface on, at `http_port`, `metrics_port` and `control_path`; `mqtt` has
    it listen for MQTT, at `mqtt_port`.
    """

    def __init__(
        self,
        data_dir: Path,
        args: Sequence[str] = (),
        *,
        log_path: Path | None = None,
        env: dict[str, str] | None = None,
        command: Sequence[str] = (),
        http: bool = False,
        mqtt: bool = False,
    ) -> None:
        self.host = HOST
        self.port = free_port()
        self.http_port = free_port() if http else -1
        self.metrics_port = free_port() if http else -1
        self.mqtt_port = free_port() if mqtt else -1
        self.control_path = control_path(self.port) if http else ""
        self.data_dir = data_dir
        self.log_path = log_path or data_dir.with_name(data_dir.name + ".log")
        self._args = list(args)
        self._env = env or {}
        self._command = list(command)
        self._process: Process | None = None

    @classmethod
    def attached(cls, port: int, data_dir: Path) -> Broker:
        """Return a handle on a server somebody else started; it cannot be stopped or killed."""
        broker = cls(data_dir)
        broker.port = port
        return broker

    @property
    def uri(self) -> str:
        """URI of the default vhost for the default user."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"

    @property
    def http_url(self) -> str:
        """Where the management interface listens."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def pid(self) -> int:
        """Process id. Raises BrokerError when it was never started."""
        return self._started().pid

    def is_running(self) -> bool:
        """Tell whether the process is there (and not merely its port)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Broker:
        """Start the process and wait until the AMQP port answers. Raises BrokerError."""
        if self.is_running():
            raise BrokerError("already running")
        with self.log_path.open("ab") as log:
            self._process = begin(self._command, self._options(), self._env, log)
        self._wait_until_answering(self._process)
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM and return the exit code. Raises BrokerError when it does not end."""
        process = self._started()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return self._wait_until_ended(process, timeout_s)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Return the exit code of a broker that ends by itself. Raises BrokerError when it does
        not."""
        return self._wait_until_ended(self._started(), timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        process = self._started()
        process.kill()
        self._wait_until_ended(process, STOP_TIMEOUT_S)

    def restart(self) -> Broker:
        """Stop it orderly if it runs and start it again on the same directory and port."""
        if self.is_running():
            self.stop()
        return self.start()

    def close(self) -> None:
        """End the process whatever its state; for fixtures."""
        if self.is_running():
            self.kill()

    def log_text(self) -> str:
        """Everything the broker wrote to standard output and standard error, all starts."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def _options(self) -> list[str]:
        place = ["-D", str(self.data_dir), "-b", self.host, "-p", str(self.port)]
        http = ["--http-port", str(self.http_port), "--metrics-http-port", str(self.metrics_port)]
        control = ["--control-unix-path", self.control_path, "--https-port", "-1"]
        mqtt = ["--mqtt-port", str(self.mqtt_port), "--mqtts-port", "-1"]
        return [*place, *http, *control, *mqtt, *self._args]

    def _started(self) -> Process:
        if self._process is None:
            raise BrokerError("this broker was not started here")
        return self._process

    def _wait_until_answering(self, process: Process) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_answering(self.host, self.port):
            if process.poll() is not None:
                raise self._error(f"ended with exit code {process.returncode} while starting")
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise self._error(f"port {self.port} did not answer in {START_TIMEOUT_S} s")
            time.sleep(0.02)

    def _wait_until_ended(self, process: Process, timeout_s: float) -> int:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self._error(f"did not end within {timeout_s} s") from None

    def _error(self, what: str) -> BrokerError:
        command = shlex.join([*(self._command or broker_command()), *self._options()])
        return BrokerError(f"{what}\ncommand: {command}\nlog:\n{self.log_text()[-4000:]}")
