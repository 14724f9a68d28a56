"""Nodes of a cluster cannot reach each other, or etcd, for a while and one way or both: nothing
that was acknowledged is lost, and clients wait only until another node leads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.book import PERSISTENT, Book, drain
from tests.support.cluster import LOST, WAIT_S, Cluster, ClusterNode
from tests.support.links import DOWN, UP, Link
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = WAIT_S
CLUSTER = {"is_linked": True}
ClusterFactory = Callable[..., Cluster]


def gate(node: ClusterNode) -> Link:
    """Between a node and the others."""
    assert node.gate is not None
    return node.gate


def etcd_link(node: ClusterNode) -> Link:
    """Between a node and etcd."""
    assert node.etcd_link is not None
    return node.etcd_link


def publisher(node: ClusterNode, queue: str) -> Wire:
    """A connection that gets confirms, and a queue."""
    wire = Wire.open(node.port)
    wire.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return wire


def n_confirmed(wire: Wire, quiet_s: float) -> int:
    """Up to which tag all is confirmed, once there was nothing for a while."""
    tags = [unit.method.delivery_tag for unit in wire.receive_all(quiet_s)
            if isinstance(unit.method, commands.Basic.Ack)]  # fmt: skip
    return max(tags, default=0)


@pytest.mark.parametrize("ways", [(UP, DOWN), (UP,), (DOWN,)], ids=["both", "asks", "answers"])
def test_leader_cut_off_from_etcd_is_replaced_and_ends_with_3(
    cluster: Cluster, ways: tuple[str, ...]
) -> None:
    leader = cluster.leader()
    n_codes = len(leader.exit_codes)
    with Book(cluster, name=f"no-etcd-{'-'.join(ways)}", seed=1) as book:
        book.progress()
        etcd_link(leader).hold(*ways)
        cluster.leader(other_than=leader)
        wait_for(lambda: len(leader.exit_codes) > n_codes, "it goes on", DEADLINE_S)
        assert leader.exit_codes[n_codes] == LOST
        book.progress()
        cluster.heal()
        book.check()


@pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"),
    reason="takes ten seconds: make chaos",
)
def test_leader_cut_off_from_all_is_replaced(cluster: Cluster) -> None:
    leader = cluster.leader()
    with Book(cluster, name="alone", seed=2) as book:
        book.progress()
        etcd_link(leader).hold()
        gate(leader).hold()
        cluster.leader(other_than=leader)
        book.progress()
        cluster.heal()
        book.check()


def test_leader_cut_off_from_its_followers_only_is_replaced(cluster: Cluster) -> None:
    """It reaches etcd, but can acknowledge nothing; the others could."""
    leader = cluster.leader()
    with Book(cluster, name="no-followers", seed=3) as book:
        book.progress()
        gate(leader).hold()
        book.progress()
        cluster.heal()
        book.check()


@pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
@pytest.mark.slow
def test_leader_that_loses_one_follower_after_the_other_is_replaced(cluster: Cluster) -> None:
    """The first one has been left out by then, and could serve again with the other one."""
    leader = cluster.leader()
    first, second = cluster.followers()
    with Book(cluster, name="one-by-one", seed=6) as book:
        book.progress()
        gate(leader).hold(who=first.number)
        cluster.wait_in_sync([leader, second])
        gate(leader).hold()
        book.progress()
        cluster.heal()
        book.check()


@pytest.mark.parametrize("ways", [(UP, DOWN), (UP,), (DOWN,)], ids=["both", "acks", "changes"])
def test_follower_cut_off_is_left_out_and_comes_back(
    cluster: Cluster, ways: tuple[str, ...]
) -> None:
    leader, follower = cluster.leader(), cluster.followers()[0]
    with Book(cluster, name=f"follower-{'-'.join(ways)}", seed=4) as book:
        book.progress()
        gate(leader).hold(*ways, who=follower.number)
        cluster.wait_in_sync(each for each in cluster.nodes if each is not follower)
        book.progress()
        cluster.heal()
        book.progress()
        book.check()


@pytest.fixture
def firewall() -> Iterator[Callable[[int, int], None]]:
    """Call it to have the kernel drop what goes between two ports of this machine, both ways."""
    rules: list[list[str]] = []

    def drop(one: int, other: int) -> None:
        for source, target in ((one, other), (other, one)):
            rule = ["INPUT", "-i", "lo", "-p", "tcp", "--sport", str(source), "--dport",
                    str(target), "-j", "DROP"]  # fmt: skip
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            rules.append(rule)

    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("needs root and iptables: what a lost connection is like is NOT tested")
    tried = subprocess.run(["iptables", "-w", "-L", "INPUT"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("iptables does not work here: what a lost connection is like is NOT tested")
    yield drop
    for rule in rules:
        subprocess.run(["iptables", "-w", "-D", *rule], check=True)


def ports_to(port: int) -> list[int]:
    """The ports from which there are connections to a port of this machine."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state == "01" and int(remote.rpartition(":")[2], 16) == port:
            found.append(int(local.rpartition(":")[2], 16))
    return found


@pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
@pytest.mark.slow
def test_follower_whose_connection_was_forgotten_makes_another_one(
    cluster_factory: ClusterFactory, firewall: Callable[[int, int], None]
) -> None:
    """Neither end is told that it is over, as after a firewall was started anew."""
    cluster = cluster_factory()
    leader = cluster.start()
    with Book(cluster, name="forgotten", seed=5) as book:
        book.progress()
        firewall(ports_to(leader.clustering_port)[0], leader.clustering_port)
        wait_for(lambda: len(cluster.picture().in_sync) == 2, "it stays in sync", DEADLINE_S)
        book.progress()
        cluster.wait_in_sync(cluster.nodes)
        book.progress()
        book.check()
    assert cluster.picture().epoch == 1


def test_follower_that_reconnects_while_it_is_left_out_is_taken_in_again(cluster: Cluster) -> None:
    """It is back before etcd has answered that it is in sync no more."""
    leader, follower = cluster.leader(), cluster.followers()[0]
    gate(leader).hold(who=follower.number)
    with publisher(leader, "reconnects") as wire:
        wire.publish(1, "", "reconnects", b"1", PERSISTENT)
        wait_for(lambda: f"{follower.id} does not answer" in leader.log_text(), "no", DEADLINE_S)
        etcd_link(leader).hold(DOWN)  # it is to be left out next: that answer comes late
        wait_for(lambda: follower.id not in cluster.picture().in_sync, "it stays", DEADLINE_S)
        n = follower.log_text().count("follows tcp")
        gate(leader).free()
        wait_for(lambda: follower.log_text().count("follows tcp") > n, "no", DEADLINE_S)
        etcd_link(leader).free()
        wire.expect_unit(commands.Basic.Ack, timeout_s=DEADLINE_S)
    cluster.wait_in_sync(cluster.nodes)


def test_follower_taken_in_by_a_lost_answer_has_all_that_was_acknowledged(
    cluster_factory: ClusterFactory,
) -> None:
    """etcd lists it, and the leader does not know: what it acknowledges then, that node has."""
    cluster = cluster_factory(is_linked=True, restarts=False)
    leader = cluster.start()
    one, other = cluster.followers()
    with publisher(leader, "lost-answer") as wire:
        wire.publish(1, "", "lost-answer", b"1", PERSISTENT)
        wire.expect_unit(commands.Basic.Ack, timeout_s=DEADLINE_S)
        other.kill()
        cluster.wait_in_sync([leader, one])

        # It comes back, and is taken in by a change whose answer does not come.
        gate(leader).hold(DOWN, who=other.number)
        other.start()
        wait_for(lambda: other.id in cluster.picture().nodes, "it is not there", DEADLINE_S)
        etcd_link(leader).hold(DOWN)
        gate(leader).free()
        wait_for(lambda: other.id in cluster.picture().in_sync, "it is not taken in", DEADLINE_S)

        gate(leader).hold(DOWN, who=other.number)  # from now on it gets nothing
        confirmed, number = 1, 1
        deadline = time.monotonic() + DEADLINE_S
        while leader.is_running() and time.monotonic() < deadline:
            number += 1
            wire.publish(1, "", "lost-answer", b"%d" % number, PERSISTENT)
            confirmed = max(confirmed, n_confirmed(wire, 0.1))
    one.kill()
    leader.kill()
    new = cluster.leader()
    assert new is other
    cluster.heal()
    found = {int(body) for body in drain(cluster, "lost-answer")}
    assert set(range(1, confirmed + 1)) <= found


@pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
def test_leader_that_had_come_less_far_than_the_one_before_is_followed(
    cluster_factory: ClusterFactory,
) -> None:
    """It knows of the epoch of a leader of whose bytes it has not even those before the epoch."""
    cluster = cluster_factory(is_linked=True, restarts=False)
    first = cluster.start()
    second, third = cluster.followers()
    with publisher(first, "less-far") as wire:
        wire.publish(1, "", "less-far", b"1", PERSISTENT)
        wire.expect_unit(commands.Basic.Ack, timeout_s=DEADLINE_S)
        third_at = gate(first)
        third_at.hold(DOWN, who=third.number)
        for _ in range(50):  # the second has it, the third has not: nothing is confirmed
            wire.publish(1, "", "less-far", bytes(20000), PERSISTENT)
        assert n_confirmed(wire, 0.5) == 0
    gate(second).left = 3000  # enough to be greeted, not for what is missing
    first.kill()
    cluster.leader(other_than=first)
    assert cluster.leader() is second
    wait_for(lambda: f"follows {second.uri}" in third.log_text(), "not followed", DEADLINE_S)
    second.kill()
    cluster.leader(other_than=second)
    assert cluster.leader() is third

    cluster.heal()

    assert b"1" in drain(cluster, "less-far")
