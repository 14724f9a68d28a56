"""What the training of a release has counted, kept as one file: with it, a release is built again.

Counts depend on time, and what the compiler makes depends on the counts. Whoever has the file, the
sources and the same compilers gets the same bytes, and needs no training.
"""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "lavinmq.profile.tar.xz"
INTERPRETER, MODULES = "interpreter", "modules"


@dataclass(frozen=True, slots=True)
class Profile:
    """Files of counts: of the interpreter, by their places in it; of our modules, by these."""

    interpreter: Mapping[str, Path]
    modules: Mapping[str, Sequence[Path]]

    def lay_out(self, built: Path) -> None:
        """Put the interpreter's where its compiler looks for them."""
        for name, path in self.interpreter.items():
            (built / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, built / name)

    def pack(self, output: Path) -> None:
        """Write them to a file, which is the same for the same counts."""
        named = {f"{INTERPRETER}/{name}": path for name, path in self.interpreter.items()}
        for module, paths in self.modules.items():
            named |= {f"{MODULES}/{module}/{path.name}": path for path in paths}
        with lzma.open(output, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for name, path in sorted(named.items()):
                content = path.read_bytes()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def unpack(packed: Path, place: Path) -> Profile:
    """Read such a file into a directory, made anew. Raises: OSError, TarError, LZMAError."""
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(packed) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian 12's Python has none yet
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(place)
    return read(place / INTERPRETER, {
        path.name: sorted(path.iterdir()) for path in sorted((place / MODULES).glob("*"))
    })  # fmt: skip


def read(interpreter: Path, modules: Mapping[str, Sequence[Path]]) -> Profile:
    """Return the counts below the directory of an interpreter, and those of our modules."""
    counts = sorted(interpreter.rglob("*.gcda"))
    return Profile({str(path.relative_to(interpreter)): path for path in counts}, modules)
