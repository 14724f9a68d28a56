"""Fixtures for pytest, registered by the package: tests get a real broker without a service.

`lavinmq_broker` is shared by all tests of a session (of a worker, with pytest-xdist), each of which
may have a virtual host of its own there by `lavinmq_vhost`, and a client in it by `lavinmq_client`;
`lavinmq_broker_factory` starts brokers that only one test uses. pytest imports this file in every
environment that has the package, so it imports nothing else before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import lavinmq

if TYPE_CHECKING:
    from lavinmq.client import Client


@pytest.fixture(scope="session")
def lavinmq_broker() -> Iterator[lavinmq.Broker]:
    """A running broker, shared: use names of your own, or delete what you declare."""
    with lavinmq.run() as broker:
        yield broker


@pytest.fixture
def lavinmq_vhost(lavinmq_broker: lavinmq.Broker) -> Iterator[str]:
    """The URL of a virtual host of the shared broker that only this test uses."""
    with lavinmq_broker.vhost() as url:
        yield url


@pytest.fixture
def lavinmq_client(lavinmq_vhost: str) -> Iterator[Client]:
    """A client in a virtual host of its own; what it leaves there goes with that."""
    from lavinmq.client import Client

    with Client(lavinmq_vhost) as client:
        yield client


@pytest.fixture
def lavinmq_broker_factory() -> Iterator[Callable[..., lavinmq.Broker]]:
    """Call it like `lavinmq.run` to start a broker; all are stopped after the test."""
    with ExitStack() as brokers:
        yield lambda **settings: brokers.enter_context(lavinmq.run(**settings))
