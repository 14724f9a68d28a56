"""Requests of management with much in them, and regular expressions that never end."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

from pamqp import commands

from perf.hostile_cases.peer import (
    BACKTRACKING,
    MANY,
    STUMBLE,
    Broker,
    add_nobody,
    bound_by_headers,
    client,
    full_queue,
    put_policy,
    raw_publish,
    send_all,
    settle,
)
from tests.support import raw_wire as wire
from tests.support.raw_connection import ClientError
from tests.support.raw_wire import build


def http_arguments(broker: Broker) -> None:
    """28 MiB of `arguments` from a user who may do nothing."""
    add_nobody(broker)
    each = [f'"{n:07x}":[1]' for n in range((28 << 20) // 14)]
    body = b'{"arguments":{' + ",".join(each).encode() + b"}}"
    with broker.watched():
        broker.ask("PUT", "queues/%2F/q", body, user="nobody")


def http_nested(broker: Broker) -> None:
    """`arguments` of arrays in arrays, 1 000 000 deep."""
    add_nobody(broker)
    body = b'{"arguments":{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}"
    with broker.watched():
        broker.ask("PUT", "queues/%2F/q", body, user="nobody")


def http_numbers(broker: Broker) -> None:
    """A number of 10 million digits in a body."""
    add_nobody(broker)
    body = b'{"arguments":{"a":' + b"9" * 10_000_000 + b"}}"
    with broker.watched():
        broker.ask("PUT", "queues/%2F/q", body, "nobody")


def http_headers(broker: Broker) -> None:
    """A message with 20 MiB of headers published by HTTP, by a user who may do nothing."""
    add_nobody(broker)
    each = ",".join(f'"{n:07x}":[1]' for n in range((20 << 20) // 14))
    text = '"payload":"","payload_encoding":"string","routing_key":"q"'
    body = f'{{{text},"properties":{{"headers":{{{each}}}}}}}'.encode()
    with broker.watched():
        broker.ask("POST", "exchanges/%2F/amq.default/publish", body, user="nobody")


def http_payload(broker: Broker) -> None:
    """A message of 31 MiB published by HTTP, all of it escaped."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q", durable=True)
        text = b'"properties":{},"payload_encoding":"string","routing_key":"q"'
        body = b"{" + text + b',"payload":"' + b"\\n" * (31 << 19) + b'"}'
        with broker.watched():
            broker.ask("POST", "exchanges/%2F/amq.default/publish", body)


def http_fields(broker: Broker) -> None:
    """A body of 10 000 fields that nobody knows."""
    body = json.dumps({"durable": True} | {f"field {n}": n for n in range(10_000)}).encode()
    with broker.watched():
        broker.ask("PUT", "queues/%2F/q", body)


def http_definitions(broker: Broker) -> None:
    """Definitions of 20 000 queues and bindings, imported, and 27 MiB of them refused."""
    queues = [{"name": f"d{n}", "vhost": "/", "durable": True, "auto_delete": False,
               "arguments": {}} for n in range(20_000)]  # fmt: skip
    bindings = [{"source": "amq.topic", "vhost": "/", "destination": f"d{n}", "routing_key": "a",
                 "destination_type": "queue", "arguments": {}} for n in range(20_000)]  # fmt: skip
    body = json.dumps({"queues": queues, "bindings": bindings}).encode()
    with broker.watched():
        broker.ask("POST", "definitions", body)
        broker.ask("GET", "definitions")


def http_users(broker: Broker) -> None:
    """30 000 users with permissions and topic permissions: imported, listed, exported, deleted."""
    names = [f"u{n}" for n in range(30_000)]
    grants = {"vhost": "/", "read": "^u", "write": ".*"}
    body = {
        "users": [{"name": name, "password_hash": ""} for name in names],
        "permissions": [{"user": name, "configure": ".*", **grants} for name in names],
        "topic_permissions": [{"user": name, "exchange": "amq.topic", **grants} for name in names],
    }
    sent = json.dumps(body).encode()
    with broker.watched():
        broker.ask("POST", "definitions", sent)
        for path in ("users", "users?sort=name&page=1", "users/without-permissions", "permissions",
                     "topic-permissions", "vhosts/%2F/permissions", "users/u5/permissions",
                     "definitions"):  # fmt: skip
            broker.ask("GET", path)
        broker.ask("PUT", "topic-permissions/%2F/u5", {"exchange": "x", "read": "", "write": ""})
        broker.ask("POST", "users/bulk-delete", {"users": names[:15_000]})


