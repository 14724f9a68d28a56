"""The client with RabbitMQ: what it promises through faults, and what it promises of the broker."""

from __future__ import annotations

import pytest

from lavinmq.client import Client
from tests.integration.rabbitmq.conftest import Side
from tests.support.client_faults import check
from tests.support.rabbitmq import RabbitMQ

DEADLINE_S = 400.0


@pytest.mark.parametrize("mode", ["confirm", "fire_and_forget"])
def test_promises_are_kept_through_all_faults(rabbit: Side, node: RabbitMQ, mode: str) -> None:
    options = {"rpc_timeout": 20.0, "connect_timeout": 20.0, "confirm_timeout": 3.0}
    check(node.host, node.port, rabbit.path, "faults", mode, **options)


def test_both_fronts_speak_with_it(rabbit: Side) -> None:
    with Client(rabbit.uri, separate_connections=True) as client:
        client.exchange("e", "topic")
        client.queue("q", arguments={"x-max-length": 1000})
        client.bind("q", "e", "a.#", {"x": 1})
        producer = client.producer(exchange="e", routing_key="a.b")
        receipts = [
            producer.publish({"n": n}, headers={"n": n, "list": [1, "2"]}) for n in range(9)
        ]
        assert {each.result(30) for each in receipts} == {"confirmed"}
        with client.consumer("q", prefetch=3) as consumer:
            for n in range(9):
                message = consumer.get(30)
                assert message is not None and message.parse() == {"n": n}
                assert message.headers == {"n": n, "list": [1, "2"]} and message.ack()
        server = client.rpc_server("double", lambda message: str(2 * int(message.body)))
        assert client.rpc_call("double", b"21", timeout=30).text() == "42"
        server.close()
        with client.channel() as channel:
            channel.tx_select()
            channel.basic_publish("", "q", b"kept")
            channel.tx_commit()
        assert client.queue("q", passive=True).message_count == 1
        client.delete_queue("q")
        client.delete_exchange("e")
