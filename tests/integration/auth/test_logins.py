# mypy: disable-error-code="no-untyped-call"
"""Logging in with passwords over AMQP: slow hashes, failures that wait, clients that go away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pamqp import commands

from lavinmq.auth import passwords
from lavinmq.auth.throttle import SOURCE, Throttle
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import PROTOCOL_HEADER, Wire

RIGHTS = {"/": {"config": ".*", "read": ".*", "write": ".*"}}


def with_users(data_dir: Path) -> Path:
    """Make users.json with one user for each kind of hash, whose password is `pw`."""
    data_dir.mkdir()
    users = [
        {
            "name": kind, "password_hash": passwords.hash_password(b"pw", kind),
            "hashing_algorithm": passwords.ALGORITHMS[kind], "tags": "", "permissions": RIGHTS,
        }
        for kind in passwords.ALGORITHMS
    ]  # fmt: skip
    (data_dir / "users.json").write_text(json.dumps(users))
    return data_dir


@pytest.fixture
def own(tmp_path: Path, broker_factory: BrokerFactory) -> Broker:
    return broker_factory(data_dir=with_users(tmp_path / "data"))


def refused(port: int, user: str, password: str) -> None:
    wire = Wire(port)
    with wire, pytest.raises(AssertionError, match=r"got .*Connection.Close.*403"):
        wire.login(user, password, "/")


@pytest.mark.parametrize("kind", passwords.ALGORITHMS)
def test_every_kind_of_hash_logs_in_again_and_again(own: Broker, kind: str) -> None:
    for _ in range(3):
        refused(own.port, kind, "wrong")
        with Wire.open(own.port, user=kind, password="pw"):
            pass


def test_many_clients_of_one_user_need_one_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[bytes] = []
    verify = passwords.verify

    def counted(password: bytes, stored: str | None, algorithm: str | None) -> bool:
        computed.append(password)
        return verify(password, stored, algorithm)

    monkeypatch.setattr(passwords, "verify", counted)
    with inside(with_users(tmp_path / "data")) as broker:
        wires = [Wire(broker.port) for _ in range(50)]
        for wire in wires:
            wire.send_bytes(PROTOCOL_HEADER)
            _start_ok(wire, "scrypt", "pw")
        for wire in wires:
            wire.expect(commands.Connection.Tune)
            wire.close()

    assert computed == [b"pw"]


def test_after_failures_the_answer_comes_later_and_a_success_ends_that(own: Broker) -> None:
    for _ in range(SOURCE.free + 1):
        refused(own.port, "sha256", "wrong")
    # Right, but it waits; somebody else does not.
    with Wire.open(own.port, user="sha256", password="pw"):
        pass
    with Wire.open(own.port, user="sha512", password="pw"):
        pass


def test_a_client_that_leaves_while_its_hash_is_computed_leaves_nothing(tmp_path: Path) -> None:
    with inside(with_users(tmp_path / "data")) as broker:
        for number in range(20):
            wire = Wire(broker.port)
            wire.send_bytes(PROTOCOL_HEADER)
            _start_ok(wire, "scrypt", f"wrong {number}")
            wire.reset()

        wait_for(lambda: _is_idle(broker), "connections or tasks are left", 30)
        with Wire.open(broker.port, user="scrypt", password="pw"):
            pass


def test_a_bug_in_a_log_in_costs_its_connection_only(tmp_path: Path) -> None:
    async def broken(*attempt: object) -> None:
        raise KeyError("oops")

    with inside(with_users(tmp_path / "data")) as broker:
        broker.inner.chain.authenticate = broken  # type: ignore[method-assign]
        with Wire(broker.port) as wire:
            wire.send_bytes(PROTOCOL_HEADER)
            _start_ok(wire, "scrypt", "pw")
            wire.expect_connection_close(541)
        with Wire.open(broker.port, user="sha256", password="pw"):
            pass


def test_a_broker_stops_while_clients_wait(tmp_path: Path) -> None:
    with inside(with_users(tmp_path / "data")) as broker:
        wires = [Wire(broker.port) for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.send_bytes(PROTOCOL_HEADER)
            _start_ok(wire, "scrypt", f"wrong {number}")
    for wire in wires:
        wire.close()


def _start_ok(wire: Wire, user: str, password: str) -> None:
    wire.expect(commands.Connection.Start)
    wire.send(
        0,
        commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"),
    )


def _is_idle(broker: Inside) -> bool:
    inner = broker.inner
    return bool(broker.call(lambda: not inner.connections and not len(inner.chain.tasks)))


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_the_default_user_does_not_come_by_way_of_a_proxy_on_this_machine(
    broker: Broker, header: str
) -> None:
    api = Api(broker)
    forwarded = {header: "127.0.0.1"}

    assert api("GET", "/api/whoami").status == 200
    assert api("GET", "/api/whoami", headers=forwarded).status == 401
    assert "guest" in api.get("/api/whoami")["name"]


def test_the_default_users_session_is_good_for_this_machine_only(broker: Broker) -> None:
    api = Api(broker)
    given = {"username": "guest", "password": "guest"}
    answer = api("POST", "/session", given, headers={"Authorization": ""})
    assert answer.status == 204
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "Authorization": ""}

    assert api("GET", "/api/whoami", headers=cookie).status == 200
    assert api("GET", "/api/whoami", headers=cookie | {"X-Forwarded-For": "8.8.8.8"}).status == 401
    assert api("GET", "/api/whoami", headers=cookie).status == 200


def test_users_behind_a_proxy_on_this_machine_do_not_wait_for_each_other() -> None:
    throttle = Throttle(lambda: 0.0)
    for _ in range(50):
        throttle.failed("a", "127.0.0.1", False)

    assert throttle.wait_s("a", "127.0.0.1", False) > 0
    assert throttle.wait_s("b", "127.0.0.1", False) == 0
