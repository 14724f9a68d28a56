"""Federation between RabbitMQ and us, whoever is the upstream, and rings of both."""

from __future__ import annotations

import pytest

from lavinmq.client import Client
from tests.integration.rabbitmq.conftest import WAIT_S, Side, until

DEADLINE_S = 400.0
"""RabbitMQ takes its time to start."""
COUNT = 1000


@pytest.fixture(params=["RabbitMQ's upstream is ours", "our upstream is RabbitMQ"])
def sides(request: pytest.FixtureRequest, ours: Side, rabbit: Side) -> tuple[Side, Side]:
    """Upstream and downstream."""
    return (ours, rabbit) if request.param.startswith("Rabbit") else (rabbit, ours)


def publish(side: Side, keys: list[str]) -> None:
    with Client(side.uri) as client:
        producer = client.producer(exchange="x", routing_key="")
        for n, key in enumerate(keys):
            producer.publish(b"%d" % n, routing_key=key)
        producer.flush(WAIT_S)


def mirrored(side: Side) -> list[str]:
    """Keys that links have bound at an upstream."""
    rows = side.api.get(f"/api/exchanges/{side.path}/x/bindings/source")
    found = [row for row in rows if row["destination"].startswith("federation: ")]
    return sorted({row["routing_key"] for row in found})


def test_an_exchange_gets_what_its_bindings_ask_for(sides: tuple[Side, Side]) -> None:
    up, down = sides
    for side in sides:
        with Client(side.uri) as client:
            client.exchange("x", "topic")
    with Client(down.uri) as client:
        client.queue("q")
        client.bind("q", "x", "a.#")
    down.put("federation-upstream", "u", uri=up.uri)
    down.policy("^x$", "exchanges", federation_upstream="u")
    until(down.links_run, lambda: down.rows("federation-links"))
    until(lambda: mirrored(up) == ["a.#"], lambda: mirrored(up))

    publish(up, ["a.1", "b.1"] * COUNT)
    found = down.taken("q", COUNT)
    assert [int(each.body) for each in found] == list(range(0, 2 * COUNT, 2))
    assert {each.routing_key for each in found} == {"a.1"}
    [entry] = found[0].headers["x-received-from"]
    assert entry["exchange"] == "x" and entry["redelivered"] is False

    with Client(down.uri) as client:
        client.bind("q", "x", "c")
        until(lambda: mirrored(up) == ["a.#", "c"], lambda: mirrored(up))
        client.unbind("q", "x", "a.#")
    until(lambda: mirrored(up) == ["c"], lambda: mirrored(up))
    publish(up, ["a.1", "c"])
    assert [each.routing_key for each in down.taken("q", 1)] == ["c"]


def test_a_queue_gets_messages_while_somebody_consumes(sides: tuple[Side, Side]) -> None:
    up, down = sides
    for side in sides:
        with Client(side.uri) as client:
            client.queue("q")
    down.put("federation-upstream", "u", uri=up.uri)
    down.policy("^q$", "queues", federation_upstream="u")
    until(lambda: down.rows("federation-links"), "there is a link")
    up.fill("q", range(COUNT))
    assert sorted(int(each.body) for each in down.taken("q", COUNT)) == list(range(COUNT))
    assert up.waiting("q") == 0


def test_a_ring_of_exchanges_ends(ours: Side, rabbit: Side) -> None:
    """Each message comes to the other side once, and never back."""
    for side, other in ((ours, rabbit), (rabbit, ours)):
        with Client(side.uri) as client:
            client.exchange("x", "fanout")
            client.queue("q")
            client.bind("q", "x", "")
        side.put("federation-upstream", "u", uri=other.uri, max_hops=1)
        side.policy("^x$", "exchanges", federation_upstream="u")
    rows = lambda: (ours.rows("federation-links"), rabbit.rows("federation-links"))  # noqa: E731
    for side in (ours, rabbit):
        until(side.links_run, rows)
    until(lambda: mirrored(ours) == mirrored(rabbit) == [""], rows)
    publish(ours, [""] * 50)
    publish(rabbit, [""] * 70)
    for side in (ours, rabbit):
        assert len(side.taken("q", 120)) == 120
    # What comes back would come now.
    until(lambda: ours.rows("federation-links")[0]["in_flight"] == 0, "all is settled")
    assert (ours.waiting("q"), rabbit.waiting("q")) == (0, 0)
