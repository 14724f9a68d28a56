"""Wall clocks of nodes jump by hours: that changes neither who leads nor what is there, and what
expires by the wall clock does so by that of who leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.book import PERSISTENT, Book
from tests.support.clock import Clock, compile_clock
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.etcd import WHY_NOT
from tests.support.wire import Wire

DEADLINE_S = 2 * WAIT_S
HOUR_S = 3600
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, not started."""
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def clocks(cluster: Cluster, tmp_path: Path) -> Iterator[dict[ClusterNode, Clock]]:
    """A clock for each of them."""
    shim = compile_clock(tmp_path)
    with ExitStack() as stack:
        found = {}
        for each in cluster.nodes:
            clock = stack.enter_context(closing(Clock(shim, tmp_path / f"{each}.clock")))
            each.env = clock.env()
            found[each] = clock
        yield found


def is_there(wire: Wire, queue: str) -> bool:
    """Whether a message can be had; it goes back. What expires is looked at then."""
    wire.send(1, commands.Basic.Get(queue=queue))
    method = wire.receive().method
    if isinstance(method, commands.Basic.GetEmpty):
        return False
    assert isinstance(method, commands.Basic.GetOk), method
    wire.send(1, commands.Basic.Reject(delivery_tag=method.delivery_tag, requeue=True))
    return True


def put(wire: Wire, queue: str) -> None:
    """Publish a message, and wait for its confirm."""
    wire.publish(1, "", queue, b"expires", PERSISTENT)
    wire.expect_unit(commands.Basic.Ack, timeout_s=WAIT_S)


def test_clocks_that_jump_change_neither_who_leads_nor_what_is_there(
    cluster: Cluster, clocks: dict[ClusterNode, Clock]
) -> None:
    leader = cluster.start()
    one, other = cluster.followers()
    with Book(cluster, name="clocks", seed=1) as book, Wire.open(leader.port) as wire:
        expiring = commands.Queue.Declare(
            queue="expiring", durable=True, arguments={"x-message-ttl": HOUR_S * 1000}
        )
        wire.call(1, expiring, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        put(wire, "expiring")
        for off_s in (HOUR_S / 2, 5 * HOUR_S, -5 * HOUR_S):
            clocks[leader].set(off_s)
            clocks[one].set(-off_s)
            book.progress(10)
            assert is_there(wire, "expiring") == (off_s == HOUR_S / 2)
            if off_s < 0:
                put(wire, "expiring")  # to expire five hours ago
        assert cluster.picture().epoch == 1
        assert cluster.picture().in_sync == {each.id for each in cluster.nodes}

        leader.kill()
        clocks[one].set(9 * HOUR_S)
        clocks[other].set(-9 * HOUR_S)
        new = cluster.leader(other_than=leader)
        clocks[new].set(0)
        book.progress(10)
        with Wire.open(new.port) as there:
            assert not is_there(there, "expiring")
        cluster.heal()
        book.progress(10)
        book.check()
    assert cluster.picture().epoch == 2
    cluster.check_epochs()
