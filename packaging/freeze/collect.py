"""Turns Python modules into byte code for the executable: one blob, and a table of what is in it.

Run by the interpreter that was built for the executable, since byte code belongs to a version:

    python collect.py DIRECTORY < JSON     the form of the input is in `Wanted`

Modules are found by reading imports, also those within functions, from the modules named as roots.
Writes `frozen.bin` and `frozen.c`, the table of PyImport_FrozenModules, to the directory. The last
module, `prepared_data`, is made after the others: the table takes it from `prepared.bin` and
`prepared.h`.
"""

from __future__ import annotations

import _imp
import ast
import json
import marshal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CODE = {".py", ".pyi", ".pyc", ".so", ".c"}
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Wanted(NamedTuple):
    """What is asked for.

    `places`: directories by top-level name, "" for all others. `roots`: names; one that ends in
    `.*` stands for a package with all below it. `replaced`: files by name of the module. `linked`:
    compiled modules. `excluded`: names that are left out, with all below them. `documented`:
    packages whose functions keep their docstrings. `with_data`: packages whose other files are
    taken along. `appended`: a line that a module ends with, by its name. `postponed`: names that a
    module imports when it uses them, by its name.
    """

    places: dict[str, str]
    roots: list[str]
    replaced: dict[str, str]
    linked: list[str]
    excluded: list[str]
    documented: list[str]
    with_data: list[str]
    appended: dict[str, str]
    postponed: dict[str, list[str]]


class Module(NamedTuple):
    """A module to be frozen."""

    name: str
    path: Path
    is_package: bool


class Collection:
    """The modules that can be reached from the roots."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # These the interpreter holds already: in C, or as byte code that needs no reading.
        self._there = {*sys.builtin_module_names, *wanted.linked, *_imp._frozen_module_names()}
        self.modules: dict[str, Module] = {}

    def add(self, name: str) -> None:
        """Add a module, the packages it is in, and all that they import."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            for end in range(1, name.count(".") + 2):
                part = ".".join(name.split(".")[:end])
                module = self._new(part)
                if module is not None:
                    self.modules[part] = module
                    waiting += imports(module)

    def add_below(self, package: str) -> None:
        """Add a package and all modules that are in its directory."""
        self.add(package)
        directory = self._place(package).joinpath(*package.split("."))
        for path in sorted(directory.rglob("*.py")):
            parts = path.relative_to(directory).with_suffix("").parts
            self.add(".".join([package, *parts]).removesuffix(".__init__"))

    def _new(self, name: str) -> Module | None:
        """The module of a name, unless there is none, it is there, or it is not wanted."""
        if name in self.modules or name in self._there:
            return None
        parts = name.split(".")
        if any(".".join(parts[:end]) in self._wanted.excluded for end in range(1, len(parts) + 1)):
            return None
        if name in self._wanted.replaced:
            return Module(name, Path(self._wanted.replaced[name]), False)
        path = self._place(name).joinpath(*parts)
        if (path / "__init__.py").exists():
            return Module(name, path / "__init__.py", True)
        file = path.with_name(path.name + ".py")
        return Module(name, file, False) if file.exists() else None

    def _place(self, name: str) -> Path:
        places = self._wanted.places
        return Path(places.get(name.partition(".")[0], places[""]))


