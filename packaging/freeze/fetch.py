"""Fetches what sources.toml names, checks it, and unpacks it below build/freeze.

Downloads are made by the ordinary clients, pip and apt-get, which know mirrors and proxies of this
machine; what they bring is used only if its SHA-256 is the one of sources.toml. A file that is
there is not fetched again, so a machine without a network can be given build/freeze/downloads, or
vendor/, where the source package for Debian has them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build" / "freeze"
VENDOR = ROOT / "vendor"
DOWNLOADS = VENDOR if VENDOR.is_dir() else CACHE / "downloads"
PURE = ["--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none"]
"""Options of pip that choose a wheel with nothing but Python in it."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the processors that there is an executable for, by those of the kernel."""
HOST = ARCHITECTURES.get(platform.machine(), platform.machine())
OURS = ("cext", "lavinmq", "packaging/freeze")
"""Directories with what the executable is made of, besides setup.py."""
APT_OPTIONS = ("Dir::Etc::sourceparts=-", "Dir::State::status=/dev/null", "APT::Sandbox::User=root")


class FetchError(Exception):
    """A source cannot be had as sources.toml wants it; one line for the person who builds."""


class ChecksumError(FetchError):
    """What was fetched is not what sources.toml names: an error there, or a changed file."""


@dataclass(frozen=True, slots=True)
class Source:
    """One table of sources.toml."""

    key: str
    kind: str
    version: str
    license: str
    sha256: dict[str, str]
    part: str = "executable"
    form: str = ""
    suite: str = ""
    name: str = ""
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def files(self, architecture: str) -> dict[str, str]:
        """Return the checksums of its files by name. Raises: FetchError if there are none."""
        if self.kind != "deb":
            return self.sha256
        endings = (f"_{architecture}.deb", "_all.deb")
        files = {name: digest for name, digest in self.sha256.items() if name.endswith(endings)}
        if not files:
            raise FetchError(f"sources.toml does not have {self.key} for {architecture}")
        return files


def sources() -> dict[str, Source]:
    """Return what sources.toml says, by key."""
    with (HERE / "sources.toml").open("rb") as file:
        tables = tomllib.load(file)
    return {
        key: Source(
            key=key,
            **{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()},
        )
        for key, table in tables.items()
    }


def digest() -> str:
    """Return a number of all our files that the executable is made of."""
    found = hashlib.sha256((ROOT / "setup.py").read_bytes())
    for path in sorted(path for place in OURS for path in (ROOT / place).rglob("*")):
        if path.is_file() and path.suffix not in (".so", ".pyc"):
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def fetch(source: Source, architecture: str = HOST) -> Path:
    """Return the directory that a source is unpacked in. Raises: FetchError, ChecksumError.

    Args: architecture: of packages; Debian's name.
    """
    files = source.files(architecture)
    kind = f"-{architecture}" if source.kind == "deb" else ""
    place = CACHE / "sources" / f"{source.key}-{source.version.replace(':', '_')}{kind}"
    with alone(place):
        if not (place / ".unpacked").exists():
            _have(source, files, architecture, place)
    return place


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """Wait for who else makes this directory, such as a build for another processor."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _have(source: Source, files: dict[str, str], architecture: str, place: Path) -> None:
    """Download a source where it is not there, check it, and unpack it."""
    if not all(_is_good(*file) for file in files.items()):
        _download(source, architecture)
    for name, digest in files.items():
        if not (DOWNLOADS / name).exists():
            raise FetchError(f"{name}: not among what was fetched")
        if not _is_good(name, digest):
            raise ChecksumError(f"{name}: not the file that sources.toml names")
    shutil.rmtree(place, ignore_errors=True)
    _unpack(source, [DOWNLOADS / name for name in files], place)
    (place / ".unpacked").touch()


def _is_good(name: str, digest: str) -> bool:
    path = DOWNLOADS / name
    if not path.exists():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _download(source: Source, architecture: str) -> None:
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    print(f"fetching {source.key} {source.version}", flush=True)
    if source.kind == "pypi":
        form = ["--no-binary", source.key] if source.form == "sdist" else PURE
        requirement = f"{source.key}=={source.version}"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        _run([*pip, "--no-deps", *form, "--dest", str(DOWNLOADS), requirement])
        return
    options = apt_options(
        source.suite, ["deb-src" if source.kind == "source" else "deb"], architecture
    )
    _run(["apt-get", *options, "update", "-qq"])
    if source.kind == "source":
        package = f"{source.name}={source.version}"
        _run(["apt-get", *options, "-qq", "source", "--download-only", package])
    else:
        packages = [f"{name}={source.version}" for name in source.names]
        _run(["apt-get", *options, "-qq", "download", *packages])


def apt_options(suite: str, words: Sequence[str], architecture: str) -> list[str]:
    """Return options that make apt-get know one suite for one architecture, and nothing else.

    Args: words: of its list of sources, "deb" and "deb-src". Raises: FetchError.
    """
    state = CACHE / "apt" / "-".join((suite, *words, architecture))
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    lines = [f"{word} {_mirror(suite)} {suite} main\n" for word in words]
    (state / "sources.list").write_text("".join(lines))
    places = (f"Dir::Etc::sourcelist={state}/sources.list", f"Dir::State::lists={state}/lists")
    kinds = (f"APT::Architecture={architecture}", f"APT::Architectures={architecture}")
    return [
        word
        for option in (*places, *kinds, f"Dir::Cache={state}/cache", *APT_OPTIONS)
        for word in ("-o", option)
    ]


def _mirror(suite: str) -> str:
    """Return the mirror that this machine has of Debian. Raises: FetchError."""
    is_security = suite.endswith("-security")
    for line in _output(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)"]):
        uri, _, origin = line.partition(" ")
        if origin == ("Debian Debian-Security" if is_security else "Debian Debian"):
            return uri
    raise FetchError("no mirror of Debian is configured on this machine (or: apt-get update)")


def _unpack(source: Source, names: list[Path], place: Path) -> None:
    """Unpack the files of a source so that what they hold is directly below `place`."""
    if source.kind == "source":
        description = next(name for name in names if name.suffix == ".dsc")
        _run(["dpkg-source", "--no-check", "--extract", str(description), str(place)])
        return
    place.mkdir()
    for name in names:
        if source.kind == "deb":
            _run(["dpkg-deb", "--extract", str(name), str(place)])
        elif name.suffix == ".whl":
            with zipfile.ZipFile(name) as wheel:
                wheel.extractall(place)
        else:
            with tarfile.open(name) as archive:
                # Debian 12's Python has no filters yet; the checksum says what is in it.
                if hasattr(tarfile, "data_filter"):
                    archive.extraction_filter = tarfile.data_filter
                archive.extractall(place)
            (top,) = place.iterdir()
            for path in top.iterdir():
                path.rename(place / path.name)
            top.rmdir()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=DOWNLOADS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        raise FetchError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        raise FetchError(f"{' '.join(command[:2])} ... failed, see above")


def _output(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FetchError(f"{command[0]} cannot be run: {error}") from error
    return done.stdout.splitlines()
