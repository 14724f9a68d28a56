"""The fixture that gives a test a client on the embedded broker."""

from __future__ import annotations

from lavinmq.client import Client


def test_a_test_gets_a_client_of_its_own(lavinmq_client: Client) -> None:
    receipt = lavinmq_client.producer("orders").publish({"id": 1})

    assert receipt.result(10) == "confirmed"
    message = lavinmq_client.get("orders")
    assert message is not None and message.parse() == {"id": 1}
