"""Webhooks: what a server is asked, and what becomes of messages after each answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.integration.shovel.conftest import WAIT_S, Bench, bodies, fill, until
from tests.support.hook_server import Asked, HookServer

DEADLINE_S = 150.0


@pytest.fixture
def server() -> Iterator[HookServer]:
    with HookServer() as found:
        yield found


@pytest.fixture
def client(bench: Bench) -> Iterator[Client]:
    with Client(bench.broker.uri) as found:
        found.queue("from")
        yield found


def post(bench: Bench, server: HookServer, path: str = "/hook", **more: Any) -> None:
    """Set the shovel `s`."""
    values = {"src_uri": "amqp://", "src_queue": "from", "reconnect_delay": 0} | more
    bench.put("s", dest_uri=f"{server.uri}{path}", **values)


def settled(bench: Bench) -> None:
    until(lambda: bench.ready("from") == 0, "the source forgets them")


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_are_posted_and_forgotten(
    bench: Bench, server: HookServer, client: Client, mode: str
) -> None:
    fill(client, "from", 500)
    post(bench, server, ack_mode=mode)
    until(lambda: len(server.asked) == 500, "all arrive")
    settled(bench)
    assert sorted(int(each.body) for each in server.asked) == list(range(500))
    assert server.connections <= 16  # they are kept open
    row = bench.row("s")
    assert (row["state"], row["confirmed"], row["requests"]) == ("Running", 500, 500)


def test_what_a_message_says_is_told_in_the_head(
    bench: Bench, server: HookServer, client: Client
) -> None:
    client.producer("from").publish(
        b"{}", content_type="application/json", message_id="m-1",
        headers={"region": "eu", "n": 5, "ok": True, "list": [1], "evil": "a\r\nX-Injected: 1",
                 "bad name": "x", "Content-Length": "7", "name": "Ærø"},
    ).result(WAIT_S)  # fmt: skip
    post(bench, server, "/a%20b?token=t&x=1", dest_headers={"Authorization": "Bearer b"})
    until(lambda: server.asked, "it arrives")
    [asked] = server.asked
    head = asked.headers
    assert (asked.path, asked.body) == ("/a%20b?token=t&x=1", b"{}")
    assert head["user-agent"] == "LavinMQ" and head["x-shovel"] == "s"
    assert head["content-type"] == "application/json" and head["x-message-id"] == "m-1"
    assert (head["x-region"], head["x-n"], head["x-ok"], head["x-list"]) == (
        "eu", "5", "true", "[1]"
    )  # fmt: skip
    assert "x-injected" not in head and head["x-evil"] == "a  X-Injected: 1"
    assert head["content-length"] == "2" and head["authorization"] == "Bearer b"
    assert head["x-name"].encode("latin-1").decode() == "Ærø"


def test_user_and_password_become_basic_authentication(
    bench: Bench, server: HookServer, client: Client
) -> None:
    fill(client, "from", 1)
    uri = server.uri.replace("//", "//us%40er:pass%3Aword@")
    bench.put("s", dest_uri=f"{uri}/hook?a=1&b", src_uri="amqp://", src_queue="from")
    until(lambda: server.asked, "it arrives")
    assert server.asked[0].path == "/hook?a=1&b"
    given = server.asked[0].headers["authorization"]
    assert base64.b64decode(given.removeprefix("Basic ")) == b"us@er:pass:word"
    assert "pass" not in str(bench.row("s"))


@pytest.mark.parametrize(
    ("said", "path"),
    [("/x?y=1", "/x?y=1"), ("//evil/x", "/evil/x"), ("a b\r\nc", "/a%20b%0D%0Ac"), (5, "/")],
)
def test_a_message_may_say_the_path_where_the_uri_has_none(
    bench: Bench, server: HookServer, client: Client, said: Any, path: str
) -> None:
    client.producer("from").publish(b"x", headers={"uri_path": said}).result(WAIT_S)
    post(bench, server, "")
    until(lambda: server.asked, "it arrives")
    assert server.asked[0].path == path


def test_many_are_in_flight_and_no_more_than_asked_for(
    bench: Bench, server: HookServer, client: Client
) -> None:
    gate = threading.Event()

    def answer(_: Asked) -> tuple[int, dict[str, str], bytes]:
        gate.wait(WAIT_S)
        return 200, {}, b""

    server.answer = answer
    fill(client, "from", 40)
    post(bench, server, dest_in_flight=7)
    until(lambda: server.at_once == 7, "seven at once")
    time.sleep(0.1)
    assert server.at_once == 7
    gate.set()
    settled(bench)
    assert server.most_at_once == 7 and len(server.asked) == 40


@pytest.mark.parametrize("order", ["routing-key", "header:customer", "queue"])
def test_the_order_of_a_key_is_kept_even_when_some_are_sent_again(
    bench: Bench, server: HookServer, client: Client, order: str
) -> None:
    client.exchange("x", "topic")
    client.bind("from", "x", "#")
    refused: set[bytes] = set()

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if int(asked.body) % 5 == 0 and asked.body not in refused:
            refused.add(asked.body)
            return 500, {}, b""
        return 200, {}, b""

    server.answer = answer
    producer = client.producer(exchange="x", routing_key="")
    for n in range(40):
        producer.publish(b"%d" % n, routing_key=f"k{n % 4}", headers={"customer": n % 4})
    producer.flush(WAIT_S)
    post(bench, server, dest_order_by=order)
    settled(bench)
    delivered: list[int] = []
    seen: set[bytes] = set()
    for asked in server.asked:
        if asked.body in refused and asked.body not in seen:
            seen.add(asked.body)  # the attempt that was refused
        else:
            delivered.append(int(asked.body))
    assert sorted(delivered) == list(range(40))
    for key in range(4):
        own = [n for n in delivered if n % 4 == key]
        assert own == sorted(own)
    assert order != "queue" or delivered == list(range(40))


def test_batches_of_json(bench: Bench, server: HookServer, client: Client) -> None:
    fill(client, "from", 25)
    client.producer("from").publish(b"\xff", headers={"k": 1}).result(WAIT_S)
    post(bench, server, dest_format="json", dest_batch_size=10, dest_order_by="queue")
    settled(bench)
    rows = [row for asked in server.asked for row in json.loads(asked.body)]
    assert [row["payload"] for row in rows[:25]] == [str(n) for n in range(25)]
    assert rows[0]["routing_key"] == "from" and rows[0]["payload_encoding"] == "string"
    assert (rows[25]["payload"], rows[25]["payload_encoding"]) == ("/w==", "base64")
    assert rows[25]["properties"]["headers"] == {"k": 1}
    assert len(server.asked) < 26
    assert server.asked[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("batch", [1, 5])
def test_cloudevents(bench: Bench, server: HookServer, client: Client, batch: int) -> None:
    client.producer("from").publish(
        b'{"a":1}', content_type="application/json", message_id="m", type="order.made"
    ).result(WAIT_S)
    post(bench, server, dest_format="cloudevents", dest_batch_size=batch)
    settled(bench)
    [asked] = server.asked
    kind = "application/cloudevents+json" if batch == 1 else "application/cloudevents-batch+json"
    assert asked.headers["content-type"] == kind
    found = json.loads(asked.body)
    [event] = [found] if batch == 1 else found
    assert event == {
        "specversion": "1.0", "id": "m", "source": "/lavinmq/%2F/shovel/s", "type": "order.made",
        "subject": "from", "datacontenttype": "application/json", "data": {"a": 1},
    }  # fmt: skip


def test_requests_are_signed(bench: Bench, server: HookServer, client: Client) -> None:
    secret = b"a secret of ours"
    client.producer("from").publish(b"body", message_id="m").result(WAIT_S)
    client.producer("from").publish(b"two").result(WAIT_S)
    post(bench, server, dest_secret="whsec_" + base64.b64encode(secret).decode())
    settled(bench)
    for asked in server.asked:
        head = asked.headers
        signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + asked.body
        wanted = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
        assert head["webhook-signature"] == f"v1,{wanted}"
        assert abs(int(head["webhook-timestamp"]) - time.time()) < 60
    assert len({asked.headers["webhook-id"] for asked in server.asked}) == 2


@pytest.mark.parametrize("status", [500, 503, 429, 404, 302, 0])
def test_what_is_refused_is_tried_again_and_stays_at_the_source(
    bench: Bench, server: HookServer, client: Client, status: int
) -> None:
    server.answer = lambda _: (status, {"Location": "/hook", "Retry-After": "0"}, b"not now")
    fill(client, "from", 3)
    post(bench, server)
    until(lambda: len(server.asked) >= 3, "they are tried")
    assert bench.ready("from") == 3
    until(lambda: bench.row("s")["error"], "it says why")
    assert {asked.path for asked in server.asked} == {"/hook"}  # redirects are not followed
    server.answer = lambda _: (200, {}, b"")
    settled(bench)
    until(lambda: bench.state("s") == "Running", "it runs")


def test_retry_after_is_waited_for(bench: Bench, server: HookServer, client: Client) -> None:
    times: list[float] = []

    def answer(_: Asked) -> tuple[int, dict[str, str], bytes]:
        times.append(time.monotonic())
        return (503, {"Retry-After": "1"}, b"") if len(times) == 1 else (200, {}, b"")

    server.answer = answer
    fill(client, "from", 1)
    post(bench, server)
    settled(bench)
    assert len(times) == 2 and times[1] - times[0] >= 1


def test_what_is_wrong_with_a_message_sends_it_to_its_dead_letters(
    bench: Bench, server: HookServer, client: Client
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.queue("dead")
    client.queue("letters", arguments=arguments)
    server.answer = lambda asked: (422 if asked.body == b"1" else 200, {}, b"what is that?")
    fill(client, "letters", 3)
    post(bench, server, src_queue="letters")
    assert bodies(client, "dead", 1) == [b"1"]
    until(lambda: bench.ready("letters") == 0, "the others are delivered")
    assert bench.row("s")["dead_lettered"] == 1


def test_without_dead_letters_nothing_is_dropped(
    bench: Bench, server: HookServer, client: Client
) -> None:
    server.answer = lambda _: (400, {}, b"no")
    fill(client, "from", 1)
    post(bench, server)
    until(lambda: "no dead-letter exchange" in (bench.row("s")["error"] or ""), "it says so")
    assert bench.ready("from") == 1
    post(bench, server, dest_outcomes={"4xx": "delivered"})
    settled(bench)


def test_who_is_gone_stops_it(bench: Bench, server: HookServer, client: Client) -> None:
    server.answer = lambda _: (410, {}, b"")
    fill(client, "from", 5)
    post(bench, server)
    until(lambda: bench.state("s") == "Paused", "it stops")
    assert "410" in bench.row("s")["error"] and bench.ready("from") == 5
    bench.broker.restart()
    assert bench.state("s") == "Paused"
    server.answer = lambda _: (200, {}, b"")
    assert bench.ask("s", "resume") == 204
    settled(bench)


def test_another_server_is_asked_when_one_is_down(
    bench: Bench, server: HookServer, client: Client
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        fill(client, "from", 5)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=[nobody, server.uri],
                  dest_failover="ordered", reconnect_delay=60)  # fmt: skip
        settled(bench)
    assert len(server.asked) == 5


def answering(*pieces: bytes, pause_s: float = 0.0) -> tuple[socket.socket, threading.Thread]:
    """A server that sends the same bytes to everybody, whatever is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.recv(65536)
                    for piece in pieces:
                        peer.sendall(piece)
                        time.sleep(pause_s)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([b"SSH-2.0-OpenSSH\r\n"], "no HTTP"),
        ([b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 70_000], "more than 65536 bytes"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"], "no HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], "connection"),
        ([b""], "connection"),
    ],
)  # fmt: skip
def test_a_peer_that_speaks_nonsense_costs_nothing_and_is_named(
    bench: Bench, client: Client, pieces: list[bytes], why: str
) -> None:
    listener, _ = answering(*pieces)
    with listener:
        fill(client, "from", 1)
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=uri, reconnect_delay=0)
        until(lambda: why in (bench.row("s")["error"] or ""), "it says why")
        assert bench.ready("from") == 1
        assert bench.state("s") == "Error"


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (b"", b"1\r\nx\r\n" * 10_000),
        (b"0\r\nX: ", b"a" * 65536),
        (b"0\r\n", b"X: a\r\n" * 10_000),
        (b"1;", b"a" * 65536),
    ],
    ids=["body", "small chunks", "trailer", "trailers", "extension"],
)
def test_an_endless_answer_is_cut_and_counts_by_its_status(
    bench: Bench, client: Client, first: bytes, piece: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    listener, _ = answering(head + first, *[piece] * 100)
    with listener:
        fill(client, "from", 1)
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=uri)
        settled(bench)


