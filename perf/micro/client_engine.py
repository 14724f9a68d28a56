"""What the engine of the client costs per message, in processor time of one thread, without I/O.

Publish and forget the receipt, publish a batch, make frames and take the confirm, read deliveries
of 16 bytes, acknowledge. The broker is left out: `perf/client_bench.py` measures with one.

Usage: python perf/micro/client_engine.py [--messages N]
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable

from lavinmq.client import _engine, methods

BODY = bytes(16)


class Ring(_engine.Ring):
    """A ring whose owner sleeps."""

    def wake(self) -> None:
        """Nobody listens."""


def spent(work: Callable[[], object]) -> float:
    """Nanoseconds of this thread's processor time."""
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start


def delivery(tag: int) -> bytes:
    """A delivery of 16 bytes."""
    head = _engine.encode_method(2, 60 << 16 | 60, "sQbss", "consumer-1", tag, False, "", "orders")
    props = struct.pack(">HHQ", 60, 0, len(BODY)) + b"\x10\x00\x02"
    return b"".join(
        (
            head,
            struct.pack(">BHI", 2, 2, len(props)) + props + b"\xce",
            struct.pack(">BHI", 3, 2, len(BODY)) + BODY + b"\xce",
        )
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    n = parser.parse_args().messages
    ring = Ring()
    ring.configure(routing_key="orders", properties={"delivery_mode": 2}, capacity=4 * n,
                   max_in_flight=1000)  # fmt: skip
    ring.attach(1, 131_072)
    reading = _engine.Input()
    reading.open(_engine.Port(1, ring=ring))
    out = _engine.Output()

    def publish() -> None:
        for _ in range(n):
            ring.publish(BODY)

    def send_and_confirm() -> None:
        tag = 0
        while k := ring.pump(out, 1 << 18):
            tag += k
            out.take()
            ack = _engine.encode_method(1, methods.IDS["basic.ack"], "Qb", tag, True)
            reading.feed(ack)

    def batch() -> None:
        receipt = ring.batch()
        ring.add_many([BODY] * n, 0, (None, None, 0), receipt)
        receipt.seal()

    figures = {"publish": spent(publish), "frames and confirm": spent(send_and_confirm)}
    ring.reset()
    ring.attach(1, 131_072)
    figures["publish_batch"] = spent(batch)
    tracker = _engine.Tracker()
    tracker.reset(2)
    port = _engine.Port(2, tracker=tracker)
    reading.open(port)
    data = [b"".join(map(delivery, range(at, at + 1000))) for at in range(1, n + 1, 1000)]
    consumed = acked = 0.0
    for piece in data:
        consumed += spent(lambda piece=piece: reading.feed(piece))  # type: ignore[misc]
        messages = port.take()
        acked += spent(lambda messages=messages: [m.ack() for m in messages])  # type: ignore[misc]
        tracker.flush(out)
        out.take()
    figures |= {"delivery": consumed, "ack": acked}
    for name, total in figures.items():
        print(f"{name:<20} {total / n:6.0f} ns")


if __name__ == "__main__":
    main()
