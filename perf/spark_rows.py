"""The rows of `perf/spark_bench.py`: one function each, with what it measures as its first line.

A row gets the `Bench`, prepares what it needs outside of `bench.timed`, and returns what that
says. Its name in the result is the function's, with dashes; rows run in the order of this file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf import topology
from perf.spark_bench import BODY, Bench, Row, Took
from tests.support.raw_connection import Address, Connection

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: dict[str, Row] = {}

NARROW = ("offset", "body")
BATCH_ROWS = 10_000


def row(function: Row) -> Row:
    """Have this function measured."""
    ROWS[function.__name__.replace("_", "-")] = function
    return function


# ---- the decoder ---------------------------------------------------------------------------------


def deliveries(first: int, count: int) -> bytes:
    """What a broker sends to the consumer of a stream: small messages with these offsets."""

    def frame(kind: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"

    def delivery(offset: int) -> bytes:
        method = b"\0\x3c\0\x3c\x0aamq.ctag-b" + struct.pack(">QB", offset, 0) + b"\0\x05bench"
        table = b"\x0fx-stream-offsetl" + struct.pack(">q", offset)
        head = struct.pack(">HHQHI", 60, 0, len(BODY), 0x3000, len(table)) + table + b"\x02"
        return frame(1, method) + frame(2, head) + frame(3, BODY)

    return b"".join(map(delivery, range(first, first + count)))


def decode(bench: Bench, columns: tuple[str, ...]) -> Took:
    """Decode deliveries from memory, in pieces of the size that a socket gives."""
    from lavinmq.spark._arrow import Columns, Decoder

    # Offsets of later rounds are those of the first one, so each round has a decoder of its own.
    data, per_round = deliveries(1, BATCH_ROWS), BATCH_ROWS
    piece = 1 << 18

    def work() -> int:
        rows = 0
        for _ in range(bench.n // per_round):
            made = Columns(columns)
            decoder = Decoder(made, 1, 1 << 62, batch_rows=BATCH_ROWS + 1)
            for at in range(0, len(data), piece):
                part = data[at : at + piece]
                decoder.room()[: len(part)] = part
                decoder.received(len(part))
                decoder.run()
            rows += made.take().num_rows
        return rows

    return bench.timed(work)


@row
def decoder(bench: Bench) -> Took:
    """Deliveries of a stream to Arrow, offset and body, from memory, one core."""
    return decode(bench, NARROW)


@row
def decoder_all_columns(bench: Bench) -> Took:
    """The same with all columns and the header map."""
    from lavinmq.spark.schema import default_columns

    return decode(bench, default_columns("true"))


@row
def task(bench: Bench) -> Took:
    """What one task of Spark does: a range over AMQP to Arrow, without Spark."""
    from lavinmq.spark.options import ConnectionOptions, Node
    from lavinmq.spark.planner import RangeTask
    from lavinmq.spark.reading import read_range

    assert bench.stream
    options = ConnectionOptions((Node("127.0.0.1", bench.broker.port),))
    range_task = RangeTask(options, bench.stream["queue"], 1, bench.n + 1, NARROW)
    return bench.timed(lambda: sum(batch.num_rows for batch in read_range(range_task)))


# ---- segments ------------------------------------------------------------------------------------


def segment_directory(bench: Bench) -> str:
    """Return a directory with segments of `n` messages of 108 bytes and three headers."""
    from perf.segment_files import write

    directory = bench.scratch / "segments"
    if not directory.exists():
        write(directory, bench.n, BODY)
    return str(directory)


def scan(bench: Bench, columns: tuple[str, ...]) -> Took:
    """Read segments to Arrow as a task of Spark does, in this thread."""
    from lavinmq.spark.segment_options import SegmentOptions
    from lavinmq.spark.segment_plan import plan
    from lavinmq.spark.segment_scan import read_task

    options = SegmentOptions.parse({"path": segment_directory(bench)})
    tasks = plan(options, columns)
    return bench.timed(lambda: sum(batch.num_rows for task in tasks for batch in read_task(task)))


@row
def scanner(bench: Bench) -> Took:
    """Segments to Arrow, offset and body, from the page cache, one core."""
    return scan(bench, NARROW)


@row
def scanner_all_columns(bench: Bench) -> Took:
    """The same with all columns but headers."""
    from lavinmq.spark.schema import SEGMENT_COLUMNS, default_columns

    return scan(bench, default_columns("false", SEGMENT_COLUMNS))


@row
def scanner_header_map(bench: Bench) -> Took:
    """The same with all columns and the map of three headers."""
    from lavinmq.spark.schema import SEGMENT_COLUMNS, default_columns

    return scan(bench, default_columns("true", SEGMENT_COLUMNS))


@row
def scanner_headers_json(bench: Bench) -> Took:
    """The same with all columns and typed JSON of three headers."""
    from lavinmq.spark.schema import SEGMENT_COLUMNS, default_columns

    return scan(bench, default_columns("json", SEGMENT_COLUMNS))


# ---- the sink ------------------------------------------------------------------------------------


def sink_options(bench: Bench) -> dict[str, str]:
    """Options of the sink for a durable queue of its own, emptied; with confirms."""
    with Connection.open(Address(topology.HOST, bench.broker.port)) as connection:
        channel = connection.channel()
        channel.delete_queue("bench-sink")
        channel.declare_queue("bench-sink", durable=True)
    url = f"amqp://guest:guest@{topology.HOST}:{bench.broker.port}/%2F"
    return {"url": url, "exchange": "", "routingKey": "bench-sink"}


@row
def encoder(bench: Bench) -> Took:
    """Bodies in Arrow to frames of basic.publish, in memory, one core."""
    import pyarrow as pa

    from lavinmq.spark._arrow import Encoder

    bodies = {"body": pa.array([BODY] * BATCH_ROWS, pa.binary())}

    def work() -> int:
        made, rows = Encoder(exchange="", routing_key="bench-sink"), 0
        for _ in range(bench.n // BATCH_ROWS):
            made.load(bodies, BATCH_ROWS)
            while made.rows_left:
                rows += made.encode(BATCH_ROWS)
        return rows

    return bench.timed(work)


@row
def sink(bench: Bench) -> Took:
    """What one task of Spark's sink does: Arrow over AMQP to a durable queue, with confirms."""
    import pyarrow as pa

    from lavinmq.spark.options import SinkOptions
    from lavinmq.spark.sink import BatchWriter

    writer = BatchWriter(SinkOptions.parse(sink_options(bench)))
    batch = pa.record_batch({"body": pa.array([BODY] * BATCH_ROWS, pa.binary())})
    batches = bench.n // BATCH_ROWS
    return bench.timed(lambda: writer.write(batch for _ in range(batches)).confirmed)


