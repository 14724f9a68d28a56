"""QoS 2 of a shared subscription when the broker is killed: what a member was sent is its own.

MQTT 5.0, section 4.8.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lavinmq.files.directories import hashed
from tests.integration.mqtt.conftest import NewBroker
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311, block, packet, text
from tests.support.mqtt_peer import Message, Peer
from tests.support.waiting import wait_for

KEPT = {"clean": False, "properties": block(b"\x11\0\0\x0e\x10")}
SHARED = "$share/g/t/#"
PUBREC, PUBREL, PUBCOMP = 5, 6, 7
SILENCE_S = 0.3


def member(broker: Broker, name: str, level: int = V5, **more: Any) -> Peer:
    """A client whose session is kept, as it comes or comes back."""
    peer = Peer(broker.mqtt_port, level)
    peer.connect(name, **KEPT | more)
    return peer


def join(broker: Broker, name: str, level: int = V5, **more: Any) -> Peer:
    """The same, which becomes a member of the group."""
    peer = member(broker, name, level)
    assert peer.subscribe((SHARED, 2), **more) == [2]
    return peer


def leave(broker: Broker, name: str, level: int = V5) -> None:
    """Become a member, and go."""
    with join(broker, name, level) as peer:
        peer.disconnect(b"\0" if level == V5 else b"")


def publish(broker: Broker, *bodies: bytes, qos: int = 2, **more: Any) -> None:
    with Peer(broker.mqtt_port, V5) as sender:
        sender.connect("sender")
        for body in bodies:
            sender.publish("t/x", body, qos, **more)


def kill(broker: Broker, *peers: Peer) -> None:
    """Kill the broker while these are there, and start it."""
    broker.kill()
    for each in peers:
        each.socket.close()
    broker.start()


def cut_off(broker: Broker) -> Message:
    """Kill the broker while "one" is being sent the message. Another member, "two", is away."""
    with join(broker, "one") as one:
        publish(broker, b"1")
        first = one.message(is_acked=False)
        leave(broker, "two")
        broker.kill()
    return first


def again(first: Message) -> Message:
    """As it comes the second time."""
    return first._replace(dup=True)


@pytest.mark.parametrize("level", [V311, V5])
def test_a_message_of_qos_2_is_its_members_after_a_kill(own: NewBroker, level: int) -> None:
    """5.0 [MQTT-4.8.2-4]: another member got it, and the first one PUBREL for what it had."""
    broker = own()
    one = join(broker, "one", level)
    publish(broker, b"1")
    first = one.message(is_acked=False)
    leave(broker, "two", level)
    kill(broker, one)
    for _ in range(2):
        with member(broker, "two", level) as two:
            assert two.has_silence(SILENCE_S)
        one = member(broker, "one", level)
        assert one.message(is_acked=False) == again(first)
        assert one.has_silence(SILENCE_S)
        kill(broker, one)  # once more, now that its session has it
    with member(broker, "one", level) as one:
        assert one.message() == again(first)
        one.ping()
    kill(broker)
    for name in ("one", "two"):
        with Peer(broker.mqtt_port, level, completes=True) as peer:
            peer.connect(name, **KEPT)
            peer.ping()  # PUBREL may come again: that it was answered is written later
            assert peer.has_silence(SILENCE_S)
            assert not peer.early_messages()


def test_what_a_member_was_sent_comes_again_as_it_was(own: NewBroker) -> None:
    """Properties, the identifier of the subscription, RETAIN of one that keeps it."""
    broker = own()
    with member(broker, "one") as one:
        assert one.subscribe((SHARED, 2 | 8), properties=block(b"\x0b\x07")) == [2]
        properties = block(b"\x03" + text("kind"), b"\x26" + text("a") + text("b"))
        publish(broker, b"1", properties=properties)
        first = one.message(is_acked=False)
        kill(broker, one)
    with member(broker, "one") as one:
        assert one.message() == again(first)


def test_what_a_member_has_received_is_not_sent_again(own: NewBroker) -> None:
    """5.0 [MQTT-4.8.2-4]: one that has said PUBREC, and one that has heard PUBREL as well."""
    broker = own()
    one = join(broker, "one")
    publish(broker, b"1", b"2", b"3")
    found = [one.message(is_acked=False) for _ in range(3)]
    ids = [each.packet_id.to_bytes(2, "big") for each in found]
    one.send(packet(PUBREC, ids[0]))
    assert one.expect(PUBREL).body[:2] == ids[0]
    one.send(packet(PUBREC, ids[1]))
    assert one.expect(PUBREL).body[:2] == ids[1]
    one.send(packet(PUBCOMP, ids[1]))
    one.ping()
    leave(broker, "two")
    kill(broker, one)
    with member(broker, "two") as two:
        assert two.has_silence(SILENCE_S)
    with member(broker, "one") as one:
        released = {one.expect(PUBREL).body[:2]}
        one.send(packet(PUBCOMP, ids[0]))
        assert ids[0] in released
        assert one.message() == again(found[2])


def test_a_message_for_a_session_that_ends_goes_to_nobody_else_after_a_kill(
    own: NewBroker,
) -> None:
    """5.0 [MQTT-4.8.2-5]: its client comes back with a clean start."""
    broker = own()
    one = join(broker, "one")
    publish(broker, b"1")
    one.message(is_acked=False)
    leave(broker, "two")
    kill(broker, one)
    with Peer(broker.mqtt_port, V5) as one:
        assert one.connect("one")[0] == 0
        with member(broker, "two") as two:
            assert one.has_silence(SILENCE_S)
            assert two.has_silence(SILENCE_S)


def test_a_message_for_a_session_that_ends_by_the_kill_goes_to_nobody_else(own: NewBroker) -> None:
    """5.0 [MQTT-4.8.2-5]: the session was kept, and resumed without an expiry interval."""
    broker = own()
    leave(broker, "one")
    one = member(broker, "one", properties=block())
    publish(broker, b"1")
    one.message(is_acked=False)
    leave(broker, "two")

    kill(broker, one)

    with member(broker, "two") as two:
        assert two.has_silence(SILENCE_S)
        publish(broker, b"2")
        assert two.message().payload == b"2"
    with Peer(broker.mqtt_port, V5) as one:
        assert one.connect("one", **KEPT)[0] == 0


def test_a_message_that_a_start_cannot_read_is_its_members_when_a_later_one_can(
    own: NewBroker,
) -> None:
    """5.0 [MQTT-4.8.2-4]: the queue of the group is closed meanwhile. Another member got it then,
    and the first one PUBREL."""
    broker = own()
    first = cut_off(broker)
    (segment,) = Path(broker.data_dir).glob(f"*/{hashed(f'mqtt.{SHARED}')}/msgs.*")
    aside = segment.rename(segment.with_name("aside"))
    segment.mkdir()
    broker.start()
    with member(broker, "one") as one:
        assert one.has_silence(SILENCE_S)
    broker.kill()
    segment.rmdir()
    aside.rename(segment)

    broker.start()

    with member(broker, "two") as two, member(broker, "one") as one:
        assert one.message() == again(first)
        assert two.has_silence(SILENCE_S)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_message_whose_session_a_start_cannot_read_waits_for_it(
    own: NewBroker, is_moved: bool
) -> None:
    """5.0 [MQTT-4.8.2-4]: it stands in the queue of the group, or an earlier start has moved it.
    Another member got it, and the first one PUBREL."""
    broker = own()
    first = cut_off(broker)
    if is_moved:
        broker.start()
        with member(broker, "one") as one:
            assert one.message(is_acked=False) == again(first)
        broker.kill()
    (queue,) = Path(broker.data_dir).glob(f"*/{hashed('mqtt.one')}")
    segment, aside = queue / "msgs.0000000001", queue / "aside"
    if is_moved:
        segment.rename(aside)
    segment.mkdir()

    broker.start()

    with member(broker, "two") as two, member(broker, "one") as one:
        publish(broker, b"2", b"3", qos=1)
        assert {two.message().payload, one.message().payload} == {b"2", b"3"}
        assert one.has_silence(SILENCE_S)
        assert two.has_silence(SILENCE_S)
    broker.kill()
    segment.rmdir()
    if is_moved:
        aside.rename(segment)
    broker.start()
    with member(broker, "two") as two, member(broker, "one") as one:
        assert one.message() == again(first)
        assert two.has_silence(SILENCE_S)


def test_messages_of_qos_1_and_those_that_nobody_was_sent_go_to_another_member_after_a_kill(
    own: NewBroker,
) -> None:
    """What is of QoS 1, and what waits behind the receive maximum of a member."""
    broker = own()
    one = member(broker, "one", properties=block(b"\x11\0\0\x0e\x10", b"\x21\0\2"))
    assert one.subscribe((SHARED, 2)) == [2]
    publish(broker, b"1", qos=1)
    publish(broker, b"2", b"3", b"4")
    found = [one.message(is_acked=False) for _ in range(2)]
    assert [each.payload for each in found] == [b"1", b"2"]
    assert one.has_silence(SILENCE_S)
    leave(broker, "two")
    kill(broker, one)
    with member(broker, "two") as two:
        assert [two.message().payload for _ in range(3)] == [b"1", b"3", b"4"]
        with member(broker, "one") as one:
            assert one.message() == again(found[1])
            assert one.has_silence(SILENCE_S)
        assert two.has_silence(SILENCE_S)


def test_a_member_that_does_not_acknowledge_leaves_the_rest_to_the_others(own: NewBroker) -> None:
    """5.0 [MQTT-4.9.0-2]: it gets one, and the next one when it acknowledges that."""
    broker = own()
    slow = member(broker, "slow", properties=block(b"\x11\0\0\x0e\x10", b"\x21\0\1"))
    assert slow.subscribe((SHARED, 2)) == [2]
    publish(broker, b"0")
    first = slow.message(is_acked=False)
    with join(broker, "fast") as fast:
        publish(broker, *(b"%d" % n for n in range(1, 200)))
        found = [fast.message().payload for _ in range(199)]
        assert found == [b"%d" % n for n in range(1, 200)]
        assert slow.has_silence(SILENCE_S)
        fast.disconnect(b"\0")
    publish(broker, b"more")
    raw_id = first.packet_id.to_bytes(2, "big")
    slow.send(packet(PUBREC, raw_id))
    slow.expect(PUBREL)
    assert slow.has_silence(SILENCE_S)
    slow.send(packet(PUBCOMP, raw_id))
    assert slow.message().payload == b"more"
    slow.socket.close()


def test_another_message_at_the_place_of_one_is_not_taken_for_it(own: NewBroker) -> None:
    """The queue of the group goes with its last member, and a new one begins where it began."""
    broker = own()
    one = join(broker, "one")
    publish(broker, b"1")
    first = one.message(is_acked=False)
    assert one.unsubscribe(SHARED) == [0]
    api = Api(broker)
    wait_for(lambda: not any(SHARED in each["name"] for each in api.get("/api/queues")), "stays")
    leave(broker, "two")
    publish(broker, b"2")
    kill(broker, one)
    with member(broker, "one") as one:
        assert one.expect(PUBREL).body[:2] == first.packet_id.to_bytes(2, "big")
        assert one.has_silence(SILENCE_S)
    with member(broker, "two") as two:
        assert two.message().payload == b"2"


def test_a_member_that_has_come_back_before_the_kill_is_sent_it_once_more(own: NewBroker) -> None:
    """It is in the queue of the session by then, and in no other one."""
    broker = own()
    with join(broker, "one") as one:
        publish(broker, b"1")
        first = one.message(is_acked=False)
    leave(broker, "two")
    one = member(broker, "one")
    assert one.message(is_acked=False) == again(first)
    kill(broker, one)
    with member(broker, "two") as two:
        assert two.has_silence(SILENCE_S)
    with member(broker, "one") as one:
        assert one.message() == again(first)
        assert one.has_silence(SILENCE_S)
