"""The examples of three nodes, and the commands of their documentation, carried out on real nodes.

Three processes are started by the environment of the StatefulSet; names of hosts, ports and paths
of a pod are replaced by those of this machine, and nothing else. Probes and hooks are carried out
as they stand there, in the order in which an update restarts pods.
"""

from __future__ import annotations

import base64
import itertools
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.control import control_path
from tests.support.etcd import WHY_NOT, EtcdCluster
from tests.support.nursery import broker_command
from tests.support.patience import PATIENCE
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed, WireTimeout

sys.path.append(str(Path(__file__).parents[3] / "packaging"))
import image

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[3]
CONTAINER = ROOT / "packaging/container"
WAIT_S = 60.0 * PATIENCE
DEADLINE_S = 2 * WAIT_S
DOCUMENTS = list(yaml.safe_load_all((CONTAINER / "kubernetes-cluster.yaml").read_text()))
PROGRAMS = {"lavinmqctl": [sys.executable, "-m", "lavinmq.cli.ctl"]}
QUEUE = "of-an-update"


def of_kind(kind: str) -> list[dict[str, Any]]:
    """The documents of a kind."""
    return [each for each in DOCUMENTS if each["kind"] == kind]


(STATEFUL_SET,) = of_kind("StatefulSet")
SPEC = STATEFUL_SET["spec"]["template"]["spec"]
(CONTAINER_SPEC,) = SPEC["containers"]
PRE_STOP: list[str] = CONTAINER_SPEC["lifecycle"]["preStop"]["exec"]["command"]
COMPOSE = yaml.safe_load((CONTAINER / "compose-cluster.yaml").read_text())
BROKERS = [each for each in COMPOSE["services"].values() if "lavinmq" in each["image"]]
PAGE = (ROOT / "docs/clustering.md").read_text()
NAMED_PORTS = {each["name"]: each["containerPort"] for each in CONTAINER_SPEC["ports"]}


