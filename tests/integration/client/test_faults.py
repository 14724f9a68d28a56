"""All faults of a network and a broker, one after the other: what the client promises is kept."""

from __future__ import annotations

import uuid

import pytest

from lavinmq.client import Client
from tests.support.broker import Broker
from tests.support.client_faults import check

DEADLINE_S = 300.0


@pytest.mark.nightly
@pytest.mark.parametrize("is_apart", [False, True], ids=["one", "apart"])
@pytest.mark.parametrize("mode", ["confirm", "fire_and_forget"])
def test_promises_are_kept_through_all_faults(broker: Broker, mode: str, is_apart: bool) -> None:
    name = f"faults-{uuid.uuid4().hex[:12]}"
    check(broker.host, broker.port, "%2F", name, mode, separate_connections=is_apart)
    with Client(broker.uri) as client:
        client.delete_queue(name)
