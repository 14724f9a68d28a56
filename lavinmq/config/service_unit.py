"""Where the service of this host may write, as far as its systemd unit says so.

Read by ``check.py``: a directory outside is refused by the kernel only when the service
runs, and the check of a configuration would not notice. Nothing is asked of systemd itself.
Source: systemd.unit(5), systemd.exec(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

DIRECTORIES: Final = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
"""Where units are, the strongest first."""
BOOTED: Final = "/run/systemd/system"
"""It is there where systemd runs the machine."""
NAME: Final = "lavinmq.service"
CONFIG_FILE: Final = "/etc/lavinmq/lavinmq.ini"
ROOTS: Final = {
    "StateDirectory": "/var/lib", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log",
    "CacheDirectory": "/var/cache", "ReadWritePaths": "",
}  # fmt: skip
TRUE_WORDS: Final = ("1", "yes", "true", "on", "disconnected")
_CONFIG: Final = re.compile(r"(?:-c|--config)[ =](\S+)")


class ServiceUnit:
    """A unit with its drop-ins: the settings of `[Service]` in their order."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._values: dict[str, list[str]] = {}
        for text in texts:
            for key, value in _settings(text):
                if value:
                    self._values.setdefault(key, []).append(value)
                else:
                    self._values.pop(key, None)  # what was said before does not count

    @property
    def config_file(self) -> str:
        """The ini file with which it starts the broker."""
        found = _CONFIG.search(self._last("ExecStart"))
        return found[1] if found else CONFIG_FILE

    @property
    def user(self) -> str:
        """Who runs it; empty: root."""
        return self._last("User")

    @property
    def hides_tmp(self) -> bool:
        """Whether what it makes in /tmp is seen by nobody else."""
        return self._last("PrivateTmp") in TRUE_WORDS

    def may_write(self, path: str) -> bool:
        """Whether it may write at an absolute path, apart from who owns what is there."""
        if self._last("ProtectHome") in TRUE_WORDS and _is_in(path, ("/home", "/root")):
            return False
        return self._last("ProtectSystem") != "strict" or _is_in(path, self._writable())

    def _writable(self) -> list[str]:
        found = ["/dev", "/proc", "/sys"] + ["/tmp", "/var/tmp"] * self.hides_tmp
        for key, root in ROOTS.items():
            for value in self._values.get(key, ()):
                found += [os.path.join(root or "/", each.lstrip("-+")) for each in value.split()]
        return found

    def _last(self, key: str) -> str:
        return self._values.get(key, [""])[-1]


def installed(directories: Sequence[str] = DIRECTORIES, booted: str = BOOTED) -> ServiceUnit | None:
    """The unit of this host; None where there is none, or no systemd."""
    if not os.path.isdir(booted):
        return None
    here = [Path(directory) for directory in directories]
    main = next((path / NAME for path in here if (path / NAME).is_file()), None)
    if main is None:
        return None
    drop_ins: dict[str, Path] = {}
    for directory in reversed(here):  # of two with one name the stronger counts
        drop_ins |= {path.name: path for path in (directory / f"{NAME}.d").glob("*.conf")}
    paths = [main, *(drop_ins[name] for name in sorted(drop_ins))]
    return ServiceUnit([_read(path) for path in paths])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _settings(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        content = line.strip()
        if content.startswith("["):
            section = content
        elif section == "[Service]" and content[:1] not in ("#", ";", ""):
            key, _, value = content.partition("=")
            yield key.strip(), value.strip()


def _is_in(path: str, directories: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(
        os.path.commonpath((real, os.path.realpath(directory))) == os.path.realpath(directory)
        for directory in directories
    )
