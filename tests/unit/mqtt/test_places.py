"""What a start believes of ids of received messages of QoS 2: those whose messages are there."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support import mqtt_log
from tests.support.little_disk import broken
from tests.support.mqtt_bench import PUBCOMP, PUBREC, PUBREL, Client, MqttBench, ack, publish

LOG, RETAINED = "mqtt_sessions.0000000001", "mqtt_retained.0000000001"


class Life:
    """A broker on a directory, and what its start has found there."""

    def __init__(
        self, directory: Path, queues: tuple[str, ...] = (), *, sync: bool = False
    ) -> None:
        self.directory = directory
        self.next: list[Life] = []
        directory.mkdir(exist_ok=True)
        self.bench = MqttBench(directory, sync=sync)
        self.retained = _core.RetainedStore(self.bench.loop, str(directory))
        self.retained.load()
        self.log = _core.SessionLog(self.bench.loop, str(directory))
        self.notes = self.log.load()
        self.was_in_doubt = self.log.is_in_doubt
        loaded = [self.bench.queue(f"mqtt.{name}") for name in queues]
        self.forgotten = self.log.settle(loaded, self.retained)
        self.log.secure()

    def client(self, name: str, version: int = 5) -> Client:
        """A client with a session that is kept."""
        if name.encode() not in self.log:
            self.log.make(name.encode())
        return self.bench.client(
            name, version, retained=self.retained, log=self.log, is_persistent=True
        )

    def readers(self, *names: str) -> None:
        """Sessions whose clients are away: each hears `all`, and its name."""
        for name in names:
            reader = self.client(name).subscribe(name.encode()).subscribe(b"all")
            reader.close()

    @property
    def received(self) -> list[int]:
        """Ids of the client `p`."""
        return self.log.packets(b"p")[0]

    def killed(self, harm: Callable[[Path], object] = lambda _directory: None) -> Life:
        """What comes after a kill, and some harm to the files of those that are away."""
        directory = self.directory.with_name(f"{self.directory.name}-{len(self.next)}")
        shutil.copytree(self.directory, directory)
        harm(directory)
        names = (path.name[5:] for path in sorted(directory.glob("mqtt.*")))
        self.next.append(Life(directory, tuple(names)))
        return self.next[-1]

    def close(self) -> None:
        """End it, and those that came after it."""
        for life in self.next:
            life.close()
        self.log.close()
        self.retained.close()
        self.bench.close()


def cut(name: str, n: int = 1) -> Callable[[Path], object]:
    """The last bytes of a queue's messages, or of a file, are not on the disk."""

    def harm(directory: Path) -> None:
        path = directory / name
        if path.is_dir():
            path = max(path.glob("msgs.*"))
        path.write_bytes(path.read_bytes()[:-n])

    return harm


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "first")
    made.readers("a", "b")
    yield made
    made.close()


def say(client: Client, topic: bytes, id: int, body: bytes = b"body", **options: bool) -> None:
    client.publish(topic, body, qos=2, id=id, **options)
    assert [(each.kind, each.body[:2]) for each in client.heard()] == [
        (PUBREC, id.to_bytes(2, "big"))
    ]


def say_together(*said: tuple[Client, bytes, int]) -> None:
    """The same of several, in one turn."""
    for client, topic, id in said:
        client.socket.send(publish(topic, b"body", qos=2, id=id, properties=b""))
        client.link.on_readable()
        client.link.drain()
    said[0][0].bench.events.run()


def said_without_waiting(life: Life) -> Client:
    """Have a client send a message that a reader gets, whose sync is not waited for in the loop."""
    life.readers("a")
    client, other = life.client("p"), life.client("q")
    other.socket.send(b"\xc0\0")
    other.link.on_readable()
    say_together((client, b"a", 1))
    return client


def test_an_id_is_believed_whose_message_is_there(life: Life) -> None:
    say(life.client("p"), b"a", 7)

    after = life.killed()

    assert (after.was_in_doubt, after.forgotten, after.received) == (True, [], [7])
    assert after.bench.queue("mqtt.a").ready == 1
    say(after.client("p"), b"a", 8)


