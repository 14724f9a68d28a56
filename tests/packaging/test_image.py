"""The container image: what it declares, and its broker without rights on a root that is read-only.

Without a runtime for containers its layers are unpacked, and the kernel is told the same things.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lavinmq.config.settings import SETTINGS
from tests.packaging.conftest import CLIENT, KEY, ROOT, make
from tests.packaging.test_image_index import combine, layout
from tests.support.machine import missing
from tests.support.waiting import wait_for

CONTAINER = ROOT / "packaging/container"
PASSWORD = "correct horse"
ANOTHER_USER = 12345
OUR_VOLUME = "uid=1000,gid=0,mode=770"
ENTER = """
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
for place in var/lib/lavinmq run/lavinmq; do
    mount -t tmpfs -o "$VOLUME" tmpfs "$1/$place"
done
mount -t tmpfs -o mode=755 tmpfs "$1/mnt"
echo "$PASSWORD" > "$1/mnt/password"
ip link set lo up
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of the image."""
    reason = missing("apt-get", "unshare", "chroot", "ip")
    if not (ROOT / "dist/lavinmq").exists():
        reason = "dist/lavinmq has not been built: make binary"
    if reason:
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("image") / "layout"
    make(sys.executable, "packaging/image.py", "--output", path, REHEARSAL="1")
    return path


def blob(image: Path, descriptor: dict[str, Any]) -> Path:
    """Return the file of a blob."""
    return image / "blobs" / descriptor["digest"].replace(":", "/")


def read(image: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    """Return a blob of JSON."""
    content: dict[str, Any] = json.loads(blob(image, descriptor).read_text())
    return content


@pytest.fixture(scope="module")
def manifest(image: Path) -> dict[str, Any]:
    """The manifest of the image."""
    return read(image, json.loads((image / "index.json").read_text())["manifests"][0])


@pytest.fixture(scope="module")
def config(image: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the image says of how it is run."""
    described: dict[str, Any] = read(image, manifest["config"])["config"]
    return described


