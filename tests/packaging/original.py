"""Imitations of the packages of LavinMQ 2.9.1: names, paths, unit, user, scripts, configuration.

What they lack is the broker: the program only stays until it is told to end. Made by `deb` and
`rpm`, for tests of coming from the original and of going back.
"""

from __future__ import annotations

from pathlib import Path

from tests.packaging.conftest import make

VERSION = "2.9.1"
INI = """\
[main]
data_dir = /var/lib/lavinmq
log_level = info

[mgmt]
bind = ::

[amqp]
bind = ::

[mqtt]
bind = ::

[clustering]
enabled = false
bind = ::
"""
PROGRAM = f"""\
#!/bin/sh
[ "$1" != --version ] || {{ echo {VERSION}; exit 0; }}
exec sleep infinity
"""
UNIT = """\
[Unit]
Description=LavinMQ
Requires=network.target
After=network.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/lavinmq -c /etc/lavinmq/lavinmq.ini
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
User=lavinmq
Group=lavinmq
LimitNOFILE=infinity
RuntimeDirectory=lavinmq
StateDirectory=lavinmq
ConfigurationDirectory=lavinmq
ProtectSystem=full
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""
SYSUSERS = 'u lavinmq - "LavinMQ message broker" /var/lib/lavinmq\n'
CONTROL = f"""\
Package: lavinmq
Version: {VERSION}-1
Section: net
Priority: optional
Architecture: amd64
Maintainer: nobody <nobody@example.com>
Description: imitation of the original
"""
# What debhelper makes of a package with a unit and a user.
POSTINST = """\
#!/bin/sh
set -e
systemd-sysusers lavinmq.conf
if deb-systemd-helper --quiet was-enabled lavinmq.service; then
    deb-systemd-helper enable lavinmq.service >/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
    deb-systemd-invoke ${2:+re}start lavinmq.service >/dev/null || true
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop lavinmq.service >/dev/null || true
fi
"""
SPEC = f"""\
Name: lavinmq
Version: {VERSION}
Release: 1
Summary: Imitation of the original
License: Apache-2.0
%description
Imitation of the original.
%install
cp -a %{{tree}}/. %{{buildroot}}/
%pre
getent group lavinmq >/dev/null || groupadd --system lavinmq
getent passwd lavinmq >/dev/null || useradd --system --gid lavinmq lavinmq
%files
/usr/bin/lavinmq
/usr/lib/systemd/system/lavinmq.service
/usr/lib/sysusers.d/lavinmq.conf
%config(noreplace) /etc/lavinmq/lavinmq.ini
%dir %attr(750, lavinmq, lavinmq) /var/lib/lavinmq
"""


def deb(directory: Path) -> Path:
    """Make a repository for apt, without a signature, and return its directory."""
    tree, repository = directory / "tree", directory / "repository"
    _fill(tree, "lib/systemd/system")
    control = {"control": CONTROL, "conffiles": "/etc/lavinmq/lavinmq.ini\n"}
    for name, text in (control | {"postinst": POSTINST, "prerm": PRERM}).items():
        _write(tree / "DEBIAN" / name, text, 0o755 if "#!" in text else 0o644)
    repository.mkdir()
    package = repository / f"lavinmq_{VERSION}-1_amd64.deb"
    make("dpkg-deb", "--root-owner-group", "--build", tree, package)
    listed = make("sh", "-c", f"cd {repository} && apt-ftparchive packages .")
    (repository / "Packages").write_text(listed)
    return repository


def rpm(directory: Path) -> Path:
    """Make a repository for dnf, without a signature, and return its directory."""
    tree, top = directory / "tree", directory / "repository"
    _fill(tree, "usr/lib/systemd/system")
    (tree / "var/lib/lavinmq").mkdir(parents=True)
    spec = directory / "lavinmq.spec"
    spec.write_text(SPEC)
    make(
        "rpmbuild", "-bb", "--quiet", "--define", f"_topdir {top}", "--define", f"tree {tree}", spec
    )
    make("createrepo_c", "--quiet", top)
    return top


def _fill(tree: Path, units: str) -> None:
    _write(tree / "usr/bin/lavinmq", PROGRAM, 0o755)
    _write(tree / units / "lavinmq.service", UNIT)
    _write(tree / "usr/lib/sysusers.d/lavinmq.conf", SYSUSERS)
    _write(tree / "etc/lavinmq/lavinmq.ini", INI)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
