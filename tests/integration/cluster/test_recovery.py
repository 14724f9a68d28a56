"""Most nodes are lost for good: an operator has one that is left go on, and is told the price."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
from typing import Any

from pamqp import commands

from tests.integration.cluster.conftest import ClusterFactory
from tests.support.api import Api
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.ctl import ctl
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = 2 * WAIT_S
QUEUE = "kept"
COMMAND = "recover_cluster"
ORDER = "--i-accept-loss"


def published(node: ClusterNode, *bodies: bytes) -> None:
    """Publish messages, each acknowledged."""
    with Wire.open(node.port) as wire:
        wire.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for body in bodies:
            wire.publish(1, "", QUEUE, body)
            assert wire.expect(commands.Basic.Ack)


def in_queue(node: ClusterNode) -> int:
    found: int = Api(node).get(f"/api/queues/%2F/{QUEUE}")["messages"]
    return found


def lose(*nodes: ClusterNode) -> None:
    """Their machines are gone, with their disks."""
    for each in nodes:  # at the same time: none of them leads after another one
        each.signal(signal.SIGKILL)
    for each in nodes:
        each.kill()
    for each in nodes:
        shutil.rmtree(each.data_dir)


def report(node: ClusterNode) -> dict[str, Any]:
    done = ctl(node, COMMAND, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report_of(node: ClusterNode) -> dict[str, Any]:
    """A report, also of who must not go on alone; {}: nobody answers."""
    done = ctl(node, COMMAND, "--format", "json")
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return found


def without(cluster: Cluster, *nodes: ClusterNode) -> list[ClusterNode]:
    return [each for each in cluster.nodes if each not in nodes]


def refused_seen(node: ClusterNode, seen: list[int]) -> tuple[int, str]:
    """What is said to an order that has seen something else."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(node.control_path)
    order = json.dumps({"accept_loss": True, "seen": seen})
    connection.request("POST", "/api/cluster/recovery", order)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())["reason"]
    connection.close()
    return found


def test_one_of_the_set_goes_on_and_nothing_is_lost(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(3)
    leader = cluster.start()
    published(leader, b"1", b"2")
    for each in cluster.nodes:
        done = ctl(each, COMMAND, ORDER)
        assert (done.returncode, "are there, and can go on" in done.stderr) == (1, True), (
            done.stderr
        )

    left = cluster.followers()[0]
    lose(*without(cluster, left))
    assert cluster.leader() is left
    wait_for(lambda: len(report_of(left).get("lost", [])) == 2, "leases do not end", WAIT_S)
    found = report(left)
    assert found["is_in_sync"]
    assert found["loss"].startswith("nothing")
    assert Api(left).get("/api/cluster")["acknowledges"] is False, "a report changes nothing"

    done = ctl(left, COMMAND, ORDER)
    assert done.returncode == 0, done.stderr
    published(left, b"3")
    assert in_queue(left) == 3
    assert cluster.picture().members == {left.id}
    assert "an operator has this node go on alone" in left.log_text()

    cluster.start()
    assert in_queue(cluster.leader()) == 3


def test_one_that_had_left_the_set_goes_on_with_what_it_has(
    cluster_factory: ClusterFactory,
) -> None:
    cluster = cluster_factory(3)
    leader = cluster.start()
    published(leader, b"1", b"2")
    left = cluster.followers()[0]
    left.stop()
    cluster.wait_in_sync(without(cluster, left))
    published(leader, b"3")
    lose(*without(cluster, left))
    left.start()
    wait_for(lambda: len(report_of(left).get("lost", [])) == 2, "leases do not end", WAIT_S)

    found = report(left)
    assert not found["is_in_sync"]
    assert found["cluster"]["leads_now"] is None
    assert "after this node had left the set: 2" in found["loss"]
    assert found["left"]["epoch"] == found["epoch"] == found["cluster"]["epoch"]
    assert found["position"] <= found["left"]["position"]
    changed = "etcd says something else than was shown: look again"
    assert refused_seen(left, [1, 2, 3]) == (409, changed)
    assert cluster.leading() is None

    assert ctl(left, COMMAND, ORDER).returncode == 0
    assert cluster.leader() is left
    published(left, b"4")
    assert in_queue(left) == 3, "the third is lost, as was said"
    cluster.start()
