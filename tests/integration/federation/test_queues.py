"""Federated queues: messages come for consumers, and rest where there are none."""

from __future__ import annotations

import time

import pytest

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.integration.federation.test_exchanges import (
    WAIT_S,
    Site,
    distinct,
    down,
    take,
    until,
    up,
)

DEADLINE_S = 150.0

__all__ = ["down", "up"]


def federated(up: Site, down: Site, mode: str = "on-confirm") -> None:
    """Queue `q` of `down` gets what waits in `q` of `up`."""
    for site in (up, down):
        with Client(site.uri) as client:
            client.queue("q")
    down.upstream("u", up, ack_mode=mode)
    down.policy("^q$", federation_upstream="u")
    until(down.runs, f"the link runs: {down.links()}")


def fill(site: Site, count: int) -> None:
    with Client(site.uri) as client:
        client.producer("q").publish_batch([b"%d" % n for n in range(count)]).result(WAIT_S)


def ready(site: Site) -> int:
    return int(site.api.get("/api/queues/%2F/q")["messages"])


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_come_while_somebody_consumes(up: Site, down: Site, mode: str) -> None:
    federated(up, down, mode)
    fill(up, 500)
    time.sleep(0.3)
    assert (ready(up), ready(down)) == (500, 0)
    messages = take(down, "q", 500)
    assert [each.body for each in messages] == [b"%d" % n for n in range(500)]
    [entry] = messages[0].headers["x-received-from"]
    assert entry["queue"] == "q" and entry["cluster-name"] == "up"
    fill(up, 5)
    time.sleep(0.5)
    # Without acknowledgements what was sent before the link saw that nobody consumes is here.
    assert ready(up) + ready(down) == 5 and (mode == "no-ack" or ready(up) == 5)


def test_a_ring_of_queues_rests_without_consumers_and_serves_the_one_there_is(
    broker_factory: BrokerFactory, up: Site, down: Site
) -> None:
    third = Site(broker_factory(http=True), "third")
    for site, of in ((down, up), (third, down), (up, third)):
        with Client(site.uri) as client:
            client.queue("q")
        site.upstream("u", of)
        site.policy("^q$", federation_upstream="u")
    for site in (up, down, third):
        until(site.runs, "the links run")
    fill(up, 50)
    time.sleep(0.5)
    assert [ready(site) for site in (up, down, third)] == [50, 0, 0]
    with Client(third.uri) as client, client.consumer("q", declare=False) as consumer:
        with Client(down.uri) as other, other.consumer("q", declare=False) as between:
            # Messages go one link for the consumer that is there.
            assert between.get(WAIT_S) is not None
        del consumer
    # One on its way is in two places until the first has heard that the second has it.
    until(lambda: sum(ready(site) for site in (up, down, third)) == 50, "all are there, once")


def test_nothing_is_lost_when_the_upstream_is_killed(up: Site, down: Site) -> None:
    federated(up, down)
    fill(up, 1000)

    def kill() -> None:
        up.broker.kill()
        up.broker.start()

    assert distinct(down, "q", 1000, 300, kill) == {b"%d" % n for n in range(1000)}
