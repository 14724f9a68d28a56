"""Whatever can happen to three nodes, in an order by a seed, while producers keep books: nothing
that was acknowledged is lost, in any order of kills, stops, pauses and partitions.

`make test` tries a few steps; with `LAVINMQ_CHAOS_STEPS=200` and `LAVINMQ_CHAOS_SEED=1` there are
more. A failure prints its seed and its steps.
At most one node is out at a time, as is promised; in between all are made whole.
"""

from __future__ import annotations

import os
import random
import time

from tests.support.book import Book
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.links import DOWN, UP, Link

STEPS = int(os.environ.get("LAVINMQ_CHAOS_STEPS", "5"))
SEED = int(os.environ.get("LAVINMQ_CHAOS_SEED", "1"))
DEADLINE_S = WAIT_S * (2 + STEPS)
CLUSTER = {"is_linked": True}
HARMS = (
    "kill", "stop", "pause", "kill all", "from etcd", "from nodes", "from one", "cut", "one way",
    "kill twice", "end etcd", "short",
)  # fmt: skip


def _link(link: Link | None) -> Link:
    assert link is not None
    return link


def harm(  # noqa: C901 - a flat list
    cluster: Cluster, node: ClusterNode, kind: str, chance: random.Random
) -> None:
    """Do something to a node."""
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


def test_nothing_is_lost_whatever_happens(cluster: Cluster) -> None:
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
                    harm(cluster, node, kind, chance)
                time.sleep(chance.random() * chance.choice([0.1, 1, 6]))
                cluster.heal()
            book.progress(3)
            book.check()
        cluster.check_epochs()
