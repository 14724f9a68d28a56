"""Data directories of the original, damaged or with features of later work: the broker starts.

`tests/fixtures/data-dir` holds the directories; the manifest of each says what the original finds.
Where the original loses more than it must, or does not start, the difference is listed here.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.files.test_data_dir import as_in_manifest, manifest_of, unpack
from tests.support.broker import Broker, BrokerError
from tests.support.replay import Mismatch
from tests.support.segments import directory_name, queue_directory, segment_path
from tests.support.typed import TypedClient

Manifest = dict[str, Any]
MakeBroker = Callable[..., Broker]

# Messages that we find and the original does not: behind a bad record, a wrong count, a short end.
FOUND_BEYOND = {
    "corrupt-body-length": 3,
    "zero-timestamp-middle": 3,
    "wrong-meta": 10,
}
CLOSED = ("wrong-version", "middle-wrong-version")


def hashes(directory: Path) -> dict[str, str]:
    """Name and digest of every file below a directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def small_segments(directory: Path) -> list[str]:
    """Options for segments of the size that these directories were written with."""
    path = directory / "small.ini"
    path.write_text("[main]\nsegment_size = 4096\n")
    return ["-c", str(path)]


def is_session(queue: Manifest) -> bool:
    """Whether it is that of a client of MQTT, which AMQP does not reach."""
    return bool(queue["arguments"].get("x-queue-type") == "mqtt")


def get_all(port: int, queue: Manifest, no_ack: bool = False) -> list[dict[str, Any]]:
    with TypedClient(port, vhost=queue["vhost"]) as reader:
        if queue["arguments"].get("x-queue-type") == "stream":
            return [as_in_manifest(unit) for unit in reader.read_stream(queue["name"])]
        return [as_in_manifest(unit) for unit in reader.get_all(queue["name"], no_ack=no_ack)]


def without_bcc(message: dict[str, Any]) -> dict[str, Any]:
    """The original stores BCC with what it dead-letters, and leaves it out when it delivers."""
    properties = dict(message["properties"])
    if "headers" in properties:
        properties["headers"] = [row for row in properties["headers"] if row[0] != "BCC"]
    return message | {"properties": properties}


def assert_in_order(wanted: list[Any], found: list[Any], name: str) -> None:
    """All wanted are among the found ones, in this order."""
    rest = iter(found)
    assert all(any(message == other for other in rest) for message in wanted), name


@pytest.fixture
def damaged(tmp_path: Path, broker_factory: MakeBroker) -> Broker:
    """A broker on the directory with one kind of damage per queue."""
    return broker_factory(small_segments(tmp_path), data_dir=unpack("damaged", tmp_path / "data"))


def test_every_damaged_queue_gives_what_the_original_finds_or_more(damaged: Broker) -> None:
    """edge-cases.md 315, 316, 324, 325"""
    manifest = manifest_of("damaged")
    for queue in manifest["queues"]:
        name, wanted = queue["name"], queue["messages_in_order"]
        if is_session(queue) or name in CLOSED:
            continue

        found = get_all(damaged.port, queue)

        assert len(found) - len(wanted) == FOUND_BEYOND.get(name, 0), name
        assert_in_order(wanted, found, name)


def test_damaged_queues_work_on_and_start_again(damaged: Broker) -> None:
    queues = [q for q in manifest_of("damaged")["queues"] if not is_session(q)]
    before = {q["name"]: get_all(damaged.port, q) for q in queues}
    with TypedClient(damaged.port) as client:
        for queue in queues:
            client.publish("", queue["name"], b"new")
        client.synchronise()

    damaged.kill()
    damaged.start()

    for queue in queues:
        found = get_all(damaged.port, queue, no_ack=True)
        if queue["name"] in CLOSED:
            assert found == []
            continue
        assert found[:-1] == before[queue["name"]], queue["name"]
        assert found[-1]["body"] == "bmV3"
    damaged.restart()
    for queue in queues:
        if queue["arguments"].get("x-queue-type") != "stream":
            assert get_all(damaged.port, queue) == []


