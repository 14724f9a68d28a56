"""Damaged files in a cluster: they change nothing that clients see, are never copied, and come anew
from a node that has them whole.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.integration.cluster import test_reads as reads
from tests.integration.cluster.test_joining import assert_alike, declare, fill
from tests.support.api import Api
from tests.support.book import PERSISTENT, Book
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.damage import flip, harm, is_known, know_all, verify
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed, WireTimeout
from tests.support.wire_actions import get_all

DEADLINE_S = WAIT_S
CLUSTER: dict[str, Any] = {"args": [], "has_readers": True}
N, SIZE = 300, 20_000
INI = "[main]\nsegment_size = 500000\nscrub_interval = 1\nscrub_rate = 1000000000\n"


LONG = pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All nodes look at their files each second."""
    path = tmp_path_factory.mktemp("damage") / "damage.ini"
    path.write_text(INI)
    CLUSTER["args"] = ["--config", str(path)]


def knows_all(node: ClusterNode) -> None:
    """Wait until a node has sums of all of its files."""
    wait_for(lambda: is_known(node.data_dir), f"{node} does not know all", DEADLINE_S)


def stand(node: ClusterNode) -> str:
    """What a node has noted of its files."""
    return (node.data_dir / ".clustering_state").read_text()


def is_whole(node: ClusterNode) -> bool:
    """Whether a node says that its files are good."""
    return '"whole":true' in stand(node) and "damaged" not in stand(node)


def segment(node: ClusterNode, queue: str) -> Path:
    """One that is finished."""
    for name in node.data_dir.rglob(".queue"):
        if name.read_text() == queue:
            return sorted(name.parent.glob("msgs.*"))[1]
    raise AssertionError(f"no {queue}")


def lead(cluster: Cluster, node: ClusterNode) -> None:
    """Have a node lead."""
    for _ in range(20):
        leader = cluster.whole()
        if leader is node:
            return
        answer = Api(leader)("POST", "/api/cluster/transfer")
        if answer.status == 204:
            cluster.leader(other_than=leader)
    raise AssertionError(f"{node} does not come to lead")


def assert_all_there(cluster: Cluster, queue: str) -> None:
    """All messages that `fill` has published are there, as they were."""
    with Wire.open(cluster.leader().port) as wire:
        found = get_all(wire, queue)
    assert len(found) == N
    assert set(found) == {bytes(SIZE)}


@pytest.mark.parametrize("keeps_time", [True, pytest.param(False, marks=LONG)])
def test_a_running_follower_finds_its_damage_and_is_repaired(
    cluster: Cluster, *, keeps_time: bool
) -> None:
    queue = f"running-{keeps_time}"
    fill(cluster.leader(), queue, N, SIZE)
    follower = cluster.followers()[0]
    knows_all(follower)
    n_before = follower.log_text().count("has the files of")
    name = segment(follower, queue).relative_to(follower.data_dir)
    with Book(cluster, name=queue, seed=1) as book:
        flip(follower.data_dir / name, 100_000, keeps_time=keeps_time)
        wait_for(lambda: f"{name} is damaged" in follower.log_text(), "it is not found", DEADLINE_S)
        wait_for(
            lambda: follower.log_text().count("has the files of") > n_before and is_whole(follower),
            "it is not repaired", DEADLINE_S,
        )  # fmt: skip
        cluster.whole()
        book.check()
    assert_alike(cluster)
    n_same, n_compared, n_bytes = last_join(follower)
    assert n_same > 10
    assert n_compared <= n_same // 2, "no more than what is changed just now"
    assert n_bytes < 2_000_000, "one segment, and what is changed"
    lead(cluster, follower)
    assert_all_there(cluster, queue)


def last_join(node: ClusterNode) -> list[int]:
    """Files that were the same, and those that were compared, and bytes that came."""
    text = r"has the files of \S+: (\d+) were the same as before, (\d+) were compared, (\d+) bytes"
    return [int(each) for each in re.findall(text, node.log_text())[-1]]


