"""The container image, `dist/image`, as an OCI layout: `python packaging/image.py`.

Needs no daemon: two layers are written as archives, with what describes them. The lower one holds
the C library and certificate authorities of Debian, as sources.toml pins them; the upper one the
broker. There is no shell in it. Runs as user 1000 in group 0, which owns the data directory, so
that it may also be run as any other user of that group. Source: OCI image format specification 1.0.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import configuration
import install
import release

sys.path.append(str(release.ROOT / "packaging/freeze"))
import fetch

UID, GID = 1000, 0
DATA, RUN, INI = "/var/lib/lavinmq", "/run/lavinmq", "/etc/lavinmq/lavinmq.ini"
PORTS = (1883, 5671, 5672, 5679, 8883, 15671, 15672, 15692)
LIBRARIES = ("ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "libutil.", "libresolv.",
             "libnss_dns.", "libnss_files.", "librt.")  # fmt: skip
LEFT_OUT = ("usr/share/man", "usr/share/bash-completion", "usr/share/fish", "usr/share/zsh",
            "usr/lib/systemd", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d",
            "etc/sysconfig", "usr/share/selinux", "usr/share/doc/lavinmq/examples")  # fmt: skip
WRITABLE = (DATA, RUN, "/tmp")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Layer(NamedTuple):
    """A layer in the layout. `diff_id` is the digest of the archive before it was compressed."""

    descriptor: dict[str, Any]
    diff_id: str


class Layout:
    """A directory of blobs, named by their digests."""

    def __init__(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        self._path = path
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, media_type: str, content: bytes) -> dict[str, Any]:
        """Keep a blob and return its descriptor."""
        name = hashlib.sha256(content).hexdigest()
        (self._path / "blobs/sha256" / name).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(content)}

    def layer(self, root: Path) -> Layer:
        """Keep a directory as a layer."""
        content = archive(root)
        descriptor = self.blob(LAYER, gzip.compress(content, 9, mtime=0))
        return Layer(descriptor, f"sha256:{hashlib.sha256(content).hexdigest()}")

    def finish(self, described: dict[str, Any], tag: str) -> None:
        """Give the image its name. Args: described: the descriptor of its manifest or index."""
        named = {**described, "annotations": {"org.opencontainers.image.ref.name": tag}}
        index = {"schemaVersion": 2, "manifests": [named]}
        (self._path / "index.json").write_text(json.dumps(index))


def archive(root: Path) -> bytes:
    """Return a directory as a tar archive that depends on nothing but its content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            writable = f"/{info.name}" in WRITABLE
            info.uid, info.gid = (UID, GID) if writable else (0, 0)
            info.uname = info.gname = ""
            info.mtime = release.timestamp()
            if info.isfile():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return buffer.getvalue()


def base(root: Path, architecture: str) -> None:
    """Fill a directory with what the executable needs of a system. Raises: FetchError."""
    unpacked = root.with_name("unpacked")
    tree = install.Tree(root)
    for source in fetch.sources().values():
        if source.part == "image":
            place = fetch.fetch(source, architecture)
            shutil.copytree(place, unpacked, symlinks=True, dirs_exist_ok=True)
            for name in source.files(architecture):
                _register(tree, fetch.DOWNLOADS / name)
            for name in source.names:
                notice = f"usr/share/doc/{name}/copyright"
                tree.copy(unpacked / notice, notice)
    libraries = next(unpacked.glob("lib/*-linux-gnu"))
    for library in sorted(path for name in LIBRARIES for path in libraries.glob(f"{name}*")):
        mode = install.PROGRAM if library.name.startswith("ld-") else install.FILE
        tree.copy(library, str(library.relative_to(unpacked)), mode)
    # The loader where executables look for it, which differs by architecture.
    for link in (*unpacked.glob("lib64/*"), *unpacked.glob("lib/ld-linux*")):
        target = link.readlink()
        target = Path("..", *target.parts[1:]) if target.is_absolute() else target
        tree.link(str(link.relative_to(unpacked)), str(target))
    authorities = sorted(unpacked.glob("usr/share/ca-certificates/**/*.crt"))
    bundle = b"".join(path.read_bytes() for path in authorities)
    tree.write("etc/ssl/certs/ca-certificates.crt", bundle)
    tree.copy(unpacked / "usr/lib/os-release", "usr/lib/os-release")
    tree.link("etc/os-release", "../usr/lib/os-release")
    tree.write("etc/passwd", f"root:x:0:0:root:/:/bin/false\n"
               f"lavinmq:x:{UID}:{GID}:LavinMQ message broker:{DATA}:/bin/false\n")  # fmt: skip
    tree.write("etc/group", "root:x:0:\n")
    tree.write("etc/nsswitch.conf", "hosts: files dns\n")
    for name in WRITABLE:
        tree.path(f"{name}/-")
        (root / name.lstrip("/")).chmod(0o1777 if name == "/tmp" else 0o770)


