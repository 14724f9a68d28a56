"""A RabbitMQ of Debian with its plug-ins, for tests of what both brokers do together.

It has a name daemon, a node name and directories of its own, and ends with its test. Tests that
want one are skipped where `rabbitmq-server` is not installed. Start: about 6 s.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import time
from http import HTTPStatus
from pathlib import Path

from tests.support.api import Api
from tests.support.ports import HOST, free_port

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The one on PATH changes the user when it is run as root."""
PLUGINS = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_shovel_management",
           "rabbitmq_federation", "rabbitmq_federation_management")  # fmt: skip
START_S = 240.0
"""Erlang needs a minute and more where many others work."""
STOP_S = 20.0
CONFIGURATION = """\
listeners.tcp.1 = {host}:{port}
management.tcp.ip = {host}
management.tcp.port = {http}
log.console = false
log.file.level = info
"""


def is_installed() -> bool:
    """Whether there is one."""
    return os.access(PROGRAM, os.X_OK) and shutil.which("epmd") is not None


class RabbitMQ:
    """A node that runs; `close` ends it."""

    host = HOST

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.http_port, self._dist, self._epmd = (free_port() for _ in range(4))
        directory.mkdir(parents=True)
        configuration = CONFIGURATION.format(host=HOST, port=self.port, http=self.http_port)
        (directory / "rabbitmq.conf").write_text(configuration)
        (directory / "plugins").write_text(f"[{','.join(PLUGINS)}].\n")
        self._names = subprocess.Popen(["epmd", "-port", str(self._epmd), "-address", HOST])
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start it, and wait until its API answers. Raises: AssertionError with its log."""
        directory = self.directory
        env = os.environ | {
            "HOME": str(directory),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_NODENAME": "test@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": HOST,
        }
        with (directory / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [str(PROGRAM)], env=env, stdout=out, stderr=out, start_new_session=True
            )
        end = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < end and self._process.poll() is None, self.log()
            time.sleep(0.1)
        self.api = Api(self)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=5)
        try:
            connection.request("GET", "/api/overview")  # the pages may be there before it
            return connection.getresponse().status == HTTPStatus.UNAUTHORIZED
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def uri(self) -> str:
        """Where clients connect to."""
        return f"amqp://guest:guest@{HOST}:{self.port}"

    def log(self) -> str:
        """What it has to say."""
        texts = [path.read_text(errors="replace") for path in self.directory.glob("log/*.log")]
        return "\n".join([*texts, (self.directory / "out").read_text(errors="replace")])

    def ctl(self, *words: str) -> None:
        """Run rabbitmqctl. Raises: CalledProcessError."""
        env = os.environ | {"HOME": str(self.directory), "ERL_EPMD_PORT": str(self._epmd)}
        argv = [str(PROGRAM.with_name("rabbitmqctl")), "-n", "test@localhost", *words]
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=START_S)

    def sync_declarations(self) -> None:
        """Have on disk what was declared. It answers before, and a kill soon after may take a
        durable queue away, with all that it has confirmed. Raises: CalledProcessError."""
        self.ctl("eval", "ok = mnesia:sync_log().")

    def kill(self) -> None:
        """End it without warning."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)

    def close(self) -> None:
        """End it and its name daemon."""
        if self._process.poll() is None:
            self.kill()
        self._names.kill()
        self._names.wait(STOP_S)
