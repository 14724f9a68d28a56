"""The bridge: topics that AMQP and MQTT share, with clients of both."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_peer import Peer

pytest.importorskip("paho.mqtt.client")

from tests.support.paho_peer import TIMEOUT_S, PahoPeer, properties

V311, V5 = 4, 5
NewPeer = Callable[..., PahoPeer]


class Amqp:
    """A channel with confirms and a queue of its own, which is bound as told."""

    def __init__(self, broker: Broker, vhost: str = "/") -> None:
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port, vhost, heartbeat=0)
        )
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.queue = str(self.channel.queue_declare("", exclusive=True).method.queue)

    def bind(self, key: str, exchange: str = "amq.topic") -> Amqp:
        self.channel.queue_bind(self.queue, exchange, key)
        return self

    def get(self, queue: str = "") -> tuple[Any, pika.BasicProperties, bytes]:
        """The next message, which has to come."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            method, props, body = self.channel.basic_get(queue or self.queue, auto_ack=True)
            if method is not None:
                assert props is not None
                assert body is not None
                return method, props, body
            assert time.monotonic() < until, "no message has come"
            time.sleep(0.01)

    def publish(self, key: str, body: bytes, exchange: str = "amq.topic", **props: Any) -> None:
        props.setdefault("delivery_mode", 2)
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**props))


@pytest.fixture
def amqp(mqtt: Broker) -> Iterator[Amqp]:
    made = Amqp(mqtt)
    yield made
    made.connection.close()


@pytest.fixture
def paho(mqtt: Broker) -> Iterator[NewPeer]:
    """Call it with a version and a client identifier."""
    with ExitStack() as stack:
        yield lambda version=V311, client_id="", **more: stack.enter_context(
            PahoPeer(mqtt.mqtt_port, version, client_id, **more)
        )


@pytest.fixture
def api(mqtt: Broker) -> Api:
    return Api(mqtt)


@pytest.fixture
def word() -> str:
    """A level of topics that no other test has."""
    return uuid.uuid4().hex[:12]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_of_mqtt_reaches_a_queue_of_amqp(
    amqp: Amqp, paho: NewPeer, word: str, qos: int
) -> None:
    amqp.bind(f"{word}.*.temperature")

    paho().publish(f"{word}/room/temperature", b"21", qos)

    method, props, body = amqp.get()
    assert (method.exchange, method.routing_key, body) == (
        "amq.topic", f"{word}.room.temperature", b"21",
    )  # fmt: skip
    assert props.delivery_mode == (2 if qos else 1)


def test_a_publish_of_amqp_reaches_subscriptions(amqp: Amqp, paho: NewPeer, word: str) -> None:
    plus, all_, other = paho(), paho(V5), paho()
    assert plus.subscribe((f"{word}/+/b", 1)) == [1]
    assert all_.subscribe((f"{word}/#", 2), (f"{word}/a/b", 0)) == [2, 0]
    other.subscribe((f"{word}/c", 1))

    amqp.publish(f"{word}.a.b", b"hello")

    got = plus.message()
    assert (got.topic, got.payload, got.qos, got.retain) == (f"{word}/a/b", b"hello", 1, False)
    got = all_.message()
    assert (got.topic, got.payload, got.qos) == (f"{word}/a/b", b"hello", 1)
    assert all_.is_empty
    assert other.is_empty


def test_transient_messages_of_amqp_have_qos_0(amqp: Amqp, paho: NewPeer, word: str) -> None:
    reader = paho()
    reader.subscribe((f"{word}/t", 2))

    amqp.publish(f"{word}.t", b"x", delivery_mode=1)

    assert reader.message().qos == 0


@pytest.mark.parametrize("topic", ["a.b/c", "a/b.c/", "/x", "å.ä/ö", "a//b", "*.x/y", "é/日本.語"])
def test_topics_with_dots_and_slashes_survive_the_way_there_and_back(
    amqp: Amqp, paho: NewPeer, word: str, topic: str
) -> None:
    """DEV-13: a queue of AMQP passes on what it has got, by its routing key."""
    amqp.bind("#")
    reader = paho()
    reader.subscribe((f"back/{word}/{topic}", 1))
    paho().publish(f"{word}/{topic}", b"x")

    key = amqp.get()[0].routing_key
    while not key.startswith(word):
        key = amqp.get()[0].routing_key
    amqp.publish(f"back.{key}", b"y")

    assert reader.message().topic == f"back/{word}/{topic}"


