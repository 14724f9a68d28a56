"""From ranges of offsets to tasks."""

from __future__ import annotations

from dataclasses import dataclass

from lavinmq.spark.options import ConnectionOptions


@dataclass(frozen=True, slots=True)
class RangeTask:
    """All that one task needs to read the offsets [start, end) of one stream. Picklable.

    `columns` are names of `schema.COLUMNS`, in the order of the batches' schema; whether headers
    are read, and how, follows from `headers` and `headers_json` being among them. `filter` is the
    JSON of the option, `filter_match` `all` or `any`; both None without a filter. `transport` is
    `amqp` or `http`. With `fail_on_data_loss` a range whose first offsets are gone fails.
    """

    connection: ConnectionOptions
    queue: str
    start: int
    end: int
    columns: tuple[str, ...]
    prefetch: int = 2000
    batch_rows: int = 10_000
    read_timeout_s: float = 30.0
    filter: str | None = None
    filter_match: str | None = None
    transport: str = "amqp"
    client_name: str = "spark"
    fail_on_data_loss: bool = True
