"""Nodes on machines of their own, whose network fails in every way while nodes come and go: nothing
that was acknowledged is lost, and all of them are whole once the network is.

Links that answer for the other end (`test_partitions.py`) cannot show what late and lost packets
do to a connection; here each machine has a TCP of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.book import Book
from tests.support.cluster import WAIT_S, ClusterNode
from tests.support.etcd import WHY_NOT as NO_ETCD
from tests.support.machines import MachineCluster
from tests.support.network import WHY_NOT, Network
from tests.support.waiting import wait_for

DEADLINE_S = 3 * WAIT_S
pytestmark = pytest.mark.skipif(bool(WHY_NOT or NO_ETCD), reason=WHY_NOT or NO_ETCD)
IS_LONG = bool(os.environ.get("CLUSTER_TESTS_LONG"))
LONG = pytest.mark.skipif(not IS_LONG, reason="takes more than ten seconds: make chaos")

FAULTS = (
    "leader alone", "leader is not heard", "leader hears nothing", "leader from etcd",
    "leader from nodes", "late", "lossy", "very lossy", "follower alone",
)  # fmt: skip
CHANGES = ("join", "leave", "replaced")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MachineCluster]:
    """Three nodes and a member of etcd, not started."""
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        yield stack.enter_context(MachineCluster(tmp_path / "cluster", network))


def harm(cluster: MachineCluster, leader: ClusterNode, fault: str) -> None:
    """Have the network fail."""
    nodes, members = cluster.nodes, cluster.etcd.members
    match fault:
        case "leader alone":
            cluster.cut(leader, [*nodes, *members])
        case "leader is not heard":
            cluster.cut(leader, [*nodes, *members], back=False)
        case "leader hears nothing":
            for each in [*nodes, *members]:
                if each is not leader:
                    cluster.cut(each, [leader], back=False)
        case "leader from etcd":
            cluster.cut(leader, members)
        case "leader from nodes":
            cluster.cut(leader, nodes)
        case "follower alone":
            follower = next(each for each in nodes if each is not leader)
            cluster.cut(follower, [*nodes, *members])
        case "late":
            cluster.worsen(delay_s=0.025, jitter_s=0.075)
        case "lossy":
            cluster.worsen(loss=0.05, delay_s=0.001)
        case "very lossy":
            cluster.worsen(loss=0.3)


def change(cluster: MachineCluster, node: ClusterNode, kind: str) -> None:
    """Have a node come, go for a while, or be replaced by one of an empty disk."""
    match kind:
        case "join":
            cluster.add().start()
        case "leave":
            node.stop()
        case "replaced":
            node.kill()
            shutil.rmtree(node.data_dir)
            node.start()


def check(cluster: MachineCluster, fault: str, kind: str) -> None:
    """Have it fail, with a change meanwhile, and heal."""
    leader = cluster.start()
    node = next(each for each in reversed(cluster.nodes) if each is not leader)
    with Book(cluster, name="network", seed=1) as book:
        book.progress()
        harm(cluster, leader, fault)
        change(cluster, node, kind)
        if kind == "join" and fault != "very lossy":
            book.progress()
        else:
            time.sleep(4)  # with another one gone there may be too few to acknowledge anything
        cluster.heal()
        book.progress()
        book.check()
    cluster.check_epochs()


def test_leader_whose_network_is_gone_is_replaced_while_a_node_joins(
    cluster: MachineCluster,
) -> None:
    check(cluster, "leader alone", "join")


@LONG
@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_in_a_bad_network_while_nodes_come_and_go(
    cluster: MachineCluster, fault: str, kind: str
) -> None:
    check(cluster, fault, kind)


@LONG
@pytest.mark.slow
def test_leader_with_the_fewer_of_five_makes_way(cluster: MachineCluster) -> None:
    """It reaches one follower, and three reach each other."""
    for _ in range(2):
        cluster.add()
    leader = cluster.start()
    one, *others = cluster.followers()
    with Book(cluster, name="five", seed=1) as book:
        book.progress()
        for each in (leader, one):
            cluster.cut(each, others)
        assert cluster.leader(other_than=leader) in [one, *others]
        book.progress()
        cluster.heal()
        book.progress()
        book.check()
    cluster.check_epochs()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[MachineCluster]:
    """Three nodes and three members of etcd."""
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        cluster = MachineCluster(tmp_path / "cluster", network, n_members=3)
        yield stack.enter_context(cluster)


@LONG
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["one is lost", "its leader is lost", "most are lost", "its leader is cut off",
     "the leader sees a stale one", "ends and comes back"],
)  # fmt: skip
def test_nothing_is_lost_when_members_of_etcd_are(large: MachineCluster, fault: str) -> None:
    cluster, members = large, large.etcd.members
    leader = cluster.start()
    n_codes = len(leader.exit_codes)
    first = cluster.etcd.leader()
    others = [each for each in members if each is not first]
    everybody = [*cluster.nodes, *members]
    with Book(cluster, name="etcd", seed=1) as book:
        book.progress()
        match fault:
            case "one is lost":
                cluster.cut(others[0], everybody)
            case "its leader is lost":
                first.kill()
            case "most are lost":
                cluster.cut(first, everybody)
                cluster.cut(others[0], everybody)
                wait_for(lambda: len(leader.exit_codes) > n_codes, "it leads on", DEADLINE_S)
            case "its leader is cut off":
                cluster.cut(first, others)
            case "the leader sees a stale one":
                cluster.cut(others[0], [first, others[1]])
                cluster.cut(leader, [first, others[1]])
                wait_for(lambda: len(leader.exit_codes) > n_codes, "it leads on", DEADLINE_S)
                cluster.leader(other_than=leader)
                book.progress()
            case "ends and comes back":
                for each in members:
                    each.kill()
                time.sleep(1)
                for each in members:
                    each.start(members)
        if fault not in ("most are lost", "the leader sees a stale one"):
            book.progress()
            # And a leader is found in that state, too.
            now = cluster.leader()
            now.kill()
            cluster.leader(other_than=now)
            book.progress()
        if fault == "its leader is lost":
            first.start(members)
        cluster.heal()
        book.progress()
        book.check()
    cluster.check_epochs()
