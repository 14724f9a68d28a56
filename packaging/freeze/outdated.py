"""Tells what has been published since sources.toml was written; `python outdated.py` prints it.

A newer version of a package of Debian in the release that it is taken from, or in the security
suite of that, is an error: it is there because something was mended. It is only told of a package
of which nothing gets into the executable, of a newer release on the package index, and of a mirror
that does not answer: what that has is not known then, and no error.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import fetch
import licenses
from fetch import FetchError, Source

ARCHITECTURE = "amd64"
"""Debian publishes an update for all processors at once; one of them is looked at."""
SECURITY = "-security"


class Finding(NamedTuple):
    """One line of the report. `is_error`: what is pinned has a known fault."""

    text: str
    is_error: bool = False


def findings(sources: Iterable[Source]) -> Iterator[Finding]:
    """Give what is to be told of these sources."""
    for source in sources:
        try:
            yield from _of_index(source) if source.kind == "pypi" else _of_debian(source)
        except FetchError as error:
            yield Finding(f"{source.key} {source.version}: not compared: {error}")


def _of_debian(source: Source) -> Iterator[Finding]:
    release = source.suite.removesuffix(SECURITY)
    for suite in (release, release + SECURITY):
        try:
            lists = _lists(suite)
        except FetchError:
            yield Finding(f"{source.key} {source.version}: {suite} does not answer: not compared")
            continue
        for name in source.names or (source.name,):
            newest = source.version
            for version in _versions(lists, name):
                newest = version if _is_newer(version, newest) else newest
            if newest != source.version:
                is_error = source.key not in licenses.NOT_IN_IT
                yield Finding(f"{name} {source.version}: {suite} has {newest}", is_error)


def _of_index(source: Source) -> Iterator[Finding]:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    newest = re.search(r"^\S+ \((\S+)\)$", _said([*pip, source.key]), re.MULTILINE)
    if newest and newest[1] != source.version:
        yield Finding(f"{source.key} {source.version}: the package index has {newest[1]}")


@functools.cache
def _lists(suite: str) -> tuple[str, ...]:
    """Return options of apt by which it knows a suite as it is now. Raises: FetchError."""
    options = fetch.apt_options(suite, ("deb", "deb-src"), ARCHITECTURE)
    # Else it is content with what it has from another day.
    _said(["apt-get", *options, "-o", "APT::Update::Error-Mode=any", "-qq", "update"])
    return tuple(options)


def _versions(lists: tuple[str, ...], name: str) -> Iterator[str]:
    """Give the versions of a package, of its sources and of what was built from them.

    A fix may be published without its sources, where a mirror has none of them.
    """
    for command in ("show", "showsrc"):
        # It fails for a package that is not there: that is no version, too.
        done = subprocess.run(
            ["apt-cache", *lists, command, name], capture_output=True, text=True, check=False
        )
        for paragraph in done.stdout.split("\n\n"):
            # Asked for sources, apt also shows those that something of this name was built from.
            if re.match(f"Package: {re.escape(name)}\n", paragraph):
                yield from re.findall(r"^Version: (.+)$", paragraph, re.MULTILINE)


def _is_newer(version: str, than: str) -> bool:
    command = ["dpkg", "--compare-versions", version, "gt", than]
    return subprocess.run(command, check=False).returncode == 0


def _said(command: list[str]) -> str:
    """Return what a command prints. Raises: FetchError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FetchError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise FetchError(f"{command[0]}: {last}")
    return done.stdout


def main() -> int:
    """Print the report. Returns: 1 if something that was mended is not taken, else 0."""
    failed = False
    for finding in findings(fetch.sources().values()):
        failed = failed or finding.is_error
        print(f"Error: {finding.text}" if finding.is_error else finding.text, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
