"""What passed, window by window: rates, sizes, keys and latencies of messages of any source.

One aggregation for batches and for streams, of bounded size whatever passes: percentiles and most
frequent keys are sketches. The time of a message is when the broker received it, else when its
publisher says it was sent. Called by the job `flow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("queue", "timestamp", "exchange", "routing_key", "body", "message_timestamp")
GROUPS = ("queue", "exchange", "routing_key")
# Of 1/1000 of the rank; and how many keys a window keeps count of.
ACCURACY, KEYS_TRACKED = 1000, 1000
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
MILLISECOND_US = 1000


@dataclass(frozen=True, slots=True)
class Windows:
    """How messages are counted: windows of `seconds`, for each of `by` (of GROUPS), `keys` shown.

    `lateness_s`: how long a window of a stream waits for messages that come out of order.
    """

    seconds: float
    by: tuple[str, ...] = ("queue",)
    keys: int = 5
    lateness_s: float = 30.0


def figures(messages: DataFrame, how: Windows) -> DataFrame:
    """Return a row for each window and group, of messages with COLUMNS; a stream has a watermark.

    Columns: `window_start`, `window_end`, those of `how.by`, `messages`, `bytes`, `per_s`,
    `bytes_per_s`; of body sizes in bytes and of latencies in milliseconds (`size_`, `latency_`)
    `p50`, `p90`, `p99` and `max`; `timed`, the messages that have a latency; `top_keys`, an array
    of routing key and approximate count. Messages without any time are left out.
    """
    from pyspark.sql import functions as f

    interval = f"{round(how.seconds * 1000)} milliseconds"
    latency = f.unix_micros("timestamp") - f.unix_micros("message_timestamp")
    messages = messages.select(
        f.coalesce("timestamp", "message_timestamp").alias("time"),
        *dict.fromkeys((*how.by, "routing_key")),
        f.coalesce(f.octet_length("body"), f.lit(0)).cast("bigint").alias("size"),
        (latency / MILLISECOND_US).alias("latency"),
    ).where("time IS NOT NULL")
    if messages.isStreaming:
        messages = messages.withWatermark("time", f"{round(how.lateness_s * 1000)} milliseconds")
    shares = ", ".join(str(share) for _, share in PERCENTILES)
    window = f.window("time", interval)
    counted = messages.groupBy(window, *how.by).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.max("size").alias("size_max"),
        f.count("latency").alias("timed"),
        f.max("latency").alias("latency_max"),
        f.expr(f"approx_percentile(size, array({shares}), {ACCURACY})").alias("sizes"),
        f.expr(f"approx_percentile(latency, array({shares}), {ACCURACY})").alias("latencies"),
        f.expr(f"approx_top_k(routing_key, {how.keys}, {KEYS_TRACKED})").alias("keys"),
    )
    place = {name: number for number, (name, _) in enumerate(PERCENTILES)}
    return counted.select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        *how.by,
        *("messages", "bytes"),
        (f.col("messages") / how.seconds).alias("per_s"),
        (f.col("bytes") / how.seconds).alias("bytes_per_s"),
        *(f.col("sizes")[number].alias(f"size_{name}") for name, number in place.items()),
        *("size_max", "timed"),
        *(f.col("latencies")[number].alias(f"latency_{name}") for name, number in place.items()),
        "latency_max",
        f.transform(
            "keys",
            lambda key: f.struct(
                key["item"].alias("routing_key"), key["count"].cast("bigint").alias("messages")
            ),
        ).alias("top_keys"),
    )


def as_messages(windows: DataFrame, prefix: str, by: Sequence[str]) -> DataFrame:
    """Return the windows as rows to publish: JSON bodies, a key, an id that is the same each time.

    The key is `prefix` and the names of the group, by dots.
    """
    from pyspark.sql import functions as f

    names = [f.coalesce(name, f.lit("")) for name in by]
    start = f.unix_millis("window_start").cast("string")
    return windows.select(
        f.to_json(f.struct(*windows.columns)).alias("body"),
        f.concat_ws(".", f.lit(prefix), *names).alias("routing_key"),
        f.lit("application/json").alias("content_type"),
        f.concat_ws("/", f.lit(prefix), start, *names).alias("message_id"),
    )