def http_vhosts(broker: Broker) -> None:
    """100 virtual hosts with 100 queues and bindings each in one document, exported as well."""
    names = [f"v{n}" for n in range(100)]
    each = [(name, f"q{n}") for name in names for n in range(100)]
    body = {
        "vhosts": [{"name": name} for name in names],
        "queues": [{"name": queue, "vhost": name, "durable": True, "auto_delete": False,
                    "arguments": {}} for name, queue in each],
        "bindings": [{"source": "amq.topic", "vhost": name, "destination": queue,
                      "routing_key": "a.#", "destination_type": "queue", "arguments": {}}
                     for name, queue in each],
    }  # fmt: skip
    with broker.watched():
        broker.ask("POST", "definitions", body)
        broker.ask("GET", "definitions")
        broker.ask("GET", "vhosts")


def http_entry(broker: Broker) -> None:
    """An import of one entry of 28 MiB."""
    body = b'{"queues":[{"name":"q","arguments":{"a":[' + b"[1]," * (7 << 20) + b"1]}}]}"
    with broker.watched():
        broker.ask("POST", "definitions", body)


def http_matches(broker: Broker) -> None:
    """What a policy would match among 20 000 queues, and what the map of all of them needs."""
    with client(broker) as (connection, channel):
        many = (wire.encode_method(1, build(commands.Queue.Declare, queue=f"l{n}", nowait=True))
                for n in range(20_000))  # fmt: skip
        send_all(connection, many)
        settle(channel)
        with broker.watched():
            broker.ask("GET", "policy-matches/%2F?pattern=1&apply-to=queues")
            for path in ("exchanges/%2F", "queues/%2F?page=1&page_size=500", "bindings/%2F",
                         "consumers", "policies/%2F"):  # fmt: skip
                broker.ask("GET", path)


def http_lists(broker: Broker) -> None:
    """Lists of 20 000 queues with 50 000 bindings, sorted and whole."""
    with client(broker) as (connection, channel):
        bound_by_headers(channel, connection)
        many = (wire.encode_method(1, build(commands.Queue.Declare, queue=f"l{n}", nowait=True))
                for n in range(20_000))  # fmt: skip
        send_all(connection, many)
        settle(channel)
        with broker.watched():
            for path in ("queues", "bindings", "bindings/%2F", "queues?sort=name&sort_reverse=true",
                         "exchanges/%2F/h/bindings/source", "queues/%2F/q/bindings"):  # fmt: skip
                broker.ask("GET", path)


def http_move(broker: Broker) -> None:
    """500 000 messages moved by HTTP."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("to")
        full_queue(broker, channel)
        with broker.watched():
            broker.ask("POST", "queues/%2F/q/move", {"destination": "to"})


def http_get(broker: Broker) -> None:
    """500 000 messages fetched by HTTP and put back."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        asked = {"count": MANY, "ack_mode": "ack_requeue_true", "encoding": "auto"}
        with broker.watched():
            broker.ask("POST", "queues/%2F/q/get", asked)


