"""Clients that do at once what others do in turns: nobody has a session twice, nothing is lost."""

from __future__ import annotations

import random
import socket
import struct
import time
import uuid
from collections import Counter

import pytest

from tests.integration.mqtt.conftest import NewPeer
from tests.support.mqtt_bytes import V5, V311, block, connect, packet, publish
from tests.support.mqtt_peer import Peer

STORM = 40
EXPIRY_1 = {"clean": False, "properties": block(b"\x11\0\0\0\x01")}
MOST_IN_FLIGHT = 65535


def new(word: str = "t") -> str:
    """A topic or an identifier that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:12]}"


def is_alive(client: Peer) -> bool:
    """Whether a client is still connected."""
    try:
        client.send(b"\xc0\0")
        while (each := client.read()) is not None:
            if each.kind == 13:
                return True
    except OSError:
        pass
    return False


def reset(client: Peer) -> None:
    """Lose its connection."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def received(client: Peer, n: int) -> bytes:
    """The next bytes, which are not taken apart: there are very many packets."""
    data = b""
    while len(data) < n:
        data += client.socket.recv(n - len(data))
    return data


@pytest.mark.parametrize("level", [V311, V5])
def test_a_storm_on_one_identifier_publishes_each_will_once(peer: NewPeer, level: int) -> None:
    """3.1.1 [MQTT-3.1.4-2], 5.0 [MQTT-3.1.4-3]: the wills of those that are closed, and the last
    one has its session."""
    name, topic = new("c"), new()
    kept = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
    witness = peer(V311)
    witness.connect(new("w"))
    witness.subscribe((topic, 1))
    clients = [peer(level) for _ in range(STORM)]
    for number, client in enumerate(clients):
        client.send(connect(level, name, will=(topic, b"%d" % number, 1, False), **kept))  # type: ignore[arg-type]
    # Who answers may be there only until the next one is let in.
    alive = list(range(STORM))
    while len(alive := [each for each in alive if is_alive(clients[each])]) > 1:
        pass
    assert len(alive) == 1
    witness.publish(topic, b"end", 1)
    came: Counter[bytes] = Counter()
    while (message := witness.message()).payload != b"end":
        came[message.payload] += 1
    assert max(came.values()) == 1
    assert set(came) == {b"%d" % each for each in range(STORM)} - {b"%d" % alive[0]}
    last = clients[alive[0]]
    last.subscribe((topic, 1))
    witness.publish(topic, b"here", 1)
    assert last.message().payload == b"here"


def test_a_session_that_expires_while_its_client_comes_back_is_one_or_the_other(
    peer: NewPeer,
) -> None:
    """5.0 section 3.1.2.11.2: it is there with its subscription, or there is a fresh one; either
    serves its client from then on."""
    names, topic = [new("c") for _ in range(20)], new()
    for name in names:
        client = peer(V5)
        client.connect(name, **EXPIRY_1)
        client.subscribe((topic, 1))
        reset(client)
    time.sleep(0.9)
    chance = random.Random(1)
    back = []
    for name in names:
        time.sleep(chance.uniform(0.0, 0.02))
        back.append((name, peer(V5)))
        back[-1][1].send(connect(V5, name, **EXPIRY_1))  # type: ignore[arg-type]
        if chance.random() < 0.5:  # and another one takes it over at the same time
            back.append((name, peer(V5)))
            back[-1][1].send(connect(V5, name, **EXPIRY_1))  # type: ignore[arg-type]
    alive = {name: client for name, client in back if is_alive(client)}
    assert set(alive) == set(names)
    for client in alive.values():
        client.subscribe((topic, 1))
    sender = peer(V311)
    sender.connect(new("s"))
    sender.publish(topic, b"here", 1)
    for client in alive.values():
        assert client.message().payload == b"here"
        client.ping()
        assert not client.early_messages()


def test_no_identifier_is_given_twice_when_all_are_in_flight(peer: NewPeer) -> None:
    """3.1.1 [MQTT-2.3.1-4], 5.0 [MQTT-2.2.1-4]: one more waits until one comes back."""
    topic, n = "t" + uuid.uuid4().hex[:7], MOST_IN_FLIGHT + 10
    taker, sender = peer(V311), peer(V311)
    taker.connect(new("c"), clean=False)
    taker.subscribe((topic, 1))
    sender.connect(new("s"))
    one = publish(V311, topic, b"x", qos=1, packet_id=7)
    while n:
        sender.send(one * min(1000, n))
        received(sender, 4 * min(1000, n))
        n -= min(1000, n)
    size = len(one)

    def taken(count: int) -> list[bytes]:
        data = received(taker, count * size)
        return [data[at + size - 3 : at + size - 1] for at in range(0, len(data), size)]

    ids = taken(MOST_IN_FLIGHT)
    assert len(set(ids)) == MOST_IN_FLIGHT
    assert b"\0\0" not in ids
    assert taker.has_silence()
    for each in (ids[5], ids[60000]):
        taker.send(packet(4, each))
        assert taken(1) == [each]
