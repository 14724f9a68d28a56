"""Imports and calls point down only: the layers of the house, checked on the sources themselves.

Nothing is imported for it. Of ``lavinmq/`` the imports are walked (read with ``ast``; those under
``TYPE_CHECKING`` do not count): one of a higher layer, or of a neighbour in the same one, fails. A
unit is a room, which is a package as a whole, or a module beside the rooms. Within a room files
may import each other as they like, but not in a circle; there imports under ``TYPE_CHECKING`` count
as well. A new room or module needs a place in a table.

Of ``cext/`` the names are walked: the files that an umbrella includes share one namespace, so what
one of them calls says where it stands, and no import does. A name is a function or a class that is
defined in a room; it is called where it is named, be it as a pointer or a type.
"""

import ast
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMPILED: set[str] = {"_cluster", "_core", "_pcre", "_perf", "_tls"}
"""Modules of ``lavinmq/`` that are compiled from ``cext/``."""

# From the bottom to the top. Units of one line are neighbours and do not know each other.
PYTHON_LAYERS: list[set[str]] = [
    # What it offers of the layers above is imported by name, when somebody asks for it.
    {"__init__"},
    # Values and tables that everybody uses. The door is compiled from cext/ and imports no Python
    # module of ours; the client knows no broker.
    COMPILED | {"client", "errors", "fieldtable", "missing", "nearest"},
    # What a declaration may say; what the operator sets.
    {"arguments", "config"},
    # This process: log, systemd, portions.
    {"process"},
    # Small files; sockets until the protocol begins; numbers.
    {"files", "listeners", "stats"},
    # What operators decide, as values; sums of files.
    {"integrity", "policy", "spark"},
    # Who may.
    {"auth", "pipeline"},
    # Queues, exchanges, bindings and their rules.
    {"cli", "vhost"},
    # What sessions, HTTP and imports know of the whole.
    {"broker"},
    # Sessions; imports; copies of the whole.
    {"amqp", "backup", "definitions_json", "mqtt"},
    # What moves messages by itself, as a client of this broker and of others.
    {"shovel"},
    {"federation"},
    # Management.
    {"http"},
    # Builds the broker, owns listeners, timers, start and stop: it alone knows the listeners.
    {"server"},
    # Several machines as one broker; faces.
    {"cluster", "embedded"},
    {"__main__", "pytest_plugin"},
]

CIRCLES: list[set[str]] = [
    {"amqp.channel", "amqp.connection", "amqp.login"},
    {"http.access.owned", "http.access.table", "http.call", "http.handler", "http.routes"},
    {"pipeline.arguments", "pipeline.job"},
]
"""Files that name each other for their types' sake. This list may only shrink."""

APART: set[str] = {"pipeline", "spark"}
"""Rooms of programs that run beside Spark, with the top-level formats `pyspark_lavinmq*`."""

SHARED: set[str] = {"client._engine", "client.errors", "client.frames", "client.link",
                    "client.methods", "errors", "fieldtable", "files.definitions",
                    "files.stream_epochs", "files.stream_files"}  # fmt: skip
"""All that these have in common with the broker: what is on the wire, by the client library, and in
its files."""

TELLS_OF_ALL: Final = "cli.programs"
"""Writes the manuals, that of lavinmq-pipeline too."""

CYTHON_LAYERS: list[set[str]] = [
    # What everybody uses. The clients of lavinmqperf use nothing of the broker's.
    {"base", "perf"},
    # From a routing key or headers to destinations; messages in files.
    {"match", "store"},
    # The wire of a link; its TLS, which is a module of its own; messages as columns, for Spark;
    # what clients send and get, and changes of files between nodes, in modules of their own.
    {"arrow", "client", "cluster", "link", "tls"},
    # Queues and what they do with messages.
    {"queue"},
    # Queues that are read and not emptied.
    {"stream"},
    # What clients do, whatever they speak: publishing, settling, confirms, transactions.
    {"channel"},
    # A protocol: bytes to calls of the rooms below, and their answers to bytes. What stands above
    # and below reaches it by way of protocol_t.
    {"amqp", "mqtt"},
    # Once per iteration.
    {"loop"},
    # The classes that Python holds.
    {"door"},
    # What only tests use.
    {"trial"},
]

