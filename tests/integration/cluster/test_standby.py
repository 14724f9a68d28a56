"""What followers have read ahead is what leads: with all that was confirmed, and nothing read again
that rests."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from tests.integration.cluster.test_failover import all_alike
from tests.support.book import Book
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = WAIT_S
RESTING = 40
BODY = b"m" * 300


def fill(leader: ClusterNode, resting: Callable[[int], str]) -> None:
    """Have queues rest there, each with as many messages as its number says, one of them taken."""
    with Wire.open(leader.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(RESTING):
            arguments: dict[str, Any] = {"x-max-priority": 3} if number % 7 == 0 else {}
            declare = commands.Queue.Declare(
                queue=resting(number), durable=True, arguments=arguments
            )
            wire.call(1, declare, commands.Queue.DeclareOk)
            for at in range(number):
                wire.publish(1, "", resting(number), b"%d " % at + BODY)
                wire.expect(commands.Basic.Ack)
            if number:
                wire.send(1, commands.Basic.Get(queue=resting(number)))
                got = wire.expect(commands.Basic.GetOk)
                wire.send(1, commands.Basic.Ack(delivery_tag=got.delivery_tag or 0))


def picture(node: ClusterNode) -> dict[str, Any]:
    """What a node says of itself where it shows its numbers."""
    url = f"http://{node.host}:{node.metrics_port}/api/cluster"
    with urllib.request.urlopen(url, timeout=20) as answer:
        return dict(json.load(answer))


def n_ready(node: ClusterNode) -> tuple[int, int]:
    """How many queues are ready on a follower, of how many that it has read."""
    standby = picture(node)["standby"]
    return (0, 0) if standby is None else (standby["ready_queues"], standby["queues"])


def told(node: ClusterNode) -> tuple[int, int]:
    """How many queues stood ready, of how many, when it has begun to lead."""
    found = re.findall(r"(\d+) of (\d+) queues stood ready", node.log_text())
    return tuple(map(int, found[-1])) if found else (0, 0)  # type: ignore[return-value]


def bodies(node: ClusterNode, queue: str) -> list[bytes]:
    """All messages of a queue, which stay there."""
    found: list[bytes] = []
    with Wire.open(node.port) as wire:
        while True:
            wire.send(1, commands.Basic.Get(queue=queue))
            got = wire.receive(20.0)
            if not isinstance(got.method, commands.Basic.GetOk):
                return found
            found.append(got.body)


def is_there(node: ClusterNode, queue: str) -> bool:
    """Whether a node that leads has a queue of that name."""
    with Wire.open(node.port) as wire:
        wire.send(1, commands.Queue.Declare(queue=queue, passive=True))
        return isinstance(wire.receive(20.0).method, commands.Queue.DeclareOk)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_queues_that_rest_are_not_read_again(cluster: Cluster, how: str) -> None:
    leader = cluster.leader()

    def resting(number: int) -> str:
        return f"rests-{how}-{number}"

    fill(leader, resting)
    wanted = RESTING * sum(is_there(leader, f"rests-{each}-0") for each in ("kill", "stop"))
    with Book(cluster, name=f"standby-{how}", seed=1) as book:
        book.progress()

        def are_ready() -> bool:
            return all(n_ready(each)[0] >= wanted for each in cluster.followers())

        wait_for(are_ready, "queues are not ready", DEADLINE_S)
        getattr(leader, how)()
        taker = cluster.leader(other_than=leader)
        book.progress()
        n, of = told(taker)
        assert RESTING <= n <= of  # what was read since, an orderly stop may write to
        for number in range(RESTING):
            there = bodies(taker, resting(number))
            assert there == [b"%d " % at + BODY for at in range(1, number)], number
        cluster.start()
        book.progress()
        book.check()
    all_alike(cluster)


def test_who_does_not_want_it_has_none(cluster_factory: Any) -> None:
    cluster = cluster_factory(2)
    for node in cluster.nodes:
        node.args = ["--clustering-hot-standby=false"]
    cluster.start()
    cluster.whole()
    assert {picture(each)["standby"] is None for each in cluster.nodes} == {True}
