"""What stands ready is, once it is taken, what a start would read, after any history."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest

from lavinmq.cluster import standby
from lavinmq.vhost.delayed import DelayedExchanges
from tests.support.inside import Inside
from tests.support.mqtt_peer import Peer
from tests.support.standby import (
    KINDS,
    LATE,
    Leader,
    Node,
    Story,
    are_alike,
    channel,
    compared,
    have_all,
    is_same_as_a_start,
    leaves_the_same_files,
    ready,
    reconnect,
    taken,
)
from tests.unit.cluster.test_changes import until

SEEDS = int(os.environ.get("LAVINMQ_STANDBY_SEEDS", "6"))
FIRST_SEED = int(os.environ.get("LAVINMQ_FIRST_SEED", "1"))


def lived(leader: Leader, node: Node, seed: int) -> None:
    """Have the leader live any history, and the follower look at it and be cut off at times."""
    story = Story(leader, seed)
    chance = story.chance
    n_defining = chance.choice([20, 40, 60])
    with channel(leader.broker.port) as ch:
        for at in range(70):
            story.change(ch, defines=at < n_defining or chance.random() < 0.2)
            draw = chance.random()
            if draw < 0.3:
                node.look()
            elif draw < 0.33:
                reconnect(node)
    if chance.random() < 0.5:
        until(lambda: node.copy.follower.synced >= leader.feed.head)
        node.look()
        node.look()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_what_stands_ready_is_what_a_start_reads(
    leader: Leader, node: Node, tmp_path: Path, seed: int
) -> None:
    lived(leader, node, seed)
    is_same_as_a_start(leader, node, tmp_path)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_it_leaves_the_files_that_a_start_leaves(
    leader: Leader, node: Node, tmp_path: Path, seed: int
) -> None:
    lived(leader, node, -seed)
    leaves_the_same_files(leader, node, tmp_path)


def test_queues_that_rest_are_ready_whatever_they_hold(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    with channel(leader.broker.port) as ch:
        for number, arguments in enumerate(KINDS):
            name = f"q{number}"
            ch.queue_declare(name, durable=True, arguments=arguments)
            for at in range(5 * number):
                with suppress(pika.exceptions.NackError):
                    ch.basic_publish("", name, b"%d" % at + b"m" * 100 * number)
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        ch.basic_publish("late", "", b"later", pika.BasicProperties(headers={"x-delay": LATE}))
        for _ in range(4):
            ch.basic_ack(ch.basic_get("q2")[0].delivery_tag)
    leader.inside.call(leader.inside.vhost().operators.pause, "q3")
    have_all(leader, node)
    others = {f"q{n}" for n, kind in enumerate(KINDS)
              if "x-queue-type" in kind or "x-message-deduplication" in kind}  # fmt: skip
    assert ready(node) == {f"q{n}" for n in range(len(KINDS))} - others | {"amq.delayed-late"}
    is_same_as_a_start(leader, node, tmp_path)


def test_a_recent_history_is_kept_after_a_take_over(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    with channel(leader.broker.port) as ch:
        ch.exchange_declare("h", "x-recent-history", durable=True,
                            arguments={"x-recent-history-length": 50})  # fmt: skip
        ch.exchange_declare("alt", "fanout", durable=True)
        ch.exchange_declare("d", "direct", durable=True, arguments={"alternate-exchange": "alt"})
        ch.queue_declare("a", durable=True)
        ch.queue_bind("a", "h", "")
        ch.queue_bind("a", "alt", "")
    have_all(leader, node)
    assert ready(node) == {"a"}
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        assert node.server is not None
        with channel(node.server.port) as ch:
            for _ in range(200):
                ch.basic_publish("h", "", b"m" * 1000)
            ch.basic_publish("d", "x", b"by the alternate")
            ch.queue_declare("b", durable=True)
            ch.queue_bind("b", "h", "")
            until(lambda: ch.queue_declare("b", passive=True).method.message_count == 50)
            assert ch.queue_declare("a", passive=True).method.message_count == 201


def test_what_is_released_at_a_take_over_has_the_time_of_that(
    leader: Leader, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader dies while it releases what has waited in an exchange that is not delayed any more:
    who takes over goes on with that, by a clock that nobody has looked at since the load."""

    inside = leader.inside
    with channel(leader.broker.port) as ch:
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        ch.basic_publish("late", "", b"l", pika.BasicProperties(headers={"x-delay": LATE}))
        ch.exchange_declare("x", "fanout", durable=True)
        ch.queue_declare("short", durable=True, arguments={"x-message-ttl": 2000})
        ch.queue_bind("short", "x", "")
        inside.put_policy("d", "^x$", {"delayed-message": True}, apply_to="exchanges")
        until(lambda: inside.call(lambda: inside.exchange("x").waiting is not None))
        ch.basic_publish("x", "", b"m", pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": LATE}))  # fmt: skip
        monkeypatch.setattr(DelayedExchanges, "_release", lambda *_: None)  # it dies here
        inside.delete_policy("d")
        monkeypatch.undo()
        monkeypatch.setattr(standby, "LOOK_S", 0.0)
        monkeypatch.setattr(standby, "SHARE", 0)
        have_all(leader, node)
        time.sleep(2.5)
        fresh = taken(leader, node, tmp_path)
        with closing(SimpleNamespace(close=fresh.stop)):
            again = Inside(fresh)
            assert node.server is not None
            vhost = node.server.broker.vhosts["/"]
            time.sleep(0.5)
            wanted = again.call(lambda: again.queue("short").core.ready)
            found = node.call(lambda: vhost.queues["short"].core.ready)
            assert (found, wanted) == (1, 1)


def test_time_passes_for_messages_and_not_for_queues_that_nobody_could_use(
    leader: Leader, node: Node
) -> None:
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True, arguments={"x-message-ttl": 300})
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        ch.queue_declare("b", durable=True, arguments={"x-expires": 3_600_000})
        leader.inside.call(leader.inside.vhost().operators.pause, "a")
        have_all(leader, node)
    assert ready(node) == {"a", "b"}
    time.sleep(0.4)
    expiry = node.ready.vhosts["/"]._expiry
    for queue in expiry._used_s:
        expiry._used_s[queue] -= 7200
    expiry._heap[:] = [(due - 7200, n, queue) for due, n, queue in expiry._heap]
    for queue in expiry._due_s:
        expiry._due_s[queue] -= 7200
    leader.mark()
    node.copy.cut()
    node.call(node.start)
    assert node.server is not None
    vhost = node.server.broker.vhosts["/"]
    expiry._set_timer(time.monotonic())
    until(lambda: node.call(lambda: expiry._due_s[vhost.queues["b"]] > time.monotonic()))
    assert set(vhost.queues) == {"a", "b"}
    node.call(lambda: setattr(vhost.queues["a"].core, "is_paused", False))
    until(lambda: node.call(lambda: vhost.queues["a"].core.ready) == 0)


