"""Disks of nodes are full while clients of MQTT publish, subscribe, come and go."""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.support import mqtt_bytes
from tests.support.book import Book
from tests.support.cluster import Cluster, ClusterNode
from tests.support.disk import Action, Call
from tests.support.disks import Disks
from tests.support.etcd import WHY_NOT
from tests.support.mqtt_book import KEPT, all_kinds
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Peer

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
TAKES_ROOM = Call.WRITE | Call.ALLOCATE | Call.MKDIR


@pytest.fixture
def cluster(disks: Disks) -> Cluster:
    """So that the report of a failing test has its logs."""
    return disks.cluster


@pytest.mark.parametrize("roles", ["leader", "follower", "both", "all"])
def test_what_clients_are_told_is_true_when_disks_are_full(
    disks: Disks, cluster: Cluster, roles: str
) -> None:
    leader, followers = cluster.leader(), cluster.followers()
    full: dict[str, list[ClusterNode]] = {
        "leader": [leader], "follower": followers[:1], "both": [leader, followers[0]],
        "all": [leader, *followers],
    }  # fmt: skip
    more = all_kinds(cluster, f"full-{roles}")
    with Book(cluster, name=f"full-{roles}", producers=1, transactors=0, more=more) as book:
        book.progress()
        for each in full[roles]:
            disks.of[each].plan(Action.FAIL, TAKES_ROOM, error=errno.ENOSPC)
        for each in full[roles]:
            disks.of[each].wait_for_strikes(3)
        if roles == "follower":
            book.progress()
        disks.heal()
        cluster.whole()
        book.progress()
        book.check()


def test_follower_that_has_not_taken_what_was_acknowledged_does_not_lead(
    disks: Disks, cluster: Cluster
) -> None:
    """The leader ends while a follower's disk is full: the other one leads, alone at first."""
    leader = cluster.leader()
    full, other = cluster.followers()
    more = all_kinds(cluster, "succession")
    with Book(cluster, name="succession", producers=1, transactors=0, more=more) as book:
        book.progress()
        disks.of[full].plan(Action.FAIL, TAKES_ROOM, error=errno.ENOSPC)
        disks.of[full].wait_for_strikes(3)
        cluster.wait_in_sync([leader, other])
        book.progress()
        leader.kill()
        assert cluster.leader(other_than=leader) is other
        leader.start()
        book.progress()  # the one that was killed is a copy again
        assert full.id not in cluster.picture().in_sync
        disks.heal()
        cluster.whole()
        book.progress()
        book.check()


def test_client_is_refused_or_waits_for_room_and_is_served_then(
    disks: Disks, cluster: Cluster
) -> None:
    """What the leader says meanwhile: nothing that it cannot keep, and no silence where there is a
    word for it."""
    leader = cluster.leader()
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(leader.mqtt_port, V5)) for _ in range(4)]
        once, twice, member, _ = peers
        for number, each in enumerate(peers):
            each.connect(f"room-{number}", **KEPT)
        assert member.subscribe(("room/#", 1), ("$share/g/room/#", 1)) == [1, 1]
        disks.of[leader].plan(Action.FAIL, TAKES_ROOM, error=errno.ENOSPC)
        once.send(mqtt_bytes.publish(V5, "room/1", b"1", qos=1, packet_id=7))
        twice.send(mqtt_bytes.publish(V5, "room/2", b"2", qos=2, packet_id=7))
        disks.of[leader].wait_for_strikes(3)
        with Peer(leader.mqtt_port, V5) as new:
            assert new.connect("room-new", **KEPT)[1] == 0x88
        with Peer(leader.mqtt_port, V311) as new:
            assert new.connect("room-new", clean=False)[1] == 3
        assert once.has_silence()
        assert twice.has_silence()
        disks.heal()
        assert once.expect(4).body == b"\0\7"
        assert twice.expect(5).body == b"\0\7"
        found = Counter(member.message().payload for _ in range(4))
        assert found == {b"1": 2, b"2": 2}  # by each of the two subscriptions
