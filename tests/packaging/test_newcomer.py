"""The README's first command on a fresh Debian 12: `make run`, by Debian's Python and compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, fresh_root
from tests.support.machine import missing, run_in
from tests.support.ports import free_port

LIMIT_S = 1500.0
INSTALLED_MB = 60
"""What `make run` may install beside packages of Debian."""
AUTHORITIES = Path("etc/ssl/certs/ca-certificates.crt")
FIRST_RUN = """
make run ARGS="-p $1 --http-port $2 --metrics-http-port -1 --mqtt-port -1" >log 2>&1 & run=$!
until grep -q "Finished startup" log || ! kill -0 $run; do sleep 1; done
cat log
.venv/bin/lavinmqctl -H http://guest:guest@127.0.0.1:$2 status && kill $run
"""


@pytest.mark.skipif(bool(missing("git")), reason=missing("git"))
@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.xdist_group("machines")
def test_make_run_in_a_clone_compiles_and_starts_the_broker(tmp_path: Path) -> None:
    root = fresh_root(tmp_path / "root")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    subprocess.run(["git", "clone", "--quiet", ROOT, root / "lavinmq"], check=True)

    def run(*command: str, place: str = "/") -> str:
        return run_in(root, *command, place=place, network=True, timeout_s=LIMIT_S)

    run("apt-get", "update")
    run("apt-get", "install", "-y", "--no-install-recommends", "make", "ca-certificates")
    # Whoever stands between this machine and the package index is trusted there as here.
    shutil.copy("/" / AUTHORITIES, root / AUTHORITIES)

    said = run("sh", "-c", FIRST_RUN, "-", str(free_port()), str(free_port()), place="/lavinmq")

    assert "Finished startup" in said
    assert "Version:" in said
    used = run("sh", "-c", "du -sm /lavinmq/.venv | cut -f1")
    assert int(used.split()[0]) <= INSTALLED_MB