def test_of_a_node_at_rest_only_the_damaged_file_is_sent(cluster: Cluster) -> None:
    """Also of one that has led when it was found. That one may have written what nobody else has
    got: all of its files are compared then, by their sums."""
    queue = "at-rest"
    fill(cluster.leader(), queue, N, SIZE)
    for node in cluster.nodes:
        knows_all(node)
    for harmed, most_compared in ((cluster.followers()[0], 2), (cluster.leader(), None)):
        n_before = harmed.log_text().count("has the files of")
        path = segment(harmed, queue)
        good = path.read_bytes()
        flip(path, 100_000, keeps_time=True)
        wait_for(
            lambda n=n_before, node=harmed: node.log_text().count("has the files of") > n
            and is_whole(node), "it is not repaired", DEADLINE_S,
        )  # fmt: skip
        cluster.whole()
        n_same, n_compared, n_bytes = last_join(harmed)
        assert path.read_bytes() == good
        assert n_same + n_compared > 10
        assert most_compared is None or n_compared <= most_compared
        assert len(good) <= n_bytes < 2 * len(good)
    assert_alike(cluster)


def test_nothing_that_the_disk_of_a_leader_has_changed_is_delivered(cluster: Cluster) -> None:
    """What is behind waits for another node to lead, and nothing is given up."""
    queue, bodies = "spoiled", [b"%06d" % n + bytes(SIZE) for n in range(N)]
    leader = cluster.leader()
    with Wire.open(leader.port) as wire:
        declare(wire, queue)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for each in bodies:
            wire.publish(1, "", queue, each, PERSISTENT)
        tag = 0
        while tag < N:
            tag = wire.expect(commands.Basic.Ack).delivery_tag
    knows_all(leader)
    path = segment(leader, queue)

    found: list[bytes] = []
    with Wire.open(leader.port) as wire:
        flip(path, 100_000, keeps_time=True)
        with suppress(WireClosed, OSError):
            while True:
                wire.send(1, commands.Basic.Get(queue=queue, no_ack=False))
                unit = wire.receive()
                if not isinstance(unit.method, commands.Basic.GetOk):
                    break
                found.append(unit.body)
    assert found == bodies[: len(found)]
    assert len(found) < 30, "it stops before the block"

    cluster.leader(other_than=leader)
    with Wire.open(cluster.leader().port) as wire:
        assert get_all(wire, queue) == bodies
    assert "could not be read and were given up" not in leader.log_text()
    wait_for(lambda: leader.is_running() and is_whole(leader), "not repaired", DEADLINE_S)
    cluster.whole()
    assert_alike(cluster)


@pytest.mark.nightly
def test_nothing_that_the_disk_of_a_follower_has_changed_is_given_to_readers(
    cluster: Cluster,
) -> None:
    """Readers wait until the node has got the file anew, and come again."""
    stream, bodies = "read", [b"%06d" % n + bytes(SIZE) for n in range(N)]
    reads.declare(cluster.leader(), stream)
    with reads.opened(cluster.leader()) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for each in bodies:
            wire.publish(1, "", stream, each, PERSISTENT)
        tag = 0
        while tag < N:
            tag = wire.expect(commands.Basic.Ack).delivery_tag
    follower = cluster.followers()[0]
    reads.known(follower, stream)
    knows_all(follower)
    n_before = follower.log_text().count("has the files of")

    def given() -> list[bytes]:
        """What there is to read, up to the first wait for more."""
        found: list[bytes] = []
        # The node may have its files replaced, and nobody listen, as soon as it has said it serves.
        ended = (WireClosed, WireTimeout, ConnectionRefusedError)
        with suppress(*ended), reads.reading(follower) as wire:
            reads.consume(wire, stream)
            while len(found) < N:
                unit = wire.receive(2.0)
                if not isinstance(unit.method, commands.Basic.Deliver):
                    break
                found.append(unit.body)
                wire.send(1, commands.Basic.Ack(unit.method.delivery_tag))
        return found

    flip(segment(follower, stream), 100_000, keeps_time=True)
    found = given()
    assert found == bodies[: len(found)]
    assert len(found) < 30, "it stops before the block"

    wait_for(
        lambda: follower.log_text().count("has the files of") > n_before and is_whole(follower),
        "it is not repaired", DEADLINE_S,
    )  # fmt: skip
    wait_for(lambda: given() == bodies, "not all is given after that", DEADLINE_S)


