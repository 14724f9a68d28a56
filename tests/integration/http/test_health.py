"""Health checks, probes and the aliveness test over HTTP: what is healthy, and what is not."""

from __future__ import annotations

import http.client
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.managed import Managed, managed

ODD = "odd %2F >ü"
CHECK = "/api/health/checks/"


@pytest.fixture
def broker() -> Iterator[Managed]:
    with managed() as broker:
        broker.add_vhost(ODD)
        yield broker


@pytest.mark.parametrize(
    "check",
    [
        "alarms", "local-alarms", "virtual-hosts", "ready-to-serve-clients",
        "node-is-quorum-critical", "node-is-mirror-sync-critical", "certificate-expiration/1/days",
        "certificate-expiration/4/months",
    ],
)  # fmt: skip
def test_a_healthy_broker_passes(broker: Managed, check: str) -> None:
    assert broker.api.get(CHECK + check) == {"status": "ok"}
    assert broker.user("imp", "impersonator").get(CHECK + check) == {"status": "ok"}


def test_a_full_disk_is_an_alarm(broker: Managed) -> None:
    broker.call(setattr, broker.inner.loop, "is_low", True)

    for check in ("alarms", "local-alarms"):
        answer = broker.api("GET", CHECK + check)

        assert answer.status == 503
        assert (answer.json["status"], len(answer.json["alarms"])) == ("failed", 1)
        assert answer.json["alarms"][0]["resource"] == "disk"
        node = answer.json["alarms"][0]["node"]
        assert answer.json["reason"] == f"There are alarms in effect: disk of {node}"


def test_a_port_is_checked_for_a_listener(broker: Managed) -> None:
    ports = [broker.port, broker.http_port, broker.metrics_port]
    for port in ports:
        answer = broker.api.get(f"{CHECK}port-listener/{port}")
        assert answer == {"status": "ok", "port": port}

    missing = broker.api("GET", f"{CHECK}port-listener/1")

    assert missing.status == 503
    assert missing.json == {
        "status": "failed", "reason": "No active listener on port 1", "missing": 1,
        "ports": ports,
    }  # fmt: skip


@pytest.mark.parametrize("port", ["x", "-1", "65536", "999999999999", "1.5"])
def test_what_is_no_port_is_refused(broker: Managed, port: str) -> None:
    assert broker.api("GET", f"{CHECK}port-listener/{port}").status == 400


@pytest.mark.parametrize("protocol", ["amqp", "AMQP", "amqp091", "http", "prometheus"])
def test_a_protocol_is_checked_for_a_listener(broker: Managed, protocol: str) -> None:
    answer = broker.api.get(f"{CHECK}protocol-listener/{protocol}")

    assert answer == {"status": "ok", "protocol": protocol}


@pytest.mark.parametrize("protocol", ["mqtt", "stomp", "amqps", "https", "ü/"])
def test_a_protocol_that_nobody_speaks_fails(broker: Managed, protocol: str) -> None:
    answer = broker.api("GET", f"{CHECK}protocol-listener/{quote(protocol, safe='')}")

    assert (answer.status, answer.json["missing"]) == (503, protocol)
    assert answer.json["reason"] == f"No active listener for {protocol}"
    assert answer.json["protocols"] == ["amqp", "http", "http/prometheus"]


@pytest.mark.parametrize("place", ["1/fortnights", "x/days", "-1/days", "999999/days", "999/years"])
def test_a_time_that_makes_no_sense_is_refused(broker: Managed, place: str) -> None:
    assert broker.api("GET", f"{CHECK}certificate-expiration/{place}").status == 400