@pytest.fixture(scope="module")
def root(image: Path, manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root directory of a container, with a place for secrets."""
    directory = tmp_path_factory.mktemp("container") / "root"
    for layer in manifest["layers"]:
        with tarfile.open(blob(image, layer)) as tar:
            tar.extractall(directory, numeric_owner=True)
    (directory / "mnt").mkdir()
    return directory


def started(
    root: Path, config: dict[str, Any], log: Path, *, user: int = 1000, volume: str = OUR_VOLUME
) -> subprocess.Popen[bytes]:
    """Start the broker in namespaces of its own; its password is in a file."""
    secrets = {
        "LAVINMQ_MAIN_DEFAULT_USER": "admin",
        "LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN_FILE": "/mnt/password",
        "PASSWORD": PASSWORD,
        "PATH": os.environ["PATH"],
        "VOLUME": volume,
    }
    with log.open("wb") as said:
        return subprocess.Popen(
            [
                "unshare", "--mount", "--net", "--", "sh", "-c", ENTER, "sh", str(root), "chroot",
                f"--userspec={user}:0", "--groups=", str(root), *config["Entrypoint"],
            ],
            env=secrets, stdout=said, stderr=said,
        )  # fmt: skip


@pytest.fixture(params=[1000, ANOTHER_USER], ids=["own user", "another user"])
def container(
    request: pytest.FixtureRequest, root: Path, config: dict[str, Any], tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A broker that has started."""
    process = started(root, config, tmp_path / "log", user=request.param)
    try:
        wait_for(
            lambda: process.poll() is not None or "Finished startup" in text_of(tmp_path / "log"),
            "the broker does not start", 60,
        )  # fmt: skip
        assert process.poll() is None, text_of(tmp_path / "log")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def text_of(path: Path) -> str:
    """Return what a log has so far."""
    return path.read_text(errors="replace")


def enter(process: subprocess.Popen[bytes], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this host in the network of the container."""
    return subprocess.run(
        ["nsenter", "-t", str(process.pid), "-n", *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_is_an_image_layout_whose_blobs_are_what_their_names_say(image: Path) -> None:
    blobs = sorted((image / "blobs/sha256").iterdir())
    said = make("sha256sum", *blobs)

    assert [line.split()[0] for line in said.splitlines()] == [path.name for path in blobs]
    assert json.loads((image / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def test_it_is_as_large_as_the_page_says(image: Path) -> None:
    page = (ROOT / "docs/installation.md").read_text()
    (said,) = re.findall(r"an OCI layout for the architecture of the machine \((\d+) MB", page)

    size = sum(path.stat().st_size for path in image.rglob("*") if path.is_file())

    assert abs(size / 1_000_000 - int(said)) <= 1


def test_the_same_sources_make_the_same_image(image: Path, tmp_path: Path) -> None:
    make(sys.executable, "packaging/image.py", "--output", tmp_path / "again", REHEARSAL="1")

    assert (tmp_path / "again/index.json").read_text() == (image / "index.json").read_text()


def test_it_declares_no_root_and_all_ports(config: dict[str, Any]) -> None:
    assert config["User"] == "1000:0"
    served = {
        int(setting.default)
        for setting in SETTINGS
        if setting.key in ("port", "tls_port", "metrics_http_port") and setting.default != "-1"
    }
    assert {f"{port}/tcp" for port in served} == set(config["ExposedPorts"])
    assert set(config["Volumes"]) == {"/var/lib/lavinmq", "/run/lavinmq"}


def test_there_is_no_shell_in_it(root: Path) -> None:
    programs = {
        path.name for path in root.rglob("*") if path.is_file() and os.access(path, os.X_OK)
    }

    ours = {"lavinmq", "lavinmqctl", "lavinmqperf"}
    assert {name for name in programs if not name.startswith("ld-")} == ours


def test_scanners_find_what_debian_has_in_it(root: Path) -> None:
    pinned = tomllib.loads((ROOT / "packaging/freeze/sources.toml").read_text()).values()
    expected = {
        (name, source["version"])
        for source in pinned
        if source.get("part") == "image"
        for name in source["names"]
    }

    listed = [path.read_text() for path in (root / "var/lib/dpkg/status.d").iterdir()]

    assert expected == {
        (re.findall("^Package: (.+)$", text, re.M)[0], re.findall("^Version: (.+)$", text, re.M)[0])
        for text in listed
    }
    assert 'VERSION_ID="12"' in (root / "etc/os-release").read_text()


def test_it_serves_without_rights_and_with_a_password_from_a_file(
    container: subprocess.Popen[bytes], root: Path, config: dict[str, Any]
) -> None:
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert "Uid:\t0" not in status
    assert "CapEff:\t0000000000000000" in status

    login = CLIENT.replace(
        "(host)", f"(host, credentials=pika.PlainCredentials('admin', {PASSWORD!r}))"
    )
    for action, printed in (("publish", ""), ("consume", "hello")):
        done = enter(container, sys.executable, "-c", login, action, "127.0.0.1")
        assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr
    refused = enter(container, sys.executable, "-c", CLIENT, "publish", "127.0.0.1")
    assert "ACCESS_REFUSED" in refused.stderr

    for probe in ("healthz", "readyz"):
        found = enter(container, "curl", "--silent", "--fail", f"http://[::1]:15692/{probe}")
        assert found.returncode == 0, found.stderr
    health = config["Healthcheck"]["Test"][1:]
    inside = ["nsenter", "-t", str(container.pid), "-m", "-n", "-r", "-w", *health]
    assert subprocess.run(inside, capture_output=True, timeout=60, check=False).returncode == 0

    container.send_signal(signal.SIGTERM)
    assert container.wait(30) == 0


def test_a_volume_of_root_is_refused_with_both_owners_and_what_helps(
    root: Path, config: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = started(root, config, log, volume="uid=0,gid=0,mode=755")

    assert process.wait(60) == 78
    assert (
        "'/var/lib/lavinmq' belongs to user 0 and group 0, with mode 755; the broker runs as user"
        " 1000 and group 0." in text_of(log)
    )
    assert "on the volume: `chown -R 1000:0 /var/lib/lavinmq`" in text_of(log)


@pytest.mark.parametrize("name", [
    "compose.yaml", "compose-cluster.yaml", "kubernetes.yaml", "kubernetes-cluster.yaml",
])  # fmt: skip
def test_examples_name_settings_that_exist(name: str) -> None:
    variables = {variable for setting in SETTINGS for variable in setting.variables}
    words = (CONTAINER / name).read_text().replace(",", " ").replace(":", " ").split()
    named = {word for word in words if word.startswith("LAVINMQ_")}

    assert named
    assert {word.removesuffix("_FILE") for word in named} <= variables


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-cluster.yaml"])
def test_kubernetes_is_told_ports_and_places_of_the_image(
    config: dict[str, Any], name: str
) -> None:
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((CONTAINER / name).read_text()))
    services = [each for each in documents if each["kind"] == "Service"]
    pod = next(each for each in documents if each["kind"] == "StatefulSet")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    assert {f"{port}/tcp" for port in ports.values()} <= set(config["ExposedPorts"])
    named = {port["targetPort"] for service in services for port in service["spec"]["ports"]}
    assert named == set(ports)
    assert set(config["Volumes"]) <= {mount["mountPath"] for mount in container["volumeMounts"]}
    context = pod["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == config["User"]


REFERENCE = "registry.example.com/brokers/lavinmq:1.0"


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which gpg has the key KEY."""
    reason = missing("gpg", "skopeo")
    if reason:
        pytest.skip(reason)
    keyring = tmp_path_factory.mktemp("keyring")
    keyring.chmod(0o700)
    environment = {"GNUPGHOME": str(keyring)}
    make("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", KEY, "rsa3072",
         "sign", "never", **environment)  # fmt: skip
    yield environment
    subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **environment}, check=False)


