"""Bytes of a virtual host: nothing is lost or counted twice when connections come and go."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from lavinmq.stats.lags import Lags
from lavinmq.stats.sampler import Gauge
from lavinmq.stats.totals import Traffic, sampled


def vhost() -> Any:
    churn, messages = object(), object()
    totals = SimpleNamespace(
        traffic=Traffic(), ready=Gauge(), unacked=Gauge(), churn=churn, messages=messages
    )
    return SimpleNamespace(exchanges={}, queues={}, totals=totals)


def connection(traffic: Traffic | None, received: int) -> Any:
    link = SimpleNamespace(received_bytes=received, sent_bytes=2 * received)
    return SimpleNamespace(traffic=traffic, link=link, channels={})


def round_over(vhosts: list[Any], connections: list[Any]) -> Iterator[Any]:
    return sampled(vhosts, connections, Lags(), lambda: 1)


def test_open_and_closed_connections_are_summed_by_their_vhost() -> None:
    one, other = vhost(), vhost()
    one.totals.traffic.leave(100, 200)
    connections = [
        connection(one.totals.traffic, 10), connection(other.totals.traffic, 1),
        connection(one.totals.traffic, 20), connection(None, 1000), connection(Traffic(), 1000),
    ]  # fmt: skip

    seen = list(round_over([one, other], connections))

    assert one.totals.traffic.counters() == {"recv_oct": 130, "send_oct": 260}
    assert other.totals.traffic.counters() == {"recv_oct": 1, "send_oct": 2}
    assert all(each in seen for each in connections)


def test_a_connection_that_leaves_during_a_round_counts_once() -> None:
    one = vhost()
    connections = [connection(one.totals.traffic, 10), connection(one.totals.traffic, 20)]

    for thing in round_over([one], list(connections)):
        if thing in connections:
            one.totals.traffic.leave(thing.link.received_bytes, thing.link.sent_bytes)
            connections.remove(thing)

    assert one.totals.traffic.counters() == {"recv_oct": 30, "send_oct": 60}
    assert connections == []
    list(round_over([one], connections))
    assert one.totals.traffic.counters() == {"recv_oct": 30, "send_oct": 60}


def test_messages_of_all_queues_are_one_sample_and_those_of_a_stream_are_ready() -> None:
    one = vhost()
    for name, ready, is_stream in (("a", 1, False), ("b", 5, False), ("c", 10, True)):
        core = SimpleNamespace(ready=ready, unacked=1, n_offsets=0)
        one.queues[name] = SimpleNamespace(core=core, is_stream=is_stream)

    list(round_over([one], []))

    assert one.totals.ready.log(1) == [16]
    assert one.totals.unacked.log(1) == [2]
