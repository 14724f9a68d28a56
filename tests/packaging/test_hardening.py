"""What compiled code has against attacks: read from the modules of Python, and from executables.

Marks of the linker and instructions count, and not what a build script says.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import lavinmq
from tests.packaging.conftest import ROOT, make

MODULES = sorted(Path(lavinmq.__file__).parent.rglob("*.so"))
EXECUTABLES = [ROOT / "dist/lavinmq", ROOT / "dist/arm64/lavinmq"]
X86, ARM = 62, 183
LANDINGS = {
    X86: {bytes.fromhex("f30f1efa")},  # endbr64
    # bti c; paciasp, which is one too
    ARM: {bytes.fromhex("5f2403d5"), bytes.fromhex("3f2303d5")},
}


def read(path: Path, *what: str) -> str:
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} has not been built: make binary")
    return make("readelf", "--wide", *what, path)


def landings(path: Path, names: str) -> dict[str, bytes]:
    """Return the first instruction of functions. Args: names: a regular expression."""
    segments = re.findall(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+) ", read(path, "--program-headers"))
    symbols = re.findall(
        rf"^ *\d+: (\w+) +\d+ FUNC +\w+ +\w+ +\d+ ({names})$", read(path, "--symbols"), re.MULTILINE
    )
    content = path.read_bytes()
    found = {}
    for value, name in symbols:
        for offset, start, size in segments:
            begin = int(value, 16) - int(start, 16)
            if 0 <= begin < int(size, 16):
                place = int(offset, 16) + begin
                found[name] = content[place : place + 4]
    return found


def machine(path: Path) -> int:
    number: int = struct.unpack_from("<H", path.read_bytes(), 18)[0]
    return number


@pytest.fixture
def released() -> None:
    """Modules as they are released: those of developers are made to be looked into."""
    if not (ROOT / "build/.compiled-release").exists():
        pytest.skip("the modules are no release build: make")


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name.partition(".")[0])
def test_a_module_is_hardened(path: Path) -> None:
    dynamic = read(path, "--dynamic")
    segments = read(path, "--program-headers")

    assert "GNU_RELRO" in segments and "NOW" in dynamic
    assert re.search(r"GNU_STACK .* RW  ?0x", segments)
    assert not re.search(r"LOAD .* RWE ", segments)
    assert " UND __stack_chk_fail@" in read(path, "--dyn-syms")


@pytest.mark.usefixtures("released")
def test_modules_call_checked_functions_of_the_c_library() -> None:
    symbols = "".join(read(path, "--dyn-syms") for path in MODULES)

    assert re.search(r" UND __\w+_chk@GLIBC", symbols.replace("__stack_chk_fail", ""))


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name.partition(".")[0])
def test_calls_through_pointers_land_where_functions_of_a_module_begin(path: Path) -> None:
    found = landings(path, r"PyInit_\w+")

    assert found
    assert set(found.values()) <= LANDINGS[machine(path)]


@pytest.mark.parametrize("path", EXECUTABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_calls_through_pointers_land_where_functions_of_an_executable_begin(path: Path) -> None:
    names = r"main|PyInit__core|PyInit__pcre|PyInit_loop|PyObject_Vectorcall|PyLong_FromLong"
    found = landings(path, names)

    assert {"main", "PyInit__core", "PyLong_FromLong"} <= found.keys()
    assert set(found.values()) <= LANDINGS[machine(path)]


@pytest.mark.parametrize("path", [*EXECUTABLES, *MODULES], ids=lambda path: path.stem)
def test_the_page_says_whether_the_loader_may_enforce_landing_places(path: Path) -> None:
    """It may when every part of a file has them, which it has not."""
    page = " ".join((ROOT / "docs/packaging.md").read_text().split())
    assert "**The files have no such mark**" in page

    assert not re.search(r"IBT|SHSTK|BTI", read(path, "--notes"))