def test_properties_of_version_5_are_those_of_amqp(amqp: Amqp, paho: NewPeer, word: str) -> None:
    amqp.bind(f"{word}.#")

    paho(V5).publish(
        f"{word}/t", b"{}", 1,
        properties=properties(
            ContentType="application/json", CorrelationData=b"c1", ResponseTopic="answers/a.b",
            MessageExpiryInterval=60, UserProperty=[("color", "red"), ("CC", "other")],
            PayloadFormatIndicator=1,
        ),
    )  # fmt: skip

    _, props, _ = amqp.get()
    assert props.content_type == "application/json"
    assert props.correlation_id == "c1"
    assert props.reply_to == "answers.a/b"
    assert props.expiration == "60000"
    assert props.headers == {"color": "red"}
    assert props.delivery_mode == 2


def test_properties_of_amqp_are_those_of_version_5(amqp: Amqp, paho: NewPeer, word: str) -> None:
    reader = paho(V5)
    reader.subscribe((f"{word}/t", 1))

    amqp.publish(
        f"{word}.t", b"{}", content_type="application/json", correlation_id="c1",
        reply_to="answers.a/b", expiration="60000",
        headers={"color": "red", "n": 7, "yes": True, "list": [1]},
    )  # fmt: skip

    got = reader.message().properties
    assert got.ContentType == "application/json"
    assert got.CorrelationData == b"c1"
    assert got.ResponseTopic == "answers/a.b"
    assert 55 <= got.MessageExpiryInterval <= 60
    assert got.UserProperty == [("color", "red"), ("n", "7"), ("yes", "true")]


def test_long_properties_survive_the_way_there_and_back(
    amqp: Amqp, paho: NewPeer, word: str
) -> None:
    amqp.bind(f"{word}.#")
    reader = paho(V5)
    reader.subscribe((f"back/{word}", 1))
    given = {"CorrelationData": bytes(range(256)) * 2, "ResponseTopic": "r/" * 200}
    paho(V5).publish(f"{word}/t", b"", 1, properties=properties(**given))

    _, props, body = amqp.get()
    amqp.channel.basic_publish("amq.topic", f"back.{word}", body, props)

    got = reader.message().properties
    assert got.CorrelationData == given["CorrelationData"]
    assert got.ResponseTopic == given["ResponseTopic"]


def test_requests_of_mqtt_are_answered_by_amqp(amqp: Amqp, paho: NewPeer, word: str) -> None:
    amqp.bind(f"{word}.question")
    asker = paho(V5)
    asker.subscribe((f"{word}/answer", 1))
    asker.publish(
        f"{word}/question", b"?", 1,
        properties=properties(ResponseTopic=f"{word}/answer", CorrelationData=b"7"),
    )  # fmt: skip

    _, props, _ = amqp.get()
    amqp.publish(str(props.reply_to), b"!", correlation_id=props.correlation_id)

    got = asker.message()
    assert (got.payload, got.properties.CorrelationData) == (b"!", b"7")


def test_identifiers_of_all_subscriptions_come_with_a_message_of_amqp(
    amqp: Amqp, mqtt: Broker, word: str
) -> None:
    with Peer(mqtt.mqtt_port, V5) as reader:
        reader.connect(word)
        for at, text in ((3, f"{word}/+"), (500, f"{word}/#")):
            given = mqtt_bytes.block(b"\x0b" + mqtt_bytes.varint(at))
            reader.subscribe((text, 1), properties=given)

        amqp.publish(f"{word}.t", b"x")

        got = reader.message().properties
        assert got in (b"\x0b\x03\x0b\xf4\x03", b"\x0b\xf4\x03\x0b\x03")


def test_messages_of_amqp_wait_for_a_session_of_qos_1_alone(
    amqp: Amqp, paho: NewPeer, word: str
) -> None:
    reader = paho(V311, f"r-{word}", clean_session=False)
    reader.subscribe((f"{word}/one", 1), (f"{word}/zero", 0))
    reader.close()

    amqp.publish(f"{word}.zero", b"0")
    amqp.publish(f"{word}.one", b"1")
    amqp.publish(f"{word}.one", b"t", delivery_mode=1)

    reader = paho(V311, f"r-{word}", clean_session=False)
    assert reader.message().payload == b"1"
    amqp.publish(f"{word}.one", b"2")
    assert reader.message().payload == b"2"


