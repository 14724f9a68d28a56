"""Streams by HTTP for those who read ranges: facts, places, segments, records, positions."""

from __future__ import annotations

import http.client
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.integration.stream.test_streams import STREAM, Reader
from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.raw_blocks import blocks, joined
from tests.support.segments import queue_directory, read_live_segment, segment_numbers, segment_path
from tests.support.waiting import wait_for

QUEUES = "/api/queues/%2F"
NAME = "s"
PEOPLE: users.People = {
    "reader": ("management", {"/": ("", ".*", "")}),
    "looker": ("management", {"/": (".*", "", ".*")}),
    "monitor": ("monitoring", {"/": ("", "", "")}),
}
Small = Callable[..., Broker]


@pytest.fixture
def small(tmp_path: Path, broker_factory: BrokerFactory) -> Small:
    """Call it to get a broker with segments of 4096 bytes."""
    config = tmp_path / "small.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    return lambda: broker_factory(["-c", str(config)], http=True)


@pytest.fixture
def client() -> Iterator[Callable[[Broker], BlockingChannel]]:
    """Call it with a broker to get a channel of a new connection."""
    opened: list[pika.BlockingConnection] = []

    def open_channel(broker: Broker) -> BlockingChannel:
        parameters = pika.ConnectionParameters(broker.host, broker.port)
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1].channel()

    yield open_channel
    for connection in opened:
        with suppress(AMQPError):  # its broker may have been killed
            connection.close()


Client = Callable[[Broker], BlockingChannel]


def declare(channel: BlockingChannel, name: str = NAME, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM | arguments)


def fill(channel: BlockingChannel, n: int, size: int = 100, name: str = NAME) -> None:
    """Publish so many messages, and wait until they are on disk."""
    channel.confirm_delivery()
    for number in range(n):
        channel.basic_publish("", name, b"%08d" % number + bytes(size))


def facts(api: Api, name: str = NAME) -> dict[str, Any]:
    shown: dict[str, Any] = api.get(f"{QUEUES}/{name}")["stream"]
    return shown


def raw(api: Api, query: str = "", name: str = NAME) -> bytes:
    answer = api("GET", f"{QUEUES}/{name}/stream/raw{query}")
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/octet-stream"
    return answer.content


def stored(broker: Broker, name: str = NAME) -> list[bytes]:
    """The records in the files of a stream."""
    directory = queue_directory(broker.data_dir, name)
    return [
        record.raw
        for number in segment_numbers(directory)
        for record in read_live_segment(segment_path(directory, number))
    ]


# --- facts ----------------------------------------------------------------------------------------


def test_facts_of_a_stream(channel: BlockingChannel, broker: Broker, unique: UniqueName) -> None:
    name, api = unique("stream"), Api(broker)
    declare(channel, name)
    empty = facts(api, name)

    before = int(time.time() * 1000)
    fill(channel, 5, name=name)
    after = int(time.time() * 1000)

    found = facts(api, name)
    assert empty == {
        "first_offset": None, "last_offset": 0, "first_timestamp": None, "last_timestamp": None,
        "created": found["created"], "segments": empty["segments"],
        "epoch": 1, "epochs": [{"epoch": 1, "first_offset": 1}],
    }  # fmt: skip
    assert (found["first_offset"], found["last_offset"], found["segments"]) == (1, 5, 1)
    assert before <= found["first_timestamp"] <= found["last_timestamp"] <= after
    assert "stream" not in next(q for q in api.get(f"{QUEUES}?name={name}") if q["name"] == name)


def test_facts_when_retention_has_taken_the_first(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel, **{"x-max-length": 20})
    fill(channel, 300)
    records = stored(broker)

    found = facts(api)

    assert found["last_offset"] == 300
    assert found["first_offset"] == 301 - len(records)
    channel.queue_purge(NAME)
    assert facts(api)["last_offset"] == 300


def test_an_identity_survives_whatever_the_broker_does(small: Small, client: Client) -> None:
    broker = small()
    api = Api(broker)
    declare(client(broker))
    created = facts(api)["created"]
    assert created

    broker.kill()
    broker.start()
    assert facts(api)["created"] == created
    channel = client(broker)
    fill(channel, 100)
    channel.connection.close()
    broker.restart()
    assert facts(api)["created"] == created
    broker.kill()
    broker.start()
    assert facts(api)["created"] == created
    channel = client(broker)
    channel.queue_purge(NAME)
    declare(channel)
    assert facts(api)["created"] == created


