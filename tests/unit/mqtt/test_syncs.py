"""Who waits for the disk with whom: acknowledgements of others do not send a sync to the worker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.mqtt_bench import PUBACK, PUBCOMP, MqttBench, ack, publish


def syncing_threads() -> int:
    """How many loops have handed over a sync."""
    return sum(each.name == "sync" for each in threading.enumerate())


@pytest.mark.parametrize(
    ("said", "is_handed_over"), [(ack(PUBCOMP, 1), False), (b"\xc0\0", True)], ids=["ack", "ping"]
)
def test_who_only_acknowledges_does_not_keep_a_sync_from_the_loop(
    tmp_path: Path, said: bytes, is_handed_over: bool
) -> None:
    bench = MqttBench(tmp_path, sync=True)
    publisher, reader = bench.client("p"), bench.client("r").subscribe(b"t")
    before = syncing_threads()

    publisher.socket.send(publish(b"t", b"1", qos=1))
    reader.socket.send(said)
    for client in (publisher, reader):
        client.link.on_readable()
    bench.events.run()

    assert syncing_threads() == before + is_handed_over
    if not is_handed_over:
        assert [each.kind for each in publisher.heard()] == [PUBACK]
    bench.close()
