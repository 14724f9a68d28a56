"""Builds dist/lavinmq: one executable that holds the broker, its tools, and all they need.

    python packaging/freeze/build.py [--base native|2.31] [--release] [--arch arm64] [--jobs 2]
        [--profile dist/lavinmq.profile.tar.xz]

Order: sources (fetch.py), interpreter, compiled modules (extensions.py), Python modules
(collect.py), then the link. What does not need each other is built at the same time. All but the
last two steps is kept in build/freeze and done once. Beside it are written dist/lavinmqctl and
dist/lavinmqperf, links to it; dist/lavinmq.json, what it is made of; dist/lavinmq.debug, what tells
debuggers of lines; of a release also what it was trained by (profiles.py); and dist/licenses. What
is for another processor than this machine's has the same names below dist/arm64. Why this form:
decision record 0022.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import contents
import extensions
import fetch
import flow
import interpreter
import licenses
import parts
import profiles
import sysroot
import training
from extensions import Extension
from fetch import ARCHITECTURES, HERE, HOST, ROOT, ChecksumError, FetchError
from interpreter import Interpreter
from toolchain import BASES, BuildError, Target, once, run, side_by_side

DIST = ROOT / "dist"
PROGRAMS = ("lavinmq", "lavinmqctl", "lavinmqperf")
NOT_FETCHED = 75
"""Exit code when a source cannot be had; nothing of ours is broken then."""


def main() -> int:
    """Build what the command line asks for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", choices=BASES, help="the C library")
    parser.add_argument("--release", action="store_true", help="optimise by a profile: slow")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="what a release was trained by, to have it again",
    )
    parser.add_argument("--arch", choices=ARCHITECTURES.values(), default=HOST, help="processor")
    parser.add_argument("--fetch", action="store_true", help="fetch the sources, build nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    # An exception reaches the step that runs: it is not in our group, and would go on by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    base = options.base or ("native" if options.arch == HOST else "2.31")
    target = Target(base, options.release or bool(options.profile), options.jobs, options.arch)
    try:
        if options.fetch:
            _fetch(target)
            return 0
        executable = build(target, options.profile)
    except FetchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1 if isinstance(error, ChecksumError) else NOT_FETCHED
    except BuildError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"{executable.relative_to(ROOT)}: {executable.stat().st_size / 1e6:.1f} MB")
    return 0


def _fetch(target: Target) -> None:
    """Have all sources here, so that a build needs nothing from elsewhere. Raises: FetchError."""
    for source in licenses.linked(target, fetch.sources()):
        fetch.fetch(source, target.architecture)
    if target.base != "native":
        sysroot.build(target.architecture)


def build(target: Target, packed: Path | None = None) -> Path:
    """Build the executable and what stands beside it.

    Args: packed: what a release was trained by; it is not trained then.
    Raises: BuildError, FetchError.
    """
    if target.is_cross and target.base == "native":
        raise BuildError("there is no C library of this machine for another processor: BASE=2.31")

    def train(counting: Interpreter) -> None:
        linked = extensions.build(target, counting)
        executable = _assemble(target, counting, linked, counting.built / "executable")
        training.train(target.runner, counting.built / "python", executable)

    _fetch(target)
    try:
        profile = profiles.unpack(packed, target.cache / "profile") if packed else None
    except (OSError, tarfile.TarError, lzma.LZMAError) as error:
        raise BuildError(f"{packed} cannot be read: {error}") from error
    by = (Path(training.__file__), training.TASK)
    if not target.is_release:
        # Where a single program goes on for long, as configure does, another one has work, too.
        kept = partial(interpreter.build, target, train, by)
        side_by_side([kept, *extensions.ahead(target)], target.jobs)
    python = interpreter.build(target, train, by, profile)
    if target.is_release and not profile:
        profile = profiles.read(python.built, _trained(target, python))
        interpreter.remember(target, python, profile)
    place = target.cache / ("release" if target.is_release else "plain")
    linked = extensions.build(target, python, profile.modules if profile else None)
    built = _assemble(target, python, linked, place)
    details = place / "lavinmq.debug"
    objcopy = target.tool("objcopy")
    run([objcopy, "--only-keep-debug", "--compress-debug-sections", str(built), str(details)])
    # The names of functions stay, for profilers and for traces of crashes.
    run([objcopy, "--strip-debug", str(built)])
    output = DIST / target.architecture if target.is_cross else DIST
    output.mkdir(parents=True, exist_ok=True)
    # A running program must not see its own file change.
    executable = output / "lavinmq"
    executable.unlink(missing_ok=True)
    shutil.copy2(built, executable)
    for name in PROGRAMS[1:]:
        (output / name).unlink(missing_ok=True)
        (output / name).symlink_to("lavinmq")
    shutil.copy2(details, output)
    (output / profiles.NAME).unlink(missing_ok=True)
    if profile:
        profile.pack(output / profiles.NAME)
    licenses.collect(target, output / "licenses")
    (output / "lavinmq.json").write_text(json.dumps(_description(target, executable), indent=2))
    return executable


