"""What a hostile reviewer tried of a hot standby; see the report for what fails and why."""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
import time
import weakref
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest

from lavinmq._cluster import Follower
from lavinmq.cluster import standby
from lavinmq.cluster.standby import Standby, _Ready
from lavinmq.errors import DefinitionsError
from lavinmq.files import definitions
from lavinmq.policy.parameters import Parameter
from lavinmq.process.systemd import Service
from lavinmq.server import Server
from lavinmq.vhost.vhost import VHost
from tests.support.inside import Inside
from tests.support.mqtt_peer import Peer
from tests.unit.cluster import test_standby as standby_tests
from tests.unit.cluster.test_changes import Copy, until
from tests.unit.cluster.test_standby import (  # noqa: F401 - fixtures
    LATE,
    Leader,
    Node,
    Story,
    channel,
    files,
    have_all,
    is_same_as_a_start,
    leader,
    node,
    ready,
    taken,
)


def reconnect(node: Node) -> None:
    """As `Following` does it: another follower on the same ring."""
    copy = node.copy
    copy.cut()
    ring = copy.follower.ring
    copy.follower.close()
    copy.follower = Follower(ring, str(copy.root))
    copy.connect()


def test_without_a_garbage_collector_nothing_is_left(leader: Leader, node: Node) -> None:
    """A node of a cluster has none before it leads: lavinmq/__main__.py disables it."""
    read: list[weakref.ref[VHost]] = []
    queues: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        with channel(leader.broker.port) as ch:
            for number in range(10):
                ch.queue_declare(f"q{number}", durable=True)
                ch.queue_bind(f"q{number}", "amq.topic", "k")
                have_all(leader, node)
                vhost = node.ready.vhosts["/"]
                read.append(weakref.ref(vhost))
                queues += [weakref.ref(each) for each in vhost.queues.values()]
        now = node.ready.vhosts["/"]
        left = sum(each() is not None and each() is not now for each in read)
        n_left = sum(each() is not None for each in queues) - len(now.queues)
    finally:
        gc.enable()
    assert left <= standby.KEPT
    assert n_left == 0


