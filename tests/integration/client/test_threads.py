"""One client in many threads: publish, acknowledge, look at figures, and close meanwhile."""

from __future__ import annotations

import threading
import uuid

from lavinmq.client import BufferFullError, Client, ClosedError, Message, Receipt
from tests.support.broker import Broker

PROGRAMS = 3
MESSAGES = 200
DEADLINE_S = 120.0


def test_threads_share_a_producer_and_a_consumer(broker: Broker) -> None:
    name = f"threads-{uuid.uuid4().hex[:12]}"
    seen: list[bytes] = []
    errors: list[BaseException] = []
    everything = threading.Event()
    total = PROGRAMS * MESSAGES

    def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == total:
            everything.set()

    with Client(broker.uri, max_in_flight=50, buffer_size=100) as client:
        producer = client.producer(name)
        consumer = client.consumer(name, prefetch=20)
        consumer.subscribe(handle, workers=PROGRAMS)

        def program(number: int) -> None:
            try:
                receipts = [producer.publish(b"%d %d" % (number, n)) for n in range(MESSAGES)]
                batch = producer.publish_batch([])
                for receipt in (*receipts, batch):
                    assert receipt.result(DEADLINE_S) == "confirmed"
            except BaseException as error:  # noqa: BLE001 - it is raised below
                errors.append(error)

        threads = [threading.Thread(target=program, args=(k,)) for k in range(PROGRAMS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            figures = client.metrics()
            assert figures.confirmed <= figures.published <= total
            assert figures.acked <= figures.delivered and figures.exposition()
        assert everything.wait(DEADLINE_S)
        consumer.close()
        assert not errors, errors
        assert sorted(seen) == sorted(
            b"%d %d" % (k, n) for k in range(PROGRAMS) for n in range(MESSAGES)
        )
        assert client.metrics().acked == total
        client.delete_queue(name)


def test_every_receipt_ends_when_a_client_is_closed_beside_its_publishers(broker: Broker) -> None:
    name = f"threads-{uuid.uuid4().hex[:12]}"
    receipts: list[Receipt] = []
    client = Client(broker.uri, buffer_size=1000, buffer_policy="raise").start()
    producer = client.producer(name)
    is_busy = threading.Event()

    def program() -> None:
        while True:
            try:
                receipts.append(producer.publish(b"x"))
            except BufferFullError:
                is_busy.set()
            except ClosedError:
                return
            if len(receipts) > 500:
                is_busy.set()

    threads = [threading.Thread(target=program) for _ in range(PROGRAMS)]
    for thread in threads:
        thread.start()
    assert is_busy.wait(DEADLINE_S)
    client.close()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()

    assert receipts and {receipt.status for receipt in receipts} <= {"confirmed", "dropped"}
    with Client(broker.uri) as other:
        other.delete_queue(name)