def test_a_stream_that_is_made_anew_is_another(http_broker: Broker, client: Client) -> None:
    """However quickly, also by other ways."""
    api, channel = Api(http_broker), client(http_broker)
    seen = set()
    for _ in range(20):
        declare(channel)
        seen.add(facts(api)["created"])
        channel.queue_delete(NAME)
    for _ in range(5):
        body = {"durable": True, "arguments": STREAM}
        assert api("PUT", f"{QUEUES}/{NAME}", body).status == 201
        seen.add(facts(api)["created"])
        assert api("DELETE", f"{QUEUES}/{NAME}").status == 204
    declare(channel)
    http_broker.kill()
    http_broker.start()
    seen.add(facts(api)["created"])

    assert len(seen) == 26


def test_a_stream_of_an_older_release_gets_an_identity(small: Small, client: Client) -> None:
    broker = small()
    api = Api(broker)
    channel = client(broker)
    declare(channel)
    fill(channel, 3)
    created = facts(api)["created"]
    channel.connection.close()
    broker.stop()
    directory = queue_directory(broker.data_dir, NAME)
    (mark,) = directory.glob("created.*")
    assert (mark.name, mark.read_bytes()) == (f"created.{created}", b"")
    mark.unlink()

    broker.start()

    another = facts(api)["created"]
    assert another and another != created
    broker.restart()
    assert facts(api)["created"] == another
    assert facts(api)["last_offset"] == 3


def test_a_stream_whose_directory_was_lost_is_another(small: Small, client: Client) -> None:
    broker = small()
    api = Api(broker)
    channel = client(broker)
    declare(channel)
    created = facts(api)["created"]
    channel.connection.close()
    broker.stop()
    shutil.rmtree(queue_directory(broker.data_dir, NAME))

    broker.start()

    assert facts(api)["created"] not in (None, created)


# --- places and segments --------------------------------------------------------------------------


def test_a_time_leads_to_an_offset(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel)
    path = f"{QUEUES}/{NAME}/stream/offset?timestamp="
    assert api.get(f"{path}0") == {"offset": 1, "found": False}
    fill(channel, 60)
    wait_for(lambda: time.time() * 1000 > facts(api)["last_timestamp"] + 1, "the clock goes on")
    middle = int(time.time() * 1000)
    fill(channel, 60)

    times = [int.from_bytes(record[:8], "little") for record in stored(broker)]

    assert api.get(f"{path}0") == {"offset": 1, "found": True}
    assert api.get(f"{path}{middle}") == {"offset": 61, "found": True}
    assert api.get(f"{path}{times[-1]}") == {"offset": times.index(times[-1]) + 1, "found": True}
    assert api.get(f"{path}{times[-1] + 1}") == {"offset": 121, "found": False}
    assert facts(api)["segments"] > 3


def test_segments_are_listed(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel)
    fill(channel, 200)
    path = f"{QUEUES}/{NAME}/stream/segments"

    found = api.get(path)

    directory = queue_directory(broker.data_dir, NAME)
    numbers = segment_numbers(directory)
    assert [each["id"] for each in found] == numbers
    assert [each["sealed"] for each in found] == [True] * (len(numbers) - 1) + [False]
    at = 1
    for each in found:
        records = read_live_segment(segment_path(directory, each["id"]))
        times = [record.timestamp_ms for record in records]
        assert (each["first_offset"], each["messages"]) == (at, len(records))
        assert (each["first_timestamp"], each["last_timestamp"]) == (times[0], max(times))
        assert each["bytes"] == 4 + sum(len(record.raw) for record in records)
        at += len(records)
    middle = found[3]["first_offset"]
    assert api.get(f"{path}?offset={middle}&end={middle + 1}") == [found[3]]
    assert api.get(f"{path}?offset={middle + 1}") == found[3:]
    assert api.get(f"{path}?end={middle}") == found[:3]
    assert api.get(f"{path}?page=2&page_size=2")["items"] == found[2:4]


def test_segments_of_an_empty_stream(http_broker: Broker, client: Client) -> None:
    api = Api(http_broker)
    declare(client(http_broker))

    for each in api.get(f"{QUEUES}/{NAME}/stream/segments"):
        assert (each["messages"], each["first_offset"], each["sealed"]) == (0, 1, False)
        assert each["first_timestamp"] is each["last_timestamp"] is None
    assert api.get(f"{QUEUES}/{NAME}/stream/segments?offset=0") == []


