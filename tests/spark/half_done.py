"""A query stopped in the middle of a batch, and what it has written in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet

from tests.spark.gate import Gate
from tests.spark.streams import Stream, numbers
from tests.support.broker import Broker

END_S = 180
N_MESSAGES = 20_000
HALF_BYTES = 600_000  # of about 1.5 MB that these messages are as frames


def through(gate: Gate, stream: Stream) -> dict[str, str]:
    """Options that read the stream through the gate, in one task."""
    url = stream.broker.uri.replace(f":{stream.broker.port}", f":{gate.port}")
    more = {"startingOffsets": "earliest", "columns": "offset,body", "batchRows": "1000"}
    return stream.options(url=url, **more)


def written(directory: Path) -> list[int]:
    """The bodies that a query has committed, in the order of offsets; none may be there twice."""
    # Files of a task that died are there too: the log of the sink says which ones count.
    names = set()
    for batch in (directory / "_spark_metadata").iterdir():
        if batch.name.isdigit():
            entries = batch.read_text().splitlines()[1:]
            names |= {Path(json.loads(entry)["path"]).name for entry in entries}
    rows = [
        row for name in names for row in pyarrow.parquet.read_table(directory / name).to_pylist()
    ]
    assert len({row["offset"] for row in rows}) == len(rows)
    return [int(row["body"]) for row in sorted(rows, key=lambda row: row["offset"])]


def filled(broker: Broker) -> Stream:
    """A stream with messages on a broker of one's own."""
    stream = Stream(broker, "held").declare()
    stream.publish(numbers(0, N_MESSAGES))
    return stream
