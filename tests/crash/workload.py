"""A small fixed workload that makes a broker touch its disk in every way, and the books of it.

Two lives of one broker: declare, publish, roll, ack, requeue, commit, purge, unbind, delete,
compact, stop; load all that and go on. Then one that is killed, behind which a stream begins an
epoch. It may end at any point, with the broker; `check` then says whether the next life has what
was answered in the earlier ones.
"""

from __future__ import annotations

import time
from typing import Any

from pamqp import base, commands

from lavinmq.files import stream_epochs
from tests.crash.books import Books, messages_found
from tests.crash.load import DAMAGED, Message, Stream, stream_and_number
from tests.support.broker import Broker, BrokerError
from tests.support.segments import queue_directory
from tests.support.wire import Unit, Wire, WireClosed

PLAIN, TX, DOOMED, HISTORY = "plain", "tx", "doomed", "history"
RANKED, COUNTED, UNIQUE, AGAIN = "ranked", "counted", "unique", "again"
DYING, DEAD = "dying", ("dead-1", "dead-2")
FILLING = 900
KEY = "some.key"
CHANNELS = (1, 2, 3)
LEVELS = ("level-0", "level-2")
"""Streams of messages with that priority."""
Thing = tuple[str, str]
"""A kind and a name."""


class Workload:
    """What was asked of a broker; `exists` is None for a thing whose fate was not answered."""

    def __init__(self) -> None:
        queues = (PLAIN, TX, DOOMED, COUNTED, UNIQUE, AGAIN, DYING)
        self.streams = {queue: Stream(queue, queue) for queue in queues}
        self.streams |= {name: Stream(name, RANKED) for name in LEVELS}
        self.books = Books()
        self.books.add(self.streams.values())
        self.exists: dict[Thing, bool | None] = {}
        self._answers: list[tuple[int, Thing, bool | None]] = []
        self._tag = 0
        self._appended = 0  # messages of the stream that were confirmed
        self._epochs = 0  # of it, when it was served last

    def run(self, broker: Broker) -> bool:
        """Work through it all; return False when the broker ended before."""
        try:
            for life in (self._first_life, self._second_life):
                broker.start()
                self._tag = 0
                with Wire.open(broker.port, channels=CHANNELS) as wire:
                    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                    wire.call(3, commands.Tx.Select(), commands.Tx.SelectOk)
                    life(wire)
                if broker.stop() != 0:
                    return False
            broker.start()
            broker.kill()
            broker.start()
            self._epochs = len(_epochs(broker))
            if broker.stop() != 0:
                return False
        except (WireClosed, BrokerError, ConnectionError):
            broker.kill()  # and wait until it is dead
            return False
        return True

    def check(self, broker: Broker) -> None:
        """Start the broker again and compare; then it must work and stop as ever."""
        broker.start()
        queues = []
        for (kind, name), exists in self.exists.items():
            if kind == "binding":
                continue
            found = is_there(broker.port, kind, name)
            assert exists in (None, found), f"{kind} {name}: answered {exists}, is {found}"
            if kind == "queue" and found:
                queues.append(name)
        found = messages_found(broker.port, [q for q in queues if q != HISTORY])
        self._check_letters(found)
        self.books.check(found)
        if self.exists.get(("queue", PLAIN)) and self.exists.get(("exchange", "x")):
            self._check_binding(broker.port)
        if self.exists.get(("queue", HISTORY)):
            self._check_history(broker)
        _check_that_it_works(broker.port)
        assert broker.stop() == 0
        assert "is closed" not in broker.log_text()
        assert "Traceback" not in broker.log_text()

    def check_at(self, broker: Broker, before_ns: int, *, may_be_damaged: bool) -> None:
        """Start on what a loss of power has left, and compare with what was answered before it.

        Args: `may_be_damaged`: messages that were not confirmed may have lost pages.
        """
        broker.start()
        there = []
        for (kind, name), exists in self._existed(before_ns).items():
            if kind == "binding":
                continue
            found = is_there(broker.port, kind, name)
            assert exists in (None, found), f"{kind} {name}: answered {exists}, is {found}"
            if kind == "queue" and found and name != HISTORY:
                there.append(name)
        messages = messages_found(broker.port, there, count_is_exact=False)
        if may_be_damaged:
            messages = {q: [m for m in messages[q] if m != DAMAGED] for q in messages}
        acknowledged = dict(self.books.acknowledged)
        self._check_letters(messages)
        self.books.check(messages, before_ns=before_ns, acks_may_be_lost=True)
        self.books.acknowledged = acknowledged
        _check_that_it_works(broker.port)
        assert broker.stop() == 0
        assert "is closed" not in broker.log_text()
        assert "Traceback" not in broker.log_text()

    def _existed(self, before_ns: int) -> dict[Thing, bool | None]:
        """What was answered about things before that time, the last word of each."""
        return {thing: then for at_ns, thing, then in self._answers if at_ns < before_ns}

    # ---- the two lives

    def _first_life(self, wire: Wire) -> None:
        for queue in (PLAIN, TX, DOOMED):
            self._declare(wire, queue)
        self._declare(wire, HISTORY, {"x-queue-type": "stream"})
        self._append(wire, 6)
        exchange = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
        self._ask(wire, ("exchange", "x"), True, exchange, commands.Exchange.DeclareOk)
        bind = commands.Queue.Bind(queue=PLAIN, exchange="x", routing_key=KEY)
        self._ask(wire, ("binding", KEY), True, bind, commands.Queue.BindOk)
        for _ in range(3):
            self._publish(wire, PLAIN, 6)
        self._take(wire, 8)
        self._commit(wire, 5)
        self._publish(wire, DOOMED, 6)
        self._purge(wire)
        self._publish(wire, DOOMED, 2)
        self._declare(wire, RANKED, {"x-max-priority": 3})
        self._rank(wire)
        self._declare(wire, COUNTED, {"x-delivery-limit": 9})
        self._publish(wire, COUNTED, 3)
        self._requeue(wire, COUNTED)
        self._declare(wire, UNIQUE, {"x-message-deduplication": True})
        self._publish_once(wire, 3)
        self._prepare_letters(wire)
        self._declare(wire, AGAIN)
        self._publish(wire, AGAIN, 3)

    def _second_life(self, wire: Wire) -> None:
        self._publish(wire, PLAIN, 6)
        self._append(wire, 2)
        self._requeue(wire)
        self._take(wire, 7)
        self._commit(wire, 3)
        for number in range(3):
            self._declare(wire, f"temporary-{number}")
            self._delete(wire, f"temporary-{number}")
        unbind = commands.Queue.Unbind(queue=PLAIN, exchange="x", routing_key=KEY)
        self._ask(wire, ("binding", KEY), False, unbind, commands.Queue.UnbindOk)
        self._settle_all(DOOMED, answered=False)
        self._delete(wire, DOOMED)
        self._publish(wire, PLAIN, 3)
        self._rank(wire)
        self._requeue(wire, COUNTED)
        self._publish_once(wire, 2)
        self._reject(wire)
        self._settle_all(AGAIN, answered=False)
        self._delete(wire, AGAIN)
        self._settle_all(AGAIN, answered=True)
        self._declare(wire, AGAIN)
        self._publish(wire, AGAIN, 2)

    # ---- what they consist of

    def _ask(
        self, wire: Wire, thing: Thing, then: bool, request: base.Frame, reply: type[base.Frame]
    ) -> None:
        self._note(thing, None)
        wire.call(2, request, reply)
        self._note(thing, then)

    def _note(self, thing: Thing, then: bool | None) -> None:
        self.exists[thing] = then
        self._answers.append((time.monotonic_ns(), thing, then))

    def _declare(self, wire: Wire, queue: str, arguments: dict[str, Any] | None = None) -> None:
        declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
        self._ask(wire, ("queue", queue), True, declare, commands.Queue.DeclareOk)

    def _delete(self, wire: Wire, queue: str) -> None:
        delete = commands.Queue.Delete(queue=queue)
        self._ask(wire, ("queue", queue), False, delete, commands.Queue.DeleteOk)

    def _publish(self, wire: Wire, queue: str, count: int) -> None:
        stream = self.streams[queue]
        self._send(wire, 1, stream, count)
        self._confirmed(wire, count)
        stream.confirm(stream.published)

    def _append(self, wire: Wire, count: int) -> None:
        for _ in range(count):
            wire.publish(1, "", HISTORY, bytes(FILLING))
        self._confirmed(wire, count)
        self._appended += count

    def _confirmed(self, wire: Wire, count: int) -> None:
        """Wait for the confirms of that many publishes."""
        self._tag += count
        while wire.expect(commands.Basic.Ack, 1).delivery_tag != self._tag:
            pass

    def _send(
        self, wire: Wire, channel: int, stream: Stream, count: int,
        properties: commands.Basic.Properties | None = None,
    ) -> None:  # fmt: skip
        for _ in range(count):
            stream.published += 1
            body = stream.body(stream.published, FILLING)
            wire.publish(channel, "", stream.queue, body, properties=properties)

    def _rank(self, wire: Wire) -> None:
        """Messages of two priorities."""
        for name in LEVELS:
            stream = self.streams[name]
            priority = commands.Basic.Properties(priority=int(name[-1]))
            self._send(wire, 1, stream, 2, priority)
            self._confirmed(wire, 2)
            stream.confirm(stream.published)

    def _publish_once(self, wire: Wire, count: int) -> None:
        """Each message twice, in a queue that takes the first."""
        stream = self.streams[UNIQUE]
        for _ in range(count):
            key = {"x-deduplication-header": stream.published + 1}
            properties = commands.Basic.Properties(headers=key)
            self._send(wire, 1, stream, 1, properties)
            body = stream.body(stream.published, FILLING)
            wire.publish(1, "", UNIQUE, body, properties=properties)
            self._confirmed(wire, 2)
            stream.confirm(stream.published)

    def _prepare_letters(self, wire: Wire) -> None:
        """A queue whose dead letters go to two others, and messages of it."""
        dead = commands.Exchange.Declare(exchange="dead", exchange_type="fanout", durable=True)
        self._ask(wire, ("exchange", "dead"), True, dead, commands.Exchange.DeclareOk)
        for queue in DEAD:
            self._declare(wire, queue)
            bind = commands.Queue.Bind(queue=queue, exchange="dead")
            self._ask(wire, ("binding", queue), True, bind, commands.Queue.BindOk)
        self._declare(wire, DYING, {"x-dead-letter-exchange": "dead"})
        self._publish(wire, DYING, 4)

    def _reject(self, wire: Wire) -> None:
        for _ in range(3):
            unit = self._get(wire, 2, DYING)
            wire.send(2, commands.Basic.Reject(unit.method.delivery_tag, requeue=False))
        wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)

    def _check_letters(self, found: dict[str, list[Message]]) -> None:
        """What has died is in all of its queues, or still in its own; with that it is left to the
        books."""
        letters = [found.pop(queue) for queue in DEAD if queue in found]
        for each in letters:
            assert len(each) == len(set(each)), f"a letter twice: {each}"
        if len(letters) == len(DEAD):
            arrived = set.intersection(*map(set, letters))
            self.books.acknowledged.update((message, 0) for message in arrived)

    def _get(self, wire: Wire, channel: int, queue: str = PLAIN) -> Unit:
        wire.send(channel, commands.Basic.Get(queue=queue))
        return wire.expect_unit(commands.Basic.GetOk, channel)

    def _take(self, wire: Wire, count: int) -> None:
        """Get and ack, and have each ack answered."""
        for _ in range(count):
            unit = self._get(wire, 2)
            message = stream_and_number(unit.body)
            self.books.acknowledged[message] = time.monotonic_ns()
            wire.send(2, commands.Basic.Ack(unit.method.delivery_tag))
            wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)
            self.books.settled.add(message)

    def _requeue(self, wire: Wire, queue: str = PLAIN) -> None:
        unit = self._get(wire, 2, queue)
        wire.send(2, commands.Basic.Reject(unit.method.delivery_tag, requeue=True))

    def _commit(self, wire: Wire, count: int) -> None:
        """A transaction of publishes and an ack, and one that is rolled back."""
        stream = self.streams[TX]
        self._send(wire, 3, stream, count)
        unit = self._get(wire, 3)
        message = stream_and_number(unit.body)
        self.books.acknowledged[message] = time.monotonic_ns()
        wire.send(3, commands.Basic.Ack(unit.method.delivery_tag))
        wire.call(3, commands.Tx.Commit(), commands.Tx.CommitOk)
        stream.confirm(stream.published)
        self.books.settled.add(message)
        wire.publish(3, "", TX, b"rolled back:1:")
        wire.call(3, commands.Tx.Rollback(), commands.Tx.RollbackOk)

    def _purge(self, wire: Wire) -> None:
        self._settle_all(DOOMED, answered=False)
        wire.call(2, commands.Queue.Purge(queue=DOOMED), commands.Queue.PurgeOk)
        wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)
        self._settle_all(DOOMED, answered=True)

    def _settle_all(self, queue: str, *, answered: bool) -> None:
        stream = self.streams[queue]
        messages = [(stream.name, number) for number in range(1, stream.published + 1)]
        for message in messages:
            self.books.acknowledged.setdefault(message, time.monotonic_ns())
        if answered:
            self.books.settled.update(messages)

    def _check_binding(self, port: int) -> None:
        bound = self.exists.get(("binding", KEY))
        with Wire.open(port) as wire:
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            wire.publish(1, "x", KEY, b"bound?", mandatory=True)
            is_routed = isinstance(wire.receive().method, commands.Basic.Ack)
        assert bound in (None, is_routed), f"binding: answered {bound}, is {is_routed}"

    def _check_history(self, broker: Broker) -> None:
        """What was confirmed is in the stream, and an epoch in which it was served is known."""
        with Wire.open(broker.port) as wire:
            passive = commands.Queue.Declare(queue=HISTORY, passive=True)
            found = wire.call(1, passive, commands.Queue.DeclareOk).message_count
        assert found is not None and found >= self._appended
        numbers = [number for number, _ in _epochs(broker)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= self._epochs


def _epochs(broker: Broker) -> list[stream_epochs.Epoch]:
    return stream_epochs.load(str(queue_directory(broker.data_dir, HISTORY)))


def is_there(port: int, kind: str, name: str) -> bool:
    """Whether a broker has a queue or an exchange of that name."""
    request: base.Frame = commands.Queue.Declare(queue=name, passive=True)
    if kind == "exchange":
        request = commands.Exchange.Declare(exchange=name, passive=True)
    with Wire.open(port) as wire:
        wire.send(1, request)
        return not isinstance(wire.receive().method, commands.Channel.Close)


def _check_that_it_works(port: int) -> None:
    with Wire.open(port) as wire:
        declare = commands.Queue.Declare(queue="after", durable=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", "after", b"still there")
        wire.expect(commands.Basic.Ack, 1)
        wire.send(1, commands.Basic.Get(queue="after", no_ack=True))
        assert wire.expect_unit(commands.Basic.GetOk, 1).body == b"still there"