class Pod:
    """A node as the StatefulSet says. Args: pods: all of them, by their names."""

    def __init__(
        self, pods: dict[str, Pod], name: str, etcd: EtcdCluster, directory: Path
    ) -> None:  # fmt: skip
        self.name = name
        self.ports = {each: free_port() for each in NAMED_PORTS}
        self._pods = pods
        self._etcd = etcd
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / f"{name}.log"
        self.control_path = control_path(self.ports["amqp"])

    def here(self, text: str) -> str:
        """What a pod says, for this machine."""
        for name, pod in self._pods.items():
            at = f"{name}.{STATEFUL_SET['spec']['serviceName']}:{NAMED_PORTS['cluster']}"
            text = text.replace(at, f"{HOST}:{pod.ports['cluster']}")
        for name, port in NAMED_PORTS.items():
            text = text.replace(f"localhost:{port}", f"{HOST}:{self.ports[name]}")
        text = text.replace("etcd:2379", self._etcd.endpoints[0])
        return text.replace("/run/secrets/lavinmq", str(self._directory))

    def environment(self) -> dict[str, str]:
        """Its variables."""
        found: dict[str, str] = {}
        for each in CONTAINER_SPEC["env"]:
            text = each.get("value")
            if text is None:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                text = self.name
            for name, value in found.items():
                text = text.replace(f"$({name})", value)
            found[each["name"]] = text
        return {name: self.here(text) for name, text in found.items()}

    def start(self) -> None:
        """Start it. What the image's configuration says is here said by flags."""
        places = {
            "-D": self._directory / self.name, "-p": self.ports["amqp"], "-b": HOST,
            "--http-port": self.ports["http"], "--metrics-http-port": self.ports["metrics"],
            "--clustering-port": self.ports["cluster"], "--mqtt-port": self.ports["mqtt"],
            "--control-unix-path": self.control_path,
        }  # fmt: skip
        flags = [str(each) for pair in places.items() for each in pair]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*broker_command(), *CONTAINER_SPEC.get("args", []), *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
            )  # fmt: skip

    def ask(self, probe: dict[str, Any]) -> bool:
        """Whether a probe succeeds, once."""
        get = probe["httpGet"]
        where = f"http://{HOST}:{self.ports[get['port']]}{get['path']}"
        try:
            timeout_s = probe.get("timeoutSeconds", 1) * PATIENCE
            with urllib.request.urlopen(where, timeout=timeout_s) as answer:
                return int(answer.status) in range(200, 400)
        except OSError:
            return False

    def until(self, kind: str) -> None:
        """Wait until a probe succeeds."""
        probe = CONTAINER_SPEC[kind]
        wait_for(lambda: self.ask(probe), f"{self.name}: {kind} fails", WAIT_S)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of the container."""
        words = [*PROGRAMS.get(command[0], command[:1]), *map(self.here, command[1:])]
        return subprocess.run(
            words, env=self.environment(), capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def leave(self) -> None:
        """Be told to go, as the kubelet does it: the hook, then SIGTERM."""
        done = self.run(PRE_STOP)
        assert done.returncode == 0, done.stderr
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(SPEC["terminationGracePeriodSeconds"])
        self._process = None

    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def id(self) -> str:
        """Its id in the cluster."""
        return (self._directory / self.name / ".clustering_id").read_text().strip()

    def in_sync(self) -> set[str]:
        """The ids of all that are, as etcd has them: a node may not have heard of it yet."""
        key = base64.b64encode(b"lavinmq/isr").decode()
        (row,) = self._etcd.ask("kv/range", key=key)["kvs"]
        return set(base64.b64decode(row["value"]).decode().split(","))

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def lines_of(heading: str) -> list[str]:
    """The commands below a heading of the page."""
    _, _, rest = PAGE.partition(f"\n### {heading}\n")
    blocks = re.findall(r"^```sh\n(.*?)^```", rest.partition("\n### ")[0], re.M | re.S)
    assert blocks, heading
    return "".join(blocks).splitlines()


def opened(pod: Pod) -> Wire:
    """A client at a pod."""
    return Wire.open(pod.ports["amqp"], user="admin", password="secret")


def publish(pod: Pod, text: str) -> None:
    """Publish a message by a pod until it is confirmed."""

    def is_confirmed() -> bool:
        with suppress(OSError, WireClosed, WireTimeout), opened(pod) as wire:
            declare = commands.Queue.Declare(queue=QUEUE, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            wire.publish(1, "", QUEUE, text.encode())
            wire.expect(commands.Basic.Ack, 1)
            return True
        return False

    wait_for(is_confirmed, f"{pod.name} does not confirm", WAIT_S)


def messages(pod: Pod) -> set[str]:
    """Take all messages."""
    found: set[str] = set()
    with opened(pod) as wire:
        while True:
            wire.send(1, commands.Basic.Get(queue=QUEUE, no_ack=True))
            unit = wire.receive()
            if isinstance(unit.method, commands.Basic.GetEmpty):
                return found
            found.add(unit.body.decode())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pod]]:
    """All pods, started together as the StatefulSet wants it."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    directory = tmp_path_factory.mktemp("pods")
    (directory / "password").write_text("secret")
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(directory / "etcd"))
        named: dict[str, Pod] = {}
        for number in range(STATEFUL_SET["spec"]["replicas"]):
            name = f"{STATEFUL_SET['metadata']['name']}-{number}"
            named[name] = Pod(named, name, etcd, directory)
            stack.callback(named[name].kill)
        assert STATEFUL_SET["spec"]["podManagementPolicy"] == "Parallel"
        for pod in named.values():
            pod.start()
        yield list(named.values())


@pytest.fixture
def pods(started: list[Pod]) -> list[Pod]:
    """All pods, ready."""
    for pod in started:
        if not pod.is_running():
            pod.start()
    for pod in started:
        pod.until("startupProbe")
        pod.until("readinessProbe")
    return started


