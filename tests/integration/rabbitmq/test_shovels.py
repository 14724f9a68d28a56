"""Shovels between RabbitMQ and us: ours in both directions, and RabbitMQ's in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import Client
from tests.integration.rabbitmq.conftest import Side, until
from tests.support.rabbitmq import RabbitMQ

DEADLINE_S = 400.0
"""RabbitMQ takes its time to start."""
COUNT = 3000
ENDS = {"src_delete_after": "queue-length", "ack_mode": "on-confirm"}


@pytest.mark.parametrize("runs", ["ours", "RabbitMQ"])
@pytest.mark.parametrize("comes_from", ["ours", "RabbitMQ"])
def test_all_arrive_in_order_with_what_they_carry(
    ours: Side, rabbit: Side, runs: str, comes_from: str
) -> None:
    source, sink = (ours, rabbit) if comes_from == "ours" else (rabbit, ours)
    runner = ours if runs == "ours" else rabbit
    source.fill("from", range(COUNT), headers={"k": [1, {"a": "b"}]}, message_id="m", priority=3)
    runner.put(
        "shovel", "s", src_protocol="amqp091", dest_protocol="amqp091", src_uri=source.uri,
        src_queue="from", dest_uri=sink.uri, dest_queue="to", dest_add_forward_headers=True, **ENDS,
    )  # fmt: skip
    until(lambda: runner.is_moved("s"), lambda: runner.rows("shovels"))

    found = sink.taken("to", COUNT)
    assert [int(each.body) for each in found] == list(range(COUNT))
    assert (source.waiting("from"), sink.waiting("to")) == (0, 0)
    first = found[0]
    assert (first.headers["k"], first.message_id, first.priority) == ([1, {"a": "b"}], "m", 3)
    [entry] = first.headers["x-shovelled"]
    assert entry["shovel-name"] == "s" and entry["dest-queue"] == "to"
    assert "guest" not in entry["src-uri"] + entry["dest-uri"]


@pytest.mark.parametrize("arguments", [{"x-queue-type": "quorum"}, {"x-queue-type": "stream"}])
def test_other_kinds_of_queues_there_are_sources(
    ours: Side, rabbit: Side, arguments: dict[str, Any]
) -> None:
    with Client(rabbit.uri) as client:
        client.queue("from", arguments=arguments)
    rabbit.fill("from", range(COUNT))
    more = {"src_consumer_args": {"x-stream-offset": "first"}} if "stream" in str(arguments) else {}
    ours.put("shovel", "s", src_uri=rabbit.uri, src_queue="from", dest_uri="amqp://",
             dest_queue="to", **more)  # fmt: skip
    until(lambda: ours.has_messages("to"), lambda: ours.rows("shovels"))
    assert [int(each.body) for each in ours.taken("to", COUNT)] == list(range(COUNT))


def test_what_a_full_queue_there_refuses_stays_here(ours: Side, rabbit: Side) -> None:
    with Client(rabbit.uri) as client:
        client.queue("to", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    ours.fill("from", range(300))
    ours.put("shovel", "s", src_uri="amqp://", src_queue="from", dest_uri=rabbit.uri,
             dest_queue="to")  # fmt: skip
    until(lambda: rabbit.waiting("to") >= 100, lambda: ours.rows("shovels"))
    assert ours.api.get("/api/queues/%2F/from")["messages"] > 0
    assert rabbit.numbers("to", 300) == set(range(300))


def test_nothing_is_lost_when_the_node_is_killed(ours: Side, tmp_path: Path) -> None:
    """Once as destination, once as source."""
    node = RabbitMQ(tmp_path / "node")
    try:
        there = Side(node.api, node.uri, "/")
        with Client(there.uri) as client:
            client.queue("middle")
        node.sync_declarations()
        ours.fill("from", range(8_000))
        ours.put("shovel", "s", src_uri="amqp://", src_queue="from", dest_uri=there.uri,
                 dest_queue="middle", reconnect_delay=0, src_prefetch_count=500)  # fmt: skip
        until(lambda: ours.rows("shovels")[0].get("confirmed", 0) > 1000, "it moves")
        node.kill()
        node.start()
        until(lambda: ours.waiting("from") == 0, lambda: ours.rows("shovels"))
        ours.put("shovel", "t", src_uri=there.uri, src_queue="middle", dest_uri="amqp://",
                 dest_queue="to", reconnect_delay=0, src_prefetch_count=500)  # fmt: skip
        until(lambda: ours.rows("shovels") and ours.has_messages("to"), "it moves back")
        node.kill()
        node.start()
        assert ours.numbers("to", 8_000) == set(range(8_000))
    finally:
        node.close()


def test_a_connection_that_alarms_block_is_waited_for(
    ours: Side, rabbit: Side, node: RabbitMQ
) -> None:
    """RabbitMQ sends connection.blocked, and reads no more, while it has no memory left."""
    ours.fill("from", range(200))
    node.ctl("set_vm_memory_high_watermark", "0")
    try:
        ours.put("shovel", "s", src_uri="amqp://", src_queue="from", dest_uri=rabbit.uri,
                 dest_queue="to", src_delete_after="queue-length")  # fmt: skip
        until(lambda: ours.rows("shovels")[0]["in_flight"] > 0, lambda: ours.rows("shovels"))
    finally:
        node.ctl("set_vm_memory_high_watermark", "0.4")
    until(lambda: ours.is_moved("s"), lambda: ours.rows("shovels"))
    assert rabbit.numbers("to", 200) == set(range(200))