def mqtt_history(port: int) -> None:
    """Sessions with messages that wait, some of them sent once; a shared subscription; retained."""
    for client in ("s0", "s1", "s2"):
        with Peer(port) as peer:
            peer.connect(client, clean=False)
            peer.subscribe((f"t/{client}", 1), ("all/#", 2))
            if client != "s0":
                peer.subscribe(("$share/g/shared", 1), packet_id=2)
            peer.disconnect()
    with Peer(port) as peer:
        peer.connect("sender")
        for n in range(5):
            peer.publish("all/x", b"all %d" % n, 1 + n % 2)
            peer.publish("t/s1", b"s1 %d" % n, 1)
            peer.publish("shared", b"shared %d" % n, 1)
        peer.publish("all/kept", b"kept", 1, retain=True)
        peer.disconnect()
    with Peer(port) as peer:
        peer.connect("s1", clean=False)
        for n in range(4):
            peer.message(is_acked=n % 2 == 0)
        peer.socket.close()


def mqtt_rest(port: int) -> dict[str, list[Any]]:
    """What the sessions get."""
    found: dict[str, list[Any]] = {}
    for client in ("s0", "s1", "s2", "new"):
        with Peer(port, completes=True) as peer:
            answer = peer.connect(client, clean=False)
            rows: list[Any] = [answer]
            if client == "new":
                peer.subscribe(("all/#", 1))
            with suppress(TimeoutError):
                while True:
                    peer.socket.settimeout(0.4)
                    one = peer.message()
                    rows.append((one.topic, one.payload, one.qos, one.retain, one.dup))
            found[client] = rows
    return found