def test_a_closed_queue_is_empty_can_be_seen_and_deleted_and_its_files_stay(
    tmp_path: Path, damaged: Broker
) -> None:
    """edge-cases.md 314, 326"""
    untouched = unpack("damaged", tmp_path / "untouched")
    for name in CLOSED:
        directory = queue_directory(damaged.data_dir, name)
        with TypedClient(damaged.port) as client:
            assert client.answer("queue.declare", queue=name, passive=True) == "queue.declare-ok"
            client.publish("", name, b"dropped")
            client.synchronise()
            assert client.get(name) is None
            assert client.answer("queue.purge", queue=name) == "queue.purge-ok"
        assert hashes(directory) == hashes(queue_directory(untouched, name))
        assert f"queue '{name}' is closed, its files are left alone: {directory}" in (
            damaged.log_text()
        )
        with TypedClient(damaged.port) as client:
            assert client.answer("queue.delete", queue=name) == "queue.delete-ok"
            assert client.answer("queue.declare", queue=name, durable=True) == "queue.declare-ok"
            client.publish("", name, b"works")
            unit = client.get(name)
            assert unit is not None
            assert unit["body"] == b"works"


def test_the_log_names_file_and_position(damaged: Broker) -> None:
    for queue in manifest_of("damaged")["queues"]:
        if not is_session(queue):
            get_all(damaged.port, queue)
    log = damaged.log_text()

    def path(name: str, file: str) -> str:
        return str(queue_directory(damaged.data_dir, name) / file)

    for name in ("zero-timestamp-middle", "corrupt-body-length", "garbage-tail", "cut-in-header",
                 "truncated-tail", "garbage-tail-long"):  # fmt: skip
        assert f"{path(name, 'msgs.0000000001')} is damaged at byte " in log, name
    assert f"{path('middle-truncated', 'msgs.0000000002')} is damaged at byte " in log
    assert f"{path('zero-filled-next', 'msgs.0000000002')} held nothing and was removed" in log
    assert f"{path('stray-acks', 'acks.0000000009')} belongs to no segment and was removed" in log
    assert "2 of 5 positions belong to no message" in log


def test_the_missing_name_of_a_queue_directory_is_written_again(damaged: Broker) -> None:
    name = queue_directory(damaged.data_dir, "no-queue-file") / ".queue"

    assert name.read_text() == "no-queue-file"


