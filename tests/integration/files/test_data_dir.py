"""Data directories written by the original are opened with every message, definition and user.

`tests/fixtures/data-dir` holds the directories and, for each, what the original itself finds in
it. Here the broker is asked over AMQP alone.
"""

from __future__ import annotations

import base64
import functools
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.replay import Mismatch
from tests.support.typed import Rows, TypedClient, Unit

FOLDER = Path(__file__).parents[2] / "fixtures" / "data-dir"
ARCHIVES = ("basic", "killed")
TYPES_OF_LATER_WORK = {"mqtt"}
INT32_LIMIT = 1 << 31

Manifest = dict[str, Any]
pytestmark = pytest.mark.parametrize("archive", ARCHIVES)


@functools.cache
def manifest_of(archive: str) -> Manifest:
    """Return what the original finds in an archive."""
    found: Manifest = json.loads((FOLDER / f"{archive}.json").read_text(encoding="utf-8"))
    return found


def unpack(archive: str, directory: Path) -> Path:
    """Unpack an archive (its preallocated files take no room) and return the data directory."""
    directory.mkdir()
    subprocess.run(["tar", "-xzf", FOLDER / f"{archive}.tar.gz", "-C", directory], check=True)
    return directory


@pytest.fixture
def manifest(archive: str) -> Manifest:
    return manifest_of(archive)


@pytest.fixture
def opened(archive: str, tmp_path: Path, broker_factory: Callable[..., Broker]) -> Broker:
    """A broker running on the unpacked archive."""
    return broker_factory(data_dir=unpack(archive, tmp_path / archive))


@pytest.fixture
def client(opened: Broker) -> Iterator[TypedClient]:
    with TypedClient(opened.port) as connected:
        yield connected


def rows(arguments: dict[str, Any]) -> Rows:
    """Return a JSON object as a field table."""
    return [[key, *typed(value)] for key, value in arguments.items()]


def typed(value: Any) -> list[Any]:
    """Return a JSON value with the type letter a client would use."""
    if value is None:
        return ["V", None]
    if isinstance(value, bool):
        return ["t", value]
    if isinstance(value, int):
        return ["I" if abs(value) < INT32_LIMIT else "l", value]
    if isinstance(value, str):
        return ["S", value]
    if isinstance(value, list):
        return ["A", [typed(each) for each in value]]
    return ["F", rows(value)]


def as_in_manifest(unit: Unit) -> dict[str, Any]:
    """Return a received message the way the manifest lists it."""
    arguments = unit["args"]
    return {
        "exchange": arguments["exchange"],
        "routing_key": arguments["routing_key"],
        "redelivered": arguments["redelivered"],
        "properties": unit["props"],
        "body": base64.b64encode(unit["body"]).decode(),
    }


def declaration(queue: Manifest) -> dict[str, Any]:
    """Return the arguments of queue.declare for a queue of the manifest."""
    flags = {key: queue[key] for key in ("durable", "exclusive", "auto_delete")}
    return {"queue": queue["name"], **flags, "arguments": rows(queue["arguments"])}


def assert_all_messages_are_there(
    port: int, manifest: Manifest, *, redelivered: bool = False
) -> None:
    """Compare every queue's messages, in order; leave them unacknowledged.

    `redelivered`: they were delivered before, and the broker knows."""
    again = {"redelivered": True} if redelivered else {}
    for queue in manifest["queues"]:
        with TypedClient(port, vhost=queue["vhost"]) as reader:
            found = [as_in_manifest(unit) for unit in reader.get_all(queue["name"])]
        wanted = [message | again for message in queue["messages_in_order"]]
        assert found == wanted, queue["name"]


def test_every_message_is_found_in_order(opened: Broker, manifest: Manifest) -> None:
    assert_all_messages_are_there(opened.port, manifest)


def test_every_message_is_found_again_after_an_orderly_restart(
    opened: Broker, manifest: Manifest
) -> None:
    assert_all_messages_are_there(opened.port, manifest)

    opened.restart()

    assert_all_messages_are_there(opened.port, manifest, redelivered=True)


def test_every_message_is_found_again_after_a_kill(opened: Broker, manifest: Manifest) -> None:
    assert_all_messages_are_there(opened.port, manifest)

    opened.kill()
    opened.start()

    assert_all_messages_are_there(opened.port, manifest)


def test_acknowledged_messages_are_gone_after_a_restart(opened: Broker, manifest: Manifest) -> None:
    """edge-cases.md 312"""
    with TypedClient(opened.port) as reader:
        for queue in manifest["queues"]:
            reader.get_all(queue["name"], no_ack=True)

    opened.restart()

    with TypedClient(opened.port) as reader:
        assert [reader.get(queue["name"]) for queue in manifest["queues"]] == [None] * len(
            manifest["queues"]
        )


def test_every_queue_counts_its_messages(client: TypedClient, manifest: Manifest) -> None:
    for queue in manifest["queues"]:
        answer = client.call("queue.declare", queue=queue["name"], passive=True)

        assert answer["args"] == {
            "queue": queue["name"],
            "message_count": queue["messages"],
            "consumer_count": 0,
        }


