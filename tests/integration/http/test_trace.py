"""Tracing: what is seen of the messages that pass, by whom, and what it leaves as it was."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from lavinmq.http.api import trace
from tests.support.api import Api
from tests.support.managed import Managed, managed
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Managed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "EVERY_S", 0.02)
        with managed() as broker:
            yield broker


@pytest.fixture
def channel(broker: Managed) -> Iterator[Any]:
    connection = broker.connect()
    yield connection.channel()
    broker.disconnect()


class Trace:
    """Follows an exchange or a queue."""

    def __init__(self, api: Api, path: str, **body: Any) -> None:
        self._connection = http.client.HTTPConnection(
            api.broker.host, api.broker.http_port, timeout=20
        )
        content = json.dumps({"seconds": 20, "rate": 100} | body)
        headers = api.login | {"Content-Type": "application/json"}
        self._connection.request("POST", f"/api/{path}/trace", content, headers)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        if self.status == 200:
            assert json.loads(self.answer.readline()) == {"seen": 0, "shown": 0}

    def next(self) -> Any:
        """The next line, None at the end."""
        line = self.answer.readline()
        return json.loads(line) if line else None

    def message(self) -> Any:
        """The next message."""
        while "seen" in (one := self.next()):
            pass
        return one

    def until_seen(self, n: int) -> tuple[list[Any], Any]:
        """Messages up to the line that says that n have passed; and that line."""
        messages = []
        while (one := self.next()).get("seen") != n:
            if "seen" not in one:
                messages.append(one)
        return messages, one

    def close(self) -> None:
        """Hang up."""
        self.answer.close()
        self._connection.close()


@pytest.fixture
def tracing() -> Iterator[Any]:
    traces: list[Trace] = []

    def open_(*given: Any, **body: Any) -> Trace:
        traces.append(Trace(*given, **body))
        return traces[-1]

    yield open_
    for each in traces:
        each.close()


def test_a_message_that_passes_an_exchange_is_shown(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("orders", "topic")
    trace = tracing(broker.api, "exchanges/%2F/orders")

    properties = pika.BasicProperties(
        content_type="text/plain", headers={"BCC": ["hidden"], "shop": "here", "CC": ["copy"]}
    )
    channel.basic_publish("orders", "new.one", b"a body", properties)

    shown = trace.message()
    assert shown.pop("at") > 1_600_000_000_000
    assert shown == {
        "exchange": "orders", "routing_key": "new.one", "payload": "a body", "payload_bytes": 6,
        "payload_encoding": "string",
        "properties": {"content_type": "text/plain", "headers": {"shop": "here", "CC": ["copy"]}},
    }  # fmt: skip


def test_what_reaches_an_exchange_by_another_or_by_a_death_is_shown(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("behind", "fanout")
    channel.exchange_declare("before", "direct")
    channel.exchange_bind("behind", "before", "key")
    channel.queue_declare("dying", arguments={
        "x-max-length": 0, "x-dead-letter-exchange": "behind",
    })  # fmt: skip
    trace = tracing(broker.api, "exchanges/%2F/behind")

    channel.basic_publish("before", "key", b"bound")
    assert trace.message()["payload"] == "bound"
    channel.basic_publish("", "dying", b"dead")

    dead = trace.message()
    assert dead["payload"] == "dead"
    assert dead["properties"]["headers"]["x-death"][0]["queue"] == "dying"


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}, {"x-max-priority": 3}])
def test_a_message_that_arrives_in_a_queue_is_shown_and_stays(
    broker: Managed, channel: Any, tracing: Any, arguments: dict[str, Any]
) -> None:
    name = f"followed-{len(str(arguments))}"
    channel.queue_declare(name, durable=True, arguments=arguments)
    trace = tracing(broker.api, f"queues/%2F/{name}")

    channel.basic_publish("", name, b"\xff\xfe")

    shown = trace.message()
    assert (shown["payload"], shown["payload_encoding"]) == ("__4=", "base64")
    queue = broker.api.get(f"/api/queues/%2F/{name}")
    assert (queue["messages_ready"], queue["messages_unacknowledged"]) == (1, 0)


def test_a_publish_that_goes_nowhere_else_is_unroutable_as_ever(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("lonely", "direct")
    trace = tracing(broker.api, "exchanges/%2F/lonely")
    channel.confirm_delivery()

    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("lonely", "x", b"nowhere", mandatory=True)

    assert trace.message()["payload"] == "nowhere"
    stats = broker.api.get("/api/exchanges/%2F/lonely")["message_stats"]
    assert (stats["publish_in"], stats["publish_out"], stats["unroutable"]) == (1, 0, 1)


def test_a_followed_exchange_hands_on_as_ever(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.exchange_declare("handing", "direct")
    channel.queue_declare("handed")
    channel.queue_bind("handed", "handing", "x")
    trace = tracing(broker.api, "exchanges/%2F/handing")
    channel.confirm_delivery()

    for number in range(3):
        channel.basic_publish("handing", "x", b"%d" % number, mandatory=True)

    messages, said = trace.until_seen(3)
    assert messages[0]["payload"] == "0"
    assert said["shown"] == len(messages)
    assert [channel.basic_get("handed", True)[2] for _ in range(4)] == [b"0", b"1", b"2", None]
    stats = broker.api.get("/api/exchanges/%2F/handing")["message_stats"]
    assert (stats["publish_in"], stats["publish_out"], stats["unroutable"]) == (3, 3, 0)


def test_a_followed_queue_keeps_its_rules(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.queue_declare("cut-short", arguments={"x-max-length": 2})
    channel.queue_declare("plain")
    traces = [tracing(broker.api, f"queues/%2F/{name}") for name in ("cut-short", "plain")]

    for number in range(3):
        channel.basic_publish("", "cut-short", b"%d" % number)
    channel.basic_publish("", "plain", b"brief", pika.BasicProperties(expiration="0"))
    channel.basic_publish("", "plain", b"lasting")

    assert traces[0].until_seen(3)[0][0]["payload"] == "0"
    assert traces[1].until_seen(2)[0][0]["payload"] == "brief"
    assert [channel.basic_get("cut-short", True)[2] for _ in range(3)] == [b"1", b"2", None]
    assert [channel.basic_get("plain", True)[2] for _ in range(2)] == [b"lasting", None]


@pytest.mark.parametrize("path", ["queues/%2F/busy", "exchanges/%2F/amq.direct"])
def test_what_is_too_much_is_counted_only(
    broker: Managed, channel: Any, tracing: Any, path: str
) -> None:
    channel.queue_declare("busy")
    channel.queue_bind("busy", "amq.direct", "busy")
    trace = tracing(broker.api, path, rate=1, truncate=3)

    for number in range(500):
        channel.basic_publish("amq.direct", "busy", b"long body %d" % number)

    messages, said = trace.until_seen(500)
    assert said["shown"] == len(messages) < 20
    assert {(each["payload"], each["payload_bytes"] > 3) for each in messages} == {("lon", True)}


def test_all_ways_into_an_exchange_are_counted_once(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("in-front", "fanout")
    channel.exchange_declare("counted", "topic")
    channel.exchange_bind("counted", "in-front", "key")
    channel.queue_declare("last")
    channel.queue_bind("last", "counted", "#")
    channel.queue_declare("deadly", arguments={
        "x-max-length": 0, "x-dead-letter-exchange": "counted",
    })  # fmt: skip
    trace = tracing(broker.api, "exchanges/%2F/counted", rate=1)
    copied = pika.BasicProperties(headers={"CC": ["copy"]})

    for number in range(20):
        channel.basic_publish("counted", "one", b"direct")
        channel.basic_publish("counted", f"key-{number}", b"ever new")
        channel.basic_publish("counted", "one", b"with copies", copied)
        channel.basic_publish("in-front", "key", b"by another")
        channel.basic_publish("", "deadly", b"died")

    assert trace.until_seen(100)[1]["shown"] < 20
    assert channel.queue_declare("last", passive=True).method.message_count == 100


def test_what_waits_in_an_exchange_is_counted_when_it_passes(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("waiting", "x-delayed-message", arguments={
        "x-delayed-type": "direct",
    })  # fmt: skip
    channel.queue_declare("released")
    channel.queue_bind("released", "waiting", "x")
    trace = tracing(broker.api, "exchanges/%2F/waiting", rate=1)

    for _ in range(20):
        channel.basic_publish("waiting", "x", b"later", pika.BasicProperties(headers={
            "x-delay": 1,
        }))  # fmt: skip
        channel.basic_publish("waiting", "x", b"now")

    assert trace.until_seen(40)[1]["shown"] < 20
    wait_for(
        lambda: channel.queue_declare("released", passive=True).method.message_count == 40,
        "all are released",
    )


def test_what_a_queue_refuses_does_not_pass(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.queue_declare("narrow", arguments={
        "x-max-length": 1, "x-overflow": "reject-publish",
    })  # fmt: skip
    trace = tracing(broker.api, "queues/%2F/narrow")
    channel.basic_publish("", "narrow", b"first")
    assert trace.message()["payload"] == "first"
    channel.basic_publish("", "narrow", b"refused")
    assert channel.basic_get("narrow", True)[2] == b"first"
    channel.basic_publish("", "narrow", b"second")

    messages, said = trace.until_seen(2)

    assert [each["payload"] for each in messages] == ["second"]
    assert said == {"seen": 2, "shown": 2}


def test_a_trace_is_no_latency(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.queue_declare("lasting")
    core = broker.inner.vhosts["/"].queues["lasting"].core
    before = broker.inner.request_times.values()

    for _ in range(2):
        trace = tracing(broker.api, "queues/%2F/lasting")
        assert trace.status == 200
        trace.close()
        wait_for(lambda: not core.is_followed, "who has gone follows no more")
        channel.queue_declare("lasting")  # a turn later

    assert broker.inner.request_times.values() == before


def test_of_a_large_message_the_head_alone_is_shown(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.queue_declare("large", durable=True)
    trace = tracing(broker.api, "queues/%2F/large")

    channel.basic_publish("", "large", bytes(3 << 20))

    shown = trace.message()
    assert (shown["payload"], shown["payload_bytes"]) == ("", 3 << 20)


def test_a_trace_ends_with_its_time_and_leaves_nothing(
    broker: Managed, channel: Any, tracing: Any
) -> None:
    channel.exchange_declare("brief", "direct")
    channel.queue_declare("brief")
    for path in ("exchanges/%2F/brief", "queues/%2F/brief"):
        trace = tracing(broker.api, path, seconds=1)
        while trace.next() is not None:
            pass
    inner = broker.inner.vhosts["/"]

    assert not inner.exchanges["brief"].core.is_followed
    assert not inner.queues["brief"].core.is_followed
    channel.basic_publish("", "brief", b"afterwards")
    assert tracing(broker.api, "queues/%2F/brief").status == 200


def test_one_at_a_time_follows_a_thing(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.exchange_declare("popular", "direct")
    first = tracing(broker.api, "exchanges/%2F/popular")

    assert tracing(broker.api, "exchanges/%2F/popular").status == 503

    first.close()
    core = broker.inner.vhosts["/"].exchanges["popular"].core
    wait_for(lambda: not core.is_followed, "who has gone follows no more")


def test_what_is_deleted_ends_no_broker(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.exchange_declare("short", "fanout")
    channel.queue_declare("short")
    tracing(broker.api, "exchanges/%2F/short")
    tracing(broker.api, "queues/%2F/short")
    channel.queue_bind("short", "short")
    channel.basic_publish("short", "", b"once")

    channel.queue_delete("short")
    channel.exchange_delete("short")

    assert broker.api.get("/api/overview")


def test_traces_are_bounded(
    broker: Managed, channel: Any, tracing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_TRACES", 0)
    channel.queue_declare("bounded")

    assert tracing(broker.api, "queues/%2F/bounded").status == 503


@pytest.mark.parametrize(
    "body", [{"seconds": 61}, {"rate": 0}, {"rate": 101}, {"truncate": 4097}, {"encoding": "x"}]
)
def test_what_cannot_be_is_refused(
    broker: Managed, channel: Any, tracing: Any, body: dict[str, Any]
) -> None:
    channel.queue_declare("asked")

    assert tracing(broker.api, "queues/%2F/asked", **body).status == 400


def test_the_default_exchange_is_not_followed(broker: Managed, tracing: Any) -> None:
    assert tracing(broker.api, "exchanges/%2F/amq.default").status == 400
    assert tracing(broker.api, "exchanges/%2F/nothing").status == 404


def test_who_may_not_read_sees_nothing(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.queue_declare("private")
    watcher = broker.user("only_looks", "monitoring", vhost="/")
    other = broker.api.as_user("reads_others", "management", **{"/": ("^x", "^x", "^x")})

    for api in (watcher, other):
        assert tracing(api, "queues/%2F/private").status == 403
        assert tracing(api, "exchanges/%2F/amq.topic").status == 403


def test_who_may_read_some_keys_does_not_see_all(broker: Managed, tracing: Any) -> None:
    user = broker.user("some_keys", "management", vhost="/")
    given = {"exchange": "amq.topic", "write": ".*", "read": "^mine"}
    assert broker.api("PUT", "/api/topic-permissions/%2F/some_keys", given).status < 300

    assert tracing(user, "exchanges/%2F/amq.topic").status == 403


def test_a_trace_ends_with_the_right_to_read(broker: Managed, channel: Any, tracing: Any) -> None:
    channel.queue_declare("narrowing")
    trace = tracing(broker.user("narrows", "management", vhost="/"), "queues/%2F/narrowing")
    assert trace.status == 200

    broker.api("DELETE", "/api/permissions/%2F/narrows")

    while trace.next() is not None:
        pass
