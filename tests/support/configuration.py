"""Fixtures that load a configuration from texts alone, so that nothing of the machine is read.

Used by the unit tests of the configuration; a test file imports the fixtures it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lavinmq.config.setting_types import BACKENDS, NETWORKS, ORIGINS, TLS_VERSION, URL
from lavinmq.config.settings import Setting
from lavinmq.config.values import Config, load

HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"
EXAMPLES = {
    BACKENDS: "local",
    NETWORKS: "::1",
    ORIGINS: "*",
    TLS_VERSION: "1.2",
    URL: "https://example.com",
}
Loader = Callable[..., Config]


@pytest.fixture
def load_ini(tmp_path: Path) -> Loader:
    """Loads a text as the ini file; nothing of the machine is read."""

    def load_text(text: str | bytes, *argv: str, **environ: str) -> Config:
        path = tmp_path / "lavinmq.ini"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": str(tmp_path), **environ})

    return load_text


@pytest.fixture
def load_bare(tmp_path: Path) -> Loader:
    """Loads without an ini file."""

    def load_arguments(*argv: str, **environ: str) -> Config:
        return load(argv, {"LAVINMQ_CONFIGURATION_DIRECTORY": str(tmp_path), **environ})

    return load_arguments


def accepted(setting: Setting) -> str:
    """Return a text the setting takes that is not empty."""
    if setting.default:
        return setting.default
    if setting.kind.name.startswith("integer"):
        return "4096"
    return EXAMPLES.get(setting.kind, "text")
