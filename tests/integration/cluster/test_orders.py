"""What operators ask of a cluster: another leader, and that a node that has gone is forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.cluster import LOST, WAIT_S, Cluster
from tests.support.ctl import ctl
from tests.support.waiting import wait_for

DEADLINE_S = WAIT_S


def test_leadership_is_handed_over_in_order(cluster: Cluster) -> None:
    leader = cluster.leader()
    api = Api(leader)
    assert api("PUT", "/api/queues/%2F/handed-over", {"durable": True}).status == 201

    n_ends = len(leader.exit_codes)
    assert api("POST", "/api/cluster/transfer").status == 204

    other = cluster.leader(other_than=leader)
    wait_for(lambda: len(leader.exit_codes) > n_ends, "it goes on", WAIT_S)
    assert leader.exit_codes[-1] == LOST, "who starts it anew does so for this code"
    assert Api(other)("GET", "/api/queues/%2F/handed-over").status == 200
    cluster.wait_in_sync(cluster.nodes)
    elections = Api(other).get("/api/cluster")["elections"]
    assert elections[-2]["node"] == leader.id
    assert elections[-2]["ended"] == "it made way for another node"


def test_a_node_that_has_gone_is_forgotten(cluster: Cluster) -> None:
    leader = cluster.leader()
    gone = cluster.followers()[0]
    api = Api(leader)
    answer = api("DELETE", f"/api/cluster/nodes/{gone.id}")
    assert (answer.status, answer.json["reason"]) == (
        409, f"node {gone.id} is there: stop it first",
    )  # fmt: skip
    assert api("DELETE", "/api/cluster/nodes/nobody").status == 409

    gone.stop()
    cluster.wait_in_sync([each for each in cluster.nodes if each is not gone])
    wait_for(
        lambda: api("DELETE", f"/api/cluster/nodes/{gone.id}").status == 204,
        "it is not forgotten", WAIT_S,
    )  # fmt: skip
    picture = api.get("/api/cluster")
    assert gone.id not in picture["members"]
    assert picture["min_insync_replicas"] == 2

    gone.start()
    cluster.wait_in_sync(cluster.nodes)
    assert gone.id in api.get("/api/cluster")["members"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/cluster/transfer"), ("DELETE", "/api/cluster/nodes/x")]
)
def test_only_administrators_may(cluster: Cluster, method: str, path: str) -> None:
    leader = cluster.leader()
    watcher = Api(leader).as_user("watcher", "monitoring")

    assert watcher(method, path).status == 403


def test_a_follower_shows_the_cluster_and_says_who_can_do_the_rest(cluster: Cluster) -> None:
    leader = cluster.whole()
    follower = cluster.followers()[0]

    done = ctl(follower, "cluster_status", "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["this_node"], found["role"]) == (0, follower.id, "follower")
    assert found["leader"] == leader.id
    assert sorted(each["state"] for each in found["nodes"]) == ["in sync", "in sync", "leader"]
    n_ends = len(leader.exit_codes)
    for command in (
        ["status"], ["forget_cluster_node", leader.id], ["transfer_leadership"], ["check_running"],
        ["add_user", "mallory", "secret"], ["list_queues"],
    ):  # fmt: skip
        done = ctl(follower, *command)
        assert done.returncode == 2, "LavinMQ's code for a node that does not lead"
        assert f"this node follows {leader.id}" in done.stderr
        assert f"--uri http://127.0.0.1:{leader.http_port}" in done.stderr
    assert len(leader.exit_codes) == n_ends
    assert cluster.leader() is leader


def test_a_follower_reads_its_own_files_when_it_is_told_to(cluster: Cluster) -> None:
    cluster.whole()

    done = ctl(cluster.followers()[0], "verify", "--format", "json")

    found = json.loads(done.stdout)
    assert (done.returncode, found["damaged_files"]) == (0, [])
    assert found["files"] > 0


def test_a_backup_says_of_which_epoch_and_position_it_is(cluster: Cluster, tmp_path: Path) -> None:
    leader = cluster.whole()
    before = Api(leader).get("/api/cluster")
    done = ctl(leader, "backup", "--archive", str(tmp_path / "b.tar"), "--format", "json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    after = Api(leader).get("/api/cluster")
    assert found["epoch"] == before["epoch"]
    assert before["position"] <= found["position"] <= after["position"]
    done = ctl(cluster.followers()[0], "backup", "--archive", str(tmp_path / "no.tar"))
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [tmp_path / "b.tar"])