def _trained(target: Target, python: Interpreter) -> dict[str, list[Path]]:
    """Return what our modules have counted after messages have flown through them."""
    counting = extensions.counting(target, python)

    def train(place: Path) -> None:
        print("training our modules", flush=True)
        for path in (path for module in counting for path in module.counts):
            path.unlink(missing_ok=True)
        ours = {module.name: module for module in counting}
        linked = [ours.get(module.name, module) for module in extensions.build(target, python)]
        options = (*python.link_options, *extensions.COUNT)
        executable = _assemble(target, replace(python, link_options=options), linked, place)
        flow.train(target.runner, executable)

    objects = (str(path) for module in counting for path in module.objects)
    once(target.place("flow", Path(flow.__file__), *objects), train)
    return {module.name: module.counts for module in counting}


def _assemble(target: Target, python: Interpreter, linked: list[Extension], place: Path) -> Path:
    """Make the executable of an interpreter, in a directory. Raises: BuildError, FetchError."""
    place.mkdir(parents=True, exist_ok=True)
    _collect(python, linked, place)
    _prepare(target, python, linked, place)
    return _link(target, python, linked, place / "lavinmq")


def _collect(python: Interpreter, linked: list[Extension], place: Path) -> None:
    """Make the table of Python modules."""
    sources = fetch.sources()
    source = {
        name: str(fetch.fetch(sources[name]))
        for name in ("uvloop", "orjson", "tornado", "httptools", "PyJWT")
    }
    wanted = {
        "places": {
            "": str(python.source / "Lib"),
            "boot": str(HERE), "selftest": str(HERE), "assets": str(HERE), "prepared": str(HERE),
            "finder": str(HERE), "later": str(HERE),
            "lavinmq": str(ROOT),
            "uvloop": source["uvloop"], "orjson": source["orjson"] + "/pysrc",
            "tornado": source["tornado"], "httptools": source["httptools"],
            "jwt": source["PyJWT"],
        },
        "roots": contents.ROOTS,
        "replaced": {
            "lavinmq.auth.signatures": str(extensions.LINKED / "signatures.py"),
            "sysconfig": str(extensions.LINKED / "sysconfig.py"),
        },
        "linked": [extension.name for extension in linked],
        "excluded": contents.EXCLUDED,
        "documented": contents.DOCUMENTED,
        "with_data": contents.WITH_DATA,
        "appended": contents.APPENDED,
        "postponed": contents.POSTPONED,
    }  # fmt: skip
    done = subprocess.run(
        [*python.python, str(HERE / "collect.py"), str(place)],
        input=json.dumps(wanted), text=True, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BuildError("the modules of Python cannot be collected, see above")
    print(done.stdout, end="", flush=True)


def _prepare(target: Target, python: Interpreter, linked: list[Extension], place: Path) -> None:
    """Make the module `prepared_data`, by an executable that is without it. Raises: BuildError."""
    data, row = place / "prepared.bin", place / "prepared.h"
    data.write_bytes(b"")
    row.write_text("")
    recorder = _link(target, python, linked, place / "recorder", "-DRECORDER")
    with (HERE / "record.py").open("rb") as program:
        command = [*target.runner, str(recorder), *contents.PREPARED]
        done = subprocess.run(command, stdin=program, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildError("what imports compile cannot be compiled beforehand, see above")
    data.write_bytes(done.stdout)
    row.write_text(f'    {{"prepared_data", prepared, {len(done.stdout)}, false}},\n')


def _link(
    target: Target, python: Interpreter, linked: list[Extension], result: Path, *options: str
) -> Path:
    """Link an executable. Args: options: for main.c. Raises: BuildError."""
    place = result.parent
    lines = [f'MODULE("{module.name}", {module.init})' for module in linked]
    (place / "linked.h").write_text("\n".join([*lines, ""]))
    includes = [*python.includes, f"-I{place}"]
    objects = [target.compile(HERE / "main.c", place / "main.o", *includes, *options)]
    # The assembler looks for the byte code where it is started.
    table = [*target.compiler, *target.flags, *includes, "-c", "frozen.c", "-o", "frozen.o"]
    run(table, cwd=place)
    objects.append(place / "frozen.o")
    objects += [path for module in linked for path in module.objects]
    whole, *archives = python.objects
    run(
        [
            # The whole is optimised already; libraries beside it would be compiled again here, and
            # name this directory.
            *target.compiler, *python.link_options, "-fno-lto", "-o", str(result), "-pie",
            "-static-libgcc",
            "-Wl,-z,relro,-z,now,-z,noexecstack,-z,separate-code",
            "-Wl,--gc-sections,--build-id,--as-needed",
            *map(str, objects),
            "-Wl,--whole-archive", str(whole), "-Wl,--no-whole-archive", *map(str, archives),
            "-Wl,-Bstatic", "-lssl", "-lcrypto", *_packers(target), "-lz", "-lffi", "-lpcre2-8",
            "-llz4",
            "-Wl,-Bdynamic",
            "-lm", "-ldl", "-lpthread", "-lutil", "-lrt",
        ]
    )  # fmt: skip
    return result


def _packers(target: Target) -> list[str]:
    """Return what OpenSSL needs besides zlib: Debian 12's own is without Zstandard."""
    asked = [*target.compiler, "-print-file-name=libzstd.a"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return ["-lzstd"] if Path(found.strip()).is_absolute() else []


def _description(target: Target, executable: Path) -> dict[str, object]:
    """Say what the executable is, for those who package it."""
    asked = [*target.runner, str(executable), "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True)
    return {
        "version": version.stdout.strip(),
        "arch": target.architecture,
        "base": target.base,
        "glibc": _newest_symbol(target, executable),
        "release": target.is_release,
        "sources": fetch.digest(),
        "size": executable.stat().st_size,
        "built_with": _tools(target),
        "contains": {
            source.key: source.version for source in licenses.linked(target, fetch.sources())
        },
        "parts": [part._asdict() for part in parts.inside(target)],
    }


def _tools(target: Target) -> dict[str, str]:
    """Return the versions of the programs that made it; of Debian's also its own number."""
    import Cython

    rust = extensions.rust_compiler(target)
    asked = {
        "gcc": [*target.compiler[:1], "--version"],
        "binutils": [target.tool("ld"), "--version"],
        "rustc": [rust, "--version"],
    }
    said = {
        name: subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, command in asked.items()
    }
    told = {name: text.partition("\n")[0].partition(" ")[2] for name, text in said.items()}
    return {**told, "cython": Cython.__version__}


def _newest_symbol(target: Target, executable: Path) -> str:
    """Return the version of glibc that the executable needs at least."""
    command = [target.tool("objdump"), "--dynamic-syms", executable]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(
        re.findall(r"GLIBC_([\d.]+)", symbols),
        key=lambda version: [int(part) for part in version.split(".")],
    )


if __name__ == "__main__":
    sys.exit(main())