def test_every_queue_is_as_it_was_declared(client: TypedClient, manifest: Manifest) -> None:
    """edge-cases.md 311"""
    for queue in manifest["queues"]:
        same = declaration(queue)
        other_arguments = rows(queue["arguments"] | {"x-max-length": 1})

        assert client.answer("queue.declare", **same) == "queue.declare-ok"
        for changed in ("durable", "auto_delete"):
            different = same | {changed: not same[changed]}
            assert client.answer("queue.declare", **different) == "406", changed
        assert client.answer("queue.declare", **same | {"arguments": other_arguments}) == "406"


def test_transient_queues_are_gone(
    client: TypedClient, opened: Broker, archive: str, tmp_path: Path
) -> None:
    original = unpack(archive, tmp_path / "untouched")
    names = [path.read_text() for path in original.glob("*/transient/*/.queue")]

    for name in [*names, "deleted"]:
        assert client.answer("queue.declare", queue=name, passive=True) == "404"
    assert not list(opened.data_dir.glob("*/transient/*/.queue"))


def test_every_exchange_is_as_it_was_declared(client: TypedClient, manifest: Manifest) -> None:
    """edge-cases.md 311"""
    exchanges = [each for each in manifest["exchanges"] if each["name"] != "amq.default"]
    for exchange in exchanges:
        if exchange["type"] in TYPES_OF_LATER_WORK:
            continue
        flags = {key: exchange[key] for key in ("type", "durable", "auto_delete", "internal")}
        same = {"exchange": exchange["name"], **flags, "arguments": rows(exchange["arguments"])}

        assert client.answer("exchange.declare", **same) == "exchange.declare-ok", same
        for changed in ("durable", "auto_delete", "internal"):
            different = same | {changed: not same[changed]}
            assert client.answer("exchange.declare", **different) == "406", changed


def test_bindings_of_a_topic_exchange_route(client: TypedClient, manifest: Manifest) -> None:
    queues = destinations(manifest, "amq.topic", "a.#")

    client.publish("amq.topic", "a.b.c", b"to all of a", mandatory=True)

    for queue in queues:
        assert client.get_all(queue)[-1]["body"] == b"to all of a"


def test_bindings_of_a_headers_exchange_route(client: TypedClient, manifest: Manifest) -> None:
    queues = destinations(manifest, "hdr", "")
    pattern = next(b["arguments"] for b in manifest["bindings"] if b["source"] == "hdr")
    headers = rows({key: value for key, value in pattern.items() if key != "x-match"})

    client.publish("hdr", "any", b"matches all", mandatory=True, headers=headers)
    client.publish("hdr", "any", b"matches one", mandatory=True, headers=headers[:1])

    returned = client.call("basic.qos")
    assert returned["method"] == "basic.return"
    assert returned["body"] == {"text": "matches one"}
    assert client.take()["method"] == "basic.qos-ok"
    for queue in queues:
        assert client.get_all(queue)[-1]["body"] == b"matches all"


def test_bindings_of_a_consistent_hash_exchange_route(
    client: TypedClient, manifest: Manifest
) -> None:
    [queue] = destinations(manifest, "ch", "3")

    client.publish("ch", "any", b"hashed", mandatory=True, headers=rows({"id": "one"}))
    client.publish("ch", "any", b"without", mandatory=True)

    assert [unit["body"] for unit in client.get_all(queue)[-2:]] == [b"hashed", b"without"]


def test_unbound_key_does_not_route(client: TypedClient) -> None:
    client.publish("amq.direct", "to-be-removed", b"", mandatory=True)

    assert client.call("basic.qos")["method"] == "basic.return"


def test_users_log_in_with_their_passwords_only(opened: Broker) -> None:
    TypedClient(opened.port, user="guest", password="guest").close()

    with pytest.raises(Mismatch, match="403"):
        TypedClient(opened.port, user="guest", password="wrong")
    with pytest.raises(Mismatch, match="403"):
        TypedClient(opened.port, user="nobody", password="guest")


def test_unknown_vhost_is_refused(opened: Broker) -> None:
    with pytest.raises(Mismatch, match="530"):
        TypedClient(opened.port, vhost="not-there")


def test_orderly_stop_leaves_segments_and_acks_as_the_original_does(
    opened: Broker, manifest: Manifest
) -> None:
    assert_all_messages_are_there(opened.port, manifest)

    assert opened.stop() == 0

    wanted = manifest["files_after_reading"]
    sizes = {
        str(path.relative_to(opened.data_dir)): path.stat().st_size
        for pattern in ("*/*/msgs.*", "*/*/acks.*")
        for path in opened.data_dir.glob(pattern)
    }
    assert sizes == {
        path: size for path, size in wanted.items() if "msgs." in path or "acks." in path
    }


def destinations(manifest: Manifest, source: str, routing_key: str) -> list[str]:
    """Return the queues bound to an exchange by this key."""
    return [
        binding["destination"]
        for binding in manifest["bindings"]
        if (binding["source"], binding["routing_key"]) == (source, routing_key)
    ]