def test_a_peer_that_never_answers_is_given_up(bench: Bench, client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fill(client, "from", 1)
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri=uri, dest_timeout=1)
        until(lambda: "no answer within 1 s" in (bench.row("s")["error"] or ""), "it says so")
        assert bench.ready("from") == 1


def test_no_webhook_reaches_a_metadata_service(bench: Bench, client: Client) -> None:
    fill(client, "from", 1)
    for number, host in enumerate(["169.254.169.254", "[::ffff:169.254.169.254]"]):
        bench.put(f"s{number}", src_uri="amqp://", src_queue="from", dest_uri=f"http://{host}/")
    until(lambda: any("link-local" in (bench.row(n)["error"] or "") for n in ("s0", "s1")), "no")
    assert bench.ready("from") == 1


def test_private_networks_can_be_forbidden(
    broker_factory: BrokerFactory, server: HookServer
) -> None:
    broker = broker_factory(["--config", "/dev/null"], http=True, start=False)
    config = broker.data_dir.parent / "private.ini"
    config.write_text("[main]\nwebhook_private_networks = false\n")
    broker = broker_factory(["--config", str(config)], http=True)
    bench = Bench(broker)
    with Client(broker.uri) as client:
        client.queue("from")
        fill(client, "from", 1)
        post(bench, server)
        until(lambda: "private" in (bench.row("s")["error"] or ""), "it says so")
    assert not server.asked and bench.ready("from") == 1