def test_a_shared_subscription_gets_messages_of_amqp_once(
    amqp: Amqp, paho: NewPeer, word: str
) -> None:
    members = [paho(), paho()]
    for member in members:
        member.subscribe((f"$share/g/{word}/#", 1))

    for n in range(10):
        amqp.publish(f"{word}.{n}", b"%d" % n)

    until = time.monotonic() + TIMEOUT_S
    got: list[int] = []
    while len(got) < 10 and time.monotonic() < until:
        for member in members:
            while not member.is_empty:
                got.append(int(member.message().payload))
        time.sleep(0.01)
    assert sorted(got) == list(range(10))


def test_a_message_of_mqtt_does_not_come_back(amqp: Amqp, paho: NewPeer, word: str) -> None:
    """No loops: not by the bridge, and not by exchanges that are bound in a circle."""
    amqp.channel.exchange_declare(word, "topic")
    amqp.channel.exchange_bind(word, "amq.topic", "#")
    amqp.channel.exchange_bind("amq.topic", word, "#")
    amqp.bind(f"{word}.#")
    reader = paho()
    reader.subscribe((f"{word}/#", 1))

    reader.publish(f"{word}/t", b"x")
    amqp.publish(f"{word}.end", b"end", exchange=word)

    assert [reader.message().payload, reader.message().payload] == [b"x", b"end"]
    assert [amqp.get()[2], amqp.get()[2]] == [b"x", b"end"]
    amqp.channel.exchange_delete(word)


def test_a_will_crosses(amqp: Amqp, mqtt: Broker, word: str) -> None:
    amqp.bind(f"{word}.#")
    with Peer(mqtt.mqtt_port, V311) as peer:
        peer.connect(word, will=(f"{word}/will", b"gone", 1, False))

    method, _, body = amqp.get()
    assert (method.routing_key, body) == (f"{word}.will", b"gone")


def test_a_dead_letter_of_a_session_has_the_key_of_its_topic(
    api: Api, amqp: Amqp, paho: NewPeer, word: str
) -> None:
    api("PUT", f"/api/policies/%2F/{word}", {
        "pattern": f"^mqtt.r-{word}$", "apply-to": "queues",
        "definition": {"dead-letter-exchange": "amq.topic", "max-length": 1},
    })  # fmt: skip
    amqp.bind(f"dead.{word}.#")
    reader = paho(V311, f"r-{word}", clean_session=False)
    reader.subscribe((f"dead/{word}/#", 1))
    reader.close()
    sender = paho()

    for body in (b"1", b"2"):
        sender.publish(f"dead/{word}/t", body)

    seen = [amqp.get() for _ in range(3)]  # both as they were published, and the first again
    assert [body for _, _, body in seen].count(b"1") == 2
    assert {method.routing_key for method, _, _ in seen} == {f"dead.{word}.t"}
    api("DELETE", f"/api/policies/%2F/{word}")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_dead_letter_of_a_session_has_all_that_was_published(
    api: Api, amqp: Amqp, paho: NewPeer, word: str, qos: int
) -> None:
    """It was a record of MQTT: QoS 1 came as transient, its properties as one header of bytes."""
    api("PUT", f"/api/policies/%2F/{word}", {
        "pattern": f"^mqtt.r-{word}$", "apply-to": "queues",
        "definition": {
            "dead-letter-exchange": "amq.topic", "dead-letter-routing-key": f"dead.{word}",
            "max-length": 0,
        },
    })  # fmt: skip
    amqp.bind(f"dead.{word}")
    back = paho(V5, f"b-{word}")
    back.subscribe((f"dead/{word}", 2))
    reader = paho(V311, f"r-{word}", clean_session=False)
    reader.subscribe((word, 2))
    reader.close()
    said = properties(
        ContentType="text/plain", CorrelationData=b"c1", ResponseTopic="answers/a.b",
        UserProperty=[("color", "red")],
    )  # fmt: skip

    paho(V5).publish(word, b"1", qos, properties=said)

    _, props, body = amqp.get()
    assert (body, props.delivery_mode) == (b"1", 2)
    assert (props.content_type, props.correlation_id) == ("text/plain", "c1")
    assert props.reply_to == "answers.a/b"
    headers = props.headers or {}
    assert headers["color"] == "red"
    assert headers["x-first-death-queue"] == f"mqtt.r-{word}"
    assert not [name for name in headers if name.startswith("mqtt.")]
    came = back.message()
    assert (came.payload, came.qos) == (b"1", 1)
    assert came.properties.ContentType == "text/plain"
    assert came.properties.CorrelationData == b"c1"
    assert came.properties.ResponseTopic == "answers/a.b"
    assert ("color", "red") in came.properties.UserProperty
    api("DELETE", f"/api/policies/%2F/{word}")


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}])
def test_a_subscription_is_served_by_a_queue_that_amqp_shares(
    amqp: Amqp, paho: NewPeer, word: str, arguments: dict[str, str]
) -> None:
    is_stream = bool(arguments)
    amqp.channel.queue_declare(word, durable=True, arguments=arguments)
    reader = paho(V5, f"r-{word}")
    assert reader.subscribe((f"$queue/{word}", 1)) == [1]

    amqp.publish(word, b"1", exchange="", headers={"k": "v"})

    got = reader.message()
    assert (got.topic, got.payload, got.qos) == (word, b"1", 1)
    assert got.properties.UserProperty == [("k", "v")]
    if not is_stream:
        reader.close()
        amqp.publish(word, b"2", exchange="")
        assert amqp.get(word)[2] == b"2"
    amqp.channel.queue_delete(word)


