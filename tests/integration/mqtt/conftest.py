"""What the tests of MQTT share: a broker that speaks it, and clients made of sockets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V311
from tests.support.mqtt_peer import Peer

NewPeer = Callable[..., Peer]
NewBroker = Callable[..., Broker]


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that listens for MQTT; tests take names of their own."""
    broker = Broker(tmp_path_factory.mktemp("mqtt") / "data", http=True, mqtt=True)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def peer(mqtt: Broker) -> Iterator[NewPeer]:
    """Call it with a version to get a client that is not connected yet."""
    with ExitStack() as stack:
        yield lambda level=V311: stack.enter_context(Peer(mqtt.mqtt_port, level))


@pytest.fixture
def home(mqtt: Broker) -> Iterator[str]:
    """A virtual host with a user who is called like it, and so is the password."""
    name, api = uuid.uuid4().hex, Api(mqtt)
    api("PUT", f"/api/vhosts/{name}")
    api("PUT", f"/api/users/{name}", {"password": name, "tags": ""})
    everything = {"configure": ".*", "read": ".*", "write": ".*"}
    assert api("PUT", f"/api/permissions/{name}/{name}", everything).status in (201, 204)
    yield name
    api("DELETE", f"/api/vhosts/{name}")
    api("DELETE", f"/api/users/{name}")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[NewBroker]:
    """Call it with the text of an ini file for a broker of the test's own, which is running."""
    with ExitStack() as stack:

        def start(ini: str = "", flags: tuple[str, ...] = ()) -> Broker:
            path = tmp_path / "lavinmq.ini"
            path.write_text(ini)
            broker = Broker(tmp_path / "data", ("-c", str(path), *flags), http=True, mqtt=True)
            broker.start()
            stack.callback(broker.stop)
            return broker

        yield start
