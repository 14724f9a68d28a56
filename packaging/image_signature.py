"""Signatures of the container image, for those who check before they run: `make sign-image`.

Each manifest of `dist/image-index` is signed by gpg for the name that it is published under, by
skopeo. The signatures are laid out as podman, CRI-O and skopeo look for them below the address that
/etc/containers/registries.d names. Source: containers-signature(5), containers-registries.d(5).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import keyring
import release


def sign(image: Path, reference: str, key: str, output: Path) -> Path:
    """Sign every manifest of a layout and return the directory of signatures, made anew.

    Args: reference: the name that it is published under, such as registry.example.com/lavinmq:1.0;
        key: a key of gpg.

    Raises: PackagingError, CalledProcessError.
    """
    registry, _, path = reference.rpartition(":")[0].partition("/")
    if not registry or not path:
        raise release.PackagingError(
            f"Image name '{reference}' must have a registry and a tag: "
            "registry.example.com/lavinmq:1.0"
        )
    if not (image / "index.json").exists():
        raise release.PackagingError(f"{image} is missing: make image, make image ARGS=--index")
    fingerprint = keyring.fingerprint(key)
    shutil.rmtree(output, ignore_errors=True)
    for digest in manifests(image):
        place = output / f"{path}@{digest.replace(':', '=')}"
        place.mkdir(parents=True)
        release.run(
            "skopeo", "standalone-sign", _blob(image, digest), reference, fingerprint,
            "--output", place / "signature-1",
        )  # fmt: skip
    return output


def manifests(image: Path) -> list[str]:
    """Return the digests of what a layout names: an image, or an index and the images in it."""
    (named,) = json.loads((image / "index.json").read_text())["manifests"]
    inner = json.loads(_blob(image, named["digest"]).read_text()).get("manifests", [])
    return [named["digest"], *(described["digest"] for described in inner)]


def _blob(image: Path, digest: str) -> Path:
    return image / "blobs" / digest.replace(":", "/")


def main() -> int:
    """Sign the image; the exit status."""
    parser = argparse.ArgumentParser(description="Sign the container image.")
    parser.add_argument("--key", required=True, help="the key of gpg that signs")
    parser.add_argument("--reference", required=True, help="registry.example.com/lavinmq:1.0")
    parser.add_argument("--image", type=Path, metavar="DIR", default=release.DIST / "image-index")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", default=release.DIST / "image-signatures"
    )
    options = parser.parse_args()
    return release.reported(
        lambda: sign(options.image, options.reference, options.key, options.output)
    )


if __name__ == "__main__":
    sys.exit(main())
