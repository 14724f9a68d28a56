"""What is acknowledged is there after a kill: sessions, subscriptions, messages that wait."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

from lavinmq.files.directories import hashed
from tests.integration.mqtt.conftest import NewBroker
from tests.support.api import Api
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

FOLDER = Path(__file__).parents[2] / "fixtures" / "data-dir"
KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}


def test_what_was_acknowledged_survives_a_kill(own: NewBroker) -> None:
    """3.1.1 [MQTT-4.1.0-1], [MQTT-4.5.0-1], 5.0 [MQTT-3.1.2-23], [MQTT-4.5.0-1]: the broker is
    killed with messages that wait."""
    broker = own()
    for level in (V311, V5):
        with Peer(broker.mqtt_port, level) as client:
            client.connect(f"kept-{level}", **KEPT)
            client.subscribe((f"t{level}/+", 2), (f"x{level}/" + "long/" * 80 + "#", 1))
            client.unsubscribe(f"t{level}/never")
        with Peer(broker.mqtt_port, level) as sender:
            sender.connect("sender")
            for number in range(5):
                sender.publish(f"t{level}/{number}", b"m%d" % number, 1 + number % 2)
            sender.publish(f"x{level}/" + "long/" * 80 + "end", b"far", 1)
    broker.kill()
    broker.start()
    for level in (V311, V5):
        with Peer(broker.mqtt_port, level) as client:
            assert client.connect(f"kept-{level}", **KEPT)[0] == 1
            found = [client.message() for _ in range(6)]
            assert [each.payload for each in found] == [b"m0", b"m1", b"m2", b"m3", b"m4", b"far"]
            assert [each.qos for each in found] == [1, 2, 1, 2, 1, 1]
            client.publish(f"t{level}/new", b"after", 1)
            assert client.message().payload == b"after"


def test_a_session_that_cannot_be_read_keeps_its_packet_identifiers(own: NewBroker) -> None:
    """3.1.1 [MQTT-4.4.0-1], 5.0 [MQTT-4.4.0-1]: its queue is closed until an operator has mended
    it. The client got PUBREL, and then the message of QoS 2 once more with another identifier."""
    broker = own()
    with Peer(broker.mqtt_port, V5) as client, Peer(broker.mqtt_port, V5) as sender:
        client.connect("kept", **KEPT)
        client.subscribe(("t", 2))
        sender.connect("sender")
        sender.publish("t", b"m", 2)
        first = client.message(is_acked=False)
        broker.kill()
    (segment,) = Path(broker.data_dir).glob(f"*/{hashed('mqtt.kept')}/msgs.*")
    aside = segment.rename(segment.with_name("aside"))
    segment.mkdir()

    broker.start()

    with Peer(broker.mqtt_port, V5) as client:
        assert client.connect("kept", **KEPT)[0] == 1
        assert client.has_silence()
    segment.rmdir()
    aside.rename(segment)
    assert Api(broker)("PUT", "/api/queues/%2F/mqtt.kept/restart").status == 204
    wait_for(lambda: Api(broker).get("/api/queues/%2F/mqtt.kept")["messages"], "stays closed")
    with Peer(broker.mqtt_port, V5) as client:
        assert client.connect("kept", **KEPT)[0] == 1
        assert client.message() == first._replace(dup=True)


def test_a_replaced_subscription_is_the_one_that_comes_back(own: NewBroker) -> None:
    """3.1.1 [MQTT-3.8.4-3]: the QoS of the newer one, after a restart in order."""
    broker = own()
    with Peer(broker.mqtt_port) as client:
        client.connect("kept", clean=False)
        client.subscribe(("t", 0), ("gone", 1))
        client.subscribe(("t", 1))
        client.unsubscribe("gone")
    broker.restart()
    with Peer(broker.mqtt_port) as client:
        assert client.connect("kept", clean=False)[0] == 1
        client.publish("gone", b"no", 0)
        client.publish("t", b"yes", 0)
        assert client.message()[:3] == ("t", b"yes", 0)
        client.publish("t", b"sure", 2)
        assert client.message()[:3] == ("t", b"sure", 1)


def test_members_of_a_shared_subscription_are_members_again(own: NewBroker) -> None:
    """What waits in it is there, and one that comes back has it."""
    broker = own()
    with Peer(broker.mqtt_port) as client:
        client.connect("member", clean=False)
        client.subscribe(("$share/g/t/#", 1))
        client.disconnect()
    with Peer(broker.mqtt_port) as sender:
        sender.connect("sender")
        sender.publish("t/1", b"waits", 1)
    broker.kill()
    broker.start()
    with Peer(broker.mqtt_port) as client:
        assert client.connect("member", clean=False)[0] == 1
        assert client.message()[:2] == ("t/1", b"waits")


def test_what_a_member_keeps_is_there_after_a_restart(own: NewBroker) -> None:
    """A message of QoS 2 that was being sent to a member of a shared subscription: it comes again
    with its packet identifier, to that member alone."""
    broker, wanted = own(), ("$share/g/t/#", 2)
    with Peer(broker.mqtt_port, V5) as one, Peer(broker.mqtt_port, V5) as two:
        one.connect("one", **KEPT)
        one.subscribe(wanted)
        with Peer(broker.mqtt_port) as sender:
            sender.connect("sender")
            sender.publish("t/1", b"waits", 2)
        first = one.message(is_acked=False)
        two.connect("two", **KEPT)
        two.subscribe(wanted)
        one.socket.close()
        assert two.has_silence()
    broker.restart()
    with Peer(broker.mqtt_port, V5) as one, Peer(broker.mqtt_port, V5) as two:
        two.connect("two", **KEPT)
        assert two.has_silence()
        assert one.connect("one", **KEPT)[0] == 1
        assert one.message() == first._replace(dup=True)
        assert two.has_silence()


def test_sessions_that_are_not_kept_are_gone(own: NewBroker) -> None:
    """3.1.1 [MQTT-3.1.2-6]; a session expires that nobody comes back to."""
    broker = own("[mqtt]\nmax_session_expiry = 1\n")
    with Peer(broker.mqtt_port) as client:
        client.connect("clean")
        client.subscribe(("t", 1))
        broker.kill()
    broker.start()
    names = [each["name"] for each in Api(broker).get("/api/queues")]
    assert names == []
    with Peer(broker.mqtt_port) as client:
        client.connect("kept", clean=False)
        client.subscribe(("t", 1))
        client.disconnect()
    assert [each["name"] for each in Api(broker).get("/api/queues")] == ["mqtt.kept"]
    wait_for(lambda: Api(broker).get("/api/queues") == [], "the session is still there")


def test_sessions_and_retained_messages_of_lavinmq_are_there(
    tmp_path: Path, own: NewBroker
) -> None:
    """A data directory of LavinMQ 2.9 with a session that has messages, and retained ones."""
    (tmp_path / "data").mkdir()
    subprocess.run(["tar", "-xzf", FOLDER / "rich.tar.gz", "-C", tmp_path / "data"], check=True)
    manifest = json.loads((FOLDER / "rich.json").read_text())
    broker = own("[main]\nsegment_size = 4096\n")
    (session,) = manifest["mqtt_sessions"]
    with Peer(broker.mqtt_port) as client:
        assert client.connect(session["client_id"], clean=False)[0] == 1
        for wanted in session["messages_in_order"]:
            found = client.message()
            assert found[:4] == (
                wanted["topic"], base64.b64decode(wanted["payload"]), wanted["qos"], False,
            )  # fmt: skip
        client.ping()
        client.subscribe(("ret/#", 1))
        retained = {each["topic"]: each["payload"] for each in manifest["mqtt_retained"]}
        while retained:
            found = client.message()
            assert found.retain
            assert base64.b64encode(found.payload).decode() == retained.pop(found.topic)
        client.ping()


def test_sessions_that_may_not_be_kept_end_with_their_connections(own: NewBroker) -> None:
    """5.0 [MQTT-3.1.2-23]: what the broker grants counts, not what a client wants."""
    broker = own("[mqtt]\nmax_session_expiry = 0\n")
    for level in (V311, V5):
        with Peer(broker.mqtt_port, level) as client:
            told = client.connect("c", **KEPT)
            assert level != V5 or b"\x11\0\0\0\0" in told
            client.subscribe(("t", 1))
            client.disconnect(b"\0\5\x11\0\0\0\x32" if level == V5 else b"")
        assert Api(broker).get("/api/queues") == []
        with Peer(broker.mqtt_port, level) as client:
            assert client.connect("c", **KEPT)[0] == 0


def test_a_session_that_was_to_end_with_its_connection_ends_with_a_kill(own: NewBroker) -> None:
    """It had been kept before; so had its will, which is published then."""
    broker = own()
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        watch.subscribe(("gone/+", 1))
    with Peer(broker.mqtt_port, V5) as client:
        client.connect("c", **KEPT)
        client.subscribe(("t", 1))
        client.disconnect()
    with Peer(broker.mqtt_port, V5) as client:
        will = {"will": ("gone/c", b"x", 1, False), "will_properties": block(b"\x18\0\0\x0f\xff")}
        assert client.connect("c", clean=False, **will)[0] == 1
        broker.kill()
    broker.start()
    assert [each["name"] for each in Api(broker).get("/api/queues")] == ["mqtt.watch"]
    with Peer(broker.mqtt_port, V311) as watch:
        watch.connect("watch", clean=False)
        assert watch.message()[:2] == ("gone/c", b"x")
    with Peer(broker.mqtt_port, V5) as client:
        assert client.connect("c", **KEPT)[0] == 0
