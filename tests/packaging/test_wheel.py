"""The source distribution holds all that a wheel is built from, and wheels work where they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pika
import pytest

from tests.packaging.conftest import ROOT, make
from tests.packaging.test_client_tree import PROGRAM
from tests.support.broker import Broker

BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
FOLDERS = ("cext", "lavinmq")
APART = ("lavinmq/spark/", "lavinmq/pipeline/")
SPARK = ("cext", "lavinmq/spark", "lavinmq/pipeline", "pyspark_lavinmq", "pyspark_lavinmq_segments")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
VERSIONS = ((3, 11), (3, 12), (3, 13))
OLDEST_GLIBC = (2, 31)
BUILD_TIMEOUT_S = 1800
"""A wheel takes some 150 seconds of processor time, which others may use meanwhile."""
SEND = """
import sys
from lavinmq.client import Client
with Client(sys.argv[1]) as client:
    client.producer("letters").publish(b"hello").result(timeout=60)
    with client.consumer("letters") as consumer:
        for message in consumer:
            with message.process():
                print(bytes(message.body).decode())
            break
"""

pytestmark = pytest.mark.skipif(
    os.environ.get("PACKAGE_TESTS") != "1",
    reason="compiles what is out of date: make test-packages",
)


def interpreter(version: tuple[int, int]) -> str:
    """Return the interpreter of a version, or skip the test."""
    if sys.version_info[:2] == version:
        return sys.executable
    name = f"python{version[0]}.{version[1]}"
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    # What is found may be a stand-in that only knows where interpreters would be.
    if subprocess.run(
        [found, "-c", "import ensurepip"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{found} does not run, or cannot make environments")
    return found


class Wheels(NamedTuple):
    """Wheels for glibc 2.31, and the interpreter that they are for."""

    python: str
    broker: Path
    spark: Path
    client: Path


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: "cp{}{}".format(*version))
def wheels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """What `make wheel` makes, with one interpreter."""
    python = interpreter(request.param)
    made = tmp_path_factory.mktemp("wheels")
    command = (python, "packaging/wheel.py", "--base", "2.31", "--output", made)
    make(*command, timeout_s=BUILD_TIMEOUT_S, PYTHONPATH="")
    assert len(list(made.glob("*.tar.gz"))) == 3
    names = ("lavinmq", "lavinmq_spark", "lavinmq_client")
    return Wheels(python, *(one for name in names for one in made.glob(f"{name}-*.whl")))


def files_in(wheel: Path) -> set[str]:
    """The files of a wheel; directories are entries as well, and several wheels share those."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def oldest_glibc(wheel: Path) -> tuple[int, int]:
    """The newest of the C libraries that the name of a wheel says it runs with, at the oldest."""
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    assert tags, wheel.name
    return max((int(major), int(minor)) for major, minor in tags)


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
def test_a_wheel_is_for_old_systems_and_runs_a_broker(wheels: Wheels, tmp_path: Path) -> None:
    """The broker's has nothing of Spark's; the other one is installed beside it, and works."""
    python, path, apart, _ = wheels
    files = {name: files_in(name) for name in (path, apart)}
    assert not [name for name in files[path] if name.startswith((*APART, "pyspark_"))]
    assert not files[path] & files[apart]
    assert oldest_glibc(path) <= OLDEST_GLIBC
    page = (ROOT / "docs/packaging.md").read_text()
    assert "with `BASE=2.31` that is `manylinux_{}_{}`".format(*oldest_glibc(path)) in page
    environment = tmp_path / "environment"
    make(python, "-m", "venv", environment)
    pip = environment / "bin/pip"
    make(pip, "install", "--quiet", path, PYTHONPATH="")
    completion = (environment / "bin/lavinmqctl", "completion", "bash")
    assert "lavinmq-pipeline" not in make(*completion, PYTHONPATH="")
    make(pip, "install", "--quiet", "--no-deps", apart, PYTHONPATH="")
    assert "lavinmq-pipeline" in make(*completion, PYTHONPATH="")
    version = make(environment / "bin/lavinmq-pipeline", "--version", PYTHONPATH="")
    assert version.split()[-1] in path.name
    decoder = "import lavinmq, lavinmq.spark._arrow, pyspark_lavinmq; print(lavinmq.__version__)"
    assert make(environment / "bin/python", "-c", decoder, PYTHONPATH="").strip() in apart.name

    broker = Broker(
        tmp_path / "data", command=[str(environment / "bin/lavinmq")], env={"PYTHONPATH": ""},
        http=True,
    )  # fmt: skip
    try:
        parameters = pika.URLParameters(broker.start().uri)
        with urlopen(f"{broker.http_url}/login") as page:
            assert b'<form id="login"' in page.read()
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"hello", pika.BasicProperties(delivery_mode=2))
        broker.restart()
        with pika.BlockingConnection(parameters) as connection:
            _, _, body = connection.channel().basic_get("orders", auto_ack=True)
        assert body == b"hello"
        assert broker.stop() == 0
    finally:
        broker.close()


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
def test_the_wheel_of_the_client_works_without_the_broker_and_talks_to_it(
    wheels: Wheels, broker: Broker, tmp_path: Path
) -> None:
    names = files_in(wheels.client)
    assert oldest_glibc(wheels.client) <= OLDEST_GLIBC
    assert "lavinmq/__init__.py" not in names and "lavinmq/client/py.typed" in names
    assert all(re.match(r"lavinmq(/client|_client-[\d.]+\.dist-info)/", name) for name in names)
    environment = tmp_path / "environment"
    make(wheels.python, "-m", "venv", environment)
    python = environment / "bin/python"
    make(python, "-m", "pip", "install", "--quiet", "--no-index", wheels.client, PYTHONPATH="")

    assert make(python, "-I", "-c", PROGRAM, environment) == "[]\n"
    assert make(python, "-I", "-c", SEND, broker.uri) == "hello\n"


def test_the_source_distribution_holds_every_file_of_ours(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git to compare with")
    make(sys.executable, "-c", BUILD, tmp_path)

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    listed = tracked(*FOLDERS, *FILES)
    assert {name for name in listed if not name.startswith(APART)} <= names
    assert not [name for name in names if name.startswith((*APART, "pyspark_"))]


def test_the_other_source_distribution_holds_what_is_apart(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git to compare with")
    lay = "import sys; sys.path.insert(0, 'packaging'); import wheel; from pathlib import Path;"
    tree = tmp_path / "tree"
    make(sys.executable, "-c", f"{lay} wheel.spark_tree(Path(sys.argv[1]))", tree)
    subprocess.run([sys.executable, "-c", BUILD, tmp_path], cwd=tree, check=True)

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert tracked(*SPARK) <= names
    assert not [name for name in names if name.startswith("lavinmq/") and not
                name.startswith(APART) and name.rstrip("/") + "/" not in APART]  # fmt: skip


def tracked(*places: str) -> set[str]:
    """The files of the checkout below some places."""
    listed = subprocess.run(
        ["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert listed
    return {name for name in listed if (ROOT / name).exists()}
