"""The example of three nodes in containers, by podman: each has its own network, name and volume.

What the file for compose says of each service becomes a container. Its network has no server for
names here, so containers are told the addresses of the others; podman has memory of its own below
/run; and etcd is this machine's, in a container with this machine's libraries, so that nothing has
to be downloaded.
"""

from __future__ import annotations

import ipaddress
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.test_image import CONTAINER, PASSWORD, Podman, image  # noqa: F401
from tests.support.etcd import PROGRAM, WHY_NOT
from tests.support.machine import missing
from tests.support.waiting import wait_for

yaml = pytest.importorskip("yaml")

COMPOSE = yaml.safe_load((CONTAINER / "compose-cluster.yaml").read_text())
NODES = [name for name, each in COMPOSE["services"].items() if "lavinmq" in each["image"]]
CTL = ("lavinmqctl", "--uri", "http://localhost:15692")
LIBRARIES = ("/lib64", "/lib/x86_64-linux-gnu")
WAIT_S = 120
LAYOUT_VARIABLE = "LAVINMQ_TEST_IMAGE"
"""A layout of the image that is there, in the place of one that is made."""


class Compose:
    """The containers of the example."""

    def __init__(self, podman: Podman, secrets: Path) -> None:
        self.podman = podman
        self._secrets = secrets
        self.call("network", "create", "cluster")
        (network,) = json.loads(self.call("network", "inspect", "cluster"))
        hosts = list(ipaddress.ip_network(network["subnets"][0]["subnet"]).hosts())
        self._addresses = dict(zip(COMPOSE["services"], map(str, hosts[10:]), strict=False))

    def call(self, *arguments: str) -> str:
        """What podman says, which has to be content."""
        done = self.podman.call(*arguments)
        assert not done.returncode, f"{arguments}: {done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """Start a service, as the file says."""
        service = COMPOSE["services"][name]
        options = ["--network=cluster", f"--ip={self._addresses[name]}"]
        options += [f"--hostname={service['hostname']}"] if "hostname" in service else []
        options += [f"--add-host={each}:{at}" for each, at in self._addresses.items()]
        options += [f"--volume={each}" for each in service.get("volumes", [])]
        options += [f"--cap-drop={each}" for each in service.get("cap_drop", [])]
        options += [f"--security-opt={each}" for each in service.get("security_opt", [])]
        options += [f"--env={key}={value}" for key, value in service.get("environment", {}).items()]
        options += [
            f"--volume={self._secrets}/{each}:/run/secrets/{each}:ro"
            for each in service.get("secrets", [])
        ]
        options += [f"--restart={service['restart']}"]
        command: list[str] = service.get("command", [])
        if command:
            options += [f"--volume={each}:{each}:ro" for each in (*LIBRARIES, str(PROGRAM))]
            options += [f"--entrypoint={PROGRAM}", "--user=0"]
        self.podman.start(name, *options, network="", command=command[1:])

    def ctl(self, name: str, *words: str) -> str:
        """What the tool says inside a container, empty if it fails."""
        return self.podman.call("exec", name, *CTL, *words).stdout

    def states(self, name: str) -> dict[str, str]:
        """How the nodes stand, as one says, by their hosts."""
        found = self.ctl(name, "cluster_status", "--format", "json")
        nodes: list[dict[str, Any]] = json.loads(found)["nodes"] if found else []
        return {
            str(each["uri"]).partition("//")[2].partition(":")[0]: each["state"] for each in nodes
        }  # fmt: skip

    def leader(self, name: str) -> str:
        """Wait until all are in sync, as one of them says. Returns: who leads."""

        def is_whole() -> bool:
            states = self.states(name)
            return sorted(states.values()) == ["in sync", "in sync", "leader"]

        wait_for(is_whole, f"{self.states(name)}\n{self.podman.logs(name)}", WAIT_S)
        return next(node for node, state in self.states(name).items() if state == "leader")


@pytest.fixture
def compose(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Compose]:
    """All services, started."""
    reason = missing("podman", "runc", "iptables") or WHY_NOT
    if reason:
        pytest.skip(reason)
    layout = os.environ.get(LAYOUT_VARIABLE)
    source = Path(layout) if layout else request.getfixturevalue("image")
    (tmp_path / "password").write_text(PASSWORD)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as run:
        podman = Podman(tmp_path / "podman", Path(run), source)
        try:
            made = Compose(podman, tmp_path)
            for name in ("etcd", *NODES):
                made.start(name)
            yield made
        finally:
            for what in (("rm", "--all", "--force"), ("volume", "rm", "--all", "--force"),
                         ("network", "rm", "--force", "cluster"),
                         ("rmi", "--all", "--force")):  # fmt: skip
                podman.call(*what)


def test_three_nodes_of_the_example_are_one_cluster(compose: Compose) -> None:
    """They find each other by their names, and one that is killed is replaced, and comes back."""
    leader = compose.leader("lavinmq1")
    made = compose.podman.call("exec", leader, "lavinmqctl", "create_queue", "orders", "--durable")
    assert not made.returncode, made.stderr

    compose.call("kill", "--signal", "KILL", leader)
    compose.call("start", leader)
    other = next(each for each in NODES if each != leader)
    now = compose.leader(other)

    queues = compose.podman.call("exec", now, "lavinmqctl", "list_queues", "--format", "json")
    assert [each["name"] for each in json.loads(queues.stdout)] == ["orders"]
