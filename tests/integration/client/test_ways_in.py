"""Ways to a broker: TLS, EXTERNAL, unix sockets, WebSocket."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.client import Client, ClientConnectionError, ConfigError, ConnectionState
from lavinmq.client.errors import AuthenticationError, ProtocolViolation
from tests.support.broker import Broker
from tests.support.certificates import Authority, Identity
from tests.support.ports import HOST
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.inside import Inside

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def inside() -> Any:
    """A broker in this process; where the client is installed alone there is none."""
    return pytest.importorskip("tests.support.inside").inside


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("client-ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost", HOST))


@pytest.fixture(scope="module")
def tls_broker(inside: Any, authority: Authority, server: Identity) -> Iterator[Inside]:
    """A broker that lets nobody in without a certificate."""
    with inside(
        tls_cert=server.cert, tls_key=server.key, tls_verify_peer=True, tls_ca_cert=authority.path
    ) as made:
        made.add_user("carol", rights=(".*", ".*", ".*"))
        yield made


def there_and_back(client: Client) -> None:
    """Publish a message and fetch it."""
    body = bytes(300_000)
    client.producer("ways-in").publish(body).result(10)
    message = client.get("ways-in")
    assert message is not None and message.body == body
    client.delete_queue("ways-in")


def test_tls_with_a_certificate_and_a_password(tls_broker: Inside, authority: Authority) -> None:
    who = authority.issue("anyone")
    url = f"amqps://guest:guest@localhost:{tls_broker.server.tls_port}/"
    with Client(
        url, cacertfile=str(authority.path), certfile=str(who.cert), keyfile=str(who.key)
    ) as client:
        there_and_back(client)


def test_a_client_that_is_closed_leaves_no_socket_open(
    tls_broker: Inside, authority: Authority
) -> None:
    """Both sides of TLS say goodbye: the loop of the client ended before they had."""
    who = authority.issue("tidy")
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            with Client(
                f"amqps://guest:guest@localhost:{tls_broker.server.tls_port}/",
                cacertfile=str(authority.path), certfile=str(who.cert), keyfile=str(who.key),
            ) as client:  # fmt: skip
                there_and_back(client)
            del client
        gc.collect()

    assert [str(each.message) for each in said if each.category is ResourceWarning] == []


def test_external_takes_the_certificate_for_the_user(
    tls_broker: Inside, authority: Authority
) -> None:
    who = authority.issue("carol")
    url = f"amqps://localhost:{tls_broker.server.tls_port}/?auth=external"
    options: dict[str, Any] = {"cacertfile": str(authority.path), "certfile": str(who.cert)}
    with Client(url, keyfile=str(who.key), **options) as client:
        there_and_back(client)


def test_a_certificate_of_a_stranger_is_not_trusted(tls_broker: Inside) -> None:
    client = Client(f"amqps://localhost:{tls_broker.server.tls_port}/", fail_fast=False)
    client.start()
    wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 20)

    assert "certificate" in str(client.last_error).lower()
    client.close()


def test_a_file_that_is_missing_is_said(tls_broker: Inside) -> None:
    url = f"amqps://localhost:{tls_broker.server.tls_port}/"
    with pytest.raises(ConfigError, match="cacertfile"):
        Client(url, cacertfile="/no/such/file").start()


def test_external_is_refused_when_it_is_not_offered(broker: Broker) -> None:
    with pytest.raises(AuthenticationError, match="EXTERNAL"):
        Client(f"amqp://{broker.host}:{broker.port}/", auth="external").start()


def test_amqplain_and_tokens_are_ways_to_log_in(broker: Broker) -> None:
    with Client(broker.uri, auth="amqplain") as client:
        there_and_back(client)
    with Client(f"amqp://guest:none@{broker.host}:{broker.port}/", auth="token",
                token=lambda: "guest") as client:  # fmt: skip
        there_and_back(client)


def test_a_unix_socket(inside: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        path = f"{directory}/amqp.sock"
        with inside(amqp_unix_path=path, amqp_port=-1), Client(f"unix://{path}") as client:
            there_and_back(client)


def test_a_websocket(broker: Broker) -> None:
    with Client(f"ws://guest:guest@{broker.host}:{broker.http_port}/any/path") as client:
        there_and_back(client)
        with client.consumer("ways-in") as consumer:
            client.producer("ways-in").publish_batch([b"x" * 100] * 2000).result(20)
            for _ in range(2000):
                message = consumer.get(5)
                assert message is not None and message.ack()
        client.delete_queue("ways-in")


def test_no_websocket_where_there_is_none(broker: Broker) -> None:
    with pytest.raises((ClientConnectionError, ProtocolViolation)):
        Client(f"ws://{broker.host}:{broker.port}/", connect_timeout=2).start()


def test_a_virtual_host_that_is_not_there(broker: Broker) -> None:
    with pytest.raises((AuthenticationError, ClientConnectionError), match=r"no-such|530|403|404"):
        Client(f"amqp://guest:guest@{broker.host}:{broker.port}/no-such").start()


def test_nobody_there_is_said_with_the_place() -> None:
    with pytest.raises(ClientConnectionError, match=r"amqp://127\.0\.0\.1:1"):
        Client("amqp://u:topsecret@127.0.0.1:1/").start()


def test_a_disk_that_is_full_is_no_reason_to_lose_a_message(tmp_path: Path) -> None:
    """A spill that has reached its bound says so to who publishes."""
    from lavinmq.client import BufferFullError

    client = Client(
        "amqp://127.0.0.1:1/", fail_fast=False, spill_directory=str(tmp_path), spill_bytes=300,
        close_timeout=0.1,
    )  # fmt: skip
    producer = client.producer("q", buffer_policy="spill", buffer_size=2)
    with pytest.raises(BufferFullError, match="spill"):
        for _ in range(20):
            producer.publish(b"x" * 50)
    client.close()