def test_a_vhost_of_which_there_is_something_to_say_keeps_no_other_from_being_read(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SHARE", 50)
    monkeypatch.setattr(standby, "AGAIN_S", 2.0)
    inside = leader.inside
    for name in "abcdefg":
        inside.submit(inside.inner.vhosts.create, name).result(20)
    with channel(leader.broker.port) as ch:  # a client may: it gets as many as there can be
        ch.queue_declare("d", durable=True, arguments={
            "x-message-deduplication": True, "x-cache-size": 2**31})  # fmt: skip
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.look()
    every: Any = dict.fromkeys(["/", *"abcdefg"])  # sets have any order
    node.ready._names = every
    for name in "abcdefg":
        node.ready.vhosts.pop(name, None)
    for _ in range(5):
        time.sleep(standby.TURN_S)
        node.look()
    assert set(node.ready.vhosts) >= set("abcdefg")


def test_after_a_reconnect_queues_become_ready_again(leader: Leader, node: Node) -> None:
    with channel(leader.broker.port) as ch:
        for name in "ab":
            ch.queue_declare(name, durable=True)
        have_all(leader, node)
        assert ready(node) == {"a", "b"}
        reconnect(node)
        have_all(leader, node)
        assert ready(node) == {"a", "b"}
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        have_all(leader, node)
        node.look()
    assert ready(node) == {"a", "b"}


def test_a_file_that_could_not_be_read_for_a_moment_does_not_count(
    leader: Leader, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with EMFILE, EIO, ENOMEM: the standby goes on without parameters, and so does the leader
    that comes of it."""
    from lavinmq.files import json_file

    rules = leader.inside.vhost().rules
    leader.inside.call(rules.parameters.put, Parameter("shovel", "p", {
        "src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://127.0.0.1:1",
        "dest-queue": "b",
    }))  # fmt: skip
    real = json_file.read_regular

    def fails(path: str) -> bytes:
        if path.startswith(str(node.copy.root)) and path.endswith("parameters.json"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    monkeypatch.setattr(json_file, "read_regular", fails)
    have_all(leader, node)
    monkeypatch.setattr(json_file, "read_regular", real)
    is_same_as_a_start(leader, node, tmp_path)


def test_a_follower_says_nothing_again_and_again(
    leader: Leader, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    leader.inside.put_policy("p", "^a$", {"ha-mode": "all"}, apply_to="queues")
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    caplog.clear()
    with channel(leader.broker.port) as ch, caplog.at_level(logging.INFO):
        for number in range(5):
            ch.queue_declare(f"q{number}", durable=True)
            have_all(leader, node)
    assert [each.message for each in caplog.records if "policy" in each.message] == []


def test_what_has_changed_is_not_told_to_be_ready(leader: Leader, node: Node) -> None:
    stands: Any = Standby(node.config, node.events, Service({}), node.copy.follower.ring,
                          lambda: None)  # fmt: skip
    stands._ready = node.ready
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert stands.status()["ready_queues"] == 1
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        position = leader.mark()
        until(lambda: node.copy.follower.synced >= position)
        assert ready(node) == set()
        vhost = node.ready.vhosts["/"]
        for _ in vhost.look_again(0):
            pass
    assert stands.status()["ready_queues"] == 0


def test_letting_go_leaves_no_descriptors_and_no_threads(leader: Leader, node: Node) -> None:
    have_all(leader, node)
    ring = node.copy.follower.ring

    def once() -> None:
        made = _Ready(node.config, node.events, Service({}), ring.n_resets)
        made.drop()

    def again() -> tuple[int, int]:
        for _ in range(20):
            node.call(once)
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    node.call(once)
    before = again()
    after = again()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1]


def test_a_queue_is_read_in_portions(leader: Leader, node: Node) -> None:
    n = 30_000
    with channel(leader.broker.port) as ch:
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", leader.broker.port)
    )
    ch = connection.channel()
    for _ in range(n):
        ch.basic_publish("late", "", b"m" * 100, pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": LATE}))  # fmt: skip
    connection.close()
    until(lambda: leader.inside.queue("amq.delayed-late").core.ready == n)
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.look()
    assert ready(node) == set()  # its index would be made in one step


def test_a_recent_history_is_kept_after_a_take_over(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    with channel(leader.broker.port) as ch:
        ch.exchange_declare("h", "x-recent-history", durable=True,
                            arguments={"x-recent-history-length": 50})  # fmt: skip
        ch.exchange_declare("alt", "fanout", durable=True)
        ch.exchange_declare("d", "direct", durable=True, arguments={"alternate-exchange": "alt"})
        ch.queue_declare("a", durable=True)
        ch.queue_bind("a", "h", "")
        ch.queue_bind("a", "alt", "")
    have_all(leader, node)
    assert ready(node) == {"a"}
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        assert node.server is not None
        with channel(node.server.port) as ch:
            for _ in range(200):
                ch.basic_publish("h", "", b"m" * 1000)
            ch.basic_publish("d", "x", b"by the alternate")
            ch.queue_declare("b", durable=True)
            ch.queue_bind("b", "h", "")
            until(lambda: ch.queue_declare("b", passive=True).method.message_count == 50)
            assert ch.queue_declare("a", passive=True).method.message_count == 201


def test_files_that_were_replaced_by_a_join_do_not_count(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    """The files of a join are in their place, and then the leader is gone: nothing is replayed, so
    the ring is not reset. `finish` makes such files a whole (joining.py)."""
    from lavinmq.cluster.joining import Copy as Joined

    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        ch.queue_declare("b", durable=True)
        have_all(leader, node)
        assert ready(node) == {"a", "b"}
        stands: Any = Standby(
            node.config, node.events, Service({}), node.copy.follower.ring, lambda: None
        )
        stands._ready = node.ready
        node.copy.cut()
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
    leader.mark()
    stage = node.copy.root / ".joining"
    assert hasattr(Joined, "place")
    del stage
    node.copy.follower.ring.replaced()  # as `Following` does before, and afterwards
    # What Copy.place does in the end: the leader's files in the place of those there were.
    import shutil

    for path in leader.root.glob("?" * 40 + "/" + "?" * 40 + "/*"):
        to = node.copy.root / path.relative_to(leader.root)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    server = stands.take()
    if server is not None:  # served as it is
        other = tmp_path / "other"
        shutil.copytree(node.copy.root, other)

        def start() -> None:
            node.server = server
            server.start()

        node.call(start)
        vhost = server.broker.vhosts["/"]
        assert node.call(lambda: vhost.queues["a"].core.ready) == 1


def test_what_is_released_at_a_take_over_has_the_time_of_that(
    leader: Leader, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader dies while it releases what has waited in an exchange that is not delayed any more:
    who takes over goes on with that, by a clock that nobody has looked at since the load."""
    from lavinmq.vhost.delayed import DelayedExchanges

    inside = leader.inside
    with channel(leader.broker.port) as ch:
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        ch.basic_publish("late", "", b"l", pika.BasicProperties(headers={"x-delay": LATE}))
        ch.exchange_declare("x", "fanout", durable=True)
        ch.queue_declare("short", durable=True, arguments={"x-message-ttl": 2000})
        ch.queue_bind("short", "x", "")
        inside.put_policy("d", "^x$", {"delayed-message": True}, apply_to="exchanges")
        until(lambda: inside.call(lambda: inside.exchange("x").waiting is not None))
        ch.basic_publish("x", "", b"m", pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": LATE}))  # fmt: skip
        monkeypatch.setattr(DelayedExchanges, "_release", lambda *_: None)  # it dies here
        inside.delete_policy("d")
        monkeypatch.undo()
        monkeypatch.setattr(standby, "LOOK_S", 0.0)
        monkeypatch.setattr(standby, "SHARE", 0)
        have_all(leader, node)
        time.sleep(2.5)
        fresh = taken(leader, node, tmp_path)
        with closing(SimpleNamespace(close=fresh.stop)):
            again = Inside(fresh)
            assert node.server is not None
            vhost = node.server.broker.vhosts["/"]
            time.sleep(0.5)
            wanted = again.call(lambda: again.queue("short").core.ready)
            found = node.call(lambda: vhost.queues["short"].core.ready)
            assert (found, wanted) == (1, 1)


KINDS: list[dict[str, Any]] = [
    {}, {"x-max-priority": 3}, {"x-max-length": 7}, {"x-message-ttl": 3_600_000},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-max-length": 3},
    {"x-dead-letter-exchange": "dlx", "x-message-ttl": 3_600_000, "x-max-length-bytes": 3000},
    {"x-message-deduplication": True, "x-cache-size": 100}, {"x-queue-type": "stream"},
    {"x-overflow": "reject-publish", "x-max-length": 5}, {"x-expires": 3_600_000},
    {"x-delivery-limit": 2, "x-dead-letter-exchange": "dlx"}, {"x-single-active-consumer": True},
    {"x-max-priority": 2, "x-max-length": 5, "x-dead-letter-exchange": "dlx"},
]  # fmt: skip
EXCHANGES: list[tuple[str, dict[str, Any]]] = [
    ("fanout", {}), ("topic", {"alternate-exchange": "dlx"}), ("headers", {}),
    ("x-consistent-hash", {}), ("x-recent-history", {"x-recent-history-length": 5}),
    ("direct", {"x-message-deduplication": True, "x-cache-size": 50}),
    ("x-delayed-message", {"x-delayed-type": "fanout"}),
    ("fanout", {"x-delayed-exchange": True}),
]  # fmt: skip


class Wild(Story):
    """A history with all kinds of things."""

    def _declare(self, ch: Any, name: str) -> None:
        if name not in self.kinds:
            arguments = self.chance.choice(KINDS)
            ch.queue_declare(name, durable=True, arguments=arguments)
            self.kinds[name] = arguments

    def _exchange(self, ch: Any, name: str) -> None:
        with suppress(pika.exceptions.ChannelClosedByBroker):
            one = ch.connection.channel()
            act = self.chance.random()
            if act < 0.5:
                kind, arguments = self.chance.choice(EXCHANGES)
                one.exchange_declare(f"x{name}", kind, durable=True, arguments=arguments)
            elif act < 0.8:
                one.exchange_bind(f"x{name}", "amq.topic", "k.#")
            else:
                one.exchange_delete(f"x{name}")
        with suppress(pika.exceptions.ChannelClosedByBroker):
            one = ch.connection.channel()
            one.exchange_declare("dlx", "fanout", durable=True)
            one.queue_bind(name, f"x{name}", self.chance.choice(["1", "k.#", "3"]))

    def _policy(self, _ch: Any, name: str) -> None:
        inside, chance = self.leader.inside, self.chance
        act = chance.random()
        if act < 0.3:
            inside.put_policy("p", f"^{name}$", chance.choice([
                {"max-length": chance.randrange(1, 30)}, {"message-ttl": 3_000_000},
                {"dead-letter-exchange": "dlx"}, {"expires": 3_000_000}, {"delivery-limit": 3},
            ]), apply_to="queues")  # fmt: skip
        elif act < 0.5:
            inside.put_policy("e", f"^x{name}$", chance.choice([
                {"delayed-message": True}, {"alternate-exchange": "dlx"},
            ]), apply_to="exchanges")  # fmt: skip
        elif act < 0.7:
            inside.put_operator_policy("o", "^[ab]", {"max-length": chance.randrange(3, 30)})
        else:
            inside.delete_policy(chance.choice("pe"))

    def _pause(self, ch: Any, name: str) -> None:
        super()._pause(ch, name)

    def _publish(self, ch: Any, name: str) -> None:
        super()._publish(ch, name)
        with suppress(pika.exceptions.NackError, pika.exceptions.UnroutableError):
            with suppress(pika.exceptions.ChannelClosedByBroker):
                one = ch.connection.channel()
                one.basic_publish(f"x{name}", "k.1", b"by x%s %d" % (name.encode(), self.n),
                    pika.BasicProperties(delivery_mode=2, headers={"x-delay": LATE},
                        expiration=self.chance.choice([None, "3600000", "10"])))  # fmt: skip
                one.queue_declare("a", passive=True)


def both(leader: Leader, node: Node, tmp_path: Path) -> None:
    """As `is_same_as_a_start`, and with the files that both leave behind when they stop."""
    fresh = taken(leader, node, tmp_path)
    try:
        inside = Inside(fresh)
        assert node.server is not None
        for _ in range(50):
            found, wanted = node.picture(), inside.call(standby_tests.picture, inside.inner)
            if found == wanted:
                break
            time.sleep(0.05)
        assert found == wanted
        time.sleep(0.2)
    finally:
        fresh.stop()
    node.close()
    node.close = lambda: None  # type: ignore[method-assign]
    ours, theirs = files(node.copy.root), files(tmp_path / "other")
    names = sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
    assert [(n, n in ours, n in theirs) for n in names] == []


@pytest.mark.parametrize("seed", range(int(os.environ.get("FIRST", "1")),
                                       int(os.environ.get("LAST", "4"))))  # fmt: skip
def test_wild(leader: Leader, node: Node, tmp_path: Path, seed: int) -> None:
    story = Wild(leader, seed)
    chance = story.chance
    with channel(leader.broker.port) as ch:
        for at in range(70):
            story.change(ch, defines=chance.random() < (0.9 if at < 40 else 0.2))
            draw = chance.random()
            if draw < 0.3:
                node.look()
            elif draw < 0.33:
                reconnect(node)
    if chance.random() < 0.5:
        until(lambda: node.copy.follower.synced >= leader.feed.head)
        node.look()
        node.look()
    both(leader, node, tmp_path)


def mqtt_history(port: int) -> None:
    """Sessions with messages that wait, some of them sent once; a shared subscription; retained."""
    for client in ("s0", "s1", "s2"):
        with Peer(port) as peer:
            peer.connect(client, clean=False)
            peer.subscribe((f"t/{client}", 1), ("all/#", 2))
            if client != "s0":
                peer.subscribe(("$share/g/shared", 1), packet_id=2)
            peer.disconnect()
    with Peer(port) as peer:
        peer.connect("sender")
        for n in range(5):
            peer.publish("all/x", b"all %d" % n, 1 + n % 2)
            peer.publish("t/s1", b"s1 %d" % n, 1)
            peer.publish("shared", b"shared %d" % n, 1)
        peer.publish("all/kept", b"kept", 1, retain=True)
        peer.disconnect()
    with Peer(port) as peer:
        peer.connect("s1", clean=False)
        for n in range(4):
            peer.message(is_acked=n % 2 == 0)
        peer.socket.close()


def mqtt_rest(port: int) -> dict[str, list[Any]]:
    """What the sessions get."""
    found: dict[str, list[Any]] = {}
    for client in ("s0", "s1", "s2", "new"):
        with Peer(port, completes=True) as peer:
            answer = peer.connect(client, clean=False)
            rows: list[Any] = [answer]
            if client == "new":
                peer.subscribe(("all/#", 1))
            with suppress(TimeoutError):
                while True:
                    peer.socket.settimeout(0.4)
                    one = peer.message()
                    rows.append((one.topic, one.payload, one.qos, one.retain, one.dup))
            found[client] = rows
    return found


def test_sessions_of_mqtt_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(standby_tests.SETTINGS, "mqtt_port", 0)
    monkeypatch.setattr(standby, "LOOK_S", 0.0)
    monkeypatch.setattr(standby, "SHARE", 0)
    with closing(Leader(tmp_path / "leader")) as leader:
        source: Any = SimpleNamespace(root=leader.root, feed=leader.feed)
        with closing(Copy(source, tmp_path / "copy")) as copy:
            copy.connect()
            with closing(Node(copy)) as node:
                mqtt_history(leader.inside.server.mqtt_port)
                have_all(leader, node)
                time.sleep(0.2)
                have_all(leader, node)
                names = set(leader.inside.vhost().queues)
                print(names, ready(node))
                assert ready(node) == names
                fresh = taken(leader, node, tmp_path)
                with closing(SimpleNamespace(close=fresh.stop)):
                    assert node.server is not None
                    found = mqtt_rest(node.server.mqtt_port)
                    assert found == mqtt_rest(Inside(fresh).server.mqtt_port)
                    print(found)


def test_what_a_client_declares_does_not_end_the_standby_of_all(
    leader: Leader, node: Node
) -> None:
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert ready(node) == {"a"}
        ch.queue_declare("d", durable=True, arguments={
            "x-message-deduplication": True, "x-cache-size": 2**31})  # fmt: skip
        have_all(leader, node)
    assert ready(node) == {"a"}


def test_what_cannot_be_read_is_not_read_again_and_again(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Definitions that make no sense stay in the file; each look parses all of it in a thread."""
    monkeypatch.setattr(standby, "SHARE", 50)
    monkeypatch.setattr(standby, "AGAIN_S", 2.0)
    calls: list[Path] = []

    def look(path: Path) -> Any:
        calls.append(path)
        time.sleep(0.2)
        raise DefinitionsError("definitions that make no sense")

    monkeypatch.setattr(definitions, "look", look)
    for _ in range(4):
        node.look()
        time.sleep(standby.TURN_S)
    assert len(calls) == 1


SCRIPT = """
import sys
from pathlib import Path
from contextlib import closing
from tests.support.core import Bench, properties, publish
root = Path(sys.argv[1])
with closing(Bench(root, sync=True)) as bench:
    (root / "q").mkdir()
    queue = bench.queue("q", max_priority=3)
    if sys.argv[2] == "again":
        queue.load(is_held=True)
        queue.forget()
        queue.load(is_held=True)
        queue.open()
    bench.link.select_confirms(1)
    bench.send(publish(b"q", b"m"))
    bench.run()
    bench.loop.finish()
    assert (root / "q" / "prio.000").is_dir()
"""


@pytest.mark.parametrize("how", ["once", "again"])
def test_the_name_of_a_new_level_is_synced(tmp_path: Path, how: str) -> None:
    """A directory prio.000 that is new is on disk when its first message is: whoever loses power
    would lose what was confirmed. `queue_forget` has the store forget that it is nested."""
    import subprocess
    import sys

    log = tmp_path / "calls"
    root = tmp_path / "data"
    subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", "trace=fsync,fdatasync,syncfs,sync_file_range",
         sys.executable, "-c", SCRIPT, root, how],
        check=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    synced = log.read_text()
    assert f"{root}/q>" in synced, synced


def test_a_moment_without_threads_does_not_end_the_standby_for_good(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RuntimeError: can't start new thread. A follower tries again (following.py)."""
    import asyncio

    copy = node.copy
    following: Any = SimpleNamespace(follower=copy.follower, is_joined=True)
    monkeypatch.setattr(standby, "TURN_S", 0.01)

    async def live() -> int:
        events = asyncio.get_running_loop()
        real = events.run_in_executor
        n = 0

        def fails(*args: Any) -> Any:
            nonlocal n
            n += 1
            if n == 1:
                raise RuntimeError("can't start new thread")
            return real(*args)

        monkeypatch.setattr(events, "run_in_executor", fails)
        stands = Standby(node.config, events, Service({}), copy.follower.ring, lambda: following)
        task = events.create_task(stands.run())
        await asyncio.sleep(1)
        found = int(stands.status()["vhosts"])
        await stands.stop()
        await task
        stands.close()
        return found

    assert leader.mark() >= 0
    assert asyncio.run(live()) == 1


def test_what_is_read_again_takes_no_more_memory(leader: Leader, node: Node) -> None:
    """Also below Python, and with a garbage collector: `is_paused = False` puts each queue on the
    tick's list, which holds it, and nobody has a tick."""
    n = 400

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with channel(leader.broker.port) as ch:
        for number in range(n):
            ch.queue_declare(f"q{number}", durable=True)
        have_all(leader, node)
        before, rounds = 0, 30
        for number in range(10 + rounds):
            if number == 10:
                before = node.call(resident)
            ch.queue_declare("more", durable=True)
            ch.queue_delete("more")
            have_all(leader, node)
        grown = node.call(resident) - before
    assert len(ready(node)) == n
    print(f"{grown / rounds / n:.0f} bytes for each queue that is read again")
    assert grown / rounds / n < 100


def test_what_a_load_would_put_right_is_not_read_again_while_nothing_changes(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with counts of messages that have gone since: a load would write these anew, so it is
    never ready, and read at each look."""
    from lavinmq.vhost.queue_files import QueueFiles

    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True, arguments={"x-delivery-limit": 5})
        for _ in range(3):
            ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        for _ in range(2):
            method, _, _ = ch.basic_get("a")
            ch.basic_nack(method.delivery_tag, requeue=True)
        method, _, _ = ch.basic_get("a")
        ch.basic_ack(method.delivery_tag)
    have_all(leader, node)
    n = 0
    real = QueueFiles.load_ahead

    def counted(*args: Any) -> None:
        nonlocal n
        n += 1
        real(*args)

    monkeypatch.setattr(QueueFiles, "load_ahead", counted)
    for _ in range(5):
        node.look()
    print(ready(node), n)
    assert n <= 1
