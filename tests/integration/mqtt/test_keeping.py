"""What is kept for clients: retained messages in each version, ids, wills and time over a kill."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.conftest import BrokerFactory
from tests.integration.mqtt.conftest import NewBroker, NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.issuer import serving
from tests.support.mqtt_bytes import V5, V31, V311, block, text
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

VERSIONS = (V31, V311, V5)


def ended(broker: Broker, end: str) -> None:
    """Have the broker end, by a kill or in order."""
    if end == "kill":
        broker.kill()
    else:
        broker.stop()


def new(word: str = "t") -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_who_subscribes_gets_what_is_retained(peer: NewPeer, level: int, qos: int) -> None:
    """3.1.1 [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-7], [MQTT-3.3.1-8], [MQTT-3.3.1-9], 5.0
    [MQTT-3.3.1-5], [MQTT-3.3.1-9], [MQTT-3.3.1-12]: with the flag, which is not there for who had
    subscribed."""
    topic = new()
    early, late, sender = peer(level), peer(level), peer(level)
    for client in (early, late, sender):
        client.connect(new("c"))
    early.subscribe((f"{topic}/#", 1))
    sender.publish(f"{topic}/å/x", b"old", qos, retain=True)
    sender.publish(f"{topic}/å/x", b"new", qos, retain=True)
    assert [early.message()[1:4] for _ in range(2)] == [
        (b"old", min(qos, 1), False), (b"new", min(qos, 1), False),
    ]  # fmt: skip
    late.subscribe((f"{topic}/+/x", 1))
    assert late.message()[:4] == (f"{topic}/å/x", b"new", min(qos, 1), True)
    late.ping()
    early.ping()


@pytest.mark.parametrize("level", VERSIONS)
def test_an_empty_message_takes_it_away(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.3.1-10], [MQTT-3.3.1-11], [MQTT-3.3.1-12], 5.0 [MQTT-3.3.1-6],
    [MQTT-3.3.1-7], [MQTT-3.3.1-8]; it reaches subscribers, and one without the flag changes
    nothing."""
    topic, client = new(), peer(level)
    client.connect(new("c"))
    client.publish(topic, b"kept", 1, retain=True)
    client.publish(topic, b"", 1)
    client.subscribe((topic, 0))
    assert client.message()[1:4] == (b"kept", 0, True)
    client.publish(topic, b"", 1, retain=True)
    assert client.message()[1:4] == (b"", 0, False)
    client.subscribe((topic, 0))
    client.ping()


