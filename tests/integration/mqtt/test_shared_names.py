"""Shared subscriptions with long filters: nobody else has their queues, an update finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lavinmq.vhost import subscribing
from tests.support.inside import Inside, inside
from tests.support.mqtt_bytes import V5, block
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
LEVEL = "x" * 300
LONG, TOPIC = f"secret/{LEVEL}/#", f"secret/{LEVEL}/t"
DIGEST = hashlib.sha256(LONG.encode()).hexdigest()
LIKE = f"${DIGEST}"
"""A filter that is spelled as older releases named the queue of the long one."""
OLD, NEW = f"mqtt.$share/g/${DIGEST}", f"mqtt.$share/g/#/{DIGEST}"


def shared(broker: Inside) -> set[str]:
    """The queues of shared subscriptions."""
    names = broker.call(lambda: list(broker.vhost().queues))
    return {name for name in names if name.startswith("mqtt.$share/")}


def member(broker: Inside, name: str, text: str, **more: object) -> Peer:
    """A member of the group with a topic filter."""
    peer = Peer(broker.server.mqtt_port, V5)
    peer.connect(name, **more)
    assert peer.subscribe((f"$share/g/{text}", 1)) == [1]
    return peer


def publish(broker: Inside, topic: str, n: int) -> None:
    with Peer(broker.server.mqtt_port, V5) as sender:
        sender.connect("sender")
        for number in range(n):
            sender.publish(topic, b"%d" % number, 1)


@pytest.fixture
def as_of_old(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Names are those of older releases; call it to end that."""

    def name(group: str, text: str) -> str:
        plain = f"mqtt.$share/{group}/{text}"
        if len(plain) <= 255:
            return plain
        return f"mqtt.$share/{group}/${hashlib.sha256(text.encode()).hexdigest()}"

    monkeypatch.setattr(subscribing, "shared_name", name)
    return monkeypatch.undo


def test_a_filter_like_a_digest_has_a_queue_of_its_own() -> None:
    """Whoever may read the one does not get what is for the other."""
    with inside(mqtt_port=0) as broker:
        with member(broker, "one", LONG) as one, member(broker, "two", LIKE) as two:
            publish(broker, TOPIC, 6)
            publish(broker, LIKE, 1)
            assert [one.message().payload for _ in range(6)] == [b"%d" % n for n in range(6)]
            assert two.message().topic == LIKE
            assert two.has_silence()
            assert shared(broker) == {
                NEW, f"mqtt.$share/g/#/{hashlib.sha256(LIKE.encode()).hexdigest()}",
            }  # fmt: skip
        wait_for(lambda: not shared(broker), "the queues go with their last members")


def test_the_queue_of_a_long_filter_is_found_after_a_restart(tmp_path: Path) -> None:
    with inside(tmp_path, mqtt_port=0) as broker:
        member(broker, "one", LONG, **KEPT).socket.close()
        publish(broker, TOPIC, 1)

    with inside(tmp_path, mqtt_port=0) as broker, Peer(broker.server.mqtt_port, V5) as one:
        assert one.connect("one", **KEPT)[0] == 1
        assert one.message().payload == b"0"
        assert shared(broker) == {NEW}


def test_a_queue_with_an_older_name_goes_on_after_an_update(
    tmp_path: Path, as_of_old: Callable[[], None]
) -> None:
    """Its messages are there, others join it, and it goes with its last member."""
    with inside(tmp_path, mqtt_port=0) as broker:
        member(broker, "one", LONG, **KEPT).socket.close()
        publish(broker, TOPIC, 2)
        assert shared(broker) == {OLD}
    as_of_old()

    with (
        inside(tmp_path, mqtt_port=0) as broker,
        Peer(broker.server.mqtt_port, V5) as one,
        member(broker, "three", LIKE) as three,
    ):
        assert one.connect("one", **KEPT)[0] == 1
        assert [one.message().payload for _ in range(2)] == [b"0", b"1"]
        with member(broker, "two", LONG) as two:
            publish(broker, TOPIC, 2)
            assert {one.message().payload, two.message().payload} == {b"0", b"1"}
        assert three.has_silence()
        assert len(shared(broker)) == 2
        assert OLD in shared(broker)
        one.unsubscribe(f"$share/g/{LONG}")
        wait_for(lambda: OLD not in shared(broker), "it goes with its last member")
        assert one.subscribe((f"$share/g/{LONG}", 1)) == [1]
        assert NEW in shared(broker)


def test_an_update_parts_filters_that_had_the_same_queue(
    tmp_path: Path, as_of_old: Callable[[], None]
) -> None:
    """It is the long one's, with all that waits in it."""
    with inside(tmp_path, mqtt_port=0) as broker:
        member(broker, "one", LONG, **KEPT).socket.close()
        member(broker, "two", LIKE, **KEPT).socket.close()
        publish(broker, TOPIC, 4)
        assert shared(broker) == {OLD}
    as_of_old()

    with (
        inside(tmp_path, mqtt_port=0) as broker,
        Peer(broker.server.mqtt_port, V5) as one,
        Peer(broker.server.mqtt_port, V5) as two,
    ):
        assert two.connect("two", **KEPT)[0] == 1
        assert two.has_silence()
        assert one.connect("one", **KEPT)[0] == 1
        assert [one.message().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        publish(broker, LIKE, 1)
        assert two.message().topic == LIKE
        assert one.has_silence()