def test_an_update_of_all_pods_leaves_enough_in_sync_and_loses_nothing(pods: list[Pod]) -> None:
    n_published = itertools.count()
    for pod in reversed(pods):  # the order of a rolling update
        others = [each for each in pods if each is not pod]
        publish(others[0], f"m{next(n_published)}")
        pod.leave()
        assert {each.id for each in others} <= pod.in_sync()
        for each in others:
            assert each.is_running()
            each.until("readinessProbe")
            assert each.ask(CONTAINER_SPEC["livenessProbe"])
        publish(others[1], f"m{next(n_published)}")
        pod.start()
        pod.until("startupProbe")
        pod.until("readinessProbe")

    assert messages(pods[0]) == {f"m{number}" for number in range(next(n_published))}


def test_a_pod_that_is_needed_does_not_go(pods: list[Pod]) -> None:
    first, second, third = pods
    assert PRE_STOP[-2:-1] == ["--timeout"]
    third.leave()

    done = second.run([*PRE_STOP[:-1], "0"])
    assert (done.returncode, done.stderr[:26]) == (1, "Error: It may not be stopped"[:26])

    third.start()
    assert second.run(PRE_STOP).returncode == 0
    first.until("readinessProbe")


def test_the_commands_for_a_service_do_what_the_page_says(pods: list[Pod], tmp_path: Path) -> None:
    pod, said = pods[1], ""
    ini = tmp_path / "lavinmq.ini"
    ini.write_text((ROOT / "packaging/systemd/cluster.ini").read_text())
    places = ["-c", str(ini), "-D", str(tmp_path), "--control-unix-path", str(tmp_path / "ctl")]
    for line in lines_of("As a service"):
        words = shlex.split(line)
        if words == ["systemctl", "restart", "lavinmq"]:
            pod.stop()
            pod.start()
            pod.until("startupProbe")
            continue
        if words[0] == "curl" and shutil.which("curl") is None:
            pod.until("readinessProbe")
            continue
        command = [*broker_command(), *places] if words[0] == "lavinmq" else words[:1]
        done = pod.run([*command, *words[1:]])
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        said += done.stdout

    assert "role: follower" in said or "role: leader" in said
    assert said.count("tcp://127.0.0.1:") == len(pods)
    assert "\nelections: " in said


def test_commands_in_containers_work_on_each_node(pods: list[Pod]) -> None:
    commands = {
        match[1]
        for heading in ("In containers", "On Kubernetes")
        for line in lines_of(heading)
        if (match := re.search(r" exec (?:lavinmq1|lavinmq-0 --) (.*)", line))
    }
    assert commands

    for command, pod in itertools.product(commands, pods):
        done = pod.run(shlex.split(command))
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.startswith("this_node: ")


def test_every_node_is_healthy_for_those_who_run_the_image(pods: list[Pod]) -> None:
    """By the image's own check: the examples have none that differs."""
    kind, program, *words = image.describe([], "amd64")["config"]["Healthcheck"]["Test"]
    assert (kind, program) == ("CMD", "/usr/bin/lavinmqctl")
    assert not any("healthcheck" in each for each in BROKERS)

    for pod in pods:
        done = pod.run(["lavinmqctl", *words, "--control-unix-path", pod.control_path])
        assert done.returncode == 0, done.stderr


def test_nodes_of_compose_are_configured_as_those_of_kubernetes() -> None:
    wanted = {each["name"]: each.get("value") for each in CONTAINER_SPEC["env"]}
    del wanted["POD_NAME"]
    del wanted["LAVINMQ_CLUSTERING_ADVERTISED_URI"]  # it is the name of the host by default
    wanted["LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN_FILE"] = "/run/secrets/password"

    assert len(BROKERS) == len({each["hostname"] for each in BROKERS}) == 3
    for each in BROKERS:
        assert each["environment"] == wanted
        assert COMPOSE["services"][each["hostname"]] is each
    assert len({volume for each in BROKERS for volume in each["volumes"]}) == 3
