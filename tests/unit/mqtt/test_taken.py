"""Messages of QoS 2 that a member of a shared subscription was being sent when the broker ended.

Each is in one of two queues, and the log of sessions in one of several states: a start makes one
message of it, which is the member's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support import mqtt_log
from tests.support.mqtt_bench import PUBCOMP, PUBREC, PUBREL, Client, MqttBench, ack

LOG = "mqtt_sessions.0000000001"
GROUP, MEMBER, NEW = "mqtt.group", "m", "new"
Harm = Callable[[Path], object]


class Life:
    """A broker on a directory: a session, and the queue of a shared subscription."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.next: list[Life] = []
        directory.mkdir(exist_ok=True)
        self.bench = MqttBench(directory)
        self.log = _core.SessionLog(self.bench.loop, str(directory))
        self.log.load()
        self.group = self.bench.queue(GROUP)
        self.session = self.bench.queue(f"mqtt.{MEMBER}")
        self.released: list[int] = []

    def restore(self) -> Life:
        """As a start does."""
        name = MEMBER.encode()
        self.released = _core.mqtt_restore(self.session, *self.log.packets(name))
        self.released += _core.mqtt_restore_taken(
            self.session, self.bench.exchange, self.log, self.log.taken(name),
            {self.log.key(self.group): self.group},
        )  # fmt: skip
        for each in self.released:
            self.log.note(name, _core.SESSION_CHANGES["REC"], each)
        self.bench.events.run()
        return self

    def member(self, name: str = MEMBER, subscription: int = 7) -> Client:
        """A client whose session is kept, and which is a member."""
        if name.encode() not in self.log:
            self.log.make(name.encode())
        client = self.bench.client(name, 5, log=self.log, is_persistent=True)
        client.link.mqtt_share(self.group, 2, subscription)
        self.bench.events.run()
        return client

    def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            _core.mqtt_enqueue(self.group, b"t", body, 2, False)
        self.bench.events.run()

    def compact(self) -> None:
        """Write all sessions anew."""
        while self.log.compact_some():
            pass
        self.bench.events.run()

    def killed(self, harm: Harm = lambda _directory: None) -> Life:
        """What comes after a kill, and some harm to the files."""
        self.log.flush()
        directory = self.directory.with_name(f"{self.directory.name}-{len(self.next)}")
        shutil.copytree(self.directory, directory)
        harm(directory)
        self.next.append(Life(directory))
        return self.next[-1].restore()

    def close(self) -> None:
        """End it, and those that came after it."""
        for life in self.next:
            life.close()
        self.log.close()
        self.bench.close()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "first")
    yield made
    made.close()


def size(directory: Path, name: str) -> int:
    """Bytes of a file, or of the messages of a queue."""
    path = directory / name
    return (max(path.glob("msgs.*")) if path.is_dir() else path).stat().st_size


def cut(name: str, to: int) -> Harm:
    """The disk has a file, or messages of a queue, as they were before."""

    def harm(directory: Path) -> None:
        path = directory / name
        path = max(path.glob("msgs.*")) if path.is_dir() else path
        with path.open("r+b") as file:
            file.truncate(to)

    return harm


def check(life: Life, *bodies: bytes, first_id: int = 1) -> None:
    """The member gets them as it did before, once; another one gets nothing."""
    assert life.released == []
    assert (life.group.ready, life.session.ready) == (0, len(bodies))
    assert life.member(NEW).got() == []
    ids = range(first_id, first_id + len(bodies))
    member = life.member()
    assert [(each.id, each.body, each.dup, each.properties) for each in member.got()] == [
        (id, body, True, b"\x0b\x07") for id, body in zip(ids, bodies, strict=True)
    ]
    for id in ids:
        member.send(ack(PUBREC, id))
        assert member.raw() == ack(PUBREL, id)
        member.send(ack(PUBCOMP, id))
    assert (life.group.ready, life.session.ready) == (0, 0)
    assert life.log.packets(MEMBER.encode()) == ([], [], [])
    assert life.log.taken(MEMBER.encode()) == []


def test_what_a_member_was_sent_is_its_own_after_a_kill(life: Life) -> None:
    member = life.member()
    life.publish(b"1", b"2")
    assert [each.id for each in member.got()] == [1, 2]

    check(life.killed(), b"1", b"2")
    check(life.killed().killed().killed(), b"1", b"2")


def records_of_earlier_releases(block: bytes) -> Iterator[bytes]:
    """What 0.2.1 finds in a block: it does not read on behind a record that it does not know."""
    sizes = {2: 9, 3: 21, 6: 12, 7: 19, 9: 14, 10: 21, 11: 17, 12: 9, 13: 9}
    while block:
        kind, two_at, four_at = block[0], int.from_bytes(block[9:11], "little"), block[11:15]
        if kind == 1:
            size = 11 + two_at
        elif kind == 4:
            size = 15 + two_at + int.from_bytes(four_at, "little")
        elif kind == 5:
            size = 11 + two_at
        elif kind == 8:
            size = 17 + 4 * int.from_bytes(block[11:13], "little")
        else:
            size = sizes[kind]
        assert size <= len(block)
        yield block[:size]
        block = block[size:]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_an_earlier_release_reads_the_log_and_knows_that_the_id_is_taken(
    life: Life, is_compacted: bool
) -> None:
    """It releases the id of a message whose place it does not know, so the next one with it is not
    taken for the same. What else there is of the turn it reads, too."""
    member = life.member()
    life.log.make(b"before")
    life.publish(b"1")
    life.log.make(b"behind")
    assert len(member.got()) == 1
    if is_compacted:
        life.compact()
    life.log.flush()

    path = max(life.directory.glob("mqtt_sessions.*"))
    bodies = mqtt_log.bodies_in(path.read_bytes(), int(path.suffix[1:]))
    records = [each for body in bodies if body[0] != 255
               for each in records_of_earlier_releases(body)]  # fmt: skip

    assert {each[11:] for each in records if each[0] == 1} == {b"m", b"before", b"behind"}
    sent = [each[9:] for each in records if each[0] == 7]
    id, segment, position = b"\1\0", b"\0\0\0\x80", bytes(4)
    assert sent == [id + segment + position]
    # Others of `sent` say it of no id.
    assert {each[9:11] for each in records if each[0] == 8} == {b"\0\0"}


def test_a_log_that_is_written_anew_says_the_same(life: Life) -> None:
    member = life.member()
    life.publish(b"1", b"2", b"3")
    member.send(ack(PUBREC, 1) + ack(PUBCOMP, 1))
    before = life.log.taken(MEMBER.encode())
    assert len(before) == 2

    life.compact()

    after = life.killed()
    again = after.killed()
    after.compact()
    for each in (after, again, after.killed()):
        check(each, b"2", b"3", first_id=2)


def test_what_a_member_has_received_is_released(life: Life) -> None:
    """PUBREC has come, and the broker ends before it has said PUBREL of it."""
    member = life.member()
    life.publish(b"1")
    at = size(life.directory, LOG)
    member.send(ack(PUBREC, 1))

    after = life.killed(cut(LOG, at))

    assert after.released == [1]
    assert (after.group.ready, after.session.ready) == (0, 0)
    assert after.member().raw() == ack(PUBREL, 1)


@pytest.mark.parametrize("lost", ["nothing", "message", "note", "both"])
def test_a_move_of_which_the_disk_has_any_part_is_finished(life: Life, lost: str) -> None:
    """The connection has ended. The message is in the group's queue as well: that it left comes
    later to the disk."""
    member = life.member()
    life.publish(b"1")
    at, end = size(life.directory, LOG), 4
    before = life.directory.with_name("before")
    shutil.copytree(life.directory / GROUP, before)
    member.close()
    assert (life.group.ready, life.session.ready) == (0, 1)

    def harm(directory: Path) -> None:
        shutil.rmtree(directory / GROUP)
        shutil.copytree(before, directory / GROUP)
        if lost in ("message", "both"):
            cut(f"mqtt.{MEMBER}", end)(directory)
        if lost in ("note", "both"):
            cut(LOG, at)(directory)

    check(life.killed(harm), b"1")
    check(life.killed(harm).killed(), b"1")


def test_another_message_that_stands_there_is_not_taken_for_it(life: Life) -> None:
    """The queue of the group was deleted, and made anew."""
    member = life.member()
    life.publish(b"1")
    assert len(member.got()) == 1

    def harm(directory: Path) -> None:
        shutil.rmtree(directory / GROUP)
        other = Life(directory.with_name("other"))
        other.publish(b"22")  # in the same millisecond its size tells them apart
        other.close()
        shutil.copytree(other.directory / GROUP, directory / GROUP)

    after = life.killed(harm)

    assert after.released == [1]
    assert (after.group.ready, after.session.ready) == (1, 0)
    assert [each.body for each in after.member(NEW).got()] == [b"22"]


def test_a_session_that_is_full_and_refuses_leaves_it_to_the_group(life: Life) -> None:
    """Its client is asked to let go of what it has of it."""
    member = life.member()
    life.publish(b"1")
    assert len(member.got()) == 1
    life.session.set_features(max_length=0, overflow=_core.OVERFLOW["reject-publish"])

    member.close()

    assert (life.group.ready, life.session.ready) == (1, 0)
    assert life.log.packets(MEMBER.encode()) == ([], [], [1])
    assert life.log.taken(MEMBER.encode()) == []


def test_a_message_whose_session_is_deleted_ends_with_it(life: Life) -> None:
    """An operator has deleted it while its client was being sent the message: the broker crashed.
    5.0 [MQTT-4.8.2-5]."""
    member = life.member()
    life.publish(b"1")
    assert len(member.got()) == 1
    life.session.delete()

    member.close()

    assert (life.group.ready, life.group.unacked) == (0, 0)
    assert life.member(NEW).got() == []


def test_a_session_that_cannot_be_written_leaves_it_to_the_group(life: Life) -> None:
    """The disk has closed the queue of the session: then it has no segment."""
    member = life.member()
    life.publish(b"1")
    assert len(member.got()) == 1
    shutil.rmtree(life.directory / f"mqtt.{MEMBER}", ignore_errors=True)
    (life.directory / f"mqtt.{MEMBER}").touch()
    _core.mqtt_enqueue(life.session, b"t", b"lost", 1, False)
    life.bench.events.run()
    assert life.session.is_closed

    member.close()

    assert (life.group.ready, life.group.unacked) == (1, 0)
    assert [each.body for each in life.member(NEW).got()] == [b"1"]
