"""Most members of etcd are lost while the nodes of a cluster change: nothing that was acknowledged
is lost, no change is made by halves, and all nodes are whole when the members are back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.test_joining import assert_alike, fill
from tests.support.book import Book
from tests.support.cluster import NO_ETCD, WAIT_S, Cluster, ClusterNode
from tests.support.ctl import ctl
from tests.support.etcd import WHY_NOT, EtcdCluster
from tests.support.waiting import wait_for

DEADLINE_S = 2 * WAIT_S
pytestmark = pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
MOMENT_S = 1.0
"""Less than a lease has: who leads goes on."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes in sync, and three members of etcd."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with Cluster(tmp_path / "nodes", etcd=EtcdCluster(tmp_path / "etcd", 3)) as cluster:
        cluster.restarted.add(NO_ETCD)
        cluster.start()
        yield cluster


def joins(cluster: Cluster, leader: ClusterNode, node: ClusterNode) -> None:
    """A node without files comes, and gets them by now."""
    node.kill()
    shutil.rmtree(node.data_dir)
    before = leader.log_text().count(" joins")
    node.start()
    wait_for(lambda: leader.log_text().count(" joins") > before, "it does not join", DEADLINE_S)


def leaves(cluster: Cluster, leader: ClusterNode, node: ClusterNode) -> None:
    """A node ends, and is to be taken out of the set."""
    node.kill()


def comes(cluster: Cluster, leader: ClusterNode, node: ClusterNode) -> None:
    """A node is there again, and is to be put into the set."""
    node.kill()
    cluster.wait_in_sync(each for each in cluster.nodes if each is not node)
    node.start()


def is_forgotten(cluster: Cluster, leader: ClusterNode, node: ClusterNode) -> None:
    """A node is to be counted no more, in the moment when nobody can say so."""
    node.kill()
    cluster.wait_in_sync(each for each in cluster.nodes if each is not node)


@pytest.mark.parametrize("for_long", [False, True], ids=["for a moment", "for long"])
@pytest.mark.parametrize("change", [joins, leaves, comes, is_forgotten])
def test_etcd_has_no_quorum_while_a_node(cluster: Cluster, change, for_long: bool) -> None:  # type: ignore[no-untyped-def]
    leader, node = cluster.leader(), cluster.followers()[0]
    fill(leader, "much", 600, 50_000)
    n_codes = len(leader.exit_codes)
    lost = cluster.etcd.members[1:]
    with Book(cluster, name="quorum", seed=3) as book:
        book.progress()
        change(cluster, leader, node)
        for each in lost:
            each.kill()
        if change is is_forgotten:
            done = ctl(leader, "forget_cluster_node", node.id)
            assert done.returncode, "nobody can have agreed to that"
        if for_long:
            wait_for(lambda: len(leader.exit_codes) > n_codes, "it leads on", DEADLINE_S)
        else:
            time.sleep(MOMENT_S)
        for each in lost:
            each.start(cluster.etcd.members)
        cluster.start()
        book.progress()
        book.check()
    cluster.check_epochs()
    assert_alike(cluster)
    picture = cluster.picture()
    assert picture.in_sync == {each.id for each in cluster.nodes} <= picture.members
