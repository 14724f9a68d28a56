"""A bench of links that speak MQTT."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mqtt_bench import MqttBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MqttBench]:
    """Closed at the end, with all of its clients."""
    gc.freeze()  # what is there already costs the collector nothing at the end
    made = MqttBench(tmp_path)
    yield made
    made.close()
    gc.collect()
