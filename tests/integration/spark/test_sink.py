"""The sink of Spark's format against a running broker, without Spark: batches in, messages out."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from lavinmq.spark import connection as connection_module  # noqa: E402
from lavinmq.spark.options import SinkOptions  # noqa: E402
from lavinmq.spark.publishing import PublishError  # noqa: E402
from lavinmq.spark.sink import BatchWriter, Published, publish_rows  # noqa: E402
from tests.support.broker import Broker  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

MAP = pa.map_(pa.string(), pa.string())
PLENTY = 1 << 60


def options(broker: Broker, **given: str) -> SinkOptions:
    return SinkOptions.parse({"url": broker.uri, **given})


def bodies(start: int, end: int) -> Any:
    """A batch of the numbers from start to end as bodies, and as ids."""
    texts = [str(n) for n in range(start, end)]
    return pa.record_batch({"body": pa.array(texts), "id": pa.array(texts)})


def publish(found: SinkOptions, *batches: Any) -> Published:
    return BatchWriter(found).write(iter(batches))


class Client:
    """pika, to declare and to look at what has arrived."""

    def __init__(self, broker: Broker) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
        self.channel = self.connection.channel()

    def declare(self, queue: str, **arguments: Any) -> str:
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.channel.queue_declare(queue, durable=True, arguments=named)
        return queue

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def take(self, queue: str) -> list[tuple[Any, Any, bytes]]:
        """All messages of a queue: method, properties, body."""
        found = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((method, properties, body))

    def bodies(self, queue: str) -> list[str]:
        return [body.decode() for _, _, body in self.take(queue)]

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.connection.close()


Clients = Callable[[Broker], Client]


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Makes clients, and closes them whatever became of their brokers."""
    with contextlib.ExitStack() as stack:

        def connect(broker: Broker) -> Client:
            client = Client(broker)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def client(broker: Broker, clients: Clients) -> Client:
    return clients(broker)


@pytest.fixture
def queue(client: Client, request: pytest.FixtureRequest) -> str:
    return client.declare(request.node.name[:200])


def test_every_property_arrives(broker: Broker, client: Client, queue: str) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    texts = (
        *("content_type", "content_encoding", "correlation_id", "reply_to"),
        *("message_id", "type", "app_id"),
    )
    batch = pa.record_batch(
        {
            "body": pa.array([b"\0\xff", None], pa.binary()),
            "exchange": pa.array(["", None]),
            "routing_key": pa.array([queue, queue]),
            **{name: pa.array([f"{name} é", None]) for name in texts},
            "user_id": pa.array(["guest", None]),
            "expiration": pa.array(["3600000", None]),
            "delivery_mode": pa.array([1, None], pa.int8()),
            "priority": pa.array([7, None], pa.int16()),
            "message_timestamp": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([{"a": "b", "v": None}, None], MAP),
        }
    )

    assert publish(options(broker), batch) == Published(2, 2)

    (_, full, body), (_, empty, nothing) = client.take(queue)
    assert {name: getattr(full, name) for name in texts} == {name: f"{name} é" for name in texts}
    assert (full.user_id, full.expiration, full.priority) == ("guest", "3600000", 7)
    assert (full.delivery_mode, full.headers) == (1, {"a": "b", "v": None})
    assert full.timestamp == int(moment.timestamp())
    assert (body, nothing) == (b"\0\xff", b"")
    assert all(value is None for name, value in vars(empty).items() if name != "cluster_id")


def test_large_bodies_and_many_batches_arrive_in_order(
    broker: Broker, client: Client, queue: str
) -> None:
    sizes = [0, 131_064, 131_065, 3_000_000, 1]
    large = pa.record_batch({"body": pa.array([b"x" * size for size in sizes])})
    found = options(broker, routingKey=queue, maxInFlight="7")

    assert publish(found, large, bodies(0, 0), bodies(0, 500)) == Published(505, 505)

    arrived = [body for _, _, body in client.take(queue)]
    assert [len(body) for body in arrived[:5]] == sizes
    assert [int(body) for body in arrived[5:]] == list(range(500))


def test_typed_headers_and_the_origin_arrive(broker: Broker, client: Client, queue: str) -> None:
    batch = pa.record_batch(
        {
            "body": pa.array([b"x"]),
            "headers_json": pa.array(['{"n":{"l":5},"f":{"F":{"t":{"t":true}}}}']),
            "queue": pa.array(["orders"]),
            "offset": pa.array([41]),
        }
    )

    publish(options(broker, routingKey=queue, keepOrigin="true"), batch)

    ((_, properties, _),) = client.take(queue)
    origin = {"x-origin-queue": "orders", "x-origin-offset": 41}
    assert properties.headers == {"n": 5, "f": {"t": True}, **origin}


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_the_queue_is_declared_when_that_is_asked_for(
    broker: Broker, client: Client, kind: str
) -> None:
    name = f"declared-{kind}"

    publish(options(broker, routingKey=name, declare=kind), bodies(0, 3))
    publish(options(broker, routingKey=name, declare=kind))

    assert client.count(name) == 3
    client.channel.queue_declare(
        name, durable=True, arguments={} if kind == "classic" else {"x-queue-type": "stream"}
    )