@pytest.mark.parametrize("n", [1, 15, 30])
def test_an_id_is_forgotten_whose_message_is_cut(life: Life, n: int) -> None:
    client = life.client("p")
    say(client, b"a", 7)
    say(client, b"a", 8)

    after = life.killed(cut("mqtt.a", n))

    assert (after.forgotten, after.received) == ([(b"p", 8)], [7])
    _core.mqtt_restore(after.bench.queue("mqtt.p"), *after.log.packets(b"p"))
    after.readers("a")
    again = after.client("p")
    say(again, b"a", 7, dup=True)
    say(again, b"a", 8, dup=True)
    assert after.bench.queue("mqtt.a").ready == 2


def test_what_was_forgotten_is_not_believed_when_others_come_to_its_place(life: Life) -> None:
    say(life.client("p"), b"a", 7)
    after = life.killed(cut("mqtt.a"))
    _core.mqtt_enqueue(after.bench.queue("mqtt.a"), b"a", bytes(100), 1, False)
    after.bench.events.run()

    again = after.killed()

    assert (again.was_in_doubt, again.received) == (False, [])


def test_each_id_goes_by_the_queues_of_its_own_message(life: Life) -> None:
    first, second = life.client("p"), life.client("q")
    say_together((first, b"a", 1), (second, b"b", 2), (first, b"all", 3), (first, b"nowhere", 4))

    after = life.killed(cut("mqtt.b"))

    assert sorted(after.forgotten) == [(b"p", 3), (b"q", 2)]
    assert after.received == [1, 4]


def test_of_very_many_queues_each_counts(tmp_path: Path) -> None:
    life = Life(tmp_path / "first")
    names = [f"r{number:03}" for number in range(100)]
    life.readers(*names)
    life.bench.loop.portion_units = 1  # it takes many turns
    client = life.client("p")
    say_together((client, b"all", 1))
    while not client.heard():
        life.bench.events.run()

    assert life.killed().forgotten == []
    after = life.killed(cut("mqtt.r000"))

    assert after.forgotten == [(b"p", 1)]
    life.close()


def test_others_that_publish_between_the_turns_of_a_long_one_change_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "first")
    life.readers(*(f"r{number:03}" for number in range(100)))
    long, short = life.client("p"), life.client("q")
    life.bench.loop.portion_units = 1
    step = life.bench.events.ready

    def ready() -> list[int]:
        return [life.bench.queue(f"mqtt.r{number:03}").ready for number in range(100)]

    long.socket.send(publish(b"all", b"x", qos=2, id=1, properties=b""))
    long.link.on_readable()
    while not any(ready()):
        step.pop(0)()
    first = ready().index(1)
    short.socket.send(publish(b"r050", b"x", qos=2, id=1, properties=b""))
    short.link.on_readable()
    while life.log.packets(b"q")[0] != [1]:
        step.pop(0)()
    assert life.received == []
    life.bench.events.run()
    assert life.received == [1]

    after = life.killed(cut(f"mqtt.r{first:03}"))

    assert after.forgotten == [(b"p", 1)]
    life.close()


def test_what_was_consumed_or_deleted_needs_no_file(life: Life) -> None:
    client = life.client("p")
    say(client, b"a", 1)
    life.bench.queue("mqtt.a").delete()

    after = life.killed(lambda directory: shutil.rmtree(directory / "mqtt.a"))

    assert (after.forgotten, after.received) == ([], [1])


def test_a_message_that_is_consumed_at_once_is_believed(life: Life) -> None:
    """It was never in a file, or its place is there and deleted."""
    reader = life.bench.client("a", 5, log=life.log, retained=life.retained, is_persistent=True)
    client = life.client("p")
    say(client, b"a", 1)
    (got,) = reader.got()
    reader.send(ack(PUBREC, got.id))
    reader.send(ack(PUBCOMP, got.id))

    after = life.killed()

    assert (after.forgotten, after.received) == ([], [1])


