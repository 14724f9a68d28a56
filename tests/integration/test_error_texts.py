"""Refusals name their subject, such as queue, virtual host, argument; the log tells of log-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pamqp import commands

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def vhost(broker: Broker, unique: UniqueName) -> Iterator[str]:
    api, name = Api(broker), unique("v")
    api("PUT", f"/api/vhosts/{name}")
    yield name
    api("DELETE", f"/api/vhosts/{name}")


@pytest.fixture
def refused(broker: Broker, vhost: str) -> Refused:
    """Calls methods of a channel, the last of which is refused; returns code and text."""

    def call(*steps: tuple[str, dict[str, object]]) -> tuple[int, str]:
        where = pika.ConnectionParameters(broker.host, broker.port, vhost)
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            for name, arguments in steps[:-1]:
                getattr(channel, name)(**arguments)
            name, arguments = steps[-1]
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
                getattr(channel, name)(**arguments)
        return raised.value.reply_code, raised.value.reply_text

    return call


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({}, {"durable": True}, "'durable' for queue 'q' in vhost '{v}': received 'true' but"
         " current is 'false'"),
        ({}, {"auto_delete": True}, "'auto_delete' for queue 'q' in vhost '{v}': received 'true'"
         " but current is 'false'"),
        ({"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 6}},
         "'x-max-length' for queue 'q' in vhost '{v}': received '6' but current is '5'"),
        ({"arguments": {"x-max-length": 5}}, {}, "'x-max-length' for queue 'q' in vhost '{v}':"
         " received none but current is '5'"),
        ({}, {"arguments": {"x-dead-letter-exchange": "dead"}}, "'x-dead-letter-exchange' for"
         " queue 'q' in vhost '{v}': received 'dead' but current is none"),
    ],
)  # fmt: skip
def test_a_queue_declared_otherwise_tells_argument_and_both_values(
    refused: Refused, vhost: str, first: dict[str, object], second: dict[str, object],
    difference: str,
) -> None:  # fmt: skip
    code, text = refused(("queue_declare", {"queue": "q", **first}),
                         ("queue_declare", {"queue": "q", **second}))  # fmt: skip

    assert code == 406
    assert text == (
        "PRECONDITION_FAILED - Existing queue 'q' declared with other arguments: inequivalent arg "
        + difference.format(v=vhost)
    )


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        ({"exchange_type": "fanout"}, "'type' for exchange 'x' in vhost '{v}': received 'fanout'"
         " but current is 'direct'"),
        ({"internal": True}, "'internal' for exchange 'x' in vhost '{v}': received 'true' but"
         " current is 'false'"),
        ({"arguments": {"alternate-exchange": "y"}}, "'alternate-exchange' for exchange 'x' in"
         " vhost '{v}': received 'y' but current is none"),
    ],
)  # fmt: skip
def test_an_exchange_declared_otherwise_tells_argument_and_both_values(
    refused: Refused, vhost: str, second: dict[str, object], difference: str
) -> None:
    code, text = refused(("exchange_declare", {"exchange": "x"}),
                         ("exchange_declare", {"exchange": "x", **second}))  # fmt: skip

    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - Existing exchange 'x' declared with other ")
    assert text.endswith(difference.format(v=vhost))


def test_long_names_leave_room_for_the_difference(refused: Refused) -> None:
    name = "q" * 100

    _, text = refused(("queue_declare", {"queue": name}),
                      ("queue_declare", {"queue": name, "durable": True}))  # fmt: skip

    assert "inequivalent arg 'durable'" in text
    assert len(text) <= 255


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("queue_declare", {"queue": "q", "passive": True}, "Queue 'q' doesn't exists"),
        ("queue_purge", {"queue": "q"}, "Queue 'q' not found"),
        ("queue_bind", {"queue": "q", "exchange": "amq.direct"}, "Queue 'q' not found"),
        ("basic_consume", {"queue": "q", "on_message_callback": print}, "Queue 'q' not declared"),
        ("basic_get", {"queue": "q"}, "No queue 'q'"),
        ("exchange_declare", {"exchange": "x", "passive": True}, "Exchange 'x' doesn't exists"),
        ("exchange_bind", {"source": "x", "destination": "amq.direct"},
         "Exchange 'x' doesn't exists"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named_with_its_virtual_host(
    refused: Refused, vhost: str, method: str, arguments: dict[str, object], text: str
) -> None:
    assert refused((method, arguments)) == (404, f"NOT_FOUND - {text} in vhost '{vhost}'")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("steam", "x-queue-type 'steam' is unknown, did you mean 'stream'?"),
        ("nonsense", "x-queue-type 'nonsense' is unknown"),
        (5, "x-queue-type header not a string"),
    ],
)
def test_an_unknown_queue_type_is_refused(refused: Refused, given: object, text: str) -> None:
    step = ("queue_declare", {"queue": "q", "arguments": {"x-queue-type": given}})

    assert refused(step) == (406, f"PRECONDITION_FAILED - {text}")


def test_an_unknown_virtual_host_is_named(broker: Broker) -> None:
    with Wire(broker.port) as wire, pytest.raises(AssertionError, match="vhost not found: 'nope'"):
        wire.login("guest", "guest", "nope")


def test_http_names_what_is_not_there(broker: Broker, vhost: str) -> None:
    api = Api(broker)

    def answer(method: str, path: str) -> tuple[int, str]:
        answered = api(method, path)
        return answered.status, answered.json["reason"]

    assert answer("DELETE", f"/api/queues/{vhost}/gone") == (
        404, f"Not Found: there is no queue 'gone' in vhost '{vhost}'",
    )  # fmt: skip
    assert answer("GET", f"/api/exchanges/{vhost}/gone") == (
        404, f"Not Found: there is no exchange 'gone' in vhost '{vhost}'",
    )  # fmt: skip
    assert answer("DELETE", "/api/users/gone") == (404, "Not Found: there is no user 'gone'")
    assert answer("GET", "/api/queues/nope") == (403, "Access refused: there is no vhost 'nope'")
    other = api.as_user("somebody", "management")
    refusals = [other("GET", f"/api/queues/{name}").json["reason"] for name in (vhost, "nope")]
    assert refusals == [f"Access refused: no permissions in vhost '{n}'" for n in (vhost, "nope")]


def test_http_tells_in_what_a_declaration_differs(broker: Broker, vhost: str) -> None:
    api, path = Api(broker), f"/api/queues/{vhost}/q"
    api("PUT", path, {"arguments": {"x-max-length": 1}})

    reason = api("PUT", path, {"arguments": {"x-max-length": 2}}).json["reason"]

    assert reason == (
        "Existing queue declared with other arguments arg: inequivalent arg 'x-max-length' for"
        f" queue 'q' in vhost '{vhost}': received '2' but current is '1'"
    )


# --- policies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [("max-lenght", "max-length"), ("message_ttl", "message-ttl"), ("ha-mod", "ha-mode")],
)
def test_a_misspelt_key_of_a_policy_is_refused(
    broker: Broker, vhost: str, key: str, meant: str
) -> None:
    body = {"pattern": ".*", "definition": {key: "x"}}

    answer = Api(broker)("PUT", f"/api/policies/{vhost}/p", body)

    assert answer.status == 400
    expected = f"Policy definition '{key}' is unknown, did you mean '{meant}'?"
    assert answer.json["reason"] == expected


def test_keys_of_rabbitmq_are_kept_and_told(broker: Broker, vhost: str) -> None:
    api, path = Api(broker), f"/api/policies/{vhost}/p"
    definition = {"ha-mode": "exactly", "ha-params": 2, "max-length": 5, "our-own": "x"}

    answer = api("PUT", path, {"pattern": ".*", "definition": definition})

    assert answer.status == 201
    assert answer.headers["lavinmq-note"] == (
        "no effect in this release: ha-mode, ha-params, our-own"
    )
    shown = api.get(path)
    assert shown["definition"] == definition
    assert shown["without_effect"] == ["ha-mode", "ha-params", "our-own"]


# --- log-ins ----------------------------------------------------------------------------------


def test_failed_log_ins_tell_user_mechanism_address_and_reason(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory(http=True)

    for user, password in (("guest", "s3cret"), ("nobody", "s3cret")):
        with Wire(broker.port) as wire, pytest.raises(AssertionError):
            wire.login(user, password, "/")

    wait_for(lambda: broker.log_text().count("log-in of user") == 2, "both are told")
    lines = [line for line in broker.log_text().splitlines() if "log-in of user" in line]
    assert all("WARN" in line and "with PLAIN from 127.0.0.1:" in line for line in lines)
    assert "user 'guest' " in lines[0] and lines[0].endswith("failed: wrong password")
    assert "user 'nobody' " in lines[1] and lines[1].endswith("failed: there is no such user")
    assert "s3cret" not in broker.log_text()


def test_a_log_in_that_cannot_be_is_told(broker_factory: BrokerFactory) -> None:
    broker = broker_factory()
    with Wire(broker.port) as wire:
        wire.send_bytes(b"AMQP\0\0\x09\x01")
        wire.expect(commands.Connection.Start)
        wire.send(0, commands.Connection.StartOk({}, "ANONYMOUS", "secret", "en_US"))

        wait_for(lambda: "log-in of user" in broker.log_text(), "it is told")

    assert "with ANONYMOUS from 127.0.0.1:" in broker.log_text()
    assert "mechanism 'ANONYMOUS' is not offered" in broker.log_text()


def test_log_ins_are_told_to_those_who_debug(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(env={"LAVINMQ_MAIN_LOG_LEVEL": "debug"})

    with Wire.open(broker.port):
        wait_for(
            lambda: "user 'guest' logged in with PLAIN from" in broker.log_text(), "it is told"
        )
