"""Builds every compiled module of the executable that is not the interpreter's own.

Each becomes an object file, or an archive beside it, whose only global symbol is the function that
makes the module: two libraries may then use one name for different things.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import contents
import fetch
from interpreter import NAMED, SERIES, Interpreter
from toolchain import MACHINES, BuildError, Target, once, run, side_by_side

LINKED = fetch.HERE / "linked"
RUST_FLAGS = f"-C force-frame-pointers=yes --remap-path-prefix={fetch.ROOT}=."
# Counts are written to where the object is, by its full name.
_HERE = f"-fprofile-prefix-map={fetch.ROOT}={fetch.ROOT}"
# Threads run at once in our code.
COUNT = (_HERE, "-fprofile-generate", "-fprofile-update=prefer-atomic")
# What was not run is compiled as ever, not for size: it was merely not thought of.
USE_COUNTS = (
    _HERE, "-fprofile-use", "-fprofile-correction", "-fprofile-partial-training",
    "-Wno-missing-profile",
)  # fmt: skip

ITS_OWN = re.compile(r'"[^"\n]*/Cython/Includes/')
"""The head of a name of a file of Cython's own, in what it writes."""
NO_COUNTS: Mapping[str, Sequence[Path]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Extension:
    """A module and what is to be linked for it."""

    name: str
    objects: tuple[Path, ...]

    @property
    def init(self) -> str:
        """The C function that makes it."""
        return "PyInit_" + self.name.rpartition(".")[2]

    @property
    def counts(self) -> list[Path]:
        """The files that a run of its counting form leaves, one for each object."""
        parts = [path.parent / "parts" for path in self.objects]
        return sorted(path.with_suffix(".gcda") for part in parts for path in part.glob("*.o"))


def build(
    target: Target, interpreter: Interpreter, counts: Mapping[str, Sequence[Path]] | None = None
) -> list[Extension]:
    """Return all of them, built where they are not there.

    Args: counts: what the counting form of each of ours has left. Raises: BuildError, FetchError.
    """
    options = USE_COUNTS if counts else ()
    return _built(
        target,
        [
            *_ours(target, interpreter, *options, counts=counts or {}),
            partial(_uvloop, target, interpreter),
            partial(_orjson, target),
            partial(_tornado, target, interpreter),
            partial(_http_parser, target, interpreter),
            partial(_url_parser, target, interpreter),
            partial(_bcrypt, target, interpreter),
            partial(_openssl_verify, target, interpreter),
        ],
    )


def counting(target: Target, interpreter: Interpreter) -> list[Extension]:
    """Return ours in a form that counts what it does. Raises: BuildError."""
    return _built(target, _ours(target, interpreter, *COUNT))


def ahead(target: Target) -> list[Callable[[], object]]:
    """Return what builds those parts that need no interpreter."""
    return [partial(_orjson, target), partial(_libuv, target)]


def _built(target: Target, modules: Sequence[Callable[[], Extension]]) -> list[Extension]:
    """Return modules in their order; the first ones take longest. Raises: BuildError."""
    side_by_side(modules, target.jobs)
    return [module() for module in modules]


def _module(
    target: Target,
    interpreter: Interpreter,
    name: str,
    sources: Sequence[Path],
    *options: str,
    headers: Sequence[Path] = (),
    counts: Sequence[Path] = (),
) -> Extension:
    """Compile C files to one object with one global symbol.

    Args: headers: directories of them, besides the interpreter's.
    """
    extension = Extension(name, ())
    # Of the interpreter only its headers count.
    place = target.place(name, *sources, *options, *counts, interpreter.built / "pyconfig.h")

    # The compiler is given names that are the same wherever this is: by them counts know which
    # source, and which header, a function is from.
    paths = [f"-I{os.path.relpath(path, place)}" for path in (*interpreter.headers, *headers)]
    named = f"-ffile-prefix-map={os.path.relpath(interpreter.built, place)}={NAMED}"

    def compile_all(place: Path) -> None:
        print(f"compiling {name}", flush=True)
        (place / "parts").mkdir(exist_ok=True)
        for path in counts:
            shutil.copy2(path, place / "parts")
        # Counts of static functions are found by the object's name, as the compiler is given it.
        parts = [f"parts/{source.stem}.o" for source in sources]
        compiler = [*target.compiler, *target.flags, *paths, named, *options]
        for source, part in zip(sources, parts, strict=True):
            run([*compiler, "-c", os.path.relpath(source, place), "-o", part], cwd=place)
        whole = place / "module.o"
        run([*target.compiler, "-nostdlib", "-r", "-o", str(whole), *parts], cwd=place)
        run([target.tool("objcopy"), f"--keep-global-symbol={extension.init}", str(whole)])

    return Extension(name, (once(place, compile_all) / "module.o",))


def _ours(
    target: Target,
    interpreter: Interpreter,
    *options: str,
    counts: Mapping[str, Sequence[Path]] = NO_COUNTS,
) -> list[Callable[[], Extension]]:
    """Return what builds the modules of cext/, which are cythonized here in the way of setup.py."""
    here = Path.cwd()
    os.chdir(fetch.ROOT)
    try:
        setup = runpy.run_path("setup.py", run_name="freeze")
        modules = setup["extensions"](debug=False, sanitizer="")
    finally:
        os.chdir(here)
    return [
        partial(
            _module, target, interpreter, module.name,
            [_neutral(fetch.ROOT / source) for source in module.sources], *options,
            headers=[fetch.ROOT / "cext"], counts=counts.get(module.name, ()),
        )
        for module in modules
        if module.name.rpartition(".")[0] not in contents.EXCLUDED
    ]  # fmt: skip


def neutral(generated: str) -> str:
    """Return what Cython has written without what depends on the place and on earlier builds.

    It tells where it has its own files, by a path from where it was started, and of which files the
    modules consisted when it last wrote this one. Directories are named after this text.
    """
    _, end, code = generated.partition("END: Cython Metadata */")
    return ITS_OWN.sub('"', code if end else generated)


def _neutral(path: Path) -> Path:
    """Return a copy of a C file of Cython's that is the same wherever it was written."""
    text = neutral(path.read_text())
    copy = fetch.CACHE / "c" / path.name
    if not copy.exists() or copy.read_text() != text:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    return copy


def _uvloop(target: Target, interpreter: Interpreter) -> Extension:
    source = fetch.fetch(fetch.sources()["uvloop"])
    libuv = _libuv(target)
    code, headers = [source / "uvloop/loop.c"], [source / "vendor/libuv/include"]
    module = _module(target, interpreter, "uvloop.loop", code, headers=headers)
    return Extension(module.name, (*module.objects, libuv / "build/.libs/libuv.a"))


def _libuv(target: Target) -> Path:
    """Return the directory of the library that uvloop stands on; it brings the source along."""
    pinned = fetch.sources()["uvloop"]
    source = fetch.fetch(pinned)
    return once(
        target.place("libuv", pinned.version),
        lambda place: _build_libuv(target, source / "vendor/libuv", place),
    )


def _build_libuv(target: Target, source: Path, place: Path) -> None:
    print("building libuv", flush=True)
    build = place / "build"
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(source, build)
    # In the order in which they are made from each other; else make runs autotools.
    for name in ("configure.ac", "aclocal.m4", "configure", "Makefile.am", "Makefile.in"):
        (build / name).touch()
    compiler, flags = " ".join(target.compiler), " ".join(target.flags)
    options = ["--quiet", "--disable-shared", "--with-pic", f"CC={compiler}", f"CFLAGS={flags}"]
    if target.is_cross:
        options.append(f"--host={target.triplet}")
    run(["./configure", *options], cwd=build)
    run(["make", f"-j{target.jobs}", "libuv.la"], cwd=build)


def _orjson(target: Target) -> Extension:
    """A static library of Rust. Its crates are part of its source; nothing is fetched."""
    pinned = fetch.sources()["orjson"]
    source = fetch.fetch(pinned)
    rust = _rust_for(target) if target.is_cross else {}
    machine = rust.get("CARGO_BUILD_TARGET", "")

    def compile_all(place: Path) -> None:
        print("compiling orjson", flush=True)
        python = place / "python.txt"
        python.write_text(
            f"implementation=CPython\nversion={SERIES}\nshared=false\nabi3=false\n"
            "suppress_build_script_link_lines=true\n"
        )
        environment = {
            "PYO3_CONFIG_FILE": str(python),
            "CARGO_TARGET_DIR": str(place / "target"),
            "RUSTFLAGS": RUST_FLAGS,
            "CC": " ".join(target.compiler),
            "CFLAGS": " ".join(target.flags),
            **rust,
        }
        cargo = [os.environ.get("CARGO") or "cargo", "rustc", "--offline", "--locked"]
        options = ["--release", "--lib", "--crate-type=staticlib", f"--jobs={target.jobs}"]
        run([*cargo, *options], cwd=source, env=environment)

    place = once(target.place("orjson", pinned.version, SERIES, *rust.values()), compile_all)
    return Extension("orjson.orjson", (place / "target" / machine / "release/liborjson.a",))


def rust_compiler(target: Target) -> str:
    """Return the compiler of Rust."""
    return os.environ.get("RUSTC") or ("/usr/bin/rustc" if target.is_cross else "rustc")


def _rust_for(target: Target) -> dict[str, str]:
    """Return variables by which cargo compiles for another processor: Debian's compiler, which is
    the only one that can read the library of Rust that is fetched.
    """
    machine = f"{MACHINES[target.architecture]}-unknown-linux-gnu"
    library = fetch.fetch(fetch.sources()["rust"], target.architecture)
    return {
        "RUSTC": rust_compiler(target),
        "RUSTFLAGS": f"{RUST_FLAGS} -L {library / 'usr/lib/rustlib' / machine / 'lib'}",
        "CARGO_BUILD_TARGET": machine,
        "HOST_CC": "cc",
        "HOST_CFLAGS": "",
        "AR": target.tool("ar"),
    }


def _tornado(target: Target, interpreter: Interpreter) -> Extension:
    source = fetch.fetch(fetch.sources()["tornado"])
    return _module(target, interpreter, "tornado.speedups", [source / "tornado/speedups.c"])


def _http_parser(target: Target, interpreter: Interpreter) -> Extension:
    source = fetch.fetch(fetch.sources()["httptools"])
    llhttp = source / "vendor/llhttp"
    code = [source / "httptools/parser/parser.c", *sorted((llhttp / "src").glob("*.c"))]
    headers = [llhttp / "include"]
    return _module(target, interpreter, "httptools.parser.parser", code, headers=headers)


def _url_parser(target: Target, interpreter: Interpreter) -> Extension:
    source = fetch.fetch(fetch.sources()["httptools"])
    parser = source / "vendor/http-parser"
    code = [source / "httptools/parser/url_parser.c", parser / "http_parser.c"]
    return _module(target, interpreter, "httptools.parser.url_parser", code, headers=[parser])


def _bcrypt(target: Target, interpreter: Interpreter) -> Extension:
    code = fetch.fetch(fetch.sources()["bcrypt"]) / "src/_csrc"
    sources = [_cythonized("bcrypt"), code / "bcrypt.c", code / "blf.c"]
    return _module(target, interpreter, "bcrypt", sources, headers=[code])


def _openssl_verify(target: Target, interpreter: Interpreter) -> Extension:
    return _module(target, interpreter, "openssl_verify", [_cythonized("openssl_verify")])


def _cythonized(name: str) -> Path:
    """Return the C file of one of our modules that only the executable has."""
    from Cython.Compiler.Main import compile_single
    from Cython.Compiler.Options import CompilationOptions

    source, result = LINKED / f"{name}.pyx", fetch.CACHE / "c" / f"{name}-module.c"
    if not result.exists() or result.stat().st_mtime < source.stat().st_mtime:
        result.parent.mkdir(parents=True, exist_ok=True)
        done = compile_single(
            str(source), CompilationOptions(output_file=str(result)), full_module_name=name
        )
        if done.num_errors:
            raise BuildError(f"{source.name} cannot be cythonized, see above")
    return result


def symbols(path: Path) -> list[str]:
    """Return the names of global symbols that an object defines."""
    command = ["nm", "--defined-only", "--extern-only", "--format=just-symbols", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
