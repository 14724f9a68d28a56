"""The compiled half has no state of its own: what changes belongs to a loop, or to what it holds.

Several loops, each in a thread of its own, have to be able to live in one process. Names in a file
of ``cext/`` that stand for memory outside any object are looked for in the sources.
"""

import re
from pathlib import Path

import pytest

from tests.unit.test_layers import code_of

CEXT = Path(__file__).resolve().parents[2] / "cext"

KNOWN = {
    # The thread that gives the blocks of removed files back is the process's, by its pipe.
    "base/closer.closer_pid",
    "base/closer.closer_pipe",
    "base/closer.closer_waiting",
    # Filled at import, or never, and read from then on.
    "arrow/batch.COLUMN_KINDS",
    "arrow/batch.KIND_TYPES",
    "arrow/batch.PROPERTY_BITS",
    "arrow/decode.DECODE_ERRORS",
    "arrow/input.NOTHING",
    "arrow/input.NUMBER_WIDTHS",
    "arrow/publish.DEDUP_MODES",
    "base/crc: static struct lmq_crc_t lmq_crc_facts;",
    "door/queue.FILE_NAMES",
    "store/counts.no_counts",
    "store/reserve.ZEROS",
    "store/store.no_segment",
    "stream/stream_filter.RADIANS",
}
"""This list may only shrink."""

_TYPE = r"(?!(?:class|struct|enum|union|extern|packed|ctypedef|const)\b)[A-Za-z_][\w.]*"
_GLOBAL = re.compile(
    rf"^cdef[ ]+{_TYPE}(?:[ ]+|[ ]*\*+[ ]*)(?P<name>\w+)[ ]*(?:\[[^\]\n]*\])*[ ]*(?:=[^\n]*)?$",
    re.MULTILINE,
)
_STATIC = re.compile(r"^\s*static\s+(?!inline\b|const\b)[^\n(;]*;", re.MULTILINE)
_REBOUND = re.compile(r"^\s+global\s+\w+", re.MULTILINE)


def globals_of(path: Path) -> set[str]:
    """Return the names of what a file keeps outside any object."""
    text = path.read_text()
    code = "\n".join(line.rstrip() for line in code_of(text).splitlines())
    place = path.relative_to(CEXT).with_suffix("") if path.is_relative_to(CEXT) else path.stem
    found = {f"{place}.{match['name']}" for match in _GLOBAL.finditer(code)}
    found |= {f"{place}: {match[0].strip()}" for match in _STATIC.finditer(text)}
    return found | {f"{place}: {match[0].strip()}" for match in _REBOUND.finditer(code)}


def test_nothing_that_changes_stands_outside_an_object() -> None:
    found = set().union(*(globals_of(path) for path in CEXT.rglob("*.p??")))

    assert found == KNOWN, "give it to a loop; take one that is gone off the list"


@pytest.mark.parametrize(
    "line",
    [
        "cdef u64 generation = 0",
        "cdef u64 generation         # of all routings",
        "cdef int pipe[2]",
        "cdef u8* scratch = NULL",
        "cdef object _Want = None",
        "def f():\n    global seen",
        "cdef extern from *:\n    '''\n    static int n_seen;\n    '''",
    ],
)
def test_a_global_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.pyx").write_text(f"{line}\n")

    assert len(globals_of(tmp_path / "a.pyx")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "cdef int f(int n) noexcept nogil:\n    cdef int i = 0\n    return i",
        "cdef class Queue:\n    cdef queue_t* q",
        'cdef const char* NAME = b"x"',
        "cdef struct seen_t:\n    u64 n",
        "cdef enum:\n    MOST = 4",
        "cdef struct queue_t",
        "cdef extern from *:\n    '''\n    static inline int f(void) { return 1; }\n    '''",
    ],
)
def test_what_is_none_is_not_reported(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.pyx").write_text(f"{line}\n")

    assert globals_of(tmp_path / "a.pyx") == set()
