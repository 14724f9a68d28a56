"""What comes, goes or changes while a request is under way, or while nobody takes its answer."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from lavinmq.auth import passwords, scram
from lavinmq.http.websocket import WebSocketBridge
from lavinmq.process import log
from tests.support.api import Answer, Api
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for

ALL = (".*", ".*", ".*")
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    with inside(mgmt_port=0) as started:
        yield started


def ask(broker: Inside, method: str, path: str, body: Any = None, user: str = "guest") -> Answer:
    """One request of a user whose password is its name."""
    return Api(broker, user, user)(method, path, body)


def authorization(user: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{user}'.encode()).decode()}"


def test_a_virtual_host_that_goes_is_no_bug(
    broker: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asked about something in it is told as if they had come later."""
    vhosts = broker.inner.vhosts
    broker.call(vhosts.create, "going")
    assert ask(broker, "PUT", "/api/queues/going/q", {"durable": True}).status == 201
    operators = broker.vhost("going").operators
    pause = operators.pause

    async def pause_and_delete(name: str) -> None:
        await pause(name)
        await vhosts.delete("going")

    monkeypatch.setattr(operators, "pause", pause_and_delete)
    with caplog.at_level(logging.ERROR):
        answer = ask(broker, "PUT", "/api/queues/going/q/pause")

    assert answer.status == 403
    assert answer.json["reason"] == "Access refused: there is no vhost 'going'"
    assert "bug" not in caplog.text


def test_a_password_counts_that_another_was_given_before(
    broker: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two give a user a password at once: that of the later one counts, for all mechanisms, and
    the other one for none."""
    accounts, users = broker.inner.accounts, broker.inner.users
    accounts_chain = broker.inner.chain
    broker.add_user("two")
    two = users.get("two")
    assert two is not None
    broker.call(users.add, "two", two.password_hash, two.hashing_algorithm, (), "")
    scram_keys = accounts_chain.scram_keys

    async def and_another(password: bytes, origin: str = "") -> str:
        monkeypatch.undo()
        accounts.put_user("two", password=b"another")
        return await scram_keys(password, origin)

    monkeypatch.setattr(accounts_chain, "scram_keys", and_another)
    assert ask(broker, "PUT", "/api/users/two", {"password": "two"}).status == 204

    two = users.get("two")
    assert two is not None
    assert scram.parse(two.scram) is not None
    assert passwords.verify(b"two", two.password_hash, two.hashing_algorithm)
    assert not passwords.verify(b"another", two.password_hash, two.hashing_algorithm)


def test_links_hear_of_the_part_of_an_import_that_was_done(broker: Inside) -> None:
    """Who sent it lost the right in the midst, behind what it took from others."""
    broker.add_user("ann", rights=ALL, tags=("administrator",))
    broker.add_user("bob", rights=ALL)
    names = [f"u{n}" for n in range(3000)]
    document = {
        "users": [{"name": name, "password_hash": "", "tags": ""} for name in names],
        "permissions": [
            {"user": name, "vhost": "/", "configure": "", "read": "", "write": ""}
            for name in ("bob", *names)
        ],
    }
    accounts, call_soon = broker.inner.accounts, broker.server.events.call_soon
    bob = broker.inner.users.get("bob")
    assert bob is not None

    def withdraw() -> None:
        if bob.can_write("/", "amq.topic"):
            call_soon(withdraw)
        else:
            accounts.put_user("ann", tags=("monitoring",))

    login = pika.PlainCredentials("bob", "bob")
    place = pika.ConnectionParameters("127.0.0.1", broker.port, credentials=login)
    with pika.BlockingConnection(place) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "x", b"")
        broker.call(withdraw)

        assert ask(broker, "POST", "/api/definitions", document, "ann").status == 403

        assert not broker.inner.users.get(names[-1]).has_vhost("/")  # type: ignore[union-attr]
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.basic_publish("amq.topic", "x", b"")


def test_a_trace_ends_with_the_right_to_all_keys(broker: Inside) -> None:
    broker.add_user("keys", rights=ALL, tags=("management",))
    connection = http.client.HTTPConnection("127.0.0.1", broker.server.http_port, timeout=20)
    try:
        connection.request(
            "POST", "/api/exchanges/%2F/amq.topic/trace", b"{}",
            {"Authorization": authorization("keys"), "Content-Type": "application/json"},
        )  # fmt: skip
        answer = connection.getresponse()
        assert json.loads(answer.readline()) == {"seen": 0, "shown": 0}

        given = {"exchange": "amq.topic", "write": ".*", "read": "^mine"}
        assert ask(broker, "PUT", "/api/topic-permissions/%2F/keys", given).status == 201

        answer.read()
    finally:
        connection.close()
    assert not broker.exchange("amq.topic").core.is_followed


@pytest.mark.parametrize("path", ["livelog", "live?view=overview&rate=1"])
def test_a_deleted_user_who_takes_nothing_is_cut_off(broker: Inside, path: str) -> None:
    """Nobody waits for it to take what was sent before."""
    broker.add_user("silent", rights=ALL, tags=("administrator",))
    with socket.create_connection(("127.0.0.1", broker.server.http_port), 20) as client:
        head = f"GET /api/{path} HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(f"{head}Authorization: {authorization('silent')}\r\n\r\n".encode())
        assert client.recv(1).startswith(b"H")
        own = client.getsockname()

        def streams() -> list[Any]:
            return [
                each.stream
                for listener in broker.server.http
                for each in listener.service._http._connections
                if each.stream.socket is not None and each.stream.socket.getpeername() == own
            ]

        (stream,) = broker.call(streams)
        handler_writes = stream.write

        def fill() -> None:
            handler_writes(b":" + bytes(32 << 20) + b"\n\n")  # more than both ends take

        broker.call(fill)
        for n in range(100):
            logging.getLogger("lmq.test").warning("%d %s", n, "x" * 1000)
        broker.call(lambda: broker.inner.accounts.delete_users("silent"))

        wait_for(lambda: not broker.call(streams), "the connection is closed")
        assert log.n_followers() == 0


def test_a_websocket_that_goes_ends_what_it_has_begun_to_hand_on(broker: Inside) -> None:
    """A link whose output nobody takes any more does not read, either."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def go() -> None:
        bridge = WebSocketBridge.__new__(WebSocketBridge)
        bridge._socket = ours
        bridge.close = lambda *_: None  # type: ignore[method-assign]
        handing_on = asyncio.ensure_future(bridge.on_message(bytes(16 << 20)))
        await asyncio.sleep(0)
        assert not handing_on.done()
        bridge.on_close()
        await asyncio.wait_for(handing_on, TIMEOUT_S)

    with ours, theirs:
        broker.call(go)
        theirs.settimeout(TIMEOUT_S)
        while theirs.recv(1 << 20):
            pass


def test_a_broker_that_stops_leaves_no_task_of_its_pages() -> None:
    with inside(mgmt_port=0) as own:
        path, headers = "/api/live?view=overview", {"Authorization": authorization("guest")}
        connection = http.client.HTTPConnection("127.0.0.1", own.server.http_port, timeout=20)
        connection.request("GET", path, headers=headers)
        assert connection.getresponse().readline() == b":\n"

    connection.close()
    assert not asyncio.all_tasks(own.server.events)
