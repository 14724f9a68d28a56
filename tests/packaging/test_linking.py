"""What the linker made of the executables: needed from outside little, left open to attack nothing.

Read from the files, so that one for another processor is looked at, too (`make binary ARCH=arm64`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import ROOT, make

PLACES = (ROOT / "dist", ROOT / "dist/arm64")
MACHINES = {"amd64": "Advanced Micro Devices X86-64", "arm64": "AArch64"}
LARGEST_PAGE = {"amd64": 0x1000, "arm64": 0x10000}
MEGABYTE = 1_000_000
MAX_SIZE = 34 * MEGABYTE


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: str(place.relative_to(ROOT)))
def place(request: pytest.FixtureRequest) -> Path:
    """The directory of an executable."""
    found: Path = request.param
    if not (found / "lavinmq").exists():
        pytest.skip(f"{found.relative_to(ROOT)}/lavinmq has not been built: make binary")
    return found


@pytest.fixture(scope="module")
def program(place: Path) -> Path:
    return place / "lavinmq"


@pytest.fixture(scope="module")
def description(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "lavinmq.json").read_text())
    return found


def read(program: Path, *what: str) -> str:
    return make("readelf", "--wide", *what, program)


def test_it_is_for_the_processor_that_it_says(program: Path, description: dict[str, Any]) -> None:
    assert f"Machine:                           {MACHINES[description['arch']]}" in read(
        program, "--file-header"
    )


def test_it_is_small_enough(program: Path) -> None:
    assert program.stat().st_size <= MAX_SIZE


def test_it_needs_the_c_library_and_nothing_else(program: Path) -> None:
    dynamic = read(program, "--dynamic")

    needed = re.findall(r"\(NEEDED\).*\[([\w-]+)\.", dynamic)
    assert "libc" in needed
    assert {re.sub("^ld-linux.*", "ld", name) for name in needed} <= {
        "libc", "libm", "libdl", "libpthread", "librt", "libutil", "ld",
    }  # fmt: skip
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_it_needs_no_c_library_newer_than_it_was_built_for(
    program: Path, description: dict[str, Any]
) -> None:
    symbols = read(program, "--dyn-syms")

    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", symbols)}

    assert ".".join(map(str, max(versions))) == description["glibc"]
    if description["base"] != "native":
        assert max(versions) <= tuple(map(int, description["base"].split(".")))


def test_it_is_hardened(program: Path) -> None:
    segments = read(program, "--program-headers")
    dynamic = read(program, "--dynamic")
    symbols = read(program, "--dyn-syms")

    assert "Elf file type is DYN" in segments  # may be loaded anywhere
    assert "GNU_RELRO" in segments and "NOW" in dynamic
    assert re.search(r"GNU_STACK .* RW  ?0x", segments)
    assert not re.search(r"LOAD .* RWE ", segments)
    assert " UND __stack_chk_fail@" in symbols and " UND __memcpy_chk@" in symbols
    assert "Build ID" in read(program, "--notes")


def test_it_can_be_loaded_with_the_largest_pages_of_its_processor(
    program: Path, description: dict[str, Any]
) -> None:
    """Kernels for ARM64 may have pages of 64 KiB."""
    segments = read(program, "--program-headers")

    aligned = [int(word, 16) for word in re.findall(r"LOAD .* (0x\w+)$", segments, re.MULTILINE)]

    assert aligned
    assert min(aligned) >= LARGEST_PAGE[description["arch"]]


def test_profilers_find_the_names_of_compiled_functions(program: Path) -> None:
    names = read(program, "--symbols")
    sections = read(program, "--sections")

    assert len(re.findall(r" FUNC +LOCAL .* __pyx_f_\w*core\w*", names)) > 100
    # An optimiser that sees the whole interpreter may give other names to what it keeps.
    for name in (
        "_PyEval_EvalFrameDefault",
        "PyObject_Vectorcall",
        "dict_subscript",
        "gc_collect_main",
    ):
        assert re.search(rf" FUNC .* {name}$", names, re.MULTILINE), name
    assert ".debug_info" not in sections


def test_every_part_has_its_licence_beside_it(place: Path, description: dict[str, Any]) -> None:
    licenses = place / "licenses"
    index = (licenses / "README").read_text()

    assert (licenses / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for name, version in description["contains"].items():
        assert f"{name} " in index and version in index
        assert any(path.stat().st_size for path in (licenses / name).rglob("*") if path.is_file())
