"""dist/arm64/lavinmq does its work: an emulated processor runs it, clients of this machine use it.

Runs where it has been built (`make binary ARCH=arm64`), with qemu's emulation of programs: as it
was linked, and out of package and image where these were made (`make deb image ARCH=arm64`). The C
library is the oldest that it may have, that of packaging/freeze/sysroot.py, or that of the image.
Its speed says nothing here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

from lavinmq import __version__
from tests.packaging.conftest import ROOT, make
from tests.support import broker as brokers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.metrics import scrape, value

BUILT = ROOT / "dist/arm64"
LIBRARIES = ROOT / "build/freeze/sysroot-arm64"
IMAGE = BUILT / "image"
PACKAGES = ROOT / "dist/packages"
EMULATOR = shutil.which("qemu-aarch64-static")
START_TIMEOUT_S = 120.0
QUEUE = "orders"
FIRST, SECOND = 300, 200
TAKEN = 120

pytestmark = [
    pytest.mark.skipif(
        not (BUILT / "lavinmq").exists(),
        reason="dist/arm64/lavinmq has not been built: make binary ARCH=arm64",
    ),
    pytest.mark.skipif(not LIBRARIES.is_dir(), reason="the C library of arm64 is not in build/"),
    pytest.mark.skipif(
        os.uname().machine != "x86_64" or EMULATOR is None,
        reason="needs qemu-aarch64-static, on another processor",
    ),
]


def package(pattern: str) -> Path:
    """The newest package of arm64 of a kind, of this version."""
    found = sorted(PACKAGES.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip(f"no {pattern} in dist/packages: make deb rpm ARCH=arm64")
    return found[-1]


class Programs(NamedTuple):
    """The directory of the programs, and the root directory that they find the C library in."""

    directory: Path
    libraries: Path

    def command(self, name: str) -> list[str]:
        """The command that runs one of them."""
        assert EMULATOR
        return [EMULATOR, "-L", str(self.libraries), str(self.directory / name)]

    def run(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        return subprocess.run(
            [*self.command(name), *options],
            capture_output=True, text=True, timeout=300, check=False, env={"PATH": os.defpath},
        )  # fmt: skip


@pytest.fixture(scope="module", params=["built", "package", "image"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The programs as they were linked, or as somebody gets them."""
    if request.param == "built":
        return Programs(BUILT, LIBRARIES)
    root = tmp_path_factory.mktemp("arm64") / "root"
    if request.param == "package":
        make("dpkg-deb", "--extract", package(f"lavinmq_{__version__}*_arm64.deb"), root)
        return Programs(root / "usr/bin", LIBRARIES)
    if not IMAGE.is_dir():
        pytest.skip("dist/arm64/image has not been made: make image ARCH=arm64")
    unpack_image(root)
    return Programs(root / "usr/bin", root)


def unpack_image(root: Path) -> None:
    """Unpack the layers of the image, one over the other. It is checked that it says arm64."""

    def blob(described: dict[str, str]) -> Path:
        return IMAGE / "blobs" / described["digest"].replace(":", "/")

    (named,) = json.loads((IMAGE / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(named).read_text())
    assert json.loads(blob(manifest["config"]).read_text())["architecture"] == "arm64"
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer)) as archive:
            archive.extractall(root, filter="tar")


