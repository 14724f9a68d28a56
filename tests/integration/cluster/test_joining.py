"""A node comes to a cluster, or back to it, with files of any kind: in the end it has those of the
leader, byte by byte; one that must not be taken for another is not.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from pamqp import commands

from tests.support.api import Api
from tests.support.book import PERSISTENT, Book
from tests.support.broker import Broker
from tests.support.cluster import CANNOT_FOLLOW, LOST, WAIT_S, Cluster, ClusterNode
from tests.support.follower import differences
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = WAIT_S
ClusterFactory = Callable[..., Cluster]


def assert_alike(cluster: Cluster) -> None:
    """All nodes have the same files, once nothing changes any more."""
    leader = cluster.whole()
    found: dict[str, list[str]] = {}

    def are_alike() -> bool:
        for each in cluster.nodes:
            if each is not leader:
                found[repr(each)] = differences_of(leader, each)
        return not any(found.values())

    with suppress(AssertionError):
        wait_for(are_alike, "", 20)
    assert not any(found.values()), found


def differences_of(one: ClusterNode, other: ClusterNode) -> list[str]:
    """What two nodes have otherwise, but for what is of each alone."""
    try:
        found = differences(one.data_dir, other.data_dir)
    except FileNotFoundError as error:
        return [f"changes still: {error}"]
    return [line for line in found if not line.startswith(".")]


def declare(wire: Wire, queue: str) -> None:
    wire.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)


def fill(node: ClusterNode, queue: str, n: int, size: int) -> None:
    """Have messages in a queue, confirmed."""
    with Wire.open(node.port, host=node.host) as wire:
        declare(wire, queue)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for _ in range(n):
            wire.publish(1, "", queue, bytes(size), PERSISTENT)
        tag = 0
        while tag < n:
            method = wire.receive(DEADLINE_S).method
            if isinstance(method, commands.Basic.Ack):  # else the disk is full for a while
                tag = method.delivery_tag


def end_of(node: ClusterNode) -> int:
    """The exit code of a node that ends by itself."""
    wait_for(lambda: bool(node.exit_codes), f"{node} goes on", DEADLINE_S)
    return node.exit_codes[-1]


class Churn(threading.Thread):
    """Declares, deletes and changes names of all kinds, until it is told to end."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._is_over = threading.Event()
        self.n_rounds = 0

    def run(self) -> None:
        """Change things."""
        api = Api(self._node)
        with Wire.open(self._node.port) as wire:
            while not self._is_over.is_set():
                self.n_rounds += 1
                for n in range(4):
                    declare(wire, f"churn-{n}")
                    for _ in range(20):
                        wire.publish(1, "", f"churn-{n}", bytes(3000), PERSISTENT)
                    wire.call(1, commands.Queue.Purge(queue=f"churn-{n}"), commands.Queue.PurgeOk)
                    wire.publish(1, "", f"churn-{n}", bytes(3000), PERSISTENT)
                    delete = commands.Queue.Delete(queue=f"churn-{n}")
                    wire.call(1, delete, commands.Queue.DeleteOk)
                    declare(wire, f"churn-{n}")
                api("PUT", f"/api/users/churn-{self.n_rounds % 3}", {"password": "p", "tags": ""})
                api("PUT", "/api/vhosts/churn")
                api("DELETE", "/api/vhosts/churn")

    def end(self) -> None:
        """Have it end."""
        self._is_over.set()
        self.join(DEADLINE_S)


def test_node_that_comes_while_all_changes_has_the_same_files(cluster: Cluster) -> None:
    leader = cluster.leader()
    fill(leader, "much", 400, 50_000)
    churn = Churn(leader)
    with Book(cluster, name="changes", seed=1) as book:
        churn.start()
        for _ in range(3):
            follower = cluster.followers()[0]
            follower.kill()
            book.progress()
            cluster.start()
        churn.end()
        book.check()
    assert churn.n_rounds > 3
    assert_alike(cluster)


def test_node_that_is_killed_while_it_joins_joins_in_the_end(cluster: Cluster) -> None:
    leader = cluster.leader()
    fill(leader, "interrupted", 1500, 50_000)
    follower = cluster.followers()[0]
    with Book(cluster, name="interrupted", seed=2) as book:
        for number in range(5):
            follower.kill()
            if number % 2:
                for path in follower.data_dir.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)
            before = leader.log_text().count(f"{follower.id} joins")
            follower.start()
            wait_for(
                lambda n=before: leader.log_text().count(f"{follower.id} joins") > n,  # type: ignore[misc]
                "it does not join", DEADLINE_S,
            )  # fmt: skip
        cluster.start()
        book.progress()
        book.check()
    assert_alike(cluster)