CONTRACTS: list[set[str]] = [
    {"bytes"},
    # Compiled bindings know queues as opaque targets only, hence their place below.
    {"match"},
    # All structs in one place: they point at each other in both directions.
    {"types"},
    {"record"},
]
"""The ``.pxd`` files, which all rooms may ``cimport``."""

UPWARD: list[tuple[str, str]] = [
    ("queue/expiry", "stream/stream_retention"),
    ("queue/features", "stream/stream"),
    ("queue/queue", "stream/stream"),
]
"""Files of ``cext/`` that call a higher room. This list may only shrink."""

_CYTHON_EDGE = re.compile(
    r"""^\s*(?: from\s+(?P<source>[\w.]+)\s+cimport\b
          | cimport\s+(?P<modules>[\w., ]+)
          | include\s+["'](?P<file>[\w./]+)["'] )""",
    re.VERBOSE | re.MULTILINE,
)
# Longest first: strings of three quotes, of one, characters, comments.
_NO_CODE = re.compile(r""""{3}(?s:.*?)"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*""")
_DEFINED = re.compile(
    r"^(?:(?:cdef[ ]+)?class[ ]+(?P<type>\w+)"
    r"|(?:cdef|cpdef|def)[ ]+(?:inline[ ]+)?(?:[\w.,\[\] ]+?[ *]+)??(?P<name>\w+)\()",
    re.MULTILINE,
)
_NAMED = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_PYTHON_FROM_C = re.compile(r"^\s*(?:from|import)\s+\.*lavinmq\b.*$", re.MULTILINE)


class Edge(NamedTuple):
    """One import: who needs whom (units), and where it is written."""

    user: str
    used: str
    where: str


def is_type_checking(test: ast.expr) -> bool:
    """Say whether an ``if`` asks for TYPE_CHECKING, plain or as an attribute of ``typing``."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def imports_at_run_time(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield all import statements below ``node``, lazy ones included, type-only ones not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for otherwise in child.orelse:
                yield from imports_at_run_time(ast.Module([otherwise], []))
        else:
            yield from imports_at_run_time(child)


def imported_names(statement: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[str]:
    """Yield the dotted names a statement may load; ``package`` is where the statement stands."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    base = package[: len(package) - statement.level + 1] if statement.level else []
    source = [*base, *(statement.module.split(".") if statement.module else [])]
    # `from lavinmq import x` names a unit, or an attribute of the package itself.
    yield from (".".join([*source, alias.name]) for alias in statement.names)


def python_edges(package: Path) -> list[Edge]:
    """Return the imports between different units of the package ``lavinmq`` in ``package``."""
    units = {path.stem for path in package.iterdir() if path.suffix in {".py", ".pyi"}}
    units |= {path.name for path in package.iterdir() if path.is_dir()}
    edges = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        where = str(path.relative_to(package.parent))
        for statement in imports_at_run_time(ast.parse(path.read_text(), filename=where)):
            for name in imported_names(statement, ["lavinmq", *parts[:-1]]):
                first, *rest = name.split(".")
                if first != "lavinmq":
                    continue
                used = rest[0] if rest and rest[0] in units | COMPILED else "__init__"
                if used != parts[0]:
                    edges.append(Edge(parts[0], used, f"{where}:{statement.lineno}"))
    return edges


def module_edges(package: Path) -> dict[str, set[str]]:
    """Return which modules of the package each one names, type-only imports included.

    The package's own ``__init__`` is left out: it names whatever it offers.
    """
    paths = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (*package.rglob("*.py"), *package.rglob("*.pyi"))
        if path != package / "__init__.py"
    }
    return {
        module: named_modules(
            path, ["lavinmq", *path.relative_to(package).parts[:-1]], paths.keys()
        )
        - {module}
        for module, path in paths.items()
    }


def named_modules(path: Path, package: list[str], modules: Set[str]) -> set[str]:
    """Return which of the modules of ``lavinmq`` a file names that stands in ``package``."""
    named = {
        name.removeprefix("lavinmq.")
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in imported_names(statement, package)
        if name.startswith("lavinmq.")
    }
    # What is imported from a module is no module of that name.
    return {name if name in modules else name.rpartition(".")[0] for name in named} & modules