@pytest.fixture
def broker(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker on an empty data directory."""
    monkeypatch.setattr(brokers, "START_TIMEOUT_S", START_TIMEOUT_S)
    broker = Broker(tmp_path / "data", command=programs.command("lavinmq"), http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


def publish(broker: Broker, numbers: range) -> None:
    """Publish persistent messages of several sizes; returns when each is confirmed."""
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for number in numbers:
            headers = {"number": number, "negative": -number, "half": Decimal(number) / 2, "é": "ü"}
            properties = pika.BasicProperties(delivery_mode=2, headers=headers)
            channel.basic_publish("", QUEUE, body(number), properties, mandatory=True)


def body(number: int) -> bytes:
    """The body of a message: some are larger than a frame, and one is empty."""
    return b"%d " % number * (number * number % 3000) if number % 50 else b"\xff" * number * 700


def take(broker: Broker, count: int) -> list[int]:
    """Consume messages, check and acknowledge each, and return their numbers."""
    numbers: list[int] = []
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, properties, content in channel.consume(QUEUE, inactivity_timeout=60):
            assert method, f"{len(numbers)} messages of {count} have come"
            number = properties.headers["number"]
            assert properties.headers["negative"] == -number
            assert properties.headers["half"] == Decimal(number) / 2
            assert properties.headers["é"] == "ü"
            assert content == body(number)
            channel.basic_ack(method.delivery_tag)
            numbers.append(number)
            if len(numbers) == count:
                break
        channel.cancel()
    return numbers


def test_the_selftest_passes(programs: Programs) -> None:
    done = programs.run("lavinmq", "--selftest")

    assert done.returncode == 0, done.stdout + done.stderr
    checks = re.findall(r"^(\w+): (\w+)", done.stdout, re.MULTILINE)
    assert {"imports", "json", "codecs", "loop", "tls", "broker"} <= {name for name, _ in checks}
    assert {result for _, result in checks} == {"ok"}


def test_what_was_confirmed_is_there_after_a_stop_and_after_a_kill(broker: Broker) -> None:
    publish(broker, range(FIRST))
    assert take(broker, TAKEN) == list(range(TAKEN))

    assert broker.stop() == 0
    broker.start()
    publish(broker, range(FIRST, FIRST + SECOND))
    broker.kill()
    broker.start()

    left = FIRST + SECOND - TAKEN
    assert take(broker, left) == list(range(TAKEN, FIRST + SECOND))
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()


def test_the_broker_of_this_machine_reads_its_data_directory(
    broker: Broker, tmp_path: Path
) -> None:
    publish(broker, range(FIRST))
    broker.kill()

    command = [sys.executable, "-m", "lavinmq"]
    native = Broker(broker.data_dir, log_path=tmp_path / "native.log", command=command)
    try:
        assert take(native.start(), FIRST) == list(range(FIRST))
    finally:
        native.close()


def test_it_tells_metrics_and_answers_over_http(broker: Broker) -> None:
    publish(broker, range(10))

    assert value(scrape(broker), "queue_messages_ready") == 10
    assert Api(broker)("GET", "/api/overview").status == 200
    assert Api(broker).get(f"/api/queues/%2F/{QUEUE}")["messages"] == 10
    assert Api(broker, "guest", "wrong")("GET", "/api/overview").status == 401


def test_the_tools_know_it_by_their_names(programs: Programs, broker: Broker) -> None:
    control = ["--control-unix-path", broker.control_path]

    created = programs.run("lavinmqctl", "create_queue", "letters", *control)
    load = ["--uri", broker.uri, "--queue", "load", "-C", "500", "-D", "500", "--persistent"]
    loaded = programs.run("lavinmqperf", "throughput", *load)

    assert created.returncode == 0, created.stderr
    assert loaded.returncode == 0, loaded.stderr
    assert {queue["name"] for queue in Api(broker).get("/api/queues")} >= {"letters", "load"}
    assert programs.run("lavinmqctl", "--version").stdout.strip() == __version__


def test_packages_hold_what_was_built_and_say_for_which_processor() -> None:
    deb, rpm = package(f"lavinmq_{__version__}*_arm64.deb"), package("lavinmq-*.aarch64.rpm")
    glibc = json.loads((BUILT / "lavinmq.json").read_text())["glibc"]
    architecture = make("dpkg-deb", "--field", deb, "Architecture")
    needed = make("dpkg-deb", "--field", deb, "Depends")
    listed = make("rpm", "--query", "--package", "--queryformat", "%{ARCH} %{OS}", rpm)

    assert architecture == "arm64\n"
    assert needed.startswith(f"libc6 (>= {glibc}), ")
    assert listed == "aarch64 linux"
    executable = (BUILT / "lavinmq").read_bytes()
    paths = ["--fsys-tarfile", str(deb)]
    archive = subprocess.run(["dpkg-deb", *paths], stdout=subprocess.PIPE, check=True).stdout
    assert executable in archive
    archive = subprocess.run(["rpm2cpio", rpm], stdout=subprocess.PIPE, check=True).stdout
    assert executable in archive
