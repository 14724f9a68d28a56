"""Files of the data directory change in few places, checked on the sources themselves.

Whoever follows a broker learns of its files from notes, and every change has to end in one. So no
source but `cext/store/files.pyx` names a call that changes a file (decision 0066).
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
C_HOME = "store/files.pyx"
C_CALLS = re.compile(
    r"\b(?:c_)?(?:pwrite(?:v2?|64)?|write_at|f?truncate|(?:posix_)?fallocate|rename(?:at2?)?"
    r"|unlink(?:at)?|link(?:at)?|symlink|mkdir(?:at)?|rmdir|creat|fopen|copy_file_range)\("
)
PYTHON_IN_C = re.compile(
    r"\bos\.(?:p?writev?|f?truncate|posix_fallocate|renames?|replace|unlink|remove|removedirs"
    r"|rmdir|mkdir|makedirs|link|symlink|mknod|mkfifo)\b|\bshutil\b"
    r"|\bopen\([^()]*[\"'][rwxab+]*[wxa+][rwxab+]*[\"']"
)
OPENED = re.compile(r"\b(?:c_|os\.)open\(([^\n]*\n?[^\n]*)")
NO_DATA = re.compile(r"^(?:perf|arrow)(?:/|\.pyx)")
"""Clients: they have no data directory."""


def sources() -> list[tuple[str, str]]:
    """Names and code of the files of ``cext/`` that belong to the broker, without comments."""
    directory = ROOT / "cext"
    return [
        (path.relative_to(directory).as_posix(), re.sub(r"#[^\n]*", "", path.read_text()))
        for path in sorted(directory.rglob("*.pyx"))
        if not NO_DATA.match(path.relative_to(directory).as_posix())
    ]


def test_one_file_of_the_compiled_half_changes_files() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, code in sources()
        if name != C_HOME
        for pattern in (C_CALLS, PYTHON_IN_C)
        for match in pattern.finditer(code)
    ]

    assert found == []
    assert C_CALLS.search((ROOT / "cext" / C_HOME).read_text()), "the pattern finds nothing"


def test_the_others_open_files_to_read() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, code in sources()
        if name != C_HOME
        for match in OPENED.finditer(code)
        if "O_RDONLY" not in match[1]
    ]

    assert found == []
