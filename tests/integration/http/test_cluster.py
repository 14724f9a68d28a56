"""What tools of RabbitMQ ask for: the name of the cluster, flags of features, rebalancing."""

from __future__ import annotations

import socket

import pytest

from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker


def test_the_name_is_that_of_the_host_until_it_is_given(http_broker: Broker) -> None:
    api = Api(http_broker)
    assert api.get("/api/cluster-name") == {"name": socket.gethostname()}

    assert api("PUT", "/api/cluster-name", {"name": "Ærø"}).status == 204

    assert api.get("/api/cluster-name") == {"name": "Ærø"}
    assert api.get("/api/global-parameters/cluster_name")["value"] == "Ærø"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", 5, None])
def test_a_bad_name_is_refused(broker: Broker, name: object) -> None:
    assert Api(broker)("PUT", "/api/cluster-name", {"name": name}).status == 400


def test_there_are_no_flags_and_nothing_to_rebalance(broker: Broker, unique: UniqueName) -> None:
    api = Api(broker)
    for path in ("feature-flags", "deprecated-features", "deprecated-features/used"):
        assert api.get(f"/api/{path}") == []
    assert api("POST", "/api/rebalance/queues").status == 204
    other = api.as_user(unique("u"), "monitoring")
    assert other("POST", "/api/rebalance/queues").status == 403
    assert other("PUT", "/api/cluster-name", {"name": "x"}).status == 403
