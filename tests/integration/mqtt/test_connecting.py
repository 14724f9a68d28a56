"""CONNECT over a socket: who is let in, what others are told, sessions that come back or do not."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.mqtt.conftest import NewBroker, NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import (
    V5,
    V31,
    V311,
    block,
    connect,
    connect_body,
    packet,
    publish,
    text,
)
from tests.support.mqtt_bytes import subscribe as subscribe_packet
from tests.support.mqtt_peer import Peer

VERSIONS = (V31, V311, V5)
PRESENT, ABSENT = 1, 0


def new_id() -> str:
    """An identifier that no other test uses."""
    return f"c-{uuid.uuid4().hex[:12]}"


def code(body: bytes) -> int:
    """The code of a CONNACK, which says that no session is present."""
    assert body[0] == ABSENT
    return body[1]


@pytest.mark.parametrize("level", VERSIONS)
def test_a_client_gets_in(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.4-4], [MQTT-3.2.0-1], 5.0 [MQTT-3.1.4-5], [MQTT-3.2.0-1]."""
    client = peer(level)
    assert code(client.connect(new_id())) == 0
    client.ping()
    client.disconnect()


@pytest.mark.parametrize("level", VERSIONS)
def test_nothing_but_connect_comes_first(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.0-1], 5.0 [MQTT-3.1.0-1]: the socket is closed."""
    for first in (
        b"\xc0\0",
        publish(level, "t"),
        subscribe_packet(level, 1, ("t", 0)),
        b"GET / HT",
    ):
        client = peer(level)
        client.send(first)
        assert client.read() is None


@pytest.mark.parametrize("level", VERSIONS)
def test_a_second_connect_closes(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.0-2], 5.0 [MQTT-3.1.0-2]: a protocol error."""
    client = peer(level)
    client.connect(name := new_id())
    client.send(connect(level, name))
    assert client.reason_of_end() == (0x82 if level == V5 else None)


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [("MQTT", 9, (V5, 0x84)), ("MQTT", 2, (V311, 1)), ("XYZ", 4, (V311, 1))],
)
def test_other_protocols_are_told(
    peer: NewPeer, name: str, level: int, answer: tuple[int, int]
) -> None:
    """3.1.1 [MQTT-3.1.2-2], 5.0 [MQTT-3.1.2-2]."""
    client = peer(answer[0])
    client.send(packet(1, connect_body(level, name=name)))
    assert code(client.expect(2).body) == answer[1]
    assert client.read() is None


@pytest.mark.parametrize("level", [V31, V311])
@pytest.mark.parametrize(
    "body",
    [
        connect_body(V311, flags=0x03),
        connect_body(V311, flags=0x42, rest=text("secret")),
        connect_body(V311, "a\0b"),
        connect_body(V311, flags=0x1E, rest=text("w") + text("")),
        connect_body(V311)[:-1],
    ],
)
def test_what_is_malformed_is_not_answered(peer: NewPeer, level: int, body: bytes) -> None:
    """3.1.1 [MQTT-1.5.3-2], [MQTT-3.1.2-3], [MQTT-3.1.2-14], [MQTT-3.1.2-22], [MQTT-3.1.4-1],
    [MQTT-4.7.3-1]."""
    client = peer(level)
    client.send(packet(1, body))
    assert client.read() is None


