"""Files of the data directory change in few places, checked on the sources themselves.

Whoever follows a broker learns of its files from notes, and every change has to end in one. So no
source but `cext/store/files.pyx` and `lavinmq/files/changes.py` names a call that changes a file
(decision 0066).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lavinmq import _core
from lavinmq.files.changes import Change

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
NO_DATA = re.compile(r"^(?:perf|arrow|cluster)(?:/|\.pyx)")
"""Clients: they have no data directory. A follower makes changes again that others have noted."""


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


C_KEY_LOG = "tls/context.pyx"
"""Writes the keys of TLS where the operator says, which is no file of a broker's data."""


def test_the_others_open_files_to_read() -> None:
    found = [
        f"{name}: {match[0]}"
        for name, code in sources()
        if name not in (C_HOME, C_KEY_LOG)
        for match in OPENED.finditer(code)
        if "O_RDONLY" not in match[1]
    ]

    assert found == []


PYTHON_HOME = "files/changes.py"
ELSEWHERE = {
    "cli/manual.py": "writes manuals",
    "cluster/spool.py": "has what is changed while a node joins, in a file without a name",
    "cluster/joining.py": "makes a node's files those of its leader, where no broker runs",
    "embedded.py": "removes a temporary data directory as a whole",
    "files/datadir.py": "has the node's own files, which nobody follows",
    "files/snapshot.py": "has other names of files, which nobody follows",
    "integrity/keeper.py": "makes and removes the place of the node's own files",
    "integrity/life.py": "has the node's own files",
    "integrity/repair.py": "mends a data directory where no broker runs",
    "integrity/shelves.py": "has the node's own files",
    "integrity/touches.py": "has the node's own files",
    "listeners/listener.py": "has unix sockets",
    "process/log.py": "has the log",
}
"""What else writes files, and which."""
APART = ("cli/", "client/", "pipeline/", "spark/")
"""Programs that have no data directory of a broker."""
OF_OS = {
    "write", "writev", "pwrite", "pwritev", "truncate", "ftruncate", "posix_fallocate", "rename",
    "renames", "replace", "unlink", "remove", "removedirs", "rmdir", "mkdir", "makedirs", "link",
    "symlink", "mkfifo", "mknod", "O_WRONLY", "O_RDWR",
}  # fmt: skip
OF_PATHS = {
    "write_bytes",
    "touch",
    "mkdir",
    "rmdir",
    "unlink",
    "rename",
    "hardlink_to",
    "symlink_to",
}
NO_PATHS = ("changes", "core", "alternates", "os", "self")
MODES = re.compile(r"^[rwxabt+]*[wxa+][rwxabt+]*$")


def changes_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names of what changes files, or looks like it."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in OF_OS:
                yield node.lineno, name
            case ast.Name(id="shutil"):
                yield node.lineno, "shutil"
            case ast.Call(func=ast.Attribute(value=target, attr=name)) if name in OF_PATHS:
                if not ast.unparse(target).endswith(NO_PATHS):
                    yield node.lineno, name
            case ast.Call(func=ast.Name(id="open") | ast.Attribute(attr="open"), args=arguments):
                for each in arguments:
                    if isinstance(each, ast.Constant) and MODES.match(str(each.value)):
                        yield node.lineno, "open"


def test_one_file_of_the_python_half_changes_files() -> None:
    package = ROOT / "lavinmq"
    names = {
        path.relative_to(package).as_posix(): list(changes_in(ast.parse(path.read_text())))
        for path in sorted(package.rglob("*.py"))
    }

    found = {
        name: lines
        for name, lines in names.items()
        if lines and name not in {PYTHON_HOME, *ELSEWHERE} and not name.startswith(APART)
    }
    assert found == {}
    assert names[PYTHON_HOME], "the walk finds nothing"


def test_both_halves_speak_of_the_same_changes() -> None:
    assert {each.name: each.value for each in Change} == _core.CHANGE_KINDS