def http_browse(broker: Broker) -> None:
    """500 000 messages looked through for a text that none has, from both ends."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            for position in (0, -MANY):
                asked = {"text": "nowhere", "scan": MANY, "position": position}
                broker.ask("POST", "queues/%2F/q/browse", asked)


def http_advice(broker: Broker) -> None:
    """Advice about 10 000 queues, with 100 policies, most of which match nothing."""
    with client(broker) as (connection, channel):
        many = (wire.encode_method(1, build(commands.Queue.Declare, queue=f"l{n}", nowait=True))
                for n in range(10_000))  # fmt: skip
        send_all(connection, many)
        settle(channel)
        for n in range(100):
            rule = {"pattern": f"^nothing{n}", "definition": {"max-length": n}}
            broker.ask("PUT", f"policies/%2F/p{n}", {**rule, "apply-to": "queues"})
        with broker.watched():
            for _ in range(5):
                broker.ask("GET", "advice")


def http_get_headers(broker: Broker) -> None:
    """200 messages with 14 000 headers each, of several types, fetched by HTTP and put back."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        kinds = (
            b"t\x01",
            b"V",
            b"f" + bytes(4),
            b"d?\xb9\x99\x99\x99\x99\x99\x9a",
            b"T" + bytes(8),
        )
        tables = [
            b"".join(b"\x07%07x" % n + value for n in range(130_000 // (8 + len(value))))
            for value in kinds
        ]
        tables.append(b"\x00A" + (130_000).to_bytes(4, "big") + b"V" * 130_000)
        tables.append(b"".join(b"\x01\xffS\x00\x00\x00\x01\xff" for _ in range(16_000)))
        send_all(connection, (raw_publish("", "q", tables[n % len(tables)]) for n in range(200)))
        settle(channel)
        asked = {"count": 200, "ack_mode": "ack_requeue_true", "encoding": "auto"}
        with broker.watched():
            broker.ask("POST", "queues/%2F/q/get", asked)


def http_purge(broker: Broker) -> None:
    """500 000 messages purged by HTTP."""
    with client(broker) as (_connection, channel):
        full_queue(broker, channel)
        with broker.watched():
            broker.ask("DELETE", "queues/%2F/q/contents")


def regex_list(broker: Broker) -> None:
    """A regular expression that never ends, in `?name=`, on a list of one name."""
    with client(broker) as (_connection, channel):
        channel.declare_queue(STUMBLE)
        with broker.watched():
            broker.ask("GET", f"queues?name={quote(BACKTRACKING)}&use_regex=true")


def regex_lists(broker: Broker) -> None:
    """The same on a list of 5 000 names of 200 characters."""
    with client(broker) as (connection, channel):
        many = (wire.encode_method(1, build(commands.Queue.Declare, queue=f"{'a' * 20}!{n:05}",
                                            nowait=True)) for n in range(5000))  # fmt: skip
        send_all(connection, many)
        settle(channel)
        with broker.watched():
            broker.ask("GET", f"queues?name={quote(BACKTRACKING)}&use_regex=true&page=1")


def regex_policy(broker: Broker) -> None:
    """A regular expression that never ends, in a policy."""
    with client(broker) as (_connection, channel):
        channel.declare_queue(STUMBLE)
        with broker.watched():
            put_policy(broker, BACKTRACKING, max_length=1)
            time.sleep(0.5)


def regex_policies(broker: Broker) -> None:
    """The same in a policy for 5 000 queues."""
    with client(broker) as (connection, channel):
        many = (wire.encode_method(1, build(commands.Queue.Declare, queue=f"{'a' * 20}!{n:05}",
                                            nowait=True)) for n in range(5000))  # fmt: skip
        send_all(connection, many)
        settle(channel)
        with broker.watched():
            put_policy(broker, BACKTRACKING, max_length=1)
            time.sleep(0.5)


def regex_permission(broker: Broker) -> None:
    """A regular expression that never ends, in a permission, asked by 100 declarations."""
    add_nobody(broker)
    rights = {"configure": BACKTRACKING, "write": ".*", "read": ".*"}
    broker.ask("PUT", "permissions/%2F/nobody", rights)
    connection = broker.connect("nobody")
    with broker.watched():
        for _ in range(3):
            channel = connection.channel()
            try:
                channel.declare_queue(STUMBLE)
            except ClientError as error:
                broker.refusals.append(str(error))
    connection.abort()


def regex_compile(broker: Broker) -> None:
    """Regular expressions that are long to compile, in `?name=`."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("q")
        patterns = ("(" * 4000 + ")" * 4000, "((a{1,100}){1,100}){1,100}", "[a-z]" * 5000,
                    "(?i)" + "|".join(f"word{n}" for n in range(3000)))  # fmt: skip
        with broker.watched():
            for each in patterns:
                broker.ask("GET", f"queues?name={quote(each)}&use_regex=true")


CASES = (
    http_arguments,
    http_nested,
    http_numbers,
    http_headers,
    http_payload,
    http_fields,
    http_definitions,
    http_users,
    http_vhosts,
    http_entry,
    http_matches,
    http_lists,
    http_move,
    http_get,
    http_browse,
    http_advice,
    http_get_headers,
    http_purge,
    regex_list,
    regex_lists,
    regex_policy,
    regex_policies,
    regex_permission,
    regex_compile,
)