@pytest.mark.parametrize("archive", ["rich", "rich-killed"])
def test_sessions_of_mqtt_are_kept_through_compactions(
    tmp_path: Path, broker_factory: MakeBroker, archive: str
) -> None:
    untouched = unpack(archive, tmp_path / "untouched")
    kept = [q for q in manifest_of(archive)["queues"] if is_session(q)]
    assert kept
    broker = broker_factory(small_segments(tmp_path), data_dir=unpack(archive, tmp_path / "data"))
    for vhost in manifest_of(archive)["vhosts"]:
        with TypedClient(broker.port, vhost=vhost) as client:
            for _ in range(2):
                client.answer("queue.declare", queue="gone", durable=True)
                client.answer("queue.delete", queue="gone")
    for _ in range(2):
        broker.restart()  # compacts what was deleted
    assert broker.stop() == 0

    for queue in kept:
        place = directory_name(queue["vhost"]), directory_name(queue["name"])
        segments = list(broker.data_dir.joinpath(*place).glob("msgs.*"))
        assert segments
        definitions = broker.data_dir / place[0] / "definitions.amqp"
        assert bytes([len(queue["name"])]) + queue["name"].encode() in definitions.read_bytes()
    for path in untouched.rglob("*.json"):
        assert (broker.data_dir / path.relative_to(untouched)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("archive", ["rich", "rich-killed"])
def test_ordinary_queues_beside_sessions_are_complete(
    tmp_path: Path, broker_factory: MakeBroker, archive: str
) -> None:
    broker = broker_factory(small_segments(tmp_path), data_dir=unpack(archive, tmp_path / "data"))
    compared = 0
    for queue in manifest_of(archive)["queues"]:
        if is_session(queue) or queue.get("messages_in_order") is None:
            continue
        if queue["state"] == "paused":
            assert get_all(broker.port, queue) == []
            continue
        found = [without_bcc(message) for message in get_all(broker.port, queue)]
        assert found == queue["messages_in_order"], queue["name"]
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize(
    "archive",
    ["damaged-definitions", "damaged-definitions-empty", "damaged-definitions-garbage",
     "damaged-queue-directory", "damaged-segment-empty", "damaged-stream-offsets",
     "damaged-stream-tail"],
)  # fmt: skip
def test_the_broker_starts_twice_and_works(
    tmp_path: Path, broker_factory: MakeBroker, archive: str
) -> None:
    untouched = unpack(archive, tmp_path / "untouched")
    broker = broker_factory(data_dir=unpack(archive, tmp_path / "data"))
    with TypedClient(broker.port) as client:
        assert client.answer("queue.declare", queue="new", durable=True) == "queue.declare-ok"
        client.publish("", "new", b"kept")
        client.synchronise()

    broker.restart()

    with TypedClient(broker.port) as client:
        unit = client.get("new")
        assert unit is not None
        assert unit["body"] == b"kept"
        for queue in manifest_of(archive).get("queues", []):
            answer = client.answer("queue.declare", queue=queue["name"], passive=True)
            assert answer == "queue.declare-ok", queue["name"]
    for path in untouched.rglob("*.json"):
        assert (broker.data_dir / path.relative_to(untouched)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("archive", "vhost", "file"),
    [
        ("damaged-limits-json", "two", "limits.json"),
        ("damaged-policies-json", "/", "policies.json"),
    ],
)
def test_a_virtual_host_is_not_served_without_what_is_said_about_it(
    tmp_path: Path, broker_factory: MakeBroker, archive: str, vhost: str, file: str
) -> None:
    """The original does not start. Until somebody has decided, nobody is let in there."""
    broker = broker_factory(data_dir=unpack(archive, tmp_path / "data"))
    path = broker.data_dir / directory_name(vhost) / file
    before = hashes(path.parent)

    with pytest.raises(Mismatch, match="530"):
        TypedClient(broker.port, vhost=vhost)
    assert f"vhost '{vhost}' is closed, its files are left alone: {path}: " in broker.log_text()
    assert "remove it to go on without what it says" in broker.log_text()
    assert hashes(path.parent) == before
    broker.stop()
    path.unlink()
    broker.start()

    with TypedClient(broker.port, vhost=vhost) as client:
        for queue in manifest_of(archive).get("queues", []):
            if queue["vhost"] == vhost:
                answer = client.answer("queue.declare", queue=queue["name"], passive=True)
                assert answer == "queue.declare-ok", queue["name"]


def test_an_empty_first_segment_does_not_hide_the_second(
    tmp_path: Path, broker_factory: MakeBroker
) -> None:
    broker = broker_factory(data_dir=unpack("damaged-segment-empty", tmp_path / "data"))
    path = segment_path(queue_directory(broker.data_dir, "last-one"), 1)

    with TypedClient(broker.port) as client:
        assert len(client.get_all("last-one")) == 1

    assert f"{path} held nothing and was removed" in broker.log_text()


@pytest.mark.parametrize(
    ("archive", "file", "code"),
    # What another start would meet again is told by a code that systemd does not start again for.
    [("damaged-users-json", "users.json", 1), ("damaged-schema-version", "schema_version", 78)],
)
def test_two_files_stop_the_start_with_one_line_that_names_them(
    tmp_path: Path, broker_factory: MakeBroker, archive: str, file: str, code: int
) -> None:
    data_dir = unpack(archive, tmp_path / "data")
    before = hashes(data_dir)
    broker = broker_factory(data_dir=data_dir, start=False)

    with pytest.raises(BrokerError, match=f"exit code {code} "):
        broker.start()

    (line,) = [line for line in broker.log_text().splitlines() if "ERROR" in line]
    assert str(data_dir / file) in line
    assert hashes(data_dir) | {".lock": ""} == before | {".lock": ""}


# --- damage of our own ------------------------------------------------------------------------


def fill(broker: Broker, names: list[str], messages: int = 40) -> None:
    with TypedClient(broker.port) as client:
        for name in names:
            client.call("queue.declare", queue=name, durable=True)
            for number in range(messages):
                client.publish("", name, b"%s %d " % (name.encode(), number) + bytes(100))
        client.synchronise()


def bodies(broker: Broker, name: str) -> list[bytes]:
    with TypedClient(broker.port) as client:
        return [unit["body"] for unit in client.get_all(name)]


def test_a_bad_vhost_does_not_stop_the_others(tmp_path: Path, broker_factory: MakeBroker) -> None:
    data_dir = unpack("rich", tmp_path / "data")
    bad = next(v for v in manifest_of("rich")["vhosts"] if v != "/")
    definitions = data_dir / directory_name(bad) / "definitions.amqp"
    definitions.write_bytes(b"\2\0\0\0" + definitions.read_bytes()[4:])
    before = hashes(definitions.parent)
    broker = broker_factory(data_dir=data_dir)

    with pytest.raises(Mismatch, match="530"):
        TypedClient(broker.port, vhost=bad)
    TypedClient(broker.port).close()
    broker.restart()

    assert f"vhost '{bad}' is closed" in broker.log_text()
    assert hashes(definitions.parent) == before


def test_what_stands_where_a_directory_should_be_costs_that_queue_only(
    own_broker: Broker, tmp_path: Path
) -> None:
    names = ["file", "link", "name", "good"]
    fill(own_broker, names)
    own_broker.stop()
    for name in ("file", "link"):
        shutil.rmtree(queue_directory(own_broker.data_dir, name))
    queue_directory(own_broker.data_dir, "file").write_text("not a directory")
    queue_directory(own_broker.data_dir, "link").symlink_to("nowhere")
    marker = queue_directory(own_broker.data_dir, "name") / ".queue"
    marker.unlink()
    marker.mkdir()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    vhost = own_broker.data_dir / directory_name("/")
    (vhost / "transient").symlink_to(precious)
    shutil.rmtree(vhost / ".vhost", ignore_errors=True)

    own_broker.start()

    assert len(bodies(own_broker, "good")) == len(bodies(own_broker, "name")) == 40
    assert bodies(own_broker, "file") == []
    assert (precious / "file").read_text() == "mine"
    with TypedClient(own_broker.port) as client:
        for name in ("file", "link"):
            assert client.answer("queue.delete", queue=name) == "queue.delete-ok"
            assert client.answer("queue.declare", queue=name, durable=True) == "queue.declare-ok"


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_to_some_files_leaves_the_other_queues_complete(
    tmp_path: Path, broker_factory: MakeBroker, seed: int
) -> None:
    random_ = random.Random(seed)
    broker = broker_factory(small_segments(tmp_path))
    names = [f"q{number}" for number in range(6)]
    fill(broker, names)
    complete = {name: bodies(broker, name) for name in names}
    broker.stop()
    victims = names[:4]
    for name in victims:
        directory = queue_directory(broker.data_dir, name)
        scramble(random_, random_.choice(sorted(directory.iterdir())))

    broker.start()

    for name in names[4:]:
        assert bodies(broker, name) == complete[name]
    for name in victims:
        with TypedClient(broker.port) as client:
            found = [unit["body"] for unit in client.get_all(name, no_ack=True)]
            client.publish("", name, b"after")
            client.synchronise()
            closed = f"queue '{name}' is closed" in broker.log_text()
            last = client.get(name, no_ack=True)
        assert closed == (last is None)
        good = list(dict.fromkeys(body for body in found if body in complete[name]))
        assert good == [body for body in complete[name] if body in good]
    broker.restart()
    assert "ERROR" not in broker.log_text().rsplit("Data directory:", 1)[1] or any(
        f"queue '{name}' is closed" in broker.log_text() for name in victims
    )


def scramble(random_: random.Random, path: Path) -> None:
    """Cut, zero, double, change or delete a part of a file, or all of it."""
    data = bytearray(path.read_bytes())
    at = random_.randrange(len(data) + 1)
    kind = random_.randrange(5)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == 2:
        data[at:at] = data[at : at + 200]
    elif kind == 3:
        data[at : at + 16] = random_.randbytes(len(data[at : at + 16]))
    else:
        path.unlink()
        return
    path.write_bytes(data)


def test_definitions_behind_damage_are_applied(own_broker: Broker) -> None:
    fill(own_broker, ["first", "second", "third"], messages=2)
    own_broker.stop()
    path = own_broker.data_dir / directory_name("/") / "definitions.amqp"
    data = path.read_bytes()
    at = data.index(b"\x06second")
    path.write_bytes(data[: at - 3] + b"\xff\xff\xff" + data[at:])

    own_broker.start()

    assert len(bodies(own_broker, "third")) == 2
    with TypedClient(own_broker.port) as client:
        assert client.answer("queue.declare", queue="second", passive=True) == "404"
    assert f"{path}: damaged at byte {at - 13}" in own_broker.log_text()
