"""What importing costs: Spark imports our package in every session; the broker knows no Spark."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lavinmq.spark.schema import COLUMNS, SEGMENT_COLUMNS, arrow_schema, check_columns, ddl
from lavinmq.spark.versions import version_of

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "socket", "ssl"}
OUTSIDE = {"spark", "pipeline"}


def run(code: str, *, path: Path | None = None) -> tuple[str, str]:
    """Run Python code in a fresh interpreter; return what it printed, and its errors."""
    before = f"import sys; sys.path[:0] = {[str(path)] if path else []!r}; "
    result = subprocess.run(
        [sys.executable, "-c", before + code], capture_output=True, text=True, cwd=ROOT
    )
    return result.stdout, result.stderr


def test_the_module_that_spark_finds_imports_nothing_and_prints_nothing() -> None:
    code = "import sys, json; known = set(sys.modules); import pyspark_lavinmq; "
    code += "print(json.dumps(sorted(set(sys.modules) - known)))"

    output, errors = run(code)

    assert errors == ""
    assert json.loads(output) == ["pyspark_lavinmq"]


def test_the_class_behind_it_brings_neither_arrow_nor_the_compiled_parts() -> None:
    pytest.importorskip("pyspark")
    code = "import sys, json; import pyspark.sql.datasource; known = set(sys.modules); "
    code += "import pyspark_lavinmq; print(pyspark_lavinmq.DefaultSource.name()); "
    code += "print(json.dumps(sorted(m for m in set(sys.modules) - known)))"

    output, errors = run(code)

    name, modules = output.splitlines()
    assert errors == ""
    assert name == "lavinmq"
    brought = set(json.loads(modules))
    assert not {module.split(".")[0] for module in brought} & HEAVY
    assert {module for module in brought if module.startswith("lavinmq.")} == {
        "lavinmq.spark",
        *(
            f"lavinmq.spark.{n}"
            for n in ("option_values", "options", "schema", "source", "versions")
        ),
    }


@pytest.mark.parametrize("version", ["3.5.1", "4.1.2"])
def test_an_older_pyspark_is_refused_in_one_line_and_leaves_other_formats_alone(
    tmp_path: Path, version: str
) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")

    found, _ = run("import pyspark_lavinmq as p; print(hasattr(p, 'DefaultSource'))", path=tmp_path)
    _, errors = run("from lavinmq.spark import LavinMQDataSource", path=tmp_path)

    assert found == "False\n"
    expected = f"the format lavinmq needs PySpark 4.2 or later; this is {version}"
    assert errors.splitlines()[-1] == f"ImportError: {expected}"


def test_without_pyspark_the_remedy_is_named() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from lavinmq.spark import LavinMQDataSource"

    _, errors = run(code)

    expected = 'PySpark is not installed; pip install "lavinmq[spark]"'
    assert errors.splitlines()[-1] == f"ImportError: {expected}"


def test_versions_are_compared_as_numbers() -> None:
    assert version_of("4.10.0.dev1") > version_of("4.2.0") == (4, 2)


def test_the_broker_imports_nothing_of_spark() -> None:
    found = []
    for path in (ROOT / "lavinmq").rglob("*.py"):
        if path.relative_to(ROOT / "lavinmq").parts[0] in OUTSIDE:
            continue
        for statement in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                names = [statement.module]
            found += [
                f"{path}: {name}"
                for name in names
                if name.split(".")[0] in ("pyspark", "pyarrow", "pandas")
                or name.startswith("lavinmq.spark")
            ]
    assert found == []


class TestSchema:
    def test_arrow_and_spark_mean_the_same_types(self) -> None:
        pytest.importorskip("pyspark")
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import (
            BinaryType,
            BooleanType,
            ByteType,
            DataType,
            IntegerType,
            LongType,
            MapType,
            ShortType,
            StringType,
            StructType,
            TimestampType,
        )

        types: dict[str, DataType] = {
            "string": StringType(),
            "binary": BinaryType(),
            "boolean": BooleanType(),
            "tinyint": ByteType(),
            "smallint": ShortType(),
            "int": IntegerType(),
            "bigint": LongType(),
            "timestamp": TimestampType(),
            "map<string,string>": MapType(StringType(), StringType()),
        }
        wanted = StructType()
        for name, (kind, _) in SEGMENT_COLUMNS.items():
            wanted.add(name, types[kind])

        assert to_arrow_schema(wanted, timezone="UTC").equals(
            arrow_schema(SEGMENT_COLUMNS, SEGMENT_COLUMNS)
        )

    def test_names_are_quoted(self) -> None:
        assert ddl(["offset", "type"]) == "`offset` bigint, `type` string"

    @pytest.mark.parametrize("names", [["ofset"], ["offset", "offset"], []])
    def test_columns_are_known_ones_and_each_is_named_once(self, names: list[str]) -> None:
        with pytest.raises(ValueError, match="column"):
            check_columns(names)

    def test_columns_of_messages_come_first_in_files_too(self) -> None:
        assert list(SEGMENT_COLUMNS)[: len(COLUMNS)] == list(COLUMNS)
