"""Changes of small files wait for the disk alone: while one does, others are served; what the disk
refuses is told and taken back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

import lavinmq
from tests.support.api import Answer
from tests.support.inside import inside
from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for

ALL = {"configure": ".*", "read": ".*", "write": ".*"}
STREAM = {"durable": True, "arguments": {"x-queue-type": "stream"}}
POLICY = {"pattern": "^q", "definition": {"max-length": 5}}
MANY = {
    "users": [{"name": "imported", "password_hash": "", "tags": "monitoring"}],
    "vhosts": [{"name": "imported"}],
    "policies": [{"vhost": "imported", "name": "p", "pattern": "x", "definition": {}}],
    "queues": [{"vhost": "imported", "name": "q"}],
}
CHANGES: list[tuple[str, str, Any]] = [
    ("PUT", "/api/policies/%2F/new", POLICY),
    ("DELETE", "/api/policies/%2F/old", None),
    ("PUT", "/api/operator-policies/%2F/new", POLICY),
    ("PUT", "/api/parameters/c/%2F/new", {"value": 1}),
    ("DELETE", "/api/parameters/c/%2F/old", None),
    ("PUT", "/api/global-parameters/new", {"value": 1}),
    ("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 100}),
    ("PUT", "/api/user-limits/old/max-channels", {"value": 100}),
    ("PUT", "/api/users/new", {"password_hash": "", "tags": ""}),
    ("PUT", "/api/users/old", {"password_hash": "", "tags": "policymaker"}),
    ("DELETE", "/api/users/old", None),
    ("PUT", "/api/permissions/%2F/old", ALL | {"read": "^mine"}),
    ("DELETE", "/api/permissions/%2F/old", None),
    ("PUT", "/api/vhosts/new", {"description": "made now"}),
    ("PUT", "/api/vhosts/old", {"description": "another"}),
    ("DELETE", "/api/vhosts/old", None),
    ("POST", "/api/definitions", MANY),
    ("DELETE", "/api/queues/%2F/stream/stream/consumers/old", None),
]
"""All kinds of changes that go into small files; `changed` makes what they need."""


class SlowDisk:
    """Every sync of this process from Python, for tests to hold or refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = os.fsync
        self._go_on = threading.Event()
        self._go_on.set()
        self._refused = self._passing = 0
        self.n_waiting = 0
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "fdatasync", self._fsync)

    def _fsync(self, fd: int) -> None:
        self.n_waiting += 1
        assert self._go_on.wait(30), "nobody let the sync go on"
        self.n_waiting -= 1
        if self._passing:
            self._passing -= 1
        elif self._refused:
            raise OSError(self._refused, os.strerror(self._refused))
        self._real(fd)

    def hold(self) -> None:
        self._go_on.clear()

    def go_on(self) -> None:
        self._go_on.set()

    def refuse(self, error: int, after: int = 0) -> None:
        """Args: after: how many more succeed."""
        self._refused, self._passing = error, after


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.refuse(0)
    disk.go_on()


@pytest.fixture
def broker(tmp_path: Path, disk: SlowDisk) -> Iterator[Managed]:
    with managed(data_dir=tmp_path / "data") as broker:
        yield broker
        disk.refuse(0)


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


def limited_to(most: int) -> dict[str, Any]:
    """A policy of queues."""
    return {"pattern": "^q", "definition": {"max-length": most}, "apply-to": "queues"}


def prepare(broker: Managed) -> None:
    """Make what the changes change."""
    api = broker.api
    for method, path, body in (
        ("PUT", "/api/users/old", {"password_hash": "", "tags": "monitoring"}),
        ("PUT", "/api/permissions/%2F/old", ALL),
        ("PUT", "/api/vhosts/old", {"description": "made before"}),
        ("PUT", "/api/policies/%2F/old", POLICY),
        ("PUT", "/api/parameters/c/%2F/old", {"value": 0}),
        ("PUT", "/api/queues/%2F/stream", STREAM),
        ("PUT", "/api/queues/%2F/stream/stream/consumers/old", {"offset": 1}),
        ("PUT", "/api/queues/%2F/stream/stream/consumers/other", {"offset": 1}),
    ):
        assert api(method, path, body).status in (201, 204)


