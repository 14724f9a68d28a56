"""What a manager of services hears of a node that does not lead: it is ready, and it lives."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import ClusterFactory
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.waiting import wait_for

DEADLINE_S = WAIT_S


@contextmanager
def managed(node: ClusterNode, path: Path) -> Iterator[Callable[[str], int]]:
    """Run a node under a manager. Yields: how often that has heard a line by now."""
    lines: Counter[str] = Counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)

        def heard(line: str) -> int:
            while True:
                try:
                    lines.update(sock.recv(65536).decode().splitlines())
                except BlockingIOError:
                    return lines[line]

        node.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
        node.start()
        yield heard
        node.env = {}
        node.kill()


@pytest.mark.parametrize("is_waiting", [False, True], ids=["follows", "waits"])
def test_manager_hears_of_a_node_that_does_not_lead(
    cluster: Cluster, tmp_path: Path, is_waiting: bool
) -> None:
    node = cluster.followers()[0]
    node.kill()
    if is_waiting:
        # It may not lead: those that are in sync without it do not live.
        cluster.wait_in_sync([each for each in cluster.nodes if each is not node])
        for other in cluster.nodes:
            other.kill()
    with managed(node, tmp_path / "s") as heard:
        wait_for(lambda: heard("READY=1") > 0, "it is not ready", WAIT_S)
        wait_for(lambda: heard("WATCHDOG=1") >= 3, "it does not live", WAIT_S)


def test_manager_waits_for_a_node_that_loads_its_data(
    cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    """The loop stands still meanwhile: with much data for longer than a watchdog waits."""
    with managed(cluster_factory(1).nodes[0], tmp_path / "s") as heard:
        wait_for(lambda: heard("WATCHDOG_USEC=200000") > 0, "it does not lead", WAIT_S)

        assert heard("WATCHDOG_USEC=300000000") == 1