def test_a_damaged_segment_is_no_proof(life: Life) -> None:
    client = life.client("p")
    say_together(*((client, b"a", id) for id in range(1, 20)))

    def zeros(directory: Path) -> None:
        path = directory / "mqtt.a" / "msgs.0000000001"
        content = bytearray(path.read_bytes())
        content[70:140] = bytes(70)
        path.write_bytes(content)

    after = life.killed(zeros)

    assert after.received == []
    assert 10 < after.bench.queue("mqtt.a").ready < 19


def test_a_retained_message_counts(life: Life) -> None:
    client = life.client("p")
    say(client, b"nowhere", 1, retain=True)
    say(client, b"nowhere/2", 2, retain=True)
    say(client, b"a", 3, retain=True)

    assert life.killed().received == [1, 2, 3]

    after = life.killed(cut(RETAINED, 9))

    assert (after.forgotten, after.received) == ([(b"p", 3)], [1, 2])


def test_what_is_safe_is_believed_whatever_becomes_of_its_queue(life: Life) -> None:
    client = life.client("p")
    say(client, b"a", 1)
    for _ in range(3):
        life.log.retry()
        life.bench.events.run()

    after = life.killed(cut("mqtt.a", 30))

    assert (after.was_in_doubt, after.received) == (False, [1])


def test_a_compaction_leaves_the_doubt_until_the_messages_are_on_disk(tmp_path: Path) -> None:
    life = Life(tmp_path / "first", sync=True)
    client = said_without_waiting(life)
    assert client.heard() == []
    while life.log.compact_some():
        pass

    after = life.killed(cut("mqtt.a"))

    assert (after.was_in_doubt, after.forgotten) == (True, [(b"p", 1)])
    deadline = time.monotonic() + 10
    while (life.directory / LOG).exists():
        assert time.monotonic() < deadline
        life.bench.loop.on_synced()
        life.bench.events.run()
    again = life.killed(cut("mqtt.a"))
    assert (again.was_in_doubt, again.received) == (False, [1])
    life.close()


def test_a_start_that_is_killed_leaves_what_says_where_messages_are(tmp_path: Path) -> None:
    """A compaction had written all anew, and was killed before it removed what that had replaced:
    only there does the log say what the turn of an id is, until a start has settled it."""
    number = struct.pack("<Q", 5)
    made = b"\1" + number + b"\1\0p"
    turn = b"\x0c" + struct.pack("<Q", 3) + b"\x0b" + struct.pack("<QII", 9, 1, 100)
    came = b"\x0a" + number + struct.pack("<HHII", 7, 1, 3, 1)
    floor = b"\xff\0\0\0" + struct.pack("<I", 2)
    first, second = tmp_path / LOG, tmp_path / "mqtt_sessions.0000000002"
    first.write_bytes(mqtt_log.file_of(mqtt_log.SESSIONS, [made, turn + came]))
    second.write_bytes(mqtt_log.file_of(mqtt_log.SESSIONS, [made + came, floor], 2))
    killed = MqttBench(tmp_path)
    log = _core.SessionLog(killed.loop, str(tmp_path))
    assert log.load() == []
    assert log.is_in_doubt
    log.release()
    killed.close()

    life = Life(tmp_path)

    assert (life.was_in_doubt, life.forgotten, life.received) == (True, [], [7])
    assert not first.exists()
    life.close()
    again = Life(tmp_path)
    assert (again.was_in_doubt, again.received) == (False, [7])
    again.close()


def test_a_log_of_an_older_release_is_believed(tmp_path: Path) -> None:
    number = struct.pack("<Q", 5)
    made = b"\1" + number + b"\1\0p"
    packet = b"\6" + number + b"\1" + b"\3\0"
    packets = b"\x09" + number + b"\1" + b"\7\0" + b"\2\0"
    (tmp_path / LOG).write_bytes(mqtt_log.file_of(mqtt_log.SESSIONS, [made + packet + packets]))

    life = Life(tmp_path)

    assert (life.notes, life.was_in_doubt, life.received) == ([], False, [3, 7, 8])
    life.close()