def test_nothing_connects_for_no_rows(broker: Broker) -> None:
    found = SinkOptions.parse({"url": "amqp://localhost:1", "routingKey": "q"})

    assert publish(found, bodies(0, 0)) == Published(0, 0)


def test_messages_that_no_queue_wants_fail_the_task(broker: Broker) -> None:
    keys = [f"nobody-{n}" for n in range(10)]
    batch = pa.record_batch({"body": pa.array(keys), "routing_key": pa.array(keys)})

    with pytest.raises(PublishError, match=r"no queue wanted 10 \(mandatory\)") as caught:
        publish(options(broker, mandatory="true"), batch)

    assert "of 10 messages" in str(caught.value)
    assert str(caught.value).count("(default exchange) / 'nobody-") == 3
    assert "'nobody-0'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{"confirm": "false"}, {"transactional": "true"}])
def test_returns_are_seen_without_confirms(broker: Broker, given: dict[str, str]) -> None:
    with pytest.raises(PublishError, match=r"no queue wanted 20 \(mandatory\)"):
        publish(options(broker, routingKey="nobody", mandatory="true", **given), bodies(0, 20))


def test_many_returns_never_wait_for_messages_nor_messages_for_returns(broker: Broker) -> None:
    """The broker writes as much as it reads: with both buffers full somebody has to give way."""
    body = b"x" * 4000
    batch = pa.record_batch({"body": pa.array([body] * 10_000)})

    with pytest.raises(PublishError, match="no queue wanted"):
        publish(options(broker, routingKey="nobody", mandatory="true"), batch)


def test_refused_messages_fail_the_task_with_counts(broker: Broker, client: Client) -> None:
    queue = client.declare("short", x_max_length=5, x_overflow="reject-publish")

    with pytest.raises(PublishError, match=r"of 100 messages the broker refused 95") as caught:
        publish(options_ignoring(options(broker, routingKey=queue)), bodies(0, 100))

    assert "first row 5; 5 are confirmed" in str(caught.value)
    assert client.bodies(queue) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("given", [{}, {"confirm": "false"}, {"transactional": "true"}])
def test_an_unknown_exchange_is_one_line(broker: Broker, given: dict[str, str]) -> None:
    with pytest.raises(PublishError, match="404") as caught:
        publish(options(broker, exchange="nowhere", **given), bodies(0, 1000))

    assert "exchange 'nowhere'" in str(caught.value)
    assert "rows were sent" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_user_id_of_somebody_else_is_one_line(broker: Broker, queue: str) -> None:
    batch = pa.record_batch({"body": pa.array(["x"]), "user_id": pa.array(["somebody"])})

    with pytest.raises(PublishError, match="406"):
        publish(options(broker, routingKey=queue), batch)


def test_without_confirms_every_message_is_there_at_the_end(
    broker: Broker, client: Client, queue: str
) -> None:
    found = options(broker, routingKey=queue, confirm="false")

    assert publish(found, bodies(0, 5000)) == Published(5000, 0)

    assert client.count(queue) == 5000


def test_a_transaction_leaves_nothing_of_a_task_that_fails(
    broker: Broker, client: Client, queue: str
) -> None:
    found = options(broker, routingKey=queue, transactional="true")

    def failing() -> Iterator[Any]:
        yield bodies(0, 3000)
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError, match="the task fails"):
        BatchWriter(found).write(failing())
    assert client.count(queue) == 0

    publish(found, bodies(0, 3000))
    assert client.count(queue) == 3000


def test_a_row_that_is_no_message_fails_the_task(broker: Broker, queue: str) -> None:
    keys = pa.array([queue, "k" * 256])
    batch = pa.record_batch({"body": pa.array(["a", "b"]), "routing_key": keys})

    with pytest.raises(ValueError, match="row 1 of the task: routing_key has 256 bytes"):
        publish(options(broker), batch)


def test_a_task_that_fails_and_comes_again_repeats_what_was_confirmed(
    broker: Broker, client: Client, queue: str
) -> None:
    found = options(broker, routingKey=queue, maxInFlight="1")
    writer = BatchWriter(found)

    def failing() -> Iterator[Any]:
        yield bodies(0, 40)
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        writer.write(failing())
    # With a window of one, all but the last are confirmed; that one is on its way.
    wait_for(lambda: client.count(queue) == 40, "40 messages")
    writer.write(iter([bodies(0, 100)]))

    counted = Counter(client.bodies(queue))
    assert counted == {str(n): 2 if n < 40 else 1 for n in range(100)}


@pytest.mark.parametrize("dedup", [{"idColumn": "id"}, {"dedup": "row"}])
def test_ids_leave_one_message_of_each_row(
    broker: Broker, client: Client, dedup: dict[str, str]
) -> None:
    given = {"x-message-deduplication": True, "x-cache-size": 1000}
    name = f"unique-{'-'.join(dedup)}"
    client.channel.queue_declare(name, durable=True, arguments=given)
    extra = {} if "idColumn" in dedup else {"ignoreExtraColumns": "true"}
    writer = BatchWriter(options(broker, routingKey=name, **dedup, **extra))

    def failing() -> Iterator[Any]:
        yield bodies(0, 40)
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        writer.write(failing())
    writer.write(iter([bodies(0, 100)]))

    assert sorted(client.bodies(name), key=int) == [str(n) for n in range(100)]


