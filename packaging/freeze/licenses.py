"""Collects the licences of everything that is in the executable, with an index of what it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import fetch
import parts
from fetch import ROOT, Source
from toolchain import BuildError, Target

VENDORED = ROOT / "lavinmq/http/ui/static/vendor"
NOT_IN_IT = ("kernel-headers", "libcrypt", "glibc")
SYSTEM = {
    "openssl": "libssl-dev", "zlib": "zlib1g-dev", "libffi": "libffi-dev",
    "pcre2": "libpcre2-dev", "lz4": "liblz4-dev", "libgcc": "",
    "zstd": "",
}  # fmt: skip
"""Packages of Debian whose static libraries are linked when the C library is this machine's; for
some there is none."""

HEAD = """\
What this executable contains besides LavinMQ's own code (Apache-2.0, see LICENSE).

The sources of each are what Debian and the Python Package Index publish under these names and
versions, unchanged except for Debian's own patches; checksums are in packaging/freeze/sources.toml.
The source of uplot is what npm publishes under that name and version (packaging/vendor.sh).
That is also where the source of orjson, under the Mozilla Public License 2.0, can be had.

"""


def linked(target: Target, sources: dict[str, Source]) -> list[Source]:
    """Return what is in the executable."""
    return [
        source
        for key, source in sources.items()
        if source.part == "executable"
        and key not in NOT_IN_IT
        and not (target.base == "native" and key in SYSTEM)
        and not (key == "rust" and not target.is_cross)
    ]


def collect(target: Target, place: Path) -> None:
    """Write the texts to a directory, one for each component. Raises: BuildError, FetchError."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy2(ROOT / "LICENSE", place)
    rows = [("component", "version", "licence")]
    for source in linked(target, fetch.sources()):
        unpacked = fetch.fetch(source, target.architecture)
        texts = [path for pattern in source.texts for path in unpacked.glob(pattern)]
        if not texts:
            raise BuildError(f"{source.key}: its licence was not found")
        for text in filter(Path.is_file, texts):
            copy = place / source.key / text.relative_to(unpacked)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(text, copy)
        rows.append((source.key, source.version, source.license))
    rows.append(_of_pages(place))
    if not target.is_cross:
        (place / "rust").mkdir()
        for text in parts.texts_of_rust(target):
            shutil.copy2(text, place / "rust")
    for part in parts.inside(target):
        rows.append((part.name, part.version, f"{part.license}; in {part.of}"))
    if target.base == "native":
        rows += [_of_system(key, package, place) for key, package in SYSTEM.items() if package]
    table = "".join(f"{a:<17} {b:<23} {c}\n" for a, b, c in rows)
    (place / "README").write_text(HEAD + table)


def _of_pages(place: Path) -> tuple[str, str, str]:
    """Copy the licence of what others have written for the management pages."""
    (place / "uplot").mkdir()
    shutil.copy2(VENDORED / "uplot-license.txt", place / "uplot" / "LICENSE")
    head = (VENDORED / "uplot.js").read_text().partition("\n")[0]
    return "uplot", head.partition("(v")[2].partition(")")[0], "MIT"


def _of_system(key: str, package: str, place: Path) -> tuple[str, str, str]:
    """Copy the licence of a library that this machine has installed."""
    text = Path("/usr/share/doc", package, "copyright")
    if text.exists():
        (place / key).mkdir()
        shutil.copy2(text, place / key)
    asked = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except OSError:
        version = ""
    return key, version or "of this machine", fetch.sources()[key].license
