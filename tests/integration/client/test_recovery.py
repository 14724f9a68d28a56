"""A client behind a proxy that fails: nothing that was confirmed is missing, all comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lavinmq.client import Client, ConnectionState, DropReason, Message
from lavinmq.client.core import Member
from lavinmq.client.errors import (
    AuthenticationError,
    ClientConnectionError,
    ClosedError,
    Error,
    NotFound,
    PreconditionFailed,
)
from lavinmq.client.link import Link
from lavinmq.client.together import Together
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.client_frames import method
from tests.support.fault_proxy import FaultProxy, Frame, packed
from tests.support.waiting import wait_for

QUICK: dict[str, Any] = {
    "reconnect_initial_delay": 0.02,
    "reconnect_max_delay": 0.2,
    "health_interval": 0.2,
}

DEADLINE_S = 120.0


def drained(broker: Broker, queue: str) -> list[bytes]:
    """All bodies of a queue, in order."""
    with Client(broker.uri) as client:
        n = client.queue(queue, passive=True).message_count
        found: list[bytes] = []
        with client.consumer(queue, prefetch=1000, declare=False) as consumer:
            while len(found) < n:
                message = consumer.get(5)
                assert message is not None, f"{len(found)} of {n} came"
                message.ack()
                found.append(message.body)
        return found


def once(bodies: list[bytes]) -> list[bytes]:
    """Without second copies."""
    return list(dict.fromkeys(bodies))


def test_confirmed_messages_are_there_whatever_is_cut(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    """The checker: confirmed ⊆ delivered, one outcome for each, in order."""
    outcomes: dict[bytes, list[str]] = {}
    randomness = random.Random(5)
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue, max_in_flight=50, buffer_size=100)
        producer.on_confirm(lambda m: outcomes.setdefault(m.body, []).append("confirmed"))
        producer.on_drop(lambda m, reason: outcomes.setdefault(m.body, []).append("dropped"))
        receipts = {}
        for n in range(3000):
            body = b"%d" % n
            receipts[body] = producer.publish(body)
            if n % 300 == 150:
                proxy.cut()
            if n % 300 == 299:
                before = proxy.connections
                proxy.cut_within(randomness.randrange(1, 400))
                wait_for(lambda: proxy.connections > before or not producer.count, "cut")  # noqa: B023
        producer.flush(60)
        metrics = client.metrics()

    assert all(each.status == "confirmed" for each in receipts.values())
    assert outcomes == {body: ["confirmed"] for body in receipts}
    assert once(drained(broker, queue)) == list(receipts)
    assert metrics.reconnects > 3 and metrics.published == metrics.confirmed == 3000


def test_short_connections_that_carry_something_are_not_waited_for_longer_each_time(
    proxy: FaultProxy, queue: str
) -> None:
    attempts: list[int] = []
    with Client(proxy.url, **{**QUICK, "reconnect_max_delay": 60.0}) as client:
        client.on_reconnect_attempt(lambda attempt, delay: attempts.append(attempt))
        producer = client.producer(queue, max_in_flight=1)
        for n in range(12):  # the twelfth pause would take 40 s
            assert producer.publish(b"%d" % n).result(10) == "confirmed"
            before = client.metrics().reconnects
            proxy.cut()
            wait_for(lambda: client.metrics().reconnects > before, "reconnected", 10)  # noqa: B023
    assert attempts == [1] * 12


def test_stable_ids_make_it_exactly_once(proxy: FaultProxy, broker: Broker, queue: str) -> None:
    with Client(proxy.url, **QUICK) as client:
        arguments = {
            "x-message-deduplication": True,
            "x-cache-size": 100_000,
            "x-cache-ttl": 600_000,
        }
        client.queue(queue, arguments=arguments)
        producer = client.producer(queue, max_in_flight=100, buffer_size=200, deduplicate=True)
        for n in range(2000):
            producer.publish(b"%d" % n)
            if n % 200 == 100:
                before = proxy.connections
                proxy.cut_within(30)
                wait_for(lambda: proxy.connections > before or not producer.count, "cut")  # noqa: B023
        producer.flush(60)

        assert client.metrics().resent > 0
    assert drained(broker, queue) == [b"%d" % n for n in range(2000)]


def test_what_is_published_while_the_broker_is_away_arrives(
    own_broker: Broker,
) -> None:
    with Client(own_broker.uri, **QUICK) as client:
        producer = client.producer("q")
        producer.publish(b"before").result(5)
        own_broker.kill()
        wait_for(lambda: not client.connected, "the loss is seen")
        receipt = producer.publish(b"while")
        assert receipt.status == "buffered"
        own_broker.start()

        assert receipt.result(20) == "confirmed"
    assert drained(own_broker, "q") == [b"before", b"while"]


def test_a_consumer_comes_back_after_a_lost_connection(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(proxy.url, **QUICK) as client, Client(broker.uri) as other:
        producer = other.producer(queue)
        consumer = client.consumer(queue)
        found = []
        for n in range(5):
            producer.publish(b"%d" % n).result(5)
            message = consumer.get(10)
            assert message is not None
            found.append(message.body)
            message.ack()
            wait_for(lambda: consumer.unacked == 0, "settled")
            client.queue(queue, passive=True)  # is answered behind the ack
            proxy.cut()
        consumer.close()

    assert once(found) == [b"%d" % n for n in range(5)]


def test_what_was_not_taken_before_a_loss_comes_once(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    """A slow program behind a bad network: it holds one copy of each, not one for each loss."""
    with Client(broker.uri) as other:
        other.producer(queue).publish_batch([b"%d" % n for n in range(20)]).result(5)
    with Client(proxy.url, **QUICK) as client:
        consumer = client.consumer(queue)
        for n in range(1, 6):
            wait_for(lambda: consumer.unacked == 20, "all have come")
            proxy.cut()
            wait_for(lambda n=n: client.metrics().reconnects == n, "reconnected")  # type: ignore[misc]
        found: list[bytes] = []
        while len(found) < 20 and (message := consumer.get(10)):
            found.append(message.body)
            assert message.ack()
        left = consumer.get(0.2)

    assert (found, left) == ([b"%d" % n for n in range(20)], None)


def test_a_handler_is_not_given_what_will_come_again(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(broker.uri) as other:
        other.producer(queue).publish_batch([b"%d" % n for n in range(20)]).result(5)
    handled: list[bytes] = []
    begun, going_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        handled.append(message.body)
        begun.set()
        assert going_on.wait(10)

    with Client(proxy.url, **QUICK) as client:
        consumer = client.consumer(queue)
        consumer.subscribe(handle, partition_by=lambda message: 0)
        assert begun.wait(10)
        wait_for(lambda: consumer.unacked == 20, "all have come")
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")
        going_on.set()
        wait_for(lambda: len(handled) >= 21 and not consumer.unacked, "all were handled")

    # The first was being handled when the connection was lost.
    assert handled == [b"0", *(b"%d" % n for n in range(20))]


def test_old_tags_are_not_acked_on_the_next_channel(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(proxy.url, **QUICK) as client:
        client.producer(queue).publish_batch([b"a", b"b"]).result(5)
        consumer = client.consumer(queue)
        old = [consumer.get(5), consumer.get(5)]
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")
        again = [consumer.get(5), consumer.get(5)]
        for message in old:
            assert message is not None and not message.ack()

        assert [m.body for m in again if m] == [b"a", b"b"]
        assert all(m.redelivered for m in again if m)
        assert client.metrics().stale_acks == 2
        assert consumer.unacked == 2 and consumer.subscribed


def test_a_consumer_comes_back_when_its_queue_was_deleted(broker: Broker, queue: str) -> None:
    cancelled: list[Exception] = []
    with Client(broker.uri) as client, Client(broker.uri) as other:
        consumer = client.consumer(queue)
        consumer.on_cancel(cancelled.append)
        other.delete_queue(queue)
        wait_for(lambda: consumer.resubscriptions == 1, "subscribed again")
        other.producer(queue).publish(b"x").result(5)

        message = consumer.get(5)
        assert message is not None and message.body == b"x"
        assert len(cancelled) == 1


def test_a_consumer_comes_back_when_its_channel_was_closed(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(proxy.url, **QUICK) as client:
        consumer = client.consumer(queue)
        number = consumer.tracker.channel
        client.run(_say(proxy, method(number, "channel.close", 541, "INTERNAL_ERROR", 0, 0)))
        # The broker's own channel is still open: opening its number again ends the connection,
        # which is one more fault to come back from.
        wait_for(lambda: consumer.subscribed and consumer.tracker.incarnation > 2, "subscribed")
        client.producer(queue).publish(b"x").result(10)

        message = consumer.get(10)
        assert message is not None and message.body == b"x"


async def _say(proxy: FaultProxy, data: bytes) -> None:
    proxy.say(data)


def test_topology_is_declared_again_exactly(own_broker: Broker) -> None:
    renamed: list[tuple[str, str]] = []
    with Client(own_broker.uri, **QUICK) as client:
        client.on_queue_renamed(lambda old, new: renamed.append((old, new)))
        client.exchange("e", "topic", durable=False)
        client.queue("transient", durable=False, auto_delete=False)
        mine = client.queue("", durable=False, exclusive=True).name
        client.bind("transient", "e", "a.#")
        client.bind(mine, "e", "b.#")
        consumer = client.consumer(mine, declare=False)
        own_broker.kill()
        own_broker.start()
        wait_for(lambda: bool(renamed) and client.connected, "restored", 20)
        producer = client.producer(exchange="e", routing_key="a.x")
        producer.publish(b"a").result(5)
        producer.publish(b"b", routing_key="b.x").result(5)

        message = consumer.get(5)
        assert message is not None and message.body == b"b"
        found = client.get("transient")
        assert found is not None and found.body == b"a"
    assert renamed[0][0] == mine and renamed[0][1] != mine


def test_a_mismatch_is_reported_and_nothing_is_forced(proxy: FaultProxy, broker: Broker) -> None:
    """It is tried again, unless the program deletes the queue: then it stays away."""
    failed: list[tuple[str, Exception]] = []
    names = ("mismatch-gone", "mismatch-kept")
    with Client(proxy.url, **QUICK) as client, Client(broker.uri) as other:
        client.on_recovery_failed(lambda what, error: failed.append((what.name, error)))
        for name in names:
            client.queue(name, durable=False)
        proxy.is_refusing = True
        proxy.cut()
        for name in names:
            other.delete_queue(name)
            other.queue(name, durable=True)
        proxy.is_refusing = False
        wait_for(lambda: {name for name, _ in failed} == set(names), "both are reported", 20)
        assert all(isinstance(error, PreconditionFailed) for _, error in failed)

        client.delete_queue("mismatch-gone")
        count = len(failed)
        wait_for(lambda: len(failed) >= count + 5, "what is left is tried again", 20)
        with pytest.raises(NotFound):
            other.queue("mismatch-gone", passive=True)
        other.delete_queue("mismatch-kept")
        wait_for(lambda: _is_there(other, "mismatch-kept"), "what is left is there again", 20)
        client.delete_queue("mismatch-kept")


def _is_there(client: Client, queue: str) -> bool:
    try:
        client.queue(queue, passive=True)
    except NotFound:
        return False
    return True


def test_a_named_queue_that_is_refused_at_first_has_its_bindings_and_consumer_later(
    http_broker: Broker,
) -> None:
    failed: list[str] = []
    api = Api(http_broker)
    with (
        FaultProxy(http_broker.host, http_broker.port) as proxy,
        Client(proxy.url, **QUICK) as client,
    ):
        client.on_recovery_failed(lambda what, error: failed.append(type(what).__name__))
        mine = client.queue("", durable=False, exclusive=True).name
        client.bind(mine, "amq.topic", "a.#")
        client.bind(mine, "amq.headers", "", {"x-match": "all", "list": [1, 2]})
        consumer = client.consumer(mine, declare=False)
        proxy.is_refusing = True
        proxy.cut()
        assert api("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 0}).status == 204
        proxy.is_refusing = False
        wait_for(lambda: {"QueueSpec", "BindingSpec"} <= set(failed), "they are refused", 20)
        assert api("DELETE", "/api/vhost-limits/%2F/max-queues").status == 204
        wait_for(lambda: consumer.queue != mine and consumer.subscribed, "it is back", 20)
        producer = client.producer(exchange="amq.topic", routing_key="a.x", mandatory=True)
        wait_for(lambda: producer.publish(b"x").result(10) == "confirmed", "it is bound", 20)

        message = consumer.get(10)
        assert message is not None and message.body == b"x"
        (shown,) = api.get("/api/queues")
        assert (shown["name"], shown["consumers"]) == (consumer.queue, 1)
        bound = {"", "amq.topic", "amq.headers"}
        path = f"/api/queues/%2F/{consumer.queue}/bindings"
        wait_for(lambda: {each["source"] for each in api.get(path)} == bound, "all is bound", 20)


def test_a_consumer_that_cannot_come_back_for_long_subscribes_once(broker: Broker) -> None:
    """Each attempt ends its channel, and so asks for another one, as whoever attempts does."""
    errors: list[Exception] = []
    options = {**QUICK, "reconnect_max_delay": 0.05}
    with Client(broker.uri, **options) as client, Client(broker.uri) as other:
        client.queue("away-for-long")
        consumer = client.consumer("away-for-long", declare=False)
        consumer.on_error(errors.append)
        other.delete_queue("away-for-long")
        wait_for(lambda: len(errors) > 20, "it has tried often", 20)
        assert len(client._together.first._tasks) == 1
        other.queue("away-for-long")
        wait_for(lambda: consumer.resubscriptions == 1, "subscribed again", 20)
        wait_for(lambda: not client._together.first._tasks, "nobody tries any more", 20)

        assert other.queue("away-for-long", passive=True).consumer_count == 1
        other.delete_queue("away-for-long")


class _Slow(Member):
    """Takes its time to take up work."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    async def join(self, link: Link) -> None:
        self.has_begun.set()
        while not self.may_end.is_set():
            if link.lost is not None:
                raise link.lost
            await asyncio.sleep(0.01)

    def leave(self, cause: Exception) -> None: ...

    def finish(self, cause: Exception) -> None: ...

    def tick(self, is_blocked: bool) -> None: ...

    @property
    def done(self) -> int:
        return 0

    async def closing(self, flush: bool = True) -> None: ...


