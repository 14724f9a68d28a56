"""Log-in by AUTH packets: SCRAM-SHA-256, and once more while connected."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5
from tests.support.mqtt_peer import Peer

SCRAM = "SCRAM-SHA-256"
AUTH, CONNACK, DISCONNECT = 15, 2, 14
CONTINUE, AGAIN = 0x18, 0x19


def auth_block(data: bytes | None, method: str = SCRAM) -> bytes:
    return mqtt_bytes.block(
        b"\x15" + mqtt_bytes.text(method),
        *([] if data is None else [b"\x16" + mqtt_bytes.text(data)]),
    )


def auth(reason: int, data: bytes, method: str = SCRAM) -> bytes:
    return mqtt_bytes.packet(AUTH, bytes([reason]) + auth_block(data, method))


def data_of(block: bytes) -> bytes:
    """The authentication data in properties that have the method, and it, and nothing behind."""
    at = block.index(b"\x16", block.index(SCRAM.encode()))
    n = int.from_bytes(block[at + 1 : at + 3], "big")
    return block[at + 3 : at + 3 + n]


class Client:
    """A client that knows SCRAM."""

    def __init__(self, peer: Peer, name: str, password: str) -> None:
        self.peer, self.name, self._password = peer, name, password.encode()
        self._bare = f"n={name},r=abcdef".encode()
        self._signature = b""

    def begin(self, **more: object) -> None:
        """Send CONNECT."""
        self.peer.send(
            mqtt_bytes.connect(
                V5, uuid.uuid4().hex, user=None, password=None,
                properties=auth_block(b"n,," + self._bare), **more,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    def connect(self, **more: object) -> int:
        """Returns: the reason in CONNACK."""
        self.begin(**more)
        self.peer.send(auth(CONTINUE, self.proof(self.challenge())))
        packet = self.peer.read()
        assert packet is not None
        assert packet.kind == CONNACK
        if not packet.body[1]:
            assert data_of(packet.body) == b"v=" + base64.b64encode(self._signature)
        return packet.body[1]

    def challenge(self) -> bytes:
        """The first message of the server, with the method and nothing else."""
        body = self.peer.expect(AUTH).body
        assert body[0] == CONTINUE
        found = data_of(body)
        assert body[1:] == auth_block(found)
        return found

    def proof(self, first: bytes) -> bytes:
        """The last message, as the answer to the first one of the server."""
        nonce, salt, iterations = (part[2:] for part in first.split(b","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self._password, base64.b64decode(salt), int(iterations)
        )
        bare = b"c=biws,r=" + nonce
        said = self._bare + b"," + first + b"," + bare
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return bare + b",p=" + base64.b64encode(proof)

    def again(self) -> None:
        """Authenticate once more, up to the last message."""
        self.peer.send(auth(AGAIN, b"n,," + self._bare))
        self.peer.send(auth(CONTINUE, self.proof(self.challenge())))


@pytest.fixture
def name(mqtt: Broker) -> str:
    """A user whose password is `secret`, and was set as such."""
    made = uuid.uuid4().hex
    api = Api(mqtt)
    api("PUT", f"/api/users/{made}", {"password": "secret", "tags": ""})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    api("PUT", f"/api/permissions/%2F/{made}", rights)
    return made


@pytest.fixture
def client(mqtt: Broker, name: str) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def make(user: str = name, password: str = "secret") -> Client:
            return Client(stack.enter_context(Peer(mqtt.mqtt_port, V5)), user, password)

        yield make


def test_a_password_that_becomes_another_meanwhile_opens_nothing(
    mqtt: Broker, client: Callable[..., Client], name: str
) -> None:
    """Whoever knows the old one cannot begin with it, wait, and be let in for as long as it
    likes."""
    old = client()
    old.begin()
    first = old.challenge()

    assert Api(mqtt)("PUT", f"/api/users/{name}", {"password": "another"}).status == 204
    old.peer.send(auth(CONTINUE, old.proof(first)))

    packet = old.peer.read()
    assert packet is not None
    assert (packet.kind, packet.body[1]) == (CONNACK, 0x87)


def test_the_password_opens_and_the_broker_proves_that_it_knows_it(
    client: Callable[..., Client],
) -> None:
    """5.0 [MQTT-3.15.2-1], [MQTT-3.15.2-2], [MQTT-3.15.2-3], [MQTT-4.12.0-2], [MQTT-4.12.0-3],
    [MQTT-4.12.0-5]."""
    one = client()

    assert one.connect() == 0

    one.peer.subscribe(("t", 1))
    one.peer.publish("t", b"x", 1)
    assert one.peer.message().payload == b"x"


def test_a_virtual_host_stands_before_the_name(client: Callable[..., Client], name: str) -> None:
    assert client(f"/:{name}").connect() == 0
    assert client(f"nowhere:{name}").connect() == 0x87


@pytest.mark.parametrize("password", ["wrong", "Secret"])
def test_another_password_does_not_open(client: Callable[..., Client], password: str) -> None:
    """5.0 [MQTT-4.12.0-4]."""
    assert client(password=password).connect() == 0x87


def test_who_is_not_there_and_who_has_a_hash_alone_do_not_come_in(
    mqtt: Broker, client: Callable[..., Client]
) -> None:
    hashed = uuid.uuid4().hex
    api = Api(mqtt)
    given = api("PUT", "/api/auth/hash_password", {"password": "secret"}).json["password_hash"]
    api("PUT", f"/api/users/{hashed}", {"password_hash": given, "tags": ""})

    assert client(hashed).connect() == 0x87
    assert client("nobody").connect() == 0x87

    api("PUT", f"/api/users/{hashed}", {"password": "secret"})  # the same one, as such
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    api("PUT", f"/api/permissions/%2F/{hashed}", rights)
    assert client(hashed).connect() == 0


def test_another_method_is_refused(mqtt: Broker) -> None:
    """5.0 [MQTT-4.12.0-1]."""
    with Peer(mqtt.mqtt_port, V5) as peer:
        body = peer.connect("c", properties=auth_block(b"x", "GS2-KRB5"))
        assert body[1] == 0x8C


def test_an_exchange_that_is_none_ends(mqtt: Broker, name: str) -> None:
    for first in (b"", b"y", b"p=tls-unique,,n=u,r=a"):
        with Peer(mqtt.mqtt_port, V5) as peer:
            peer.send(
                mqtt_bytes.connect(V5, user=None, password=None, properties=auth_block(first))
            )
            if not first:
                peer.expect(AUTH)
                peer.send(auth(CONTINUE, b"n,,broken"))
            packet = peer.read()
            assert packet is not None
            assert (packet.kind, packet.body[1]) == (CONNACK, 0x87)


def test_a_client_authenticates_again_while_it_is_connected(client: Callable[..., Client]) -> None:
    """5.0 [MQTT-4.12.1-1]."""
    one = client()
    one.connect()

    one.again()

    answer = one.peer.expect(AUTH)
    assert answer.body[0] == 0
    one.peer.ping()


def test_a_wrong_proof_ends_a_connection(client: Callable[..., Client]) -> None:
    """5.0 [MQTT-4.12.1-2]."""
    one = client()
    one.connect()
    one._password = b"wrong"

    one.again()

    assert one.peer.reason_of_end() == 0x87


def test_auth_without_a_method_in_connect_is_a_mistake(mqtt: Broker) -> None:
    """5.0 [MQTT-4.12.0-7]."""
    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect("c")
        peer.send(auth(AGAIN, b"x"))
        assert peer.reason_of_end() == 0x82


def test_keys_outlive_a_restart_and_come_along_with_definitions(
    own: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = own()
    api = Api(broker)
    api("PUT", "/api/users/u", {"password": "secret", "tags": ""})
    api("PUT", "/api/permissions/%2F/u", {"configure": ".*", "write": ".*", "read": ".*"})
    document = api.get("/api/definitions")
    stored = json.loads((broker.data_dir / "users.json").read_text())
    assert all("scram" not in key for user in stored for key in user)

    broker.stop()
    broker.start()
    with Peer(broker.mqtt_port, V5) as peer:
        assert Client(peer, "u", "secret").connect() == 0

    api("DELETE", "/api/users/u")
    assert api("POST", "/api/definitions", document).status in (200, 204)
    with Peer(broker.mqtt_port, V5) as peer:
        assert Client(peer, "u", "secret").connect() == 0
