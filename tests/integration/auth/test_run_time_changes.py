"""Virtual hosts, users, permissions and limits that change while clients are connected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

import lavinmq
from lavinmq.files.directories import hashed
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed

ALL = (".*", ".*", ".*")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data") as started:
        yield started


def stored_vhosts(broker: Inside) -> list[str]:
    content = (Path(broker.broker.data_dir) / "vhosts.json").read_text()
    return [entry["name"] for entry in json.loads(content)]


def stored_permissions(broker: Inside, user: str) -> list[str]:
    content = (Path(broker.broker.data_dir) / "users.json").read_text()
    return [name for entry in json.loads(content) if entry["name"] == user
            for name in entry["permissions"]]  # fmt: skip


def declare(wire: Wire, queue: str, durable: bool = True, **more: bool) -> None:
    request = commands.Queue.Declare(queue=queue, durable=durable, **more)
    wire.call(1, request, commands.Queue.DeclareOk)


def refusal(broker: Inside, **login: str) -> str:
    """The text with which a log-in is refused."""
    wire = Wire(broker.port)
    with pytest.raises(AssertionError, match="wanted OpenOk"):
        wire.login(**{"user": "guest", "password": "guest", "vhost": "/"} | login)
    wire.close()
    wire = Wire(broker.port)
    wire.send_bytes(b"AMQP\0\0\x09\x01")
    wire.expect(commands.Connection.Start)
    name = login.get("user", "guest")
    wire.call(0, commands.Connection.StartOk(
        {}, "PLAIN", f"\0{name}\0{login.get('password', 'guest')}", "en_US"
    ), commands.Connection.Tune)  # fmt: skip
    wire.send(0, commands.Connection.TuneOk(10, 131072, 0))
    wire.send(0, commands.Connection.Open(virtual_host=login.get("vhost", "/")))
    close = wire.expect_connection_close(530)
    wire.close()
    text: str = close.reply_text
    return text


# --- virtual hosts ----------------------------------------------------------------------------


def test_a_new_vhost_works_and_belongs_to_its_creator(broker: Inside) -> None:
    """edge-cases.md 310, 311"""
    broker.add_user("u")
    assert broker.call(broker.inner.vhosts.create, "new", "u", "described", ["a"])

    assert refusal(broker, vhost="new") == "NOT_ALLOWED - 'guest' doesn't have access to 'new'"
    with Wire.open(broker.port, vhost="new", user="u", password="u") as wire:
        declare(wire, "q")
        wire.publish(1, "", "q", b"kept")
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
    broker.broker.stop()

    with inside(Path(broker.broker.data_dir)) as again:
        stored = again.inner.vhosts.stored("new")
        assert stored is not None
        assert (stored.description, stored.tags) == ("described", ("a",))
        with Wire.open(again.port, vhost="new", user="u", password="u") as wire:
            assert wire.call(1, commands.Basic.Get(queue="q"), commands.Basic.GetOk)


def test_without_a_creator_the_default_user_gets_it(broker: Inside) -> None:
    """edge-cases.md 310"""
    assert broker.call(broker.inner.vhosts.create, "new")

    assert stored_permissions(broker, "guest") == ["/", "new"]
    Wire.open(broker.port, vhost="new").close()


def test_creating_again_changes_what_is_said_about_it(broker: Inside) -> None:
    broker.call(broker.inner.vhosts.create, "new", None, "before")
    vhost = broker.vhost("new")

    assert not broker.call(broker.inner.vhosts.create, "new", None, "after", ["t"])

    assert broker.vhost("new") is vhost
    stored = broker.inner.vhosts.stored("new")
    assert stored is not None
    assert (stored.description, stored.tags) == ("after", ("t",))


@pytest.mark.parametrize("name", ["", "n" * 256, "\udcff"])
def test_a_name_that_cannot_be_one_is_refused(broker: Inside, name: str) -> None:
    with pytest.raises(ValueError, match=r"[Vv]host"):
        broker.call(broker.inner.vhosts.create, name)

    assert list(broker.inner.vhosts) == ["/"]


def test_deleting_a_vhost_disconnects_and_removes_everything(broker: Inside) -> None:
    broker.call(broker.inner.vhosts.create, "gone")
    directory = Path(broker.broker.data_dir) / hashed("gone")
    with Wire.open(broker.port, vhost="gone") as wire, Wire.open(broker.port) as other:
        declare(wire, "q")
        declare(wire, "exclusive", exclusive=True)
        wire.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        wire.publish(1, "", "q", b"x")
        wire.expect(commands.Basic.Deliver)

        assert broker.call(broker.inner.vhosts.delete, "gone")

        close = wire.expect_connection_close(320)
        assert close.reply_text == "CONNECTION_FORCED - VHost deleted"
        declare(other, "still-served")
    assert stored_vhosts(broker) == ["/"]
    assert stored_permissions(broker, "guest") == ["/"]
    assert not directory.exists()
    assert refusal(broker, vhost="gone") == "NOT_ALLOWED - vhost not found: 'gone'"
    wait_for(lambda: not list(directory.parent.glob("*.deleted-*")), "files are removed")
    assert not broker.call(broker.inner.vhosts.delete, "gone")


def test_a_vhost_of_the_same_name_starts_empty(broker: Inside) -> None:
    for _ in range(3):
        assert broker.call(broker.inner.vhosts.create, "again")
        with Wire.open(broker.port, vhost="again") as wire:
            declare(wire, "q")
            reply = wire.call(1, commands.Queue.Purge(queue="q"), commands.Queue.PurgeOk)
            assert reply.message_count == 0
            wire.publish(1, "", "q", b"x")
            wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
            assert broker.call(broker.inner.vhosts.delete, "again")
            wire.expect_connection_close(320)


def test_a_deleted_vhost_keeps_no_descriptors(broker: Inside) -> None:
    def come_and_go() -> None:
        broker.call(broker.inner.vhosts.create, "v")
        with Wire.open(broker.port, vhost="v") as wire:
            for number in range(5):
                declare(wire, f"q{number}")
                wire.publish(1, "", f"q{number}", b"x")
            wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
            broker.call(broker.inner.vhosts.delete, "v")
            wire.expect_connection_close(320)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(6):
        come_and_go()

    # The definitions and the directory alone would be twelve; a sync may hold some for a moment.
    wait_for(lambda: descriptors() < before + 6, "the descriptors are closed")


def test_a_client_that_does_not_answer_cannot_hold_a_deleted_vhost(broker: Inside) -> None:
    broker.call(broker.inner.vhosts.create, "v")
    silent = Wire.open(broker.port, vhost="v")
    declare(silent, "exclusive", durable=False, exclusive=True)
    exchange = commands.Exchange.Declare(exchange="x", durable=True, auto_delete=True)
    silent.call(1, exchange, commands.Exchange.DeclareOk)
    bind = commands.Queue.Bind(queue="exclusive", exchange="x", routing_key="")
    silent.call(1, bind, commands.Queue.BindOk)

    assert broker.call(broker.inner.vhosts.delete, "v")
    assert broker.call(broker.inner.vhosts.create, "v")
    silent.send(1, commands.Queue.Declare(queue="too late"))
    silent.reset()
    wait_for(lambda: not broker.call(broker.inner.connections.copy), "the connection is over")

    assert list(broker.vhost("v").queues) == []
    assert "amq.direct" in broker.vhost("v").exchanges
    with Wire.open(broker.port, vhost="v") as wire:
        declare(wire, "q")


def test_many_vhosts_at_once_are_all_stored(broker: Inside) -> None:
    """edge-cases.md 311"""
    create = broker.inner.vhosts.create
    waiting = [broker.submit(create, f"v{number}") for number in range(40)]
    assert all(each.result(20) for each in waiting)

    names = [f"v{number}" for number in range(40)]
    assert stored_vhosts(broker) == ["/", *names]
    assert stored_permissions(broker, "guest") == ["/", *names]


def test_what_a_crash_left_of_a_deleted_vhost_goes_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / f"{hashed('v')}.deleted-1" / "sub"
    kept = tmp_path / f"{hashed('v')}.left-1"
    with inside(tmp_path):
        pass
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    kept.mkdir()

    with inside(tmp_path):
        wait_for(lambda: not left.parent.exists(), "it is removed")
    assert kept.exists()


def test_files_of_a_vhost_that_nobody_knows_are_set_aside(tmp_path: Path) -> None:
    with inside(tmp_path) as broker:
        directory = tmp_path / hashed("v")
        directory.mkdir()
        (directory / "definitions.amqp").write_bytes(b"somebody else's")

        assert broker.call(broker.inner.vhosts.create, "v")

        assert sorted(broker.vhost("v").exchanges)[1] == "amq.direct"
        (aside,) = tmp_path.glob("*.left-*")
        assert (aside / "definitions.amqp").read_bytes() == b"somebody else's"


def test_a_closed_vhost_keeps_its_entry_when_others_come(tmp_path: Path) -> None:
    with inside(tmp_path) as broker:
        broker.call(broker.inner.vhosts.create, "broken")
    definitions = tmp_path / hashed("broken") / "definitions.amqp"
    definitions.write_bytes(b"\2\0\0\0")

    with inside(tmp_path) as broker:
        assert "broken" not in broker.inner.vhosts
        assert broker.call(broker.inner.vhosts.create, "new")
        assert stored_vhosts(broker) == ["/", "broken", "new"]
        with pytest.raises(ValueError, match="could not be loaded"):
            broker.call(broker.inner.vhosts.create, "broken")
        assert definitions.exists()

        assert broker.call(broker.inner.vhosts.delete, "broken")
        assert broker.call(broker.inner.vhosts.create, "broken")
        assert stored_vhosts(broker) == ["/", "new", "broken"]
        (aside,) = tmp_path.glob("*.left-*")
        assert (aside / "definitions.amqp").read_bytes() == b"\2\0\0\0"


def test_a_vhost_that_cannot_be_stored_is_not_there(broker: Inside) -> None:
    (Path(broker.broker.data_dir) / "vhosts.json.tmp").mkdir()

    with pytest.raises(lavinmq.errors.DefinitionsError):
        broker.call(broker.inner.vhosts.create, "v")

    assert "v" not in broker.inner.vhosts
    assert not (Path(broker.broker.data_dir) / hashed("v")).exists()
    with pytest.raises(lavinmq.errors.DefinitionsError):
        broker.call(broker.inner.vhosts.delete, "/")
    Wire.open(broker.port).close()


def test_files_that_cannot_be_removed_do_not_keep_a_vhost(broker: Inside) -> None:
    broker.call(broker.inner.vhosts.create, "v")
    broker.vhost("v").directory = Path(broker.broker.data_dir) / "not" / "there"

    assert broker.call(broker.inner.vhosts.delete, "v")

    assert stored_permissions(broker, "guest") == stored_vhosts(broker) == ["/"]
    assert broker.call(broker.inner.vhosts.create, "v")
    Wire.open(broker.port, vhost="v").close()


# --- limits -----------------------------------------------------------------------------------


def test_a_vhost_takes_no_more_queues_than_it_may(broker: Inside) -> None:
    """edge-cases.md 56"""
    limits = broker.vhost().rules.limits
    broker.call(limits.set, "max-queues", 1)
    with Wire.open(broker.port) as wire:
        declare(wire, "q1")
        declare(wire, "q1")
        wire.send(1, commands.Queue.Declare(queue="q2"))
        close = wire.expect_channel_close(1, 403)
        assert close.reply_text == "ACCESS_REFUSED - queue limit in vhost '/' (1) is reached"

        broker.call(limits.set, "max-queues", -1)
        wire.open_channel(1)
        declare(wire, "q2")
        broker.call(limits.set, "max-queues", 1)
        wire.send(1, commands.Queue.Declare(queue=""))
        wire.expect_channel_close(1, 403)
        wire.open_channel(1)
        declare(wire, "q2")


def test_a_vhost_takes_no_more_connections_than_it_may(broker: Inside) -> None:
    """edge-cases.md 57"""
    limits = broker.vhost().rules.limits
    text = "NOT_ALLOWED - access to vhost '/' refused: connection limit ({}) is reached"
    broker.call(limits.set, "max-connections", 0)
    assert refusal(broker) == text.format(0)

    broker.call(limits.set, "max-connections", 1)
    with Wire.open(broker.port) as wire:
        assert refusal(broker) == text.format(1)
        wire.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        # One that is closing does not count, however long its client keeps the socket.
        Wire.open(broker.port).close()
    wait_for(lambda: not broker.call(broker.vhost().connections.copy), "all have left")

    lost = Wire.open(broker.port)
    lost.reset()
    wait_for(lambda: not broker.call(broker.vhost().connections.copy), "it has left")
    broker.call(limits.set, "max-connections", -1)
    with Wire.open(broker.port), Wire.open(broker.port):
        pass


def test_a_user_has_no_more_connections_and_channels_than_it_may(broker: Inside) -> None:
    broker.add_user("u", rights=ALL)
    limits = broker.inner.user_limits
    login = {"user": "u", "password": "u"}
    broker.call(limits.set, "u", "max-connections", 1)
    broker.call(limits.set, "u", "max-channels", 2)

    with Wire.open(broker.port, **login) as wire, Wire.open(broker.port, channels=range(1, 5)):
        assert refusal(broker, **login) == (
            "NOT_ALLOWED - Connection refused for user 'u': user connection limit (1) is reached"
        )
        broker.call(limits.set, "u", "max-connections", -1)
        other = Wire.open(broker.port, **login)
        wire.send(2, commands.Channel.Open())
        close = wire.expect_connection_close(530)
        assert close.reply_text == (
            "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed "
            "user limit of (2)"
        )
        other.open_channel(2)
        other.close()


# --- users and permissions --------------------------------------------------------------------


def test_a_change_of_permissions_acts_on_an_open_connection(broker: Inside) -> None:
    """edge-cases.md 305"""
    broker.add_user("u", rights=ALL)
    set_permissions = broker.inner.accounts.set_permissions
    with Wire.open(broker.port, user="u", password="u") as wire:
        declare(wire, "q")
        wire.publish(1, "", "q", b"x", mandatory=True)
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)

        broker.call(set_permissions, "u", "/", ".*", ".*", "^$")
        wire.publish(1, "", "q", b"x")
        close = wire.expect_channel_close(1, 403)
        assert close.reply_text == (
            "ACCESS_REFUSED - User 'u' not allowed to publish to exchange ''"
        )

        broker.call(set_permissions, "u", "/", ".*", ".*", ".*")
        wire.open_channel(1)
        wire.publish(1, "", "q", b"x")
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)


@pytest.mark.parametrize("how", ["removed", "deleted"])
def test_a_user_without_rights_can_do_nothing_any_more(broker: Inside, how: str) -> None:
    """edge-cases.md 305; what is open ends: test_revocation.py"""
    broker.add_user("u", rights=ALL)
    accounts = broker.inner.accounts
    with Wire.open(broker.port, user="u", password="u") as wire:
        wire.publish(1, "amq.fanout", "", b"x")
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
        if how == "removed":
            assert broker.call(accounts.remove_permissions, "u", "/")
        else:
            assert broker.call(accounts.delete_users, "u") == ["u"]
        wire.expect_connection_close(320)
    if how == "removed":
        assert refusal(broker, user="u", password="u") == (
            "NOT_ALLOWED - 'u' doesn't have access to '/'"
        )
    else:
        with pytest.raises((AssertionError, WireClosed)):
            Wire.open(broker.port, user="u", password="u")


def test_deleting_an_unknown_user_changes_nothing_for_others(broker: Inside) -> None:
    """edge-cases.md 305"""
    with Wire.open(broker.port) as wire:
        epoch = broker.inner.users.epoch
        assert broker.call(broker.inner.accounts.delete_users, "nobody") == []

        assert broker.inner.users.epoch == epoch
        wire.publish(1, "amq.fanout", "", b"x")
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)


def test_an_impersonator_is_one_at_once_and_no_longer(broker: Inside) -> None:
    broker.add_user("u", rights=ALL)
    put_user = broker.inner.accounts.put_user
    properties = commands.Basic.Properties(user_id="somebody")
    with Wire.open(broker.port, user="u", password="u") as wire:
        broker.call(put_user, "u", tags=("impersonator",))
        wire.publish(1, "amq.fanout", "", b"x", properties)
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)

        broker.call(put_user, "u", tags=())
        wire.publish(1, "amq.fanout", "", b"x", properties)
        wire.expect_channel_close(1, 406)


def test_another_password_counts_for_the_next_log_in(broker: Inside) -> None:
    """edge-cases.md 307"""
    broker.add_user("u", rights=ALL)
    with Wire.open(broker.port, user="u", password="u") as wire:
        broker.call(broker.inner.accounts.put_user, "u", password=b"new")
        wire.expect_connection_close(320)

    Wire.open(broker.port, user="u", password="new").close()
    with pytest.raises((AssertionError, WireClosed)):
        Wire.open(broker.port, user="u", password="u")