# ---- Spark ---------------------------------------------------------------------------------------


@row
def spark_batch(bench: Bench) -> Took:
    """A batch query over a stream of a running broker, offset and body, two tasks."""
    options = bench.stream | {
        "columns": ",".join(NARROW),
        "minPartitions": "2",
        "maxRecordsPerPartition": str(bench.n),
    }

    frame = bench.spark.read.format("lavinmq").options(**options).load()
    return bench.timed(lambda: bench.consumed(frame))


@row
def spark_bulk(bench: Bench) -> Took:
    """The same by `transport=http`: stored records in blocks instead of deliveries."""
    options = bench.stream | {
        "columns": ",".join(NARROW),
        "minPartitions": "2",
        "maxRecordsPerPartition": str(bench.n),
        "transport": "http",
    }
    frame = bench.spark.read.format("lavinmq").options(**options).load()
    return bench.timed(lambda: bench.consumed(frame))


@row
def spark_synthetic(bench: Bench) -> Took:
    """The same rows from a Python source that has them in memory as Arrow: Spark's own limit."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    n, body, batch_rows = bench.n, BODY, BATCH_ROWS

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition((1, n // 2)), InputPartition((n // 2 + 1, n))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import numpy as np
            import pyarrow as pa

            first, last = partition.value
            schema = pa.schema([("offset", pa.int64()), ("body", pa.binary())])
            bodies = pa.array([body] * batch_rows, pa.binary())
            for at in range(first, last + 1, batch_rows):
                count = min(batch_rows, last + 1 - at)
                offsets = pa.array(np.arange(at, at + count))
                arrays = [offsets, bodies.slice(0, count)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    class Synthetic(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench-synthetic"

        def schema(self) -> str:
            return "offset bigint, body binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    bench.spark.dataSource.register(Synthetic)
    frame = bench.spark.read.format("bench-synthetic").load()
    return bench.timed(lambda: bench.consumed(frame))


@row
def spark_json(bench: Bench) -> Took:
    """The same rows from JSON lines in two files, by Spark's own reader."""
    directory = bench.scratch / "json"
    if not directory.exists():
        directory.mkdir()
        text = BODY.decode().translate({34: 39, 92: 47})
        for part, first in enumerate((1, bench.n // 2 + 1)):
            with (directory / f"{part}.json").open("w") as file:
                numbers = range(first, first + bench.n // 2)
                file.writelines(f'{{"offset":{n},"body":"{text}"}}\n' for n in numbers)
    frame = bench.spark.read.schema("offset bigint, body string").json(str(directory))
    return bench.timed(lambda: bench.consumed(frame))


@row
def spark_segments(bench: Bench) -> Took:
    """Counts by routing key over segments, offset, key and body, tasks of 128 MiB."""
    from pyspark.sql import functions as F

    options = {"columns": "offset,routing_key,body"}
    reader = bench.spark.read.format("lavinmq-segments").options(**options)
    frame = reader.load(segment_directory(bench)).groupBy("routing_key")
    sums = frame.agg(F.count("*"), F.max("offset"), F.sum(F.length("body")))
    return bench.timed(lambda: sum(int(counted[1]) for counted in sums.collect()))


@row
def spark_sink(bench: Bench) -> Took:
    """Spark publishes rows of 108 bytes to a durable queue, with confirms, in two tasks."""
    options = sink_options(bench)
    text = BODY.decode().replace("\\", "\\\\").replace("'", "\\'")
    frame = bench.spark.range(0, bench.n, 1, 2).selectExpr(f"cast('{text}' as binary) body")

    def work() -> int:
        frame.write.format("lavinmq").options(**options).mode("append").save()
        return bench.n

    return bench.timed(work)


# ---- jobs ----------------------------------------------------------------------------------------

ARCHIVE_BATCHES = 8


@row
def archive(bench: Bench) -> Took:
    """`lavinmq-pipeline archive` of a stream: all columns to Parquet, in 8 batches, two tasks."""
    from dataclasses import replace
    from tempfile import mkdtemp

    from lavinmq.pipeline.arguments import job_parser
    from lavinmq.pipeline.job import Run
    from lavinmq.pipeline.jobs.archive import JOB
    from lavinmq.pipeline.progress import Silence

    place = mkdtemp(dir=bench.scratch)
    options = bench.stream
    per_batch = -(-bench.n // ARCHIVE_BATCHES)
    arguments = ["--url", options["url"], "--http-url", options["httpUrl"], "--once"]
    arguments += ["--queue", options["queue"], "--checkpoint", f"{place}/checkpoint"]
    arguments += ["--max-rows", str(per_batch), "--rows-per-file", str(-(-per_batch // 2))]
    parsed = job_parser(JOB).parse_args([*arguments, f"{place}/archive"])
    run = Run(JOB, parsed, Silence(), bench.spark)
    with workers_mib() as sizes:
        took = bench.timed(lambda: int(JOB.run(run).values["rows"]))
    # The first batch starts the workers; afterwards they must not grow.
    early, late = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
    return replace(took, more={"worker_mib_early": max(early), "worker_mib_late": max(late)})


@contextmanager
def workers_mib() -> Iterator[list[float]]:
    """Within it, the list grows: the largest resident size of Spark's Python processes, in MiB."""
    import os
    import threading

    from perf import measure

    sizes = [0.0, 0.0]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.25):
            found = [0.0]
            for each in measure.process_tree(os.getpid()):
                try:
                    words = Path(f"/proc/{each.pid}/cmdline").read_bytes()
                    pages = int(Path(f"/proc/{each.pid}/statm").read_text().split()[1])
                except (OSError, IndexError):
                    continue  # it has ended
                if b"pyspark.daemon" in words:
                    found.append(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
            sizes.append(round(max(found), 1))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield sizes
    finally:
        is_over.set()
        looking.join()
