"""While the disk is short of space, all that would fill it is refused with one status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.managed import Managed, managed

EXCHANGE = {"type": "x-recent-history"}
MESSAGE = {"properties": {}, "routing_key": "k", "payload": "m", "payload_encoding": "string"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Managed]:
    """One whose disk is short, with an exchange that keeps a message, and queues."""
    with managed() as broker:
        for path, body in (("exchanges/%2F/kept", EXCHANGE), ("queues/%2F/a", {}),
                           ("queues/%2F/b", {}),
                           ("queues/%2F/s", {"arguments": {"x-queue-type": "stream"},
                                             "durable": True})):  # fmt: skip
            assert broker.api("PUT", f"/api/{path}", body).status == 201
        assert broker.api("POST", "/api/exchanges/%2F/kept/publish", MESSAGE).status == 200
        broker.call(setattr, broker.inner.loop, "is_low", True)
        yield broker


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "users/u", {"password": "x", "tags": ""}),
        ("PUT", "queues/%2F/new", {}),
        ("POST", "bindings/%2F/e/kept/q/a", {"routing_key": "", "arguments": {}}),
        ("POST", "exchanges/%2F/kept/publish", MESSAGE),
        ("POST", "queues/%2F/a/move", {"destination": "b"}),
        ("POST", "queues/%2F/a/browse/move", {"ids": ["0.1.4.0"], "destination": "b"}),
        ("PUT", "queues/%2F/s/stream/consumers/c", {"offset": 0}),
        ("POST", "definitions", {"queues": []}),
    ],
)
def test_what_would_fill_a_short_disk_is_refused_with_412(
    broker: Managed, method: str, path: str, body: dict[str, Any]
) -> None:
    """A queue and a binding were refused with 400, as if the request made no sense, and a move
    was answered as done that had moved nothing."""
    answer = broker.api(method, f"/api/{path}", body)

    assert (answer.status, answer.json["error"]) == (412, "precondition_failed")
    assert answer.json["reason"].startswith("Server low on disk space")
