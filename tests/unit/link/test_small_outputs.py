"""Very many links with a little to say each: they take small buffers, not blocks."""

from __future__ import annotations

from pathlib import Path

from tests.support.mqtt_bench import MqttBench


def test_many_links_get_what_is_published_small_and_large(tmp_path: Path) -> None:
    """Those behind the first sixteen begin with a small buffer, which becomes a block in time. A
    body that is sent from its file comes behind what is in a small buffer."""
    bench = MqttBench(tmp_path)
    readers = [bench.client(f"r{n}").subscribe(b"t", 1) for n in range(24)]
    publisher = bench.client("p")
    bodies = [b"x", b"y" * 3000, b"z" * 5000, b"w" * 100000, bytes(3 << 20), b"end"]

    for body in bodies:
        publisher.publish(b"t", body, qos=1)

    for reader in readers:
        assert reader.bodies() == bodies
    assert bench.loop.large_bytes == 0
    bench.close()