def test_nodes_join_while_a_client_reads_a_backup_as_slowly_as_it_likes(cluster: Cluster) -> None:
    """Each attempt was refused until the backup was over, and nothing acknowledged meanwhile."""
    leader = cluster.leader()
    fill(leader, "large", 600, 50_000)  # more than sockets hold
    backup = http.client.HTTPConnection(leader.host, leader.http_port, timeout=DEADLINE_S)
    head = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    backup.request("POST", "/api/backup", headers=head)
    answer = backup.getresponse()
    archive, are_back = [answer.read(1)], threading.Event()

    def read() -> None:
        while not are_back.wait(1):
            archive.append(answer.read(1 << 10))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for each in cluster.followers():
        each.kill()
        (each.data_dir / ".clustering_state").unlink()  # nobody knows what it has
    cluster.start()

    assert Api(leader)("POST", "/api/backup").status == 503, "it is still being made"
    are_back.set()
    reader.join(DEADLINE_S)
    archive.append(answer.read())
    backup.close()
    assert sum(map(len, archive)) > 600 * 50_000
    assert not any(archive[-1][-1024:]), "it is whole"
    assert_alike(cluster)


def test_node_whose_directory_was_wiped_comes_back_as_another_one(
    cluster_factory: ClusterFactory,
) -> None:
    """Three nodes, of which any one may end later on, as before."""
    cluster = cluster_factory()
    leader = cluster.start()
    with Book(cluster, name="wiped", seed=3) as book:
        for follower in cluster.followers():
            old = follower.id
            follower.kill()
            shutil.rmtree(follower.data_dir)
            cluster.wait_in_sync(each for each in cluster.nodes if each is not follower)
            book.progress()
            cluster.start()
            assert follower.id != old
        cluster.followers()[0].kill()
        book.progress()
        leader.kill()
        cluster.start()
        book.progress()
        book.check()
    assert_alike(cluster)


def test_leader_whose_disk_was_wiped_is_followed_by_the_others(
    cluster_factory: ClusterFactory,
) -> None:
    cluster = cluster_factory()
    leader = cluster.start()
    with Book(cluster, name="wiped-leader", seed=4) as book:
        book.progress()
        leader.kill()
        shutil.rmtree(leader.data_dir)
        cluster.leader(other_than=leader)
        book.progress()
        cluster.start()
        book.check()


def test_wiped_node_that_kept_its_id_does_not_lead(cluster_factory: ClusterFactory) -> None:
    """All nodes are killed; of one all is gone but its id: another one has to lead."""
    cluster = cluster_factory()
    cluster.start()
    follower = cluster.followers()[0]
    with Book(cluster, name="kept-id", seed=5) as book:
        book.progress()
        for each in cluster.nodes:
            each.kill()
        for path in follower.data_dir.iterdir():
            if path.name != ".clustering_id":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        follower.start()
        wait_for(lambda: follower.id in cluster.picture().nodes, "it is not there", DEADLINE_S)
        cluster.start()
        book.check()


@pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
def test_copy_of_a_directory_is_not_taken_for_its_node(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(restarts=False)
    cluster.start()
    follower = cluster.followers()[0]
    copy = cluster.add()
    with suppress(shutil.Error):  # files that have just gone
        shutil.copytree(follower.data_dir, copy.data_dir)
    (copy.data_dir / ".lock").unlink(missing_ok=True)
    with Book(cluster, name="copy", seed=6) as book:
        book.progress()
        copy.start()
        book.progress()
        assert end_of(copy) == LOST
        assert "another node has the id" in copy.log_text()
        cluster.nodes.remove(copy)
        cluster.whole()
        book.check()


def test_two_nodes_of_one_address_end_with_36(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(restarts=False)
    leader = cluster.start()
    double = cluster.add()
    double.args = ["--clustering-advertised-uri", leader.uri]
    double.start()
    assert end_of(double) == CANNOT_FOLLOW
    cluster.nodes.remove(double)
    cluster.whole()


def test_node_that_was_a_broker_of_its_own_meanwhile_joins_anew(
    cluster_factory: ClusterFactory,
) -> None:
    """What it changed then is in no cluster, and is gone."""
    cluster = cluster_factory()
    leader = cluster.start()
    follower = cluster.followers()[0]
    assert follower.stop() == 0
    alone = Broker(follower.data_dir, log_path=cluster.directory / "alone.log")
    try:
        with Wire.open(alone.start().port) as wire:
            declare(wire, "alone")
        alone.stop()
    finally:
        alone.close()
    fill(leader, "meanwhile", 10, 100)
    cluster.start()
    assert_alike(cluster)


def test_node_of_another_cluster_keeps_its_files_until_it_is_told_otherwise(
    cluster_factory: ClusterFactory,
) -> None:
    """Two clusters below one prefix, as after a mistake in the settings, or a loss of etcd."""
    cluster = cluster_factory(2, least=1)
    first, second = cluster.nodes
    second.args = ["--clustering-etcd-prefix", "another"]
    second.start()
    wait_for(second.is_serving, "it does not lead", DEADLINE_S)
    with Wire.open(second.port) as wire:
        declare = commands.Queue.Declare(queue="of-another", durable=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
    second.stop()
    first.start()
    cluster.leader()

    second.args = []
    second.start()
    wait_for(lambda: "are of another cluster" in second.log_text(), "it follows", DEADLINE_S)
    second.kill()
    definitions = [each.read_bytes() for each in second.data_dir.rglob("definitions.amqp")]
    assert any(b"of-another" in each for each in definitions)

    (second.data_dir / ".clustering_state").unlink()
    second.start()
    assert cluster.whole() is first
    definitions = [each.read_bytes() for each in second.data_dir.rglob("definitions.amqp")]
    assert not any(b"of-another" in each for each in definitions)


def test_node_that_ended_within_the_last_step_of_joining_starts(
    cluster_factory: ClusterFactory,
) -> None:
    """It was killed while it removed the directory by which it had joined."""
    cluster = cluster_factory()
    leader = cluster.start()
    fill(leader, "last-step", 10, 1000)
    follower = cluster.followers()[0]
    follower.kill()
    stage = follower.data_dir / ".joining"
    stage.mkdir(exist_ok=True)
    segment = next(path for path in follower.data_dir.rglob("msgs.*") if path.stat().st_size)
    plan = {"files": [[str(segment.relative_to(follower.data_dir)), "0", 10,
                       segment.stat().st_size]], "directories": []}  # fmt: skip
    (stage / "plan").write_text(json.dumps(plan))
    (follower.data_dir / ".clustering_state").write_text('{"whole":false}')
    cluster.start()
    assert_alike(cluster)


@pytest.mark.skipif(not os.environ.get("CLUSTER_TESTS_LONG"), reason="moves gigabytes: make chaos")
def test_node_joins_while_more_is_published_than_the_leader_keeps(
    cluster_factory: ClusterFactory,
) -> None:
    """More is changed while its files are compared and copied than the leader has in memory."""
    cluster = cluster_factory(n_nodes=3)
    leader = cluster.start()
    for number in range(12):
        fill(leader, f"large-{number}", 500, 50_000)
    follower = cluster.followers()[0]
    follower.kill()
    with Book(cluster, name="load", seed=7, producers=1, transactors=0, size=20_000) as book:
        book.progress()
        follower.start()
        cluster.wait_in_sync(cluster.nodes)
        book.check()
    assert_alike(cluster)


def stopped(node: ClusterNode, leader: ClusterNode) -> None:
    """It stops in order."""
    assert node.stop() == 0


def killed(node: ClusterNode, leader: ClusterNode) -> None:
    """It crashes after it has noted that it has what the leader has now."""
    head = Api(leader)("GET", "/api/cluster").json["position"]

    def has_noted() -> bool:
        state = json.loads((node.data_dir / ".clustering_state").read_text())
        return state.get("at_least", [0, 0])[1] >= head

    wait_for(has_noted, "it does not note what it has", WAIT_S)
    node.kill()


@pytest.mark.parametrize("end", [stopped, killed])
def test_node_that_was_away_for_long_reads_only_what_was_changed(
    cluster_factory: ClusterFactory, end: Callable[[ClusterNode, ClusterNode], None]
) -> None:
    """More has been changed than the leader has in memory."""
    cluster = cluster_factory(n_nodes=3)
    leader = cluster.start()
    fill(leader, "before", 600, 50_000)
    follower = cluster.followers()[0]
    end(follower, leader)
    fill(leader, "meanwhile", 1400, 50_000)
    follower.start()
    cluster.whole()

    told = re.findall(
        r"(\d+) were the same as before, (\d+) were compared, (\d+) bytes", follower.log_text()
    )
    n_same, n_compared, n_bytes = map(int, told[-1])
    assert n_same >= 3  # segments of the queue of before
    assert n_compared < n_same
    assert 70_000_000 < n_bytes < 80_000_000
    assert_alike(cluster)


def test_definitions_imported_while_a_node_joins_are_on_it(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.followers()[0]
    follower.kill()
    follower.start()
    queues = [
        {"name": f"imported-{n}", "vhost": "/", "durable": True, "auto_delete": False,
         "arguments": {}} for n in range(300)
    ]  # fmt: skip
    answer = Api(leader)("POST", "/api/definitions", {"queues": queues})
    assert answer.status in (200, 204), answer
    cluster.whole()
    leader.kill()
    new = cluster.leader(other_than=leader)
    with Wire.open(new.port) as wire:
        for each in queues:
            passive = commands.Queue.Declare(queue=str(each["name"]), passive=True)
            wire.call(1, passive, commands.Queue.DeclareOk)
