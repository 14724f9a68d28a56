"""What the standards demand of a broker, statement by statement, where no other test shows it."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tornado.websocket import websocket_connect

from tests.integration.mqtt.conftest import NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import (
    V5,
    V31,
    V311,
    block,
    connect,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)
from tests.support.mqtt_peer import Packet, Peer

VERSIONS = (V31, V311, V5)
KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 9, 11, 13, 14


def new(word: str = "t") -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


def until_closed(client: Peer) -> list[Packet]:
    """All that comes."""
    found = []
    while (each := client.read()) is not None:
        found.append(each)
    return found


def everything(client: Peer, topic: str) -> dict[int, list[Packet]]:
    """A conversation that has every packet of the broker, by type. It ends with an error."""
    level = client.level
    client.send(
        subscribe(level, 1, (topic, 2), ("a/b", 0)) + unsubscribe(level, 2, "a/b", "never/was")
        + publish(level, topic, b"1", qos=1, packet_id=3)
        + publish(level, topic, b"2", qos=2, packet_id=4)
    )  # fmt: skip
    found: dict[int, list[Packet]] = {}
    while not (len(found.get(3, [])) == 2 and {PUBACK, PUBREC, SUBACK, UNSUBACK} <= found.keys()):
        each = client.read()
        assert each is not None
        found.setdefault(each.kind, []).append(each)
    n = 2 + len(topic)
    ids = [each.body[n : n + 2] for each in found[3]]
    client.send(packet(4, ids[0]) + packet(5, ids[1]) + packet(6, b"\0\4", 2) + b"\xc0\0")
    client.send(packet(6, b"\0\x63", 2) + packet(5, b"\0\x63"))
    while not (
        {PUBREL, PUBCOMP, PINGRESP} <= found.keys()
        and len(found[PUBREL]) == len(found[PUBCOMP]) == 2
    ):
        each = client.read()
        assert each is not None
        found.setdefault(each.kind, []).append(each)
    client.send(b"\x36\5\0\1t\0\1")
    for each in until_closed(client):
        found.setdefault(each.kind, []).append(each)
    return found


@pytest.mark.parametrize("level", VERSIONS)
def test_reserved_flags_are_those_of_the_table(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-2.2.2-1], 5.0 [MQTT-2.1.3-1]: those of what the broker says."""
    client = peer(level)
    client.connect(new("c"))
    for kind, found in everything(client, new()).items():
        if kind != 3:
            assert {each.flags for each in found} == {2 if kind == PUBREL else 0}


def test_nothing_is_explained_to_who_does_not_want_it(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.2-28], [MQTT-3.1.2-29], [MQTT-3.2.0-2], [MQTT-3.4.2-2], [MQTT-3.4.2-3],
    [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-2],
    [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2]: answers have
    neither texts nor user properties, whatever a client wants; one CONNACK, without response
    information."""
    for properties in (block(b"\x17\0"), block()):
        client = peer(V5)
        told = client.connect(new("c"), properties=properties)
        assert b"\x1a" not in told[2:]
        found = everything(client, new())
        assert CONNACK not in found
        assert {len(each.body) for kind in (PUBACK, PUBREC) for each in found[kind]} == {2}
        assert {len(each.body) for kind in (PUBREL, PUBCOMP) for each in found[kind]} <= {2, 3}
        assert {each.body[2] for kind in (SUBACK, UNSUBACK) for each in found[kind]} == {0}


@pytest.mark.parametrize("size", [16, 20, 4096])
def test_texts_are_left_out_where_there_is_no_room(peer: NewPeer, size: int) -> None:
    """5.0 [MQTT-3.1.2-24], [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.14.2-2], [MQTT-3.14.2-3],
    [MQTT-3.14.2-4]: of CONNACK and of DISCONNECT, which has no session expiry."""
    least = block(b"\x27" + size.to_bytes(4, "big"))
    client = peer(V5)
    client.send(connect(V5, new("c"), properties=block(least[1:], b"\x15" + text("none"))))
    refused = client.expect(CONNACK).body
    assert (refused[:2], b"\x1f" in refused) == (b"\0\x8c", size == 4096)
    assert len(refused) + 2 <= size
    assert client.read() is None
    client = peer(V5)
    client.connect(new("c"), properties=least)
    client.send(subscribe(V5, 1))
    said = client.expect(DISCONNECT).body
    assert (said[:1], b"\x1f" in said, b"\x11" in said) == (b"\x82", size == 4096, False)
    assert len(said) + 2 <= size
    assert client.read() is None


def test_an_answer_that_is_too_large_ends_the_connection(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.2-24]: CONNACK, AUTH and SUBACK cannot be cut."""
    client = peer(V5)
    client.send(connect(V5, "", properties=block(b"\x27\0\0\0\x10")))
    assert [each.body for each in until_closed(client)] == [b"\0\x95\0"]
    client = peer(V5)
    least = block(b"\x27\0\0\0\x10", b"\x15" + text("SCRAM-SHA-256"))
    client.send(connect(V5, new("c"), properties=least))
    assert [each.body for each in until_closed(client)] == [b"\0\x95\0"]
    client = peer(V5)
    client.connect(new("c"), properties=block(b"\x27\0\0\0\x10"))
    client.send(subscribe(V5, 1, *((f"t/{n}", 0) for n in range(20))))
    assert [each.body for each in until_closed(client)] == [b"\x95\0"]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_connack_that_does_not_fit_is_not_sent(peer: NewPeer, size: int) -> None:
    """5.0 [MQTT-3.1.2-24]: the least one has five bytes. The session was never open: no will."""
    topic, witness = new(), peer(V5)
    witness.connect(new("c"))
    witness.subscribe((topic, 0))
    least = b"\x27" + size.to_bytes(4, "big")
    for method in (b"", b"\x15" + text("none"), b"\x15" + text("SCRAM-SHA-256")):
        client = peer(V5)
        client.send(
            connect(V5, new("c"), properties=block(least, method), will=(topic, b"x", 0, False))
        )
        assert client.read() is None
    witness.publish(topic, b"last")
    assert witness.message().payload == b"last"


def test_properties_of_a_message_have_a_limit(peer: NewPeer) -> None:
    """Nobody is held up while they are read, and given to whoever has subscribed."""
    least = b"\x26\0\0\0\0"
    most = least * (524_288 // len(least) - 1) + b"\x26\0\3abc\0\0"  # 524 288 bytes
    client = peer(V5)
    client.connect(new("c"))
    client.send(publish(V5, new(), b"x", qos=1, packet_id=1, properties=block(most)))
    assert client.expect(PUBACK).body[:2] == b"\0\1"
    client.send(publish(V5, new(), b"x", qos=1, packet_id=1, properties=block(most, least)))
    assert client.expect(DISCONNECT).body[0] == 0x97
    assert client.read() is None


@pytest.mark.parametrize("asked", ["subscribe", "unsubscribe", "disconnect", "auth"])
def test_too_many_user_properties_end_the_connection(peer: NewPeer, asked: str) -> None:
    """Nobody is held up while they would be looked at."""
    given = block(b"\x26\0\0\0\0" * 2_000_000)
    client = peer(V5)
    client.connect(new("c"))
    client.send({
        "subscribe": packet(8, b"\0\1" + given + text("a") + b"\0", 2),
        "unsubscribe": packet(10, b"\0\1" + given + text("a"), 2),
        "disconnect": packet(14, b"\0" + given),
        "auth": packet(15, b"\x18" + given),
    }[asked])  # fmt: skip
    assert client.expect(DISCONNECT).body[0] == 0x97
    assert client.read() is None


def test_no_disconnect_comes_before_connack(peer: NewPeer) -> None:
    """5.0 [MQTT-3.14.0-1]: a mistake before it is answered by CONNACK, or by the end alone."""
    for first in (
        b"\xc0\0", b"\xe0\0", b"\x11\0", packet(15, b"\x18\0"), packet(1, b"\0\4MQTT\5\3\0\0\0"),
        packet(1, b"\0\4MQTT\x09"), publish(V5, "t"), b"\x10\xff\xff\xff\xff",
    ):  # fmt: skip
        client = peer(V5)
        client.send(first)
        assert {each.kind for each in until_closed(client)} <= {CONNACK}


def test_nothing_follows_disconnect(peer: NewPeer) -> None:
    """5.0 [MQTT-3.14.4-1], [MQTT-3.14.4-2], [MQTT-4.13.2-1]: neither packets nor an open socket."""
    topic, client, sender = new(), peer(V5), peer(V5)
    client.connect(name := new("c"), **KEPT)
    client.subscribe((topic, 0))
    sender.connect(new("c"))
    sender.send(b"".join(publish(V5, topic, b"x" * 1000) for _ in range(50)))
    peer(V5).connect(name, **KEPT)
    sender.ping()
    found = until_closed(client)
    assert [each.kind for each in found if each.kind != 3] == [DISCONNECT]
    assert found[-1] == Packet(DISCONNECT, 0, b"\x8e\0")


def test_methods_of_authentication(peer: NewPeer) -> None:
    """5.0 [MQTT-4.12.0-1], [MQTT-4.12.0-6], [MQTT-4.12.0-7]: one that is not there is refused; who
    names none hears of none, and sends no AUTH."""
    client = peer(V5)
    client.send(connect(V5, new("c"), properties=block(b"\x15" + text("none"))))
    assert client.expect(CONNACK).body[:2] == b"\0\x8c"
    assert client.read() is None
    client = peer(V5)
    assert b"\x15" not in client.connect(new("c"))[2:]
    client.send(packet(15, b"\x19" + block(b"\x15" + text("none"))))
    assert client.reason_of_end() == 0x82


@pytest.mark.parametrize("level", VERSIONS)
def test_nothing_behind_a_refused_connect_counts(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.4-5], 5.0 [MQTT-3.1.4-6]."""
    topic, client, watch = new(), peer(level), peer(level)
    client.send(
        connect(level, new("c"), password="wrong")
        + publish(level, topic, b"x", qos=1, packet_id=1, retain=True)
    )
    assert client.expect(CONNACK).body[1] != 0
    assert client.read() is None
    watch.connect(new("c"))
    watch.subscribe((topic, 1))
    watch.ping()
    assert watch.has_silence(0.05)


@pytest.mark.parametrize("level", VERSIONS)
def test_retained_messages_outlive_the_session_of_their_publisher(
    peer: NewPeer, level: int
) -> None:
    """3.1.1 [MQTT-3.1.2-7], [MQTT-3.1.2-6]; 5.0 section 4.1 says the same."""
    topic, name = new(), new("c")
    client = peer(level)
    client.connect(name)
    client.publish(topic, b"kept", 1, retain=True)
    client.subscribe((topic, 0))
    assert client.message().payload == b"kept"
    client.disconnect()
    client = peer(level)
    client.connect(name)
    client.publish(topic, b"live", 0)
    client.subscribe((topic, 1))
    assert client.message()[1:4] == (b"kept", 1, True)


@pytest.mark.parametrize("level", VERSIONS)
def test_who_leaves_no_will_leaves_nothing(mqtt: Broker, peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-12]: nothing is published, however a client goes."""
    api, vhost = Api(mqtt), new("v")  # of its own: whatever is heard there is of this client
    api("PUT", f"/api/vhosts/{vhost}")
    user = f"{vhost}:guest"
    client, watch = peer(level), peer(level)
    watch.connect(new("c"), user=user)
    watch.subscribe(("#", 0))
    client.connect(name := new("c"), user=user)
    peer(level).connect(name, user=user)
    assert [each.kind for each in until_closed(client)] == [DISCONNECT] * (level == V5)
    watch.ping()
    assert watch.early_messages() == []
    api("DELETE", f"/api/vhosts/{vhost}")


@pytest.mark.parametrize("level", VERSIONS)
def test_sessions_belong_to_identifiers(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.3-2], [MQTT-3.1.3-5], 5.0 [MQTT-3.1.3-2], [MQTT-3.1.3-5]: also to one that
    differs in a letter only; 23 letters and digits are allowed."""
    name, topic = uuid.uuid4().hex[:22] + "A", new()
    client = peer(level)
    client.connect(name, **KEPT)
    client.subscribe((topic, 1))
    client.disconnect()
    other = peer(level)
    assert other.connect(name[:-1] + "a", **KEPT)[0] == 0
    other.publish(topic, b"x", 1)
    assert other.has_silence(0.05)
    client = peer(level)
    assert client.connect(name, **KEPT)[0] == 1
    assert client.message().payload == b"x"


def test_a_session_lives_while_its_client_is_here(peer: NewPeer) -> None:
    """3.1.1 [MQTT-4.1.0-2], 5.0 [MQTT-4.1.0-1]: however short its expiry."""
    topic, client = new(), peer(V5)
    client.connect(new("c"), clean=False, properties=block(b"\x11\0\0\0\1"))
    client.subscribe((topic, 1))
    old = peer(V311)
    old.connect(new("c"))
    old.subscribe((topic, 1))
    assert client.has_silence(1.5)
    client.publish(topic, b"x", 1)
    assert client.message().payload == old.message().payload == b"x"


def test_websockets_speak_mqtt_in_binary_frames_alone(mqtt: Broker) -> None:
    """3.1.1 [MQTT-6.0.0-1], [MQTT-6.0.0-3], [MQTT-6.0.0-4], 5.0 [MQTT-6.0.0-1], [MQTT-6.0.0-3],
    [MQTT-6.0.0-4]: a text frame ends the connection, also one with a whole CONNECT in it."""

    async def talk() -> tuple[str | None, str | bytes | None, int | None]:
        url = f"ws://{mqtt.host}:{mqtt.http_port}/ws/mqtt"
        client = await websocket_connect(url, subprotocols=["mqtt"])
        chosen = client.selected_subprotocol
        whole = connect(V311, "", user=None, password=None)
        await client.write_message(whole.decode("ascii"), binary=False)
        found = await client.read_message()
        client.close()
        return chosen, found, client.close_code

    assert asyncio.run(asyncio.wait_for(talk(), 15)) == ("mqtt", None, 1003)


@pytest.mark.parametrize("level", VERSIONS)
def test_no_message_is_lost_when_a_subscription_is_replaced(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.8.4-3], 5.0 [MQTT-3.8.4-3], [MQTT-3.8.4-4]."""
    topic, client, sender = new(), peer(level), peer(level)
    client.connect(new("c"))
    client.subscribe((topic, 1))
    sender.connect(new("c"))
    sender.send(b"".join(
        publish(level, topic, b"%d" % n, qos=1, packet_id=n + 1) for n in range(300)
    ))  # fmt: skip
    for n in range(20):
        client.subscribe((topic, 1 + n % 2), packet_id=n + 1)
    assert [client.message().payload for _ in range(300)] == [b"%d" % n for n in range(300)]


def test_qos_2_of_a_shared_subscription_waits_for_its_member(peer: NewPeer) -> None:
    """5.0 [MQTT-4.8.2-4]: what was being sent to one that is cut off is completed when it comes
    back; [MQTT-4.8.2-5]: nobody else gets it when its session ends."""
    topic = new()
    wanted, names = f"$share/g/{topic}", [new("c"), new("c")]
    one, two, sender = peer(V5), peer(V5), peer(V5)
    sender.connect(new("c"))
    one.connect(names[0], **KEPT)
    one.subscribe((wanted, 2))
    sender.publish(topic, b"1", 2)
    first = one.message(is_acked=False)
    two.connect(names[1], **KEPT)
    two.subscribe((wanted, 2))
    one.socket.close()
    assert two.has_silence(0.1)

    one = peer(V5)
    assert one.connect(names[0], **KEPT)[0] == 1
    again = one.message(is_acked=False)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"1", True)
    one.socket.close()
    one = peer(V5)
    assert one.connect(names[0])[0] == 0
    assert one.has_silence(0.1)
    assert two.has_silence(0.1)


def test_what_a_member_keeps_is_as_it_was_sent(peer: NewPeer) -> None:
    """A message of QoS 2 for a member that is cut off comes again as it was, and no more after
    PUBCOMP; one of QoS 1 goes to another member meanwhile."""
    topic = new()
    wanted, names = f"$share/g/{topic}", [new("c"), new("c")]
    one, two, sender = peer(V5), peer(V5), peer(V5)
    sender.connect(new("c"))
    one.connect(names[0], **KEPT)
    one.subscribe((wanted, 2), properties=block(b"\x0b\x07"))
    properties = block(b"\x03" + text("kind") + b"\x26" + text("a") + text("b"))
    sender.publish(topic, b"1", 2, properties=properties)
    sender.publish(topic, b"2", 1)
    first = [one.message(is_acked=False) for _ in range(2)]
    two.connect(names[1], **KEPT)
    two.subscribe((wanted, 2))
    one.socket.close()
    assert two.message()[:3] == (topic, b"2", 1)

    for _ in range(2):
        one = peer(V5)
        assert one.connect(names[0], **KEPT)[0] == 1
        assert one.message(is_acked=False) == first[0]._replace(dup=True)
        one.socket.close()
    one = peer(V5)
    one.connect(names[0], **KEPT)
    assert one.message() == first[0]._replace(dup=True)
    one.ping()
    one.socket.close()
    one = peer(V5)
    one.connect(names[0], **KEPT)
    assert one.has_silence(0.1)
    assert two.has_silence(0.1)


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1])
def test_an_empty_topic_is_none_behind_one_that_is_too_long_for_a_key(
    mqtt: Broker, level: int, qos: int
) -> None:
    """3.1.1 [MQTT-4.7.3-1], 5.0 [MQTT-4.7.3-1]. It was taken for the topic before it."""
    long = new() * 20
    assert len(long) > 255
    with Peer(mqtt.mqtt_port, level) as client:
        client.connect(new("c"))
        for topic in (new(), long):
            client.publish(topic, b"x", 1)
        client.send(publish(level, "", b"y", qos=qos, packet_id=7 if qos else 0))
        assert client.reason_of_end() == (0x82 if level == V5 else None)