def state(broker: Managed) -> dict[str, Any]:
    """All that is shown of what the changes change."""
    paths = (
        "policies", "operator-policies", "parameters", "global-parameters", "vhost-limits",
        "user-limits", "users", "permissions", "vhosts",
    )  # fmt: skip
    shown = {path: broker.api("GET", f"/api/{path}").json for path in paths}
    for vhost in shown["vhosts"]:
        vhost.pop("message_stats")
    return shown


def files(data_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data_dir.rglob("*.json")}


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_others_are_served_while_a_change_waits_for_the_disk_and_it_is_answered_after(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]],
    method: str, path: str, body: Any,
) -> None:  # fmt: skip
    prepare(broker)
    channel = broker.connect().channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    disk.hold()
    try:
        answer = background(broker.api, method, path, body)
        wait_for(lambda: disk.n_waiting > 0, "the change has come to the disk")

        channel.basic_publish("", "q", b"served")
        assert channel.basic_get("q", auto_ack=True)[2] == b"served"
        assert broker.api("GET", "/api/whoami").status == 200
        assert not answer.done()
    finally:
        disk.go_on()
    assert answer.result(20).status in (200, 201, 204)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES[:-1])
def test_a_change_that_the_disk_refuses_is_told_and_taken_back(
    broker: Managed, disk: SlowDisk, tmp_path: Path, method: str, path: str, body: Any
) -> None:
    prepare(broker)
    before, stored = state(broker), files(tmp_path)
    disk.refuse(errno.EIO)

    answer = broker.api(method, path, body)

    assert answer.status == 500
    assert "Input/output error" in answer.json["reason"]
    assert state(broker) == before
    assert files(tmp_path) == stored
    disk.refuse(0)
    assert broker.api(method, path, body).status in (200, 201, 204)