def test_who_begins_while_others_are_restored_takes_part(proxy: FaultProxy, queue: str) -> None:
    slow = _Slow()
    with Client(proxy.url, **QUICK) as client:
        client._together.first.members = {slow: None}
        proxy.cut()
        assert slow.has_begun.wait(20)
        producer = client.producer(queue)
        receipt = producer.publish(b"x")
        slow.may_end.set()

        assert receipt.result(20) == "confirmed"


def test_what_was_sent_while_others_joined_is_not_taken_for_confirmed(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    """The connection is lost before all have joined; what it carried is sent again."""
    slow = _Slow()
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue)
        assert producer.publish(b"0").result(20) == "confirmed"
        client._together.first.members[slow] = None
        proxy.cut()
        assert slow.has_begun.wait(20)
        proxy.stall("up")
        receipts = [producer.publish(b"%d" % n) for n in range(1, 4)]
        wait_for(lambda: producer.in_flight == 3, "they are sent", 20)
        slow.has_begun.clear()
        proxy.cut()
        proxy.flow()
        assert slow.has_begun.wait(20)
        slow.may_end.set()
        receipts += [producer.publish(b"%d" % n) for n in range(4, 7)]

        assert {each.result(20) for each in receipts} == {"confirmed"}
    assert once(drained(broker, queue)) == [b"%d" % n for n in range(7)]


