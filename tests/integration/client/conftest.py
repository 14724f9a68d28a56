"""What tests of the client share: a network that fails, and a queue that goes afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from lavinmq.client import Client
from tests.support.broker import Broker
from tests.support.fault_proxy import FaultProxy


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    """What stands between a client and the broker."""
    with FaultProxy(broker.host, broker.port) as made:
        yield made


@pytest.fixture
def queue(broker: Broker) -> Iterator[str]:
    """A name for a durable queue, which goes after the test."""
    name = f"client-{uuid.uuid4().hex[:12]}"
    yield name
    with Client(broker.uri) as client:
        client.delete_queue(name)
