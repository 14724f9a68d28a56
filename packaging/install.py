"""Everything that a package of lavinmq installs, below one directory.

`python packaging/install.py DIR [--layout deb]`, run by `make install` and for every kind of
package: recipes of packages add owners, scripts and descriptions, and no file of their own. Needs
dist/lavinmq, which is not run (it may be for another processor), and an interpreter that can import
the broker's sources.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import configuration
import release

PROGRAMS = ("lavinmq", "lavinmqctl", "lavinmqperf")
SYSTEMD = release.ROOT / "packaging/systemd"
SOCKETS = ("lavinmq-amqp.socket", "lavinmq-http.socket", "lavinmq-mqtt.socket")
UNITS = ("lavinmq.service", *SOCKETS)
DOCUMENTS = ("README.md",)
EXAMPLES = (
    "systemd/cluster.ini", "monitoring/grafana-dashboard.json", "monitoring/prometheus.yml",
    "monitoring/prometheus-alerts.yml",
)  # fmt: skip
"""Of packaging/, for operators to take to other places."""
DIRECTORY, FILE, PROGRAM = 0o755, 0o644, 0o755


SELINUX = {
    f"usr/share/selinux/packages/lavinmq/lavinmq.{kind}": f"selinux/lavinmq.{kind}"
    for kind in ("te", "fc")
}
DEBIAN = {
    "etc/apparmor.d/lavinmq": "apparmor/lavinmq",
    "etc/needrestart/conf.d/lavinmq.conf": "needrestart/lavinmq.conf",
}


class Layout(NamedTuple):
    """Where a family of distributions keeps what others keep elsewhere."""

    units: str = "usr/lib/systemd/system"
    zsh: str = "usr/share/zsh/site-functions"
    environment: str = "etc/sysconfig/lavinmq"
    further: Mapping[str, str] = SELINUX
    """Files of packaging/ that only this family has a use for, by their places."""


LAYOUTS = {
    "rpm": Layout(),
    # Up to Debian 12 this is where debhelper looks for units; later it moves them.
    "deb": Layout(
        "lib/systemd/system", "usr/share/zsh/vendor-completions", "etc/default/lavinmq", DEBIAN
    ),
}


class Tree:
    """A root directory that is filled with files of fixed modes, whatever the umask."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return the place of a file, whose directory exists."""
        path = self._root / name.lstrip("/")
        for parent in reversed(path.relative_to(self._root).parents):
            directory = self._root / parent
            if not directory.is_dir():
                directory.mkdir(parents=True)
                directory.chmod(DIRECTORY)
        return path

    def write(self, name: str, content: str | bytes, mode: int = FILE) -> None:
        """Make a file."""
        path = self.path(name)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def copy(self, source: Path, name: str, mode: int = FILE) -> None:
        """Make a copy of a file."""
        shutil.copyfile(source, self.path(name))
        self.path(name).chmod(mode)

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def install(root: Path, layout: Layout, architecture: str = release.HOST) -> None:
    """Install everything below a directory. Raises: PackagingError without the executable."""
    release.executable(architecture)
    source = release.place(architecture)
    tree = Tree(root)
    _programs(tree, source)
    _completions(tree, layout)
    _manual(tree)
    tree.write("etc/lavinmq/lavinmq.ini", configuration.text())
    tree.copy(release.ROOT / "packaging/conf.d.README", "etc/lavinmq/conf.d/README")
    tree.copy(SYSTEMD / "lavinmq.environment", layout.environment)
    for place, file in layout.further.items():
        tree.copy(release.ROOT / "packaging" / file, place)
    for unit in UNITS:
        tree.copy(SYSTEMD / unit, f"{layout.units}/{unit}")
    for kind in ("sysusers", "tmpfiles"):
        tree.copy(SYSTEMD / f"lavinmq.{kind}", f"usr/lib/{kind}.d/lavinmq.conf")
    _documents(tree, source / "licenses")


def _programs(tree: Tree, source: Path) -> None:
    tree.copy(source / "lavinmq", "usr/bin/lavinmq", PROGRAM)
    for name in PROGRAMS[1:]:
        tree.link(f"usr/bin/{name}", "lavinmq")


def _completions(tree: Tree, layout: Layout) -> None:
    places = {
        "bash": "usr/share/bash-completion/completions/{}",
        "zsh": layout.zsh + "/_{}",
        "fish": "usr/share/fish/vendor_completions.d/{}.fish",
    }
    for shell, place in places.items():
        for name in PROGRAMS:
            command = [sys.executable, "-m", "lavinmq.cli.ctl", "completion", shell]
            made = subprocess.run(
                [*command, "--program", name], cwd=release.ROOT, capture_output=True, check=True
            ).stdout
            tree.write(place.format(name), made)


def _manual(tree: Tree) -> None:
    """Manual pages of what is installed: the jobs on Spark are in the package of Python alone."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.executable, "-m", "lavinmq.cli.manual", directory, *PROGRAMS],
            cwd=release.ROOT, env=release.repeatable(), check=True,
        )  # fmt: skip
        for page in (*(f"man1/{name}.1" for name in PROGRAMS), "man5/lavinmq.ini.5"):
            tree.copy(Path(directory, page), f"usr/share/man/{page}")


def _documents(tree: Tree, licenses: Path) -> None:
    place = "usr/share/doc/lavinmq"
    for name in DOCUMENTS:
        tree.copy(release.ROOT / name, f"{place}/{name}")
    tree.copy(release.ROOT / "CHANGELOG.md", f"{place}/changelog")
    for name in EXAMPLES:
        path = release.ROOT / "packaging" / name
        tree.copy(path, f"{place}/examples/{path.name}")
    for path in sorted(licenses.rglob("*")):
        if path.is_file():
            tree.copy(path, f"{place}/licenses/{path.relative_to(licenses)}")


def main() -> int:
    """Install everything; the exit status."""
    parser = argparse.ArgumentParser(description="Install lavinmq below a directory.")
    parser.add_argument("root", type=Path, metavar="DIR")
    parser.add_argument("--layout", choices=LAYOUTS, default="rpm")
    release.add_architecture(parser)
    options = parser.parse_args()
    try:
        install(options.root, LAYOUTS[options.layout], options.arch)
    except release.PackagingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
