"""A broker that may serve nobody any more, as a leader that another one has replaced, moves nothing
either."""

from __future__ import annotations

from lavinmq.client import Client
from lavinmq.policy.parameters import Parameter
from tests.conftest import BrokerFactory
from tests.integration.shovel.conftest import Bench, fill, until
from tests.support.inside import inside


def test_what_moves_messages_between_others_ends_when_a_broker_is_cut(
    broker_factory: BrokerFactory,
) -> None:
    """They were taken at their sources, and acknowledged, until all else was let go of."""
    there = Bench(broker_factory(http=True))
    with Client(there.broker.uri) as client, inside() as here:
        for queue in ("from", "to", "up"):
            client.queue(queue)
        uri = there.broker.uri
        shovel = {"src-uri": uri, "src-queue": "from", "dest-uri": uri, "dest-queue": "to"}
        here.call(
            here.vhost().rules.parameters.put, Parameter("shovel", "s", shovel),
            Parameter("federation-upstream", "u", {"uri": uri}),
        )  # fmt: skip
        with Client(here.broker.url) as own:
            own.queue("up")
            own.consumer("up")
            here.put_policy("p", "^up$", {"federation-upstream": "u"})

            def consumers() -> list[int]:
                rows = there.api.get("/api/queues/%2F")
                return [row["consumers"] for row in rows if row["name"] in ("from", "up")]

            fill(client, "from", 10)
            until(lambda: there.ready("to") == 10, "the shovel moves")
            until(lambda: consumers() == [1, 1], "the link is there")

            here.call(here.server.cut)

        until(lambda: consumers() == [0, 0], "they take nothing more")
        for queue in ("from", "up"):
            fill(client, queue, 10)
        assert (there.ready("from"), there.ready("to"), there.ready("up")) == (10, 10, 10)
