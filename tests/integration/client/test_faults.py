"""All faults of a network and a broker, one after the other, and a thousand of one: what the client
promises is kept, and nothing is left over."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import Client
from tests.support.broker import Broker
from tests.support.client_faults import check
from tests.support.fault_proxy import FaultProxy

DEADLINE_S = 600.0


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.host, broker.port) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("is_apart", [False, True], ids=["one", "apart"])
@pytest.mark.parametrize("mode", ["confirm", "fire_and_forget"])
def test_promises_are_kept_through_all_faults(broker: Broker, mode: str, is_apart: bool) -> None:
    name = f"faults-{uuid.uuid4().hex[:12]}"
    check(broker.host, broker.port, "%2F", name, mode, separate_connections=is_apart)
    with Client(broker.uri) as client:
        client.delete_queue(name)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["confirm", "fire_and_forget"])
def test_promises_are_kept_by_way_of_a_file(broker: Broker, mode: str, tmp_path: Path) -> None:
    """With room for a few messages in memory, most go by the spill."""
    name = f"faults-{uuid.uuid4().hex[:12]}"
    spill: dict[str, Any] = {"buffer_policy": "spill", "spill_directory": str(tmp_path)}
    check(broker.host, broker.port, "%2F", name, mode, buffer_size=10, **spill)
    with Client(broker.uri) as client:
        client.delete_queue(name)
    [segment] = tmp_path.glob("*/*.spill")
    assert segment.stat().st_size > 0


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["confirm", "fire_and_forget"])
def test_a_thousand_reconnects_leak_nothing(proxy: FaultProxy, mode: str) -> None:
    def held() -> tuple[int, int, int]:
        producer.flush(30)
        proxy.pairs[:] = proxy.pairs[-1:]
        gc.collect()
        blocks = sys.getallocatedblocks()
        return blocks, len(os.listdir("/proc/self/fd")), threading.active_count()

    options: dict[str, Any] = {"reconnect_initial_delay": 0.001, "reconnect_max_delay": 0.05}
    with Client(proxy.url, mode=mode, **options) as client:
        producer, consumer = client.producer("leak-1"), client.consumer("leak-1")
        consumer.subscribe(lambda message: None)
        client.exchange("leak", "topic")
        client.queue("leak", durable=False)
        client.bind("leak", "leak", "#")
        found = []
        for n in range(1, 1101):
            producer.publish(b"x" * 100)
            proxy.cut()
            while client.metrics().reconnects < n:  # a thousand waits of 20 ms would be long
                time.sleep(0.001)
            if n in (100, 1100):
                found.append(held())
        for name in ("leak-1", "leak"):
            client.delete_queue(name)
        client.delete_exchange("leak")

    # What a connection leaves for a second, to be surely closed, is there in both.
    assert found[1][0] - found[0][0] < 2000, found
    assert found[1][1] - found[0][1] < 8 and found[1][2] - found[0][2] < 4, found
