"""Dead letters taken back to where they died, on a running broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lavinmq.pipeline.channel import Channel
from lavinmq.pipeline.requeue import Outcome, Plan, Requeue
from lavinmq.spark.connection import ConnectionFailure, connect
from lavinmq.spark.options import ConnectionOptions, Node
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import get, ready_count
from tests.integration.rules_actions import deaths, declare, holds, send, take
from tests.support.broker import Broker

Retake = Callable[..., Outcome]


@pytest.fixture
def dead(channel: BlockingChannel, unique: UniqueName) -> str:
    """A queue of dead letters, which another connection may look into."""
    name = unique("dead")
    channel.queue_declare(name, durable=True)
    return name


@pytest.fixture
def work(channel: BlockingChannel, unique: UniqueName, dead: str) -> str:
    """A queue whose dead letters go to `dead`."""
    return declare_work(channel, unique("work"), dead)


def declare_work(channel: BlockingChannel, name: str, dead: str, **more: Any) -> str:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **more}
    channel.queue_declare(name, durable=True, arguments=arguments)
    return name


@pytest.fixture
def retake(broker: Broker, dead: str) -> Retake:
    """Call it to take back dead letters; keyword arguments are those of a plan."""

    def run(**how: Any) -> Outcome:
        plan = Plan(**({"queue": dead, "user": "guest", "limit": 1000} | how))
        options = ConnectionOptions(nodes=(Node(broker.host, broker.port),))
        with connect(options, patience_s=0) as taking, connect(options, patience_s=0) as giving:
            work = Requeue(Channel(taking), Channel(giving), plan)
            return work.run(lambda done, total: None)

    return run


def reject(channel: BlockingChannel, queue: str, count: int = 1) -> None:
    for _ in range(count):
        channel.basic_reject(take(channel, queue).tag, requeue=False)


def bodies(channel: BlockingChannel, queue: str) -> list[str]:
    """Take all messages of a queue, in order."""

    def each() -> Iterator[str]:
        while message := get(channel, queue, auto_ack=True):
            yield message.body.decode()

    return list(each())


def test_letters_go_back_in_order_and_leave_the_queue(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    sent = [str(number) for number in range(1200)]
    send(channel, work, *sent)
    reject(channel, work, len(sent))
    holds(channel, dead, len(sent))

    outcome = retake(limit=5000)

    assert dict(outcome.destinations) == {f"queue {work}": len(sent)}
    assert not outcome.left
    assert ready_count(channel, dead) == 0
    assert bodies(channel, work) == sent


def test_a_letter_keeps_its_properties_and_gets_a_mark(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    before = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"mine": [1, "x", {"y": True}]},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        app_id="a",
    )
    channel.basic_publish("", work, b"body", before)
    reject(channel, work)
    holds(channel, dead, 1)
    started = int(time.time())

    retake()

    message = take(channel, work)
    after, headers = message.properties, message.properties.headers
    assert message.body == b"body"
    for name in ("content_type", "content_encoding", "delivery_mode", "priority", "reply_to"):
        assert getattr(after, name) == getattr(before, name), name
    for name in ("correlation_id", "message_id", "timestamp", "type", "app_id"):
        assert getattr(after, name) == getattr(before, name), name
    assert headers["mine"] == [1, "x", {"y": True}]
    assert headers["x-requeued-from"] == dead
    assert headers["x-requeued-count"] == 1
    assert headers["x-requeued-at"].timestamp() >= started
    assert [(each["queue"], each["reason"]) for each in deaths(message)] == [(work, "rejected")]


def test_a_letter_that_comes_again_is_counted(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    send(channel, work, "a")
    for _ in range(2):
        reject(channel, work)
        holds(channel, dead, 1)
        retake()
        holds(channel, work, 1)

    assert take(channel, work).properties.headers["x-requeued-count"] == 2


def test_history_is_stripped_on_demand(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    send(channel, work, "a", headers={"mine": 1})
    reject(channel, work)
    holds(channel, dead, 1)

    retake(without_history=True)

    headers = take(channel, work).properties.headers
    assert {key for key in headers if "death" in key} == set()
    assert headers["mine"] == 1


def test_each_letter_goes_to_the_queue_it_died_in(
    channel: BlockingChannel, unique: UniqueName, work: str, dead: str, retake: Retake
) -> None:
    """Two queues and three reasons: rejected, expired, too long."""
    other = declare_work(channel, unique("other"), dead, **{"x-max-length": 1})
    send(channel, work, "rejected")
    reject(channel, work)
    send(channel, work, "expired", expiration="1")
    holds(channel, dead, 2)
    send(channel, other, "pushed out", "kept")
    holds(channel, dead, 3)

    chosen = retake(reasons=("maxlen",), is_dry_run=True)
    outcome = retake(reasons=("rejected", "expired"))

    assert (dict(chosen.destinations), chosen.left["not selected"]) == ({f"queue {other}": 1}, 2)
    assert dict(outcome.destinations) == {f"queue {work}": 2}
    assert bodies(channel, work) == ["rejected", "expired"]
    assert ready_count(channel, dead) == 1


def test_a_dry_run_changes_nothing(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    send(channel, work, "1", "2", "3")
    reject(channel, work, 3)
    holds(channel, dead, 3)

    outcome = retake(is_dry_run=True)

    assert outcome.destinations[f"queue {work}"] == 3
    holds(channel, dead, 3)
    assert ready_count(channel, work) == 0
    assert bodies(channel, dead) == ["1", "2", "3"]


def test_no_more_than_the_limit_is_looked_at(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    send(channel, work, "1", "2", "3")
    reject(channel, work, 3)
    holds(channel, dead, 3)

    outcome = retake(limit=2)

    assert (outcome.looked_at, outcome.destinations[f"queue {work}"]) == (2, 2)
    holds(channel, dead, 1)
    assert bodies(channel, dead) == ["3"]


def test_an_unroutable_letter_stays_and_nothing_overtakes_it(
    channel: BlockingChannel, unique: UniqueName, work: str, dead: str, retake: Retake
) -> None:
    gone = declare_work(channel, unique("gone"), dead)
    send(channel, gone, "lost 1", "lost 2")
    reject(channel, gone, 2)
    channel.queue_delete(gone)
    send(channel, work, "found")
    reject(channel, work)
    holds(channel, dead, 3)

    outcome = retake()

    assert dict(outcome.destinations) == {f"queue {work}": 1}
    assert outcome.left["unroutable"] + outcome.left["behind one that failed"] == 2
    assert outcome.left["unroutable"] >= 1
    assert outcome.first_error == f"312 NO_ROUTE: queue {gone}"
    holds(channel, dead, 2)
    assert bodies(channel, dead) == ["lost 1", "lost 2"]


def test_a_letter_that_a_full_queue_refuses_stays(
    channel: BlockingChannel, unique: UniqueName, dead: str, retake: Retake
) -> None:
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full = declare_work(channel, unique("full"), dead, **limits)
    send(channel, full, "dies")
    reject(channel, full)
    send(channel, full, "fills")
    holds(channel, dead, 1)

    outcome = retake()

    assert outcome.left["refused by the broker"] == 1
    holds(channel, dead, 1)
    assert bodies(channel, full) == ["fills"]


def test_what_never_died_stays_unless_there_is_a_target(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    send(channel, dead, "alive")

    outcome = retake()
    holds(channel, dead, 1)
    taken = retake(target=work)

    assert dict(outcome.left) == {"no origin": 1}
    assert dict(taken.destinations) == {f"queue {work}": 1}
    assert bodies(channel, work) == ["alive"]


def test_letters_go_through_their_exchange_when_asked(
    channel: BlockingChannel, unique: UniqueName, work: str, dead: str, retake: Retake
) -> None:
    """Then other queues of the exchange get them once more, and CC is obeyed again."""
    exchange, tap, copied = unique("exchange"), unique("tap"), unique("copied")
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_bind(work, exchange, "order.*")
    declare(channel, tap)
    declare(channel, copied)
    channel.queue_bind(tap, exchange, "order.#")
    channel.queue_bind(copied, exchange, "copy")
    channel.basic_publish(
        exchange, "order.new", b"a", pika.BasicProperties(headers={"CC": ["copy"]})
    )
    holds(channel, tap, 1)
    holds(channel, copied, 1)
    reject(channel, work)
    holds(channel, dead, 1)

    outcome = retake(to_exchange=True)

    assert dict(outcome.destinations) == {f"exchange {exchange} key order.new": 1}
    holds(channel, work, 1)
    holds(channel, tap, 2)


def test_straight_into_the_queue_sends_no_copies(
    channel: BlockingChannel, unique: UniqueName, work: str, dead: str, retake: Retake
) -> None:
    copied = declare(channel, unique("copied"))
    send(channel, work, "a", headers={"CC": [copied]})
    holds(channel, copied, 1)
    reject(channel, work)
    holds(channel, dead, 1)

    retake()

    holds(channel, work, 1)
    assert ready_count(channel, copied) == 1
    assert "CC" not in take(channel, work).properties.headers


def test_a_missing_queue_is_one_line(broker: Broker, retake: Retake) -> None:
    with pytest.raises(ConnectionFailure, match=r"^[^\n]*404[^\n]*'no-such'[^\n]*$"):
        retake(queue="no-such")


def test_an_empty_queue_is_done_at_once(retake: Retake) -> None:
    assert retake() == Outcome()


def test_a_large_letter_comes_back_whole(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    """A body of several frames, and one that fills its frame to the last byte."""
    large = ["x" * 300_000, "y" * (131_072 - 8), ""]
    send(channel, work, *large)
    reject(channel, work, 3)
    holds(channel, dead, 3)

    retake()

    assert bodies(channel, work) == large


def test_much_more_than_the_limit_in_large_letters_is_no_trouble(
    channel: BlockingChannel, work: str, dead: str, retake: Retake
) -> None:
    """Each ack lets the broker send another letter ahead: 40 MB of them are passed over."""
    large = [f"{number:03}" + "x" * 400_000 for number in range(200)]
    send(channel, dead, *large)
    holds(channel, dead, 200)

    outcome = retake(target=work, limit=100)

    assert outcome.destinations[f"queue {work}"] == 100
    holds(channel, dead, 100)
    assert [body[:3] for body in bodies(channel, work)] == [f"{n:03}" for n in range(100)]
    assert [body[:3] for body in bodies(channel, dead)] == [f"{n:03}" for n in range(100, 200)]