@pytest.mark.parametrize("how", [pytest.param("stopped", marks=LONG), "killed"])
def test_a_node_whose_files_were_harmed_while_it_was_away_changes_nothing(
    cluster: Cluster, how: str
) -> None:
    """Nearly all of its files: cut, removed, or with other bytes."""
    queue = f"away-{how}"
    fill(cluster.leader(), queue, N, SIZE)
    for node in cluster.nodes:
        knows_all(node)
    harmed = cluster.followers()[0]
    others = [each for each in cluster.nodes if each is not harmed]
    for node in [*others, harmed] if how == "stopped" else cluster.nodes:
        node.signal(signal.SIGTERM if how == "stopped" else signal.SIGKILL)
    for node in cluster.nodes:
        wait_for(lambda node=node: not node.is_running(), f"{node} does not end", DEADLINE_S)
    assert harm(harmed.data_dir, seed=7)
    harmed.start()
    wait_for(lambda: "is damaged" in harmed.log_text(), "it finds nothing", DEADLINE_S)
    wait_for(lambda: "damaged" in stand(harmed), "it does not note it", DEADLINE_S)
    for node in others:
        node.start()

    leader = cluster.whole()

    assert leader is not harmed
    wait_for(lambda: is_whole(harmed), "it is not repaired", DEADLINE_S)
    assert_alike(cluster)
    lead(cluster, harmed)
    assert_all_there(cluster, queue)


def test_a_leader_that_finds_damage_has_another_one_lead(cluster: Cluster) -> None:
    fill(cluster.leader(), "led", N, SIZE)
    leader = cluster.leader()
    knows_all(leader)
    with Book(cluster, name="led-changes", seed=3) as book:
        flip(segment(leader, "led"), 200_000, keeps_time=True)
        cluster.leader(other_than=leader)
        wait_for(lambda: leader.is_running() and is_whole(leader), "not repaired", DEADLINE_S)
        cluster.whole()
        book.check()
    assert "files of this node are damaged" in leader.log_text()
    assert_alike(cluster)
    assert_all_there(cluster, "led")


@LONG
def test_damage_of_a_leader_is_never_copied(cluster: Cluster) -> None:
    """It is alone, so that it goes on to lead, and a node comes that wants its files."""
    leader = cluster.leader()
    fill(leader, "alone", N, SIZE)
    for node in cluster.nodes:
        knows_all(node)
    first, second = cluster.followers()
    first.kill()
    cluster.wait_in_sync([leader, second])
    second.kill()
    path = segment(first, "alone")
    good = path.read_bytes()
    damaged = segment(leader, "alone")
    flip(damaged, 100_000, keeps_time=True)
    wait_for(lambda: "is damaged" in leader.log_text(), "it is not found", DEADLINE_S)
    path.unlink()
    flip(first.data_dir / "users.json", 3)

    first.start()

    wait_for(
        lambda: "is damaged at its source" in leader.log_text(), "it was not refused", DEADLINE_S
    )
    assert not path.exists()
    assert leader.is_running()
    assert not is_whole(first)
    second.start()
    wait_for(lambda: leader.exit_codes or cluster.leading() is second, "no change", DEADLINE_S)
    cluster.leader(other_than=leader)
    cluster.whole()
    wait_for(lambda: is_whole(leader) and is_whole(first), "not repaired", DEADLINE_S)
    assert path.read_bytes() == good
    assert_alike(cluster)
    assert_all_there(cluster, "alone")


def test_operators_see_damage_and_verify_by_hand(cluster: Cluster) -> None:
    leader = cluster.leader()
    know_all(leader, leader.data_dir)
    assert verify(leader) == []
    picture = Api(leader).get("/api/cluster")["integrity"]
    assert picture["damaged_files"] == []
    assert picture["checked_bytes"] > 0
    assert Api(leader)("POST", "/api/integrity/repair").status == 204
    with Wire.open(leader.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="any"), commands.Queue.DeclareOk)
    assert os.path.isdir(leader.data_dir / ".sums")
