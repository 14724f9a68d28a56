"""What is answered by HTTP is on disk: when a sync fails, nobody is told that all is well."""

from __future__ import annotations

import errno
import http.client
from typing import Any

import pytest

from tests.crash.conftest import DiskFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk

pytestmark = pytest.mark.crash
QUEUE = "/api/queues/%2F"
MESSAGE = {"properties": {}, "payload": "x", "payload_encoding": "string"}


def publish(key: str) -> tuple[str, str, dict[str, Any]]:
    """A publish to a queue."""
    return "POST", "/api/exchanges/%2F/amq.default/publish", MESSAGE | {"routing_key": key}


def start(on_disk: DiskFactory) -> tuple[Broker, Disk, Api]:
    """A broker with two durable queues, one of which has a message."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    for name in ("from", "to"):
        assert api("PUT", f"{QUEUE}/{name}", {"durable": True}).status == 201
    assert api("PUT", f"{QUEUE}/transient", {}).status == 201
    assert api(*publish("from")).json == {"routed": True}
    return broker, disk, api


@pytest.mark.parametrize(
    "change",
    [
        publish("from"),
        ("POST", f"{QUEUE}/from/move", {"destination": "to"}),
        ("PUT", f"{QUEUE}/new", {"durable": True}),
        ("DELETE", f"{QUEUE}/to", None),
        ("PUT", f"{QUEUE}/from/pause", None),
        ("PUT", "/api/exchanges/%2F/new", {"type": "direct", "durable": True}),
        ("POST", "/api/bindings/%2F/e/amq.topic/q/to", {"routing_key": "k"}),
    ],
    ids=["publish", "move", "declare", "delete", "pause", "exchange", "bind"],
)
def test_a_change_is_answered_after_its_sync(
    on_disk: DiskFactory, change: tuple[str, str, Any]
) -> None:
    broker, disk, api = start(on_disk)
    disk.plan(Action.FAIL, Call.SYNC, error=errno.EIO)

    with pytest.raises((http.client.HTTPException, OSError)):
        api(*change)

    assert disk.struck == 1
    assert broker.wait() == 1


def test_what_needs_no_disk_does_not_wait_for_it(on_disk: DiskFactory) -> None:
    _, disk, api = start(on_disk)
    disk.plan(Action.FAIL, Call.SYNC, error=errno.EIO)

    assert api(*publish("transient")).json == {"routed": True}
    assert api("POST", f"{QUEUE}/from/get", {"ack_mode": "ack_requeue_true"}).status == 200
    assert disk.struck == 0
