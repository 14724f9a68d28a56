"""Spark reads streams, publishes to exchanges and scans data directories: formats for PySpark.

Nothing is imported before somebody asks for it, so that `import lavinmq` and the broker never
meet pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lavinmq.spark.source import LavinMQDataSource as LavinMQDataSource

__all__ = ["LavinMQDataSource"]


def __getattr__(name: str) -> object:
    if name == "LavinMQDataSource":
        from lavinmq.spark.versions import require_pyspark

        require_pyspark()
        from lavinmq.spark.source import LavinMQDataSource

        return LavinMQDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