# --- records --------------------------------------------------------------------------------------


def test_raw_records_are_those_of_the_files(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel)
    assert blocks(raw(api)) == ([], 1)
    fill(channel, 300)

    records = stored(broker)

    assert len(records) == 300
    whole = api("GET", f"{QUEUES}/{NAME}/stream/raw")
    assert whole.headers["transfer-encoding"] == "chunked"
    assert joined(whole.content) == (b"".join(records), 1, 301)
    assert joined(raw(api, "?offset=0&end=5")) == (b"".join(records[:4]), 1, 5)
    assert joined(raw(api, "?offset=77&end=222")) == (b"".join(records[76:221]), 77, 222)
    assert joined(raw(api, "?offset=290&end=9999")) == (b"".join(records[289:]), 290, 301)
    assert blocks(raw(api, "?offset=301")) == ([], 301)
    assert blocks(raw(api, "?offset=5&end=5")) == ([], 5)


def test_a_record_of_megabytes_comes_whole(http_broker: Broker, client: Client) -> None:
    api, channel = Api(http_broker), client(http_broker)
    declare(channel)
    fill(channel, 2)
    fill(channel, 2, 20 << 20)
    fill(channel, 2)

    assert joined(raw(api)) == (b"".join(stored(http_broker)), 1, 7)


def test_ranges_that_are_not_there(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel, **{"x-max-length": 20})
    fill(channel, 300)
    first = facts(api)["first_offset"]
    path = f"{QUEUES}/{NAME}/stream/raw"

    gone = api("GET", f"{path}?offset={first - 1}")

    assert (gone.status, gone.json["error"]) == (410, "gone")
    assert gone.json["reason"] == f"Offset {first - 1} is gone, the first one is {first}"
    beyond = api("GET", f"{path}?offset=302")
    assert (beyond.status, beyond.json["error"]) == (416, "range_not_satisfiable")
    assert joined(raw(api, f"?offset={first}&end=301"))[1:] == (first, 301)


class SlowReader:
    """Asks for all records of a stream and reads the answer when told."""

    def __init__(self, api: Api, query: str = "") -> None:
        self._connection = http.client.HTTPConnection(
            api.broker.host, api.broker.http_port, timeout=30
        )
        self._connection.connect()
        self._connection.request("GET", f"{QUEUES}/{NAME}/stream/raw{query}", headers=api.login)
        self._response = self._connection.getresponse()
        assert self._response.status == 200

    def __enter__(self) -> SlowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()

    def rest(self) -> bytes:
        """All of it."""
        return self._response.read()


def test_retention_while_somebody_reads(broker_factory: BrokerFactory, client: Client) -> None:
    """What comes is right and without gaps; where it stops is told, and asking there is 410."""
    broker = broker_factory(http=True)
    api, channel = Api(broker), client(broker)
    declare(channel)
    fill(channel, 400, 100_000)
    records = stored(broker)
    with SlowReader(api) as reader:
        channel.queue_purge(NAME)
        found, first, at = joined(reader.rest())

    assert first == 1
    assert found == b"".join(records[: at - 1])
    assert at < facts(api)["first_offset"]
    assert api("GET", f"{QUEUES}/{NAME}/stream/raw?offset={at}").status == 410


def test_retention_in_the_middle_of_a_record_breaks_off(
    http_broker: Broker, client: Client
) -> None:
    api, channel = Api(http_broker), client(http_broker)
    declare(channel)
    fill(channel, 1, 40 << 20)
    fill(channel, 1, 9 << 20)
    with SlowReader(api) as reader:
        channel.queue_purge(NAME)

        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reader.rest()
    assert "bug in" not in http_broker.log_text()
    assert joined(raw(api, "?offset=2"))[1:] == (2, 3)


