"""The directory of a delayed exchange: made beside the loop, and there when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from lavinmq.vhost import new_queue
from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for

DELAYED = {"x-delayed-exchange": True}
POLICY = "/api/policies/%2F/late"


@pytest.fixture
def broker() -> Iterator[Managed]:
    with managed() as broker:
        yield broker


class Held:
    """A disk that makes directories once it is told to, and says in which thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go = threading.Event()
        self.threads: list[str] = []
        make = new_queue.make_directory

        def held(*args: Any, **how: Any) -> new_queue.Directory:
            self.threads.append(threading.current_thread().name)
            assert self.may_go.wait(30)
            return make(*args, **how)

        monkeypatch.setattr(new_queue, "make_directory", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.may_go.set()


def names(broker: Managed) -> set[str]:
    return set(broker.inner.vhosts["/"].exchanges)


def test_others_are_served_while_a_delayed_exchange_waits_for_its_directory(
    broker: Managed, held: Held
) -> None:
    """It was made, with all that is in it, by the thread that serves clients."""
    over = threading.Event()

    def declare() -> None:
        channel = broker.connect().channel()
        channel.exchange_declare("x", "direct", durable=True, arguments=DELAYED)
        channel.queue_declare("q")
        channel.queue_bind("q", "x", "k")
        headers = {"x-delay": 50}
        channel.basic_publish("x", "k", b"late", pika.BasicProperties(headers=headers))
        over.set()

    declaring = threading.Thread(target=declare)
    declaring.start()
    wait_for(lambda: held.threads, "somebody makes the directory")
    other = broker.connect().channel()
    other.exchange_declare("y", "direct", durable=True)
    assert names(broker) >= {"y"} and "x" not in names(broker)
    assert not over.is_set()

    held.may_go.set()
    declaring.join(30)

    assert over.is_set() and held.threads == ["names"]
    wait_for(lambda: other.queue_declare("q", passive=True).method.message_count == 1, "it comes")
    other.exchange_delete("x")
    other.exchange_declare("x", "direct", durable=True, arguments=DELAYED)
    assert not list(broker.inner.vhosts["/"].directory.glob("*.left-*"))


def test_a_policy_is_answered_once_what_it_delays_has_its_directory(
    broker: Managed, held: Held
) -> None:
    channel = broker.connect().channel()
    channel.exchange_declare("x", "direct", durable=True)
    body = {"pattern": "^x$", "definition": {"delayed-message": True}, "apply-to": "exchanges"}
    putting = threading.Thread(target=lambda: broker.api("PUT", POLICY, body))
    putting.start()
    wait_for(lambda: held.threads, "somebody makes the directory")
    exchange = broker.inner.vhosts["/"].exchanges["x"]
    assert exchange.is_delayed and exchange.waiting is None and putting.is_alive()

    held.may_go.set()
    putting.join(30)

    assert exchange.waiting is not None


@pytest.mark.parametrize("end", ["exchange", "policy"])
def test_a_directory_that_is_not_wanted_any_more_is_removed(
    broker: Managed, held: Held, end: str
) -> None:
    channel = broker.connect().channel()
    channel.exchange_declare("x", "direct", durable=True)
    exchange = broker.inner.vhosts["/"].exchanges["x"]
    body = {"pattern": "^x$", "definition": {"delayed-message": True}, "apply-to": "exchanges"}
    putting = threading.Thread(target=lambda: broker.api("PUT", POLICY, body))
    putting.start()
    wait_for(lambda: held.threads, "somebody makes the directory")
    if end == "exchange":
        channel.exchange_delete("x")
    else:
        deleting = threading.Thread(target=lambda: broker.api("DELETE", POLICY))
        deleting.start()
        wait_for(lambda: not exchange.is_delayed, "the policy is gone")

    held.may_go.set()
    putting.join(30)

    directory = broker.inner.vhosts["/"].directory
    wait_for(lambda: [each.name for each in directory.iterdir() if each.is_dir()] == ["transient"],
             "it is removed")  # fmt: skip
    assert exchange.waiting is None