def test_version_5_hears_what_is_malformed(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.4-1], [MQTT-4.13.2-1]: CONNACK with a reason, and the end."""
    client = peer(V5)
    client.send(packet(1, connect_body(V5, flags=0x03)))
    assert code(client.expect(2).body) == 0x81
    assert client.read() is None


@pytest.mark.parametrize("level", VERSIONS)
@pytest.mark.parametrize(
    ("user", "password"), [("guest", "wrong"), ("nobody", "guest"), (None, None), ("guest", None)]
)
def test_a_wrong_login_is_refused(
    peer: NewPeer, level: int, user: str | None, password: str | None
) -> None:
    """3.1.1 [MQTT-3.2.2-5], 5.0 [MQTT-3.1.4-2], [MQTT-3.2.2-7]: return code 5, version 5 has a
    reason of its own."""
    client = peer(level)
    assert code(client.connect(new_id(), user=user, password=password)) == (
        0x86 if level == V5 else 5
    )
    assert client.read() is None


@pytest.mark.parametrize("level", VERSIONS)
def test_the_user_name_may_name_a_virtual_host(peer: NewPeer, level: int) -> None:
    """The part before the first colon does; one that is not there is refused."""
    assert code(peer(level).connect(new_id(), user="/:guest")) == 0
    refused = 0x87 if level == V5 else 5
    assert code(peer(level).connect(new_id(), user="not-there:guest")) == refused


def test_an_identifier_is_given_to_who_has_none(peer: NewPeer) -> None:
    """3.1.1 [MQTT-3.1.3-6], [MQTT-3.1.3-8], 5.0 [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16]."""
    assert code(peer(V311).connect("")) == 0
    assert code(peer(V311).connect("", clean=False)) == 2
    told = [peer(V5).connect("")[2:] for _ in range(2)]
    assert all(b"\x12" in each for each in told)
    assert told[0] != told[1]


@pytest.mark.parametrize("level", VERSIONS)
def test_identifiers_that_cannot_be(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.3-9], 5.0 [MQTT-3.1.3-8]: too long, or the name of something shared."""
    for name in ("x" * 251, "$share/group/filter"):
        client = peer(level)
        assert code(client.connect(name)) == (0x85 if level == V5 else 2)
        assert client.read() is None
    assert code(peer(level).connect("x" * 250)) == 0


@pytest.mark.parametrize("level", [V31, V311])
def test_which_sessions_are_present(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-4], [MQTT-3.1.2-6], [MQTT-3.1.4-3], [MQTT-3.2.2-1], [MQTT-3.2.2-2],
    [MQTT-3.2.2-3]: only one that was kept, and is wanted, is."""
    name = new_id()
    for clean, present in ((False, ABSENT), (False, PRESENT), (True, ABSENT), (True, ABSENT),
                           (False, ABSENT), (False, PRESENT)):  # fmt: skip
        client = peer(level)
        assert client.connect(name, clean=clean) == bytes([present, 0])
        client.disconnect()


def test_sessions_of_version_5_live_as_long_as_they_want(peer: NewPeer) -> None:
    """5.0 [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.1.2-23], [MQTT-3.1.4-4],
    [MQTT-3.2.2-2], [MQTT-3.2.2-3]."""
    name, kept = new_id(), block(b"\x11\0\0\0\x64")
    for clean, properties, present in (
        (False, kept, ABSENT), (False, kept, PRESENT), (False, block(), PRESENT),
        (False, kept, ABSENT), (True, kept, ABSENT), (False, kept, PRESENT),
    ):  # fmt: skip
        client = peer(V5)
        assert client.connect(name, clean=clean, properties=properties)[0] == present
        client.disconnect()


def test_disconnect_of_version_5_may_end_the_session(peer: NewPeer) -> None:
    """5.0 section 3.14.2.2.2: the expiry of a session may be changed, but not from 0.
    [MQTT-4.1.0-2]: it ends with its connection then."""
    name, kept = new_id(), block(b"\x11\0\0\0\x64")
    client = peer(V5)
    client.connect(name, properties=kept)
    client.disconnect(b"\0" + block(b"\x11\0\0\0\0"))
    client = peer(V5)
    assert client.connect(name, clean=False)[0] == ABSENT
    client.send(packet(14, b"\0" + kept))
    assert client.reason_of_end() == 0x82


def test_the_broker_says_how_long_it_keeps_a_session(peer: NewPeer) -> None:
    """5.0 section 3.2.2.3.2: what is longer than max_session_expiry is cut, and told."""
    told = peer(V5).connect(new_id(), properties=block(b"\x11\xff\xff\xff\xff"))
    assert b"\x11" + (86400).to_bytes(4, "big") in told
    told = peer(V5).connect(new_id(), properties=block(b"\x11\0\0\0\x64"))
    assert b"\x11" not in told[3:]


@pytest.mark.parametrize("level", VERSIONS)
def test_the_newer_of_two_takes_the_session_over(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.4-2], 5.0 [MQTT-3.1.4-3]: the older one is closed, and its messages are not
    lost."""
    name, topic = new_id(), f"t/{uuid.uuid4().hex}"
    kept = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
    older = peer(level)
    older.connect(name, **kept)
    older.subscribe((topic, 1))
    sender = peer(level)
    sender.connect(new_id())
    sender.publish(topic, b"one", 1)
    first = older.message(is_acked=False)
    newer = peer(level)
    assert newer.connect(name, **kept)[0] == PRESENT
    assert older.reason_of_end() == (0x8E if level == V5 else None)
    again = newer.message()
    assert (again.payload, again.packet_id, again.dup) == (b"one", first.packet_id, True)
    newer.ping()


