"""What changes while a client of MQTT waits for something counts for what it is given."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lavinmq.mqtt.connection import Connection
from lavinmq.mqtt.service import Service
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.subscribing import EXCHANGE, PREFIX, SHARE
from tests.support import mqtt_bytes
from tests.support.inside import Inside, inside
from tests.support.mqtt_bytes import V5, block
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    with inside(mqtt_port=0, mqtt_permission_check_enabled="true") as started:
        yield started


@pytest.fixture
def user(broker: Inside) -> str:
    """One who may do everything."""
    name = f"u-{uuid.uuid4().hex[:12]}"
    broker.add_user(name, rights=(".*", ".*", ".*"))
    return name


@pytest.fixture
def name() -> str:
    """An identifier, and a topic, that no other test uses."""
    return f"n-{uuid.uuid4().hex[:12]}"


class Held:
    """Directories of new queues that are not made before they are let go."""

    def __init__(self, broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self._begun = threading.Event()
        self._wishes: list[Callable[[], object]] = []
        files = broker.vhost().files
        wish = files.wish

        def later(*args: Any, **more: Any) -> None:
            self._wishes.append(lambda: wish(*args, **more))
            self._begun.set()

        monkeypatch.setattr(files, "wish", later)

    def wait(self) -> None:
        """Until somebody wants one."""
        assert self._begun.wait(20)

    def let_go(self) -> None:
        """Have all of them made."""
        self._broker.call(lambda: [wish() for wish in self._wishes])


@pytest.fixture
def held(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(broker, monkeypatch)


def client(broker: Inside, level: int = V5) -> Peer:
    return Peer(broker.server.mqtt_port, level)


def take_over(broker: Inside, client_id: str) -> None:
    """As if another connection of the client had come."""
    service = broker.inner.mqtt
    assert isinstance(service, Service)
    broker.call(service.of(broker.vhost()).clients[PREFIX + client_id].take_over)


def session(broker: Inside, client_id: str) -> Queue | None:
    return broker.vhost().queues.get(PREFIX + client_id)


def withdraw(broker: Inside, user: str, read: str = "", write: str = "") -> None:
    broker.call(broker.inner.accounts.set_permissions, user, "/", "", read, write)


def test_rights_that_go_while_a_session_is_made_are_gone(
    broker: Inside, user: str, name: str, held: Held
) -> None:
    with client(broker) as peer:
        peer.send(mqtt_bytes.connect(V5, name, user=user, password=user, **KEPT))
        held.wait()
        withdraw(broker, user)
        held.let_go()
        packet = peer.read()
        assert packet is not None
        assert packet.kind == 2

        peer.send(mqtt_bytes.publish(V5, name, b"x", qos=1, packet_id=7))

        assert peer.expect(4).body[:3] == bytes((0, 7, NOT_AUTHORIZED))
        assert peer.subscribe((name, 1)) == [NOT_AUTHORIZED]


def test_who_may_not_share_any_more_is_told_so(
    broker: Inside, user: str, name: str, held: Held
) -> None:
    """What all share was being made."""
    withdraw(broker, user, read=".*", write=r"mqtt\.n-.*")
    with client(broker) as peer:
        peer.connect(name, user=user, password=user)
        peer.send(mqtt_bytes.subscribe(V5, 9, (f"{SHARE}g/{name}", 1)))
        held.wait()
        withdraw(broker, user)
        held.let_go()

        assert peer.expect(9).body[3:] == bytes([NOT_AUTHORIZED])
        peer.ping()
    wait_for(lambda: f"{PREFIX}{SHARE}g/{name}" not in broker.vhost().queues, what="the queue goes")


def test_what_is_shared_by_nobody_is_not_made(broker: Inside, name: str, held: Held) -> None:
    """Its only member has gone before it was there."""
    with client(broker) as peer:
        peer.connect(name)
        peer.send(mqtt_bytes.subscribe(V5, 9, (f"{SHARE}g/{name}", 1)))
        held.wait()
        take_over(broker, name)
    assert session(broker, name) is None

    held.let_go()

    def pending() -> bool:
        return bool(broker.vhost().files._makings)

    wait_for(lambda: not broker.call(pending), what="the directory is dealt with")
    assert f"{PREFIX}{SHARE}g/{name}" not in broker.vhost().queues


def test_a_client_that_was_sent_away_subscribes_no_more(
    broker: Inside, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its SUBSCRIBE would bind a session that is gone, or somebody else's."""
    subscribe_one = Connection._subscribe_one
    asked: list[str] = []

    def and_away(self: Connection, queue: Queue, wish: Any, *more: Any) -> Any:
        found = subscribe_one(self, queue, wish, *more)
        asked.append(wish.filter)
        self.take_over()
        return found

    monkeypatch.setattr(Connection, "_subscribe_one", and_away)
    with client(broker) as peer:
        peer.connect(name)
        peer.send(mqtt_bytes.subscribe(V5, 9, (f"{name}/1", 1), (f"{name}/2", 1)))
        assert peer.reason_of_end() == 0x8E

    wait_for(lambda: session(broker, name) is None, what="the session ends")
    assert asked == [f"{name}/1"]
    bound = [key for _, key, _ in broker.call(lambda: list(broker.exchange(EXCHANGE).bindings))]
    assert not [key for key in bound if key.startswith(name)]


