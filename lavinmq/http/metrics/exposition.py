"""The text that Prometheus reads: format 0.0.4, or OpenMetrics 1.0 for who prefers that.

Written by hand and line by line: the client library of Prometheus builds a whole answer before its
first byte leaves, while here the event loop turns in between (decision 0135).
Source: the descriptions of both formats at prometheus.io, docs/monitoring.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from lavinmq._core import DURATION_BOUNDS
from lavinmq.stats.histogram import Values

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TOTAL: Final = "_total"
NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
"""What a metric may be called, and so what a prefix may look like."""
BOUNDS: Final = (*(repr(bound) for bound in DURATION_BOUNDS), "+Inf")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it is described. `is_bare`: its name takes no prefix."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    is_bare: bool = False


def counter(name: str, help_: str) -> Metric:
    """A metric that only grows."""
    return Metric(name, "counter", help_)


def gauge(name: str, help_: str) -> Metric:
    """A metric that goes up and down."""
    return Metric(name, "gauge", help_)


class Exposition:
    """Makes the lines of one answer. Args: prefix: of all names; is_open: OpenMetrics."""

    def __init__(self, prefix: str, is_open: bool) -> None:
        self.prefix = prefix
        self.is_open = is_open

    @property
    def content_type(self) -> str:
        """What the answer is."""
        return OPEN_METRICS if self.is_open else TEXT

    def head(self, metric: Metric) -> str:
        """The lines before the samples of a metric."""
        name = self._name(metric)
        if self.is_open and metric.type == "counter":
            name = name.removesuffix(TOTAL)
        return f"# TYPE {name} {metric.type}\n# HELP {name} {metric.help}\n"

    def sample(self, metric: Metric, value: float, labels: str = "") -> str:
        """One line. Args: labels: as `labels` makes them."""
        name = self._name(metric)
        if self.is_open and metric.type == "counter" and not name.endswith(TOTAL):
            name += TOTAL
        return f"{name}{labels} {number(value)}\n"

    def alone(self, metric: Metric, value: float, labels: str = "") -> str:
        """A metric that has one sample."""
        return self.head(metric) + self.sample(metric, value, labels)

    def histogram(self, metric: Metric, values: Values) -> str:
        """A metric of durations."""
        counts, sum_s = values
        name = self._name(metric)
        lines = [self.head(metric)]
        totals = list(accumulate(counts))
        for bound, total in zip(BOUNDS, totals, strict=True):
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}\n')
        lines.append(f"{name}_sum {number(sum_s)}\n{name}_count {totals[-1]}\n")
        return "".join(lines)

    def labels(self, **values: str) -> str:
        """Labels in the order given; OpenMetrics has no blank between two."""
        separator = "," if self.is_open else ", "
        return f"{{{separator.join(f'{name}={quoted(value)}' for name, value in values.items())}}}"

    def end(self) -> str:
        """What comes last."""
        return "# EOF\n" if self.is_open else ""

    def _name(self, metric: Metric) -> str:
        return metric.name if metric.is_bare else f"{self.prefix}_{metric.name}"


def quoted(value: str) -> str:
    """A label's value; octets that are no UTF-8 are shown as escapes."""
    if not value.isprintable():
        value = value.encode("utf-8", "backslashreplace").decode()
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{value}"'


def number(value: float) -> str:
    """A value; whole numbers of any size stay exact."""
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def prefers_open_metrics(accept: str) -> bool:
    """Whether an Accept header wants OpenMetrics 1.0 more than plain text. Source: RFC 9110."""
    best = {True: 0.0, False: 0.0}
    for item in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        given = dict(part.partition("=")[::2] for part in parameters)
        if kind == "application/openmetrics-text":
            if given.get("version", "1.0.0").strip('"') != "1.0.0":
                continue
            is_open = True
        elif kind in ("text/plain", "text/*", "*/*"):
            is_open = False
        else:
            continue
        best[is_open] = max(best[is_open], _quality(given.get("q", "1")))
    return best[True] > 0 and best[True] >= best[False]


def _quality(text: str) -> float:
    """A weight between 0 and 1; nonsense weighs nothing."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
