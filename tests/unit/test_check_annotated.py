"""The check of Cython's annotated output, against pages that Cython itself writes here."""

import subprocess
import sys
from pathlib import Path

import pytest

from perf.micro.check_annotated import check_page, main, read_page

WHITE = """\
# hot
cdef int fast(
    int a,
    int b,
) noexcept nogil:

    # Comments and blank lines do not end a function.
    if a < b:
        return a
    return b


def slow(a):
    return fast(a, a) + 1
"""

YELLOW = """\
cdef class Owner:
    cdef int n

    # hot
    cdef int bump(self, object by):
        self.n += by
        return self.n
"""


def annotate(directory: Path, source: str) -> Path:
    """Return the annotated page that Cython makes of ``source``."""
    module = directory / "sample.pyx"
    module.write_text(source)
    subprocess.run([sys.executable, "-m", "cython", "-3", "--annotate", module], check=True)
    return module.with_suffix(".html")


def test_every_source_line_is_read_from_the_page(tmp_path: Path) -> None:
    page = annotate(tmp_path, WHITE)

    lines = read_page(page)

    assert [line.code.rstrip() for line in lines] == WHITE.splitlines()
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))


def test_hot_function_without_python_passes(tmp_path: Path) -> None:
    page = annotate(tmp_path, WHITE)

    assert check_page("sample", read_page(page)) == (1, [])
    assert main([str(tmp_path)]) == 0


def test_hot_function_that_calls_python_fails_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = annotate(tmp_path, YELLOW)

    code = main([str(page)])

    assert code == 1
    assert "sample:6: hot code calls Python: self.n += by" in capsys.readouterr().err


def test_yellow_lines_after_a_hot_function_are_not_its_own(tmp_path: Path) -> None:
    lines = read_page(annotate(tmp_path, WHITE))

    assert any(line.score > 0 for line in lines), "the sample must have a yellow line to ignore"
    assert check_page("sample", lines)[1] == []


def test_mark_without_a_function_below_is_reported(tmp_path: Path) -> None:
    page = annotate(tmp_path, "# hot\ncdef int n = 0\n")

    n_hot, findings = check_page("sample", read_page(page))

    assert n_hot == 0
    assert [finding.number for finding in findings] == [1]


def test_finding_no_hot_function_at_all_is_a_failure(tmp_path: Path) -> None:
    annotate(tmp_path, "def slow(a):\n    return a\n")

    assert main([str(tmp_path)]) == 1