def test_a_certificate_that_expires_soon_fails(
    broker: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "20", "-subj",
         "/CN=x", "-keyout", tmp_path / "key.pem", "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    from lavinmq.http import certificates

    monkeypatch.setattr(certificates, "paths", lambda _config: [str(certificate)])

    assert broker.api.get(f"{CHECK}certificate-expiration/2/weeks") == {"status": "ok"}
    soon = broker.api("GET", f"{CHECK}certificate-expiration/1/months")
    assert soon.status == 503
    assert [each["file"] for each in soon.json["expired"]] == [str(certificate)]
    certificate.write_text("no certificate")
    unreadable = broker.api("GET", f"{CHECK}certificate-expiration/1/days")
    assert (unreadable.status, unreadable.json["status"]) == (503, "failed")
    assert str(certificate) in unreadable.json["reason"]


def test_a_vhost_that_could_not_be_loaded_fails(http_broker: Broker) -> None:
    api = Api(http_broker)
    assert api("PUT", "/api/vhosts/broken", {}).status == 201
    directory = api.get("/api/vhosts/broken")["dir"]
    http_broker.stop()
    definitions = http_broker.data_dir / directory / "definitions.amqp"
    definitions.unlink()
    definitions.mkdir()
    http_broker.start()

    answer = api("GET", CHECK + "virtual-hosts")

    assert answer.status == 503
    assert answer.json["virtual-hosts"] == ["broken"]
    shutil.rmtree(definitions)


def test_health_checks_need_a_login(broker: Managed) -> None:
    assert Api(broker, "nobody")("GET", CHECK + "alarms").status == 401  # type: ignore[arg-type]


def probe(host: str, port: int, method: str, path: str) -> tuple[int, bytes, str | None]:
    """Ask without a log-in. Returns: status, content, announced length."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Length")
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_answer_without_a_login(broker: Managed, path: str) -> None:
    for port in (broker.http_port, broker.metrics_port):
        assert probe(broker.host, port, "GET", path) == (200, b"ok\n", "3")
        assert probe(broker.host, port, "HEAD", path) == (200, b"", "3")
        assert probe(broker.host, port, "POST", path)[0] == 405


def test_a_broker_that_is_going_is_alive_and_not_ready(
    broker: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.inner, "is_stopping", True)

    assert probe(broker.host, broker.metrics_port, "GET", "/readyz")[0] == 503
    assert probe(broker.host, broker.metrics_port, "GET", "/healthz")[0] == 200
    answer = broker.api("GET", CHECK + "ready-to-serve-clients")
    assert (answer.status, answer.json["status"]) == (503, "failed")
    monkeypatch.undo()


def test_a_message_through_a_vhost_proves_it_alive(broker: Managed) -> None:
    path = f"/api/aliveness-test/{quote(ODD, safe='')}"
    manager = broker.user("ann", "management", vhost=ODD)

    for api in (broker.api, manager, broker.api):
        assert api.get(path) == {"status": "ok"}

    queue = broker.queue("aliveness-test", ODD)
    assert (queue.durable, queue.auto_delete) == (False, False)
    counts = broker.call(queue.core.counters)
    assert (counts["publish"], counts["get_no_ack"]) == (3, 3)
    assert [(x.name, key) for x, key, _ in queue.incoming] == [("amq.direct", "aliveness-test")]
    assert broker.api.get("/api/connections") == []


def test_the_aliveness_test_needs_the_vhost(broker: Managed) -> None:
    manager = broker.user("ann", "management", vhost="/")

    assert manager("GET", f"/api/aliveness-test/{quote(ODD, safe='')}").status == 403
    assert broker.api("GET", "/api/aliveness-test/nope").status == 403


def fails(api: Api) -> Any:
    """The reason for which the aliveness test of `/` fails."""
    answer = api.get("/api/aliveness-test/%2F")
    assert answer["status"] == "failed"
    return answer["reason"]


def test_the_aliveness_test_fails_where_messages_do(broker: Managed) -> None:
    assert broker.api.get("/api/aliveness-test/%2F") == {"status": "ok"}

    broker.call(setattr, broker.inner.loop, "is_low", True)
    assert "disk" in fails(broker.api)
    broker.call(setattr, broker.inner.loop, "is_low", False)
    broker.call(broker.vhost().operators.pause, "aliveness-test")
    assert fails(broker.api) == "the message did not arrive"
    broker.call(broker.vhost().operators.resume, "aliveness-test")
    assert broker.api.get("/api/aliveness-test/%2F") == {"status": "ok"}


def test_the_aliveness_test_survives_a_queue_of_that_name(broker: Managed) -> None:
    with broker.connect() as client:
        client.channel().queue_declare("aliveness-test", durable=True)

        assert "aliveness-test" in fails(broker.api)


def test_the_aliveness_test_beats_a_consumer(broker: Managed) -> None:
    assert broker.api.get("/api/aliveness-test/%2F") == {"status": "ok"}
    with broker.connect() as client:
        client.channel().basic_consume("aliveness-test", lambda *_: None, auto_ack=True)

        for _ in range(5):
            assert broker.api.get("/api/aliveness-test/%2F") == {"status": "ok"}


def test_the_aliveness_test_leaks_no_descriptor(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    api = Api(broker)
    api.get("/api/aliveness-test/%2F")
    before = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))

    for _ in range(20):
        api.get("/api/aliveness-test/%2F")

    assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) <= before + 2
