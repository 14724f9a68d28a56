"""Fewer nodes are in sync than there have to be: publishers wait, or are told, as the operator
wants; and whoever looks learns of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.integration.cluster.conftest import ClusterFactory
from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.metrics import scrape, value
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = WAIT_S
QUEUE = "below"
QUOTA_EXCEEDED = 0x97
PUBLISHED = "/api/exchanges/%2F/amq.default/publish"
MESSAGE = {"routing_key": QUEUE, "payload": "m", "payload_encoding": "string", "properties": {}}
CHECK = "/api/health/checks/acknowledges"


@pytest.fixture
def nacking(cluster_factory: ClusterFactory) -> Iterator[Cluster]:
    """Two nodes, both of which have to have what is acknowledged."""
    cluster = cluster_factory(2, args=["--clustering-below-min-insync", "nack"])
    cluster.start()
    return cluster


def confirming(node: ClusterNode) -> Wire:
    wire = Wire.open(node.port)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return wire


def test_publishers_are_told_and_acknowledged_again(nacking: Cluster) -> None:
    leader = nacking.leader()
    api = Api(leader)
    with Wire.open(leader.port) as wire:
        wire.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
    with Peer(leader.mqtt_port, V311) as peer:
        peer.connect("subscriber", clean=False)
        peer.subscribe(("t", 1))
    assert api("GET", CHECK).json == {"status": "ok"}
    (follower,) = nacking.followers()
    with confirming(leader) as early, Wire.open(leader.port) as late:
        late.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        follower.kill()
        early.publish(1, "", QUEUE, b"waits first")
        assert early.expect(commands.Basic.Nack).delivery_tag == 1

        early.publish(1, "", QUEUE, b"is told at once")
        assert early.expect(commands.Basic.Nack).delivery_tag == 2
        early.publish(1, "", "nowhere", b"is nowhere, and so not lost")
        assert early.expect(commands.Basic.Ack).delivery_tag == 3
        late.publish(1, "", QUEUE, b"of a transaction")
        late.send(1, commands.Tx.Commit())
        assert "too few nodes" in late.expect_channel_close(1, 406).reply_text
        answer = api("POST", PUBLISHED, MESSAGE)
        assert (answer.status, "too few nodes" in answer.json["reason"]) == (503, True)
        _mqtt_is_told(leader)

        failed = api("GET", CHECK)
        assert (failed.status, failed.json["refuses"]) == (503, True)
        assert scrape(leader, "/ready").status == 503
        assert value(scrape(leader, "/metrics"), "cluster_publishes_refused") == 1

        follower.start()
        nacking.whole()
        wait_for(lambda: api("GET", CHECK).status == 200, "it stays so", WAIT_S)
        early.publish(1, "", QUEUE, b"is acknowledged")
        assert early.expect(commands.Basic.Ack).delivery_tag == 4
        assert api("POST", PUBLISHED, MESSAGE).status == 200
    assert value(scrape(leader, "/metrics"), "cluster_publishes_refused") == 0
    assert "publishers are not refused any more" in leader.log_text()
    found = api.get("/api/queues/%2F/below")["messages"]
    assert found == 6, "a nack says that it is not known to be safe: they were kept"


def _mqtt_is_told(leader: ClusterNode) -> None:
    with Peer(leader.mqtt_port, V5) as peer:
        peer.connect("five")
        peer.send(mqtt_bytes.publish(V5, "t", b"m", qos=1, packet_id=7))
        assert peer.expect(4).body[:3] == bytes([0, 7, QUOTA_EXCEEDED])
        peer.send(mqtt_bytes.publish(V5, "t", b"m", qos=2, packet_id=8))
        assert peer.expect(5).body[:3] == bytes([0, 8, QUOTA_EXCEEDED])
    with Peer(leader.mqtt_port, V311) as peer:
        peer.connect("three")
        peer.send(mqtt_bytes.publish(V311, "t", b"m", qos=1, packet_id=7))
        assert peer.read() is None, "it has no word for that, and is to publish again"


def test_publishers_wait_unless_the_operator_says_otherwise(
    cluster_factory: ClusterFactory,
) -> None:
    cluster = cluster_factory(2)
    leader = cluster.start()
    (follower,) = cluster.followers()
    with confirming(leader) as wire:
        wire.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
        with Peer(leader.mqtt_port, V311) as peer:
            peer.connect("stored", clean=False)
        follower.kill()
        wire.publish(1, "", QUEUE, b"waits")
        assert not wire.receive_all(2)
        failed = Api(leader)("GET", CHECK)
        assert (failed.status, failed.json["refuses"]) == (503, False)
        with Peer(leader.mqtt_port, V311) as new, Peer(leader.mqtt_port, V311) as peer:
            new.connect("new")
            peer.send(mqtt_bytes.connect(V311, "stored"))
            assert peer.has_silence(1), "its session may come again yet"
            follower.start()
            assert wire.expect(commands.Basic.Ack).delivery_tag == 1
            assert peer.read() is not None
