"""Whatever can happen to three nodes, in an order by a seed, while producers keep books: nothing
that was acknowledged is lost, in any order of kills, stops, pauses and partitions.

`make test` tries a few steps; with `LAVINMQ_CHAOS_STEPS=200` and `LAVINMQ_CHAOS_SEED=1` there are
more. A failure prints its seed and its steps. With `LAVINMQ_CHAOS_TLS=1` nodes speak TLS with each
other and with etcd, and show certificates.
At most one node is out at a time, as is promised; in between all are made whole.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.book import Book
from tests.support.certificates import Authority
from tests.support.clock import Clock, compile_clock
from tests.support.cluster import (
    DISK_FAILED,
    NO_ETCD,
    WAIT_S,
    Cluster,
    ClusterNode,
    tls_options,
)
from tests.support.disk import Action, Call, compile_shim
from tests.support.disks import Disks
from tests.support.etcd import WHY_NOT, EtcdCluster, Tls
from tests.support.links import DOWN, UP, Link
from tests.support.ports import HOST

STEPS = int(os.environ.get("LAVINMQ_CHAOS_STEPS", "5"))
SEED = int(os.environ.get("LAVINMQ_CHAOS_SEED", "1"))
HAS_TLS = os.environ.get("LAVINMQ_CHAOS_TLS", "0") not in ("", "0")
DEADLINE_S = WAIT_S * (2 + STEPS)
HARMS = (
    "kill", "stop", "pause", "kill all", "from etcd", "from nodes", "from one", "cut", "one way",
    "kill twice", "end etcd", "short", "late", "clock", "sync fails", "slow disk", "no room",
    "disk stands still",
)  # fmt: skip
HOURS_S = 10 * 3600
pytestmark = pytest.mark.timeout(DEADLINE_S + WAIT_S)


class Nodes(NamedTuple):
    """Three of them, with disks and clocks of their own."""

    cluster: Cluster
    disks: Disks
    clocks: dict[ClusterNode, Clock]

    def heal(self) -> None:
        """Make good whatever was done, and wait until all are in sync."""
        self.disks.heal()
        self.cluster.heal()


def made(directory: Path) -> Cluster:
    """A cluster that is not started."""
    if not HAS_TLS:
        return Cluster(directory / "cluster", is_linked=True)
    authority = Authority(directory / "authority")
    identity = authority.issue("node", (HOST,))
    etcd = EtcdCluster(directory / "etcd", tls=Tls(authority, identity))
    args = tls_options(authority, identity) + tls_options(authority, identity, "etcd")
    return Cluster(directory / "cluster", is_linked=True, scheme="tls", etcd=etcd, args=args)


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """In sync."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    directory = tmp_path_factory.mktemp("chaos")
    with ExitStack() as stack:
        cluster = stack.enter_context(made(directory))
        disks = Disks(cluster, compile_shim(directory), stack)
        shim, clocks = compile_clock(directory), {}
        for each in cluster.nodes:
            clock = stack.enter_context(closing(Clock(shim, directory / f"{each}.clock")))
            each.env, clocks[each] = clock.env(each.env), clock
        cluster.restarted |= {DISK_FAILED, NO_ETCD}
        cluster.start()
        yield Nodes(cluster, disks, clocks)


@pytest.fixture
def cluster(nodes: Nodes) -> Cluster:
    """So that the report of a failing test has its logs."""
    return nodes.cluster


def _link(link: Link | None) -> Link:
    assert link is not None
    return link


def harm(  # noqa: C901 - a flat list
    nodes: Nodes, node: ClusterNode, kind: str, chance: random.Random
) -> None:
    """Do something to a node."""
    cluster, disk = nodes.cluster, nodes.disks.of[node]
    others = [each for each in cluster.nodes if each is not node]
    match kind:
        case "kill":
            node.kill()
        case "kill twice":
            node.kill()
            node.start()
            time.sleep(chance.random())
            node.kill()
        case "stop":
            assert node.stop() == 0
        case "pause":
            node.pause()
        case "kill all":
            for each in chance.sample(cluster.nodes, 3):
                each.kill()
        case "from etcd":
            _link(node.etcd_link).hold(*chance.choice([(UP,), (DOWN,), (UP, DOWN)]))
        case "from nodes":
            for each in others:
                cluster.cut_nodes(node, each, UP, DOWN)
        case "from one":
            cluster.cut_nodes(node, chance.choice(others), UP, DOWN)
        case "one way":
            cluster.cut_nodes(node, chance.choice(others), chance.choice([UP, DOWN]))
        case "cut":
            for each in cluster.nodes:
                _link(each.gate).cut()
                _link(each.etcd_link).cut()
        case "end etcd":
            cluster.etcd.restart(cluster.etcd.members[0])
        case "short":
            cluster.cut_nodes(node, chance.choice(others), UP, DOWN)
            _link(node.etcd_link).hold()
            time.sleep(chance.random() * 4)
        case "late":
            for each in cluster.nodes:
                _link(each.gate).late_s = _link(each.etcd_link).late_s = 0.2
        case "clock":
            nodes.clocks[node].set(chance.uniform(-HOURS_S, HOURS_S))
        case "sync fails":
            disk.plan(Action.FAIL, Call.SYNC, error=errno.EIO, first=chance.randrange(1, 4), last=4)
        case "slow disk":
            disk.plan(Action.NOTHING, Call(0), sync_us=chance.randrange(5_000_000))
        case "no room":
            disk.plan(Action.FAIL, Call.WRITE, "*/msgs.*", error=errno.ENOSPC)
        case "disk stands still":
            disk.plan(Action.HOLD, Call.SYNC | Call.WRITE)


def test_nothing_is_lost_whatever_happens(nodes: Nodes, cluster: Cluster) -> None:
    chance = random.Random(SEED)
    steps = []
    for number in range(STEPS):
        with Book(cluster, name=f"chaos-{number}", seed=SEED + number) as book:
            book.progress(chance.randrange(3, 30))
            for _ in range(chance.choice([1, 1, 2])):
                node, kind = chance.choice(cluster.nodes), chance.choice(HARMS)
                steps.append(f"{kind} {node}")
                print(f"seed {SEED}, step {number}: {steps[-1]}", flush=True)
                if node.is_running() and not node.is_paused:
                    harm(nodes, node, kind, chance)
                time.sleep(chance.random() * chance.choice([0.1, 1, 6]))
                nodes.heal()
            book.progress(3)
            book.check()
        cluster.check_epochs()
