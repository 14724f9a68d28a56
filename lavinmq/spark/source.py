"""The format `lavinmq` as Spark sees it: checks everything, and hands out readers and writers.

Spark reports what `__init__` and `schema` raise, and hides what `streamReader` raises, so options
are checked in the first two. Arguments of the makers are passed by keyword, hence their names.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from lavinmq.spark.options import (
    QUEUE_NAMES,
    ConnectionOptions,
    OptionError,
    SourceOptions,
    check_names,
)
from lavinmq.spark.schema import columns_of, ddl
from lavinmq.spark.versions import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ConnectionOptions", "LavinMQDataSource"]


class LavinMQDataSource(DataSource):
    """Streams of a broker to read, its exchanges to publish to: `format("lavinmq")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_pyspark()
        super().__init__(options)
        check_names(options)
        # With a schema by the user Spark does not ask for ours: check a source here too.
        if any(name in options for name in QUEUE_NAMES):
            SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lavinmq"

    def schema(self) -> str:
        """Return the columns to read. Raises OptionError."""
        return ddl(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch query. Raises OptionError."""
        from lavinmq.spark.batch import BatchReader, FilteringBatchReader, PeekReader

        options = SourceOptions.parse(self.options, streaming=False)
        columns = self._columns(schema)
        if options.peek_records is not None:
            return PeekReader(options, columns)
        kind = FilteringBatchReader if options.filter_pushdown else BatchReader
        return kind(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a streaming query; with a problem in the options, what tells it."""
        from lavinmq.spark.streaming import StreamReader

        try:
            options = SourceOptions.parse(self.options, streaming=True)
            return StreamReader(options, self._columns(schema))
        except OptionError as problem:
            return StreamReader(None, (), problem)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what publishes the rows of a batch query."""
        from lavinmq.spark.sink import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what publishes the rows of a streaming query."""
        from lavinmq.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _columns(self, schema: StructType) -> tuple[str, ...]:
        """Return the names of a schema, which the option `columns` may not contradict."""
        names = columns_of(schema)
        if "columns" in self.options and names != SourceOptions.parse(self.options).columns:
            raise OptionError("schema and the option columns differ; give one of them")
        return names