def test_a_file_that_cannot_be_read(small: Small, client: Client) -> None:
    """At the beginning it is an error of ours; later the answer has no end."""
    broker = small()
    api, channel = Api(broker), client(broker)
    declare(channel)
    fill(channel, 100)
    directory = queue_directory(broker.data_dir, NAME)
    records = stored(broker)
    broken = api.get(f"{QUEUES}/{NAME}/stream/segments")[1]
    assert broken["sealed"]
    segment_path(directory, broken["id"]).unlink()
    path = f"{QUEUES}/{NAME}/stream/raw"

    answer = api("GET", f"{path}?offset={broken['first_offset']}")

    assert (answer.status, answer.json["error"]) == (500, "internal_server_error")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        api("GET", path)
    assert joined(raw(api, f"?end={broken['first_offset']}"))[0] == b"".join(
        records[: broken["first_offset"] - 1]
    )
    assert "bug in" not in broker.log_text()


def test_a_stream_that_is_deleted_while_somebody_reads(http_broker: Broker, client: Client) -> None:
    api, channel = Api(http_broker), client(http_broker)
    declare(channel)
    fill(channel, 400, 100_000)
    with SlowReader(api) as reader:
        channel.queue_delete(NAME)
        declare(channel)
        fill(channel, 1)

        _, first, at = joined(reader.rest())
    assert first == 1
    assert 1 < at < 401


def test_readers_who_do_not_read_do_not_stop_others(http_broker: Broker, client: Client) -> None:
    api, channel = Api(http_broker), client(http_broker)
    declare(channel)
    fill(channel, 40, 1 << 20)
    records = stored(http_broker)
    with ExitStack() as readers:
        slow = [readers.enter_context(SlowReader(api)) for _ in range(10)]
        memory = api.get("/api/nodes")[0]["mem_used"]

        assert joined(raw(api)) == (b"".join(records), 1, 41)

        assert api.get("/api/nodes")[0]["mem_used"] < memory + (40 << 20)
        assert joined(slow[0].rest()) == (b"".join(records), 1, 41)


def test_reading_goes_on_while_messages_come(http_broker: Broker, client: Client) -> None:
    api, channel = Api(http_broker), client(http_broker)
    declare(channel)
    fill(channel, 50, 1 << 20)
    with SlowReader(api) as reader:
        fill(channel, 50, 100)

        assert joined(reader.rest())[1:] == (1, 51)
    assert joined(raw(api, "?offset=51"))[1:] == (51, 101)


# --- positions ------------------------------------------------------------------------------------


def test_positions_of_consumers(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    path = f"{QUEUES}/{NAME}/stream/consumers"
    declare(channel)
    fill(channel, 20)

    def stored() -> list[tuple[str, int, int]]:
        return [(each["name"], each["offset"], each["lag"]) for each in api.get(path)]

    assert stored() == []
    reader = Reader(channel, NAME, tag="tagged", prefetch=5)
    reader.wait(5)
    channel.basic_ack(reader.tags[2], multiple=True)
    wait_for(lambda: stored() != [], "it is stored")

    assert api("PUT", f"{path}/spark", {"offset": 8}).status == 204

    assert stored() == [("spark", 8, 13), ("tagged", 4, 17)]  # the newest first
    broker.kill()
    broker.start()
    assert ("spark", 8, 13) in stored()
    again = Reader(client(broker), NAME, tag="spark")
    assert again.wait(13)[0] == 8
    assert api("PUT", f"{path}/tagged", {"offset": 21}).status == 204
    assert api("DELETE", f"{path}/spark").status == 409
    again.channel.connection.close()
    wait_for(lambda: api("DELETE", f"{path}/spark").status == 204, "it has gone")
    assert api("DELETE", f"{path}/spark").status == 404
    assert stored() == [("tagged", 21, 0)]
    broker.restart()
    assert stored() == [("tagged", 21, 0)]


def test_positions_that_nobody_can_have(small: Small, client: Client) -> None:
    broker = small()
    api, channel = Api(broker), client(broker)
    path = f"{QUEUES}/{NAME}/stream/consumers"
    declare(channel, **{"x-max-length": 20})
    fill(channel, 200)
    Reader(channel, NAME, tag="here", stream_offset="next", stream_automatic_offset_tracking=True)

    for name, body, status in (
        ("a", {"offset": 202}, 400), ("a", {"offset": -1}, 400), ("a", {}, 400),
        ("a", {"offset": "first"}, 400), ("amq.ctag-x", {"offset": 1}, 400),
        ("x" * 256, {"offset": 1}, 400), ("here", {"offset": 1}, 409),
    ):  # fmt: skip
        answer = api("PUT", f"{path}/{name}", body)
        assert answer.status == status, (name, body, answer)

    assert api("PUT", f"{path}/old", {"offset": 1}).status == 204
    first = facts(api)["first_offset"]
    [position] = api.get(path)
    assert (position["offset"], position["lag"]) == (first, 201 - first)


# --- refusals -------------------------------------------------------------------------------------

PATHS = [
    ("GET", "offset?timestamp=0", None),
    ("GET", "segments", None),
    ("GET", "raw", None),
    ("GET", "consumers", None),
    ("PUT", "consumers/x", {"offset": 1}),
    ("DELETE", "consumers/x", None),
]


@pytest.mark.parametrize(("method", "path", "body"), PATHS, ids=lambda value: str(value))
def test_only_streams_have_it(
    channel: BlockingChannel, broker: Broker, unique: UniqueName, method: str, path: str, body: Any
) -> None:
    name, api = unique("classic"), Api(broker)
    channel.queue_declare(name, durable=True)
    try:
        answer = api(method, f"{QUEUES}/{name}/stream/{path}", body)

        assert answer.status == 400
        assert answer.json["reason"] == f"Queue '{name}' is not a stream"
        assert api(method, f"{QUEUES}/{unique('none')}/stream/{path}", body).status == 404
    finally:
        channel.queue_delete(name)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("offset", "Parameter 'timestamp' is required"),
        ("offset?timestamp=x", "Parameter 'timestamp' must be an integer"),
        ("offset?timestamp=-1", "Parameter 'timestamp' must be between 0 and"),
        ("segments?offset=-1", "Parameter 'offset' must be between 0 and"),
        ("raw?offset=first", "Parameter 'offset' must be an integer"),
        ("raw?offset=-1", "Parameter 'offset' must be between 0 and"),
        ("raw?offset=3&end=2", "Parameter 'end' must not be below 'offset'"),
        ("raw?end=9223372036854775807", "Parameter 'end' must be between 0 and"),
    ],
)
def test_parameters_that_make_no_sense(
    channel: BlockingChannel, broker: Broker, unique: UniqueName, path: str, reason: str
) -> None:
    name, api = unique("stream"), Api(broker)
    declare(channel, name)

    answer = api("GET", f"{QUEUES}/{name}/stream/{path}")

    assert answer.status == 400
    assert answer.json["reason"].startswith(reason)