def _hold_openings(proxy: FaultProxy) -> list[Frame]:
    """Keep the broker's answers to `channel.open` from now on."""
    held: list[Frame] = []

    def judge(frame: Frame) -> list[Frame]:
        if frame[0] == 1 and frame[2][:4] == b"\x00\x14\x00\x0b":
            held.append(frame)
            return []
        return [frame]

    proxy.judge = judge
    return held


def _pass_on(proxy: FaultProxy, held: list[Frame]) -> None:
    """Let them come, and all that follows."""
    proxy.judge = lambda frame: [frame]
    for frame in held:
        proxy.say(packed(frame))


def test_a_consumer_that_is_closed_while_it_comes_back_stays_away(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    errors: list[Exception] = []
    with Client(proxy.url, **QUICK) as client, Client(broker.uri) as other:
        consumer = client.consumer(queue)
        client.on_error(errors.append)
        held = _hold_openings(proxy)
        other.delete_queue(queue)
        wait_for(lambda: bool(held), "it opens a channel", 20)
        consumer.close()
        _pass_on(proxy, held)
        wait_for(lambda: not client._together.first._tasks, "it has given up", 20)

        assert other.queue(queue).consumer_count == 0
        assert errors == []


def test_a_producer_that_is_closed_leaves_no_channel(http_broker: Broker) -> None:
    """Whether it waits for its confirms in vain, or is just coming back."""
    api = Api(http_broker)
    with (
        FaultProxy(http_broker.host, http_broker.port) as ours,
        Client(ours.url, **QUICK, close_timeout=0.2) as client,
    ):
        client.queue("q")
        kept = client.producer("q")
        assert kept.publish(b"x").result(20) == "confirmed"
        unheard = client.producer("q")
        ours.stall("down")
        receipt = unheard.publish(b"x")
        unheard.close()
        assert receipt.status == "dropped"
        ours.flow()
        before = len(api.get("/api/channels"))
        wait_for(lambda: len(api.get("/api/channels")) == 2, f"{before} are left", 20)

        held = _hold_openings(ours)
        number = kept._chan.number if kept._chan is not None else 0
        client.run(_say(ours, method(number, "channel.close", 541, "INTERNAL_ERROR", 0, 0)))
        wait_for(lambda: bool(held), "it opens a channel", 20)
        kept.close()
        _pass_on(ours, held)
        wait_for(lambda: not client._together.first._tasks, "it has given up", 20)
        assert client.metrics().reconnects == 0
        wait_for(lambda: len(api.get("/api/channels")) <= 2, "no channel is left", 20)


def test_two_threads_may_use_it_first(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes before the loop has begun to connect, and waits as well."""
    has_begun, may_connect = threading.Event(), threading.Event()
    start = Together.start

    async def late(self: Together) -> None:
        has_begun.set()
        await asyncio.to_thread(may_connect.wait, 20)
        await start(self)

    monkeypatch.setattr(Together, "start", late)
    with ThreadPoolExecutor(2) as pool, contextlib.closing(Client(broker.uri)) as client:
        first = pool.submit(client.start)
        assert has_begun.wait(20)
        second = pool.submit(client.queue, queue)
        wait_for(lambda: second.done() or client._together.first._waiting is not None, "it waits")
        may_connect.set()

        assert first.result(20) is client
        assert second.result(20).name == queue


def test_states_come_in_order_and_from_one_thread(proxy: FaultProxy, queue: str) -> None:
    steps: list[tuple[str, str]] = []
    threads: set[str] = set()

    def note(old: ConnectionState, new: ConnectionState, cause: Exception | None) -> None:
        steps.append((old.value, new.value))
        threads.add(threading.current_thread().name)

    client = Client(proxy.url, **QUICK)
    client.on_state_change(note)
    with client:
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")

    assert steps == [
        ("idle", "connecting"),
        ("connecting", "connected"),
        ("connected", "reconnecting"),
        ("reconnecting", "connected"),
        ("connected", "closing"),
        ("closing", "closed"),
    ]
    assert threads == {"lavinmq-callbacks"}


def test_a_loss_is_seen_by_event_at_once(proxy: FaultProxy) -> None:
    """No time is asserted; what is, is that the poll was not needed, though it is slow."""
    with Client(proxy.url, **{**QUICK, "health_interval": 3600.0}) as client:
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected", 20)

        assert client.metrics().poll_detected == 0


def test_a_loss_whose_event_was_missed_is_found_by_the_poll(proxy: FaultProxy) -> None:
    async def deafen() -> None:
        link = client._core.link
        assert link is not None and link.transport is not None
        link.transport.pause_reading()

    with Client(proxy.url, **QUICK) as client:
        client.run(deafen())
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected", 20)

        assert client.metrics().poll_detected == 1


@pytest.mark.parametrize(("failover", "again"), [("ordered", "first"), ("round-robin", "second")])
def test_with_an_order_the_first_host_is_tried_first_again(
    proxy: FaultProxy, broker: Broker, queue: str, failover: str, again: str
) -> None:
    with FaultProxy(broker.host, broker.port) as second:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port},127.0.0.1:{second.port}/%2F"
        with Client(url, **QUICK, failover=failover) as client:
            client.producer(queue).publish(b"x").result(10)
            proxy.cut()
            wait_for(lambda: client.metrics().reconnects == 1, "reconnected")
            found = (proxy.connections, second.connections)
            assert found == {"first": (2, 0), "second": (1, 1)}[again]


def test_hosts_are_tried_in_turn(proxy: FaultProxy, broker: Broker) -> None:
    url = f"amqp://guest:guest@127.0.0.1:1,127.0.0.1:{proxy.port}/%2F"
    with pytest.raises(ClientConnectionError):
        Client(url, **QUICK).start()
    with Client(url, **QUICK, fail_fast=False) as client:
        client.wait_connected(10)
        assert client.metrics().reconnect_attempts >= 1


def test_without_fail_fast_messages_wait_for_the_first_connection(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    proxy.is_refusing = True
    with Client(proxy.url, **QUICK, fail_fast=False) as client:
        receipt = client.producer(queue).publish(b"early")
        assert not client.connected
        proxy.is_refusing = False

        assert receipt.result(10) == "confirmed"


def test_a_wrong_password_is_not_tried_again_and_not_shown(broker: Broker) -> None:
    url = f"amqp://guest:hunter2@{broker.host}:{broker.port}/"
    client = Client(url, **QUICK, fail_fast=False)
    client.start()
    wait_for(lambda: client.state is ConnectionState.CLOSED, "closed", 20)

    assert isinstance(client.last_error, AuthenticationError)
    assert "hunter2" not in f"{client!r} {client.last_error!r} {client.last_error}"
    with pytest.raises(ClosedError):
        client.queue("q")
    client.close()


def test_a_password_is_in_no_error_log_repr_or_callback(
    broker: Broker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[object] = []
    password = "hunter" + "2"  # a traceback shows lines of this file, too

    def step(*values: object) -> None:
        shown.extend(values)

    places = [f"{broker.host}:{broker.port}", "127.0.0.1:1", "no-such-host.invalid:1"]
    for place in places:
        for more in ("/", "/nowhere", "/?auth=amqplain", "/a/b", "/?heartbeat=hunter", ":x/"):
            try:
                client = Client(f"amqp://guest:{password}@{place}{more}", connect_timeout=2)
                client.on_error(shown.append)
                client.on_state_change(step)
                shown += [client, client.config, client._core.target, client.metrics()]
                client.start()
            except Error as error:
                shown += [error, error.__cause__, error.__context__, *error.args]
                shown.append("".join(traceback.format_exception(error)))
    out = "".join(capfd.readouterr())

    assert len(shown) > 50
    assert password not in f"{shown!r} {[str(each) for each in shown]} {caplog.text} {out}"


def test_attempts_have_a_limit(broker: Broker) -> None:
    client = Client("amqp://127.0.0.1:1", **QUICK, fail_fast=False, reconnect_max_attempts=3)
    client.start()
    producer = client.producer("q")
    dropped: list[DropReason] = []
    producer.on_drop(lambda message, reason: dropped.append(reason))
    receipt = producer.publish(b"x")
    wait_for(lambda: client.state is ConnectionState.CLOSED, "closed", 20)
    wait_for(lambda: bool(dropped), "told")
    client.close()

    assert receipt.status == "dropped" and dropped == [DropReason.CLOSED]


def test_a_broker_that_confirms_nothing_is_left(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(proxy.url, **QUICK, confirm_timeout=0.5) as client:
        producer = client.producer(queue)
        producer.publish(b"a").result(5)
        proxy.judge = lambda frame: [] if frame[2][:4] == b"\x00\x3c\x00\x50" else [frame]
        receipt = producer.publish(b"b")
        wait_for(lambda: client.metrics().poll_detected >= 1, "the poll finds it", 20)
        proxy.judge = lambda frame: [frame]

        assert receipt.result(10) == "confirmed"
    assert once(drained(broker, queue)) == [b"a", b"b"]


def test_a_confirm_for_what_was_never_published_ends_the_connection(
    proxy: FaultProxy, queue: str
) -> None:
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue)
        proxy.say(method(producer.channel, "basic.ack", 77, False))
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")

        assert producer.publish(b"x").result(10) == "confirmed"


def test_a_blocked_connection_is_said_and_left_in_time(proxy: FaultProxy, queue: str) -> None:
    seen: list[str] = []
    with Client(proxy.url, **QUICK, blocked_timeout=0.5) as client:
        client.on_blocked(lambda reason: seen.append(f"blocked {reason}"))
        client.on_unblocked(lambda: seen.append("unblocked"))
        proxy.say(method(0, "connection.blocked", "low on disk"))
        wait_for(lambda: client.blocked, "blocked")
        proxy.say(method(0, "connection.unblocked"))
        wait_for(lambda: client.state is ConnectionState.CONNECTED, "unblocked")
        proxy.say(method(0, "connection.blocked", "for ever"))
        wait_for(lambda: client.metrics().reconnects == 1, "left", 20)
        wait_for(
            lambda: seen[:3] == ["blocked low on disk", "unblocked", "blocked for ever"], "told"
        )


def test_a_silent_broker_is_left_by_heartbeats(proxy: FaultProxy) -> None:
    with Client(proxy.url, **QUICK, heartbeat=1) as client:
        proxy.stall("up", "down")
        wait_for(lambda: not client.connected, "left", 20)
        proxy.cut()
        proxy.flow()
        client.wait_connected(10)


def test_a_reconnect_leaks_nothing(proxy: FaultProxy) -> None:
    with Client(proxy.url, **{**QUICK, "reconnect_initial_delay": 0.001}) as client:
        before = threading.active_count()
        consumer = client.consumer("client-leak")
        producer = client.producer("client-leak")
        for n in range(1, 21):
            producer.publish(b"x")
            proxy.cut()
            # A cut may come upon the next connection, too.
            wait_for(lambda n=n: client.metrics().reconnects >= n, "reconnected")  # type: ignore[misc]

        assert len(client._core._tasks) <= 3
        producer.flush(10)
        wait_for(lambda: consumer.unacked >= 20, "all have come")
        assert sum(map(len, consumer._lists)) <= consumer.unacked
        client.delete_queue("client-leak")
        proxy.pairs.clear()
    wait_for(lambda: threading.active_count() <= before, "threads ended")


def test_unconfirmed_messages_are_dropped_with_a_word_at_close(
    proxy: FaultProxy, queue: str
) -> None:
    dropped: list[bytes] = []
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue)
        producer.on_drop(lambda message, reason: dropped.append(message.body))
        proxy.judge = lambda frame: [] if frame[2][:4] == b"\x00\x3c\x00\x50" else [frame]
        receipt = producer.publish(b"x")
        client.close(timeout=0.3)
    assert receipt.status == "dropped" and dropped == [b"x"]
    with pytest.raises(ClosedError):
        producer.publish(b"y")


def test_a_question_hears_of_the_loss_at_once(proxy: FaultProxy, queue: str) -> None:
    with Client(proxy.url, **QUICK) as client:
        client.queue(queue)
        failure: list[Exception] = []

        def ask() -> None:
            try:
                client.rpc_call(queue, b"?", timeout=30)
            except Error as error:
                failure.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for(lambda: client.queue(queue, passive=True).message_count == 1, "asked")
        proxy.cut()
        thread.join(10)

        assert len(failure) == 1 and isinstance(failure[0], ClientConnectionError)


def test_a_stream_goes_on_behind_the_last_ack(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    with Client(proxy.url, **QUICK) as client:
        client.queue(queue, arguments={"x-queue-type": "stream"})
        client.producer(queue).publish_batch([b"%d" % n for n in range(20)]).result(10)
        consumer = client.consumer(
            queue, prefetch=5, arguments={"x-stream-offset": "first"}, declare=False
        )
        found = []
        for _ in range(7):
            message = consumer.get(5)
            assert message is not None
            found.append(message.body)
            message.ack()
        time.sleep(0)
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")
        rest: list[Message] = []
        while len(rest) < 13:
            message = consumer.get(5)
            assert message is not None
            if message.incarnation == consumer.tracker.incarnation:
                message.ack()
                rest.append(message)

    assert found + [each.body for each in rest] == [b"%d" % n for n in range(20)]


def test_a_message_of_a_stream_that_was_given_back_is_not_passed_over(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    """It has come again and nobody has settled it: after a reconnect the stream went on behind
    what was acknowledged later."""
    with Client(proxy.url, **QUICK) as client:
        client.queue(queue, arguments={"x-queue-type": "stream"})
        client.producer(queue).publish_batch([b"%d" % n for n in range(5)]).result(10)
        consumer = client.consumer(
            queue, prefetch=10, arguments={"x-stream-offset": "first"}, declare=False
        )
        for n in range(5):
            message = consumer.get(5)
            assert message is not None and message.body == b"%d" % n
            if n == 1:
                message.nack(requeue=True)
            else:
                message.ack()
        again = consumer.get(5)
        assert again is not None and (again.body, again.redelivered) == (b"1", True)
        proxy.cut()
        wait_for(lambda: client.metrics().reconnects == 1, "reconnected")

        found = consumer.get(5)
        assert found is not None and found.body == b"1"
