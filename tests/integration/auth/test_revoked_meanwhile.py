"""Rights that are taken away while something is under way: what was asked for goes no further."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lavinmq.definitions_json import export
from lavinmq.http.call import Call
from tests.support.api import Answer, Api
from tests.support.inside import Inside, inside

ALL = (".*", ".*", ".*")
MANY = 3000
"""Queues of a document that takes many portions."""
DOCUMENT = {"queues": [{"vhost": "/", "name": f"q{n}", "durable": False} for n in range(MANY)]}


@pytest.fixture
def broker() -> Iterator[Inside]:
    with inside(mgmt_port=0) as started:
        for name in ("ann", "bob"):
            started.add_user(name, rights=ALL, tags=("administrator",))
        yield started


def ask(broker: Inside, method: str, path: str, body: Any = None, user: str = "ann") -> Answer:
    """One request of a user whose password is its name."""
    return Api(broker, user, user)(method, path, body)


def once(broker: Inside, condition: Callable[[], bool], action: Callable[[], object]) -> None:
    """Act in the loop's thread, in the first turn in which the condition holds."""
    call_soon = broker.server.events.call_soon

    def look() -> None:
        if condition():
            action()
        else:
            call_soon(look)

    broker.call(look)


def withdraw(broker: Inside, how: str) -> Callable[[], object]:
    """What takes the right to import away from ann."""
    users, accounts = broker.inner.users, broker.inner.accounts
    if how == "deleted":
        return lambda: (users.delete("ann"), accounts.changed())
    if how == "password":
        bob = users.get("bob")
        assert bob is not None
        given = bob.password_hash, bob.hashing_algorithm
        return lambda: (users.add("ann", *given, ("administrator",)), accounts.changed())
    ann = users.get("ann")
    assert ann is not None
    same = ann.password_hash, ann.hashing_algorithm
    return lambda: (users.add("ann", *same, ("monitoring",)), accounts.changed())


@pytest.mark.parametrize("how", ["deleted", "password", "tags"])
def test_an_import_stops_when_the_rights_of_who_sent_it_have_gone(broker: Inside, how: str) -> None:
    queues = broker.vhost().queues
    once(broker, lambda: len(queues) > 0, withdraw(broker, how))

    answer = ask(broker, "POST", "/api/definitions", DOCUMENT)

    assert answer.status == 403, answer
    assert 0 < len(queues) < MANY
    told = answer.json["reason"]
    assert told == "Access refused: the rest of the definitions is not imported"


def test_an_import_may_change_who_sends_it(broker: Inside) -> None:
    """All of it is done: its own user comes last."""
    bob = broker.inner.users.get("bob")
    assert bob is not None
    ann = {
        "name": "ann", "password_hash": bob.password_hash,
        "hashing_algorithm": bob.hashing_algorithm, "tags": "",
    }  # fmt: skip

    answer = ask(broker, "POST", "/api/definitions", DOCUMENT | {"users": [ann]})

    assert answer.status == 200, answer
    assert len(broker.vhost().queues) == MANY
    assert ask(broker, "GET", "/api/whoami").status == 401


@pytest.mark.parametrize(
    ("path", "place"),
    [("/api/definitions", (export, "rows")), ("/api/queues", (Call, "visible_vhosts"))],
)
def test_an_answer_is_not_sent_to_who_may_not_have_it_any_more(
    broker: Inside, monkeypatch: pytest.MonkeyPatch, path: str, place: tuple[Any, str]
) -> None:
    assert ask(broker, "POST", "/api/definitions", DOCUMENT).status == 200
    collect, act = getattr(*place), withdraw(broker, "deleted")

    def collect_later(*given: Any) -> Any:
        act()
        return collect(*given)

    monkeypatch.setattr(*place, collect_later)

    answer = ask(broker, "GET", path)

    assert answer.status == 403, answer
    assert b"q1" not in answer.content


def test_a_long_answer_breaks_off_when_the_right_to_it_has_gone(broker: Inside) -> None:
    """Its reader is slow, so that most of it is still here."""
    arguments = {"x": "y" * 1000}
    queues = [queue | {"arguments": arguments} for queue in DOCUMENT["queues"]]
    assert ask(broker, "POST", "/api/definitions", {"queues": queues}).status == 200
    login = base64.b64encode(b"ann:ann")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", broker.server.http_port))
        head = (
            b"GET /api/definitions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic %s\r\n\r\n"
        )
        sock.sendall(head % login)
        got = sock.recv(1000)
        found = re.search(rb"Content-Length: (\d+)", got)
        assert found is not None, got
        length = int(found[1])
        assert length > 3_000_000

        broker.call(withdraw(broker, "deleted"))

        while data := sock.recv(1 << 16):
            got += data
    assert len(got) < length