@pytest.mark.parametrize("level", VERSIONS)
def test_a_repeated_subscription_gets_it_again(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.8.4-3], 5.0 [MQTT-3.8.4-4]; a shared one gets none."""
    topic, client = new(), peer(level)
    client.connect(new("c"))
    client.publish(topic, b"kept", 1, retain=True)
    for qos in (0, 1):
        client.subscribe((topic, qos))
        assert client.message()[1:4] == (b"kept", qos, True)
    client.subscribe((f"$share/g/{topic}", 1))
    client.ping()


def test_properties_are_retained_and_expire(peer: NewPeer) -> None:
    """5.0 [MQTT-3.3.2-5], [MQTT-3.3.2-20]."""
    topic, client = new(), peer(V5)
    client.connect(new("c"))
    kept = block(b"\x03" + text("text/plain"), b"\x26" + text("a") + text("b"))
    client.publish(topic, b"kept", 1, retain=True, properties=kept)
    client.publish(f"{topic}/short", b"gone", 1, retain=True, properties=block(b"\x02\0\0\0\x01"))
    client.subscribe((topic, 1))
    assert client.message().properties == kept[1:]

    # A silence says nothing: what is retained comes some time after SUBACK.
    time.sleep(2.1)
    client.subscribe((f"{topic}/short", 1))
    client.subscribe((topic, 1))
    assert client.message().payload == b"kept"


def test_sessions_go_on_with_their_packet_identifiers_after_a_kill(own: NewBroker) -> None:
    """3.1.1 [MQTT-4.4.0-1], 5.0 [MQTT-4.4.0-1]: what was sent comes again with its identifier and
    DUP; a message of QoS 2 that came comes in once."""
    broker = own()
    kept = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
    with Peer(broker.mqtt_port, V311) as client:
        client.connect("kept", **kept)
        client.subscribe(("t", 2))
        for number in range(3):
            client.publish("t", b"%d" % number, 1 + number % 2)
        before = [client.message(is_acked=False) for _ in range(3)]
        broker.kill()
    broker.start()
    with Peer(broker.mqtt_port, V311) as client:
        assert client.connect("kept", **kept)[0] == 1
        again = [client.message() for _ in range(3)]
        assert [each.packet_id for each in again] == [each.packet_id for each in before]
        assert [each.payload for each in again] == [b"0", b"1", b"2"]
        assert all(each.dup for each in again)
        client.ping()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_will_that_waits_survives_an_end_of_the_broker(own: NewBroker, end: str) -> None:
    """5.0 [MQTT-3.1.2-7], [MQTT-3.1.2-8]: that of a session that is kept."""
    broker = own()
    kept = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        watch.subscribe(("gone/+", 1))
    with Peer(broker.mqtt_port, V5) as client:
        will = block(b"\x18\0\0\0\x01")
        client.connect("c", will=("gone/c", b"x", 1, False), will_properties=will, **kept)
        ended(broker, end)
    broker.start()
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        assert watch.message()[:2] == ("gone/c", b"x")
        watch.ping()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_who_is_back_in_time_after_an_end_of_the_broker_leaves_no_will(
    own: NewBroker, end: str
) -> None:
    """5.0 [MQTT-3.1.3-9]: an update of the broker is no end of its clients. A will without a delay
    is published when the broker stops."""
    broker = own()
    kept = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        watch.subscribe(("gone/+", 1))
    with Peer(broker.mqtt_port, V5) as gone, Peer(broker.mqtt_port, V5) as client:
        gone.connect("gone", will=("gone/now", b"x", 1, False), **kept)
        will = block(b"\x18\0\0\0\x32")
        client.connect("c", will=("gone/c", b"x", 1, False), will_properties=will, **kept)
        ended(broker, end)
    broker.start()
    with Peer(broker.mqtt_port, V5) as client:
        assert client.connect("c", **kept)[0] == 1
        client.disconnect()
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        assert watch.message()[:2] == ("gone/now", b"x")
        watch.publish("gone/none", b"last", 1)
        assert watch.message()[:2] == ("gone/none", b"last")


def test_a_will_of_who_had_a_token_is_dropped_after_a_kill(broker_factory: BrokerFactory) -> None:
    """What the token allowed is not known any more, and a user of ours who has the same name lends
    the will no rights."""
    with serving() as issuer:
        broker = broker_factory(env=issuer.variables, mqtt=True)
        with Peer(broker.mqtt_port, V311) as watch:
            watch.connect("watch", clean=False)
            watch.subscribe(("gone/+", 1))
        scope = "broker.configure:*/* broker.read:*/* broker.write:*/*"
        token = issuer.token(sub="guest", scope=scope)
        with Peer(broker.mqtt_port, V5) as client:
            client.connect("c", user="any", password=token, will=("gone/c", b"x", 1, False))
            broker.kill()
        broker.start()
        with Peer(broker.mqtt_port, V311) as watch:
            watch.connect("watch", clean=False)
            watch.publish("gone/not", b"next", 1)
            assert watch.message()[:2] == ("gone/not", b"next")
    assert "will of 'c' is dropped: with the access token of 'guest'" in broker.log_text()


def test_sessions_expire_over_a_restart(own: NewBroker) -> None:
    """5.0 [MQTT-4.1.0-2]: the time that a session has waited counts."""
    broker = own()
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("c", properties=block(b"\x11\0\0\0\x02"))
        client.disconnect()
    broker.kill()
    broker.start()

    names = lambda: [each["name"] for each in Api(broker).get("/api/queues")]  # noqa: E731
    wait_for(lambda: names() == [], "the session does not end")


def test_a_will_waits_no_longer_than_its_session_after_a_kill(own: NewBroker) -> None:
    """5.0 section 3.1.3.2.2: the session ends before the delay."""
    broker = own()
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        watch.subscribe(("gone/+", 1))
    with Peer(broker.mqtt_port, V5) as client:
        will, short = block(b"\x18\0\0\x0f\xff"), block(b"\x11\0\0\0\x01")
        client.connect("c", properties=short, will=("gone/c", b"x", 1, False), will_properties=will)
        broker.kill()
    broker.start()
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        assert watch.message()[:2] == ("gone/c", b"x")
