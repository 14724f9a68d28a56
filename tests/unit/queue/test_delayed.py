"""What waits in a delayed exchange, told step by step: losses that random tests have found."""

from __future__ import annotations

from pathlib import Path

from pamqp import commands

from lavinmq import _core
from tests.support.core import Bench
from tests.support.wire import encode_publish
from tests.unit.queue.test_delayed_model import StillEvents

HOUR_MS = 3_600_000


def test_a_message_takes_the_place_of_one_that_was_released_at_once(tmp_path: Path) -> None:
    """The place in the file was still marked as deleted: the message was never released."""
    bench = Bench(tmp_path, StillEvents())
    exchange = _core.Exchange(_core.FANOUT, 1)
    internal = _core.Queue(bench.loop, str(tmp_path / "internal"), 4096, True)
    exchange.set_delayed(b"x", internal)
    out = bench.queue("out")  # a binding keeps no queue alive
    exchange.bind(b"", b"", out)
    bench.link.learn(b"x", exchange)

    def publish(delay_ms: int) -> None:
        properties = commands.Basic.Properties(headers={"x-delay": delay_ms})
        bench.send(encode_publish(1, "x", "k", b"body", properties))

    publish(0)
    bench.run()
    publish(HOUR_MS)
    publish(0)
    bench.run()

    assert internal.ready == 1
    bench.loop.clock_offset_ms = 2 * HOUR_MS
    bench.loop.expire()
    bench.run()
    assert (internal.ready, out.ready) == (0, 3)
    bench.close()


def test_a_message_takes_the_place_of_one_that_expired_out_of_order(tmp_path: Path) -> None:
    """The same in a queue: the message was counted, and never delivered."""
    bench = Bench(tmp_path, StillEvents())
    queue = bench.queue("q", durable=False)

    def publish(expiration: str) -> None:
        properties = commands.Basic.Properties(expiration=expiration)
        bench.send(encode_publish(1, "", "q", b"body", properties))

    publish("10000")
    publish("00001")
    bench.run()
    bench.loop.clock_offset_ms = 5000
    bench.loop.expire()
    bench.run()
    assert queue.ready == 1
    assert bench.link.get(1, queue, True)
    bench.run()
    assert queue.ready == 0

    publish("20000")
    publish("30000")
    bench.run()

    assert [bench.link.get(1, queue, True) for _ in range(2)] == [True, True]
    bench.close()
