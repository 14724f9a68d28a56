"""Shovels that run: between queues, exchanges, streams, virtual hosts and brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lavinmq.client import Client
from lavinmq.client.errors import AccessRefused
from tests.conftest import BrokerFactory
from tests.integration.shovel.conftest import LOCAL, WAIT_S, Bench, bodies, fill, until
from tests.support.certificates import Authority
from tests.support.mqtt_peer import Peer
from tests.support.ports import free_port

DEADLINE_S = 150.0


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_a_queue_is_moved_and_the_shovel_goes_on(bench: Bench, mode: str) -> None:
    with Client(bench.broker.uri) as client:
        producer = client.producer("from")
        producer.publish_batch([b"%d" % n for n in range(3000)]).result(WAIT_S)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri="amqp://", dest_queue="to",
                  ack_mode=mode)  # fmt: skip
        assert bodies(client, "to", 3000) == [b"%d" % n for n in range(3000)]
        producer.publish(b"later").result(WAIT_S)
        assert bodies(client, "to", 1) == [b"later"]
        until(lambda: client.queue("from", passive=True).message_count == 0, "acknowledged")

    row = bench.row("s")
    assert (row["state"], row["error"], row["message_count"]) == ("Running", None, 3001)


@pytest.mark.parametrize("count", [0, 1, 999, 5000])
def test_a_queue_is_moved_as_it_is_and_the_shovel_goes(bench: Bench, count: int) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("from")
        fill(client, "from", count)
        bench.put("move it", **LOCAL, src_queue="from", dest_queue="to",
                  src_delete_after="queue-length")  # fmt: skip
        until(lambda: bench.is_gone("move it"), "it goes")

        assert client.queue("to").message_count == count
        assert client.queue("from").message_count == 0
        assert bodies(client, "to", count) == [b"%d" % n for n in range(count)]


def test_so_many_messages_are_moved_as_were_asked_for(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 100)
        bench.put("some", **LOCAL, src_queue="from", dest_queue="to", src_delete_after=40,
                  src_prefetch_count=7)  # fmt: skip
        until(lambda: bench.is_gone("some"), "it goes")

        assert bodies(client, "to", 40) == [b"%d" % n for n in range(40)]
        assert bodies(client, "from", 60) == [b"%d" % n for n in range(40, 100)]


@pytest.mark.parametrize("more", [{}, {"dest_add_timestamp_header": True}], ids=["carried", "AMQP"])
@pytest.mark.parametrize("wanted", ["queue-length", 30])
def test_what_is_left_to_move_is_counted_over_restarts(
    bench: Bench, wanted: str | int, more: dict[str, bool]
) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("to", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
        fill(client, "from", 30)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to", src_delete_after=wanted, **more)
        until(lambda: bench.row("s")["confirmed"] == 10, "ten fit")
        fill(client, "from", 20)
    bench.broker.restart()
    with Client(bench.broker.uri) as client:
        assert set(bodies(client, "to", 30)) == {b"%d" % n for n in range(30)}
        until(lambda: bench.is_gone("s"), "it goes")
        assert client.queue("from", passive=True).message_count == 20
        assert client.queue("to", passive=True).message_count == 0


def test_another_shovel_of_the_same_name_begins_anew(bench: Bench) -> None:
    begin = {**LOCAL, "src_queue": "from", "dest_queue": "to", "src_delete_after": 30}
    with Client(bench.broker.uri) as client:
        fill(client, "from", 20)
        bench.put("s", **begin)
        until(lambda: bench.row("s")["confirmed"] == 20, "some are moved")
        assert bench.api("DELETE", "/api/parameters/shovel/%2F/s").status == 204
        fill(client, "from", 35)
        bench.put("s", **begin)
        until(lambda: bench.is_gone("s"), "it goes")
        assert client.queue("to").message_count == 50


def test_properties_and_large_bodies_arrive_as_they_were(bench: Bench) -> None:
    body = b"x" * 3_000_000
    with Client(bench.broker.uri) as client:
        client.producer("from").publish(
            body, headers={"k": [1, {"n": None}]}, priority=3, message_id="m", expiration="600000"
        ).result(WAIT_S)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
        with client.consumer("to") as consumer:
            message = consumer.get(WAIT_S)
        assert message is not None
        assert message.body == body and message.headers == {"k": [1, {"n": None}]}
        assert (message.priority, message.message_id, message.delivery_mode) == (3, "m", 2)


def test_what_a_full_destination_refuses_stays_at_the_source(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("to", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        fill(client, "from", 20)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
        until(lambda: bench.ready("to") == 5, "five fit")
        assert bench.api.get("/api/queues/%2F/from")["messages"] == 15
        assert sorted(map(int, bodies(client, "to", 20))) == list(range(20))


def test_what_no_queue_takes_stays_at_the_source(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.exchange("x", "direct")
        fill(client, "from", 3)
        bench.put("s", **LOCAL, src_queue="from", dest_exchange="x", dest_exchange_key="k")
        until(lambda: bench.row("s")["in_flight"] == 3, "they are tried")
        assert bench.api.get("/api/queues/%2F/from")["messages"] == 3
        client.queue("to")
        client.bind("to", "x", "k")
        assert sorted(bodies(client, "to", 3)) == [b"0", b"1", b"2"]


def test_nothing_is_moved_into_a_session_of_mqtt(bench: Bench) -> None:
    """Its client gets what it has subscribed to. One that is away is told nothing else, either."""
    with Peer(bench.broker.mqtt_port) as peer:
        peer.connect("shoveled", clean=False)
    with Client(bench.broker.uri) as client:
        fill(client, "from", 3)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="mqtt.shoveled")
        until(lambda: "MQTT session" in (bench.row("s")["error"] or ""), "it says why not")
        assert bench.api.get("/api/queues/%2F/from")["messages"] == 3
        assert bench.api.get("/api/queues/%2F/mqtt.shoveled")["messages"] == 0


def test_a_missing_exchange_is_waited_for(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 3)
        bench.put("s", **LOCAL, src_queue="from", dest_exchange="late", dest_exchange_key="k",
                  reconnect_delay=0)  # fmt: skip
        until(lambda: "late" in (bench.row("s")["error"] or ""), "it says what is missing")
        client.exchange("late", "fanout")
        client.queue("to")
        client.bind("to", "late")
        assert sorted(bodies(client, "to", 3)) == [b"0", b"1", b"2"]


def test_it_is_paused_and_resumed_over_restarts(bench: Bench) -> None:
    bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
    until(lambda: bench.state("s") == "Running", "it runs")
    assert bench.api("PUT", "/api/vhosts/two").status == 201
    value = {"src-uri": "amqp:///two", "dest-uri": "amqp:///two", "src-queue": "a",
             "dest-queue": "b"}  # fmt: skip
    assert bench.api("PUT", "/api/parameters/shovel/two/s", {"value": value}).status == 201
    assert bench.ask("s", "resume") == 422
    assert bench.ask("s", "pause") == 204
    assert (bench.state("s"), bench.ask("s", "pause")) == ("Paused", 422)
    bench.broker.restart()
    assert bench.state("s") == "Paused"
    other = "/api/shovels/two/s"
    until(lambda: bench.api.get(other)["state"] == "Running", "that of another virtual host is not")
    with Client(bench.broker.uri) as client:
        fill(client, "from", 10)
        assert client.queue("from", passive=True).message_count == 10
        assert bench.ask("s", "resume") == 204
        assert len(bodies(client, "to", 10)) == 10
    assert bench.state("s") == "Running"


def test_between_two_brokers_it_goes_on_after_a_kill_of_either(
    bench: Bench, broker_factory: BrokerFactory
) -> None:
    other = broker_factory()
    n = 2000
    with Client(bench.broker.uri) as client:
        producer = client.producer("from")
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=other.uri, dest_queue="to",
                  reconnect_delay=0)  # fmt: skip
        for part in range(4):
            numbers = range(part * n // 4, (part + 1) * n // 4)
            producer.publish_batch([b"%d" % each for each in numbers]).result(WAIT_S)
            victim = bench.broker if part % 2 else other
            victim.kill()
            victim.start()
        found: set[bytes] = set()
        with Client(other.uri) as there, there.consumer("to") as consumer:
            while len(found) < n:
                message = consumer.get(WAIT_S)
                assert message is not None, f"{len(found)} of {n}"
                found.add(message.body)
                message.ack()
    assert found == {b"%d" % each for each in range(n)}


def test_tls_is_spoken_to_who_has_a_good_certificate_alone(
    bench: Bench, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    """A name as long as one may be, and a pause of a shovel that is to end, on the way."""
    authority, port, name = Authority(tmp_path / "ca"), free_port(), "s" * 255
    server = authority.issue("server", ("localhost",))
    files = "--cert", str(server.cert), "--key", str(server.key)
    there = broker_factory([*files, "--amqps-port", str(port)], http=True)
    to = f"amqps://guest:guest@localhost:{port}/?cacertfile="
    begin = {"src_uri": "amqp://", "src_queue": "from", "dest_queue": "to", "reconnect_delay": 0,
             "src_delete_after": "queue-length"}  # fmt: skip
    with Client(bench.broker.uri) as client:
        fill(client, "from", 20)
        bench.put(name, dest_uri=f"{to}{Authority(tmp_path / 'stranger').path}", **begin)
        until(lambda: "certificate" in (bench.row(name)["error"] or ""), "it says why not")
        bench.put(name, dest_uri=f"{to}{authority.path}&verify=verify_peer", **begin)
        until(lambda: bench.is_gone(name), "all is moved")
    assert Bench(there).ready("to") == 20


def test_a_pause_keeps_a_shovel_that_is_to_end(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("to", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        fill(client, "from", 20)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to", src_delete_after="queue-length",
                  dest_add_timestamp_header=True)  # fmt: skip
        until(lambda: bench.ready("to") == 5, "five fit")
        assert bench.api("PUT", "/api/shovels/%2F/s/pause?force=true").status == 204
        until(lambda: bench.state("s") == "Paused", "it is paused")
        fill(client, "from", 7)
        assert bench.ask("s", "resume") == 204
        assert len(bodies(client, "to", 20)) == 20
        until(lambda: bench.is_gone("s"), "it goes")
        assert client.queue("from").message_count == 7


def test_a_wrong_password_is_said_and_tried_again_and_not_shown(
    bench: Bench, broker_factory: BrokerFactory
) -> None:
    other = broker_factory()
    uri = f"amqp://guest:not-it@{other.host}:{other.port}"
    bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=uri, dest_queue="to")
    until(lambda: bench.state("s") == "Error", "it says so")
    assert "403" in bench.row("s")["error"] and "not-it" not in str(bench.row("s"))
    bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=other.uri, dest_queue="to")
    until(lambda: bench.state("s") == "Running", "it runs")


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_message_cannot_choose_other_queues_of_this_broker(
    bench: Bench, is_rewritten: bool
) -> None:
    """Who may publish to the source has no rights elsewhere; the shovel acts as an insider."""
    with Client(bench.broker.uri) as client:
        client.queue("secret")
        client.producer("from").publish(b"x", headers={"CC": ["secret"], "k": 1}).result(WAIT_S)
        client.purge("secret")
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to",
                  dest_add_timestamp_header=is_rewritten)  # fmt: skip
        with client.consumer("to") as consumer:
            message = consumer.get(WAIT_S)
        assert message is not None and message.headers["k"] == 1
        assert ("CC" in message.headers) is not is_rewritten
        assert client.queue("secret", passive=True).message_count == 0


def test_what_a_local_shovel_takes_nobody_else_gets(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("from")
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
        until(lambda: bench.state("s") == "Running", "it runs")
        with pytest.raises(AccessRefused):
            client.consumer("from", declare=False)
        assert bench.api.get("/api/queues/%2F/from")["consumers"] == 1


def test_a_queue_with_consumers_is_waited_for(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        with client.consumer("from"):
            bench.put("s", **LOCAL, src_queue="from", dest_queue="to", reconnect_delay=0)
            until(lambda: "403" in (bench.row("s")["error"] or ""), "it says why")
        until(lambda: bench.state("s") == "Running", "it runs")


@pytest.mark.parametrize("gone", ["from", "to"])
def test_a_queue_that_is_deleted_is_declared_again(bench: Bench, gone: str) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 10)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to", reconnect_delay=0)
        until(lambda: bench.ready("to") == 10, "they are there")
        assert bench.api("DELETE", f"/api/queues/%2F/{gone}").status == 204
        until(lambda: gone in [each["name"] for each in bench.api.get("/api/queues")], "it is back")
        until(lambda: bench.state("s") == "Running", "it runs")
        fill(client, "from", 5)
        until(lambda: bench.ready("to") == (15 if gone == "from" else 5), "the new ones arrive")


def test_a_queue_that_is_paused_keeps_its_messages(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("from")
        assert bench.api("PUT", "/api/queues/%2F/from/pause").status == 204
        fill(client, "from", 3)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
        until(lambda: bench.state("s") == "Running", "it runs")
        assert bench.ready("from") == 3
        assert bench.api("PUT", "/api/queues/%2F/from/resume").status == 204
        assert len(bodies(client, "to", 3)) == 3


def test_messages_move_to_another_virtual_host_and_to_a_stream(bench: Bench) -> None:
    bench.api("PUT", "/api/vhosts/other", {})
    bench.api("PUT", "/api/permissions/other/guest",
              {"configure": ".*", "write": ".*", "read": ".*"})  # fmt: skip
    there = {"arguments": {"x-queue-type": "stream"}, "durable": True}
    assert bench.api("PUT", "/api/queues/other/to", there).status == 201
    with Client(bench.broker.uri) as client:
        fill(client, "from", 100)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri="amqp:///other",
                  dest_queue="to")  # fmt: skip
        until(lambda: bench.api.get("/api/queues/other/to")["messages"] == 100, "they are there")
        until(lambda: bench.ready("from") == 0, "the source forgets them")


def test_a_stream_is_read_on_where_it_was_left_over_restarts(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("log", arguments={"x-queue-type": "stream"})
        client.producer(exchange="", routing_key="log").publish_batch(
            [b"%d" % n for n in range(50)]
        ).result(WAIT_S)
        bench.put("s", **LOCAL, src_queue="log", dest_queue="to",
                  src_consumer_args={"x-stream-offset": 11})  # fmt: skip
        assert bodies(client, "to", 40) == [b"%d" % n for n in range(10, 50)]
    bench.broker.restart()
    with Client(bench.broker.uri) as client:
        until(lambda: bench.state("s") == "Running", "it runs")
        client.producer(exchange="", routing_key="log").publish(b"new").result(WAIT_S)
        assert bodies(client, "to", 1) == [b"new"]


def test_an_exchange_is_read_by_a_queue_of_its_own(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.exchange("x", "topic")
        bench.put("s", **LOCAL, src_exchange="x", src_exchange_key="a.#", dest_queue="to")
        until(lambda: bench.state("s") == "Running", "it runs")
        producer = client.producer(exchange="x", routing_key="")
        for key in ("a.1", "b.1", "a.2"):
            producer.publish(key.encode(), routing_key=key)
        producer.flush(WAIT_S)
        assert bodies(client, "to", 2) == [b"a.1", b"a.2"]


def test_headers_and_properties_are_added_on_request(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.producer("from").publish(b"x", headers={"k": 1}, priority=1).result(WAIT_S)
        bench.put("s", **LOCAL, src_queue="from", dest_queue="to", dest_add_forward_headers=True,
                  dest_add_timestamp_header=True,
                  dest_publish_properties={"priority": 7, "app_id": "moved"})  # fmt: skip
        with client.consumer("to") as consumer:
            message = consumer.get(WAIT_S)
        assert message is not None
        assert (message.priority, message.app_id, message.headers["k"]) == (7, "moved", 1)
        [entry] = message.headers["x-shovelled"]
        assert (entry["shovel-name"], entry["src-queue"], entry["dest-queue"]) == (
            "s", "from", "to"
        )  # fmt: skip
        assert abs(message.headers["x-shovelled-timestamp"] - time.time()) < 60


def test_the_header_names_the_place_that_a_message_went_to(
    bench: Bench, broker_factory: BrokerFactory
) -> None:
    """Also that of one which another place had refused before."""
    one, other = broker_factory(), broker_factory()
    with Client(one.uri) as there:
        there.queue("to", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with Client(bench.broker.uri) as client:
        producer = client.producer("from")
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=[one.uri, other.uri],
                  dest_queue="to", dest_add_forward_headers=True, reconnect_delay=0,
                  dest_failover="ordered")  # fmt: skip
        producer.publish(b"1").result(WAIT_S)
        until(lambda: bench.ready("from") == 0, "the first one has gone")
        producer.publish(b"2").result(WAIT_S)
        until(lambda: bench.row("s")["refused"], "the second one is refused")
        with Client(one.uri) as there, there.consumer("to") as consumer:
            first = consumer.get(WAIT_S)
        one.kill()
        with Client(other.uri) as there, there.consumer("to") as consumer:
            second = consumer.get(WAIT_S)
        for message, body, place in ((first, b"1", one), (second, b"2", other)):
            assert message is not None and message.body == body
            [entry] = message.headers["x-shovelled"]
            assert f":{place.port}" in entry["dest-uri"]


def test_deleting_it_ends_it(bench: Bench) -> None:
    bench.put("s", **LOCAL, src_queue="from", dest_queue="to")
    until(lambda: bench.state("s") == "Running", "it runs")
    assert len(bench.api.get("/api/connections")) == 1
    assert bench.api("DELETE", "/api/parameters/shovel/%2F/s").status == 204
    until(lambda: bench.api.get("/api/connections") == [], "its connections go")
