"""A virtual host without clients: what its connections have to know of their queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq.arguments.interval import FOREVER_MS
from lavinmq.auth.users import User, UserStore
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.definitions import DefinitionsFile
from lavinmq.files.saving import Disk
from lavinmq.process.portions import AT_ONCE
from lavinmq.vhost import loading
from lavinmq.vhost.exchange import Exchange, live_incoming
from lavinmq.vhost.files import make_anew
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.vhost import VHost
from tests.support.core import Bench, FakeEvents

MAX_DELETED = 5


class Client:
    """As much of a connection as the virtual host asks for; it may do everything."""

    def __init__(self, user: User) -> None:
        self.name = "client"
        self.user = user
        self.exclusive_queues: set[Queue] = set()


class Consumer:
    """A consumer of nothing."""

    tag = "c"
    exclusive = False

    def stop(self) -> None:
        """Nothing to stop."""

    def cancelled(self) -> None:
        """Nobody to tell."""


class Counted(Consumer):
    """A consumer that knows how many there are when it is told."""

    n = 0
    left_at_end = 0

    def __init__(self) -> None:
        Counted.n += 1

    def __del__(self) -> None:
        Counted.n -= 1

    def cancelled(self) -> None:
        """The last one to be told counts."""
        Counted.left_at_end = Counted.n


@pytest.fixture
def events() -> FakeEvents:
    return FakeEvents()


@pytest.fixture
def vhost(tmp_path: Path, events: FakeEvents) -> Iterator[VHost]:
    with closing(Bench(tmp_path, events)) as bench:
        vhost = VHost("/", tmp_path, bench.loop, 4096, MAX_DELETED, "ring", events.call_soon)
        vhost.open()
        yield vhost
        vhost.close()


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(UserStore(tmp_path, "guest", "", True).direct_user)


def declare(vhost: VHost, client: Client, *, exclusive: bool) -> Queue:
    return vhost.declare_queue(client, "q", False, False, exclusive, True, EMPTY)[0]


def test_definitions_are_compacted_after_so_many_deletions(vhost: VHost, client: Client) -> None:
    """edge-cases.md 337"""
    path = vhost.directory / "definitions.amqp"
    before = path.stat().st_size
    sizes = []
    for _ in range(MAX_DELETED + 1):
        vhost.declare_queue(client, "q", False, True, False, False, EMPTY)
        vhost.delete_queue(client, "q", False, False)
        sizes.append(path.stat().st_size)

    assert sizes[:-1] == sorted(sizes[:-1])
    assert sizes[-1] == before


def test_a_connection_knows_its_exclusive_queues_while_they_exist(
    vhost: VHost, client: Client
) -> None:
    """edge-cases.md 37"""
    declare(vhost, client, exclusive=False)
    vhost.delete_queue(client, "q", False, False)
    queue = declare(vhost, client, exclusive=True)
    assert client.exclusive_queues == {queue}
    consumer = Consumer()
    queue.add_consumer(consumer)

    vhost.consumer_left(queue, consumer)

    assert "q" not in vhost.queues
    assert client.exclusive_queues == set()


def test_a_deleted_exclusive_queue_is_forgotten(vhost: VHost, client: Client) -> None:
    """edge-cases.md 37"""
    declare(vhost, client, exclusive=True)

    vhost.delete_queue(client, "q", False, False)

    assert client.exclusive_queues == set()


def test_a_transient_queue_does_not_wait_for_the_files_of_the_one_before(
    vhost: VHost, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were renamed by the thread that serves clients, whatever the disk was doing."""
    removals: list[tuple[Callable[[], object], Callable[..., object]]] = []

    def refuse(*_: object) -> None:
        raise AssertionError("the loop waits for the disk")

    directories = []
    for _ in range(2):
        queue = declare(vhost, client, exclusive=False)
        directories.append(Path(queue.directory))
        directories[-1].mkdir()
        (directories[-1] / "msgs.0000000001").write_bytes(b"x")
        with monkeypatch.context() as running:
            running.setattr(vhost.files._disk, "is_running", True)
            running.setattr(vhost.files._disk.removals, "add", lambda *it: removals.append(it))
            running.setattr(vhost.files._disk.changes, "rename", refuse)
            vhost.files.remove(queue)
        vhost.delete_queue(client, "q", False, False)
        assert directories[-1].exists()

    assert directories[0] != directories[1]
    for work, removed in removals:
        removed(work(), None)
    assert list(Path(vhost.files.transient).iterdir()) == []


def bound_often(vhost: VHost, client: Client, kind: str, n: int) -> Exchange:
    """Bind a queue to an exchange, which is new, so often."""
    vhost.declare_exchange(client, "x", kind, False, True, False, False, EMPTY)
    vhost.declare_queue(client, "q", False, True, False, False, EMPTY)
    for number in range(n):
        vhost.bindings.bind_queue(client, "q", "x", f"key.{number}", EMPTY)
    return vhost.exchanges["x"]


