"""What the churn scenarios of lavinmqperf print: a line for each operation, or JSON.

Numbers in, text out; nothing here measures or prints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

RATE_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, " "))
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(slots=True)
class Measurement:
    """How often an operation was done: slices of time with their seconds and their count."""

    name: str
    clients: int
    slices: list[tuple[float, int]] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """The time that was measured."""
        return math.fsum(elapsed_s for elapsed_s, _ in self.slices)

    @property
    def iterations(self) -> int:
        """How many operations all clients did in that time."""
        return sum(done for _, done in self.slices)

    @property
    def rate(self) -> float:
        """Operations per second of all clients together."""
        return self.iterations / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def mean_s(self) -> float:
        """How long one operation takes, as its client sees it; infinite if none was done."""
        return self.clients / self.rate if self.rate else math.inf

    @property
    def deviation(self) -> float:
        """Standard deviation of the rates of the slices, as a part of the rate."""
        if not self.rate:
            return 0.0
        squares = [(done / elapsed_s - self.rate) ** 2 for elapsed_s, done in self.slices]
        return math.sqrt(math.fsum(squares) / len(squares)) / self.rate


def short(value: float, digits: int) -> str:
    """Write a number below 1000 with this many digits, or more if its whole part has more."""
    texts = (f"{value:.{decimals}f}" for decimals in range(digits - 1, -1, -1))
    return next((text for text in texts if len(text) <= digits + 1), f"{value:.0f}")


def human_rate(rate: float) -> str:
    """Write a rate with three digits and a unit, as `12.3k`."""
    scale, unit = next((pair for pair in RATE_UNITS if rate >= pair[0]), RATE_UNITS[-1])
    return f"{short(rate / scale, 3):>5}{unit}"


def human_time(seconds: float) -> str:
    """Write a time with two digits, or three if it needs them, and a unit, as ` 81µs`."""
    if math.isinf(seconds):
        return "  -  "
    scale, unit = next((pair for pair in TIME_UNITS if seconds >= pair[0]), TIME_UNITS[-1])
    return f"{short(seconds / scale, 2):>3}{unit}"


def lines(measurements: Sequence[Measurement]) -> str:
    """Return a line for each; several are compared with the fastest."""
    width = max((len(one.name) for one in measurements), default=0)
    fastest = max((one.rate for one in measurements), default=0.0)
    text = []
    for one in measurements:
        line = f"{one.name:<{width}} {human_rate(one.rate)} ({human_time(one.mean_s)})"
        line += f" (±{one.deviation * 100:2.0f}%)"
        if len(measurements) > 1:
            line += f" {_comparison(one.rate, fastest)}"
        text.append(line)
    return "\n".join(text)


def _comparison(rate: float, fastest: float) -> str:
    if rate == fastest:
        return "fastest"
    return f"{fastest / rate:.2f}x slower" if rate else "nothing done"


def as_json(scenario: str, clients: int, measurements: Sequence[Measurement]) -> str:
    """Return all measurements as one line of JSON."""
    import json

    operations = [
        {
            "name": one.name,
            "elapsed_seconds": round(one.elapsed_s, 3),
            "iterations": one.iterations,
            "iterations_per_second": round(one.rate, 1),
            "mean_us": round(one.mean_s * 1e6, 1) if one.rate else None,
            "relative_stddev_percent": round(one.deviation * 100, 1),
        }
        for one in measurements
    ]
    return json.dumps({"scenario": scenario, "clients": clients, "operations": operations})