def test_a_storm_on_one_identifier_leaves_one_client(peer: NewPeer) -> None:
    """3.1.1 [MQTT-3.1.4-2]: every one but the last is closed."""
    name = new_id()
    clients = [peer() for _ in range(30)]
    for client in clients:
        client.send(connect(V311, name, clean=False))
    answers = [client.read() for client in clients]
    assert any(answers)
    alive = []
    for client in clients:
        try:
            client.send(b"\xc0\0")
            if client.read() is not None:
                alive.append(client)
        except OSError:
            continue
    assert len(alive) == 1


@pytest.mark.parametrize("level", VERSIONS)
def test_a_silent_client_is_closed(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.2-24], 5.0 [MQTT-3.1.2-22], [MQTT-3.2.2-22]: after one and a half times the
    keep alive."""
    client = peer(level)
    client.connect(new_id(), keep_alive=1)
    assert client.reason_of_end() == (0x8D if level == V5 else None)


def test_limits_of_the_virtual_host_hold(mqtt: Broker, peer: NewPeer) -> None:
    """CONNACK 3 and 0x97: as many connections, or sessions, as there may be."""
    api = Api(mqtt)
    assert api("PUT", "/api/vhosts/limited").status < 300
    limit = "/api/vhost-limits/limited/max-connections"
    assert api("PUT", limit, {"value": 1}).status < 300
    assert code(peer(V311).connect(new_id(), user="limited:guest")) == 0
    assert code(peer(V311).connect(new_id(), user="limited:guest")) == 3
    assert code(peer(V5).connect(new_id(), user="limited:guest")) == 0x97
    assert api("PUT", limit, {"value": 9}).status < 300
    limit = "/api/vhost-limits/limited/max-queues"
    assert api("PUT", limit, {"value": 1}).status < 300
    assert code(peer(V311).connect(new_id(), user="limited:guest", clean=False)) == 3
    assert code(peer(V5).connect(new_id(), user="limited:guest")) == 0x97


def test_client_identifiers_may_have_to_be_user_names(own: NewBroker) -> None:
    """The setting client_id_validation; who gives none gets the user name."""
    broker = own("[mqtt]\nclient_id_validation = username\n")
    with Peer(broker.mqtt_port, V5) as client:
        assert code(client.connect(new_id())) == 0x85
    with Peer(broker.mqtt_port, V5) as client:
        assert b"\x12" + text("guest") in client.connect("")
    with Peer(broker.mqtt_port) as client:
        assert code(client.connect("guest")) == 0


def test_there_may_be_a_user_for_those_without_a_name(own: NewBroker) -> None:
    """The setting anonymous_user; a name counts all the same."""
    broker = own("[mqtt]\nanonymous_user = guest\n")
    with Peer(broker.mqtt_port) as client:
        assert code(client.connect(new_id(), user=None, password=None)) == 0
    with Peer(broker.mqtt_port) as client:
        assert code(client.connect(new_id(), user="guest", password="wrong")) == 5
