"""Over HTTP nobody reaches what others have open, and what is everybody's takes a permission."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pamqp import commands

from tests.support.api import Answer, Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

ALL = (".*", ".*", ".*")
TAGS = ("management", "policymaker", "monitoring", "administrator")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("owned") / "data", http=True)
    try:
        broker.start()
        admin = Api(broker)
        for tag in TAGS:
            admin.as_user(tag, tag, **{"/": ALL})
        admin.as_user("victim", "management", **{"/": ALL})
        admin.as_user("mine-only", "management", **{"/": ("^mine", "^mine", "^mine")})
        assert admin("PUT", "/api/queues/%2F/q", {}).status == 201
        yield broker
    finally:
        broker.close()


class Client:
    """A connection of a user with a consumer, and its name."""

    def __init__(self, broker: Broker, user: str) -> None:
        before = {row["name"] for row in Api(broker).get("/api/connections")}
        self.wire = Wire.open(broker.port, user=user, password=f"{user}-pw")
        consume = commands.Basic.Consume(queue="q", consumer_tag="c")
        self.wire.call(1, consume, commands.Basic.ConsumeOk)
        rows = Api(broker).get("/api/connections")
        (self.name,) = {row["name"] for row in rows} - before

    @property
    def connection(self) -> str:
        return f"/api/connections/{quote(self.name, safe='')}"

    @property
    def channel(self) -> str:
        peer = self.name.partition(" -> ")[0]
        return f"/api/channels/{quote(f'{peer}[1]', safe='')}"

    @property
    def consumer(self) -> str:
        return f"/api/consumers/%2F/{quote(self.name, safe='')}/1/c"

    def stays(self) -> None:
        self.wire.call(1, commands.Basic.Qos(prefetch_count=7), commands.Basic.QosOk)


@pytest.fixture
def victim(started: Broker) -> Iterator[Client]:
    client = Client(started, "victim")
    yield client
    client.wire.close()


def refused(answer: Answer) -> bool:
    return answer.status == 403 and answer.json["error"] == "access_refused"


@pytest.mark.parametrize("tag", [tag for tag in TAGS if tag != "administrator"])
def test_others_change_nothing_that_a_user_has_open(
    started: Broker, victim: Client, tag: str
) -> None:
    api = Api(started, tag)
    assert refused(api("DELETE", victim.connection))
    assert refused(api("DELETE", "/api/connections/username/victim"))
    assert refused(api("PUT", victim.channel, {"prefetch": 1}))
    assert refused(api("DELETE", victim.consumer))
    victim.stays()
    assert Api(started).get(victim.channel)["consumer_count"] == 1


@pytest.mark.parametrize("who", ["victim", "administrator"])
def test_its_user_and_administrators_change_it(started: Broker, victim: Client, who: str) -> None:
    api = Api(started, who)
    assert api("PUT", victim.channel, {"prefetch": 3}).status == 204
    assert api.get(victim.channel)["prefetch_count"] == 3
    assert api("DELETE", victim.consumer).status == 204
    assert victim.wire.expect(commands.Basic.Cancel).consumer_tag == "c"
    assert api("DELETE", victim.consumer).status == 404
    assert api("DELETE", victim.connection).status == 204
    victim.wire.expect_connection_close(320)


@pytest.mark.parametrize("who", ["victim", "administrator"])
def test_connections_of_a_user_are_closed_by_the_user_or_an_administrator(
    started: Broker, victim: Client, who: str
) -> None:
    assert Api(started, who)("DELETE", "/api/connections/username/victim").status == 204
    victim.wire.expect_connection_close(320)


def test_only_who_watches_sees_a_connection_of_others(started: Broker, victim: Client) -> None:
    for tag in TAGS:
        answer = Api(started, tag)("GET", victim.connection)
        assert answer.status == (200 if tag in ("monitoring", "administrator") else 403), tag


def test_who_monitors_does_not_even_close_its_own(started: Broker) -> None:
    client = Client(started, "monitoring")
    api = Api(started, "monitoring")
    assert refused(api("DELETE", client.connection))
    assert refused(api("DELETE", "/api/connections/username/monitoring"))
    assert refused(api("PUT", client.channel, {"prefetch": 1}))
    client.stays()
    client.wire.close()


def test_a_consumer_of_another_virtual_host_is_not_found(started: Broker, victim: Client) -> None:
    admin = Api(started)
    admin("PUT", "/api/vhosts/elsewhere", {})
    path = victim.consumer.replace("%2F", "elsewhere", 1)
    assert admin("DELETE", path).status == 404
    assert admin("DELETE", victim.consumer.replace("/1/c", "/123456/c")).status == 404
    assert admin("DELETE", victim.consumer.replace("/1/c", "/x/c")).status == 404
    victim.stays()


@pytest.mark.parametrize("what", ["pause", "resume", "restart"])
def test_what_stops_a_queue_takes_the_right_to_configure_it(started: Broker, what: str) -> None:
    path = f"/api/queues/%2F/q/{what}"
    for name in ("mine-only", "monitoring"):
        assert refused(Api(started, name)("PUT", path))
    assert Api(started).get("/api/queues/%2F/q")["state"] == "running"

    own = Api(started, "mine-only")
    own("PUT", "/api/queues/%2F/mine", {})
    expected = 400 if what == "restart" else 204  # it is running
    assert own("PUT", f"/api/queues/%2F/mine/{what}").status == expected
    own("DELETE", "/api/queues/%2F/mine")


def test_a_queue_of_one_connection_is_declared_by_nobody_else(started: Broker) -> None:
    with Wire.open(started.port) as wire:
        declare = commands.Queue.Declare(queue="locked", exclusive=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        path = "/api/queues/%2F/locked"
        assert refused(Api(started, "mine-only")("PUT", path, {}))
        for body in ({}, {"durable": True}):
            answer = Api(started)("PUT", path, body)
            assert (answer.status, answer.json["reason"]) == (400, "Queue 'locked' is exclusive")


@pytest.mark.parametrize("path", ["/api/queues/%2F/q", "/api/exchanges/%2F/amq.topic"])
def test_what_something_is_declared_with_is_told_to_those_with_rights(
    started: Broker, path: str
) -> None:
    body = {"type": "fanout"} if "exchanges" in path else {"durable": True}
    assert refused(Api(started, "mine-only")("PUT", path, body))
    answer = Api(started, "victim")("PUT", path, body)
    assert (answer.status, "declared with other arguments" in answer.json["reason"]) == (400, True)


def test_moving_asks_for_rights_before_it_looks_at_the_body(started: Broker) -> None:
    admin = Api(started)
    admin.as_user("reader", "management", **{"/": ("", "", ".*")})
    answer = Api(started, "reader")("POST", "/api/queues/%2F/q/move", raw=b"{")
    assert refused(answer)
    assert "write exchange 'amq.default'" in answer.json["reason"]


def test_a_policymaker_changes_nothing_of_the_whole_broker(started: Broker) -> None:
    api = Api(started, "policymaker")
    for method in ("PUT", "DELETE"):
        body = {"value": 1} if method == "PUT" else None
        assert refused(api(method, "/api/global-parameters/cluster_name", body))
    assert api("PUT", "/api/policies/%2F/p", {"pattern": "^x", "definition": {}}).status == 201
    assert Api(started)("DELETE", "/api/policies/%2F/p").status == 204


@pytest.mark.parametrize("what", ["rights", "tags", "password", "user"])
def test_what_is_taken_while_the_body_comes_counts(started: Broker, what: str) -> None:
    """The head is let in, the body comes when the right has gone."""
    admin = Api(started)
    user = admin.as_user("late", "management", **{"/": ALL})
    nothing = dict.fromkeys(("configure", "read", "write"), "")
    method, path, body, status = {
        "rights": ("PUT", "/api/permissions/%2F/late", nothing, b"403"),
        "tags": ("PUT", "/api/users/late", {"tags": "monitoring"}, b"403"),
        "password": ("PUT", "/api/users/late", {"password": "new"}, b"401"),
        "user": ("DELETE", "/api/users/late", None, b"401"),
    }[what]
    connection = http.client.HTTPConnection(started.host, started.http_port, timeout=20)
    connection.putrequest("PUT", "/api/queues/%2F/late")
    for name, value in (user.login | {"Content-Length": "2", "Expect": "100-continue"}).items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.sock is not None
    with connection.sock.makefile("rb") as lines:
        assert lines.readline().split()[1] == b"100"  # the head has been looked at
        lines.readline()
        assert admin(method, path, body).status == 204
        connection.sock.sendall(b"{}")
        assert lines.readline().split()[1] == status
    connection.close()
    wait_for(lambda: admin("GET", "/api/queues/%2F/late").status == 404, "there is no such queue")