@pytest.mark.parametrize("n", [3, AT_ONCE + 1, 40_000])
def test_a_deleted_queue_is_bound_no_more(
    vhost: VHost, client: Client, events: FakeEvents, n: int
) -> None:
    exchange = bound_often(vhost, client, "direct", n)

    vhost.delete_queue(client, "q", False, False)

    assert list(exchange.live_bindings()) == []
    assert "q" not in vhost.queues
    events.run()
    assert not exchange.bindings


def test_consumers_of_a_deleted_queue_are_freed_one_after_the_other(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    Counted.n = 0
    queue = declare(vhost, client, exclusive=False)
    for _ in range(40_000):
        queue.add_consumer(Counted())

    _, _, consumers = vhost.delete_queue(client, "q", False, False)
    vhost.tell_cancelled(consumers)
    events.run()

    assert Counted.left_at_end <= 2
    assert Counted.n == 0


def test_a_deleted_queue_may_be_declared_and_bound_while_its_bindings_go(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    exchange = bound_often(vhost, client, "fanout", 40_000)
    vhost.delete_queue(client, "q", False, False)
    assert exchange.bindings

    vhost.declare_queue(client, "q", False, True, False, False, EMPTY)
    vhost.bindings.bind_queue(client, "q", "x", "key.1", EMPTY)

    assert [key for _, key, _ in exchange.live_bindings()] == ["key.1"]
    events.run()
    assert [key for _, key, _ in exchange.bindings] == ["key.1"]


def test_bindings_of_a_deleted_exchange_go_in_portions(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    bound_often(vhost, client, "topic", 40_000)
    queue = vhost.queues["q"]

    vhost.delete_exchange(client, "x", False)

    assert list(live_incoming(queue)) == []
    assert queue.incoming
    events.run()
    assert not queue.incoming


def test_compaction_forgets_bindings_that_still_go(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    exchange = bound_often(vhost, client, "direct", 40_000)
    vhost.delete_queue(client, "q", False, False)
    assert exchange.bindings

    for _ in range(MAX_DELETED + 1):
        vhost.declare_queue(client, "other", False, True, False, False, EMPTY)
        vhost.delete_queue(client, "other", False, False)

    stored = DefinitionsFile(vhost.directory / "definitions.amqp").load()
    assert stored.bindings == []


def test_a_new_exchange_stays_when_the_bindings_of_the_one_before_it_go(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    bound_often(vhost, client, "topic", 40_000).auto_delete = True
    vhost.delete_queue(client, "q", False, False)
    vhost.delete_exchange(client, "x", False)

    vhost.declare_exchange(client, "x", "topic", False, False, True, False, EMPTY)
    events.run()

    assert "x" in vhost.exchanges


def test_a_stream_may_keep_messages_longer_than_history(vhost: VHost, client: Client) -> None:
    arguments = FieldTable({"x-queue-type": "stream", "x-max-age": f"{'9' * 30}Y"})

    queue, _ = vhost.declare_queue(client, "s", False, True, False, False, arguments)

    assert queue.features.max_age_ms == FOREVER_MS


def test_a_new_virtual_host_is_opened_without_a_change_of_a_file(
    tmp_path: Path, events: FakeEvents
) -> None:
    """All of it was made in a thread: the loop waits for no disk."""
    disk = Disk()
    make_anew(tmp_path, "new", disk.changes)
    changes: list[object] = []
    disk.changes.note = lambda *change: changes.append(change)
    with closing(Bench(tmp_path / "core", events)) as bench:
        made = VHost("new", tmp_path, bench.loop, 4096, 5, "ring", events.call_soon, disk=disk)
        made.open()
        made.abandon()

    assert changes == []
    assert (made.directory / "transient").is_dir()


@pytest.mark.parametrize("many", [1, 1_000_000])
def test_all_queues_are_loaded_whoever_looks_into_their_directories(
    tmp_path: Path, client: Client, events: FakeEvents, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(loading, "MANY", many)
    names = {f"q{number}" for number in range(100)}
    with closing(Bench(tmp_path, events)) as bench:
        made = VHost("/", tmp_path, bench.loop, 4096, MAX_DELETED, "ring", events.call_soon)
        made.open()
        for name in names:
            made.declare_queue(client, name, False, True, False, False, EMPTY)
        gone, marked = (Path(made.queues[name].directory) for name in ("q7", "q8"))
        made.close()
        (gone / ".queue").unlink()
        gone.rmdir()
        (marked / "paused").touch()

        again = VHost("/", tmp_path, bench.loop, 4096, MAX_DELETED, "ring", events.call_soon)
        again.open()

        assert set(again.queues) == names
        assert [name for name, queue in again.queues.items() if queue.core.is_paused] == ["q8"]
        assert (gone / ".queue").read_text() == "q7"
        assert not [each for each in threading.enumerate() if each.name == "list"]
        again.close()