def test_changes_that_come_while_one_is_written_are_written_together(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    disk.hold()
    first = background(broker.api, "PUT", "/api/policies/%2F/p0", POLICY)
    wait_for(lambda: disk.n_waiting == 1, "the first is being written")
    others = [
        background(broker.api, "PUT", f"/api/policies/%2F/p{number}", POLICY)
        for number in range(1, 6)
    ]
    policies = broker.vhost().rules.policies
    wait_for(lambda: len(policies.all()) == 6, "all have been taken")

    disk.go_on()

    assert [each.result(20).status for each in (first, *others)] == [201] * 6
    assert len(policies._file.load_entries(lambda entry: entry)) == 6


def test_one_that_fails_takes_those_with_it_that_were_made_upon_it(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    assert broker.api("PUT", "/api/parameters/c/%2F/n", {"value": 0}).status == 201
    disk.hold()
    first = background(broker.api, "PUT", "/api/parameters/c/%2F/n", {"value": 1})
    wait_for(lambda: disk.n_waiting == 1, "the first is being written")
    second = background(broker.api, "PUT", "/api/parameters/c/%2F/n", {"value": 2})
    parameters = broker.vhost().rules.parameters
    wait_for(lambda: parameters.get("c", "n").value == 2, "both have been taken")  # type: ignore[union-attr]
    disk.refuse(errno.ENOSPC)
    disk.go_on()

    assert {first.result(20).status, second.result(20).status} == {500}
    disk.refuse(0)
    assert broker.api("GET", "/api/parameters/c/%2F/n").json["value"] == 0


def test_a_policy_is_in_force_when_it_is_on_disk(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    channel = broker.connect().channel()
    channel.queue_declare("q")
    disk.hold()
    first = background(broker.api, "PUT", "/api/policies/%2F/p", limited_to(1))
    wait_for(lambda: disk.n_waiting == 1, "the first is being written")
    channel.queue_declare("q2")
    second = background(broker.api, "PUT", "/api/policies/%2F/p", limited_to(2))
    rules = broker.vhost().rules
    wait_for(lambda: rules.policies.get("p").definition["max-length"] == 2, "both are listed")  # type: ignore[union-attr]

    assert [broker.queue(name).features.max_length for name in ("q", "q2")] == [None, None]
    disk.go_on()

    assert {first.result(20).status, second.result(20).status} == {201, 204}
    assert [broker.queue(name).features.max_length for name in ("q", "q2")] == [2, 2]


def test_what_is_refused_leaves_the_policy_in_force_that_came_before_it(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    broker.connect().channel().queue_declare("q")
    disk.hold()
    answers = [background(broker.api, "PUT", "/api/policies/%2F/p", limited_to(1))]
    policies = broker.vhost().rules.policies
    wait_for(lambda: disk.n_waiting == 1, "the first is being written")
    answers.append(background(broker.api, "DELETE", "/api/policies/%2F/p"))
    wait_for(lambda: policies.get("p") is None, "it is not listed any more")
    answers.append(background(broker.api, "PUT", "/api/policies/%2F/p", limited_to(3)))
    wait_for(lambda: policies.get("p") is not None, "it is listed again")
    disk.refuse(errno.EIO, after=2)  # file and directory of the first
    disk.go_on()

    assert [each.result(20).status for each in answers] == [201, 500, 500]
    assert broker.queue("q").features.max_length == 1
    assert policies.get("p").definition["max-length"] == 1  # type: ignore[union-attr]
    disk.refuse(0)
    assert broker.api("DELETE", "/api/policies/%2F/p").status == 204
    assert broker.queue("q").features.max_length is None


def test_a_shovel_that_ends_leaves_the_parameter_that_comes_in_its_place(
    broker: Managed, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    """The other one is on its way to the disk, and the shovel at work is that of the first."""
    path = "/api/parameters/shovel/%2F/s"
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    assert broker.api("PUT", path, {"value": value}).status == 201
    shovels: Any = broker.inner.shovels
    old = shovels.get("/", "s")
    disk.hold()
    answer = background(broker.api, "PUT", path, {"value": value | {"dest-queue": "other"}})
    wait_for(lambda: disk.n_waiting > 0, "it is being written")

    assert broker.call(shovels.get, "/", "s") is old
    broker.submit(old.has_ended)
    disk.go_on()

    assert answer.result(20).status == 204
    assert broker.call(shovels.get, "/", "s") is not old
    assert broker.api("GET", path).json["value"]["dest-queue"] == "other"
    assert broker.api("DELETE", path).status == 204


def test_a_shovel_stays_paused_when_the_disk_refuses_to_let_it_go_on(
    broker: Managed, disk: SlowDisk
) -> None:
    """It moved all messages, and the request was answered with 500."""
    channel = broker.connect().channel()
    for name in ("from", "to"):
        channel.queue_declare(name, durable=True)
    path = "/api/parameters/shovel/%2F/s"
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    assert broker.api("PUT", path, {"value": value}).status == 201
    wait_for(lambda: channel.queue_declare("from", passive=True).method.consumer_count, "it runs")
    assert broker.api("PUT", "/api/shovels/%2F/s/pause?force=true").status == 204
    wait_for(
        lambda: not channel.queue_declare("from", passive=True).method.consumer_count, "it stops"
    )
    channel.basic_publish("", "from", b"stays")
    disk.refuse(errno.ENOSPC)

    assert broker.api("PUT", "/api/shovels/%2F/s/resume").status == 500

    assert broker.api("GET", "/api/shovels/%2F/s").json["state"] == "Paused"
    disk.refuse(0)
    assert channel.basic_get("from")[2] == b"stays"
    assert broker.api("PUT", "/api/shovels/%2F/s/resume").status == 204
    disk.refuse(errno.ENOSPC)
    assert broker.api("PUT", "/api/shovels/%2F/s/pause?force=true").status == 500
    assert broker.api("GET", "/api/shovels/%2F/s").json["state"] != "Paused"
    disk.refuse(0)
    assert broker.api("DELETE", path).status == 204


def test_a_broker_that_stops_finishes_what_it_has_begun(
    tmp_path: Path, disk: SlowDisk, background: Callable[..., Future[Answer]]
) -> None:
    with managed(data_dir=tmp_path / "data") as broker:
        disk.hold()
        policies = broker.vhost().rules.policies
        background(broker.api, "PUT", "/api/policies/%2F/a", POLICY)
        wait_for(lambda: disk.n_waiting == 1, "the first is being written")
        background(broker.api, "PUT", "/api/policies/%2F/b", POLICY)
        wait_for(lambda: len(policies.all()) == 2, "both have been taken")
        stopping = background(broker.broker.stop)
        wait_for(lambda: not broker.inner.is_serving, "it is stopping")
        disk.go_on()
        stopping.result(20)
    with inside(tmp_path / "data") as again:
        assert [policy.name for policy in again.vhost().rules.policies.all()] == ["a", "b"]


# --- definitions ------------------------------------------------------------------------------

SETTINGS = {"max_deleted_definitions": 20}


def churn(channel: Any, count: int, kept: str) -> None:
    """Declare and delete queues, and make one that stays, bound."""
    for number in range(count):
        channel.queue_declare(f"gone-{number}", durable=True)
        channel.queue_delete(f"gone-{number}")
    channel.queue_declare(kept, durable=True)
    channel.queue_bind(kept, "amq.direct", kept)


def connection_to(broker: lavinmq.Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, heartbeat=0))


def test_clients_declare_and_delete_while_the_definitions_are_compacted(
    tmp_path: Path, disk: SlowDisk
) -> None:
    with managed(data_dir=tmp_path / "data", **SETTINGS) as broker:
        channel = broker.connect().channel()
        disk.hold()
        churn(channel, 21, "before")
        wait_for(lambda: disk.n_waiting == 1, "the new file is being synced")

        churn(channel, 30, "meanwhile")
        channel.queue_declare("other", durable=True)
        channel.queue_delete("before")
        channel.queue_unbind("meanwhile", "amq.direct", "meanwhile")
        channel.queue_bind("meanwhile", "amq.direct", "again")

        file = broker.vhost().recorded.file
        assert file.deleted > 50
        disk.go_on()
        wait_for(lambda: file.copy is None, "the new file is in place")
        assert file.deleted == 32
        churn(channel, 1, "after")  # that begins the next one

        def is_whole() -> bool:
            return file.copy is None and os.path.getsize(file.path) == file._size

        wait_for(is_whole, "the file is as long as the broker takes it to be")
    with inside(tmp_path / "data") as again:
        assert set(again.vhost().queues) == {"meanwhile", "other", "after"}
        assert sorted((to.name, key) for to, key, _ in again.exchange("amq.direct").bindings) == [
            ("after", "after"),
            ("meanwhile", "again"),
        ]


def test_what_is_declared_while_the_definitions_are_compacted_survives_the_broker(
    tmp_path: Path, disk: SlowDisk
) -> None:
    with managed(data_dir=tmp_path / "data", **SETTINGS) as broker:
        channel = broker.connect().channel()
        disk.hold()
        churn(channel, 21, "before")
        wait_for(lambda: disk.n_waiting == 1, "the new file is being synced")
        churn(channel, 5, "meanwhile")
        path = broker.vhost().recorded.file.path
        copies = [path.read_bytes(), path.with_name("definitions.amqp.tmp").read_bytes()]
        disk.go_on()
    for number, copy in enumerate(copies):
        directory = tmp_path / f"{number}"
        with inside(directory):
            pass
        (directory / path.parent.name / path.name).write_bytes(copy)
        with inside(directory) as again:
            assert set(again.vhost().queues) == {"before", "meanwhile"}


def test_a_compaction_that_the_disk_refuses_leaves_the_file_as_it_was(
    tmp_path: Path, disk: SlowDisk
) -> None:
    with managed(data_dir=tmp_path / "data", **SETTINGS) as broker:
        channel = broker.connect().channel()
        file = broker.vhost().recorded.file
        disk.refuse(errno.EIO)
        churn(channel, 21, "before")
        wait_for(lambda: file.copy is None, "it is given up")
        disk.refuse(0)
        assert file.deleted >= 21
        assert not file.path.with_name("definitions.amqp.tmp").exists()
        churn(channel, 1, "after")
    with inside(tmp_path / "data") as again:
        assert set(again.vhost().queues) == {"before", "after"}


# --- streams ----------------------------------------------------------------------------------


def test_a_forgotten_offset_that_the_disk_refuses_is_told_and_tried_again(
    broker: Managed, disk: SlowDisk
) -> None:
    prepare(broker)
    path = Path(broker.queue("stream").directory) / "consumer_offsets"
    before = path.read_bytes()
    method, place, _ = CHANGES[-1]
    disk.refuse(errno.EIO)

    answer = broker.api(method, place)

    assert answer.status == 500
    assert "Input/output error" in answer.json["reason"]
    assert path.read_bytes() == before
    disk.refuse(0)
    broker.call(broker.inner.stored_offsets.look, broker.queue("stream"))
    wait_for(lambda: b"old" not in path.read_bytes(), "it is forgotten on disk")
    assert b"other" in path.read_bytes()