def test_the_form_of_a_turn(life: Life) -> None:
    """docs/formats.md: the places of a turn stand in front of the ids that speak of them."""
    client = life.client("p")
    say(client, b"all", 9)
    data = (life.directory / LOG).read_bytes()

    body = list(mqtt_log.bodies_in(data, 1))[-1]

    assert body[0] == 12
    turn = int.from_bytes(body[1:9], "little")
    places = [struct.unpack_from("<BQII", body, 9 + 17 * i) for i in range(2)]
    salt = int.from_bytes(data[8:16], "little")
    keys = {mqtt_log.hash_bytes(name, salt) | 1 for name in (b"mqtt.a", b"mqtt.b")}
    assert {place[1] for place in places} == keys
    size = (life.directory / "mqtt.a" / "msgs.0000000001").stat().st_size
    assert {(place[0], *place[2:]) for place in places} == {(11, 1, size)}
    assert struct.unpack_from("<BQHHII", body, 43)[:1] == (10,)
    assert struct.unpack_from("<BQHHII", body, 43)[2:] == (9, 1, turn, 3)


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_refused_is_new_when_it_comes_again(life: Life, version: int) -> None:
    """Before version 5 the connection ends, and the client sends it again."""
    client = life.client("p", version)
    life.bench.events.run()
    with broken(life.directory / LOG):
        client.publish(b"a", b"x", qos=2, id=9)
    client.raw()
    client.close()
    before = life.bench.queue("mqtt.a").ready

    again = life.client("p", version)
    say(again, b"a", 9, dup=True)

    assert life.bench.queue("mqtt.a").ready == before + 1
    again.send(ack(PUBREL, 9))
    assert life.received == []


def leave_behind(life: Life, topic: bytes, id: int, *, retain: bool = False) -> None:
    """Have a client send a message, and go before anything of it is written."""
    client = life.client("p")
    client.socket.send(publish(topic, b"body", qos=2, id=id, retain=retain, properties=b""))
    client.link.on_readable()
    client.close()


def test_what_is_lost_behind_its_client_is_new_when_it_comes_again(life: Life) -> None:
    """Nobody could be told that it was refused."""
    queue, directory = life.bench.queue("mqtt.a"), life.directory / "mqtt.a"
    say(life.client("p"), b"b", 1)
    directory.write_bytes(b"where a directory should be")

    leave_behind(life, b"a", 2)

    assert queue.is_closed
    assert life.received == [1]
    directory.unlink()
    assert life.killed().received == [1]
    queue.restart()
    again = life.client("p")
    say(again, b"b", 1, dup=True)
    say(again, b"a", 2, dup=True)
    assert (queue.ready, life.bench.queue("mqtt.b").ready) == (1, 1)


def test_a_retained_message_that_is_lost_behind_its_client_is_new(life: Life) -> None:
    say(life.client("p"), b"before", 1, retain=True)
    for id in range(2, 9):
        say(life.client("q"), b"before", id, retain=True)
    with broken(life.directory / RETAINED):
        leave_behind(life, b"nowhere", 2, retain=True)

    assert life.received == [1]
    say(life.client("p"), b"nowhere", 2, dup=True, retain=True)
    assert len(life.retained) == 2


def test_what_a_client_leaves_behind_is_kept_when_it_gets_to_the_disk(life: Life) -> None:
    queue, directory = life.bench.queue("mqtt.a"), life.directory / "mqtt.a"
    leave_behind(life, b"b", 1)
    life.bench.loop.after_sync(lambda: None)
    life.bench.events.run()
    directory.write_bytes(b"where a directory should be")

    leave_behind(life, b"a", 2)

    assert queue.is_closed
    assert life.received == [1]


def test_what_is_sent_again_waits_for_the_sync_of_the_first(tmp_path: Path) -> None:
    """Its connection has ended meanwhile: nobody else waits."""
    life = Life(tmp_path / "first", sync=True)
    client = said_without_waiting(life)
    client.close()

    again = life.client("p")
    again.publish(b"a", b"body", qos=2, id=1, dup=True)

    assert again.heard() == []
    deadline = time.monotonic() + 10
    while not (heard := again.heard()):
        assert time.monotonic() < deadline
        life.bench.loop.on_synced()
    assert [each.kind for each in heard] == [PUBREC]
    assert life.bench.queue("mqtt.a").ready == 1
    life.close()
