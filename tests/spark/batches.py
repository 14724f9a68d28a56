"""Rows of the Arrow batches that a task of Spark's source reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lavinmq.spark.planner import RangeTask
from lavinmq.spark.schema import arrow_schema


def rows_of(task: RangeTask, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows; every batch has the schema that Spark is told, and no more rows than asked for."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        assert batch.schema == arrow_schema(task.columns)
        assert 0 < batch.num_rows <= task.batch_rows
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows
