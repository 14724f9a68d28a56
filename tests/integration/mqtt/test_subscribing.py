"""SUBSCRIBE and UNSUBSCRIBE over a socket: what is granted, what comes, what outlives a client."""

from __future__ import annotations

import uuid
from urllib.parse import quote

import pytest

from tests.integration.mqtt.conftest import NewBroker, NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V31, V311, block, packet, subscribe, text
from tests.support.mqtt_peer import Message, Peer
from tests.support.waiting import wait_for

VERSIONS = (V31, V311, V5)
KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}


def new(word: str = "t") -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


def test_very_many_shared_subscriptions_are_joined_and_joined_again(peer: NewPeer) -> None:
    """In portions: others are served meanwhile, and the client when all are."""
    name, n = new("c"), 500
    filters = [f"$share/g/{name}/{number}" for number in range(n)]
    with peer(V5) as client:
        client.connect(name, **KEPT)
        assert client.subscribe(*((each, 1) for each in filters)) == [1] * n
    sender = peer(V311)
    sender.connect(new("c"))
    with peer(V5) as client:
        assert client.connect(name, **KEPT)[0] == 1
        client.ping()
        for number in (0, n - 1):
            sender.publish(f"{name}/{number}", b"x", 1)
            assert client.message().topic == f"{name}/{number}"
        assert client.unsubscribe(*filters) == [0] * n
        client.disconnect(b"\0\5\x11\0\0\0\0")


@pytest.mark.parametrize("is_cut", [False, True])
def test_who_leaves_very_many_shared_subscriptions_has_none_of_them(
    peer: NewPeer, is_cut: bool
) -> None:
    """In portions, of which no message knows: what comes is another member's."""
    name, n = new("c"), 500
    filters = [f"$share/g/{name}/{number}" for number in range(n)]
    topics = [f"{name}/0", f"{name}/{n - 1}"] * 2
    other, sender = peer(V5), peer(V311)
    other.connect(new("c"))
    assert other.subscribe((filters[0], 1), (filters[-1], 1)) == [1, 1]
    sender.connect(new("c"))
    with peer(V5) as client:
        client.connect(name)
        assert client.subscribe(*((each, 1) for each in filters)) == [1] * n
        if not is_cut:
            client.disconnect()
    for topic in topics:
        sender.publish(topic, b"x", 1)
    assert sorted(other.message().topic for _ in topics) == sorted(topics)


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_lower_qos_counts(peer: NewPeer, level: int, published: int, granted: int) -> None:
    """3.1.1 [MQTT-3.3.4-1], [MQTT-3.8.4-6], [MQTT-4.3.1-1], 5.0 [MQTT-3.3.4-1], [MQTT-3.8.4-8],
    [MQTT-4.3.1-1], [MQTT-4.3.2-2], [MQTT-4.3.3-2]: a message has the QoS that both the publisher
    and the subscription have."""
    topic, client = new(), peer(level)
    client.connect(new("c"))
    assert client.subscribe((topic, granted)) == [granted]
    sender = peer(level)
    sender.connect(new("c"))
    sender.publish(topic, b"x", published)
    found = client.message()
    assert found[:5] == (topic, b"x", min(published, granted), False, False)


@pytest.mark.parametrize("level", VERSIONS)
def test_each_filter_has_its_code(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.8.4-1], [MQTT-3.8.4-4], [MQTT-3.8.4-5], 5.0 [MQTT-3.8.4-1], [MQTT-3.8.4-5],
    [MQTT-3.8.4-7], [MQTT-3.9.3-2]."""
    client = peer(level)
    client.connect(new("c"))
    assert client.subscribe((new(), 2), (new(), 0), (new(), 1), packet_id=65535) == [2, 0, 1]


@pytest.mark.parametrize("level", VERSIONS)
def test_a_subscription_takes_the_place_of_an_older_one(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.8.4-3], 5.0 [MQTT-3.8.4-3]: one message comes, with the newer QoS."""
    topic, client = new(), peer(level)
    client.connect(new("c"))
    client.subscribe((topic, 0))
    client.subscribe((topic, 1))
    client.publish(topic, b"x", 0)
    assert client.message().qos == 0
    sender = peer(level)
    sender.connect(new("c"))
    sender.publish(topic, b"y", 2)
    assert client.message()[:3] == (topic, b"y", 1)
    client.ping()


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize(
    ("wanted", "topic", "comes"),
    [("{}/#", "{}", True), ("{}/#", "{}/a/b", True), ("{}/+", "{}/a", True), ("{}/+", "{}", False),
     ("{}/+", "{}/a/b", False), ("{}/+/b", "{}//b", True), ("{}/å", "{}/å", True),
     ("{}/A", "{}/a", False), ("+/{}", "$x/{}", False), ("$x/{}", "$x/{}", True)],
)  # fmt: skip
def test_what_filters_match(
    peer: NewPeer, level: int, wanted: str, topic: str, comes: bool
) -> None:
    """3.1.1 [MQTT-3.3.2-3], [MQTT-3.8.3-2], [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.2-1],
    [MQTT-4.7.3-4], 5.0 [MQTT-3.3.2-3], [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.2-1],
    [MQTT-4.7.3-4]."""
    name, client = new(), peer(level)
    client.connect(new("c"))
    client.subscribe((wanted.format(name), 0))
    client.publish(topic.format(name), b"x")
    if comes:
        assert client.message().topic == topic.format(name)
    client.ping()


@pytest.mark.parametrize("level", VERSIONS)
def test_what_was_unsubscribed_comes_no_more(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.10.4-1], [MQTT-3.10.4-2], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6],
    5.0 [MQTT-3.10.4-1], [MQTT-3.10.4-2], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6],
    [MQTT-3.11.3-1], [MQTT-3.11.3-2]."""
    one, other, client = new(), new(), peer(level)
    client.connect(new("c"))
    client.subscribe((one, 0), (other, 0))
    reasons = client.unsubscribe(one, "never/was", packet_id=9)
    assert reasons == ([0, 0x11] if level == V5 else [])
    client.publish(one, b"x")
    client.publish(other, b"y")
    assert client.message()[:2] == (other, b"y")
    client.ping()


@pytest.mark.parametrize("level", VERSIONS)
def test_malformed_filters_close(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-4.7.1-2], [MQTT-4.8.0-1], 5.0 [MQTT-4.7.1-1], [MQTT-4.13.1-1]."""
    for body, reason in (((("a/#/b", 0),), 0x8F), ((("a", 3),), 0x81), ((), 0x82)):
        client = peer(level)
        client.connect(new("c"))
        client.send(subscribe(level, 1, *body))
        assert client.reason_of_end() == (reason if level == V5 else None)


@pytest.mark.parametrize("level", VERSIONS)
def test_messages_wait_for_who_is_away(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-5], [MQTT-4.5.0-1], [MQTT-4.6.0-5], 5.0 [MQTT-3.1.2-23], [MQTT-4.5.0-1],
    [MQTT-4.6.0-6]: those of QoS 1 and 2, in order; those of QoS 0 do not."""
    name, topic, client = new("c"), new(), peer(level)
    client.connect(name, **KEPT)
    client.subscribe((f"{topic}/+", 2))
    client.disconnect()
    sender = peer(level)
    sender.connect(new("c"))
    for number in range(6):
        sender.publish(f"{topic}/{number}", b"x", number % 3)
    client = peer(level)
    assert client.connect(name, **KEPT)[0] == 1
    found = [client.message() for _ in range(4)]
    assert [each.topic[-1] for each in found] == ["1", "2", "4", "5"]
    assert [each.qos for each in found] == [1, 2, 1, 2]
    client.ping()
    client.send(packet(1, b""))  # the end, in whatever way


def test_no_local_and_retain_as_published(peer: NewPeer) -> None:
    """5.0 [MQTT-3.8.3-3], [MQTT-3.3.1-12], [MQTT-3.3.1-13]: own messages do not come; the flag of
    others does."""
    topic, client = new(), peer(V5)
    client.connect(new("c"))
    client.subscribe((topic, 0x04 | 0x08 | 1))
    client.publish(topic, b"mine", 1)
    sender = peer(V5)
    sender.connect(new("c"))
    sender.publish(topic, b"kept", 1, retain=True)
    found = client.message()
    assert (found.payload, found.retain) == (b"kept", True)
    client.ping()


def test_identifiers_of_subscriptions_come_with_messages(peer: NewPeer) -> None:
    """5.0 [MQTT-3.3.4-3], [MQTT-3.3.4-4]: all that match, in one copy of the message."""
    topic, client = new(), peer(V5)
    client.connect(new("c"))
    client.subscribe((f"{topic}/#", 1), properties=block(b"\x0b\x05"))
    client.subscribe((f"{topic}/+", 2), properties=block(b"\x0b\x07"))
    client.publish(f"{topic}/a", b"x", 1)
    found = client.message()
    assert sorted((found.properties[:2], found.properties[2:])) == [b"\x0b\x05", b"\x0b\x07"]
    client.ping()


def test_a_shared_subscription_goes_on_when_its_queue_is_deleted(
    peer: NewPeer, mqtt: Broker
) -> None:
    """An operator has deleted it: what came afterwards was acknowledged, and nobody got it."""
    topic, member, sender = new(), peer(V5), peer(V5)
    member.connect(new("c"))
    assert member.subscribe((f"$share/group/{topic}", 1)) == [1]
    sender.connect(new("c"))
    path = "/api/queues/%2F/" + quote(f"mqtt.$share/group/{topic}", safe="")

    assert Api(mqtt)("DELETE", path).status == 204

    wait_for(lambda: Api(mqtt)("GET", path).status == 200, "there is no new one")
    sender.publish(topic, b"1", 1)
    assert member.message().payload == b"1"
    assert member.unsubscribe(f"$share/group/{topic}") == [0]


@pytest.mark.parametrize("level", VERSIONS)
def test_a_message_goes_to_one_member_of_a_shared_subscription(peer: NewPeer, level: int) -> None:
    """5.0 section 4.8.2, and offered to earlier versions, too."""
    topic, members = new(), [peer(level) for _ in range(3)]
    for member in members:
        member.connect(new("c"))
        assert member.subscribe((f"$share/group/{topic}/#", 1)) == [1]
    sender = peer(level)
    sender.connect(new("c"))
    for number in range(9):
        sender.publish(f"{topic}/{number}", b"x", 1)
    found: list[Message] = []
    for member in members:
        member.send(b"\xc0\0")
        while (each := member.read()) is not None and each.kind == 3:
            n = int.from_bytes(each.body[:2], "big")
            found.append(Message(each.body[2 : 2 + n].decode(), b""))
    assert sorted(each.topic for each in found) == [f"{topic}/{number}" for number in range(9)]


def test_what_a_member_leaves_goes_to_the_others(peer: NewPeer, mqtt: Broker) -> None:
    """5.0 section 4.8.2: what it has not acknowledged of QoS 1; the last one takes the queue with
    it."""
    topic = new()
    wanted = f"$share/group/{topic}"
    one = peer(V5)
    one.connect(new("c"))
    one.subscribe((wanted, 1))
    sender = peer(V5)
    sender.connect(new("c"))
    for number in range(4):
        sender.publish(topic, b"%d" % number, 1)
    assert one.message(is_acked=False).payload == b"0"
    other = peer(V5)
    other.connect(new("c"))
    other.subscribe((wanted, 1))
    one.socket.close()
    assert sorted(other.message().payload for _ in range(4)) == [b"0", b"1", b"2", b"3"]
    names = [each["name"] for each in Api(mqtt).get("/api/queues")]
    assert f"mqtt.$share/group/{topic}" in names
    other.unsubscribe(wanted)
    wait_for(
        lambda: (
            f"mqtt.$share/group/{topic}"
            not in [each["name"] for each in Api(mqtt).get("/api/queues")]
        ),
        "the shared queue stays",
    )


def test_rights_are_asked_for_each_topic(own: NewBroker) -> None:
    """3.1.1 [MQTT-3.3.5-2], [MQTT-3.8.4-5], 5.0 [MQTT-3.8.4-7], [MQTT-3.9.3-2]: SUBACK 0x80 and
    0x87; a publish that is not allowed is dropped, and said so by version 5."""
    broker = own("[mqtt]\npermission_check_enabled = true\n")
    api = Api(broker)
    api.as_user("reader", "", **{"/": ("", "^mqtt\\.", "^mqtt\\.default$")})
    api.as_user("nobody", "", **{"/": ("", "^$", "^$")})
    row = {"exchange": "mqtt.default", "read": "^free/", "write": "^free/{client_id}/"}
    assert api("PUT", "/api/topic-permissions/%2F/reader", row).status < 300
    for level, refusal in ((V311, 0x80), (V5, 0x87)):
        with Peer(broker.mqtt_port, level) as client:
            client.connect("me", user="reader", password="reader-pw")
            wishes = ("free/#", 1), ("secret", 1), ("$share/g/secret", 1)
            assert client.subscribe(*wishes) == [1, refusal, refusal]
            client.send(
                packet(3, text("free/you/x") + b"\0\7" + (b"\0" if level == V5 else b""), 2)
            )
            answer = client.expect(4).body
            assert answer[:3] == (b"\0\7\x87" if level == V5 else b"\0\7")
            client.publish("free/me/x", b"mine", 1) if level == V311 else None
        with Peer(broker.mqtt_port, level) as client:
            client.connect("other", user="nobody", password="nobody-pw")
            assert client.subscribe(("free/#", 0)) == [refusal]


def test_amqp_leaves_sessions_alone(peer: NewPeer, mqtt: Broker) -> None:
    """edge-cases.md 112: lists show sessions as queues; nobody else takes messages out of them, or
    binds to them."""
    name, client = new("c"), peer(V311)
    client.connect(name, clean=False)
    client.subscribe((new(), 1))
    api = Api(mqtt)
    row = api.get(f"/api/queues/%2F/mqtt.{name}")
    assert row["durable"] and row["arguments"]["x-queue-type"] == "mqtt"
    assert row["consumers"] == 1
    get = {"count": 1, "ack_mode": "get", "encoding": "auto"}
    assert api("POST", f"/api/queues/%2F/mqtt.{name}/get", get).status == 403
    assert api("PUT", f"/api/queues/%2F/mqtt.{new()}", {}).status == 400
    bind = f"/api/bindings/%2F/e/mqtt.default/q/mqtt.{name}"
    assert api("POST", bind, {"routing_key": "a"}).status == 403
    assert api("DELETE", "/api/exchanges/%2F/mqtt.default").status in (400, 403)
    shown = next(each for each in api.get("/api/connections") if each.get("client_id") == name)
    assert (shown["protocol"], shown["user"]) == ("MQTT 3.1.1", "guest")
    assert api("DELETE", f"/api/queues/%2F/mqtt.{name}").status == 204
    assert client.read() is None


def test_numbers_of_the_broker(own: NewBroker) -> None:
    """3.1.1 [MQTT-4.7.2-1]: by their own filter, at once and again; not by a wildcard."""
    broker = own("[mqtt]\nsys_interval = 1\n")
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("c")
        client.subscribe(("#", 0))
        client.subscribe(("$SYS/broker/+/connected", 1), properties=block(b"\x0b\x03"))
        first = client.message()
        assert (first.topic, first.payload) == ("$SYS/broker/clients/connected", b"1")
        assert first.retain and first.properties == b"\x0b\x03"
        assert client.message()[:4] == ("$SYS/broker/clients/connected", b"1", 0, False)
        client.unsubscribe("$SYS/broker/+/connected")
        client.subscribe(("$SYS/#", 0))
        found = {each.topic: each.payload for each in (client.message() for _ in range(12))}
        assert found["$SYS/broker/subscriptions/count"] == b"2"
        assert found["$SYS/broker/version"].startswith(b"LavinMQ ")


def test_a_shared_subscription_that_is_refused_is_none_later(peer: NewPeer, mqtt: Broker) -> None:
    """The virtual host may have no further queue for it. One that works stays."""
    api, vhost, kept = Api(mqtt), new("v"), block(b"\x11\0\0\0\x64")
    assert api("PUT", f"/api/vhosts/{vhost}").status in (201, 204)
    user, client, sender = f"{vhost}:guest", peer(V5), peer(V5)
    client.connect("c", user=user, properties=kept)
    assert client.subscribe(("$share/g/works", 1)) == [1]
    assert api("PUT", f"/api/vhost-limits/{vhost}/max-queues", {"value": 2}).status in (201, 204)
    assert client.subscribe(("$share/g/refused", 1), ("$share/g/works", 1)) == [0x97, 1]
    client.disconnect()
    api("DELETE", f"/api/vhost-limits/{vhost}/max-queues")

    client = peer(V5)
    assert client.connect("c", user=user, clean=False, properties=kept)[0] == 1
    sender.connect("s", user=user)
    sender.publish("refused", b"no", 1)
    sender.publish("works", b"yes", 1)
    assert client.message()[:2] == ("works", b"yes")
    assert client.unsubscribe("$share/g/refused") == [0x11]
    api("DELETE", f"/api/vhosts/{vhost}")


def test_a_refused_change_of_a_subscription_leaves_the_one_of_before(
    peer: NewPeer, mqtt: Broker
) -> None:
    """A stream is not read with QoS 0. Of a queue that is gone nothing stays."""
    api, name, client = Api(mqtt), new("q"), peer(V5)
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert api("PUT", f"/api/queues/%2F/{name}", stream).status == 201
    client.connect(new("c"))
    assert client.subscribe((f"$queue/{name}", 1)) == [1]
    assert client.subscribe((f"$queue/{name}", 0)) == [0x8F]
    body = {"routing_key": name, "payload": "x", "payload_encoding": "string", "properties": {}}
    assert api("POST", "/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    assert client.message().payload == b"x"

    assert api("DELETE", f"/api/queues/%2F/{name}").status == 204
    assert client.subscribe((f"$queue/{name}", 1)) == [0x8F]
    assert client.unsubscribe(f"$queue/{name}") == [0x11]
