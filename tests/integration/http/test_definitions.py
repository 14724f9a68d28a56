"""Definitions over HTTP: what is exported is imported again; what is bad changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest

from lavinmq.cli.ctl.datadir import export
from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

GUEST_HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"

FULL: dict[str, Any] = {
    "rabbit_version": "3.13.7", "rabbitmq_version": "3.13.7", "product_name": "RabbitMQ",
    "users": [
        {"name": "u", "password_hash": GUEST_HASH, "tags": ["policy_maker", "nope"],
         "hashing_algorithm": "rabbit_password_hashing_sha256", "limits": {"max-channels": 9}},
        {"name": "nobody", "password_hash": "", "tags": "management, monitoring"},
    ],
    "vhosts": [
        {"name": "/"},
        {"name": "v", "description": "d", "tags": ["t"], "metadata": {"description": "other"}},
        {"name": "w", "metadata": {"description": "w's", "tags": ["x", "y"]}},
    ],
    "permissions": [{"user": "u", "vhost": "v", "configure": "c", "read": "r", "write": ""}],
    "topic_permissions": [{"user": "u", "vhost": "v", "exchange": "x", "write": "", "read": ""}],
    "queues": [
        {"name": "classic", "vhost": "v", "durable": True, "auto_delete": False, "type": "classic",
         "arguments": {"x-queue-type": "classic", "x-max-length": 5000000000}},
        {"name": "quorum", "vhost": "v", "durable": True, "arguments": {"x-queue-type": "quorum"}},
        {"name": "stream", "vhost": "v", "durable": True, "arguments": {"x-queue-type": "stream"}},
        {"name": "amq.gen-abc", "vhost": "v", "durable": False, "auto_delete": True,
         "arguments": []},
        {"name": "Ærø/☃", "vhost": "w", "durable": True, "arguments": {}},
    ],
    "exchanges": [
        {"name": "amq.topic", "vhost": "v", "type": "topic", "durable": True},
        {"name": "later", "vhost": "v", "type": "x-delayed-message", "durable": True,
         "auto_delete": False, "internal": False, "arguments": {"x-delayed-type": "topic"}},
        {"name": "h", "vhost": "v", "type": "headers", "durable": True, "arguments": {}},
    ],
    "bindings": [
        {"source": "", "vhost": "v", "destination": "classic", "destination_type": "queue",
         "routing_key": "classic", "arguments": {}},
        {"source": "later", "vhost": "v", "destination": "classic", "destination_type": "queue",
         "routing_key": "a.#", "arguments": {}, "properties_key": "a.%23"},
        {"source": "later", "vhost": "v", "destination": "h", "destination_type": "exchange",
         "routing_key": "", "arguments": {}},
        {"source": "h", "vhost": "v", "destination": "quorum", "destination_type": "queue",
         "routing_key": "", "arguments": {"x-match": "any", "n": 1, "f": 1.5, "b": True}},
    ],
    "policies": [
        {"vhost": "v", "name": "p", "pattern": "^c", "apply-to": "queues", "priority": 3,
         "definition": {"max-length": 7, "ha-params": 2}},
    ],
    "parameters": [
        {"vhost": "v", "component": "operator_policy", "name": "op",
         "value": {"pattern": "", "definition": {"expires": 3600000}, "priority": 0,
                   "apply-to": "queues"}},
        {"vhost": "v", "component": "vhost-limits", "name": "limits",
         "value": {"max-queues": 500, "max-connections": -1}},
        {"vhost": "v", "component": "own", "name": "n", "value": [None, {"a": 1}]},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
}  # fmt: skip


def without_order(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: sorted(map(json.dumps, value)) if isinstance(value, list) else value
        for key, value in document.items()
    }


def test_an_export_of_rabbitmq_is_imported_whole(http_broker: Broker) -> None:
    api = Api(http_broker)

    assert api("POST", "/api/definitions", FULL).status == 200

    exported = api.get("/api/definitions")
    users = {user["name"]: user for user in exported["users"]}
    assert users["u"]["tags"] == ["policymaker"]
    assert users["u"]["limits"] == {"max-channels": 9}
    assert users["nobody"] | {"limits": {}} == {
        "name": "nobody", "password_hash": "", "hashing_algorithm": None,
        "tags": ["management", "monitoring"], "limits": {},
    }  # fmt: skip
    vhosts = {vhost["name"]: (vhost["description"], vhost["tags"]) for vhost in exported["vhosts"]}
    assert vhosts == {"/": ("", []), "v": ("d", ["t"]), "w": ("w's", ["x", "y"])}
    assert FULL["permissions"][0] in exported["permissions"]
    assert exported["topic_permissions"] == FULL["topic_permissions"]
    queues = {queue["name"]: queue for queue in exported["queues"]}
    assert set(queues) == {queue["name"] for queue in FULL["queues"]}
    assert queues["classic"]["arguments"] == FULL["queues"][0]["arguments"]
    assert FULL["exchanges"][1] in exported["exchanges"]
    assert [row["arguments"] for row in exported["bindings"]] == [
        {}, {}, {"x-match": "any", "n": 1, "f": 1.5, "b": True}
    ]  # fmt: skip
    assert exported["policies"] == FULL["policies"]
    parameters = {(row["component"], row["name"]): row["value"] for row in exported["parameters"]}
    assert parameters["vhost-limits", "limits"] == {"max-queues": 500}
    assert parameters["operator_policy", "op"] == FULL["parameters"][0]["value"]
    assert parameters["own", "n"] == [None, {"a": 1}]
    assert exported["global_parameters"][0]["value"] == "rabbit@host"


def test_an_export_imported_elsewhere_gives_the_same_export(broker_factory: BrokerFactory) -> None:
    first, second = (Api(broker_factory(http=True)) for _ in range(2))
    first("POST", "/api/definitions", FULL)
    exported = first.get("/api/definitions")

    assert second("POST", "/api/definitions", exported).status == 200

    assert without_order(second.get("/api/definitions")) == without_order(exported)
    report = second("POST", "/api/definitions?dry_run=true", exported).json
    assert (report["changes"], report["skipped"]) == ([], [])


def test_what_the_tool_reads_from_a_data_directory_is_imported(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory(http=True)
    first, second = Api(broker), Api(broker_factory(http=True))
    first("POST", "/api/definitions", FULL)
    before = first.get("/api/definitions")
    broker.stop()

    assert second("POST", "/api/definitions", export(broker.data_dir)).status == 200

    after = second.get("/api/definitions")
    sections = ("vhosts", "permissions", "topic_permissions", "exchanges", "bindings", "policies")
    for section in (*sections, "parameters"):
        assert sorted(map(json.dumps, after[section])) == sorted(map(json.dumps, before[section]))
    durable = {queue["name"] for queue in before["queues"] if queue["durable"]}
    assert {queue["name"] for queue in after["queues"]} == durable


def test_what_was_imported_is_there_after_a_crash(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("POST", "/api/definitions", FULL)
    before = api.get("/api/definitions")

    http_broker.kill()
    http_broker.start()

    before["queues"] = [queue for queue in before["queues"] if queue["durable"]]
    assert without_order(api.get("/api/definitions")) == without_order(before)


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("users", {"name": "u", "password_hash": GUEST_HASH, "limits": {}}),
        ("permissions", {"user": "guest", "vhost": "/", "configure": "", "read": "", "write": ""}),
        ("vhosts", {"name": "v"}),
        ("queues", {"name": "q", "vhost": "/"}),
        ("exchanges", {"name": "x", "vhost": "/", "type": "topic"}),
        ("policies", {"name": "p", "vhost": "/", "pattern": "x", "definition": {}}),
        ("global_parameters", {"name": "g", "value": 1}),
    ],
)
def test_each_kind_alone_is_there_after_a_crash(
    http_broker: Broker, section: str, entry: dict[str, Any]
) -> None:
    api = Api(http_broker)
    assert api("POST", "/api/definitions", {section: [entry]}).status == 200

    http_broker.kill()
    http_broker.start()

    assert [row for row in api.get("/api/definitions")[section] if entry.items() <= row.items()]


@pytest.mark.parametrize("flag", ["dry_run", "dry_run=", "dry_run=y", "skip_errors=2"])
def test_a_flag_that_is_neither_true_nor_false_imports_nothing(
    api: Api, unique: UniqueName, flag: str
) -> None:
    """`?dry_run` counted as false: it was carried out."""
    name = unique("v")

    answer = api("POST", f"/api/definitions?{flag}", {"vhosts": [{"name": name}]})

    reason = f"Parameter '{flag.partition('=')[0]}' must be a boolean"
    assert (answer.status, answer.json["reason"]) == (400, reason)
    assert api("GET", f"/api/vhosts/{name}").status == 403


def test_a_dry_run_says_what_would_change_and_changes_nothing(http_broker: Broker) -> None:
    api = Api(http_broker)
    api("POST", "/api/definitions/%2F", {"queues": [{"name": "there"}]})
    before = api.get("/api/definitions")
    document = {
        "queues": [{"name": "there", "vhost": "/"}, {"name": "new", "vhost": "/"},
                   {"name": "lost", "vhost": "unknown"}],
        "users": [{"name": "guest", "password_hash": "", "tags": ""}],
    }  # fmt: skip

    report = api("POST", "/api/definitions?dry_run=true", document).json

    assert report["unchanged"] == 1
    assert report["changes"] == [
        {"kind": "user", "vhost": None, "name": "guest", "action": "update"},
        {"kind": "queue", "vhost": "/", "name": "new", "action": "create"},
    ]
    assert report["skipped"] == [
        {"place": "queues[2] 'lost'", "reason": "there is no vhost 'unknown'"}
    ]
    assert api.get("/api/definitions") == before


MIXED = {
    "queues": [{"name": "good", "vhost": "/"}, {"name": "bad", "vhost": "/", "durable": 5},
               {"name": "s", "vhost": "/", "durable": False,
                "arguments": {"x-queue-type": "stream"}}],
    "exchanges": [{"name": "x", "vhost": "/", "type": "nope"}],
    "bindings": [{"source": "x", "destination": "good", "vhost": "/"},
                 {"source": "amq.direct", "destination": "good", "vhost": "/"}],
    "policies": [{"name": "p", "vhost": "/", "pattern": "^z", "definition": {"ha-mode": "all"}}],
}  # fmt: skip
"""Entries that can be and some that cannot, of which reading and comparing find one each."""
PLACES = ["queues[1] 'bad'", "exchanges[0] 'x'", "queues[2] 's'"]


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_done(http_broker: Broker) -> None:
    api = Api(http_broker)
    before = api.get("/api/definitions")

    answer = api("POST", "/api/definitions", MIXED)

    assert answer.status == 400
    assert [error["place"] for error in answer.json["errors"]] == PLACES
    assert all(place in answer.json["reason"] for place in PLACES)
    assert api.get("/api/definitions") == before


def test_what_cannot_be_is_left_out_if_so_asked_and_the_answer_says_what(
    http_broker: Broker,
) -> None:
    api = Api(http_broker)

    report = api("POST", "/api/definitions?skip_errors=true", MIXED).json

    assert [each["place"] for each in report["skipped"]] == [*PLACES, "bindings[0] 'x' to 'good'"]
    assert report["notes"] == [
        {"place": "policies[0] 'p'", "reason": "no effect in this release: ha-mode"}
    ]
    assert report["imported"] == 3
    assert [row["name"] for row in api.get("/api/queues")] == ["good"]
    assert len(api.get("/api/queues/%2F/good/bindings")) == 2
    assert api("POST", "/api/definitions", {"queues": [MIXED["queues"][0]]}).content == b""


def test_a_dry_run_tells_what_would_be_left_out(http_broker: Broker) -> None:
    api = Api(http_broker)

    report = api("POST", "/api/definitions?skip_errors=true&dry_run=true", MIXED).json

    assert [each["place"] for each in report["skipped"]][:3] == PLACES
    assert len(report["changes"]) == 3
    assert api.get("/api/queues") == []


def test_sessions_of_mqtt_in_rabbitmq_do_not_come_along(api: Api, unique: UniqueName) -> None:
    """Nobody would ever read what is routed to such a queue."""
    vhost = unique("v")
    session, also = "mqtt-subscription-sensor 1qos1", "mqtt-subscription-xqos0"
    like = ["mqtt-subscription-qos1", "mqtt-subscription-xqos2", "my-mqtt-subscription-xqos1"]
    topic = {"source": "amq.topic", "destination_type": "queue", "routing_key": "t.#"}
    document: dict[str, Any] = {
        "rabbitmq_version": "4.0.5", "vhosts": [{"name": vhost}],
        "queues": [{"name": name, "vhost": vhost, "durable": True, "arguments": arguments}
                   for name, arguments in [(session, {"x-expires": 86400000}), (also, {}),
                                           *((name, {}) for name in like)]],
        "bindings": [topic | {"destination": session, "vhost": vhost},
                     {"source": "", "destination": session, "vhost": vhost},
                     topic | {"destination": like[0], "vhost": vhost}],
    }  # fmt: skip

    report = api("POST", "/api/definitions", document).json

    reason = (
        "RabbitMQ names sessions of MQTT so, they do not come along; if it is a queue of yours,"
        " declare it first"
    )
    assert report["skipped"] == [
        {"place": f"queues[0] '{session}'", "reason": reason},
        {"place": f"queues[1] '{also}'", "reason": reason},
        {"place": f"bindings[0] 'amq.topic' to '{session}'",
         "reason": "MQTT subscriptions are made by their clients"},
    ]  # fmt: skip
    exported = api.get(f"/api/definitions/{vhost}")
    assert {row["name"] for row in exported["queues"]} == set(like)
    assert [row["destination"] for row in exported["bindings"]] == [like[0]]


def test_a_queue_named_like_a_session_is_kept_by_who_declares_it(
    api: Api, unique: UniqueName
) -> None:
    vhost, other, name = unique("v"), unique("w"), "mqtt-subscription-mineqos1"
    for each in (vhost, other):
        api("PUT", f"/api/vhosts/{each}")
    api("PUT", f"/api/queues/{vhost}/{name}", {"durable": True})
    document: dict[str, Any] = {
        "queues": [{"name": name, "durable": True}],
        "bindings": [{"source": "amq.topic", "destination": name, "routing_key": "t"}],
    }

    assert api("POST", f"/api/definitions/{vhost}", document).content == b""
    exported = api.get(f"/api/definitions/{vhost}")
    assert api("POST", f"/api/definitions/{other}", exported).content == b""

    for each in (vhost, other):
        assert len(api.get(f"/api/definitions/{each}")["bindings"]) == 1


def test_a_misspelt_section_is_told_and_the_rest_is_imported(api: Api, unique: UniqueName) -> None:
    vhost = unique("v")
    document = {"vhosts": [{"name": vhost}], "queus": [{"name": "q", "vhost": vhost}]}

    for query in ("?dry_run=true", ""):
        assert api("POST", f"/api/definitions{query}", document).json["notes"] == [
            {"place": "queus",
             "reason": "unknown section, nothing of it is imported; did you mean 'queues'?"}
        ]  # fmt: skip
    assert api.get(f"/api/definitions/{vhost}")["queues"] == []


def test_what_has_no_effect_in_an_operator_policy_is_told(api: Api, unique: UniqueName) -> None:
    vhost = unique("v")
    definition = {
        "delivery-limit": 5,
        "overflow": "reject-publish",
        "expires": 1000,
        "ha-mode": "x",
    }
    row = {"name": "op", "value": {"pattern": "x", "definition": definition}}
    document = {"vhosts": [{"name": vhost}],
                "parameters": [row | {"component": "operator_policy", "vhost": vhost}],
                "policies": [{"name": "p", "vhost": vhost, "pattern": "x",
                              "definition": {"delivery-limit": 5}}]}  # fmt: skip

    report = api("POST", "/api/definitions", document).json

    assert report["notes"] == [
        {"place": "parameters[0] 'op'",
         "reason": "no effect in this release: delivery-limit, overflow, ha-mode"}
    ]  # fmt: skip
    kept = api.get(f"/api/operator-policies/{vhost}/op")
    assert kept["definition"] == definition


@pytest.mark.parametrize("side", ["src", "dest"])
def test_a_shovel_that_needs_amqp_1_0_is_told(api: Api, unique: UniqueName, side: str) -> None:
    vhost = unique("v")
    value = {
        "src-protocol": "amqp091",
        "src-uri": "amqp://",
        "src-queue": "a",
        "dest-protocol": "amqp091",
        "dest-uri": "amqp://",
        "dest-queue": "b",
    }
    rows = [{"component": "shovel", "vhost": vhost, "name": name, "value": each}
            for name, each in [("old", value | {f"{side}-protocol": "amqp10"}),
                               ("odd", [["src-protocol", "amqp10"]])]]  # fmt: skip

    report = api(
        "POST", "/api/definitions?dry_run=true",
        {"vhosts": [{"name": vhost}], "parameters": rows},
    ).json  # fmt: skip

    assert report["notes"] == [
        {"place": "parameters[0] 'old'",
         "reason": f"it will not run, AMQP 1.0 is not spoken: {side}-protocol"}
    ]  # fmt: skip


QUEUE = {"name": "q", "vhost": "/", "durable": True}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"queues": 5}, "Field 'queues' must be an array"),
    ({"queues": {}}, "Field 'queues' must be an array"),
    ({"queues": [5]}, "queues[1] must be an object"),
    ({"queues": [{}]}, "queues[1]: field 'name' is required"),
    ({"queues": [QUEUE | {"name": ""}]}, "queues[1] '': field 'name' must not be empty"),
    ({"queues": [QUEUE | {"name": "x" * 256}]}, "must not be longer than 255 bytes"),
    ({"queues": [QUEUE | {"name": "a\nb"}]}, "Queue name isn't valid"),
    ({"queues": [QUEUE | {"durable": "yes"}]}, "field 'durable' must be a boolean"),
    ({"queues": [QUEUE | {"arguments": [1]}]}, "field 'arguments' must be an object"),
    ({"queues": [QUEUE | {"arguments": {"x-expires": 0}}]}, "x-expires header less than"),
    ({"queues": [QUEUE | {"arguments": {"n": 2**63}}]}, "does not fit in 64 bits"),
    ({"queues": [QUEUE | {"arguments": {"k" * 256: 1}}]}, "key is longer than 255 bytes"),
    ({"queues": [QUEUE, QUEUE | {"durable": False}]},
     "queue 'q' in vhost '/' exists with other properties: durable is true, not false"),
    ({"queues": [QUEUE | {"name": "s", "durable": False, "arguments": {"x-queue-type": "stream"}}]},
     "queues[1] 's'"),
    ({"exchanges": [{"name": "x", "type": "nope"}]}, "unknown exchange type 'nope'"),
    ({"exchanges": [{"name": "x"}]}, "exchanges[0] 'x': field 'type' is required"),
    ({"exchanges": [{"name": "x", "type": "x-delayed-message"}]}, "Missing required argument"),
    ({"exchanges": [{"name": "amq.direct", "vhost": "/", "type": "fanout"}]},
     "type is direct, not fanout"),
    ({"bindings": [{"destination": "q"}]}, "field 'source' is required"),
    ({"bindings": [{"source": "amq.match", "destination": "amq.topic", "vhost": "/",
                    "destination_type": "exchange", "arguments": {"x-match": "no"}}]},
     "bindings[0] 'amq.match' to 'amq.topic'"),
    ({"bindings": [{"source": "a", "destination": "b", "routing_key": "x" * 256}]},
     "field 'routing_key' must not be longer"),
    ({"users": [{"name": "u", "password_hash": "", "hashing_algorithm": "\ud800md5"}]}, "UTF-8"),
    ({"vhosts": [{"name": "v", "description": "\ud800"}]}, "field 'description' must be UTF-8"),
    ({"bindings": [{"source": "x", "destination": "q", "destination_type": "topic"}]},
     "field 'destination_type' must be"),
    ({"users": [{"name": "u", "password_hash": "zz", "hashing_algorithm": "no"}]},
     "unknown algorithm 'no'"),
    ({"users": [{"name": "u", "password_hash": 5}]}, "field 'password_hash' must be a string"),
    ({"users": [{"name": "u", "tags": 5}]}, "field 'tags' must be a string or a list"),
    ({"users": [{"name": "__direct"}]}, "Illegal user name"),
    ({"users": [{"name": "u", "limits": {"nope": 1}}]}, "unknown limit 'nope'"),
    ({"vhosts": [{"name": "x" * 256}]}, "must not be longer"),
    ({"vhosts": [{"name": ""}]}, "at least one character"),
    ({"permissions": [{"user": "guest", "vhost": "/", "configure": "[", "read": "", "write": ""}]},
     "permissions[0] of 'guest': field 'configure': Invalid regular expression '['"),
    ({"permissions": [{"user": "guest", "vhost": "/", "configure": "", "read": "", "write": "("}]},
     "permissions[0] of 'guest': field 'write': Invalid regular expression '('"),
    ({"permissions": [{"user": "guest", "vhost": "/"}]},
     "permissions[0] of 'guest': field 'configure' is required"),
    ({"topic_permissions": [{"user": "guest", "vhost": "/", "exchange": "x", "write": ""}]},
     "topic_permissions[0] of 'guest': field 'read' is required"),
    ({"topic_permissions": [
        {"user": "guest", "vhost": "/", "exchange": "x", "write": "", "read": "["}]},
     "topic_permissions[0] of 'guest': field 'read': Invalid regular expression '['"),
    ({"exchanges": [{"name": "x", "type": "fanout", "arguments": {"alternate-exchange": 5}}]},
     "alternate-exchange header not a string"),
    ({"policies": [{"name": "p", "pattern": "x"}]}, "field 'definition' is required"),
    ({"policies": [{"name": "p", "pattern": "x", "definition": {"max-length": "5"}}]},
     "the value of 'max-length' is not usable"),
    ({"policies": [{"name": "p", "pattern": "x", "definition": {}, "priority": 1000}]},
     "Policy priority must be between"),
    ({"parameters": [{"name": "p", "value": 1}]}, "field 'component' is required"),
    ({"parameters": [{"component": "vhost-limits", "name": "l", "value": {"max-queues": "x"}}]},
     "limit 'max-queues' must be an integer"),
    ({"parameters": [{"component": "operator_policy", "name": "l", "value": 5}]},
     "parameters[0] 'l'"),
    ({"global_parameters": [{"name": "p"}]}, "field 'value' is required"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_one_bad_entry_refuses_all_and_nothing_has_changed(
    api: Api, unique: UniqueName, bad: dict[str, Any], reason: str
) -> None:
    vhost, user = unique("v"), unique("u")
    good = {"users": [{"name": user, "password_hash": ""}], "vhosts": [{"name": vhost}],
            "queues": [{"name": "first", "vhost": vhost}]}  # fmt: skip
    document = {**good, **bad}
    if "queues" in bad and isinstance(bad["queues"], list):
        document["queues"] = good["queues"] + bad["queues"]

    answer = api("POST", "/api/definitions", document)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api("GET", f"/api/vhosts/{vhost}").status == 403
    assert api("GET", f"/api/users/{user}").status == 404


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"nojson", "Malformed JSON"),
        (b'{"queues": [', "Malformed JSON at line 1, column 13"),
        (b'{"queues":\n []} x', "Malformed JSON at line 2, column 6"),
        (b'{"queues": [{"name": NaN}]}', "Malformed JSON at line 1, column 13"),
        (b'{"a": ' + b"[" * 100_000, "An entry has more than 10000 values"),
        (b'{"queues": ["\xff"]}', "Malformed JSON at line 1, column 14"),
        (
            b'{"global_parameters": [{"name": "p", "value": 1e999}]}',
            "global_parameters[0] 'p': field 'value' has a number that is out of range",
        ),
        (b"[]", "Request body has to be a JSON object"),
        (b"5", "Request body has to be a JSON object"),
    ],
)
def test_what_is_no_object_is_refused(api: Api, raw: bytes, reason: str) -> None:
    for path in ("/api/definitions", "/api/definitions/upload"):
        answer = api("POST", path, raw=raw)
        assert (answer.status, answer.json["reason"]) == (400, reason)


def test_what_is_nested_very_deep_is_refused(api: Api) -> None:
    """It depends on the interpreter how far it is read."""
    answer = api("POST", "/api/definitions", raw=b'{"a": ' + b"[" * 9_000)

    assert answer.status == 400
    assert answer.json["reason"].startswith("Malformed JSON at line 1, column ")


@pytest.mark.parametrize("raw", [b"", b"  ", b"{}", b'\xef\xbb\xbf{"queues": null}'])
def test_nothing_is_imported_without_complaint(api: Api, raw: bytes) -> None:
    assert api("POST", "/api/definitions", raw=raw).status == 200


def test_other_content_types_are_refused(api: Api) -> None:
    headers = {"Content-Type": "text/yaml"}

    assert api("POST", "/api/definitions", {}, headers=headers).status == 415
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert api("POST", "/api/definitions", {}, headers=headers).status == 200


def test_for_one_vhost_everything_goes_there(api: Api, unique: UniqueName) -> None:
    vhost, user = unique("v"), unique("u")
    api("PUT", f"/api/vhosts/{vhost}")
    document = {
        "queues": [{"name": "q", "vhost": "elsewhere"}],
        "users": [{"name": user, "password_hash": ""}], "vhosts": [{"name": unique("w")}],
        "global_parameters": "ignored",
    }  # fmt: skip

    assert api("POST", f"/api/definitions/{vhost}", document).status == 200

    exported = api.get(f"/api/definitions/{vhost}")
    assert [(row["name"], row["vhost"]) for row in exported["queues"]] == [("q", vhost)]
    assert "users" not in exported
    assert api("GET", f"/api/users/{user}").status == 404
    assert api("POST", "/api/definitions/no-such", {}).status == 403


def test_what_belongs_to_connections_and_to_the_broker_is_not_exported(
    broker: Broker, api: Api, unique: UniqueName
) -> None:
    """edge-cases.md 49"""
    vhost = unique("v")
    api("PUT", f"/api/vhosts/{vhost}")
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, vhost)) as c:
        channel = c.channel()
        channel.queue_declare("mine", exclusive=True)
        channel.queue_bind("mine", "amq.direct", "k")
        delayed = {"x-delayed-type": "fanout"}
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=delayed)

        exported = api.get(f"/api/definitions/{vhost}")

        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=delayed)
    assert exported["queues"] == exported["bindings"] == []
    later = [row for row in exported["exchanges"] if row["name"] == "later"]
    assert (later[0]["type"], later[0]["arguments"]) == ("x-delayed-message", delayed)


def test_what_lavinmq_exports_of_a_delayed_exchange_is_taken(api: Api, unique: UniqueName) -> None:
    """edge-cases.md 50"""
    vhost = unique("v")
    document = {
        "vhosts": [{"name": vhost}],
        "queues": [{"name": "amq.delayed-x", "vhost": vhost, "durable": True,
                    "arguments": {"x-dead-letter-exchange": "x", "auto-delete": False}}],
        "exchanges": [{"name": "x", "vhost": vhost, "type": "x-delayed-exchange", "durable": True,
                       "arguments": {"x-delayed-type": "topic"}}],
    }  # fmt: skip

    for _ in range(2):
        assert api("POST", "/api/definitions", document).status == 200

    assert api.get(f"/api/definitions/{vhost}")["queues"] == []


def test_a_limit_on_queues_is_kept_to_unless_the_document_brings_one(
    api: Api, unique: UniqueName
) -> None:
    vhost = unique("v")
    api("PUT", f"/api/vhosts/{vhost}")
    api("PUT", f"/api/vhost-limits/{vhost}/max-queues", {"value": 1})
    document: dict[str, Any] = {"queues": [{"name": "a"}, {"name": "b"}]}

    answer = api("POST", f"/api/definitions/{vhost}", document)
    assert (answer.status, api.get(f"/api/definitions/{vhost}")["queues"]) == (400, [])
    assert answer.json["reason"] == f"queue limit in vhost '{vhost}' (1) is reached"

    document["parameters"] = [
        {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 2}}
    ]
    assert api("POST", f"/api/definitions/{vhost}", document).status == 200


def form(name: str, content: bytes) -> tuple[bytes, dict[str, str]]:
    head = f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="d.json"\r\n\r\n'
    body = head.encode() + content + b"\r\n--B--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=B"}


def test_a_file_is_uploaded_by_a_form(api: Api, unique: UniqueName) -> None:
    vhost = unique("v")
    raw, headers = form("file", json.dumps({"vhosts": [{"name": vhost}]}).encode())
    back = {"Referer": "http://localhost/definitions"}

    assert api("POST", "/api/definitions/upload", raw=raw, headers=headers).status == 200
    answer = api("POST", "/api/definitions/upload", raw=raw, headers=headers | back)
    assert (answer.status, answer.headers["location"]) == (302, back["Referer"])
    raw, headers = form("file", b'{"queues": [{"name": "q"}]}')
    path = f"/api/definitions/{vhost}/upload"
    assert api("POST", path, raw=raw, headers=headers | back).status == 200
    assert [row["name"] for row in api.get(f"/api/definitions/{vhost}")["queues"]] == ["q"]


@pytest.mark.parametrize(
    ("raw", "headers", "reason"),
    [
        (*form("other", b"{}"), "The form has no part 'file'"),
        (*form("file", b"nojson"), "Malformed JSON"),
        (b"x", {"Content-Type": "multipart/form-data; boundary=B"}, ""),
        (b"", {"Content-Type": "multipart/form-data"}, ""),
    ],
)
def test_a_bad_form_is_refused(api: Api, raw: bytes, headers: dict[str, str], reason: str) -> None:
    answer = api("POST", "/api/definitions/upload", raw=raw, headers=headers)

    assert answer.status == 400
    assert reason in answer.json["reason"]


@pytest.mark.parametrize("tags", ["management", "monitoring", "policymaker", "impersonator"])
def test_definitions_are_for_administrators(api: Api, unique: UniqueName, tags: str) -> None:
    other = api.as_user(unique("u"), tags, **{"/": (".*", ".*", ".*")})

    for path in ("/api/definitions", "/api/definitions/%2F"):
        assert other("GET", path).status == 403
        assert other("POST", path, {}).status == 403
        assert other("POST", f"{path}/upload", {}).status == 403


def test_ten_thousand_queues_come_and_go_in_one_document(http_broker: Broker) -> None:
    api = Api(http_broker)
    names = [f"q{number}" for number in range(10_000)]
    document = {
        "queues": [{"name": name, "durable": False} for name in names],
        "bindings": [{"source": "amq.topic", "destination": name, "routing_key": f"k.{name}"}
                     for name in names],
    }  # fmt: skip

    assert api("POST", "/api/definitions/%2F", document).status == 200

    exported = api.get("/api/definitions/%2F")
    assert {row["name"] for row in exported["queues"]} == set(names)
    assert len(exported["bindings"]) == len(names)