def test_retained_messages_end_with_the_subscription(broker: Inside, name: str) -> None:
    """3.1.1 [MQTT-3.10.4-2], 5.0 [MQTT-3.10.4-2]: nothing is added for what was unsubscribed. A
    client that takes one after the other has not been given all of them yet."""
    payload, n = bytes(100_000), 40

    def keep() -> None:
        service = broker.inner.mqtt
        assert isinstance(service, Service)
        stores = service.of(broker.vhost()).stores
        for number in range(n):
            stores.keep(f"{name}/{number}".encode(), payload, 1, b"", -1)

    broker.call(keep)
    with client(broker) as peer:
        peer.connect(name, properties=block(b"\x21\0\1"))
        peer.subscribe((f"{name}/#", 1), (f"{name}-end", 1))
        peer.unsubscribe(f"{name}/#")
        peer.publish(f"{name}-end", b"", 1)
        before = 0
        while peer.message().topic != f"{name}-end":
            before += 1

        assert 0 < before < n
        peer.ping()
        peer.ping()
        assert not peer.early_messages()


def test_nothing_is_done_in_files_of_a_virtual_host_that_is_gone(
    broker: Inside, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one of its name has the same directory. Nobody has looked yet which have gone."""
    service = broker.inner.mqtt
    assert isinstance(service, Service)
    done: list[bool] = []

    def clean_some() -> bool:
        done.append(name in broker.inner.vhosts)
        return True

    broker.call(broker.inner.vhosts.create, name)
    monkeypatch.setattr(service, "_forget_deleted", lambda: None)
    stores = broker.call(lambda: service.of(broker.vhost(name)).stores)
    broker.call(stores._begin, "retained messages", clean_some)
    broker.call(broker.inner.vhosts.delete, name)
    n_done = broker.call(lambda: len(done))
    broker.call(stores.keep, name.encode(), b"x", 0, b"", -1)
    wait_for(lambda: not stores._working, what="the work ends")

    assert n_done > 0
    assert all(done)
    assert stores.retained is not None
    assert not len(stores.retained)


def test_a_virtual_host_with_many_clients_goes_while_others_come(
    broker: Inside, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there until the last of them has left: the process ended here."""
    service = broker.inner.mqtt
    assert isinstance(service, Service)
    broker.call(broker.inner.vhosts.create, name)
    vhost = broker.vhost(name)
    deleting = vhost.deleting
    left: list[int] = []

    def slowly() -> Iterator[None]:
        for _ in deleting():
            left.append(len(vhost.connections))
            service._stores()  # who looks each second, and who comes to another one, asks for that
            yield

    monkeypatch.setattr(vhost, "deleting", slowly)
    with ExitStack() as stack:
        for number in range(3):
            peer = stack.enter_context(client(broker))
            will = (name, b"", 1, True)
            peer.connect(f"{name}-{number}", user=f"{name}:guest", will=will, **KEPT)
            peer.subscribe((name, 1), (f"{SHARE}g/{name}", 1))
        sessions = broker.call(service.of, vhost)
        broker.call(broker.inner.vhosts.delete, name)

    assert left[:3] == [2, 1, 0]
    broker.call(service._stores)
    assert service.known(vhost) is None
    assert sessions.stores.retained is None
