"""Connections, channels and consumers over HTTP: what is shown to whom, and what can be changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from pamqp import commands
from pika.exceptions import ConnectionClosedByBroker

from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for
from tests.support.wire import Wire

ODD = "odd %2F >ü"


@pytest.fixture(scope="module")
def shared() -> Iterator[Managed]:
    with managed() as broker:
        broker.add_vhost(ODD)
        yield broker


@pytest.fixture
def broker(shared: Managed) -> Iterator[Managed]:
    """A broker to which nobody is connected."""
    yield shared
    shared.disconnect()
    names = shared.call(lambda: [user.name for user in shared.inner.users.all()])
    shared.call(shared.inner.accounts.delete_users, *(name for name in names if name != "guest"))


def path_of(connection: dict[str, Any]) -> str:
    return "/api/connections/" + quote(connection["name"], safe="")


def channel_path(channel: dict[str, Any]) -> str:
    return "/api/channels/" + quote(channel["name"], safe="")


def consumer_path(consumer: dict[str, Any]) -> str:
    details = consumer["channel_details"]
    words = (
        consumer["queue"]["vhost"], details["connection_name"], str(details["number"]),
        consumer["consumer_tag"],
    )  # fmt: skip
    return "/api/consumers/" + "/".join(quote(word, safe="") for word in words)


def test_a_connection_is_shown_with_what_was_negotiated(broker: Managed) -> None:
    properties = {"connection_name": "nüm", "capabilities": {"basic.nack": True}}
    with broker.connect(frame_max=8192, channel_max=10, client_properties=properties) as client:
        client.channel()

        (row,) = broker.api.get("/api/connections")

        local = client._impl._transport._sock.getsockname()
        assert row["name"] == row["pid"] == f"127.0.0.1:{local[1]} -> 127.0.0.1:{broker.port}"
        assert (row["peer_host"], row["peer_port"]) == local
        assert (row["host"], row["port"]) == ("127.0.0.1", broker.port)
        assert (row["vhost"], row["user"], row["state"]) == ("/", "guest", "running")
        assert (row["channels"], row["channel_max"], row["frame_max"]) == (1, 10, 8192)
        assert (row["timeout"], row["auth_mechanism"]) == (0, "PLAIN")
        assert (row["protocol"], row["type"]) == ("AMQP 0-9-1", "network")
        assert row["client_properties"]["connection_name"] == "nüm"
        assert (row["ssl"], row["tls_version"], row["cipher"]) == (False, None, None)
        assert row["recv_oct"] > 0
        assert set(row["recv_oct_details"]) == {"rate"}


def test_a_single_connection_has_histories_and_no_nulls(broker: Managed) -> None:
    with broker.connect():
        broker.sample()
        (row,) = broker.api.get("/api/connections")

        single = broker.api.get(path_of(row))

        assert single["recv_oct_details"]["log"][-1] == single["recv_oct_details"]["rate"] > 0
        assert "tls_version" not in single
        assert None not in single.values()


def test_connections_keep_their_order_and_are_found_by_three_names(broker: Managed) -> None:
    broker.user("ann", "management", vhost="/")
    for n in range(4):
        broker.connect(client_properties={"connection_name": f"client-{n}"})
    broker.connect(user="ann")

    rows = broker.api.get("/api/connections")
    page = broker.api.get("/api/connections?page=2&page_size=2")

    times = [row["connected_at"] for row in rows]
    assert times == sorted(times)
    assert [row["name"] for row in page["items"]] == [row["name"] for row in rows[2:4]]
    assert len(broker.api.get("/api/connections?name=client-2")) == 1
    assert len(broker.api.get("/api/connections?name=ann")) == 1
    assert len(broker.api.get(f"/api/connections?name={quote(rows[0]['name'])}")) == 1


def test_connections_are_listed_by_vhost_and_by_user(broker: Managed) -> None:
    broker.user("ann", "management", vhost=ODD)
    with broker.connect(), broker.connect(ODD), broker.connect(ODD, "ann"):
        odd = broker.api.get(f"/api/vhosts/{quote(ODD, safe='')}/connections")
        anns = broker.api.get("/api/connections/username/ann")
        nobodys = broker.api.get("/api/connections/username/nobody")

        assert {row["user"] for row in odd} == {"guest", "ann"}
        assert [(row["user"], row["vhost"]) for row in anns] == [("ann", ODD)]
        assert nobodys == []
        refused = broker.api("GET", "/api/vhosts/nope/connections")
        assert (refused.status, refused.json["error"]) == (403, "access_refused")


@pytest.mark.parametrize(
    ("tags", "vhost", "seen"),
    [
        (("monitoring",), "", 2),
        (("administrator",), "", 2),
        (("management",), ODD, 1),
        (("policymaker",), ODD, 1),
        (("impersonator",), ODD, 1),
        (("management",), "", 0),
    ],
)
def test_who_sees_which_connections(
    broker: Managed, tags: tuple[str, ...], vhost: str, seen: int
) -> None:
    api = broker.user("watcher", *tags, vhost=vhost)
    with broker.connect() as one, broker.connect(ODD) as other:
        for client in (one, other):
            channel = client.channel()
            channel.queue_declare("seen", auto_delete=True)
            channel.basic_consume("seen", lambda *_: None)

        for resource in ("connections", "channels", "consumers", "connections/username/guest"):
            assert len(api.get(f"/api/{resource}")) == seen


def test_a_single_connection_is_for_its_owner_and_those_who_watch(broker: Managed) -> None:
    owner = broker.user("ann", "management", vhost="/")
    other = broker.user("bob", "management", vhost="/")
    watcher = broker.user("eve", "monitoring")
    with broker.connect(user="ann"):
        (row,) = broker.api.get("/api/connections")

        assert owner("GET", path_of(row)).status == 200
        assert watcher("GET", path_of(row) + "/channels").status == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/channels")):
            refused = other(method, path_of(row) + path)
            assert (refused.status, refused.json["error"]) == (403, "access_refused")


def test_a_missing_connection_is_404(broker: Managed) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/channels")):
        answer = broker.api(method, f"/api/connections/no-such{path}")

        assert answer.status == 404
        assert answer.json["reason"] == "Connection no-such does not exist"


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, "Closed via management plugin"),
        ({"X-Reason": "off you go"}, "off you go"),
        ({"X-Reason": "müde"}, "müde"),
        ({"X-Reason": "long " * 1000}, ("long " * 1000)[: 255 - len("CONNECTION_FORCED - ")]),
    ],
)
def test_closing_a_connection_tells_the_client_why(
    broker: Managed, headers: dict[str, str], told: str
) -> None:
    sent = {name: value.encode() for name, value in headers.items()}
    client = broker.connect()
    (row,) = broker.api.get("/api/connections")

    answer = broker.api("DELETE", path_of(row), headers=sent)  # type: ignore[arg-type]

    assert (answer.status, answer.content) == (204, b"")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        client.process_data_events(10)
    assert closed.value.reply_code == 320
    assert closed.value.reply_text == f"CONNECTION_FORCED - {told}"
    assert broker.api.get("/api/connections") == []


def test_connections_of_others_are_closed_by_administrators_only(broker: Managed) -> None:
    manager = broker.user("ann", "management", vhost=ODD)
    broker.connect()
    broker.connect(ODD)

    assert manager("DELETE", "/api/connections/username/guest").status == 403
    assert len(broker.api.get("/api/connections")) == 2
    assert manager("DELETE", "/api/connections/username/ann").status == 204
    assert broker.api("DELETE", "/api/connections/username/nobody").status == 204
    assert broker.api("DELETE", "/api/connections/username/guest").status == 204
    assert broker.api.get("/api/connections") == []


def test_a_connection_in_its_handshake_is_not_shown(broker: Managed) -> None:
    with socket.create_connection((broker.host, broker.port)) as half:
        half.sendall(b"AMQP\x00\x00\x09\x01")
        assert half.recv(1)

        assert broker.api.get("/api/connections") == []


def test_a_publisher_who_waits_for_the_disk_is_blocked(broker: Managed) -> None:
    with broker.connect() as publisher, broker.connect():
        channel = publisher.channel()
        broker.call(setattr, broker.inner.loop, "is_low", True)
        try:
            channel.basic_publish("amq.fanout", "", b"x")

            def states() -> list[str]:
                return [row["state"] for row in broker.api.get("/api/connections")]

            wait_for(lambda: states() == ["blocked", "flow"], "the publish has come")
        finally:
            broker.call(setattr, broker.inner.loop, "is_low", False)
        wait_for(lambda: states() == ["running", "running"], "all go on")


def test_channels_are_shown_with_their_modes(broker: Managed) -> None:
    with broker.connect() as client:
        plain, confirming, transactional = (client.channel() for _ in range(3))
        plain.basic_qos(prefetch_count=7)
        plain.basic_qos(prefetch_count=70, global_qos=True)
        confirming.confirm_delivery()
        transactional.tx_select()
        plain.queue_declare("shown", auto_delete=True)
        plain.basic_publish("", "shown", b"x")
        plain.basic_consume("shown", lambda *_: None, consumer_tag="tag")
        confirming.flow(False)

        rows = broker.api.get("/api/channels?sort=number")

        (connection,) = broker.api.get("/api/connections")
        peer = f"{connection['peer_host']}:{connection['peer_port']}"
        assert [row["name"] for row in rows] == [f"{peer}[{n}]" for n in (1, 2, 3)]
        assert [row["confirm"] for row in rows] == [False, True, False]
        assert [row["transactional"] for row in rows] == [False, False, True]
        assert [row["state"] for row in rows] == ["running", "flow", "running"]
        assert (rows[0]["prefetch_count"], rows[0]["global_prefetch_count"]) == (7, 70)
        assert (rows[0]["consumer_count"], rows[0]["messages_unacknowledged"]) == (1, 1)
        assert rows[1]["prefetch_count"] == 65535
        assert rows[0]["connection_details"] == {
            name: connection[name] for name in ("peer_host", "peer_port", "name")
        }
        assert {name for name in rows[0]["message_stats"] if not name.endswith("details")} == {
            "ack", "get", "get_no_ack", "publish", "deliver", "deliver_no_ack", "deliver_get",
            "redeliver", "reject", "confirm", "return_unroutable",
        }  # fmt: skip
        assert broker.api.get(path_of(connection) + "/channels?sort=number") == rows
        assert len(broker.api.get("/api/vhosts/%2F/channels")) == 3
        assert broker.api.get(f"/api/vhosts/{quote(ODD, safe='')}/channels") == []


def test_a_single_channel_has_its_consumers_and_histories(broker: Managed) -> None:
    with broker.connect() as client:
        channel = client.channel()
        channel.queue_declare("shown", auto_delete=True)
        channel.basic_consume("shown", lambda *_: None, consumer_tag="a/tag", auto_ack=True)
        broker.sample()
        (row,) = broker.api.get("/api/channels")

        single = broker.api.get(channel_path(row))

        assert [each["consumer_tag"] for each in single["consumer_details"]] == ["a/tag"]
        assert single["message_stats"]["publish_details"]["log"]


@pytest.mark.parametrize(
    "name", ["no-such", "127.0.0.1:1[1]", "[1]", "[", "]", "x[99999999999999999999]", "x[ü]", "x[1"]
)
def test_a_missing_channel_is_404(broker: Managed, name: str) -> None:
    with broker.connect() as client:
        client.channel()
        for method, body in (("GET", None), ("PUT", {"prefetch": 5})):
            answer = broker.api(method, f"/api/channels/{quote(name, safe='')}", body)

            assert answer.status == 404
            assert answer.json["reason"] == f"Channel {name} does not exist"


def test_a_channel_that_the_caller_may_not_see_is_404(broker: Managed) -> None:
    api = broker.user("ann", "management", vhost=ODD)
    with broker.connect() as client:
        client.channel()
        (row,) = broker.api.get("/api/channels")

        assert api("GET", channel_path(row)).status == 404
        assert api("PUT", channel_path(row), {"prefetch": 5}).status == 404


def test_a_new_prefetch_holds_for_consumers_that_are_there(broker: Managed) -> None:
    with broker.connect() as client:
        channel = client.channel()
        channel.queue_declare("many", auto_delete=True)
        channel.basic_qos(prefetch_count=1)
        got: list[bytes] = []
        channel.basic_consume("many", lambda *args: got.append(args[3]))
        for n in range(5):
            channel.basic_publish("", "many", b"%d" % n)
        client.process_data_events(0.1)
        (row,) = broker.api.get("/api/channels")
        assert row["messages_unacknowledged"] == 1

        answer = broker.api("PUT", channel_path(row), {"prefetch": 4})

        assert (answer.status, answer.content) == (204, b"")
        wait_for(lambda: client.process_data_events(0.05) or len(got) == 4, "three more come")
        assert broker.api.get("/api/consumers")[0]["prefetch_count"] == 4


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"prefetch": -1}, 400, "prefetch must be between 0 and 65535"),
        ({"prefetch": 65536}, 400, "prefetch must be between 0 and 65535"),
        ({"prefetch": "x"}, 400, "Field 'prefetch' must be an integer"),
        ({"prefetch": 1.5}, 400, "Field 'prefetch' must be an integer"),
        ({"prefetch": "12"}, 204, None),
        ({"prefetch": 0}, 204, None),
        ({"prefetch": 65535}, 204, None),
        ({}, 204, None),
    ],
)
def test_what_a_prefetch_can_be(
    broker: Managed, body: dict[str, Any], status: int, reason: str | None
) -> None:
    with broker.connect() as client:
        client.channel()
        (row,) = broker.api.get("/api/channels")

        answer = broker.api("PUT", channel_path(row), body)

        assert answer.status == status
        assert reason is None or answer.json["reason"] == reason


def test_a_channel_that_the_broker_has_closed_is_not_shown(broker: Managed) -> None:
    with Wire.open(broker.port) as wire:
        wire.send(1, commands.Queue.Declare(queue="no-such", passive=True))
        wire.expect(commands.Channel.Close)  # and never acknowledges it

        assert broker.api.get("/api/channels") == []
        assert broker.api("GET", "/api/connections").json[0]["state"] == "running"


def test_consumers_are_shown_with_their_channel(broker: Managed) -> None:
    with broker.connect(ODD) as client:
        channel = client.channel()
        channel.queue_declare("näme", auto_delete=True)
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume(
            "näme", lambda *_: None, consumer_tag="tag", auto_ack=True, arguments={"x-priority": 2}
        )

        (row,) = broker.api.get("/api/consumers")

        (shown,) = broker.api.get("/api/channels")
        assert row["queue"] == {"name": "näme", "vhost": ODD}
        assert (row["consumer_tag"], row["priority"], row["prefetch_count"]) == ("tag", 2, 3)
        assert (row["exclusive"], row["ack_required"]) == (False, False)
        assert row["channel_details"] == {
            **{name: shown["connection_details"][name] for name in ("peer_host", "peer_port")},
            "connection_name": shown["connection_details"]["name"],
            "user": "guest", "number": 1, "name": shown["name"],
        }  # fmt: skip
        assert broker.api.get(f"/api/consumers/{quote(ODD, safe='')}") == [row]
        assert broker.api.get("/api/consumers/%2F") == []
        assert broker.api.get("/api/consumers?name=tag") == [row]
        assert broker.api.get("/api/consumers?name=ta") == []
        assert broker.api("GET", "/api/consumers/nope").status == 403


def test_a_consumer_of_direct_replies_is_nobodys_business(broker: Managed) -> None:
    with broker.connect() as client:
        channel = client.channel()
        channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda *_: None, consumer_tag="r", auto_ack=True
        )

        (row,) = broker.api.get("/api/channels")

        assert broker.api.get("/api/consumers") == []
        assert row["consumer_count"] == 0
        assert broker.api.get(channel_path(row))["consumer_details"] == []
        assert broker.call(broker.inner.churn.counters)["consumer_added"] == broker.call(
            broker.inner.churn.counters
        )["consumer_removed"]  # fmt: skip


def test_cancelling_a_consumer_tells_its_client(broker: Managed) -> None:
    with broker.connect(ODD) as client:
        channel = client.channel()
        channel.queue_declare("q", auto_delete=True)
        cancelled: list[str] = []
        channel.add_on_cancel_callback(
            lambda frame: cancelled.append(frame.method.consumer_tag)
        )  # fmt: skip
        channel.basic_consume("q", lambda *_: None, consumer_tag="t/1 ü")
        (row,) = broker.api.get("/api/consumers")

        answer = broker.api("DELETE", consumer_path(row))

        assert (answer.status, answer.content) == (204, b"")
        wait_for(lambda: client.process_data_events(0.05) or cancelled == ["t/1 ü"], "it is told")
        assert broker.api.get("/api/consumers") == []
        assert not broker.call(lambda: "q" in broker.vhost(ODD).queues), "auto-delete"
        again = broker.api("DELETE", consumer_path(row))
        assert (again.status, again.content) == (404, b"")


@pytest.mark.parametrize("place", ["no-conn/1/t", "{name}/9/t", "{name}/x/t", "{name}/1/no"])
def test_a_consumer_that_is_not_there_cannot_be_cancelled(broker: Managed, place: str) -> None:
    with broker.connect() as client:
        client.channel()
        (row,) = broker.api.get("/api/connections")
        place = place.format(name=quote(row["name"], safe=""))

        answer = broker.api("DELETE", f"/api/consumers/%2F/{place}")

        assert (answer.status, answer.content) == (404, b"")


def test_cancelling_needs_the_vhost_of_the_consumer(broker: Managed) -> None:
    api = broker.user("ann", "management", vhost=ODD)
    with broker.connect() as client:
        channel = client.channel()
        channel.queue_declare("q", auto_delete=True)
        channel.basic_consume("q", lambda *_: None, consumer_tag="t")
        (row,) = broker.api.get("/api/consumers")

        assert api("DELETE", consumer_path(row)).status == 403
        elsewhere = consumer_path({**row, "queue": {"name": "q", "vhost": ODD}})
        assert api("DELETE", elsewhere).status == 404
        assert len(broker.api.get("/api/consumers")) == 1


def test_many_connections_are_listed_page_by_page(broker: Managed) -> None:
    for _ in range(25):
        broker.connect()

    names = [
        row["name"]
        for page in (1, 2, 3)
        for row in broker.api.get(f"/api/connections?page={page}&page_size=10")["items"]
    ]

    assert len(set(names)) == 25