def imports(module: Module) -> Iterator[str]:
    """Give the names that a module may import; some of them are no modules."""
    parts = module.name.split(".")
    package = parts if module.is_package else parts[:-1]
    for node in ast.walk(ast.parse(module.path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def code_of(module: Module, wanted: Wanted) -> bytes:
    """Return the byte code of a module, without most of what nobody reads while it runs."""
    tree = ast.parse(module.path.read_bytes())
    is_documented = any(f"{module.name}.".startswith(f"{name}.") for name in wanted.documented)
    # Those of the standard library look at docstrings of classes and at annotations.
    is_library = module.name.partition(".")[0] not in wanted.places
    undocumented = (*Function, ast.Module) if is_library else (*Function, ast.Module, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, undocumented) and not is_documented:
            drop_docstring(node)
        if not is_library:
            drop_annotations(node)
    for name in wanted.postponed.get(module.name, ()):
        postpone(tree, name)
    tree.body += ast.parse(wanted.appended.get(module.name, "")).body
    name = module.name.replace(".", "/") + ("/__init__.py" if module.is_package else ".py")
    return marshal.dumps(compile(tree, name, "exec", dont_inherit=True, optimize=0))


def drop_docstring(node: ast.AST) -> None:
    """Forget a docstring, but that of a dataclass: it would make up another, at some cost."""
    if isinstance(node, ast.ClassDef) and node.decorator_list:
        return
    if ast.get_docstring(node, clean=False):
        text = node.body[0]
        node.body[:1] = [] if node.body[1:] else [ast.copy_location(ast.Pass(), text)]


def drop_annotations(node: ast.AST) -> None:
    """Forget the annotations of a function, and of the variables of a module.

    Those of classes stay: named tuples and dataclasses are made from them.
    """
    if isinstance(node, Function):
        node.returns = None
    elif isinstance(node, ast.arg):
        node.annotation = None
    elif isinstance(node, ast.Module):
        node.body = [plain(statement) for statement in node.body]


def plain(statement: ast.stmt) -> ast.stmt:
    """Return an assignment without its annotation; all else as it is."""
    if not isinstance(statement, ast.AnnAssign):
        return statement
    if statement.value is None:
        return ast.copy_location(ast.Pass(), statement)
    return ast.copy_location(ast.Assign([statement.target], statement.value), statement)


def postpone(tree: ast.Module, name: str) -> None:
    """Have a module import another one when it uses it."""
    for at, node in enumerate(tree.body):
        if isinstance(node, ast.Import) and name in (alias.name for alias in node.names):
            node.names = [alias for alias in node.names if alias.name != name]
            later = ast.parse(f'{name} = __import__("later").Later("{name}")').body
            tree.body[at : at + 1] = [*([node] if node.names else []), *later]
            return
    sys.exit(f"there is no import of {name} to be postponed")


def write_data(modules: list[Module], packages: list[str], path: Path) -> None:
    """Write a module with the files in the directories of packages that are no code."""
    files = {}
    for module in modules:
        if module.is_package and module.name.partition(".")[0] in packages:
            found = [p for p in sorted(module.path.parent.iterdir()) if p.suffix not in CODE]
            files[module.name] = {p.name: p.read_bytes() for p in found if p.is_file()}
            for directory in filter(Path.is_dir, found):
                # One with code is a package of its own.
                if directory.name != "__pycache__" and not any(directory.rglob("*.py")):
                    files[module.name][directory.name] = tree_of(directory)
    path.write_text(f"FILES = {files!r}\n")


def tree_of(directory: Path) -> dict[str, object]:
    """Return the content of a directory: bytes of files, trees of directories, by name."""
    return {
        path.name: tree_of(path) if path.is_dir() else path.read_bytes()
        for path in sorted(directory.iterdir())
    }


def write(modules: list[Module], wanted: Wanted, directory: Path) -> None:
    """Write blob and table."""
    rows, offset = [], 0
    with (directory / "frozen.bin").open("wb") as blob:
        for module in modules:
            code = code_of(module, wanted)
            blob.write(code)
            is_package = str(module.is_package).lower()
            rows.append(f'    {{"{module.name}", code + {offset}, {len(code)}, {is_package}}},')
            offset += len(code)
    lines = [
        "/* Made by packaging/freeze/collect.py. */",
        "#include <Python.h>",
        "#include <stdbool.h>",
        '__asm__(".section .rodata\\n.balign 16\\n"',
        '        "code: .incbin \\"frozen.bin\\"\\n.balign 16\\n"',
        '        "prepared: .incbin \\"prepared.bin\\"\\n.previous\\n");',
        "#pragma GCC visibility push(hidden)",
        "extern const unsigned char code[], prepared[];",
        "#pragma GCC visibility pop",
        "const struct _frozen lavinmq_frozen[] = {",
        *rows,
        '#include "prepared.h"',
        "    {0, 0, 0, 0},",
        "};",
    ]
    (directory / "frozen.c").write_text("\n".join([*lines, ""]))


def main() -> int:
    """Collect what standard input asks for, and say how much it is."""
    wanted = Wanted(**json.load(sys.stdin))
    collection = Collection(wanted)
    for root in wanted.roots:
        if root.endswith(".*"):
            collection.add_below(root.removesuffix(".*"))
        else:
            collection.add(root)
        if root.removesuffix(".*") not in {*collection.modules, *collection._there}:
            sys.exit(f"there is no module {root}")
    # The one that starts the others is known to the interpreter by this name only.
    boot = collection.modules.pop("boot")
    modules = [*collection.modules.values(), boot._replace(name="__main__")]
    directory = Path(sys.argv[1])
    data = Module("assets_data", directory / "assets_data.py", False)
    write_data(modules, wanted.with_data, data.path)
    modules.append(data)
    write(modules, wanted, directory)
    size = (directory / "frozen.bin").stat().st_size
    print(f"{len(modules)} modules, {size / 1e6:.1f} MB of byte code")
    return 0


if __name__ == "__main__":
    sys.exit(main())
