"""What single keys of a shovel do, all in one broker: each shovel has queues of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lavinmq.client import Client
from tests.integration.shovel.conftest import Bench, bodies, fill, until
from tests.support.hook_server import HookServer

LOCAL: dict[str, Any] = {"src_uri": "amqp://", "dest_uri": "amqp://", "reconnect_delay": 0}


@pytest.fixture
def client(bench: Bench) -> Iterator[Client]:
    with Client(bench.broker.uri) as found:
        yield found


def arguments(bench: Bench, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = bench.api.get(f"/api/queues/%2F/{queue}")["arguments"]
    return found


def is_told(bench: Bench, mark: str) -> bool:
    return mark in (bench.row("waits")["error"] or "")


def test_queues_are_declared_as_asked_for_or_waited_for(bench: Bench, client: Client) -> None:
    args = {"x-max-length": 50}
    bench.put("made", **LOCAL, src_queue="a", dest_queue="b", src_queue_args=args,
              dest_queue_args=args)  # fmt: skip
    bench.put("waits", **LOCAL, src_queue="c", dest_queue="d", src_predeclared=True,
              dest_predeclared=True)  # fmt: skip
    until(lambda: bench.state("made") == "Running", "it runs")
    assert arguments(bench, "a") == arguments(bench, "b") == args
    for queue in ("d", "c"):
        mark = f"'{queue}'"
        until(partial(is_told, bench, mark), "it says what it needs")
        assert bench.state("waits") == "Error"
        assert bench.api("GET", f"/api/queues/%2F/{queue}").status == 404
        client.queue(queue)
    fill(client, "c", 3)
    assert sorted(bodies(client, "d", 3)) == [b"0", b"1", b"2"]


def test_keys_say_where_messages_come_from_and_go_to(bench: Bench, client: Client) -> None:
    for name, kind in (("in", "topic"), ("out", "topic")):
        client.exchange(name, kind)
    for queue, key in (("own", "k.one"), ("given", "other")):
        client.queue(queue)
        client.bind(queue, "out", key)
    bench.put("own", **LOCAL, src_queue="bound", src_exchange="in", src_exchange_key="k.*",
              dest_exchange="out", src_protocol="amqp091", dest_protocol="local")  # fmt: skip
    bench.put("given", **LOCAL, src_exchange="in", src_exchange_key="#", dest_exchange="out",
              dest_exchange_key="other", src_prefetch_count=1)  # fmt: skip
    until(lambda: bench.state("own") == bench.state("given") == "Running", "they run")
    for key in ("k.one", "else"):
        client.producer(exchange="in", routing_key=key).publish(key.encode()).result(60)
    assert bodies(client, "own", 1) == [b"k.one"]
    assert sorted(bodies(client, "given", 2)) == [b"else", b"k.one"]
    until(lambda: bench.ready("bound") == 0, "one message is acknowledged, too, without a timer")


def test_who_pauses_and_resumes_in_haste_gets_each_message_once(
    bench: Bench, client: Client
) -> None:
    bench.put("s", **LOCAL, src_queue="from", dest_queue="to", dest_add_timestamp_header=True)
    for number in range(5):
        bench.api("PUT", "/api/shovels/%2F/s/pause?force=true")
        fill(client, "from", 20)
        assert bench.ask("s", "resume") == 204, number
    until(lambda: bench.row("s")["confirmed"] == 100, "all has come, and is known to have")
    until(lambda: bench.state("s") == "Running", "it runs")
    assert bench.ready("to") == bench.row("s")["message_count"] == 100
    assert bench.ready("from") == 0


def test_a_paused_webhook_asks_no_more(bench: Bench, client: Client) -> None:
    with HookServer() as server:
        server.answer = lambda _: (500, {}, b"")
        fill(client, "from", 1)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=server.uri, reconnect_delay=0)
        until(lambda: len(server.asked) > 2, "it tries again")
        assert bench.api("PUT", "/api/shovels/%2F/s/pause?force=true").status == 204
        until(lambda: bench.api.get("/api/queues/%2F/from")["messages_ready"] == 1, "it is back")
        count = len(server.asked)
        assert bench.state("s") == "Paused"
        server.answer = lambda _: (204, {}, b"")
        assert bench.ask("s", "resume") == 204
        until(lambda: bench.ready("from") == 0, "it is delivered")
        assert len(server.asked) == count + 1


def test_what_a_server_repeats_of_a_token_is_shown_to_nobody(bench: Bench, client: Client) -> None:
    with HookServer() as server:
        server.answer = lambda asked: (422, {}, str(asked.headers).encode()[:190])
        fill(client, "from", 1)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=server.uri + "/x?key=kkkkkkkk",
                  dest_headers={"A": "token-1"}, reconnect_delay=0)  # fmt: skip
        until(lambda: "422" in (bench.row("s")["error"] or ""), "it says what is wrong")
        for path in ("shovels/%2F/s", "shovels"):
            text = bench.api("GET", f"/api/{path}").content
            assert b"token-1" not in text and b"kkkkkkkk" not in text
    log = bench.broker.log_text()
    assert "token-1" not in log and "kkkkkkkk" not in log
