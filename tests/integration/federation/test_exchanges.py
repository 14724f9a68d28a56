"""Federated exchanges between brokers of ours: bindings are mirrored, and messages come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq.client import Client, Message
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker

WAIT_S = 60.0
DEADLINE_S = 150.0
"""Brokers are started again and again here."""


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Site:
    """A broker, and its federation."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.api = Api(broker)
        assert self.api("PUT", "/api/global-parameters/cluster_name", {"value": name}).status < 300

    @property
    def uri(self) -> str:
        return self.broker.uri

    def upstream(self, name: str, of: Site, **more: Any) -> None:
        value = {"uri": of.uri, "reconnect-delay": 0}
        value |= {key.replace("_", "-"): each for key, each in more.items()}
        path = f"/api/parameters/federation-upstream/%2F/{name}"
        answer = self.api("PUT", path, {"value": value})
        assert answer.status in (201, 204), answer

    def policy(self, pattern: str, **definition: str) -> None:
        keys = {key.replace("_", "-"): each for key, each in definition.items()}
        body = {"pattern": pattern, "definition": keys}
        assert self.api("PUT", "/api/policies/%2F/fed", body).status in (201, 204)

    def links(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.get("/api/federation-links/%2F")
        return found

    def runs(self) -> bool:
        links = self.links()
        return bool(links) and all(link["status"] == "running" for link in links)

    def names(self, kind: str) -> list[str]:
        return [each["name"] for each in self.api.get(f"/api/{kind}/%2F")]

    def mirrored(self, exchange: str = "x") -> list[str]:
        """Routing keys of what links have bound here."""
        rows = self.api.get(f"/api/exchanges/%2F/{exchange}/bindings/source")
        found = [row for row in rows if row["destination"].startswith("federation: ")]
        return sorted(row["routing_key"] for row in found)


@pytest.fixture
def up(broker_factory: BrokerFactory) -> Site:
    return Site(broker_factory(http=True), "up")


@pytest.fixture
def down(broker_factory: BrokerFactory) -> Site:
    return Site(broker_factory(http=True), "down")


def federated(up: Site, down: Site, **more: Any) -> None:
    """Exchange `x` of `down` gets what is published to `x` of `up`."""
    with Client(down.uri) as client:
        client.exchange("x", "topic")
        client.queue("q")
        client.bind("q", "x", "a.#")
    down.upstream("u", up, **more)
    down.policy("^x$", federation_upstream="u")
    until(down.runs, f"the link runs: {down.links()}")


def publish(site: Site, *keys: str, exchange: str = "x", **options: Any) -> None:
    with Client(site.uri) as client:
        producer = client.producer(exchange=exchange, routing_key="")
        for key in keys:
            producer.publish(key.encode(), routing_key=key, **options)
        producer.flush(WAIT_S)


def take(site: Site, queue: str, count: int) -> list[Message]:
    found = []
    with Client(site.uri) as client, client.consumer(queue, declare=False) as consumer:
        while len(found) < count:
            message = consumer.get(WAIT_S)
            assert message is not None, f"{len(found)} of {count}"
            found.append(message)
            message.ack()
    return found


def distinct(
    site: Site, queue: str, count: int, at: int = -1, then: Callable[[], object] = lambda: None
) -> set[bytes]:
    """So many different bodies of a queue, some of which may come twice. Args: then: is called when
    `at` of them are there."""
    found: set[bytes] = set()
    with Client(site.uri) as client, client.consumer(queue, declare=False) as consumer:
        while len(found) < count:
            message = consumer.get(WAIT_S)
            assert message is not None, f"{len(found)} of {count}"
            is_new = message.body not in found
            found.add(message.body)
            message.ack()
            if is_new and len(found) == at:
                then()
    return found


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_come_with_what_they_carry(up: Site, down: Site, mode: str) -> None:
    federated(up, down, ack_mode=mode, consumer_tag="mine")
    assert [each["consumer_tag"] for each in up.api.get("/api/consumers")] == ["mine"]
    publish(up, "a.1", "b.1", "a.2", headers={"k": 1}, priority=4, user_id="guest")
    first, second = take(down, "q", 2)
    assert [each.routing_key for each in (first, second)] == ["a.1", "a.2"]
    assert (first.exchange, first.headers["k"], first.priority) == ("x", 1, 4)
    [entry] = first.headers["x-received-from"]
    assert entry["exchange"] == "x" and entry["redelivered"] is False
    assert (entry["cluster-name"], entry["vhost"]) == ("up", "/")
    assert "guest" not in entry["uri"] and entry["uri"].startswith("amqp://")
    assert "user_id" not in first.properties  # a user of another broker is none of ours
    [link] = down.links()
    assert (link["type"], link["resource"], link["upstream"]) == ("exchange", "x", "u")
    until(lambda: down.links()[0]["message_count"] == 2, "they are counted")


def test_bindings_are_mirrored_and_compared_after_a_loss(up: Site, down: Site) -> None:
    federated(up, down)
    assert up.mirrored() == ["a.#"]
    with Client(down.uri) as client:
        client.queue("q2")
        client.bind("q2", "x", "b.*")
        client.bind("q2", "x", "a.#")
        until(lambda: up.mirrored() == ["a.#", "b.*"], "a binding once for all that ask for it")
        client.unbind("q2", "x", "a.#")
        client.bind("q2", "x", "c")
        until(lambda: up.mirrored() == ["a.#", "b.*", "c"], "others still ask for it")
        client.unbind("q2", "x", "b.*")
        until(lambda: up.mirrored() == ["a.#", "c"], "nobody asks for it")
        up.broker.kill()
        until(lambda: not down.runs(), "the link is down")
        client.unbind("q2", "x", "c")
        client.bind("q2", "x", "d")
    up.broker.start()
    until(down.runs, "the link runs again")
    assert up.mirrored() == ["a.#", "d"]
    internal = [name for name in up.names("exchanges") if name.startswith("federation: ")]
    assert len(internal) == 1


def test_messages_wait_at_the_upstream_while_there_is_no_link(up: Site, down: Site) -> None:
    federated(up, down)
    down.broker.stop()
    publish(up, *(f"a.{n}" for n in range(100)))
    down.broker.start()
    assert [each.body for each in take(down, "q", 100)] == [b"a.%d" % n for n in range(100)]


def test_nothing_is_lost_when_either_is_killed(up: Site, down: Site) -> None:
    federated(up, down)
    for part in range(4):
        publish(up, *(f"a.{n}" for n in range(part * 250, part * 250 + 250)))
        victim = (up if part % 2 else down).broker
        victim.kill()
        victim.start()
    assert distinct(down, "q", 1000) == {b"a.%d" % n for n in range(1000)}


def test_what_a_link_made_goes_with_it_and_stays_at_a_stop(up: Site, down: Site) -> None:
    federated(up, down)
    there = [name for name in up.names("queues") if name.startswith("federation: x -> ")]
    assert len(there) == 1
    down.broker.stop()
    assert there[0] in up.names("queues")
    down.broker.start()
    until(down.runs, "the link runs again")
    assert down.api("DELETE", "/api/policies/%2F/fed").status == 204
    until(lambda: there[0] not in up.names("queues"), "the queue goes")
    until(lambda: not [n for n in up.names("exchanges") if n.startswith("federation")], "and that")
    assert down.links() == []


def test_the_queue_is_the_same_after_the_host_was_renamed(up: Site, down: Site) -> None:
    federated(up, down)
    kept = down.broker.data_dir / "federation.json"
    text = kept.read_text()
    down.broker.stop()
    [name] = [each for each in up.names("queues") if each.startswith("federation: x -> ")]
    host = name.removeprefix("federation: x -> ").split(":")[0]
    assert host in text
    up.api("DELETE", f"/api/queues/%2F/{quote(name, safe='')}")
    kept.write_text(text.replace(host, "another-host"))
    down.broker.start()
    until(down.runs, "the link runs again")
    assert "federation: x -> another-host:/:x" in up.names("queues")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_chain_goes_as_far_as_max_hops_says(
    broker_factory: BrokerFactory, up: Site, down: Site, is_named: bool
) -> None:
    last = Site(broker_factory(http=True), "last")
    if not is_named:  # all of them are on one host, and have its name
        for site in (up, down, last):
            site.api("DELETE", "/api/global-parameters/cluster_name")
    for site, of, hops in ((down, up, 2), (last, down, 2)):
        with Client(site.uri) as client:
            client.exchange("x", "topic")
        site.upstream("u", of, max_hops=hops)
        site.policy("^x$", federation_upstream="u")
    with Client(last.uri) as client:
        client.queue("q")
        client.bind("q", "x", "a.#")
    until(last.runs, "the last link runs")
    until(lambda: up.mirrored() == ["a.#"], "the binding goes two links far")
    publish(up, "a.1")
    [message] = take(last, "q", 1)
    passed = [each.get("cluster-name") for each in message.headers["x-received-from"]]
    assert passed == (["up", "down"] if is_named else [None, None])


@pytest.mark.parametrize("is_named", [True, False])
def test_a_ring_of_three_ends(
    broker_factory: BrokerFactory, up: Site, down: Site, is_named: bool
) -> None:
    third = Site(broker_factory(http=True), "third")
    if not is_named:
        for site in (up, down, third):
            site.api("DELETE", "/api/global-parameters/cluster_name")
    ring = [(down, up), (third, down), (up, third)]
    for site, of in ring:
        with Client(site.uri) as client:
            client.exchange("x", "fanout")
            client.queue("q")
            client.bind("q", "x", "")
        site.upstream("u", of, max_hops=100)
        site.policy("^x$", federation_upstream="u")
    for site, _ in ring:
        until(site.runs, "the links run")
    until(lambda: all(len(site.mirrored()) == 3 for site, _ in ring), "bindings go round once")
    publish(up, "m")
    for site, _ in ring:
        # Who is not named gets its own message once, and knows it then.
        count = 2 if site is up and not is_named else 1
        assert [each.body for each in take(site, "q", count)] == [b"m"] * count
    time.sleep(0.5)
    assert all(site.api.get("/api/queues/%2F/q")["messages"] == 0 for site, _ in ring)


def test_keys_of_an_upstream_count_there_and_here(up: Site, down: Site) -> None:
    federated(up, down, **{
        "expires": 3_600_000, "message-ttl": 1_800_000, "queue-type": "classic", "exchange": "y",
        "consumer-tag": "mine", "trust-user-id": True, "resource-cleanup-mode": "never",
        "prefetch-count": 7, "bind-nowait": True, "channel-use-mode": "single", "max-hops": 3,
    })  # fmt: skip
    [name] = [each for each in up.names("queues") if each.startswith("federation: y -> ")]
    [queue] = [each for each in up.api.get("/api/queues") if each["name"] == name]
    assert queue["arguments"] == {
        "x-internal-purpose": "federation", "x-expires": 3_600_000, "x-message-ttl": 1_800_000,
        "x-queue-type": "classic",
    }  # fmt: skip
    [consumer] = up.api.get("/api/consumers")
    assert (consumer["consumer_tag"], consumer["prefetch_count"]) == ("mine", 7)
    [internal] = [each for each in up.api.get("/api/exchanges") if each["name"] == name]
    assert internal["arguments"]["x-max-hops"] == 3
    publish(up, "a.1", exchange="y", user_id="guest")
    assert take(down, "q", 1)[0].properties["user_id"] == "guest"
    labels = '{vhost="/", upstream="u", type="exchange", resource="x"}'
    lines = {
        f"lavinmq_detailed_federation_link_{metric}{labels} 1"
        for metric in ("running", "messages_taken_total", "messages_total")
    }

    def scraped() -> str:
        return down.api("GET", "/metrics/detailed?family=federation_metrics").content.decode()

    # A message counts as safe here once it is confirmed; a consumer may have it before that.
    until(lambda: lines <= set(scraped().splitlines()), "all three are 1")
    assert down.api("DELETE", "/api/policies/%2F/fed").status == 204
    until(lambda: not up.api.get("/api/connections"), "the link is gone")
    assert name in up.names("queues")


def test_a_link_and_an_upstream_are_paused_over_restarts(up: Site, down: Site) -> None:
    federated(up, down)
    for path in ("u", "u/exchange/x"):
        base = f"/api/federation-links/%2F/{path}"
        assert down.api("PUT", f"{base}/pause").status == 204
        assert [link["status"] for link in down.links()] == ["paused"]
        down.broker.restart()
        until(lambda: [link["status"] for link in down.links()] == ["paused"], "it stays")
        publish(up, "a.1")
        assert down.api("PUT", f"{base}/resume").status == 204
        until(down.runs, "it goes on")
        take(down, "q", 1)
    assert down.api("PUT", "/api/federation-links/%2F/none/pause").status == 404


@pytest.mark.parametrize("path", ["u", "u/exchange/x"])
def test_the_pause_of_an_upstream_goes_with_it(up: Site, down: Site, path: str) -> None:
    federated(up, down)
    assert down.api("PUT", f"/api/federation-links/%2F/{path}/pause").status == 204
    assert down.api("DELETE", "/api/parameters/federation-upstream/%2F/u").status == 204
    down.upstream("u", up)
    until(down.runs, "another one of that name runs")


def test_the_pause_of_a_link_is_that_of_no_other(up: Site, down: Site) -> None:
    """Names may have slashes: `a/b` by way of `c`, and `a` by way of `b/c`."""
    links = {("a/b", "c"), ("a", "b/c")}
    for site in (up, down):
        with Client(site.uri) as client:
            for name, _ in links:
                client.exchange(name, "topic")
    for number, (name, upstream) in enumerate(sorted(links)):
        down.upstream(quote(upstream, safe=""), up)
        policy = {"pattern": f"^{name}$", "definition": {"federation-upstream": upstream}}
        assert down.api("PUT", f"/api/policies/%2F/p{number}", policy).status == 201

    def states() -> dict[str, str]:
        return {each["resource"]: each["status"] for each in down.links()}

    until(lambda: states() == {"a/b": "running", "a": "running"}, "both run")
    assert down.api("PUT", "/api/federation-links/%2F/c/exchange/a%2Fb/pause").status == 204
    down.broker.restart()
    until(lambda: states() == {"a/b": "paused", "a": "running"}, "one is paused")


def test_a_second_upstream_of_the_same_broker_waits_and_disturbs_nothing(
    up: Site, down: Site
) -> None:
    federated(up, down)
    before = up.mirrored(), up.names("exchanges")
    down.upstream("v", up)
    down.policy("^x$", federation_upstream_set="all")

    def second() -> dict[str, Any]:
        return next((each for each in down.links() if each["upstream"] == "v"), {})

    until(lambda: second().get("reconnects", 0) > 2, "it tries")
    assert second()["status"] == "stopped" and "exclusive" in second()["error"]
    assert (up.mirrored(), up.names("exchanges")) == before
    publish(up, "a.1")
    assert len(take(down, "q", 1)) == 1
    with Client(down.uri) as client:
        client.bind("q", "x", "b")
        until(lambda: up.mirrored() == ["a.#", "b"], "the first one follows")
    assert [link["status"] for link in down.links() if link["upstream"] == "u"] == ["running"]
    assert down.api("PUT", "/api/federation-links/%2F/u/pause").status == 204
    until(lambda: second()["status"] == "running", "the second one takes over")
    publish(up, "b")
    assert len(take(down, "q", 1)) == 1


def test_sets_overrides_and_what_is_not_there(
    broker_factory: BrokerFactory, up: Site, down: Site
) -> None:
    with Client(down.uri) as client:
        client.exchange("x", "topic")
    down.upstream("u", up)
    path = "/api/parameters/federation-upstream-set/%2F/s"
    assert down.api("PUT", path, {"value": [{"upstream": "none"}]}).status == 400
    value = [{"upstream": "u"}, {"upstream": "u", "exchange": "other", "prefetch-count": 5}]
    assert down.api("PUT", path, {"value": value}).status == 201
    down.policy("^x$", federation_upstream_set="s")
    until(lambda: len(down.links()) == 2 and down.runs(), "both run")
    assert {"x", "other"} <= set(up.names("exchanges"))
    down.policy("^x$", federation_upstream="missing")
    until(lambda: [link["status"] for link in down.links()] == ["error"], "it says so")
    assert "no upstream 'missing'" in down.links()[0]["error"]
    down.policy("^x$", federation_upstream_set="all")
    until(lambda: len(down.links()) == 1 and down.runs(), "all upstreams")
