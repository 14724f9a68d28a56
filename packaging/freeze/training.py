"""What the broker does to show the compiler which code of the interpreter is used most.

Runs the executable whose interpreter counts (interpreter.py): as broker under the load of its own
tools and of the HTTP API, and as these tools. The counts are written when a process ends by itself,
so every process is ended by a signal that it handles. Each has a limit of time.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from fetch import HERE
from listening import free_ports, wait_until_listening
from toolchain import BuildError, run

TASK = HERE / "profile_task.py"
LIMIT_S = 3600
"""Of one step. In emulation, beside other work, the longest takes more than ten minutes."""
STARTS = 5
CHURN = ("queue-churn", "bind-churn", "channel-churn", "consumer-churn", "connection-churn")
CHURN_S = 1
LISTS = (
    "overview", "queues", "queues?page=1&page_size=10&sort=name", "exchanges", "bindings", "vhosts",
    "connections", "channels", "consumers", "users", "permissions", "policies", "parameters",
    "nodes", "definitions", "whoami", "queues/%2F/trained0", "exchanges/%2F/amq.topic",
)  # fmt: skip
LISTED = 15
TOOL = (
    ("list_queues", "name", "messages"), ("list_exchanges",), ("list_bindings",), ("list_users",),
    ("add_user", "trained", "secret"), ("set_permissions", "trained", ".*", ".*", ".*"),
    ("set_policy", "limit", "^trained", '{"max-length": 1000}'), ("list_policies",), ("status",),
    ("export_definitions",), ("delete_user", "trained"), ("clear_policy", "limit"),
)  # fmt: skip


class Broker:
    """A broker of the executable, with everything on, and the tools beside it."""

    def __init__(self, runner: list[str], executable: Path, place: Path) -> None:
        self._runner = runner
        self._executable = executable
        self._place = place
        self._port, self._http_port, self._metrics_port = free_ports(3)
        self._control = place / "control.sock"
        for name in ("lavinmqctl", "lavinmqperf"):
            (place / name).symlink_to(executable)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it meanwhile. Raises: BuildError when it does not start, or not end orderly."""
        command = [
            *self._runner, str(self._executable),
            "-D", str(self._place / "data"), "-p", str(self._port),
            "--http-port", str(self._http_port), "--metrics-http-port", str(self._metrics_port),
            "--control-unix-path", str(self._control), "--mqtt-port", "-1",
        ]  # fmt: skip
        with (self._place / "log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            ports = (self._port, self._http_port, self._metrics_port)
            wait_until_listening(ports, process, self._place / "log", LIMIT_S)
            yield
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise BuildError(f"the broker does not end\n{self._log()}") from None
            if code:
                raise BuildError(f"the broker ended with {code}\n{self._log()}")
        finally:
            process.kill()
            process.wait()

    def tool(self, *arguments: str) -> None:
        """Run lavinmqctl. Raises: BuildError."""
        socket_option = ["--control-unix-path", str(self._control)]
        tool = [*self._runner, str(self._place / "lavinmqctl")]
        run([*tool, *arguments, *socket_option], limit_s=LIMIT_S)

    def load(self, *arguments: str) -> None:
        """Run lavinmqperf. Raises: BuildError."""
        uri = f"amqp://guest:guest@127.0.0.1:{self._port}/%2F"
        tool = [*self._runner, str(self._place / "lavinmqperf")]
        run([*tool, *arguments, "--uri", uri], limit_s=LIMIT_S)

    def request(self, path: str, method: str = "GET", body: object = None) -> bytes:
        """Make a request to the HTTP API. Raises: BuildError."""
        return self._send(self._http_port, f"/api/{path}", method, body)

    def metrics(self) -> bytes:
        """Read the metrics. Raises: BuildError."""
        return self._send(self._metrics_port, "/metrics", "GET", None)

    def _send(self, port: int, path: str, method: str, body: object) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
                     "Content-Type": "application/json"},
        )  # fmt: skip
        try:
            # Proxies of the environment are not for this machine.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=LIMIT_S) as answer:
                said: bytes = answer.read()
                return said
        except (OSError, urllib.error.URLError) as error:
            raise BuildError(f"{method} {path}: {error}\n{self._log()}") from error

    def _log(self) -> str:
        return (self._place / "log").read_text(errors="replace")[-4000:]


def train(runner: list[str], python: Path, executable: Path) -> None:
    """Run everything with the interpreter that counts, by itself and in the executable.

    Args: runner: the command that programs of the processor are run by, if it is not this one.
    Raises: BuildError.
    """
    run([*runner, str(python), "-I", "-S", "-B", str(TASK)], limit_s=LIMIT_S)
    with tempfile.TemporaryDirectory() as place:
        broker = Broker(runner, executable, Path(place))
        for _ in range(STARTS):
            with broker.running():
                broker.request("overview")
        with broker.running():
            _administer(broker)
            broker.load(
                "throughput", "-C", "20000", "-D", "20000", "--confirm", "100", "--ack", "10"
            )
            for scenario in CHURN:
                broker.load(scenario, "--time", str(CHURN_S))


def _administer(broker: Broker) -> None:
    """Define, list, show and delete, over HTTP and with the tool."""
    for number in range(100):
        name = f"trained{number}"
        arguments = {"x-max-length": number, "x-overflow": "reject-publish"}
        broker.request(f"queues/%2F/{name}", "PUT", {"durable": True, "arguments": arguments})
        binding = {"routing_key": f"a.{number}.*"}
        broker.request(f"bindings/%2F/e/amq.topic/q/{name}", "POST", binding)
        message = {"payload": name, "payload_encoding": "string", "properties": {}}
        broker.request(
            "exchanges/%2F/amq.topic/publish", "POST", {**message, "routing_key": f"a.{number}.b"}
        )
    for _ in range(LISTED):
        for path in LISTS:
            broker.request(path)
        broker.metrics()
    for command in TOOL:
        broker.tool(*command)
    broker.request("definitions", "POST", json.loads(broker.request("definitions")))
    for number in range(1, 100):
        broker.request(f"queues/%2F/trained{number}", "DELETE")