def pairs(edges: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield who names whom."""
    yield from ((user, used) for user, several in edges.items() for used in several)


def room_of(module: str) -> str:
    """Return the first name of a module below ``lavinmq``."""
    return module.partition(".")[0]


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules in which each one leads to each other."""
    reached = {}
    for start in edges:
        seen: set[str] = set()
        left = [start]
        while left:
            new = edges[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    found = {
        frozenset(other for other in seen if start in reached[other])
        for start, seen in reached.items()
        if start in seen
    }
    return sorted((set(circle) for circle in found), key=sorted)


def unit_of(path: Path, directory: Path) -> str:
    """Return the name of a file of ``cext/``: its room, if it is in one, and its stem."""
    return path.relative_to(directory).with_suffix("").as_posix()


def cython_edges(directory: Path) -> list[Edge]:
    """Return the cimports and includes between different files of ``cext/``."""
    sources = sorted(directory.rglob("*.p??"))
    units = {unit_of(path, directory) for path in sources}
    edges = []
    for path in sources:
        text = path.read_text()
        user = unit_of(path, directory)
        where = path.relative_to(directory.parent)
        for match in _CYTHON_EDGE.finditer(text):
            named = match["source"] or match["modules"] or match["file"].removesuffix(".pyx")
            line = text.count("\n", 0, match.end()) + 1
            for module in named.split(","):
                used = module.split(" as ")[0].strip().removeprefix("cext.").lstrip(".")
                if used in units and used != user:
                    edges.append(Edge(user, used, f"{where}:{line}"))
    return edges


def included(directory: Path) -> dict[str, list[str]]:
    """Return which files in rooms each one of ``cext/`` includes, for those that include any."""
    found = {
        unit_of(path, directory): [
            match["file"].removesuffix(".pyx")
            for match in _CYTHON_EDGE.finditer(path.read_text())
            if match["file"]
        ]
        for path in sorted(directory.rglob("*.pyx"))
    }
    # An umbrella may be included by another one: all that is below it is that one's, too.
    return {
        unit: [each for file in files for each in (found[file] or [file])]
        for unit, files in found.items()
        if files
    }


def code_of(text: str) -> str:
    """Return Cython source without what its strings and comments say; the lines stay."""
    return _NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def cython_calls(directory: Path) -> list[Edge]:
    """Return who names what another file of the same compiled module defines, once per name."""
    edges = set()
    for files in included(directory).values():
        code = {file: code_of((directory / f"{file}.pyx").read_text()) for file in files}
        home = {
            match["name"] or match["type"]: file
            for file, text in code.items()
            for match in _DEFINED.finditer(text)
        }
        for user, text in code.items():
            for name in set(_NAMED.findall(text)):
                if home.get(name, user) != user:
                    edges.add(Edge(user, home[name], name))
    return sorted(edges)


def upward_pairs(calls: list[Edge], layers: list[set[str]]) -> list[tuple[str, str]]:
    """Return the pairs of files whose calls do not point down, or stay within the room."""
    height = {room: level for level, rooms in enumerate(layers) for room in rooms}
    rooms = [(call.user.split("/")[0], call.used.split("/")[0], call) for call in calls]
    return sorted(
        {
            (call.user, call.used)
            for user, used, call in rooms
            if user != used and height[used] >= height[user]
        }
    )


def violations(edges: list[Edge], layers: list[set[str]]) -> list[str]:
    """Return a sentence for every edge that does not point down."""
    height = {unit: level for level, units in enumerate(layers) for unit in units}
    found = []
    for user, used, where in edges:
        if user not in height or used not in height:
            unknown = used if user in height else user
            found.append(f"{where}: {unknown} has no layer; give it one in {Path(__file__).name}")
        elif height[used] >= height[user]:
            direction = "upward" if height[used] > height[user] else "sideways"
            found.append(f"{where}: {user} imports {used}, which is {direction}")
    return found


def test_python_modules_import_downward_only() -> None:
    edges = python_edges(ROOT / "lavinmq")

    assert edges, "no import was found: the walk is broken"
    assert violations(edges, PYTHON_LAYERS) == []


def test_files_of_a_room_form_no_circles_but_the_known_ones() -> None:
    found = circles(module_edges(ROOT / "lavinmq"))

    assert found == CIRCLES, "break a new circle; take one that is gone off the list"


def test_spark_shares_only_what_is_on_the_wire_and_in_files_with_the_broker() -> None:
    edges = module_edges(ROOT / "lavinmq")
    used = {each for user, each in pairs(edges) if room_of(user) in APART}
    for path in ROOT.glob("pyspark_lavinmq*/*.py"):
        used |= named_modules(path, [path.parent.name], edges.keys())

    assert {each for each in used if room_of(each) not in APART} == SHARED


def test_the_broker_needs_nothing_of_spark() -> None:
    edges = module_edges(ROOT / "lavinmq")

    users = {user for user, each in pairs(edges) if room_of(each) in APART}
    assert {user for user in users if room_of(user) not in APART} == {TELLS_OF_ALL}


def test_contracts_cimport_downward_only() -> None:
    contracts = set().union(*CONTRACTS)
    edges = [
        edge
        for edge in cython_edges(ROOT / "cext")
        if edge.user in contracts and (ROOT / "cext" / f"{edge.user}.pxd").exists()
    ]

    assert edges, "no cimport was found: the walk is broken"
    assert violations(edges, CONTRACTS) == []


def test_only_umbrellas_include_and_they_include_every_file() -> None:
    directory = ROOT / "cext"
    found = included(directory)
    files = {unit_of(path, directory) for path in directory.glob("*/*.pyx")}

    assert [unit for unit in found if "/" in unit] == []
    assert {file for files in found.values() for file in files} == files


def test_rooms_of_the_compiled_half_call_down_but_for_the_known_pairs() -> None:
    calls = cython_calls(ROOT / "cext")

    assert calls, "no call was found: the walk is broken"
    found = upward_pairs(calls, CYTHON_LAYERS)
    assert found == UPWARD, "move a new call down; take a pair that is gone off the list"


@pytest.mark.parametrize(
    ("what", "files"),
    [
        (r"\bc_(?:send|recv)\b", {"link/wire"}),
        (r"\bwire\.out(?:_at|_end|_cap)?\b", {"link/output"}),
        (
            r"\bEAGAIN\b",
            {"door/accept", "link/output", "link/wire", "loop/wire", "queue/queue"},
        ),
    ],
)
def test_only_the_wire_knows_sockets_and_blocks(what: str, files: set[str]) -> None:
    """What is not the wire asks whether it is blocked; `queue` means errors of a disk."""
    directory = ROOT / "cext"
    found = {
        file
        for file in included(directory)["core"]
        if re.search(what, code_of((directory / f"{file}.pyx").read_text()))
    }

    assert found == files


def test_what_only_tests_use_is_in_no_module_of_the_broker() -> None:
    shipped = included(ROOT / "cext").keys() - {"matcher", "trial", "trial_tls"}

    assert shipped == {"arrow", "client", "cluster", "core", "perf", "tls"}
    assert not any(
        file.startswith("trial/")
        for umbrella in shipped
        for file in included(ROOT / "cext")[umbrella]
    )


def test_compiled_code_imports_no_python_module_of_ours() -> None:
    imports = {
        unit_of(path, ROOT / "cext"): _PYTHON_FROM_C.findall(path.read_text())
        for path in sorted((ROOT / "cext").rglob("*.p??"))
    }

    assert {name: found for name, found in imports.items() if found} == {}


def test_the_tables_name_what_is_there_and_nothing_else() -> None:
    package = ROOT / "lavinmq"
    python = {path.stem for path in package.iterdir() if path.suffix in {".py", ".pyi"}}
    python |= {path.parent.name for path in package.glob("*/*.py")}
    contracts = {path.stem for path in (ROOT / "cext").glob("*.pxd")}
    cython = {path.parent.name for path in (ROOT / "cext").glob("*/*.pyx")}

    assert set().union(*PYTHON_LAYERS) == python
    assert set().union(*CONTRACTS) == contracts
    assert set().union(*CYTHON_LAYERS) == cython


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("errors.py", "from lavinmq import vhost", "errors imports vhost, which is upward"),
        ("errors.py", "import lavinmq.vhost.x", "errors imports vhost, which is upward"),
        ("errors.py", "def f():\n from .vhost import V", "errors imports vhost, which is upward"),
        ("auth/a.py", "from ..pipeline.b import c", "auth imports pipeline, which is sideways"),
        ("auth/a.py", "from lavinmq.pipeline import b", "auth imports pipeline, which is sideways"),
        ("amqp/a.py", "import lavinmq.server", "amqp imports server, which is upward"),
        ("broker.py", "from lavinmq.amqp.a import b", "broker imports amqp, which is upward"),
        ("misc.py", "from lavinmq import errors", "misc has no layer"),
    ],
)
def test_forbidden_python_import_is_found(
    tmp_path: Path, path: str, source: str, complaint: str
) -> None:
    package = tmp_path / "lavinmq"
    for unit in ("amqp", "auth", "pipeline", "vhost"):
        (package / unit).mkdir(parents=True)
    for name in ("errors.py", "server.py"):
        (package / name).touch()
    (package / path).write_text(source)

    found = violations(python_edges(package), PYTHON_LAYERS)

    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lavinmq.vhost import V",
        "import typing\nif typing.TYPE_CHECKING:\n    from .vhost import V",
        "import json, vhost",
        "from lavinmq import __version__",
    ],
)
def test_harmless_python_import_is_not_reported(tmp_path: Path, source: str) -> None:
    package = tmp_path / "lavinmq"
    package.mkdir()
    (package / "vhost.py").touch()
    (package / "errors.py").write_text(source)

    assert violations(python_edges(package), PYTHON_LAYERS) == []


@pytest.mark.parametrize("source", ["from types cimport queue_t", "cimport bytes, types"])
def test_forbidden_cimport_is_found(tmp_path: Path, source: str) -> None:
    for unit in ("bytes.pxd", "types.pxd"):
        (tmp_path / unit).touch()
    (tmp_path / "match.pxd").write_text(source)

    found = violations(cython_edges(tmp_path), CONTRACTS)

    assert len(found) == 1
    assert "match imports types, which is upward" in found[0]


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A compiled half of two rooms; ``store/tail.pyx`` is the lower one's, still empty."""
    for room in ("store", "door"):
        (tmp_path / room).mkdir()
    (tmp_path / "core.pyx").write_text('include "store/tail.pyx"\ninclude "door/queue.pyx"\n')
    (tmp_path / "door/queue.pyx").write_text(
        "cdef class Queue:\n    pass\n\n\n"
        "cdef inline const u8* queue_name(\n    queue_t* q\n) noexcept nogil:\n    return q.name\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "    return queue_name(q)",
        "    job.step = queue_name",
        "    return (<Queue>q.owner).t",
        "    return {'name': queue_name(q)}      # queue_name is for everybody",
    ],
)
def test_a_call_of_a_higher_room_is_found(compiled: Path, line: str) -> None:
    (compiled / "store/tail.pyx").write_text(f"cdef int tail(queue_t* q) noexcept nogil:\n{line}\n")

    found = upward_pairs(cython_calls(compiled), CYTHON_LAYERS)

    assert found == [("store/tail", "door/queue")]