def test_its_signature_holds_for_this_image_under_this_name_only(
    image: Path, signer: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "signatures"
    make(sys.executable, "packaging/image_signature.py", "--key", KEY, "--reference", REFERENCE,
         "--image", image, "--output", output, **signer)  # fmt: skip
    (named,) = json.loads((image / "index.json").read_text())["manifests"]
    signature = output / f"brokers/lavinmq@{named['digest'].replace(':', '=')}/signature-1"
    changed = tmp_path / "changed"
    changed.write_bytes(blob(image, named).read_bytes() + b"\n")
    colons = make("gpg", "--with-colons", "--list-keys", KEY, **signer).splitlines()
    fingerprint = next(line.split(":")[9] for line in colons if line.startswith("fpr:"))

    def verified(manifest: Path, reference: str) -> bool:
        command = ["skopeo", "standalone-verify", manifest, reference, fingerprint, signature]
        return not subprocess.run(
            command, env={**os.environ, **signer}, capture_output=True, check=False
        ).returncode

    assert verified(blob(image, named), REFERENCE)
    assert not verified(changed, REFERENCE)
    assert not verified(blob(image, named), "registry.example.com/others/lavinmq:1.0")


def test_each_image_of_an_index_is_signed_and_the_index_itself(
    signer: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REHEARSAL", raising=False)
    images = [layout(tmp_path / name, name) for name in ("amd64", "arm64")]
    index = combine(images, tmp_path / "index")
    output = tmp_path / "signatures"

    make(sys.executable, "packaging/image_signature.py", "--key", KEY, "--reference", REFERENCE,
         "--image", index, "--output", output, **signer)  # fmt: skip

    (named,) = json.loads((index / "index.json").read_text())["manifests"]
    digests = {named["digest"], *(each["digest"] for each in read(index, named)["manifests"])}
    assert len(digests) == 3
    assert {path.parent.name for path in output.rglob("signature-1")} == {
        f"lavinmq@{digest.replace(':', '=')}" for digest in digests
    }
    for path in output.rglob("signature-1"):
        signed = make("gpg", "--batch", "--decrypt", path, **signer)
        assert path.parent.name.partition("=")[2] in signed and REFERENCE in signed


def test_what_cannot_be_signed_is_told(image: Path, signer: dict[str, str], tmp_path: Path) -> None:
    for reference, key, reason in (
        ("lavinmq:1.0", KEY, "must have a registry and a tag"),
        ("registry.example.com/lavinmq", KEY, "must have a registry and a tag"),
        (REFERENCE, "nobody@example.com", "gpg has no key 'nobody@example.com' that signs"),
    ):
        command = [sys.executable, "packaging/image_signature.py", "--key", key, "--reference",
                   reference, "--image", image, "--output", tmp_path / "none"]  # fmt: skip
        said = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **signer}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

        assert said.returncode != 0
        assert reason in said.stderr
        assert not (tmp_path / "none").exists()


class Podman:
    """Containers of the image by podman, with storage of their own.

    `run`: a directory with a short path: 50 characters are podman's bound. A user who may not raise
    limits may not ask for podman's own ones: this host's are asked for.
    """

    def __init__(self, place: Path, run: Path, image: Path) -> None:
        self.base = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs",
                      "--storage-driver", "vfs", "--root", str(place / "storage"),
                      "--runroot", str(run)]  # fmt: skip
        pulled = self.call("pull", "--quiet", f"oci:{image}")
        self.image = pulled.stdout.strip()
        assert self.image, pulled.stderr

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of podman."""
        return subprocess.run(
            [*self.base, *arguments], capture_output=True, text=True, timeout=300, check=False
        )

    def start(
        self, name: str, *options: str, network: str = "none", command: Sequence[str] = ()
    ) -> None:
        """Start a container with a read-only root and no network. Args: network: another one, empty
        where `options` have it; command: what it is told in place of the image's."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = (f"--ulimit=nofile={hard}:{hard}", "--ulimit=nproc=1000:1000")
        networks = [f"--network={network}"] if network else []
        done = self.call("run", "--detach", "--name", name, *networks, "--read-only",
                         *limits, *options, self.image, *command)  # fmt: skip
        assert not done.returncode, done.stderr

    def logs(self, name: str) -> str:
        """Return what a container has said."""
        done = self.call("logs", name)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def podman(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A runtime for containers, which has the image."""
    reason = missing("podman", "runc")
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as run:
        runtime = Podman(tmp_path_factory.mktemp("podman"), Path(run), image)
        yield runtime
        runtime.call("rm", "--all", "--force")
        runtime.call("volume", "rm", "--all", "--force")
        runtime.call("rmi", "--all", "--force")


def test_podman_runs_it_and_its_volume_outlives_it(podman: Podman) -> None:
    volume = "--volume=messages:/var/lib/lavinmq"
    podman.start("first", volume)
    wait_for(lambda: "Finished startup" in podman.logs("first"), "the broker does not start", 60)
    made = podman.call("exec", "first", "lavinmqctl", "create_queue", "orders", "--durable")
    assert not made.returncode, made.stderr
    stopped = podman.call("stop", "--time", "30", "first")
    assert not stopped.returncode, stopped.stderr
    assert podman.logs("first").splitlines()[-1].endswith(" Stopped")
    assert not podman.call("rm", "first").returncode

    podman.start("second", volume)
    wait_for(lambda: "Finished startup" in podman.logs("second"), "the broker does not start", 60)
    assert "Queues: 1" in podman.call("exec", "second", "lavinmqctl", "status").stdout


def test_podman_is_told_why_a_volume_of_root_is_refused(podman: Podman, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o755)

    podman.start("refused", f"--volume={volume}:/var/lib/lavinmq")
    assert podman.call("wait", "refused").stdout.strip() == "78"
    assert "belongs to user 0 and group 0" in podman.logs("refused")
