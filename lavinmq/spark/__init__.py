"""Spark reads streams, publishes to exchanges and scans data directories: formats for PySpark.

Nothing is imported before somebody asks for it, so that `import lavinmq` and the broker never
meet pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lavinmq.spark.segments import SegmentDataSource as SegmentDataSource
    from lavinmq.spark.source import LavinMQDataSource as LavinMQDataSource

__all__ = ["LavinMQDataSource", "SegmentDataSource"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lavinmq.spark.versions import require_pyspark

    require_pyspark()
    if name == "SegmentDataSource":
        from lavinmq.spark.segments import SegmentDataSource

        return SegmentDataSource
    from lavinmq.spark.source import LavinMQDataSource

    return LavinMQDataSource
