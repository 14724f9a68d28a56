"""What `lavinmqperf amqp throughput` prints: rate lines, the summary, and the summary as JSON.

Numbers in, text out; nothing here measures or prints.
"""

from dataclasses import dataclass
from typing import Self

QUANTILES = (("median", 0.5), ("75th", 0.75), ("95th", 0.95), ("99th", 0.99))


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds: `count` measured, quantiles of a sample of `sample_size`."""

    count: int
    sample_size: int
    min: float
    quantiles: tuple[float, float, float, float]

    @classmethod
    def of(cls, count: int, min_ns: int, sample_ns: list[int]) -> Self:
        """Make it of a sorted, non-empty sample in nanoseconds."""
        last = len(sample_ns) - 1
        at = [sample_ns[min(int(len(sample_ns) * q), last)] / 1e6 for _, q in QUANTILES]
        return cls(count, len(sample_ns), min_ns / 1e6, (at[0], at[1], at[2], at[3]))


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run came to; `latency` is None when nothing was measured."""

    elapsed_s: float
    published: int
    consumed: int
    latency: Latency | None = None

    @property
    def publish_rate(self) -> int:
        """Messages per second."""
        return round(self.published / self.elapsed_s) if self.elapsed_s else 0

    @property
    def consume_rate(self) -> int:
        """Messages per second."""
        return round(self.consumed / self.elapsed_s) if self.elapsed_s else 0


def rate_line(interval: Totals) -> str:
    """Return the line of one second."""
    line = (
        f"Publish rate: {interval.publish_rate} msgs/s Consume rate: {interval.consume_rate} msgs/s"
    )
    if interval.latency is None:
        return line
    values = (interval.latency.min, *interval.latency.quantiles)
    joined = "/".join(f"{value:.3f}" for value in values)
    return f"{line} | Latency (ms) min/median/75th/95th/99th: {joined}"


def summary(totals: Totals) -> str:
    """Return the lines at the end, after a blank one."""
    lines = [
        "",
        "Summary:",
        f"Average publish rate: {totals.publish_rate} msgs/s",
        f"Average consume rate: {totals.consume_rate} msgs/s",
    ]
    if latency := totals.latency:
        sampled = f", sampled={latency.sample_size}" if latency.sample_size < latency.count else ""
        lines.append(f"Latency (ms, n={latency.count}{sampled}):")
        lines.append(f"  min: {latency.min:.3f}")
        for (name, _), value in zip(QUANTILES, latency.quantiles, strict=True):
            lines.append(f"  {name}: {value:.3f}")
    return "\n".join(lines)


def summary_json(totals: Totals) -> str:
    """Return the summary as one line of JSON."""
    import json

    result: dict[str, int | float] = {
        "elapsed_seconds": round(totals.elapsed_s),
        "avg_pub_rate": totals.publish_rate,
        "avg_consume_rate": totals.consume_rate,
    }
    if latency := totals.latency:
        result["latency_min_ms"] = round(latency.min, 3)
        names = ("median", "p75", "p95", "p99")
        for name, value in zip(names, latency.quantiles, strict=True):
            result[f"latency_{name}_ms"] = round(value, 3)
        result["latency_count"] = latency.count
        result["latency_sample_size"] = latency.sample_size
    return json.dumps(result)


def mqtt_summary_json(totals: Totals) -> str:
    """Return the summary of a run of MQTT as one line of JSON: as `summary_json`, and more."""
    import json

    result = json.loads(summary_json(totals))
    seconds = totals.elapsed_s or 1.0
    result |= {
        "elapsed_seconds": round(totals.elapsed_s, 1),
        "avg_pub_rate": round(totals.published / seconds, 1),
        "avg_consume_rate": round(totals.consumed / seconds, 1),
        "total_published": totals.published,
        "total_consumed": totals.consumed,
    }
    return json.dumps(result)