@pytest.mark.parametrize(
    "line",
    [
        '    """Called by queue_name."""',
        "    return 0                # as queue_name does",
        "    return q.queue_name",
        '    return b"queue_name", c\'"\'',
        "    return queue_names",
    ],
)
def test_what_is_no_call_is_not_reported(compiled: Path, line: str) -> None:
    (compiled / "store/tail.pyx").write_text(f"cdef int tail(queue_t* q) noexcept nogil:\n{line}\n")

    assert cython_calls(compiled) == []


def test_a_call_of_a_lower_room_or_of_the_own_one_is_allowed(compiled: Path) -> None:
    (compiled / "store/tail.pyx").write_text("def tail(q):\n    return cut(q)\n")
    (compiled / "store/cut.pyx").write_text("cdef int cut(store_t* st):\n    return 0\n")
    (compiled / "door/queue.pyx").write_text("def shorten(q):\n    return cut(q) + tail(q)\n")
    umbrella = compiled / "core.pyx"
    umbrella.write_text(umbrella.read_text() + 'include "store/cut.pyx"\n')

    calls = cython_calls(compiled)

    assert len(calls) == 3
    assert upward_pairs(calls, CYTHON_LAYERS) == []


@pytest.mark.parametrize(
    "again",
    [
        "from lavinmq.amqp import a",
        "from lavinmq.amqp.a import Name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lavinmq.amqp.a",
    ],
)
def test_a_circle_of_files_is_found(tmp_path: Path, again: str) -> None:
    package = tmp_path / "lavinmq"
    (package / "amqp").mkdir(parents=True)
    (package / "amqp/a.py").write_text("from lavinmq.amqp.b import Name")
    (package / "amqp/b.py").write_text("def f():\n    from lavinmq.amqp import c")
    (package / "amqp/c.py").write_text(again)
    (package / "amqp/d.py").write_text("from lavinmq.amqp import a")

    assert circles(module_edges(package)) == [{"amqp.a", "amqp.b", "amqp.c"}]
