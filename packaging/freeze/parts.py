"""What the components of the executable bring along of others, by the sources of these.

uvloop has libuv in it, httptools two parsers, orjson its crates, yyjson and Rust's library, CPython
what its own list names. Whoever looks for a fault in one of these asks the bill of materials
(packaging/sbom.py) for it by its own name.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import extensions
import fetch
from toolchain import BuildError, Target

PYTHONS = {"mpdecimal": "BSD-2-Clause", "hacl-star": "MIT", "libb2": "CC0-1.0"}
"""What is linked of what CPython's sources list, with the licence that they do not tell."""

OF_RUST = ("COPYRIGHT-library.html", "licenses/MIT.txt", "licenses/Apache-2.0.txt")
"""Licences of Rust's library, where its makers put them beside the compiler."""


class Part(NamedTuple):
    """Something of others in a component. `of` is the component, a key of sources.toml."""

    name: str
    version: str
    license: str
    of: str
    kind: str = "generic"
    """The type of its package URL."""


def inside(target: Target) -> list[Part]:
    """Return what is in what is linked. Raises: BuildError, FetchError."""
    found = {*_of_uvloop(), *_of_httptools(), *_of_python(), *_of_orjson(), *_of_rust(target)}
    return sorted(found)


def _of_uvloop() -> Iterator[Part]:
    source = fetch.fetch(fetch.sources()["uvloop"])
    header = source / "vendor/libuv/include/uv/version.h"
    yield Part("libuv", _told_by(header, "UV_VERSION"), "MIT", "uvloop")


def _of_httptools() -> Iterator[Part]:
    vendored = fetch.fetch(fetch.sources()["httptools"]) / "vendor"
    for name, header, macro in (
        ("llhttp", "llhttp/include/llhttp.h", "LLHTTP_VERSION"),
        ("http-parser", "http-parser/http_parser.h", "HTTP_PARSER_VERSION"),
    ):
        yield Part(name, _told_by(vendored / header, macro), "MIT", "httptools")


def _told_by(header: Path, macro: str) -> str:
    """Return a version by the macros of a header. Raises: BuildError."""
    found = re.findall(
        rf"^#\s*define {macro}_(?:MAJOR|MINOR|PATCH)\s+(\d+)$", header.read_text(), re.MULTILINE
    )
    if len(found) != 3:
        raise BuildError(f"{header.name} does not tell its version")
    return ".".join(found)


def _of_python() -> Iterator[Part]:
    source = fetch.fetch(fetch.sources()["python"])
    listed = json.loads((source / "Misc/sbom.spdx.json").read_text())["packages"]
    versions = {package["name"]: package["versionInfo"] for package in listed}
    for name, said in PYTHONS.items():
        yield Part(name, versions[name], said, "python")


def _of_orjson() -> Iterator[Part]:
    source = fetch.fetch(fetch.sources()["orjson"])
    text = (source / "include/yyjson/yyjson.h").read_text()
    found = re.search(r'^#define YYJSON_VERSION_STRING "(.+)"$', text, re.MULTILINE)
    if not found:
        raise BuildError("yyjson does not tell its version")
    yield Part("yyjson", found[1], "MIT", "orjson")
    yield from crates(source)


def crates(source: Path) -> set[Part]:
    """Return the crates that a vendored program is linked with, not those that only build it."""
    vendored = {}
    for manifest in source.glob("include/cargo/*/Cargo.toml"):
        described = tomllib.loads(manifest.read_text())
        vendored[described["package"]["name"]] = described
    found: set[Part] = set()
    ahead = [tomllib.loads((source / "Cargo.toml").read_text())]
    while ahead:
        for name in _needs(ahead.pop()):
            package = vendored.get(name, {}).get("package")  # those of other systems are not there
            part = package and Part(name, package["version"], package["license"], "orjson", "cargo")
            if part and part not in found:
                found.add(part)
                ahead.append(vendored[name])
    return found


def _needs(described: dict[str, dict[str, object]]) -> Iterator[str]:
    """Return the names of what a crate is always linked with."""
    tables = [described, *described.get("target", {}).values()]
    for table in tables:
        assert isinstance(table, dict)
        for name, said in table.get("dependencies", {}).items():
            if not (isinstance(said, dict) and said.get("optional")):
                yield said.get("package", name) if isinstance(said, dict) else name


def _of_rust(target: Target) -> Iterator[Part]:
    """Return Rust's library where it is the compiler's own; of another processor it is pinned."""
    if target.is_cross:
        return
    command = [extensions.rust_compiler(target), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    yield Part("rust", said.split()[1], fetch.sources()["rust"].license, "orjson")


def texts_of_rust(target: Target) -> list[Path]:
    """Return the licences of Rust's library, as they came with the compiler. Raises: BuildError."""
    command = [extensions.rust_compiler(target), "--print", "sysroot"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = Path(said.strip(), "share/doc/rust")  # as its makers ship it
    found = [own / name for name in OF_RUST]
    if not found[0].exists():
        found = sorted(Path("/usr/share/doc").glob("libstd-rust*-dev/copyright"))[:1]
    if not found:
        raise BuildError("the licence of Rust's library was not found beside its compiler")
    return found