def test_sessions_of_mqtt_go_on(leader: Leader, node: Node, tmp_path: Path) -> None:
    mqtt_history(leader.inside.server.mqtt_port)
    have_all(leader, node)
    time.sleep(0.2)
    have_all(leader, node)
    assert ready(node) == set(leader.inside.vhost().queues)
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        assert node.server is not None
        found = mqtt_rest(node.server.mqtt_port)
        assert found == mqtt_rest(Inside(fresh).server.mqtt_port)


def routed(port: int) -> list[tuple[str, int]]:
    """What one gets of messages that are sent now, in the sessions of before, with all options."""
    with Peer(port) as sender:
        sender.connect("sender")
        for topic in ("a/b", "a/c", "x/b", "l/" * 200):
            sender.publish(topic, b"routed", 2)
        sender.disconnect()
    found = []
    for client in ("s0", "s1", "s2"):
        with Peer(port, completes=True) as peer:
            peer.connect(client, clean=False)
            with suppress(TimeoutError):
                while True:
                    peer.socket.settimeout(0.2)
                    one = peer.message()
                    found.append((one.topic, one.qos))
    return sorted(found)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_subscriptions_are_those_that_a_start_reads(
    leader: Leader, node: Node, tmp_path: Path, seed: int
) -> None:
    """They come and go while the node follows, and have other options."""
    chance = random.Random(seed)
    filters = ["a/#", "+/b", "a/b", "$share/g/a/b", "$share/g/#", "l/" * 200]
    for _ in range(25):
        with Peer(leader.inside.server.mqtt_port) as peer:
            peer.connect(chance.choice(["s0", "s1", "s2"]), clean=chance.random() < 0.1)
            for _ in range(chance.randrange(1, 4)):
                if chance.random() < 0.6:
                    peer.subscribe((chance.choice(filters), chance.randrange(3)))
                else:
                    peer.unsubscribe(chance.choice(filters))
            peer.disconnect()
        if chance.random() < 0.3:
            with Peer(leader.inside.server.mqtt_port) as peer:  # one that gets nothing of it
                peer.connect("sender")
                peer.publish("a/b", b"m", 1)
                peer.disconnect()
        if chance.random() < 0.5:
            node.look()
    with compared(leader, node, tmp_path) as fresh:
        assert node.server is not None
        both = node.server.mqtt_port, Inside(fresh).server.mqtt_port
        assert routed(both[0]) == routed(both[1])


def test_a_shared_subscription_that_nobody_had_for_a_moment_stays(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    have_all(leader, node)
    with Peer(leader.inside.server.mqtt_port) as peer:
        peer.connect("s1", clean=False)
        peer.subscribe(("$share/g/t", 1))
        peer.unsubscribe("$share/g/t")
        peer.subscribe(("$share/g/t", 1))
        peer.disconnect()
    with Peer(leader.inside.server.mqtt_port) as peer:
        peer.connect("sender")
        peer.publish("t", b"m", 1)
        peer.disconnect()
    have_all(leader, node)
    with compared(leader, node, tmp_path) as fresh:
        assert node.server is not None
        for port in (Inside(fresh).server.mqtt_port, node.server.mqtt_port):
            with Peer(port, completes=True) as peer:
                peer.connect("s2", clean=False)
                peer.subscribe(("x", 1))
                peer.unsubscribe("x")  # looks for what nobody has any more
                peer.disconnect()
        are_alike(node, fresh)
