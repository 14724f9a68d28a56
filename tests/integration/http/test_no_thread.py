"""What is wanted of the management interface while no thread can be started: it says so, and lives.

The processes of a machine, or of a cgroup, may be used up for a while.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest

import lavinmq
from lavinmq.http.ui import files
from tests.support.certificates import Authority

QUEUE = "large"
BODY = b"x" * (2 << 20)
"""Larger than what is read in the loop's thread."""


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lavinmq.Broker]:
    """One with a certificate and a large message."""
    identity = Authority(tmp_path / "certificates").issue("localhost", expires=timedelta(days=30))
    with lavinmq.run(mgmt_port=0, tls_cert=identity.cert, tls_key=identity.key) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare(QUEUE)
            channel.confirm_delivery()
            channel.basic_publish("", QUEUE, BODY)
        monkeypatch.setattr(files, "_loaded", None)
        yield broker


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def ask(broker: lavinmq.Broker, method: str, path: str, said: object = None) -> tuple[int, str]:
    """Returns: status and body."""
    address = urlsplit(broker.http_url)
    assert address.hostname is not None
    login = base64.b64encode(f"{address.username}:{address.password}".encode()).decode()
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    body = None if said is None else json.dumps(said)
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_what_needs_a_thread_is_refused_with_the_reason_and_works_again(
    broker: lavinmq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was answered as a bug of the broker."""
    browse = f"/api/queues/%2F/{QUEUE}/browse"
    wanted = (
        ("GET", "/login", None, 503),
        ("GET", "/nowhere/to/go", None, 404),
        ("GET", "/api/health/checks/certificate-expiration/1/days", None, 503),
        ("POST", browse, {"count": 1}, 503),
        ("POST", "/api/nodes/gc_collect", None, 204),
        ("GET", "/api/nodes", None, 200),
        ("GET", "/api/advice", None, 200),
    )
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            for method, path, said, status in wanted:
                answer = ask(broker, method, path, said)
                assert answer[0] == status, (path, answer)
                if status == 503:
                    assert "No thread can be started" in answer[1], (path, answer)
        assert "No thread can be started" in ask(broker, "GET", "/api/advice")[1]

    for method, path, said, status in wanted:
        answer = ask(broker, method, path, said)
        assert answer[0] == (200 if status == 503 else status), (path, answer)
