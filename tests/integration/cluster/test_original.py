"""A data directory of the original becomes that of a cluster: other nodes get all of it, every file
has sums on every node, and whoever leads next has every message in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster.test_joining import assert_alike
from tests.integration.files.test_data_dir import (
    assert_all_messages_are_there,
    manifest_of,
    unpack,
)
from tests.support.api import Api
from tests.support.cluster import WAIT_S, Cluster
from tests.support.damage import is_known, verify
from tests.support.waiting import wait_for

ClusterFactory = Callable[..., Cluster]
INI = "[main]\nscrub_interval = 1\nscrub_rate = 1000000000\n"


@pytest.mark.nightly
@pytest.mark.parametrize("archive", ["basic", "killed"])
def test_what_the_original_has_left_is_on_all_nodes(
    cluster_factory: ClusterFactory, tmp_path: Path, archive: str
) -> None:
    manifest = manifest_of(archive)
    settings = tmp_path / "often.ini"
    settings.write_text(INI)
    cluster = cluster_factory(args=["--config", str(settings)])
    first = cluster.nodes[0]
    unpack(archive, first.data_dir)
    first.start()
    cluster.wait_in_sync([first])
    queues = {(each["vhost"], each["name"]) for each in manifest["queues"]}

    assert cluster.start() is first
    assert_alike(cluster)
    for each in cluster.nodes:
        wait_for(lambda node=each: is_known(node.data_dir), f"{each} has no sums", WAIT_S)  # type: ignore[misc]
    assert verify(first) == []

    first.kill()
    leader = cluster.leader(other_than=first)
    assert_all_messages_are_there(leader.port, manifest)
    there = {(each["vhost"], each["name"]) for each in Api(leader).get("/api/queues")}
    assert queues <= there
    assert verify(leader) == []
    cluster.start()
    assert_alike(cluster)
