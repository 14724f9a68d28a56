"""Figures of a client: a snapshot, and its text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lavinmq.client.together import Alone, Together

STATES: Final = {"connected": 1, "blocked": 1, "closed": -1}


@dataclass(slots=True)
class Metrics:
    """Figures since the client was made; times are seconds."""

    published: int = 0
    confirmed: int = 0
    sent: int = 0
    nacked: int = 0
    returned: int = 0
    dropped: int = 0
    drops: dict[str, int] = field(default_factory=dict[str, int])
    """Those dropped, by the text of their DropReason."""
    resent: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    in_flight: int = 0
    confirm_latency: dict[float, int] = field(default_factory=dict[float, int])
    """Confirms that took less than so many seconds, added up."""
    confirm_latency_sum: float = 0.0
    delivered: int = 0
    acked: int = 0
    rejected: int = 0
    redelivered: int = 0
    unacked: int = 0
    stale_acks: int = 0
    connections: int = 0
    connects: int = 0
    reconnects: int = 0
    reconnect_attempts: int = 0
    poll_detected: int = 0
    state: str = "idle"
    state_seconds: dict[str, float] = field(default_factory=dict[str, float])
    blocked_seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    last_error: str = ""
    queues: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """By queue, or by exchange/routing key: confirmed, sent, nacked, returned, dropped, buffered,
    capacity."""
    drops_of: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By queue and reason."""

    @property
    def messages_sent(self) -> int:
        """Those that the broker was given and, with confirms, has confirmed."""
        return self.confirmed + self.sent

    @property
    def messages_received(self) -> int:
        """Deliveries."""
        return self.delivered

    @property
    def messages_dropped(self) -> int:
        """Those given up here."""
        return self.dropped

    @property
    def messages_buffered(self) -> int:
        """Those that wait."""
        return self.buffered

    @property
    def connection_count(self) -> int:
        """Connections there are."""
        return self.connections

    @property
    def reconnection_count(self) -> int:
        """Connections made after the first."""
        return self.reconnects

    def exposition(self) -> str:
        """The text that Prometheus reads."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# TYPE amqp_messages_total counter"
        for queue, figures in self.queues.items():
            for result in ("confirmed", "sent", "nacked", "returned"):
                if figures[result]:
                    labels = f'queue="{_escaped(queue)}",result="{result}"'
                    yield f"amqp_messages_total{{{labels}}} {figures[result]}"
        yield "# TYPE amqp_messages_dropped_total counter"
        for (queue, reason), count in self.drops_of.items():
            labels = f'queue="{_escaped(queue)}",reason="{reason}"'
            yield f"amqp_messages_dropped_total{{{labels}}} {count}"
        for name, key, kind in (
            ("amqp_buffer_depth", "buffered", "gauge"),
            ("amqp_buffer_capacity", "capacity", "gauge"),
        ):
            yield f"# TYPE {name} {kind}"
            for queue, figures in self.queues.items():
                yield f'{name}{{queue="{_escaped(queue)}"}} {figures[key]}'
        yield "# TYPE amqp_reconnection_attempts_total counter"
        yield f"amqp_reconnection_attempts_total {self.reconnect_attempts}"
        yield "# TYPE amqp_connection_state gauge"
        yield f"amqp_connection_state {STATES.get(self.state, 0)}"
        yield "# TYPE amqp_confirm_latency_seconds histogram"
        for bound, count in self.confirm_latency.items():
            yield f'amqp_confirm_latency_seconds_bucket{{le="{bound:g}"}} {count}'
        yield f'amqp_confirm_latency_seconds_bucket{{le="+Inf"}} {self.confirmed}'
        yield f"amqp_confirm_latency_seconds_sum {self.confirm_latency_sum:g}"
        yield f"amqp_confirm_latency_seconds_count {self.confirmed}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def snapshot(together: Together | Alone) -> Metrics:
    """The figures of a client as they are now."""
    from lavinmq.client.consuming import BaseConsumer
    from lavinmq.client.producing import BaseProducer

    found = Metrics(
        state=together.state.value,
        state_seconds={state.value: spent for state, spent in together.seconds().items() if spent},
        last_error=str(together.last_error or ""),
    )
    for core in together.cores:
        for name in ("connects", "reconnects", "reconnect_attempts", "poll_detected",
                     "blocked_seconds", "bytes_in", "bytes_out"):  # fmt: skip
            setattr(found, name, getattr(found, name) + getattr(core, name))
        link = core.link  # the loop's thread may take it away meanwhile
        if link is not None:
            found.connections += core.is_connected
            found.bytes_in += link.input.bytes_in
            found.bytes_out += link.bytes_out
    buckets = [0] * 32
    for member in (each for core in together.cores for each in core.everybody()):
        if isinstance(member, BaseProducer):
            _add_producer(found, member)
            buckets = [a + b for a, b in zip(buckets, member.latency_buckets, strict=True)]
        elif isinstance(member, BaseConsumer):
            tracker = member.tracker
            # In this order: others go on meanwhile, and none may seem settled before it came.
            for name in ("acked", "rejected", "stale_acks", "redelivered", "delivered"):
                setattr(found, name, getattr(found, name) + getattr(tracker, name))
            found.unacked += tracker.count
    total = 0
    for power, count in enumerate(buckets):
        total += count
        if count:
            found.confirm_latency[2 ** (power + 1) / 1e6] = total
    return found


def _add_producer(found: Metrics, producer: object) -> None:
    from lavinmq.client.producing import BaseProducer

    assert isinstance(producer, BaseProducer)
    figures = {name: producer.count_of(name) for name in
               ("confirmed", "sent", "nacked", "returned", "dropped")}  # fmt: skip
    figures |= {"buffered": producer.buffer_size, "capacity": producer.buffer_capacity}
    found.queues[producer.label] = figures
    for reason, count in list(producer.dropped_by.items()):
        found.drops[reason.value] = found.drops.get(reason.value, 0) + count
        place = (producer.label, reason.value)
        found.drops_of[place] = found.drops_of.get(place, 0) + count
    for name in ("confirmed", "sent", "nacked", "returned", "dropped", "buffered"):
        setattr(found, name, getattr(found, name) + figures[name])
    found.published += producer.published
    found.resent += producer.resent
    found.buffered_bytes += producer.n_bytes
    found.in_flight += producer.in_flight
    found.confirm_latency_sum += producer.latency_sum
