"""`/metrics` and `/metrics/detailed`: who may ask, for what, and what the numbers are."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest

from tests.conftest import BrokerFactory
from tests.integration.conftest import Channels
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.metrics import DETAILED, names, scrape, value, values, vhosts_of
from tests.support.prepare import prepare

# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/metrics/detailed", "/metrics/"])
def test_the_listener_for_metrics_asks_nobody(broker: Broker, path: str) -> None:
    answer = scrape(broker, path)

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def peopled(tmp_path: Path, broker_factory: BrokerFactory) -> Broker:
    """A broker with users of several kinds, and a virtual host `other`."""
    data_dir = tmp_path / "peopled"
    users = [
        {"name": "tagless", "tags": "", "permissions": {"other": ["", "", ""]}},
        {"name": "limited", "tags": "management", "permissions": {"other": ["", "", ""]}},
        {"name": "watching", "tags": "monitoring"},
    ]
    prepare(data_dir, [{"users": users, "vhosts": ["other"]}])
    return broker_factory(data_dir=data_dir, http=True)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/detailed"])
def test_the_listener_for_management_wants_a_user(peopled: Broker, path: str) -> None:
    nobody = Api(peopled)("GET", path, headers={"Authorization": ""})

    assert (nobody.status, nobody.content) == (401, b"")
    assert nobody.headers["www-authenticate"] == 'Basic realm="LavinMQ"'
    assert Api(peopled, "guest", "wrong")("GET", path).status == 401
    assert Api(peopled, "tagless")("GET", path).status == 401
    for user in ("guest", "limited", "watching"):
        assert Api(peopled, user)("GET", path).status == 200


@pytest.mark.parametrize("path", ["/api/overview", "/api/whoami", "/", "/metrics/other", "/x"])
def test_the_listener_for_metrics_has_nothing_else(broker: Broker, path: str) -> None:
    answer = scrape(broker, path)

    assert answer.status == 404
    assert answer.headers["content-type"] == "text/plain"
    assert answer.content == b"404 Not Found\n"


def test_metrics_are_only_read(broker: Broker) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert scrape(broker, method=method).status == 405
    head = scrape(broker, method="HEAD")
    assert (head.status, head.content) == (200, b"")


def test_only_visible_vhosts_count(peopled: Broker, channel_of: Channels) -> None:
    channel_of(peopled).queue_declare("here", exclusive=True)
    channel_of(peopled, "other").queue_declare("there", exclusive=True)
    api, limited, watching = Api(peopled), Api(peopled, "limited"), Api(peopled, "watching")

    assert value(api("GET", "/metrics"), "queues") == 2
    assert value(watching("GET", "/metrics"), "queues") == 2
    assert value(limited("GET", "/metrics"), "queues") == 1
    assert value(limited("GET", "/metrics"), "connections") == 1
    assert vhosts_of(limited("GET", DETAILED)) == {"other"}
    assert vhosts_of(limited("GET", DETAILED + "&vhost=%2F")) == set()
    assert vhosts_of(scrape(peopled, DETAILED)) == {"/", "other"}


# --- parameters -----------------------------------------------------------------------------------


def test_the_prefix_is_that_of_all_names(broker: Broker) -> None:
    found = names(scrape(broker, "/metrics?prefix=zz"))

    assert {name.partition("_")[0] for name in found} == {"zz", "telemetry"}
    labels = [dict(labels) for name, labels in values(scrape(broker, "/metrics?prefix=zz"))
              if name == "zz_identity_info"]  # fmt: skip
    assert labels[0].keys() == {"zz_version", "zz_cluster"}


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("p" * 21, "Prefix too long (max 20 characters)"),
        ("%C3%BC" * 11, "Prefix too long (max 20 characters)"),
        ("", "Prefix has to be letters, digits, underscores and colons"),
        ("9x", "Prefix has to be letters, digits, underscores and colons"),
        ("a%0Ab", "Prefix has to be letters, digits, underscores and colons"),
        ("a%7B", "Prefix has to be letters, digits, underscores and colons"),
        ("%FF", "Prefix has to be letters, digits, underscores and colons"),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/metrics/detailed"])
def test_a_bad_prefix_is_refused(broker: Broker, path: str, prefix: str, reason: str) -> None:
    answer = scrape(broker, f"{path}?prefix={prefix}")

    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"error": "bad_request", "reason": reason}


def test_a_prefix_of_twenty_characters_is_fine(broker: Broker) -> None:
    assert f"{'p' * 20}_uptime" in names(scrape(broker, "/metrics?prefix=" + "p" * 20))


def test_vhosts_can_be_chosen(http_broker: Broker, channel_of: Channels) -> None:
    api = Api(http_broker)
    for name in ("a", "b", "c"):
        api("PUT", f"/api/vhosts/{name}", {})
        channel_of(http_broker, name).queue_declare("q", exclusive=True)

    assert vhosts_of(scrape(http_broker, DETAILED + "&vhost=a&vhost=c")) == {"a", "c"}
    assert value(scrape(http_broker, "/metrics?vhost=a&vhost=c"), "queues") == 2
    assert value(scrape(http_broker, "/metrics?vhost=unknown"), "queues") == 0
    assert value(scrape(http_broker, "/metrics?vhost=unknown"), "queues_declared_total") == 3


@pytest.mark.parametrize("query", ["", "?family=nope", "?family=", "?vhost=x&family=NOPE"])
def test_without_a_family_there_is_nothing_but_the_scrape(broker: Broker, query: str) -> None:
    found = names(scrape(broker, "/metrics/detailed" + query))

    assert found == {"telemetry_scrape_duration_seconds", "telemetry_scrape_mem"}


def test_a_family_that_is_asked_for_twice_comes_once(broker: Broker) -> None:
    query = "family=connection_metrics&family=connection_coarse_metrics&family=connection_metrics"

    content = scrape(broker, f"/metrics/detailed?{query}").content.decode()

    assert content.count("# TYPE lavinmq_detailed_connection_channels gauge") == 1


# --- numbers --------------------------------------------------------------------------------------


def test_messages_are_counted(http_broker: Broker, channel_of: Channels) -> None:
    channel = channel_of(http_broker)
    channel.confirm_delivery()
    channel.queue_declare("a")
    channel.queue_declare("b")
    for queue in ("a", "b"):
        channel.queue_bind(queue, "amq.fanout")
    for _ in range(4):
        channel.basic_publish("amq.fanout", "", b"x")
    method, _, _ = channel.basic_get("a")
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("a", auto_ack=True)
    channel.basic_get("b")

    answer = scrape(http_broker)

    counted = {name: value(answer, f"global_messages_{name}_total") for name in
               ("published", "delivered", "acknowledged", "confirmed", "redelivered")}  # fmt: skip
    assert counted == {
        "published": 4, "delivered": 3, "acknowledged": 1, "confirmed": 4, "redelivered": 0,
    }  # fmt: skip
    assert value(answer, "queue_messages_ready") == 5
    assert value(answer, "queue_messages_unacked") == 1
    assert value(answer, "queue_messages") == 6
    assert value(answer, "bindings") == 2
    detailed = scrape(http_broker, DETAILED)
    assert value(detailed, "detailed_vhost_messages_published_total", vhost="/") == 4
    assert value(detailed, "detailed_vhost_messages_delivered_total", vhost="/") == 3
    of_a = {"queue": "a", "vhost": "/"}
    assert value(detailed, "detailed_queue_messages_ready", **of_a) == 2
    assert value(detailed, "detailed_queue_messages_published_total", **of_a) == 4
    assert value(detailed, "detailed_queue_messages_delivered_total", **of_a) == 2
    assert value(detailed, "detailed_queue_messages_acked_total", **of_a) == 1


def test_global_counters_never_go_down(http_broker: Broker, channel_of: Channels) -> None:
    api = Api(http_broker)
    api("PUT", "/api/vhosts/doomed", {})
    channel = channel_of(http_broker)
    for vhost in ("/", "doomed"):
        each = channel_of(http_broker, vhost) if vhost == "doomed" else channel
        each.queue_declare("q")
        for _ in range(3):
            each.basic_publish("", "q", b"x")
        each.queue_delete("q")
        if vhost == "doomed":
            each.connection.close()
    before = value(scrape(http_broker), "global_messages_published_total")

    assert api("DELETE", "/api/vhosts/doomed").status == 204

    after = scrape(http_broker)
    assert before == 6
    assert value(after, "global_messages_published_total") == 6
    assert "doomed" not in vhosts_of(scrape(http_broker, DETAILED))


def test_what_comes_and_goes_is_counted(http_broker: Broker) -> None:
    parameters = pika.ConnectionParameters(http_broker.host, http_broker.port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("q", auto_delete=False)
    channel.basic_consume("q", lambda *_: None)
    channel.queue_delete("q")
    connection.close()

    answer = scrape(http_broker, "/metrics/detailed?family=connection_churn_metrics")

    for thing, began, ended in (
        ("connections", "opened", "closed"), ("channels", "opened", "closed"),
        ("queues", "declared", "deleted"), ("consumers", "added", "removed"),
    ):  # fmt: skip
        assert value(answer, f"detailed_{thing}_{began}_total") == 1
        assert value(answer, f"detailed_{thing}_{ended}_total") == 1


def test_durations_are_counted(http_broker: Broker, channel_of: Channels) -> None:
    channel = channel_of(http_broker)
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    scrape(http_broker)

    answer = scrape(http_broker)

    assert value(answer, "confirm_duration_seconds_count") == 3
    assert value(answer, "sync_duration_seconds_count") >= 3
    assert value(answer, "http_request_duration_seconds_count") >= 1
    for name in ("confirm", "sync", "http_request"):
        assert value(answer, f"{name}_duration_seconds_sum") > 0
        buckets = [
            number for (sample, _), number in values(answer).items()
            if sample == f"lavinmq_{name}_duration_seconds_bucket"
        ]  # fmt: skip
        assert buckets == sorted(buckets)


def test_channels_and_connections_show_what_they_do(
    http_broker: Broker, channel_of: Channels
) -> None:
    channel = channel_of(http_broker)
    channel.queue_declare("q")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", lambda *_: None)

    found = values(scrape(http_broker, DETAILED))

    ((_, labels),) = [key for key in found if key[0] == "lavinmq_detailed_channel_prefetch"]
    shown = dict(labels)
    assert found[("lavinmq_detailed_channel_prefetch", labels)] == 7
    assert found[("lavinmq_detailed_channel_consumers", labels)] == 1
    assert re.fullmatch(r"127\.0\.0\.1:\d+\[1\]", shown["channel"])
    of_connection = (("channel", shown["connection"]),)
    assert found[("lavinmq_detailed_connection_channels", of_connection)] == 1
    assert found[("lavinmq_detailed_connection_incoming_bytes_total", of_connection)] > 0


def test_connections_of_a_unix_socket_share_a_name_and_a_sample(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    config = tmp_path / "lavinmq.ini"
    path = tmp_path / "amqp.sock"
    config.write_text(f"[amqp]\nunix_path = {path}\n")
    broker = broker_factory(["-c", str(config)], http=True)
    with ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(path))

        # `values` refuses a sample that comes twice.
        assert values(scrape(broker, DETAILED))


def test_an_alarm_shows(broker_factory: BrokerFactory, tmp_path: Path) -> None:
    config = tmp_path / "lavinmq.ini"
    config.write_text(f"[main]\nfree_disk_min = {2**60}\n")
    broker = broker_factory(["-c", str(config)], http=True)

    answer = scrape(broker)

    assert (value(answer, "alarm_disk_low"), value(answer, "publishers_held")) == (1, 1)
    assert value(answer, "disk_space_available_bytes") > 0
