"""The overview and the nodes over HTTP: totals, churn, histories, and who sees which of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq import __version__
from tests.support.managed import Managed, managed

ODD = "odd %2F >ü"
CHURN = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_deleted",
)  # fmt: skip
SYSTEM = {
    "os_pid", "fd_total", "fd_used", "processors", "mem_limit", "mem_used", "mem_used_details",
    "io_write_count", "io_write_details", "io_read_count", "io_read_details", "cpu_user_time",
    "cpu_user_details", "cpu_sys_time", "cpu_sys_details", "db_dir", "disk_total",
    "disk_total_details", "disk_free", "disk_free_details", "partitions", "proc_used", "run_queue",
    "sockets_used", "followers",
}  # fmt: skip
EVERYBODY = {
    "uptime", "running", "name", "applications", "messages_unacknowledged", "messages_ready",
} | {name for event in CHURN for name in (event, f"{event}_details")}  # fmt: skip


@pytest.fixture
def broker() -> Iterator[Managed]:
    with managed() as broker:
        broker.add_vhost(ODD)
        yield broker


def in_vhost(api: Any, vhost: str) -> Any:
    """The overview of one virtual host."""
    return api.get("/api/overview", headers={"x-vhost": vhost.encode()})


def totals(overview: Any) -> tuple[int, ...]:
    """Connections, channels, consumers, queues, messages."""
    objects = overview["object_totals"]
    counts = (objects[name] for name in ("connections", "channels", "consumers", "queues"))
    return (*counts, overview["queue_totals"]["messages"])


def fill(broker: Managed, vhost: str, queue: str) -> Any:
    """Two messages in a queue, one of them unacknowledged; returns the connection."""
    client = broker.connect(vhost)
    channel = client.channel()
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.topic", f"{queue}.#")
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("amq.topic", f"{queue}.b", b"2")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *_: None, consumer_tag=queue)
    return client


def test_the_overview_names_the_broker_for_clients_of_both(broker: Managed) -> None:
    overview = broker.api.get("/api/overview/")

    assert (overview["product_name"], overview["lavinmq_version"]) == ("LavinMQ", __version__)
    assert overview["node"] == overview["cluster_name"] == os.uname().nodename
    assert overview["rabbitmq_version"] == overview["management_version"] == "3.13.7"
    assert (overview["rates_mode"], overview["statistics_db_event_queue"]) == ("basic", 0)
    assert overview["erlang_version"] == ""
    assert 0 <= overview["uptime"] < 120
    assert {"name": "topic", "human": "Topic"} in overview["exchange_types"]
    assert {"name": "x-consistent-hash", "human": "Consistent Hash"} in overview["exchange_types"]


def test_the_listeners_are_named_with_their_ports(broker: Managed) -> None:
    listeners = broker.api.get("/api/overview")["listeners"]

    common = {"ip_address": "127.0.0.1", "tls": False, "node": os.uname().nodename}
    assert listeners == [
        {"port": broker.port, "protocol": "amqp"} | common,
        {"port": broker.http_port, "protocol": "http"} | common,
        {"port": broker.metrics_port, "protocol": "http/prometheus"} | common,
    ]


def test_objects_and_messages_are_counted(broker: Managed) -> None:
    fill(broker, "/", "one")
    fill(broker, ODD, "two")

    overview = broker.api.get("/api/overview")

    assert overview["object_totals"] == {
        "channels": 2, "connections": 2, "consumers": 2, "exchanges": 14, "queues": 2,
        "bindings": 2,
    }  # fmt: skip
    counts = overview["queue_totals"]
    assert counts["messages"] == 4
    assert (counts["messages_ready"], counts["messages_unacknowledged"]) == (2, 2)


def test_the_header_x_vhost_limits_all_totals(broker: Managed) -> None:
    fill(broker, "/", "one")
    fill(broker, ODD, "two")
    fill(broker, ODD, "three")

    assert totals(in_vhost(broker.api, ODD)) == (2, 2, 2, 2, 4)
    assert totals(in_vhost(broker.api, quote(ODD, safe=""))) == (2, 2, 2, 2, 4)
    assert totals(in_vhost(broker.api, "/")) == (1, 1, 1, 1, 2)
    assert totals(in_vhost(broker.api, "nope")) == (0, 0, 0, 0, 0)
    assert in_vhost(broker.api, ODD)["churn_rates"]["connection_created"] == 2
    assert in_vhost(broker.api, "nope")["churn_rates"]["connection_created"] == 0


@pytest.mark.parametrize(
    ("tags", "vhost", "connections"),
    [
        (("administrator",), "", 2),
        (("monitoring",), "", 2),
        (("management",), ODD, 1),
        (("impersonator",), ODD, 1),
        (("management",), "", 0),
    ],
)
def test_who_sees_which_totals(
    broker: Managed, tags: tuple[str, ...], vhost: str, connections: int
) -> None:
    api = broker.user("watcher", *tags, vhost=vhost)
    fill(broker, "/", "one")
    fill(broker, ODD, "two")

    overview = api.get("/api/overview")

    assert totals(overview) == (connections,) * 4 + (2 * connections,)
    assert overview["churn_rates"]["connection_created"] == connections
    assert overview["message_stats"]["publish"] == 2 * connections
    node = api.get("/api/nodes")[0]
    assert node["messages_ready"] + node["messages_unacknowledged"] == 2 * connections
    hidden = api.get("/api/overview", headers={"x-vhost": "/"})
    assert totals(hidden)[0] == (1 if connections == 2 else 0)


def test_messages_are_counted_by_what_happened_to_them(broker: Managed) -> None:
    client = broker.connect()
    channel = client.channel()
    channel.queue_declare("q")
    for _ in range(4):
        channel.basic_publish("", "q", b"x")
    channel.basic_get("q", auto_ack=True)
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag)
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    client.close()
    broker.sample()

    stats = broker.api.get("/api/overview")["message_stats"]

    assert {name: value for name, value in stats.items() if not name.endswith("details")} == {
        "publish": 4, "get": 2, "deliver": 0, "deliver_get": 3, "ack": 1, "reject": 1,
        "redeliver": 1, "confirm": 0,
    }  # fmt: skip
    assert stats["publish_details"]["log"][-1] == stats["publish_details"]["rate"] > 0
    assert stats["confirm_details"]["rate"] == 0


def test_histories_are_as_long_as_there_were_samples(broker: Managed) -> None:
    broker.sample()
    before = len(broker.api.get("/api/overview")["queue_totals"]["messages_log"])
    fill(broker, "/", "one")
    broker.sample()
    fill(broker, ODD, "two")
    broker.sample()

    overview = broker.api.get("/api/overview")

    counts = overview["queue_totals"]
    assert counts["messages_log"] == [0] * before + [2, 4]
    assert counts["messages_ready_log"] == [0] * before + [1, 2]
    assert counts["messages_unacknowledged_log"] == [0] * before + [1, 2]
    assert in_vhost(broker.api, ODD)["queue_totals"]["messages_log"] == [0] * (before + 1) + [2]
    for name in ("recv_oct_details", "send_oct_details"):
        log = overview[name]["log"]
        assert len(log) == before + 2
        assert log[-2] > 0
        assert log[-1] == overview[name]["rate"] > 0


def test_the_lag_of_stored_offsets_has_a_history(broker: Managed) -> None:
    channel = broker.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    path = "/api/queues/%2F/s/stream/consumers"
    for _ in range(4):
        channel.basic_publish("", "s", b"x")
    broker.sample()
    before = broker.inner.sampler.samples
    broker.api("PUT", f"{path}/group", {"offset": 2})
    assert broker.api.get(path) == [{"name": "group", "offset": 2, "lag": 3, "lag_log": []}]

    broker.sample()
    channel.basic_publish("", "s", b"x")
    broker.sample()

    [row] = broker.api.get(path)
    assert (row["lag"], row["lag_log"]) == (4, [0] * before + [3, 4])
    broker.api("DELETE", f"{path}/group")
    broker.sample()
    assert broker.api.get(path) == []


def test_bytes_of_closed_connections_stay_in_the_history(broker: Managed) -> None:
    """edge-cases.md 346"""
    broker.sample()
    fill(broker, "/", "one").close()
    broker.sample()
    log = broker.api.get("/api/overview")["recv_oct_details"]["log"]
    assert log[-1] > 0

    broker.sample()

    assert broker.api.get("/api/overview")["recv_oct_details"]["log"] == [*log, 0]


def test_churn_counts_what_has_come_and_gone(broker: Managed) -> None:
    """edge-cases.md 346"""
    client = broker.connect(ODD)
    first, second = client.channel(), client.channel()
    first.queue_declare("stays")
    first.queue_declare("stays")
    first.queue_declare("goes")
    first.queue_delete("goes")
    second.queue_declare("", exclusive=True)
    second.basic_consume("stays", lambda *_: None, consumer_tag="c")
    second.basic_cancel("c")
    second.close()
    client.close()
    broker.disconnect()

    rates = broker.api.get("/api/overview")["churn_rates"]

    counts = [rates[name] for name in CHURN]
    assert counts == [1, 1, 2, 2, 3, 2]
    assert all(set(rates[f"{name}_details"]) == {"rate"} for name in CHURN)
    counted = broker.call(broker.vhost(ODD).totals.churn.counters)
    assert (counted["consumer_added"], counted["consumer_removed"]) == (1, 1)


def test_churn_does_not_go_down_with_a_vhost(broker: Managed) -> None:
    fill(broker, ODD, "q")
    manager = broker.user("ann", "management", vhost="/")

    assert broker.api("DELETE", f"/api/vhosts/{quote(ODD, safe='')}").status == 204
    broker.disconnect()

    rates = broker.api.get("/api/overview")["churn_rates"]
    assert [rates[name] for name in CHURN] == [1, 1, 1, 1, 1, 1]
    of_manager = manager.get("/api/overview")["churn_rates"]
    assert [of_manager[name] for name in CHURN] == [0] * 6


def test_a_channel_that_fails_is_closed_once(broker: Managed) -> None:
    client = broker.connect()
    channel = client.channel()
    with pytest.raises(Exception, match="NOT_FOUND"):
        channel.queue_declare("missing", passive=True)
    client.close()
    broker.disconnect()

    rates = broker.api.get("/api/overview")["churn_rates"]

    assert (rates["channel_created"], rates["channel_closed"]) == (1, 1)


@pytest.mark.parametrize("tag", ["administrator", "monitoring"])
def test_a_node_shows_what_it_uses_to_who_watches(broker: Managed, tag: str) -> None:
    api = broker.user("watcher", tag)
    broker.sample()
    broker.call(broker.inner.system.sample, broker.inner.sampler.samples)

    (node,) = api.get("/api/nodes")

    assert set(node) >= EVERYBODY | SYSTEM
    assert node["running"] is True
    assert node["name"] == os.uname().nodename
    assert node["applications"] == [
        {"name": "lavinmq", "description": "LavinMQ", "version": __version__}
    ]
    assert node["os_pid"] == str(os.getpid())
    assert 0 < node["fd_used"] < node["fd_total"]
    assert 0 < node["mem_used"] < node["mem_limit"]
    assert 0 < node["disk_free"] < node["disk_total"]
    assert node["mem_used_details"]["log"][-1] > 0
    assert node["cpu_user_time"] > 0
    assert node["processors"] == len(os.sched_getaffinity(0))
    assert node["db_dir"] == broker.broker.data_dir
    assert node["followers"] == node["partitions"] == []
    assert set(node["connection_created_details"]) == {"rate", "log"}


@pytest.mark.parametrize("tag", ["management", "policymaker", "impersonator"])
def test_a_node_shows_others_only_its_messages(broker: Managed, tag: str) -> None:
    api = broker.user("ann", tag, vhost="/")

    (node,) = api.get("/api/nodes")

    assert set(node) == EVERYBODY
    assert api.get(f"/api/nodes/{node['name']}")["uptime"] >= node["uptime"]


def test_a_node_counts_messages_of_the_named_vhosts_only(broker: Managed) -> None:
    fill(broker, "/", "one")
    fill(broker, ODD, "two")
    odd = quote(ODD, safe="")

    def ready(query: str) -> tuple[int, int]:
        (node,) = broker.api.get(f"/api/nodes{query}")
        return node["messages_ready"], node["queue_declared"]

    assert ready("") == ready(f"?vhost=%2F&vhost={odd}") == (2, 2)
    assert ready(f"?vhost={odd}") == (1, 1)
    assert ready("?vhost=nope") == (0, 0)


def test_there_is_one_node(broker: Managed) -> None:
    for method, path in (("GET", "/api/nodes/nope"), ("POST", "/api/nodes/nope/gc_collect")):
        answer = broker.api(method, path)

        assert (answer.status, answer.content) == (404, b"")


def test_the_garbage_collector_is_shown_and_run_for_administrators(broker: Managed) -> None:
    before = broker.api.get("/api/nodes/gc_stats")

    for path in ("/api/nodes/gc_collect", f"/api/nodes/{os.uname().nodename}/gc_collect"):
        answer = broker.api("POST", path)
        assert (answer.status, answer.content) == (204, b"")

    after = broker.api.get("/api/nodes/gc_stats")
    assert after["gc_no"] >= before["gc_no"] + 2
    assert after["heap_size"] > 0
    assert after["obtained_from_os_bytes"] > 0
    assert all(isinstance(value, int) for value in after.values())
    watcher = broker.user("watcher", "monitoring")
    assert watcher("GET", "/api/nodes/gc_stats").status == 403
    assert watcher("POST", "/api/nodes/gc_collect").status == 403


def test_the_metrics_port_has_no_api(broker: Managed) -> None:
    import http.client

    connection = http.client.HTTPConnection(broker.host, broker.metrics_port, timeout=10)
    connection.request("GET", "/api/overview")
    answer = connection.getresponse()

    assert (answer.status, answer.read()) == (404, b"404 Not Found\n")
    connection.close()


def test_links_of_federation_are_shown_to_those_of_the_virtual_host(broker: Managed) -> None:
    manager = broker.user("ann", "management", vhost=ODD)

    assert manager.get("/api/federation-links") == []
    assert manager.get(f"/api/federation-links/{quote(ODD, safe='')}") == []
    assert manager("GET", "/api/federation-links/%2F").status == 403
    page = broker.api.get("/api/federation-links?page=1")
    assert (page["items"], page["total_count"]) == ([], 0)


def test_the_name_of_the_cluster_is_a_global_parameter(broker: Managed) -> None:
    from lavinmq.policy.parameters import Parameter

    broker.call(broker.inner.parameters.put, Parameter(None, "cluster_name", "näme"))

    assert json.loads(broker.api("GET", "/api/overview").content)["cluster_name"] == "näme"