def test_what_a_client_has_not_acknowledged_goes_back_to_the_shared_queue(
    amqp: Amqp, mqtt: Broker, word: str
) -> None:
    amqp.channel.queue_declare(word)
    with Peer(mqtt.mqtt_port, V311) as peer:
        peer.connect(word)
        peer.subscribe((f"$queue/{word}", 1))
        amqp.publish(word, b"1", exchange="")
        assert peer.message(is_acked=False).payload == b"1"

    method, _, body = amqp.get(word)
    assert body == b"1"
    assert method.redelivered
    amqp.channel.queue_delete(word)


def test_a_queue_that_is_not_there_or_not_readable_is_refused(
    api: Api, amqp: Amqp, paho: NewPeer, word: str
) -> None:
    amqp.channel.queue_declare(word)
    api("PUT", f"/api/users/{word}", {"password": "p", "tags": ""})
    api("PUT", f"/api/permissions/%2F/{word}", {
        "configure": "", "write": ".*", "read": "^mqtt",
    })  # fmt: skip

    assert paho(V5).subscribe(("$queue/nothing", 1)) == [0x8F]
    assert paho(V5, user=word, password="p").subscribe((f"$queue/{word}", 1)) == [0x87]
    amqp.channel.queue_delete(word)


def test_only_who_may_write_there_crosses_and_only_who_may_read_there_hears(
    api: Api, amqp: Amqp, paho: NewPeer, word: str
) -> None:
    api("PUT", f"/api/users/{word}", {"password": "p", "tags": ""})
    api("PUT", f"/api/permissions/%2F/{word}", {"configure": "", "write": "^mqtt", "read": ""})
    amqp.bind(f"{word}.#")
    islander = paho(V311, user=word, password="p")
    islander.subscribe((f"{word}/#", 1))

    islander.publish(f"{word}/t", b"stays")
    amqp.publish(f"{word}.t", b"not heard")
    paho().publish(f"{word}/t", b"crosses")

    assert [islander.message().payload, islander.message().payload] == [b"stays", b"crosses"]
    assert [amqp.get()[2], amqp.get()[2]] == [b"not heard", b"crosses"]


