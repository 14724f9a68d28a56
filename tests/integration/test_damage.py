"""Damage of stored files at a broker without peers: it is found and told of, the rest is kept, and
`lavinmqctl repair` keeps whole messages only.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path

import pytest
from pamqp import commands

from lavinmq.client import Client, Message
from lavinmq.http.payload import decode
from tests.conftest import BrokerFactory
from tests.integration.test_backup import ctl, did, failed
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.damage import flip, know_all, known, stored, verify
from tests.support.patience import PATIENCE
from tests.support.segments import read_segment
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import get, get_all

DEADLINE_S = 120.0
WAIT_S = 30.0 * PATIENCE
N = 300
SIZE = 1000


@pytest.fixture
def broker(broker_factory: BrokerFactory, tmp_path: Path) -> Broker:
    """One with short segments."""
    (tmp_path / "short.ini").write_text("[main]\nsegment_size = 70000\n")
    return broker_factory(["--config", str(tmp_path / "short.ini")], http=True)


def body(number: int) -> bytes:
    """Of a message."""
    return b"%d " % number + bytes([number % 251]) * SIZE


def publish(broker: Broker, queue: str, numbers: range, *, is_stream: bool = False) -> None:
    """Messages with these numbers, confirmed."""
    with Client(broker.uri) as client:
        if is_stream:
            client.queue(queue, arguments={"x-queue-type": "stream"})
        client.producer(queue).publish_batch([body(n) for n in numbers]).result(WAIT_S)


def taken(broker: Broker, queue: str) -> list[int]:
    """All messages of a queue: each of them as it was published."""
    found = []
    with Client(broker.uri) as client:
        count = client.queue(queue, passive=True).message_count
        with client.consumer(queue) as consumer:
            while len(found) < count:
                message = consumer.get(WAIT_S)
                assert message is not None, f"{len(found)} of {count}"
                number = int(message.body.split(b" ", 1)[0])
                assert message.body == body(number), "it was never published"
                found.append(number)
                message.ack()
    return found


def segments(broker: Broker, queue: str) -> list[Path]:
    """Those of a queue, in order."""
    [name] = [each for each in broker.data_dir.rglob(".queue") if each.read_text() == queue]
    return sorted(name.parent.glob("msgs.*"))


def test_what_is_not_damaged_is_never_called_so(broker: Broker) -> None:
    """Stops, kills, and whatever a broker does to its files."""
    publish(broker, "q", range(N))
    know_all(broker, broker.data_dir)
    for number in range(4):
        publish(broker, f"q{number}", range(N))
        with Client(broker.uri) as client:
            client.queue("q", passive=True)
            with client.consumer("q", prefetch=50) as consumer:
                for _ in range(50):
                    message = consumer.get(WAIT_S)
                    assert message is not None
                    message.ack()
        did(broker, "add_user", f"u{number}", "secret")
        did(broker, "set_policy", "p", "^q", json.dumps({"max-length": 5000 + number}))
        if number % 2:
            did(broker, "purge_queue", f"q{number}")
            did(broker, "delete_queue", f"q{number - 1}")
        assert verify(broker) == []
        if number % 2:
            broker.kill()
        else:
            broker.stop()
        broker.start()
        assert verify(broker) == []
    know_all(broker, broker.data_dir)
    assert "is damaged" not in broker.log_text()
    assert "taken as it is" not in broker.log_text()
    did(broker, "verify")


def test_damage_is_told_of_everywhere(broker: Broker) -> None:
    publish(broker, "q", range(N))
    api = Api(broker)
    know_all(broker, broker.data_dir)
    damaged = segments(broker, "q")[1]
    name = str(damaged.relative_to(broker.data_dir))
    assert api.get("/api/health/checks/stored-files")["status"] == "ok"

    flip(damaged, 30_000, keeps_time=True)

    done = ctl(broker, "verify")
    assert done.returncode == 1
    assert name in done.stdout.decode()
    assert b"1 files are damaged" in done.stderr
    assert f"{name} is damaged: its content is not what was written" in broker.log_text()
    assert broker.log_text().count("is damaged: ") == 1
    assert api("GET", "/api/health/checks/stored-files").status == 503
    [row] = api.get("/api/cluster")["integrity"]["damaged_files"]
    assert (row["path"], row["kind"], row["blocks"]) == (name, "differs", [0])
    with urllib.request.urlopen(f"http://{broker.host}:{broker.metrics_port}/metrics") as answer:
        metrics = answer.read().decode()
    assert "lavinmq_damaged_files 1\n" in metrics
    assert "lavinmq_last_check_timestamp_seconds 1" in metrics
    assert "lavinmq_checked_bytes_total" in metrics
    assert "stop it, and use" in failed(broker, "repair")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nothing_that_a_disk_has_changed_is_delivered(
    broker: Broker, *, is_restarted: bool
) -> None:
    """Before anything looks at it; only the sums tell. Sums of before a start count from there."""
    kept: dict[str, list[int]] = {}
    for queue in ("consumed", "got", "streamed"):
        publish(broker, queue, range(N), is_stream=queue == "streamed")
    know_all(broker, broker.data_dir)
    broker.stop()
    for queue in ("consumed", "got", "streamed"):
        kept[queue] = [
            n for at, each in enumerate(segments(broker, queue)) for n in numbers(each, at == 1)
        ]
        assert N - 70 < len(kept[queue]) < N - 50
    if not is_restarted:
        broker.start()
        know_all(broker, broker.data_dir)
    for queue in kept:
        flip(segments(broker, queue)[1], 30_000, keeps_time=True)
    if is_restarted:
        broker.start()

    wanted = {"count": N, "truncate": 2 * SIZE}
    browsed = Api(broker)("POST", "/api/queues/%2F/got/browse", wanted).json["messages"]
    assert browsed
    for each in browsed:
        shown = decode(each["payload"], each["payload_encoding"])
        assert shown in map(body, kept["got"])
    with Client(broker.uri) as client:
        with client.consumer("consumed") as consumer:
            for number in kept["consumed"]:
                assert taken_number(consumer.get(WAIT_S)) == number
        assert client.queue("consumed", passive=True).message_count == 0
        arguments = {"x-stream-offset": "first"}
        with client.consumer("streamed", prefetch=100, arguments=arguments) as consumer:
            for number in kept["streamed"]:
                message = consumer.get(WAIT_S)
                assert taken_number(message) == number
                assert message is not None
                assert message.headers["x-stream-offset"] == number + 1, "offsets stay"
    with Wire.open(broker.port) as wire:
        found = get_all(wire, "got")
    assert [int(each.split(b" ", 1)[0]) for each in found] == kept["got"]
    assert found == [body(n) for n in kept["got"]]
    assert broker.log_text().count("/msgs.0000000002 is damaged at byte ") == 3
    streamed = segments(broker, "streamed")[1].relative_to(broker.data_dir)
    wait_for(lambda: f"{streamed} is damaged: its content" in broker.log_text(), "not told", WAIT_S)
    for queue in ("consumed", "got"):
        assert list(segments(broker, queue)[0].parent.glob("msgs.0000000002.damaged"))


def test_a_large_message_whose_body_has_changed_does_not_come_as_a_whole(
    broker_factory: BrokerFactory,
) -> None:
    """It is given up, and what comes behind it is delivered."""
    broker = broker_factory([], http=True)
    large = os.urandom(3 << 20)
    with Client(broker.uri) as client:
        client.producer("large").publish_batch([b"before", large, b"behind"]).result(WAIT_S)
    know_all(broker, broker.data_dir)
    path = max(segments(broker, "large"), key=lambda each: each.stat().st_size)
    flip(path, 2_000_000, keeps_time=True)

    with Wire.open(broker.port) as wire:
        first = get(wire, "large")
        assert first is not None
        assert first.body == b"before"
        wire.send(1, commands.Basic.Get(queue="large", no_ack=False))
        closed = wire.expect(commands.Connection.Close)
        assert (closed.reply_code, closed.reply_text) == (
            541, "INTERNAL_ERROR - a message cannot be read"
        )  # fmt: skip
    with Wire.open(broker.port) as wire:
        assert get_all(wire, "large") == [b"behind"]


def numbers(segment: Path, is_damaged: bool) -> list[int]:
    """Of the messages in a segment that have no part in its first block, if that is damaged."""
    return [
        int(each.body.split(b" ", 1)[0])
        for each in read_segment(segment)
        if not is_damaged or each.position >= 65536
    ]


def taken_number(message: Message | None) -> int:
    """A message is as it was published: its number. It is acknowledged."""
    assert message is not None
    number = int(message.body.split(b" ", 1)[0])
    assert message.body == body(number), "it was never published"
    message.ack()
    return number


def test_only_administrators_have_files_read_or_mended(broker: Broker) -> None:
    api = Api(broker)
    watcher = api.as_user("watcher", "monitoring")
    nobody = api.as_user("nobody", "management")

    assert watcher("GET", "/api/integrity").status == 200
    assert nobody("GET", "/api/integrity").status == 403
    for user in (watcher, nobody):
        assert user("POST", "/api/integrity/verify").status == 403
        assert user("POST", "/api/integrity/repair").status == 403
    assert api("POST", "/api/integrity/repair").status == 204, "there is nothing to do"


def test_a_repair_keeps_whole_messages_only(broker: Broker, tmp_path: Path) -> None:
    data_dir = broker.data_dir
    for queue in ("flipped", "cut", "gone", "acked"):
        publish(broker, queue, range(N))
    with Client(broker.uri) as client, client.consumer("acked", prefetch=10) as consumer:
        for _ in range(10):
            message = consumer.get(WAIT_S)
            assert message is not None
            message.ack()
    know_all(broker, data_dir)
    broker.stop()
    before = shutil.copytree(data_dir, tmp_path / "before")
    flip(segments(broker, "flipped")[1], 69_000)
    os.truncate(segments(broker, "cut")[1], 30_000)
    gone = segments(broker, "gone")[2]
    gone.unlink()
    acks = next(segments(broker, "acked")[0].parent.glob("acks.*"))
    flip(acks, 5)

    done = ctl(None, "verify", "--offline", str(data_dir))
    assert done.returncode == 1
    assert b"4 files are damaged" in done.stderr
    said = did(None, "repair", "--offline", str(data_dir))

    assert "queue gone" in said
    assert len(said.splitlines()) == 4
    did(None, "verify", "--offline", str(data_dir))
    [aside] = (data_dir / ".damaged").iterdir()
    assert len([each for each in aside.rglob("*") if each.is_file()]) == 3
    broker.start()
    flipped, cut = taken(broker, "flipped"), taken(broker, "cut")
    assert N - 10 < len(flipped) < N
    assert sorted(set(flipped)) == flipped
    assert N - 70 < len(cut) < N
    assert sorted(set(cut)) == cut
    assert N - 80 < len(taken(broker, "gone")) < N - 40
    assert len(taken(broker, "acked")) == N, "what was acknowledged comes again"
    assert verify(broker) == []
    assert before.exists()


def test_the_longest_part_of_a_damaged_stream_is_kept(broker: Broker) -> None:
    publish(broker, "s", range(N), is_stream=True)
    know_all(broker, broker.data_dir)
    broker.stop()
    damaged = segments(broker, "s")[1]
    flip(damaged, 68_000)

    said = did(None, "repair", "--offline", str(broker.data_dir))

    assert "queue s in /" in said
    broker.start()
    arguments = {"x-stream-offset": "first"}
    found: list[int] = []
    with (
        Client(broker.uri) as client,
        client.consumer("s", prefetch=100, arguments=arguments) as consumer,
    ):
        while not found or found[-1] != N - 1:
            message = consumer.get(WAIT_S)
            assert message is not None
            number = int(message.body.split(b" ", 1)[0])
            assert message.body == body(number)
            assert message.headers["x-stream-offset"] == number + 1, "offsets stay"
            found.append(number)
            message.ack()
    assert N - 70 < len(found) < N
    assert verify(broker) == []


def test_definitions_are_not_guessed(broker: Broker) -> None:
    publish(broker, "q", range(3))
    did(broker, "add_user", "somebody", "secret")
    know_all(broker, broker.data_dir)
    broker.stop()
    users = broker.data_dir / "users.json"
    users.write_bytes(users.read_bytes().replace(b"somebody", b"somebody_else"))
    where = ("--offline", str(broker.data_dir))

    done = ctl(None, "repair", *where)
    assert done.returncode == 1
    assert b"bring it back from a backup" in done.stdout
    broker.start()
    assert "somebody_else" in did(broker, "list_users")
    assert verify(broker) == ["users.json"]
    broker.stop()
    did(None, "repair", "--accept", *where)
    broker.start()
    assert verify(broker) == []


def test_other_directories_and_those_of_a_running_broker_are_refused(
    broker: Broker, tmp_path: Path
) -> None:
    assert "is no data directory" in failed(None, "verify", "--offline", str(tmp_path))
    assert "is locked by" in failed(None, "repair", "--offline", str(broker.data_dir))


def test_a_backup_names_what_is_damaged_and_has_no_sums(broker: Broker, tmp_path: Path) -> None:
    publish(broker, "q", range(N))
    know_all(broker, broker.data_dir)
    name = str(segments(broker, "q")[0].relative_to(broker.data_dir))
    flip(broker.data_dir / name, 100, keeps_time=True)

    done = ctl(broker, "backup", str(tmp_path / "backups"))

    assert done.returncode == 1
    assert name in done.stderr.decode()
    [made] = (tmp_path / "backups").iterdir()
    assert not (made / "data" / ".sums").exists()
    assert json.loads((made / "backup.json").read_text())["damaged"] == [name]
    assert verify(broker) == [name]


def test_all_files_of_a_broker_have_sums(broker: Broker) -> None:
    publish(broker, "q", range(N))
    publish(broker, "s", range(N), is_stream=True)
    did(broker, "set_policy", "p", "^q", '{"max-length": 5000}')
    know_all(broker, broker.data_dir)

    assert {str(each.relative_to(broker.data_dir)) for each in stored(broker.data_dir)} == set(
        known(broker.data_dir)
    )