def kill_after(broker: Broker, rows: int) -> Iterator[Any]:
    """Batches of 100 until so many rows; then the broker dies, and there is one more batch."""
    for start in range(0, rows, 100):
        yield bodies(start, start + 100)
    broker.kill()
    yield bodies(rows, rows + 100)


@pytest.mark.parametrize("is_deduplicated", [False, True])
def test_a_broker_that_dies_is_one_line_and_another_attempt_completes(
    broker_factory: Callable[..., Broker], clients: Clients, is_deduplicated: bool
) -> None:
    broker = broker_factory()
    client = clients(broker)
    arguments = {"x-message-deduplication": True, "x-cache-size": 10_000}
    client.channel.queue_declare(
        "q", durable=True, arguments=arguments if is_deduplicated else None
    )
    given = {"idColumn": "id"} if is_deduplicated else {"ignoreExtraColumns": "true"}
    found = options(broker, routingKey="q", maxInFlight="150", **given)

    with pytest.raises(PublishError, match=r"rows were sent, \d+ of them are confirmed") as caught:
        BatchWriter(found).write(kill_after(broker, 2000))
    confirmed = int(re.findall(r"(\d+) of them", str(caught.value))[0])
    broker.start()
    BatchWriter(found).write(iter([bodies(0, 2100)]))

    counted = Counter(clients(broker).bodies("q"))
    assert sorted(counted, key=int) == [str(n) for n in range(2100)]
    twice = {int(text) for text, count in counted.items() if count > 1}
    assert max(counted.values()) <= 2
    assert "\n" not in str(caught.value)
    assert confirmed >= 1850  # all but the window
    if is_deduplicated:
        # Keys are written behind their messages: the broker died with some it had not confirmed.
        assert not twice & set(range(confirmed))
    else:
        # What was confirmed is there twice; what was on its way may be.
        assert set(range(confirmed)) <= twice <= set(range(2000))


def test_a_broker_that_falls_silent_ends_the_wait(
    broker_factory: Callable[..., Broker],
) -> None:
    broker = broker_factory()
    found = options(broker, routingKey="q", declare="classic", confirmTimeout="1s")

    def stopping() -> Iterator[Any]:
        yield bodies(0, 10)
        os.kill(broker.pid, signal.SIGSTOP)
        yield bodies(10, 20)

    try:
        with pytest.raises(PublishError, match=r"no answer to messages for 1 s") as caught:
            BatchWriter(options_ignoring(found)).write(stopping())
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert re.search(r"20 rows were sent, \d+ of them are confirmed$", str(caught.value))


def options_ignoring(found: SinkOptions) -> SinkOptions:
    """The columns of ids are no part of a message."""
    import dataclasses

    return dataclasses.replace(found, ignore_extra_columns=True)


def test_a_blocked_sink_waits_keeps_its_heartbeat_and_goes_on(
    broker_factory: Callable[..., Broker],
    clients: Clients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connection_module, "HEARTBEAT_S", 1)
    ini = tmp_path / "low.ini"
    ini.write_text("[main]\nstats_interval = 50\n")
    broker = broker_factory(["--config", str(ini)])
    clients(broker).declare("q")
    # More than the buffers of two sockets hold: the broker stops to read, the sink to write.
    batch = pa.record_batch({"body": pa.array([b"x" * 10_000] * 3000)})
    results: list[object] = []

    def run() -> None:
        try:
            results.append(publish(options(broker, routingKey="q"), *[batch] * 2))
        except PublishError as error:
            results.append(error)

    demand_free(broker, ini, PLENTY)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: "takes no messages now" in caplog.text, "connection.blocked")
        # Four heartbeats: the broker would have hung up after two without a sign.
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() > begun + 4 or not thread.is_alive(), "a while", 20)
        assert thread.is_alive()
        assert results == []
    finally:
        demand_free(broker, ini, 0)
        thread.join(60)
    assert results == [Published(6000, 6000)]
    assert "takes messages again" in caplog.text
    assert clients(broker).count("q") == 6000


def demand_free(broker: Broker, ini: Path, size: int) -> None:
    """Change the watermark while the broker runs."""
    ini.write_text(f"[main]\nstats_interval = 50\nfree_disk_min = {size}\n")
    before = broker.log_text().count("Configuration reloaded")
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(lambda: broker.log_text().count("Configuration reloaded") > before, "no reload")


def test_rows_of_a_task_without_spark_are_published(broker: Broker, queue: str) -> None:
    found = options_ignoring(options(broker, routingKey=queue, dedup="row"))

    assert publish_rows(found, iter([bodies(0, 10)]), lambda _: "q/1/0") == Published(10, 10)
