"""A workload in which a few old messages keep segments, so that these are compacted.

Two lives of a broker that compacts all the time. Needs segments that are worth it: `SEGMENT_SIZE`.
"""

from __future__ import annotations

import time

from pamqp import commands

from tests.crash.load import stream_and_number
from tests.crash.workload import PLAIN, TX, Workload
from tests.support.broker import Broker, BrokerError
from tests.support.patience import PATIENCE
from tests.support.segments import queue_directory
from tests.support.wire import Wire

SEGMENT_SIZE = 81920
OF_SEGMENT = 87
"""Messages of a segment, about."""
FEW_ACKS = 60
"""Bytes of an ack file that was compacted: fillers and what came later."""
DEADLINE_S = 20.0 * PATIENCE


class Pinned(Workload):
    """What was asked of a broker, and what it has to have."""

    def run(self, broker: Broker) -> bool:
        """Work through it all; return False when the broker ended before."""
        self._broker = broker
        return super().run(broker)

    def _first_life(self, wire: Wire) -> None:
        for queue in (PLAIN, TX):
            self._declare(wire, queue)
        self._publish(wire, PLAIN, OF_SEGMENT + 20)
        self._get(wire, 2)  # it stays, and so does the segment
        self._take(wire, 40)
        kept = self._get(wire, 2)
        self._take(wire, OF_SEGMENT - 30)
        self._wait_until_compacted(1)
        self.books.acknowledged[stream_and_number(kept.body)] = time.monotonic_ns()
        wire.send(2, commands.Basic.Ack(kept.method.delivery_tag))
        wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)
        self.books.settled.add(stream_and_number(kept.body))
        self._publish(wire, PLAIN, OF_SEGMENT)
        self._take(wire, 20)

    def _second_life(self, wire: Wire) -> None:
        self._take(wire, 1)  # the first segment goes
        self._get(wire, 2)
        self._take(wire, OF_SEGMENT - 27)
        self._wait_until_compacted(2)
        self._publish(wire, PLAIN, 3)
        self._publish(wire, TX, 3)

    def _wait_until_compacted(self, segment: int) -> None:
        path = queue_directory(self._broker.data_dir, PLAIN) / f"acks.{segment:010}"
        deadline = time.monotonic() + DEADLINE_S
        while path.stat().st_size > FEW_ACKS:
            if not self._broker.is_running():
                raise BrokerError("it has ended")
            assert time.monotonic() < deadline, f"segment {segment} is not compacted"
            time.sleep(0.005)
