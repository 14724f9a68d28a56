"""What is fuzzed: one module for each parser, with `opened(directory)`.

That is a context manager; what it gives is called with any bytes, as often as one likes, and
raises whenever the parser does anything but take them or refuse them as it says it does. The
directory belongs to the target. Used by `tests/fuzz/run.py` and `tests/fuzz/test_targets.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

NAMES = (
    "client", "dedup", "definitions", "deliveries", "documents", "fieldtable", "frames", "ini",
    "methods", "mqtt", "mqtt_packets", "passwords", "policies", "proxy", "retained", "scan",
    "scopes", "segments", "sessions", "tokens", "users", "vhosts",
)  # fmt: skip
FUZZ = Path(__file__).resolve().parents[1]

Target = Callable[[bytes], None]


def opened(name: str, directory: Path) -> AbstractContextManager[Target]:
    """Return the target of this name, working below `directory`, which exists."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    context: AbstractContextManager[Target] = module.opened(directory)
    return context


def inputs(name: str) -> list[Path]:
    """Return the files of the seed corpus and those that were found to break something once."""
    folders = (FUZZ / "corpus" / name, FUZZ / "found" / name)
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())
