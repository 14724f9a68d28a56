"""Interpreters to try the client with: how they are configured, and that half of one is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging"))
import interpreters

CONFIGURE = """#!/bin/sh
echo "$@" > options
for each; do case $each in --prefix=*) prefix=${each#--prefix=};; esac; done
cat > Makefile <<END
all:
	echo built
install:
	test ! -e $prefix.broken
	mkdir -p $prefix/bin
	cp options $prefix/options
	printf '#!/bin/sh\\nexit 0\\n' > $prefix/bin/python$NAME
	chmod +x $prefix/bin/python$NAME
END
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where interpreters go, from sources that are a few lines of shell."""
    tree = tmp_path / "sources"
    tree.mkdir()
    (tree / "configure").write_text(CONFIGURE)
    (tree / "configure").chmod(0o755)
    known = tree / interpreters.SUPPRESSIONS
    known.parent.mkdir(parents=True)
    known.write_text("race:theirs\n")
    monkeypatch.setattr(interpreters, "PLACE", tmp_path / "interpreters")
    monkeypatch.setattr(interpreters.fetch, "ROOT", tmp_path)
    monkeypatch.setattr(interpreters, "_sources", lambda version: tree)
    return tmp_path / "interpreters"


@pytest.mark.parametrize(
    ("name", "sanitizer", "wanted"),
    [
        ("3.13", "", set()),
        ("3.14t", "", {"--disable-gil"}),
        ("3.13t", "tsan", {"--disable-gil", "--with-thread-sanitizer"}),
    ],
)
def test_an_interpreter_is_what_its_name_says(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, sanitizer: str, wanted: set[str]
) -> None:
    monkeypatch.setenv("NAME", name)
    program = interpreters.build(name, sanitizer, 1)

    options = set((program.parents[1] / "options").read_text().split())
    assert program == place / (f"{name}-{sanitizer}" if sanitizer else name) / f"bin/python{name}"
    assert options & {"--disable-gil", "--with-thread-sanitizer"} == wanted
    assert (program.parents[1] / "tsan-suppressions.txt").read_text() == "race:theirs\n"


def test_half_of_one_is_built_again_and_a_whole_one_is_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "3.13t")
    place.mkdir()
    broken = place / "3.13t.broken"
    broken.touch()
    with pytest.raises(subprocess.CalledProcessError):
        interpreters.build("3.13t", "", 1)
    broken.unlink()
    program = interpreters.build("3.13t", "", 1)
    when = program.stat().st_mtime_ns

    assert interpreters.build("3.13t", "", 1) == program
    assert program.stat().st_mtime_ns == when