def _register(tree: install.Tree, package: Path) -> None:
    """Tell scanners of images which package of Debian is in it, where they look without dpkg."""
    command = ["dpkg-deb", "--field", str(package)]
    fields = subprocess.run(command, capture_output=True, check=True).stdout
    tree.write(f"var/lib/dpkg/status.d/{package.name.partition('_')[0]}", fields)


def broker(root: Path, architecture: str) -> None:
    """Fill a directory with what packages install, as far as it is of use here."""
    install.install(root, install.Layout(), architecture)
    for name in LEFT_OUT:
        shutil.rmtree(root / name)
    install.Tree(root).write(INI, configuration.text(configuration.CONTAINER))


def build(architecture: str, output: Path) -> Path:
    """Build the image and return its directory. Raises: PackagingError, CalledProcessError."""
    if not release.is_rehearsal():
        release.released(architecture)
    work = release.BUILD / "image"
    shutil.rmtree(work, ignore_errors=True)
    try:
        base(work / "base", architecture)
    except fetch.FetchError as error:
        raise release.PackagingError(str(error)) from error
    broker(work / "broker", architecture)
    layout = Layout(output)
    layers = [layout.layer(work / "base"), layout.layer(work / "broker")]
    config = layout.blob(CONFIG, json.dumps(describe(layers, architecture)).encode())
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config,
        "layers": [layer.descriptor for layer in layers],
    }  # fmt: skip
    layout.finish(layout.blob(MANIFEST, json.dumps(manifest).encode()), _tag())
    return output


def _tag() -> str:
    """Return what images that are made now are called."""
    version = release.version()
    return f"{version}-{release.REHEARSED}" if release.is_rehearsal() else version


def combine(images: Sequence[Path], output: Path) -> Path:
    """Put images for several processors under one name, of which a host takes the one that fits.

    Raises: PackagingError when one of them is missing, or is of another version or a rehearsal.
    """
    layout = Layout(output)
    manifests = []
    for image in images:
        if not (image / "index.json").exists():
            raise release.PackagingError(f"{image} is missing: make image, make image ARCH=arm64")
        (named,) = json.loads((image / "index.json").read_text())["manifests"]
        tag = named["annotations"]["org.opencontainers.image.ref.name"]
        if tag != _tag():
            raise release.PackagingError(f"{image} is of {tag}, not of {_tag()}: make image")
        for blob in (image / "blobs/sha256").iterdir():
            shutil.copy2(blob, output / "blobs/sha256")
        config = _blob(image, _blob(image, named)["config"])
        platform = {"architecture": config["architecture"], "os": config["os"]}
        described = {key: named[key] for key in ("mediaType", "digest", "size")}
        manifests.append({**described, "platform": platform})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    layout.finish(layout.blob(INDEX, json.dumps(index).encode()), _tag())
    return output


def _blob(image: Path, described: dict[str, Any]) -> dict[str, Any]:
    name = described["digest"].partition(":")[2]
    content: dict[str, Any] = json.loads((image / "blobs/sha256" / name).read_text())
    return content


def describe(layers: list[Layer], architecture: str) -> dict[str, Any]:
    """Return the configuration of the image: who runs what, where."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.timestamp()))
    run = {
        "User": f"{UID}:{GID}",
        "Entrypoint": ["/usr/bin/lavinmq", "-c", INI],
        "Env": ["PATH=/usr/bin"],
        "WorkingDir": DATA,
        "Volumes": {DATA: {}, RUN: {}},
        "ExposedPorts": {f"{port}/tcp": {} for port in PORTS},
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "lavinmq",
            "org.opencontainers.image.version": release.version(),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
        # Not of the specification, but of those who run images of it on one machine.
        "Healthcheck": {
            # Every node of a cluster answers this, and a broker alone.
            "Test": ["CMD", "/usr/bin/lavinmqctl", "cluster_status"],
            "Interval": 30_000_000_000, "Timeout": 10_000_000_000, "Retries": 3,
        },
    }  # fmt: skip
    return {
        "created": created, "architecture": architecture, "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }  # fmt: skip


def main() -> int:
    """Build the image; the exit status."""
    parser = argparse.ArgumentParser(description="Make the container image.")
    release.add_architecture(parser)
    parser.add_argument("--output", type=Path, metavar="DIR")
    parser.add_argument(
        "--index", action="store_true", help="put the images of all processors under one name"
    )
    options = parser.parse_args()
    if options.index:
        images = [release.place(name) / "image" for name in release.RPM_ARCHITECTURES]
        index = options.output or release.DIST / "image-index"
        return release.reported(lambda: combine(images, index))
    output = options.output or release.place(options.arch) / "image"
    return release.reported(lambda: build(options.arch, output))


if __name__ == "__main__":
    sys.exit(main())
