"""The format lavinmq-segments as Spark imports it: what importing costs, and what is refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lavinmq.spark.option_values import OptionError
from lavinmq.spark.schema import SEGMENT_COLUMNS, ddl, default_columns
from tests.support.segment_files import record, write_segment, write_stream

ROOT = Path(__file__).resolve().parents[3]
pyspark_types = pytest.importorskip("pyspark.sql.types")


def run(code: str) -> str:
    """Run code in a fresh interpreter; return what it printed. Nothing may be on stderr."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stderr == ""
    return result.stdout


def test_the_module_that_spark_finds_imports_nothing_and_prints_nothing() -> None:
    code = "import sys, json; known = set(sys.modules); import pyspark_lavinmq_segments; "
    code += "print(json.dumps(sorted(set(sys.modules) - known)))"

    assert json.loads(run(code)) == ["pyspark_lavinmq_segments"]


def test_the_class_behind_it_brings_neither_arrow_nor_the_compiled_parts() -> None:
    code = "import sys, json; import pyspark.sql.datasource; known = set(sys.modules); "
    code += "import pyspark_lavinmq_segments as m; print(m.DefaultSource.name()); "
    code += "print(json.dumps(sorted(set(sys.modules) - known)))"

    name, modules = run(code).splitlines()

    brought = set(json.loads(modules))
    assert name == "lavinmq-segments"
    assert not {module.split(".")[0] for module in brought} & {"pyarrow", "pandas", "socket"}
    assert "lavinmq.spark._arrow" not in brought


def test_without_pyspark_there_is_no_format_and_no_error() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_lavinmq_segments as m; "
    code += "print(hasattr(m, 'DefaultSource'))"

    assert run(code) == "False\n"


def test_the_broker_imports_nothing_of_spark() -> None:
    code = "import sys, lavinmq.__main__, lavinmq.server; "
    code += (
        "print([m for m in sys.modules if m.startswith(('lavinmq.spark', 'pyspark', 'pyarrow'))])"
    )

    assert run(code) == "[]\n"


def test_the_schema_follows_from_the_options(tmp_path: Path) -> None:
    from lavinmq.spark.segments import SegmentDataSource

    everything = SegmentDataSource({"path": str(tmp_path)}).schema()
    chosen = SegmentDataSource({"path": str(tmp_path), "columns": "body, queue"}).schema()

    assert everything == ddl(default_columns("false", SEGMENT_COLUMNS), SEGMENT_COLUMNS)
    assert chosen == "`body` binary, `queue` string"


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("body string", "column 'body' is binary, not string"),
        ("nothing int", "unknown column 'nothing'"),
        ("offset bigint not null", "leave NOT NULL out"),
    ],
)
def test_a_schema_of_other_columns_is_refused(schema: str, complaint: str) -> None:
    from lavinmq.spark.segments import SegmentDataSource

    types = {"string": "StringType", "int": "IntegerType", "bigint": "LongType"}
    name, kind, *constraint = schema.split()
    field = pyspark_types.StructField(name, getattr(pyspark_types, types[kind])(), not constraint)

    with pytest.raises(OptionError, match=complaint):
        SegmentDataSource({"path": "x"}).reader(schema=pyspark_types.StructType([field]))


def test_readers_and_tasks_travel_to_other_processes(tmp_path: Path) -> None:
    from lavinmq.spark.segment_options import SegmentOptions
    from lavinmq.spark.segments import SegmentReader

    write_stream(tmp_path, [3, 3])
    options = SegmentOptions.parse({"path": str(tmp_path), "targetPartitionBytes": "1b"})
    reader = pickle.loads(pickle.dumps(SegmentReader(options, ("offset", "body"))))

    partitions = pickle.loads(pickle.dumps(reader.partitions()))

    batches = [batch for part in partitions for batch in reader.read(part)]
    assert [batch.num_rows for batch in batches] == [3, 3]
    assert batches[1].to_pydict() == {"offset": [4, 5, 6], "body": [b"4", b"5", b"6"]}


def test_a_query_without_segments_has_no_rows(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    from lavinmq.spark.segment_options import SegmentOptions
    from lavinmq.spark.segments import SegmentReader

    (tmp_path / ".queue").write_text("empty")
    reader = SegmentReader(SegmentOptions.parse({"path": str(tmp_path)}), ("body",))

    assert reader.partitions() == []
    # Spark makes this up when there is none.
    assert list(reader.read(InputPartition(None))) == []


def test_what_was_left_out_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from lavinmq.spark.segment_options import SegmentOptions
    from lavinmq.spark.segments import SegmentReader

    write_segment(tmp_path, 1, [record(b"a", content_type=b"\xff")], b"no record at all......")
    reader = SegmentReader(SegmentOptions.parse({"path": str(tmp_path)}), ("content_type",))

    for partition in reader.partitions():
        list(reader.read(partition))

    assert "corrupt=1" in caplog.text
    assert "repaired=1" in caplog.text
