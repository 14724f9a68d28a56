"""Backups of a running broker by lavinmqctl, and what a broker finds that starts on one."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp import commands

from lavinmq.client import Client, Consumer, Message
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.patience import PATIENCE
from tests.support.wire import Wire, encode_publish
from tests.support.wire_actions import declare

DEADLINE_S = 120.0
WAIT_S = 30.0 * PATIENCE


def ctl(broker: Broker | None, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run lavinmqctl."""
    where = [] if broker is None else ["--control-unix-path", broker.control_path]
    return subprocess.run(
        [sys.executable, "-m", "lavinmq.cli.ctl", *where, *words],
        capture_output=True, timeout=60 * PATIENCE, check=False,
    )  # fmt: skip


def did(broker: Broker | None, *words: str) -> str:
    """Run a command that must succeed, and give what it prints."""
    done = ctl(broker, *words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def failed(broker: Broker | None, *words: str) -> str:
    """Run a command that must fail in order, and give what it says."""
    done = ctl(broker, *words)
    assert done.returncode == 1 and not done.stdout, (done.returncode, done.stdout)
    return done.stderr.decode()


@pytest.fixture
def broker(broker_factory: BrokerFactory, tmp_path: Path) -> Broker:
    """One with management, whose segments are short."""
    (tmp_path / "short.ini").write_text("[main]\nsegment_size = 20000\n")
    return broker_factory(["--config", str(tmp_path / "short.ini")], http=True)


def publish(broker: Broker, queue: str, numbers: range) -> None:
    """Messages with these numbers, confirmed."""
    with Client(broker.uri) as client:
        client.producer(queue).publish_batch([b"%d" % n for n in numbers]).result(WAIT_S)


def numbers_in(broker: Broker, queue: str) -> list[int]:
    """All messages of a queue, in order."""
    with Client(broker.uri) as client:
        count = client.queue(queue, passive=True).message_count
        found: list[int] = []
        with client.consumer(queue) as consumer:
            while len(found) < count:
                message = consumer.get(WAIT_S)
                assert message is not None, f"{len(found)} of {count}"
                found.append(int(message.body))
                message.ack()
        return found


def test_a_broker_starts_on_a_backup_with_all_that_was_there(
    broker: Broker, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    publish(broker, "q", range(3000))
    did(broker, "add_user", "somebody", "secret")
    did(broker, "set_policy", "p", "^q", '{"max-length": 5000}')
    did(broker, "backup", str(tmp_path / "backups"))
    publish(broker, "q", range(3000, 3010))

    [made] = (tmp_path / "backups").iterdir()
    assert did(None, "verify_backup", str(made)).endswith("is_whole: true\n")
    said = did(None, "restore", str(made), str(tmp_path / "restored"))
    assert f"data_dir: {tmp_path / 'restored'}" in said
    restored = broker_factory(data_dir=tmp_path / "restored", http=True)
    assert numbers_in(restored, "q") == list(range(3000))
    assert "somebody" in did(restored, "list_users")
    assert '"max-length":5000' in did(restored, "list_policies").replace(" ", "")
    assert "WARN" not in restored.log_text() and "ERROR" not in restored.log_text()


def test_what_has_not_changed_is_there_once(broker: Broker, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    publish(broker, "q", range(3000))
    time.sleep(4)  # files that were just changed have no identity
    for more in range(3):
        did(broker, "backup", "--keep", "2", str(place))
        publish(broker, "q", range(3000 + more, 3001 + more))
        time.sleep(1.1)  # folders are named by the second

    first, second = sorted(place.iterdir())
    ours = {str(path.relative_to(second)): path.stat().st_ino for path in second.rglob("msgs.*")}
    theirs = {str(path.relative_to(first)): path.stat().st_ino for path in first.rglob("msgs.*")}
    shared = {path for path, ino in ours.items() if theirs.get(path) == ino}
    assert len(ours) >= 4 and len(ours) - len(shared) == 1, "only the newest segment was sent"
    for each in (first, second):
        did(None, "verify_backup", str(each))


def test_an_archive_goes_to_a_file_or_to_another_program(
    broker: Broker, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    publish(broker, "q", range(100))
    archive = tmp_path / "backup.tar"
    assert str(archive) in did(broker, "backup", "--archive", str(archive))
    piped = ctl(broker, "backup", "--archive", "-")
    assert piped.returncode == 0
    again = tmp_path / "piped.tar"
    again.write_bytes(piped.stdout)
    for number, each in enumerate((archive, again)):
        did(None, "restore", str(each), str(tmp_path / f"restored-{number}"))
        restored = broker_factory(data_dir=tmp_path / f"restored-{number}")
        assert numbers_in(restored, "q") == list(range(100))


def test_an_archive_that_was_cut_is_refused(broker: Broker, tmp_path: Path) -> None:
    publish(broker, "q", range(3000))
    whole = ctl(broker, "backup", "--archive", "-").stdout
    cut, target = tmp_path / "cut.tar", tmp_path / "restored"
    for size in (0, 100, 512, len(whole) // 2, len(whole) - 3000):
        cut.write_bytes(whole[:size])
        assert "not whole" in failed(None, "restore", str(cut), str(target)), size
        assert not target.exists()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*") if each.is_file()
    }  # fmt: skip


def test_increments_make_what_a_whole_backup_is(
    broker: Broker, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    publish(broker, "q", range(3000))
    base, chain = tmp_path / "0.tar", []
    did(broker, "backup", "--archive", str(base))
    for number in (1, 2):
        publish(broker, "q", range(3000 * number, 3000 * (number + 1)))
        publish(broker, f"only-{number}", range(10))
        made = tmp_path / f"{number}.tar"
        did(broker, "backup", "--archive", "--since", str([base, *chain][-1]), str(made))
        chain.append(made)
    whole = tmp_path / "whole.tar"
    did(broker, "backup", "--archive", str(whole))

    assert "missing" in failed(None, "restore", str(base), str(chain[1]), str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()
    did(None, "restore", str(whole), str(tmp_path / "whole"))
    did(None, "restore", str(base), *map(str, chain), str(tmp_path / "chain"))
    assert tree(tmp_path / "chain") == tree(tmp_path / "whole")
    assert chain[1].stat().st_size < whole.stat().st_size / 2
    restored = broker_factory(data_dir=tmp_path / "chain")
    assert numbers_in(restored, "q") == list(range(9000))


def test_an_increment_builds_on_a_folder_too_and_a_new_folder_gets_the_rest_of_files(
    broker: Broker, tmp_path: Path
) -> None:
    publish(broker, "q", range(3000))
    did(broker, "backup", str(tmp_path / "folders"))
    [folder] = (tmp_path / "folders").iterdir()
    publish(broker, "q", range(3000, 3010))
    archive = tmp_path / "1.tar"
    did(broker, "backup", "--archive", "--since", str(folder), str(archive))
    assert archive.stat().st_size < 100_000
    did(None, "restore", str(folder), str(archive), str(tmp_path / "restored"))
    time.sleep(max(0.0, 1.1 - time.time() % 1))  # a folder is named by its second
    did(broker, "backup", str(tmp_path / "folders"))
    new = max((tmp_path / "folders").iterdir())
    assert json.loads((new / "backup.json").read_bytes())["new_bytes"] < 100_000
    assert tree(tmp_path / "restored") == tree(new / "data")


def test_damage_is_found_by_its_file_and_not_restored(broker: Broker, tmp_path: Path) -> None:
    publish(broker, "q", range(3000))
    did(broker, "backup", str(tmp_path / "backups"))
    [made] = (tmp_path / "backups").iterdir()
    segment = sorted(made.rglob("msgs.*"))[1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)

    name = str(segment.relative_to(made / "data"))
    assert f"{name}: other bytes" in failed(None, "verify_backup", str(made))
    target = tmp_path / "restored"
    assert "is not as it was made; nothing was restored" in failed(
        None, "restore", str(made), str(target)
    )
    assert not target.exists()


def test_a_folder_that_was_damaged_is_not_built_upon(broker: Broker, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    publish(broker, "q", range(3000))
    time.sleep(4)
    did(broker, "backup", str(place))
    [first] = place.iterdir()
    segments = sorted(first.rglob("msgs.*"))
    segments[0].unlink()
    segments[1].write_bytes(b"short")
    segments[2].unlink()
    segments[2].symlink_to("/etc/passwd")
    time.sleep(1.1)
    did(broker, "backup", str(place))
    second = max(place.iterdir())
    assert did(None, "verify_backup", str(second)).endswith("is_whole: true\n")

    (second / "files.txt").write_text("")
    target = tmp_path / "restored"
    for words in (("verify_backup", str(second)), ("restore", str(second), str(target))):
        assert "files.txt is damaged" in failed(None, *words)
    assert not target.exists()
    time.sleep(1.1)
    done = ctl(broker, "backup", "--keep", "1", str(place))
    assert done.returncode == 0 and b"is not built upon" in done.stderr
    [third] = place.iterdir()
    did(None, "verify_backup", str(third))


def test_only_folders_of_ours_count_and_the_new_one_stays(broker: Broker, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    did(broker, "backup", str(place))
    [first] = place.iterdir()
    first.rename(place / "before-upgrade")
    (place / "20200101T000000Z.partial").mkdir()
    time.sleep(1.1)
    made = Path(did(broker, "backup", "--keep", "1", str(place)).split()[1])
    assert sorted(place.iterdir()) == [made, place / "before-upgrade"]
    made.rename(place / "29990101T000000Z")
    assert "by the clock" in failed(broker, "backup", "--keep", "1", str(place))
    assert len(list(place.iterdir())) == 2


def test_a_book_that_leads_elsewhere_is_refused(broker: Broker, tmp_path: Path) -> None:
    did(broker, "backup", str(tmp_path / "backups"))
    [made] = (tmp_path / "backups").iterdir()
    facts = json.loads((made / "backup.json").read_bytes())
    line = b"0" * 64 + b" 4 - ../../../evil\n"
    (made / "files.txt").write_bytes(line)
    facts |= {"files": 1, "book": hashlib.sha256(line).hexdigest()}
    (made / "backup.json").write_text(json.dumps(facts))
    (tmp_path / "evil").write_text("evil")
    assert "outside of it" in failed(None, "restore", str(made), str(tmp_path / "a/b/c"))
    assert [each.name for each in tmp_path.rglob("evil")] == ["evil"]


def test_a_link_in_the_data_directory_is_told(broker: Broker, tmp_path: Path) -> None:
    (broker.data_dir / "extra.json").symlink_to(tmp_path / "elsewhere.json")
    assert "extra.json is a link to another place" in failed(broker, "backup", "--archive", "-")


def test_what_is_there_is_not_replaced_by_an_archive(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("file", "pipe", "directory"):
        place = tmp_path / name
        assert "is there already" in failed(broker, "backup", "--archive", str(place))
    (tmp_path / "today.tar.partial").write_bytes(b"of one that was killed")
    did(broker, "backup", "--archive", str(tmp_path / "today.tar"))
    assert not (tmp_path / "today.tar.partial").exists()


def test_an_orderly_stop_ends_a_backup_and_leaves_nothing(broker: Broker) -> None:
    publish_large(broker)
    connection, answer = begun(broker)
    assert broker.stop() == 0
    with pytest.raises((http.client.HTTPException, OSError)):
        answer.read()
    connection.close()
    assert links_of(broker) == []


def test_a_transaction_is_whole_however_late_its_files_are_read(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    broker = broker_factory(http=True)
    publish_large(broker)
    is_over = threading.Event()

    def commit() -> None:
        with Wire.open(broker.port) as wire:
            for name in ("small", "wide"):
                declare(wire, name, durable=True, exclusive=False)
            wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
            while not is_over.is_set():
                for name, size in (("small", 20), ("wide", 5000)):
                    wire.send_bytes(encode_publish(1, "", name, bytes(size)))
                wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(0.5)
    connection, answer = begun(broker)
    time.sleep(1.5)
    archive = tmp_path / "backup.tar"
    archive.write_bytes(answer.read())
    connection.close()
    is_over.set()
    thread.join(WAIT_S)
    did(None, "restore", str(archive), str(tmp_path / "restored"))
    with Client(broker_factory(data_dir=tmp_path / "restored").uri) as client:
        small, wide = (client.queue(name, passive=True).message_count for name in ("small", "wide"))
    assert small == wide > 10


def test_a_directory_with_something_in_it_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    did(broker, "backup", "--archive", str(tmp_path / "backup.tar"))
    said = failed(None, "restore", str(tmp_path / "backup.tar"), str(broker.data_dir))
    assert "is not empty" in said
    assert "there is no backup.json" in failed(None, "verify_backup", str(broker.data_dir))


def test_it_is_for_administrators(broker: Broker) -> None:
    api = Api(broker)
    almost = api.as_user("almost", "monitoring,policymaker,management")
    assert almost("POST", "/api/backup").status == 403
    assert api("POST", "/api/backup").status == 200


def links_of(broker: Broker) -> list[Path]:
    """What snapshots hold."""
    return list(broker.data_dir.glob(".backup-*"))


def begun(broker: Broker) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A backup whose client reads nothing but the head of the answer."""
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=WAIT_S)
    connection.request("POST", "/api/backup", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    return connection, connection.getresponse()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


def publish_large(broker: Broker) -> None:
    """Twenty messages, more than sockets hold."""
    with Client(broker.uri) as client:
        producer = client.producer("large")
        for _ in range(20):
            producer.publish(bytes(1_000_000))
        producer.flush(WAIT_S)


def has_large(broker: Broker) -> bool:
    """Whether they are all there."""
    with Client(broker.uri) as client:
        count = client.queue("large", passive=True).message_count
        with client.consumer("large") as consumer:
            found = [consumer.get(WAIT_S) for _ in range(count)]
        return [each and each.body for each in found] == [bytes(1_000_000)] * 20


def test_files_are_held_as_long_as_somebody_copies_them(
    broker: Broker, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    publish_large(broker)
    connection, answer = begun(broker)
    assert len(links_of(broker)) == 1
    assert "another backup" in failed(broker, "backup", "--archive", "-")
    assert Api(broker)("DELETE", "/api/queues/%2F/large").status == 204
    publish(broker, "q", range(10))
    archive = tmp_path / "backup.tar"
    archive.write_bytes(answer.read())
    connection.close()
    until(lambda: not links_of(broker), "the files are let go")

    did(None, "restore", str(archive), str(tmp_path / "restored"))
    assert has_large(broker_factory(data_dir=tmp_path / "restored"))


def test_a_client_that_goes_leaves_nothing_held(broker: Broker) -> None:
    publish_large(broker)
    connection, _ = begun(broker)
    assert len(links_of(broker)) == 1
    connection.close()
    until(lambda: not links_of(broker), "the files are let go")
    assert "backup was broken off" in broker.log_text()


def test_a_start_removes_what_a_kill_has_left(broker: Broker) -> None:
    publish_large(broker)
    connection, _ = begun(broker)
    broker.kill()
    connection.close()
    assert len(links_of(broker)) == 1
    broker.start()
    assert links_of(broker) == []
    assert has_large(broker)


class Traffic:
    """Publishes, takes, lets die and moves numbers, and keeps books."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.confirmed = 0
        """Numbers below were confirmed."""
        self.taken: set[int] = set()
        """Those that may have been acknowledged at the end of their way."""
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._publish, self._refuse, self._take, self._declare)
        ]

    def __enter__(self) -> Traffic:
        with Client(self.broker.uri) as client:
            client.exchange("dead", "fanout")
            client.queue("first", arguments={"x-dead-letter-exchange": "dead"})
            client.queue("second", arguments={"x-dead-letter-exchange": "dead2"})
            client.exchange("dead2", "fanout")
            client.queue("third")
            client.bind("second", "dead", "")
            client.bind("third", "dead2", "")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not self.errors, self.errors

    def _guarded(self, work: Callable[[Client], None]) -> None:
        try:
            with Client(self.broker.uri) as client:
                work(client)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.errors.append(error)

    def _publish(self, client: Client) -> None:
        producer, n = client.producer("first", declare=False), 0
        while not self.is_over.is_set():
            producer.publish_batch([b"%d" % each for each in range(n, n + 50)]).result(WAIT_S)
            self.confirmed = n = n + 50
            time.sleep(0.01)

    def _each(self, consumer: Consumer, end: Callable[[Message], object]) -> None:
        while not self.is_over.is_set():
            message = consumer.get(0.1)
            if message is not None:
                end(message)

    def _refuse(self, client: Client) -> None:
        with client.consumer("first") as first:
            self._each(first, lambda message: message.reject())

    def _take(self, client: Client) -> None:
        def end(message: Message) -> None:
            n = int(message.body)
            if n % 3 == 0:
                self.taken.add(n)
                message.ack()
            else:
                message.reject()

        with client.consumer("second") as second:
            self._each(second, end)

    def _declare(self, client: Client) -> None:
        n = 0
        while not self.is_over.is_set():
            n += 1
            client.queue(f"made-{n}")
            client.producer(f"made-{n}", declare=False).publish(b"1").result(WAIT_S)
            if n % 2:
                client.delete_queue(f"made-{n}")
            time.sleep(0.02)
            Api(self.broker)("PUT", f"/api/parameters/none/%2F/p{n % 3}", {"value": {"n": n}})


def test_nothing_confirmed_is_missing_whenever_it_is_made(
    broker: Broker, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    with Traffic(broker) as traffic:
        for number in range(4):
            time.sleep(0.3)
            confirmed = traffic.confirmed
            archive = tmp_path / f"{number}.tar"
            did(broker, "backup", "--archive", str(archive))
            taken = set(traffic.taken)
            did(None, "restore", str(archive), str(tmp_path / f"restored-{number}"))
            restored = broker_factory(data_dir=tmp_path / f"restored-{number}")
            there: set[int] = set()
            for queue in ("first", "second", "third"):
                there.update(numbers_in(restored, queue))
            missing = set(range(confirmed)) - there - taken
            assert not missing, f"backup {number}: {len(missing)} of {confirmed}"
            assert "WARN" not in restored.log_text(), restored.log_text()
            assert "ERROR" not in restored.log_text(), restored.log_text()
            restored.close()
