"""No memory to note a delivery: it is not written, and comes when there is some."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.core import Bench, TimedEvents, publish, settle
from tests.support.no_memory import no_memory, run

N = 65_536
"""Of unsettled deliveries: the room for one more takes megabytes."""
ACK = 80


def full(bench: Bench) -> None:
    """A channel with as many deliveries as there is room for; more are wanted."""
    queue = bench.queue("q", 1 << 26)
    bench.link.add_consumer(1, queue, b"c", False).start()
    for _ in range(N // 1024):
        bench.send(publish(b"q", b"x") * 1024)
        bench.run()
        bench.receive()
    assert queue.unacked == N
    gc.collect()


def delivery_that_cannot_be_noted(bench: Bench) -> None:
    """It is not written. It was, under a tag that the next one had again."""
    full(bench)
    (queue,) = bench._queues
    with no_memory():
        bench.send(publish(b"q", b"one"))
        bench.run()
        assert bench.receive() == []
    assert not queue.is_closed and (queue.ready, queue.unacked) == (1, N)

    bench.advance(1000)
    bench.send(publish(b"q", b"two"))
    bench.run()

    assert [(got.tag, got.body) for got in bench.receive()] == [(N + 1, b"one"), (N + 2, b"two")]
    bench.send(settle(ACK, N + 2, 0))
    bench.run()
    assert (queue.ready, queue.unacked) == (0, N + 1)


def tag_that_needs_no_ack(bench: Bench) -> None:
    """It stands for no other. An ack of it settled the oldest delivery, in the same place."""
    full(bench)
    queue = bench._queues[0]
    other = bench.queue("other")
    bench.link.add_consumer(1, other, b"d", True).start()
    with no_memory():
        bench.send(publish(b"other", b"one"))
        bench.run()
        seen = bench.receive()
        if not seen:
            with pytest.raises(MemoryError):
                bench.link.get(1, other, True)
    bench.advance(1000)
    seen += bench.receive()

    assert [(got.tag, got.body) for got in seen] == [(N + 1, b"one")]
    bench.send(settle(ACK, N + 1, 0))
    bench.run()
    assert queue.unacked == N


@pytest.mark.parametrize("what", [delivery_that_cannot_be_noted, tag_that_needs_no_ack])
def test_without_memory_nothing_is_written(what: Callable[[Bench], None], tmp_path: Path) -> None:
    run(__file__, what.__name__, tmp_path)


if __name__ == "__main__":
    with closing(Bench(Path(sys.argv[2]) / "data", TimedEvents())) as one:
        globals()[sys.argv[1]](one)
    print("passed")
