"""Heartbeats come at half of the interval that was agreed on, however short it is."""

from __future__ import annotations

from pamqp import heartbeat

from tests.support.broker import Broker
from tests.support.wire import Wire

BEATS = 8


def beats(wire: Wire) -> int:
    """How many heartbeats have come until now."""
    return sum(isinstance(unit.method, heartbeat.Heartbeat) for unit in wire.receive_all(0.0))


def test_half_the_interval_brings_twice_the_heartbeats(broker: Broker) -> None:
    """Both wait on the same broker for the same time, so that it does not matter how fast it is."""
    with (
        Wire.open(broker.port, heartbeat_s=1) as often,
        Wire.open(broker.port, heartbeat_s=2) as seldom,
        Wire.open(broker.port, heartbeat_s=0) as never,
    ):
        for _ in range(BEATS):
            assert isinstance(often.receive().method, heartbeat.Heartbeat)
            often.send(0, heartbeat.Heartbeat())
            seldom.send(0, heartbeat.Heartbeat())
        assert beats(never) == 0
        assert BEATS // 2 - 1 <= beats(seldom) <= BEATS // 2 + 1
