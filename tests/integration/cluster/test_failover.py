"""A node of a cluster ends, in each way there is, while messages are published: nothing that was
acknowledged is lost, and another node leads.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from typing import Any

from pamqp import commands
from pamqp.common import FieldTable

from tests.support.api import Api
from tests.support.book import Book, drain
from tests.support.cluster import LOST, WAIT_S, Cluster, ClusterNode
from tests.support.follower import differences
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for
from tests.support.wire import Wire

DEADLINE_S = WAIT_S
ClusterFactory = Callable[..., Cluster]


def all_alike(cluster: Cluster) -> None:
    """Stop all nodes in order, the leader last, and assert that their files are the same."""
    leader = cluster.whole()
    others = [each for each in cluster.nodes if each is not leader]
    found: dict[str, list[str]] = {}

    def are_alike() -> bool:
        for each in others:
            found[repr(each)] = differences_of(leader, each)
        return not any(found.values())

    wait_for(are_alike, "files differ", DEADLINE_S)


def differences_of(one: ClusterNode, other: ClusterNode) -> list[str]:
    """What two nodes have otherwise, but for what is of each alone."""
    try:
        found = differences(one.data_dir, other.data_dir)
    except FileNotFoundError as error:
        return [f"changes still: {error}"]
    return [line for line in found if not line.startswith(".")]


def test_killed_leader_loses_nothing(cluster: Cluster) -> None:
    with Book(cluster, name="killed-leader", seed=1) as book:
        book.progress()
        leader = cluster.leader()
        leader.kill()
        cluster.leader(other_than=leader)
        book.progress()
        cluster.start()
        book.progress()
        book.check()
    all_alike(cluster)


def test_killed_follower_loses_nothing(cluster: Cluster) -> None:
    with Book(cluster, name="killed-follower", seed=2) as book:
        book.progress()
        follower = cluster.followers()[0]
        follower.kill()
        cluster.wait_in_sync(each for each in cluster.nodes if each is not follower)
        book.progress()
        cluster.start()
        book.progress()
        book.check()
    all_alike(cluster)


def test_leader_that_stops_hands_over_at_once_and_ends_with_0(cluster: Cluster) -> None:
    with Book(cluster, name="stopped-leader", seed=3) as book:
        book.progress()
        leader = cluster.leader()
        assert leader.stop() == 0
        cluster.leader(other_than=leader)
        book.progress()
        cluster.start()
        book.check()


def test_stopped_follower_goes_on_where_it_was(cluster: Cluster) -> None:
    with Book(cluster, name="stopped-follower", seed=4) as book:
        book.progress()
        follower = cluster.followers()[0]
        assert follower.stop() == 0
        joined = follower.log_text().count("has the files of")
        book.progress(5)
        cluster.start()
        book.progress()
        book.check()
    assert follower.log_text().count("has the files of") == joined
    all_alike(cluster)


def test_leader_that_was_frozen_acknowledges_nothing_and_ends_with_3(cluster: Cluster) -> None:
    leader = cluster.leader()
    codes = len(leader.exit_codes)
    with Book(cluster, name="frozen-leader", seed=5) as book, Wire.open(leader.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        book.progress()
        leader.pause()
        wire.publish(1, "", book.queue, b"frozen:1:1:.")
        cluster.leader(other_than=leader)
        book.progress()
        leader.resume()
        acks = [unit for unit in wire.receive_all(1) if isinstance(unit.method, commands.Basic.Ack)]
        assert not acks
        wait_for(lambda: len(leader.exit_codes) > codes, "it goes on", DEADLINE_S)
        assert leader.exit_codes[codes] == LOST
        cluster.whole()
        book.check()


def test_killed_cluster_has_all_when_it_is_back(cluster: Cluster) -> None:
    with Book(cluster, name="all-killed", seed=6) as book:
        book.progress()
        for each in cluster.nodes:
            each.kill()
        cluster.start()
        book.progress()
        book.check()
    all_alike(cluster)


def test_etcd_that_ends_and_is_back_loses_nothing(cluster: Cluster) -> None:
    """All nodes may end meanwhile, with 3 or 5, and are started again."""
    with Book(cluster, name="etcd", seed=7) as book:
        book.progress()
        member = cluster.etcd.members[0]
        member.kill()
        wait_for(lambda: cluster.leading() is None, "somebody leads without etcd", DEADLINE_S)
        cluster.etcd.restart(member)
        cluster.start()
        book.progress()
        book.check()


def test_nothing_is_confirmed_while_one_of_three_lives(cluster: Cluster) -> None:
    leader = cluster.leader()
    others = cluster.followers()
    with Wire.open(leader.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="alone", durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for each in others:
            each.kill()
        wire.publish(1, "", "alone", b"1", commands.Basic.Properties(delivery_mode=2))
        assert not wire.receive_all(2)
        others[0].start()
        wire.expect_unit(commands.Basic.Ack, timeout_s=DEADLINE_S)
    assert drain(cluster, "alone") == [b"1"]


def test_no_answer_of_any_kind_comes_while_one_of_three_lives(cluster: Cluster) -> None:
    """Of commits, declarations, QoS 1 and 2, and of the API: all of them wait for a second copy."""
    leader, others = cluster.leader(), cluster.followers()
    persistent = commands.Basic.Properties(delivery_mode=2)
    put: list[int] = []
    with Peer(leader.mqtt_port) as peer:  # away, so what is published is kept for it
        peer.connect("any-kind", clean=False)
        peer.subscribe(("any/#", 2))
    with (
        Wire.open(leader.port) as commits, Wire.open(leader.port) as declares,
        Peer(leader.mqtt_port) as once, Peer(leader.mqtt_port) as exactly,
    ):  # fmt: skip
        declare = commands.Queue.Declare(queue="any-kind", durable=True)
        commits.call(1, declare, commands.Queue.DeclareOk)
        commits.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        for number, peer in enumerate((once, exactly)):
            peer.connect(f"any-kind-{number}")
        for each in others:
            each.kill()

        commits.publish(1, "", "any-kind", b"1", persistent)
        commits.send(1, commands.Tx.Commit())
        declares.send(1, commands.Queue.Declare(queue="any-other", durable=True))
        once.send(bytes([0x32, 9, 0, 5]) + b"any/q" + bytes([0, 7]))
        exactly.send(bytes([0x34, 9, 0, 5]) + b"any/q" + bytes([0, 8]))
        request = threading.Thread(
            target=lambda: put.append(Api(leader)("PUT", "/api/vhosts/any-kind", {}).status)
        )
        request.start()

        assert not commits.receive_all(1)
        assert not declares.receive_all(0.1)
        for peer in (once, exactly):
            assert peer.has_silence()
        assert not put
        others[0].start()
        commits.expect_unit(commands.Tx.CommitOk, timeout_s=DEADLINE_S)
        declares.expect_unit(commands.Queue.DeclareOk, timeout_s=DEADLINE_S)
        once.expect(4)
        exactly.expect(5)
        request.join(DEADLINE_S)
        assert put == [201]
    Api(leader)("DELETE", "/api/vhosts/any-kind")
    cluster.start()


def api(node: ClusterNode, method: str, path: str, body: Any = None) -> Any:
    """A request that has to go well."""
    answer = Api(node)(method, path, body)
    assert answer.status < 300, (method, path, answer)
    return json.loads(answer.content) if answer.content else None


def test_what_was_declared_and_deleted_survives(cluster: Cluster) -> None:
    leader = cluster.leader()
    with Wire.open(leader.port) as wire:
        for name in ("kept", "gone", "unbound"):
            queue = commands.Queue.Declare(queue=f"s-{name}", durable=True)
            wire.call(1, queue, commands.Queue.DeclareOk)
            exchange = commands.Exchange.Declare(exchange=f"x-{name}", durable=True)
            wire.call(1, exchange, commands.Exchange.DeclareOk)
            bind = commands.Queue.Bind(queue=f"s-{name}", exchange=f"x-{name}", routing_key="k")
            wire.call(1, bind, commands.Queue.BindOk)
        unbind = commands.Queue.Unbind(queue="s-unbound", exchange="x-unbound", routing_key="k")
        wire.call(1, unbind, commands.Queue.UnbindOk)
        wire.call(1, commands.Queue.Delete(queue="s-gone"), commands.Queue.DeleteOk)
        wire.call(1, commands.Exchange.Delete(exchange="x-gone"), commands.Exchange.DeleteOk)
    for vhost in ("kept", "gone"):
        api(leader, "PUT", f"/api/vhosts/v-{vhost}")
        api(leader, "PUT", f"/api/users/u-{vhost}", {"password": "p", "tags": "management"})
        api(leader, "PUT", f"/api/permissions/v-{vhost}/u-{vhost}",
            {"configure": ".*", "write": ".*", "read": ".*"})  # fmt: skip
        api(leader, "PUT", f"/api/policies/%2F/p-{vhost}",
            {"pattern": "^none$", "definition": {"max-length": 5}})  # fmt: skip
        api(leader, "PUT", f"/api/parameters/shovel/%2F/shovel-{vhost}", {"value": {
            "src-uri": "amqp://", "src-queue": "s-kept", "dest-uri": "amqp://",
            "dest-queue": "s-unbound",
        }})  # fmt: skip
    for path in ("parameters/shovel/%2F/shovel-gone", "policies/%2F/p-gone", "users/u-gone",
                 "vhosts/v-gone"):  # fmt: skip
        api(leader, "DELETE", f"/api/{path}")
    api(leader, "POST", "/api/definitions", {"users": [], "vhosts": [], "queues": [
        {"name": "s-imported", "vhost": "/", "durable": True, "auto_delete": False,
         "arguments": {}},
    ], "exchanges": [], "bindings": []})  # fmt: skip

    leader.kill()
    new = cluster.leader(other_than=leader)

    names = {each["name"] for each in api(new, "GET", "/api/queues/%2F")}
    assert {"s-kept", "s-unbound", "s-imported"} <= names
    assert "s-gone" not in names
    exchanges = {each["name"] for each in api(new, "GET", "/api/exchanges/%2F")}
    assert {"x-kept", "x-unbound"} <= exchanges
    assert "x-gone" not in exchanges
    bindings = {(each["source"], each["destination"]) for each in api(new, "GET", "/api/bindings")}
    assert ("x-kept", "s-kept") in bindings
    assert ("x-unbound", "s-unbound") not in bindings
    for path, field in (("vhosts", "v"), ("users", "u"), ("policies", "p"),
                        ("parameters", "shovel")):  # fmt: skip
        found = {each["name"] for each in api(new, "GET", f"/api/{path}")}
        assert f"{field}-kept" in found, path
        assert f"{field}-gone" not in found, path
    assert ("v-kept", "u-kept") in {
        (each["vhost"], each["user"]) for each in api(new, "GET", "/api/permissions")
    }
    api(new, "DELETE", "/api/parameters/shovel/%2F/shovel-kept")


def test_sessions_and_retained_messages_of_mqtt_survive(cluster: Cluster) -> None:
    leader = cluster.leader()
    with Peer(leader.mqtt_port) as peer:
        peer.connect("kept", clean=False)
        peer.subscribe(("a/#", 1))
    with Peer(leader.mqtt_port) as peer:
        peer.connect("publisher")
        peer.publish("a/b", b"waits", qos=1)
        peer.publish("r/kept", b"retained", qos=1, retain=True)
        peer.publish("r/gone", b"retained", qos=1, retain=True)
        peer.publish("r/gone", b"", qos=1, retain=True)

    leader.kill()
    new = cluster.leader(other_than=leader)

    with Peer(new.mqtt_port) as peer:
        peer.connect("kept", clean=False)
        assert peer.message().payload == b"waits"
    with Peer(new.mqtt_port) as peer:
        peer.connect("reader")
        peer.subscribe(("r/#", 1))
        message = peer.message()
        assert (message.topic, message.payload) == ("r/kept", b"retained")
        assert peer.has_silence()


def test_offsets_of_streams_survive(cluster: Cluster) -> None:
    """Of a consumer with a tag that the broker keeps the offset of."""
    leader = cluster.leader()
    stream: FieldTable = {"x-queue-type": "stream"}

    def consume(wire: Wire) -> None:
        wire.call(1, commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
        wire.call(
            1, commands.Basic.Consume(queue="offsets", consumer_tag="reader"),
            commands.Basic.ConsumeOk,
        )  # fmt: skip

    with Wire.open(leader.port) as wire:
        declare = commands.Queue.Declare(queue="offsets", durable=True, arguments=stream)
        wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(5):
            wire.publish(1, "", "offsets", b"%d" % number)
        tag = 0
        while tag < 5:
            tag = wire.expect(commands.Basic.Ack).delivery_tag
        arguments: FieldTable = {"x-stream-offset": "first"}
        wire.call(1, commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
        wire.call(
            1, commands.Basic.Consume(queue="offsets", consumer_tag="reader", arguments=arguments),
            commands.Basic.ConsumeOk,
        )  # fmt: skip
        for _ in range(5):
            wire.expect_unit(commands.Basic.Deliver)
    with Wire.open(leader.port) as wire:
        consume(wire)
        first = wire.expect_unit(commands.Basic.Deliver)
        assert first.body == b"0"
        for number in range(1, 5):
            unit = wire.expect_unit(commands.Basic.Deliver)
            assert unit.body == b"%d" % number
        wire.send(1, commands.Basic.Ack(delivery_tag=3, multiple=True))
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", "offsets", b"5")  # what is confirmed tells that the ack has come
        while not isinstance(wire.receive().method, commands.Basic.Ack):
            pass

    leader.kill()
    new = cluster.leader(other_than=leader)

    with Wire.open(new.port) as wire:
        consume(wire)
        assert wire.expect_unit(commands.Basic.Deliver).body == b"3"


def test_signals_in_a_row_end_in_one_leader(cluster: Cluster) -> None:
    """Leaders are killed and stopped as soon as they lead."""
    with Book(cluster, name="in-a-row", seed=8, transactors=0) as book:
        book.progress()
        for number in range(6):
            leader = cluster.leader()
            if number % 2:
                leader.stop()
            else:
                leader.signal(signal.SIGKILL)
                leader.kill()
            cluster.leader(other_than=leader)
            leader.start()
            cluster.whole()
        book.progress()
        book.check()
    all_alike(cluster)


def test_purge_is_answered_when_followers_have_it(cluster: Cluster) -> None:
    leader = cluster.leader()
    followers = cluster.followers()
    api = Api(leader)
    with Wire.open(leader.port) as wire:
        wire.call(1, commands.Queue.Declare(queue="purged", durable=True), commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", "purged", b"x", commands.Basic.Properties(delivery_mode=2))
        wire.expect(commands.Basic.Ack)
        for each in followers:
            each.kill()
        wire.send(1, commands.Queue.Purge(queue="purged"))
        assert wire.receive_all(1) == [], "it is answered, and no follower has it"
        assert api.get("/api/queues/%2F/purged")["messages"] == 0
        for each in followers:
            each.start()
        answer = wire.expect(commands.Queue.PurgeOk)
        assert answer.message_count == 1
    leader.kill()
    other = cluster.leader(other_than=leader)
    assert Api(other).get("/api/queues/%2F/purged")["messages"] == 0
    leader.start()