def test_topic_permissions_of_the_exchange_count_for_each_topic(
    api: Api, amqp: Amqp, paho: NewPeer, word: str
) -> None:
    api("PUT", f"/api/users/{word}", {"password": "p", "tags": ""})
    api("PUT", f"/api/permissions/%2F/{word}", {
        "configure": "", "write": ".*", "read": ".*",
    })  # fmt: skip
    api("PUT", f"/api/topic-permissions/%2F/{word}", {
        "exchange": "amq.topic", "write": rf"^{word}\.open\.", "read": rf"^{word}\.",
    })  # fmt: skip
    amqp.bind(f"{word}.#")
    sender = paho(V311, user=word, password="p")

    sender.publish(f"{word}/closed/t", b"1")
    sender.publish(f"{word}/open/t", b"2")
    sender.publish(f"{word}/open/t", b"3")

    assert [amqp.get()[2], amqp.get()[2]] == [b"2", b"3"]


def test_a_virtual_host_chooses_its_exchange_or_none(mqtt: Broker, api: Api, word: str) -> None:
    api("PUT", f"/api/vhosts/{word}")
    amqp = Amqp(mqtt, word)
    amqp.channel.exchange_declare("other", "topic")
    amqp.bind("#").bind("#", "other")
    user = f"{word}:guest"

    with PahoPeer(mqtt.mqtt_port, V311, user=user) as peer:
        peer.publish("a/b", b"1")
        assert amqp.get()[0].exchange == "amq.topic"

        api("PUT", f"/api/parameters/mqtt/{word}/bridge", {"value": {"exchange": "other"}})
        peer.publish("a/b", b"2")
        assert amqp.get()[0].exchange == "other"

        api("PUT", f"/api/parameters/mqtt/{word}/bridge", {"value": {"exchange": ""}})
        peer.subscribe(("#", 1))
        amqp.publish("a.b", b"3")
        peer.publish("a/b", b"4")
        assert peer.message().payload == b"4"

        api("DELETE", f"/api/parameters/mqtt/{word}/bridge")
        amqp.publish("a.b", b"5")
        assert peer.message().payload == b"5"
    bodies = [amqp.get()[2], amqp.get()[2]]
    assert bodies == [b"3", b"5"]
    amqp.connection.close()


def test_messages_and_bindings_outlive_a_restart(own: Callable[..., Broker]) -> None:
    broker = own()
    amqp = Amqp(broker)
    with PahoPeer(broker.mqtt_port, V311, "r", clean_session=False) as reader:
        reader.subscribe(("a/#", 1))
    amqp.publish("a.b", b"before")
    amqp.connection.close()

    broker.stop()
    broker.start()

    amqp = Amqp(broker)
    amqp.publish("a.b", b"after")
    with PahoPeer(broker.mqtt_port, V311, "r", clean_session=False) as reader:
        assert [reader.message().payload, reader.message().payload] == [b"before", b"after"]
    amqp.connection.close()


def test_an_island_is_made_by_the_configuration(own: Callable[..., Broker]) -> None:
    broker = own("[mqtt]\nexchange =\n")
    amqp = Amqp(broker).bind("#")
    with PahoPeer(broker.mqtt_port) as peer:
        peer.subscribe(("#", 1))
        peer.publish("a/b", b"mqtt")
        amqp.publish("a.b", b"amqp")
        assert peer.message().payload == b"mqtt"
        assert amqp.get()[2] == b"amqp"
        assert peer.is_empty
    amqp.connection.close()


def test_an_exchange_that_is_not_there_is_told_at_the_start(own: Callable[..., Broker]) -> None:
    """Nothing told why the two shared no topics."""
    broker = own("[mqtt]\nexchange = sensors\n")
    api = Api(broker)
    told = "MQTT and AMQP share no topics in virtual hosts"
    assert f"{told} '/': there is no topic exchange 'sensors'" in broker.log_text()

    topic = {"type": "topic", "durable": True}
    assert api("PUT", "/api/exchanges/%2F/sensors", topic).status == 201
    value = {"value": {"exchange": "amq.fanout"}}
    none = {"value": {"exchange": ""}}
    for vhost, named in (("one", value), ("two", value), ("island", none)):
        assert api("PUT", f"/api/vhosts/{vhost}").status == 201
        assert api("PUT", f"/api/parameters/mqtt/{vhost}/bridge", named).status == 201
    seen = len(broker.log_text())
    broker.restart()

    (line,) = [each for each in broker.log_text()[seen:].splitlines() if told in each]
    assert "'one', 'two': there is no topic exchange 'amq.fanout'" in line
