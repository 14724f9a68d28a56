"""The format `lavinmq-segments`: reads the files of a broker, running or stopped, or a copy.

Batch queries only. Spark reports what `__init__` and `schema` raise, so options are checked there.
Arguments of the makers are passed by keyword, hence their names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from lavinmq.spark.schema import SEGMENT_COLUMNS, columns_of, ddl
from lavinmq.spark.segment_options import SegmentOptions
from lavinmq.spark.versions import require_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("lavinmq.spark")


class SegmentDataSource(DataSource):
    """The messages in a data directory: `format("lavinmq-segments")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_pyspark()
        super().__init__(options)
        SegmentOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lavinmq-segments"

    def schema(self) -> str:
        """Return the columns to read. Raises OptionError."""
        return ddl(SegmentOptions.parse(self.options).columns, SEGMENT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch query. Raises OptionError."""
        return SegmentReader(
            SegmentOptions.parse(self.options), columns_of(schema, SEGMENT_COLUMNS)
        )


class SegmentReader(DataSourceReader):
    """Reads segments in groups. Picklable; no file is open in it."""

    def __init__(self, options: SegmentOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises OptionError, SourceError."""
        from lavinmq.spark.segment_plan import plan

        return [InputPartition(task) for task in plan(self._options, self._columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; none for the partition that Spark makes up if there is none.

        What was damaged or gone is told in the log of the executor when the task ends.
        """
        if partition.value is None:
            return
        from lavinmq.spark.segment_scan import Report, read_task

        report = Report()
        yield from read_task(partition.value, report)
        if report.corrupt or report.vanished or report.repaired:
            log.warning("lavinmq-segments: %s", report)
