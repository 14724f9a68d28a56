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

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.integration.test_backup import ctl, did, failed
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.damage import flip, know_all, known, stored, verify
from tests.support.patience import PATIENCE

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
