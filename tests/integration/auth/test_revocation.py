"""What is taken from a user ends what the user has open: connections, consumers, publishers."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator

import pytest
from pamqp import commands
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.websocket import close
from tests.support.wire import Wire, encode, encode_publish

ALL = (".*", ".*", ".*")
CONSUME = commands.Basic.Consume(queue="q", consumer_tag="c")
SYNC = commands.Basic.Qos(prefetch_count=0)


@pytest.fixture
def broker() -> Iterator[Inside]:
    with inside() as started:
        started.add_user("u", rights=ALL)
        with Wire.open(started.port) as wire:
            wire.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        yield started


def login(broker: Inside, user: str = "u", vhost: str = "/") -> Wire:
    return Wire.open(broker.port, user=user, password=user, vhost=vhost)


def put_permissions(broker: Inside, configure: str, read: str, write: str) -> None:
    broker.call(broker.inner.accounts.set_permissions, "u", "/", configure, read, write)


def stays(wire: Wire) -> None:
    """The connection and its channel are open."""
    wire.call(1, SYNC, commands.Basic.QosOk)


def publish_by_guest(broker: Inside, body: bytes) -> None:
    with Wire.open(broker.port) as wire:
        wire.publish(1, "", "q", body)
        stays(wire)


def n_consumers(broker: Inside) -> int:
    return broker.call(lambda: len(broker.queue("q").consumers))


# --- the log-in is over -----------------------------------------------------------------------


def test_deleting_a_user_ends_its_connections_and_nobody_elses(broker: Inside) -> None:
    broker.add_user("other", rights=ALL)
    with login(broker) as one, login(broker) as two, login(broker, "other") as other:
        one.call(1, CONSUME, commands.Basic.ConsumeOk)
        broker.call(broker.inner.accounts.delete_users, "u")

        for wire in (one, two):
            close = wire.expect_connection_close(320)
            assert close.reply_text == "CONNECTION_FORCED - User 'u' is deleted"
        stays(other)
    assert n_consumers(broker) == 0


def test_a_deleted_user_gets_and_publishes_nothing_more(broker: Inside) -> None:
    with login(broker) as wire:
        wire.call(1, CONSUME, commands.Basic.ConsumeOk)
        broker.call(broker.inner.accounts.delete_users, "u")
        publish_by_guest(broker, b"secret")
        wire.publish(1, "", "q", b"late")
        wire.expect_connection_close(320)
    assert broker.call(lambda: broker.queue("q").core.ready) == 1


def test_a_user_of_the_same_name_does_not_inherit_the_connection(broker: Inside) -> None:
    def replace() -> None:
        broker.inner.accounts.delete_users("u")
        broker.inner.accounts.put_user("u", password=b"u")
        broker.inner.accounts.set_permissions("u", "/", *ALL)

    with login(broker) as wire:
        broker.call(replace)
        wire.expect_connection_close(320)


def test_another_password_ends_the_connections(broker: Inside) -> None:
    with login(broker) as wire:
        broker.call(broker.inner.accounts.put_user, "u", password=b"new")
        close = wire.expect_connection_close(320)
        assert close.reply_text == "CONNECTION_FORCED - User 'u' has another password"


def test_an_empty_hash_ends_the_connections(broker: Inside) -> None:
    with login(broker) as wire:
        broker.call(broker.inner.accounts.put_user, "u", password_hash="")
        wire.expect_connection_close(320)


def test_the_same_said_again_ends_nothing(broker: Inside) -> None:
    accounts = broker.inner.accounts
    with login(broker) as wire:
        wire.call(1, CONSUME, commands.Basic.ConsumeOk)
        user = broker.inner.users.get("u")
        assert user is not None
        broker.call(accounts.put_user, "u", password=b"u", tags=())
        broker.call(
            accounts.put_user, "u", password_hash=user.password_hash,
            hashing_algorithm=user.hashing_algorithm,
        )  # fmt: skip
        broker.call(accounts.put_user, "u", tags=("monitoring",))
        put_permissions(broker, *ALL)
        broker.call(accounts.changed)
        stays(wire)
    wait_for(lambda: n_consumers(broker) == 0, "the consumer has gone with its client only")


def test_a_user_that_is_deleted_during_the_handshake_gets_no_further(broker: Inside) -> None:
    wire = Wire(broker.port)
    with wire:
        wire.send_bytes(b"AMQP\0\0\x09\x01")
        wire.expect(commands.Connection.Start)
        start_ok = commands.Connection.StartOk({}, "PLAIN", "\0u\0u", "en_US")
        wire.call(0, start_ok, commands.Connection.Tune)
        broker.call(broker.inner.accounts.delete_users, "u")
        wire.send(0, commands.Connection.TuneOk(10, 131072, 0))
        wire.send(0, commands.Connection.Open(virtual_host="/"))
        assert not wire.expect_closed()


def test_a_change_while_many_are_looked_at_counts_too(broker: Inside) -> None:
    """In portions of a few connections the second change comes while the first is under way."""
    broker.add_user("v", rights=ALL)

    def both() -> None:
        broker.inner.accounts.delete_users("v")
        broker.inner.accounts.delete_users("u")

    first = [login(broker) for _ in range(40)]
    second = [login(broker, "v") for _ in range(40)]
    broker.call(both)
    for wire in (*first, *second):
        wire.expect_connection_close(320)
        wire.close()


# --- a virtual host ---------------------------------------------------------------------------


def test_clearing_the_permissions_of_a_virtual_host_ends_connections_to_it(broker: Inside) -> None:
    broker.call(broker.inner.vhosts.create, "w")
    broker.call(broker.inner.accounts.set_permissions, "u", "w", *ALL)
    with login(broker) as here, login(broker, vhost="w") as there:
        broker.call(broker.inner.accounts.remove_permissions, "u", "w")
        close = there.expect_connection_close(320)
        assert close.reply_text == (
            "CONNECTION_FORCED - User 'u' has no permissions in vhost 'w' any more"
        )
        stays(here)


def test_an_import_that_changes_a_password_ends_connections(broker: Inside) -> None:
    def change() -> None:
        broker.inner.users.add("u", "", None)
        broker.inner.accounts.changed()

    with login(broker) as wire:
        broker.call(change)
        wire.expect_connection_close(320)


# --- narrower rights --------------------------------------------------------------------------


def test_narrowed_rights_cancel_the_consumers_that_they_do_not_allow(broker: Inside) -> None:
    with login(broker) as wire:
        wire.call(1, commands.Queue.Declare(queue="mine"), commands.Queue.DeclareOk)
        wire.call(1, CONSUME, commands.Basic.ConsumeOk)
        mine = commands.Basic.Consume(queue="mine", consumer_tag="m")
        wire.call(1, mine, commands.Basic.ConsumeOk)
        reply_to = commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)
        wire.call(1, reply_to, commands.Basic.ConsumeOk)

        put_permissions(broker, ".*", "^mine$", ".*")

        assert wire.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
        publish_by_guest(broker, b"not for them")
        wire.publish(1, "", "mine", b"x")
        assert wire.expect_unit(commands.Basic.Deliver).body == b"x"
        stays(wire)
    assert broker.call(lambda: broker.queue("q").core.ready) == 1


@pytest.mark.parametrize("how", ["flow", "pause"])
def test_a_consumer_that_gets_nothing_just_now_is_cancelled_too(broker: Inside, how: str) -> None:
    with login(broker) as wire:
        if how == "flow":
            wire.call(1, commands.Channel.Flow(active=False), commands.Channel.FlowOk)
        else:
            broker.call(broker.vhost().operators.pause, "q")
        wire.call(1, CONSUME, commands.Basic.ConsumeOk)

        put_permissions(broker, ".*", "^$", ".*")

        assert wire.expect(commands.Basic.Cancel).consumer_tag == "c"
    assert n_consumers(broker) == 0


def test_a_client_that_knows_no_basic_cancel_loses_the_channel(
    broker: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.wire.CAPABILITIES", {"connection.blocked": True})
    with login(broker) as wire:
        wire.call(1, CONSUME, commands.Basic.ConsumeOk)
        wire.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        put_permissions(broker, ".*", "", ".*")
        close = wire.expect_channel_close(1, 403)
        assert close.reply_text == (
            "ACCESS_REFUSED - User 'u' doesn't have permissions to queue 'q'"
        )
        assert (close.class_id, close.method_id) == (60, 20)
        wire.open_channel(1)
        stays(wire)
    assert n_consumers(broker) == 0


def test_the_next_of_a_single_active_queue_takes_over(broker: Inside) -> None:
    with login(broker) as first, Wire.open(broker.port) as second:
        single = {"x-single-active-consumer": True}
        first.call(1, commands.Queue.Declare(queue="s", arguments=single),
                   commands.Queue.DeclareOk)  # fmt: skip
        for wire in (first, second):
            wire.call(1, commands.Basic.Consume(queue="s"), commands.Basic.ConsumeOk)
        put_permissions(broker, ".*", "^$", ".*")
        first.expect(commands.Basic.Cancel)
        second.publish(1, "", "s", b"x")
        assert second.expect_unit(commands.Basic.Deliver).body == b"x"


def test_pipelined_publishes_are_refused_from_the_change_on(broker: Inside) -> None:
    with login(broker) as wire:
        wire.publish(1, "", "q", b"before")
        stays(wire)
        head = encode_publish(1, "", "q", b"cut in two")
        at = head.index(b"cut")
        wire.send_bytes(head[:at])
        wait_for(
            lambda: broker.call(
                lambda: any(c.link.received_bytes and c.user.name == "u"
                            for c in broker.inner.connections)
            ),
            "it has been read",
        )  # fmt: skip
        put_permissions(broker, ".*", ".*", "^$")
        wire.send_bytes(head[at:] + encode_publish(1, "", "q", b"after"))
        wire.expect_channel_close(1, 403)
    assert broker.call(lambda: broker.queue("q").core.ready) == 1


def test_a_publish_that_waits_for_the_disk_is_refused_when_the_right_has_gone(
    broker: Inside,
) -> None:
    with login(broker) as wire:
        wire.publish(1, "", "q", b"before")
        stays(wire)
        broker.call(setattr, broker.inner.loop, "is_low", True)
        wire.publish(1, "", "q", b"waits")
        wire.expect(commands.Connection.Blocked)
        put_permissions(broker, ".*", ".*", "^$")
        broker.call(setattr, broker.inner.loop, "is_low", False)
        wire.expect(commands.Connection.Unblocked)
        wire.expect_channel_close(1, 403)
    assert broker.call(lambda: broker.queue("q").core.ready) == 1


def test_a_commit_is_refused_when_the_right_has_gone(broker: Inside) -> None:
    with login(broker) as wire:
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        wire.publish(1, "amq.direct", "q", b"kept")
        wire.publish(1, "", "q", b"kept")
        stays(wire)
        put_permissions(broker, ".*", ".*", r"^amq\.direct$")
        wire.send(1, commands.Tx.Commit())
        wire.expect_channel_close(1, 403)
    assert broker.call(lambda: broker.queue("q").core.ready) == 0


def test_every_later_request_asks_for_the_rights_of_now(broker: Inside) -> None:
    with login(broker) as wire:
        put_permissions(broker, "^$", "^$", "^$")
        requests = (
            commands.Basic.Get(queue="q"), CONSUME, commands.Queue.Purge(queue="q"),
            commands.Queue.Delete(queue="q"), commands.Queue.Declare(queue="new"),
        )  # fmt: skip
        for request in requests:
            wire.send_bytes(encode(1, request))
            wire.expect_channel_close(1, 403)
            wire.open_channel(1)


# --- other ways in ----------------------------------------------------------------------------


@pytest.fixture
def api(broker_factory) -> Iterator[Api]:  # type: ignore[no-untyped-def]
    started: Broker = broker_factory(http=True)
    admin = Api(started)
    admin.as_user("u", "administrator", **{"/": ALL})
    yield admin


def test_a_websocket_ends_with_its_user(api: Api) -> None:
    broker = api.broker

    async def run() -> bytes:
        url = f"ws://{broker.host}:{broker.http_port}/"
        connection = await websocket_connect(HTTPRequest(url))
        frames = b"AMQP\0\0\x09\x01" + encode(
            0, commands.Connection.StartOk({}, "PLAIN", "\0u\0u-pw", "en_US"),
            commands.Connection.TuneOk(10, 131072, 0), commands.Connection.Open(virtual_host="/"),
        )  # fmt: skip
        await connection.write_message(frames, binary=True)
        got = b""
        while b"\x00\x0a\x00\x29" not in got:  # connection.open-ok
            message = await connection.read_message()
            assert isinstance(message, bytes)
            got += message
        answer = await asyncio.to_thread(api, "DELETE", "/api/users/u")
        assert answer.status == 204
        message = await connection.read_message()
        assert isinstance(message, bytes)
        await close(connection)
        return message

    assert b"User 'u' is deleted" in asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/users/u", None),
        ("PUT", "/api/users/u", {"password": "new"}),
        ("PUT", "/api/users/u", {"tags": "monitoring"}),
    ],
    ids=["deleted", "password", "tags"],
)
def test_the_live_log_ends_with_the_right_to_it(
    api: Api, method: str, path: str, body: dict[str, str] | None
) -> None:
    broker = api.broker
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
    connection.request("GET", "/api/livelog", headers=Api(broker, "u").login)
    response = connection.getresponse()
    assert response.status == 200

    assert api(method, path, body).status == 204

    response.read()  # its end: nothing else lets this return
    connection.close()


def test_a_put_by_automation_ends_nothing_and_a_changed_one_does(api: Api) -> None:
    user = {"password": "u-pw", "tags": "administrator"}
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    with Wire.open(api.broker.port, user="u", password="u-pw") as wire:
        assert api("PUT", "/api/users/u", user).status == 204
        assert api("PUT", "/api/permissions/%2F/u", rights).status == 204
        assert api("POST", "/api/definitions", api.get("/api/definitions")).status == 200
        stays(wire)
        assert api("DELETE", "/api/permissions/%2F/u").status == 204
        wire.expect_connection_close(320)


def test_an_import_of_another_hash_ends_connections(api: Api) -> None:
    definitions = api.get("/api/definitions")
    (user,) = [each for each in definitions["users"] if each["name"] == "u"]
    (guest,) = [each for each in definitions["users"] if each["name"] == "guest"]
    user |= {key: guest[key] for key in ("password_hash", "hashing_algorithm")}
    with Wire.open(api.broker.port, user="u", password="u-pw") as wire:
        answer = api("POST", "/api/definitions", json.loads(json.dumps({"users": [user]})))
        assert answer.status == 200, answer
        wire.expect_connection_close(320)