def test_all_is_moved_once_and_the_shovel_goes(
    bench: Bench, server: HookServer, client: Client
) -> None:
    fill(client, "from", 250)
    post(bench, server, src_delete_after="queue-length", src_prefetch_count=20)
    until(lambda: bench.is_gone("s"), "it goes")
    assert sorted(int(asked.body) for asked in server.asked) == list(range(250))
    assert bench.ready("from") == 0


def test_nothing_is_lost_when_the_broker_is_killed(
    bench: Bench, server: HookServer, client: Client
) -> None:
    server.answer = lambda _: (time.sleep(0.001), (200, {}, b""))[1]  # type: ignore[func-returns-value]
    fill(client, "from", 2000)
    post(bench, server)
    until(lambda: len(server.asked) > 200, "it has begun")
    bench.broker.kill()
    bench.broker.start()
    until(lambda: bench.ready("from") == 0, "the rest arrives")
    assert {int(asked.body) for asked in server.asked} == set(range(2000))


@pytest.mark.parametrize("form", ["raw", "json"])
def test_large_messages_are_posted_one_by_one(
    bench: Bench, server: HookServer, client: Client, form: str
) -> None:
    client.producer("from").publish_batch([b"x" * 3_000_000] * 4).result(WAIT_S)
    post(bench, server, dest_format=form, dest_secret="a long secret",
         **({"dest_batch_size": 100} if form == "json" else {}))  # fmt: skip
    settled(bench)
    assert len(server.asked) == 4
    assert all(len(asked.body) >= 3_000_000 for asked in server.asked)


def test_what_is_too_large_for_json_stays_at_the_source(
    bench: Bench, server: HookServer, client: Client
) -> None:
    client.producer("from").publish(b"x" * 5_000_000).result(WAIT_S)
    post(bench, server, dest_format="json")
    until(lambda: "are not made JSON of" in (bench.row("s")["error"] or ""), "it says why")
    assert bench.ready("from") == 1 and not server.asked


def test_one_of_which_no_request_can_be_made_holds_up_no_other(
    bench: Bench, server: HookServer, client: Client
) -> None:
    """It is the first on its connection: nothing else is under way that would end."""
    producer = client.producer("from")
    producer.publish(b"bad", headers={"uri_path": "\udcff"}).result(WAIT_S)
    fill(client, "from", 3)
    post(bench, server, "", dest_in_flight=1)
    until(lambda: len(server.asked) == 3, "the others arrive", 10)
    assert [each.body for each in server.asked] == [b"0", b"1", b"2"]
    until(lambda: bench.ready("from") == 1, "it stays at the source")
