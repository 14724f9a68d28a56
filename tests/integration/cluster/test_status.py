"""What operators see of a cluster: on the leader, on a follower, and while nodes come and go."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.cluster.conftest import ClusterFactory
from tests.support.api import Answer, Api
from tests.support.cluster import Cluster, ClusterNode
from tests.support.metrics import names, scrape, value, values
from tests.support.patience import PATIENCE
from tests.support.ports import HOST
from tests.support.waiting import wait_for

WAIT_S = 20.0 * PATIENCE


class Roles(NamedTuple):
    """Who is what in a cluster whose nodes are all in sync."""

    leader: ClusterNode
    follower: ClusterNode
    other: ClusterNode


@pytest.fixture
def roles(cluster: Cluster) -> Roles:
    """Those of the shared cluster, once all nodes have heard that all are in sync."""
    return settled(cluster)


def settled(cluster: Cluster) -> Roles:
    """Wait until all have heard that all are in sync."""
    leader = cluster.whole()
    wait_for(
        lambda: all(len(picture(each)["in_sync"]) == 3 for each in cluster.nodes),
        "not all have heard of that", WAIT_S,
    )  # fmt: skip
    return Roles(leader, *(each for each in cluster.nodes if each is not leader))


def picture(node: ClusterNode) -> dict[str, Any]:
    """What the port for metrics of a node shows."""
    answer = scrape(node, "/api/cluster")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def asked(node: ClusterNode, path: str) -> Answer | None:
    """An answer of the port for metrics; None while nobody listens there."""
    try:
        return scrape(node, path)
    except (OSError, http.client.HTTPException):
        return None


def status_of(node: ClusterNode, path: str) -> int:
    """The status of that answer."""
    answer = asked(node, path)
    return 0 if answer is None else answer.status


def reason(node: ClusterNode, path: str) -> str:
    """Why a probe fails."""
    answer = scrape(node, path)
    assert (answer.status, answer.json["status"]) == (503, "failed")
    return str(answer.json["reason"])


def leads(node: ClusterNode) -> bool:
    """Whether a node leads by now."""
    answer = asked(node, "/api/cluster")
    return answer is not None and answer.json["role"] == "leader"


# --- while all is well ----------------------------------------------------------------------------


def test_all_nodes_show_the_same_cluster(roles: Roles, cluster: Cluster) -> None:
    pictures = [picture(node) for node in roles]

    known = cluster.picture()
    ids = sorted(known.members)
    assert [each["id"] for each in pictures] == [each.id for each in roles]
    assert [each["role"] for each in pictures] == ["leader", "follower", "follower"]
    for each in pictures:
        assert each["leader"] == {"id": roles.leader.id, "uri": roles.leader.uri}
        assert (each["epoch"], each["min_insync_replicas"]) == (known.epoch, 2)
        assert each["in_sync"] == each["members"] == ids
        assert [node["id"] for node in each["nodes"]] == ids
        assert all(node["live"] and node["in_sync"] and node["member"] for node in each["nodes"])
        assert each["elections"][-1]["epoch"] == known.epoch
        assert each["elections"][-1]["node"] == roles.leader.id
        assert (each["ready"], each["safe_to_restart"], each["may_lead"]) == (True, True, True)


def test_a_leader_shows_its_followers(roles: Roles) -> None:
    shown = picture(roles.leader)

    assert (shown["acknowledges"], shown["copies"], shown["following"]) == (True, 3, None)
    assert len(shown["followers"]) == 2
    for each in shown["followers"]:
        assert (each["in_sync"], each["joining"]) == (True, False)
        assert each["sent_position"] >= each["acked_position"] > 0
        assert each["remote_address"].startswith("127.0.0.1:")


def test_a_follower_shows_whom_it_follows(roles: Roles) -> None:
    def has_all() -> bool:
        return bool(picture(roles.follower)["position"] == picture(roles.leader)["position"])

    wait_for(has_all, "it does not have everything", WAIT_S)
    following = picture(roles.follower)["following"]
    assert (following["id"], following["uri"]) == (roles.leader.id, roles.leader.uri)
    assert (following["joined"], following["error"]) == (True, "")
    assert following["silent_seconds"] >= 0


@pytest.mark.parametrize("path", ["/live", "/ready", "/safe-to-restart"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_probes_pass(roles: Roles, role: str, path: str) -> None:
    node: ClusterNode = getattr(roles, role)
    answer = scrape(node, path)

    assert (answer.status, answer.json) == (200, {"status": "ok"})
    head = scrape(node, path, method="HEAD")
    assert (head.status, head.content) == (200, b"")
    assert scrape(node, path, method="POST").status == 405


def test_the_management_port_of_every_node_shows_what_the_leader_knows(
    roles: Roles,
) -> None:
    for node in roles:
        assert Api(node).get("/api/cluster")["id"] == roles.leader.id
    limited = Api(roles.leader).as_user("limited", "management")
    shown = limited.get("/api/cluster")
    assert shown["in_sync"]
    assert "127.0.0.1" not in str(shown)
    assert Api(roles.leader, "limited", "wrong")("GET", "/api/cluster").status == 401


def test_nodes_have_followers_by_the_names_of_lavinmq(roles: Roles) -> None:
    (node,) = Api(roles.leader).get("/api/nodes")

    assert {each["id"] for each in node["followers"]} == {picture(each)["id"] for each in roles[1:]}
    for each in node["followers"]:
        assert each.keys() == {
            "id", "remote_address", "sent_bytes", "acked_bytes", "lag_in_bytes",
            "compression_ratio", "uncompressed_bytes", "compressed_bytes",
            "lag_seconds", "in_sync", "epoch",
        }  # fmt: skip
        assert each["compression_ratio"] == 1.0, "the network holds nobody up"
        # What goes as it is has a head for each MiB.
        assert 0 < each["uncompressed_bytes"] < each["compressed_bytes"]
        assert (each["in_sync"], each["epoch"]) == (True, roles.leader.cluster.picture().epoch)


def test_the_leader_tells_prometheus_of_the_cluster(roles: Roles) -> None:
    answer = scrape(roles.leader)

    assert value(answer, "total_connected_followers") == 2
    assert value(answer, "cluster_epoch") == picture(roles.leader)["epoch"]
    assert value(answer, "cluster_is_leader") == 1
    assert value(answer, "cluster_in_sync_nodes") == value(answer, "cluster_copies") == 3
    assert value(answer, "cluster_min_insync_replicas") == 2
    assert value(answer, "cluster_acknowledgements_held") == 0
    for node in roles[1:]:
        assert value(answer, "follower_lag_in_bytes", id=node.id) >= 0
        assert value(answer, "follower_lag_seconds", id=node.id) >= 0


def test_a_follower_tells_prometheus_of_itself(roles: Roles) -> None:
    answer = scrape(roles.follower)

    assert value(answer, "cluster_is_leader") == value(answer, "total_connected_followers") == 0
    assert value(answer, "cluster_is_joined") == 1
    assert value(answer, "cluster_position") > 0
    assert value(answer, "sync_duration_seconds_count") > 0
    assert value(answer, "sync_duration_seconds_sum") > 0
    assert value(answer, "process_resident_memory_bytes") > 0
    assert value(answer, "disk_space_available_bytes") > 0
    assert "telemetry_scrape_mem" in names(answer)
    assert "lavinmq_cluster_copies" not in names(answer)
    renamed = values(scrape(roles.follower, "/metrics?prefix=zz"))
    assert ("zz_cluster_epoch", ()) in renamed
    assert scrape(roles.follower, "/metrics?prefix=9").status == 400
    assert names(scrape(roles.follower, "/metrics/detailed?family=queue_coarse_metrics")) == {
        "telemetry_scrape_duration_seconds", "telemetry_scrape_mem",
    }  # fmt: skip
    wanted = scrape(roles.follower, Accept="application/openmetrics-text; version=1.0.0")
    assert wanted.content.endswith(b"# EOF\n")


def test_a_follower_serves_nothing_else_there(roles: Roles) -> None:
    for path in ("/", "/api/nodes", "/metrics/other"):
        assert scrape(roles.follower, path).status == 404
    for path in ("/healthz", "/readyz"):
        assert scrape(roles.follower, path).content == b"ok\n"
    assert scrape(roles.follower, "/api/cluster", Host="evil.example").status == 403


def test_a_healthy_cluster_passes_the_checks_of_rabbitmq(roles: Roles) -> None:
    for check in ("node-is-quorum-critical", "node-is-mirror-sync-critical"):
        assert Api(roles.leader).get(f"/api/health/checks/{check}") == {"status": "ok"}


def test_lavinmqctl_shows_the_cluster(roles: Roles) -> None:
    command = [sys.executable, "-m", "lavinmq.cli.ctl", "cluster_status"]
    environment = {
        "LAVINMQCTL_CONTROL_UNIX_PATH": roles.leader.control_path,
        "PATH": "/usr/bin:/bin",
    }

    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, check=True, env=environment
    )

    found = json.loads(done.stdout)
    assert (found["role"], found["leader"]) == ("leader", roles.leader.id)
    assert found["acknowledges"] is True
    states = sorted(each["state"] for each in found["nodes"])
    assert states == ["in sync", "in sync", "leader"]
    text = subprocess.run(command, capture_output=True, check=True, env=environment, text=True)
    assert "\nmin_insync_replicas: 2\n" in text.stdout


# --- while nodes come and go ----------------------------------------------------------------------


def test_a_cluster_that_shrinks_says_what_it_cannot_do(roles: Roles) -> None:
    leader, other, third = roles
    third.kill()
    wait_for(lambda: len(picture(leader)["in_sync"]) == 2, "it stays in the set", WAIT_S)

    why = "without this node 1 of 2 nodes that are needed are in sync"
    assert reason(leader, "/safe-to-restart") == why
    wait_for(lambda: status_of(other, "/safe-to-restart") == 503, "a follower says yes", WAIT_S)
    check = Api(leader)("GET", "/api/health/checks/node-is-quorum-critical")
    assert (check.status, check.json) == (503, {"status": "failed", "reason": why})
    for node in (leader, other):
        assert scrape(node, "/ready").status == 200

    other.kill()
    wait_for(lambda: status_of(leader, "/ready") == 503, "it is ready", WAIT_S)

    shown = picture(leader)
    assert (shown["acknowledges"], shown["copies"]) == (False, 1)
    assert shown["reasons"]["acknowledges"] == f"nodes in sync do not follow: {other.id}"
    assert value(scrape(leader), "cluster_acknowledgements_held") == 1
    assert scrape(leader, "/live").status == 200
    other.start()
    wait_for(lambda: status_of(leader, "/ready") == 200, "it is not ready again", WAIT_S)


def test_the_port_goes_over_to_the_broker_when_a_follower_leads(
    roles: Roles, cluster: Cluster
) -> None:
    epoch = picture(roles.leader)["epoch"]
    with ExitStack() as stack:
        for each in roles[1:]:  # someone rests there
            stack.enter_context(socket.create_connection((HOST, each.metrics_port)))
        roles.leader.kill()
        leader = cluster.leader(other_than=roles.leader)
        wait_for(lambda: leads(leader), "nobody leads", WAIT_S)

    elections = picture(leader)["elections"]
    assert [(each["epoch"], each["node"]) for each in elections[-2:]] == [
        (epoch, roles.leader.id), (epoch + 1, leader.id),
    ]  # fmt: skip
    assert elections[-2]["ended"] in ("its address refused connections", "its lease ended")
    follower = next(each for each in roles[1:] if each is not leader)
    assert picture(follower)["elections"] == elections
    answer = scrape(leader)
    assert value(answer, "cluster_epoch") == epoch + 1
    assert value(answer, "queues") == 0
    wait_for(lambda: status_of(leader, "/ready") == 200, "it is not ready", WAIT_S)
    roles.leader.start()
    wait_for(lambda: status_of(roles.leader, "/ready") == 200, "it does not follow", WAIT_S)
    assert picture(roles.leader)["role"] == "follower"


def test_a_node_that_waits_for_its_place_is_alive_and_not_ready(roles: Roles) -> None:
    """Another node has its id."""
    twin = roles.leader.cluster.add()
    try:
        twin.data_dir.mkdir()
        (twin.data_dir / ".clustering_id").write_text(roles.leader.id)
        twin.start()

        wait_for(lambda: status_of(twin, "/live") == 200, "it does not live", WAIT_S)
        assert reason(twin, "/ready") == "no leader is known"
        assert picture(twin)["role"] == "none"
    finally:
        twin.kill()
        roles.leader.cluster.nodes.remove(twin)


# --- who is slow, or sends too much ---------------------------------------------------------------


def test_a_follower_waits_for_no_request_for_long(
    cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[mgmt]\nhead_timeout = 1\nmax_connections = 3\n")
    cluster = cluster_factory(2, args=["-c", str(ini)])
    leader = cluster.start()
    port = next(each for each in cluster.nodes if each is not leader).metrics_port

    with socket.create_connection((HOST, port), timeout=10) as sock:
        sock.sendall(b"GET /live HTTP/1.1\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection((HOST, port), timeout=10) as sock, suppress(ConnectionResetError):
        sock.sendall(b"GET /live HTTP/1.1\r\nX: " + b"x" * (64 << 10))
        assert sock.recv(100) == b""
    with ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(socket.create_connection((HOST, port), timeout=10))
            sock.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
        with socket.create_connection((HOST, port), timeout=10) as sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 503 ")
