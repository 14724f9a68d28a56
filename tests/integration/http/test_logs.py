"""The log over HTTP: as text, and as server-sent events that go on where a reader left off."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from lavinmq.http.api import logs
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.managed import managed
from tests.support.waiting import wait_for

BASIC = "Basic " + b64encode(b"guest:guest").decode()


class Event(NamedTuple):
    """A server-sent event of the live log."""

    id: int
    level: str
    source: str
    text: str


class Follower:
    """Reads the live log."""

    def __init__(self, broker: Broker, path: str, last_id: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(20)
        self._socket.connect((broker.host, broker.http_port))
        header = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        request = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BASIC}\r\n{header}\r\n"
        )
        self._socket.sendall(request.encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self._text = ""

    def chunk(self) -> str:
        """Wait for the next piece of the stream."""
        size = int(self._file.readline(), 16)
        assert size, "the stream has ended"
        text = self._file.read(size).decode()
        self._file.readline()
        return text

    def next(self) -> Event:
        """Wait for the next event; an event without an id has 0."""
        while "\n\n" not in self._text:
            self._text += self.chunk()
        event, _, self._text = self._text.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in event.splitlines())
        return Event(int(fields.get("id", 0)), *json.loads(fields["data"]))

    def until(self, text: str) -> list[Event]:
        """All events up to the first that contains a text."""
        found = [self.next()]
        while text not in found[-1].text:
            found.append(self.next())
        return found

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()


@contextmanager
def following(broker: Broker, query: str = "", last_id: str = "") -> Iterator[Follower]:
    follower = Follower(broker, f"/api/livelog{query}", last_id)
    try:
        yield follower
    finally:
        follower.close()


@pytest.fixture
def broker(http_broker: Broker) -> Broker:
    return http_broker


def log_something(broker: Broker, text: str) -> None:
    """Have the broker log a line with this text at level info, and an error response to nobody."""
    with socket.create_connection((broker.host, broker.port), 20) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        client.recv(4096)
        response = f"\0{text}\0wrong".encode()
        arguments = bytes(4) + b"\x05PLAIN" + len(response).to_bytes(4) + response + b"\0"
        payload = b"\x00\x0a\x00\x0b" + arguments
        client.sendall(b"\x01\x00\x00" + len(payload).to_bytes(4) + payload + b"\xce")
        while client.recv(4096):
            pass


def test_the_log_is_a_text_to_download(broker: Broker) -> None:
    answer = Api(broker)("GET", "/api/logs")

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-disposition"] == "attachment; filename=logs.txt"
    lines = answer.content.decode().splitlines()
    assert any(line.endswith("Z [INFO] lmq.server - Finished startup in " + line[-6:])
               for line in lines)  # fmt: skip


def test_the_live_log_begins_with_what_is_stored(broker: Broker) -> None:
    with following(broker) as follower:
        stored = follower.until("Finished startup")

        assert follower.status == 200
        assert follower.headers["content-type"] == "text/event-stream"
        assert follower.headers["x-accel-buffering"] == "no"
        assert {event.source for event in stored} == {"lmq.launcher", "lmq.server"}
        log_something(broker, "fresh")
        assert follower.until("user 'fresh' could not log in")[-1].level == "info"
        ids = [event.id for event in stored]
        assert ids == sorted(set(ids))


def test_a_reader_goes_on_where_it_left_off(broker: Broker) -> None:
    with following(broker) as follower:
        log_something(broker, "first")
        last = follower.until("user 'first' could not log in")[-1]
    log_something(broker, "second")

    with following(broker, last_id=str(last.id)) as follower:
        missed = follower.until("user 'second' could not log in")

    assert last not in missed
    assert not any("'first'" in event.text for event in missed)


@pytest.mark.parametrize("last_id", ["x", "-1", "99999999999999999", "9" * 400, "1.5"])
def test_an_id_that_is_none_of_ours_is_ignored(broker: Broker, last_id: str) -> None:
    with following(broker, last_id=last_id) as follower:
        assert follower.until("Finished startup")


def test_only_the_wanted_severities_are_sent(broker: Broker) -> None:
    with following(broker, "?level=warn") as follower:
        with socket.create_connection((broker.host, broker.port)) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            client.recv(4096)
        assert Api(broker)("DELETE", "/api/connections/username/guest").status == 204
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
        Api(broker)("DELETE", "/api/connections/username/guest")
        event = follower.next()
        with pytest.raises(pika.exceptions.AMQPError):
            while True:
                connection.process_data_events(1)

        assert (event.level, event.source) == ("warn", "lmq.amqp.client")
        assert "320 CONNECTION_FORCED" in event.text


def test_a_level_that_is_none_is_refused(broker: Broker) -> None:
    for level in ("loud", "none", ""):
        answer = Api(broker)("GET", f"/api/livelog?level={level}")

        assert answer.status == 400
        assert "'level' must be one of trace, debug, info" in answer.json["reason"]


def test_a_reader_who_hangs_up_is_forgotten(broker: Broker) -> None:
    for _ in range(70):  # more than may read at a time
        with following(broker) as follower:
            assert follower.status == 200
            follower.next()

    def is_free() -> bool:
        with following(broker) as follower:
            return follower.status == 200

    wait_for(is_free, "those who have gone make room")
    assert "Traceback" not in broker.log_text()


def test_readers_are_bounded(broker: Broker) -> None:
    followers = [Follower(broker, "/api/livelog", "") for _ in range(64)]
    for follower in followers:
        follower.next()

    answer = Api(broker)("GET", "/api/livelog")

    assert (answer.status, answer.json["error"]) == (503, "too_many_readers")
    for follower in followers:
        follower.close()


def test_a_broker_stops_under_its_readers(broker: Broker) -> None:
    with following(broker) as follower:
        follower.until("Finished startup")

        assert broker.stop() == 0

    assert "Traceback" not in broker.log_text()


def test_a_silent_reader_holds_up_nobody_and_is_told_of_its_loss(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory(["--log-level", "debug"], http=True)
    with following(broker) as follower:
        other = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
        for _ in range(1200):  # each is 8 KiB of log, more than all buffers between us can take
            other.request("GET", f"/api/{'x' * 10_000}", headers={"Authorization": BASIC})
            other.getresponse().read()
        other.close()

        lost = follower.until("entries were lost")[-1]

        assert (lost.level, lost.source, lost.id) == ("warn", "lmq.http.livelog", 0)


def test_curl_follows_the_log(broker: Broker) -> None:
    url = f"{broker.http_url}/api/livelog"
    with subprocess.Popen(
        ["curl", "-sNu", "guest:guest", url], stdout=subprocess.PIPE, text=True
    ) as curl:
        assert curl.stdout is not None
        lines = [curl.stdout.readline() for _ in range(3)]
        curl.kill()

    assert lines[0].startswith("id: ")
    assert json.loads(lines[1].removeprefix("data: "))[:2] == ["info", "lmq.launcher"]
    assert lines[2] == "\n"


def test_a_quiet_log_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEEP_ALIVE_S", 0.02)
    with managed() as broker:
        follower = Follower(broker, "/api/livelog?level=fatal", "")  # type: ignore[arg-type]
        chunks = [follower.chunk() for _ in range(2)]
        follower.close()

    assert chunks == [":\n\n"] * 2
