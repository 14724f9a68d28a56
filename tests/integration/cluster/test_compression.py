"""Followers that are sent blocks beside one of the release before, which knows none; and what a
slow network carries.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.conftest import ClusterFactory
from tests.integration.cluster.test_joining import assert_alike, fill
from tests.support.api import Api
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.etcd import WHY_NOT as NO_ETCD
from tests.support.machines import MachineCluster
from tests.support.network import WHY_NOT, Network
from tests.support.waiting import wait_for

DEADLINE_S = 2 * WAIT_S
LONG = pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
OLDER = """\
import lavinmq.cluster.speech as speech

speech.OLDEST, speech.NEWEST = 1, 2
speech.agreed.__defaults__ = 1, 2
"""


def shown(leader: ClusterNode) -> dict[str, dict[str, Any]]:
    """A leader's followers, by id."""
    found = Api(leader).get("/api/cluster")
    return {each["id"]: each for each in found["followers"] if not each["joining"]}


def is_packed(leader: ClusterNode, follower: ClusterNode) -> bool:
    """Whether much less goes to a follower than there is."""
    found = shown(leader)[follower.id]
    return bool(found["compressed_bytes"] < found["uncompressed_bytes"] / 3)


def begin_with(cluster: Cluster, first: ClusterNode) -> None:
    """Start a node, which leads, and then the others."""
    first.start()
    cluster.wait_in_sync([first])
    assert cluster.start() is first


def test_a_node_of_the_release_before_follows_and_leads(
    cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    cluster = cluster_factory(3, args=["--clustering-compression", "on"])
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "sitecustomize.py").write_text(OLDER)
    first, newer, older = cluster.nodes
    older.env = {"PYTHONPATH": str(tmp_path / "older")}
    begin_with(cluster, first)

    fill(first, "q", 300, 3000)
    assert is_packed(first, newer)
    found = shown(first)[older.id]
    assert found["compressed_bytes"] >= found["uncompressed_bytes"] > 300 * 3000

    newer.stop()
    shutil.rmtree(newer.data_dir)
    fill(first, "q", 100, 3000)
    newer.start()  # its files come packed
    cluster.whole()
    fill(first, "q", 100, 3000)
    assert is_packed(first, newer)

    newer.stop()
    cluster.wait_in_sync([first, older])
    first.stop()
    cluster.leader(other_than=first)
    begin = cluster.start()
    assert begin is older
    fill(older, "q", 100, 3000)
    assert not any(is_packed(older, each) for each in (first, newer))
    assert_alike(cluster)
    cluster.check_epochs()


@LONG
@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT or NO_ETCD), reason=WHY_NOT or NO_ETCD)
def test_a_slow_network_carries_more_than_goes_by_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        cluster = stack.enter_context(MachineCluster(tmp_path / "cluster", network))
        leader = cluster.start()
        cluster.worsen(rate=5e6)
        fill(leader, "q", 10_000, 3000)
        one, other = cluster.followers()
        assert all(is_packed(leader, each) for each in (one, other))

        other.stop()
        shutil.rmtree(other.data_dir)
        other.start()
        wait_for(lambda: other.id in shown(leader), "it does not join", DEADLINE_S)
        cluster.heal()
        assert_alike(cluster)
        cluster.check_epochs()