def test_records_and_positions_take_the_right_to_read(
    tmp_path: Path, broker_factory: BrokerFactory, client: Client
) -> None:
    data_dir = tmp_path / "data"
    users.write(data_dir, PEOPLE)
    broker = broker_factory(data_dir=data_dir, http=True)
    channel = client(broker)
    declare(channel)
    fill(channel, 1)

    for method, path, body in PATHS:
        is_content = path == "raw" or method != "GET"
        for user in PEOPLE:
            answer = Api(broker, user)(method, f"{QUEUES}/{NAME}/stream/{path}", body)
            refused = is_content and user != "reader"
            assert (answer.status == 403) == refused, (user, method, path, answer)


# --- consumers with an end ------------------------------------------------------------------------


def test_a_consumer_is_cancelled_behind_its_last_message(
    channel: BlockingChannel, broker: Broker, unique: UniqueName
) -> None:
    name = unique("stream")
    declare(channel, name)
    fill(channel, 50, name=name)
    order: list[Any] = []
    channel.add_on_cancel_callback(lambda frame: order.append(frame.method.consumer_tag))
    reader = Reader(channel, name, tag="me", prefetch=10, stream_offset=20, stream_end_offset=25,
                    stream_timestamp=True)  # fmt: skip

    found = facts(Api(broker), name)
    wait_for(lambda: channel.connection.process_data_events(0.01) or order != [], "it is over")

    assert [offset for offset, _ in reader.found] == [20, 21, 22, 23, 24]
    assert order == ["me"]
    assert channel.consumer_tags == []
    channel.basic_ack(reader.tags[-1], multiple=True)
    assert Api(broker).get(f"{QUEUES}/{name}")["consumers"] == 0
    times: list[int] = []
    channel.basic_consume(
        name,
        lambda _c, _m, properties, _b: times.append(properties.headers["x-stream-timestamp"]),
        arguments={"x-stream-offset": "first", "x-stream-timestamp": True},
    )
    wait_for(lambda: channel.connection.process_data_events(0.01) or len(times) == 10, "they come")
    assert times[0] == found["first_timestamp"]
    assert times == sorted(times)
