"""Images for several processors under one name, without what is in them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging"))
import image
import release

combine = image.combine


def layout(path: Path, architecture: str) -> Path:
    """An image with one layer."""
    made = image.Layout(path)
    config = image.describe([image.Layer({}, "sha256:0")], architecture)
    described = made.blob(image.CONFIG, json.dumps(config).encode())
    layer = made.blob(image.LAYER, architecture.encode())
    manifest = {"schemaVersion": 2, "config": described, "layers": [layer]}
    made.finish(made.blob(image.MANIFEST, json.dumps(manifest).encode()), release.version())
    return path


def read(path: Path, described: dict[str, Any]) -> dict[str, Any]:
    """A blob, which has to be what its descriptor says."""
    content = (path / "blobs" / described["digest"].replace(":", "/")).read_bytes()
    assert len(content) == described["size"]
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == described["digest"]
    found: dict[str, Any] = json.loads(content)
    return found


def test_an_index_names_an_image_for_each_processor(tmp_path: Path) -> None:
    images = [layout(tmp_path / name, name) for name in ("amd64", "arm64")]

    index = image.combine(images, tmp_path / "index")

    (named,) = json.loads((index / "index.json").read_text())["manifests"]
    assert named["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert named["annotations"] == {"org.opencontainers.image.ref.name": release.version()}
    manifests = read(index, named)["manifests"]
    assert [each["platform"] for each in manifests] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux"},
    ]
    for each in manifests:
        manifest = read(index, each)
        config = read(index, manifest["config"])
        (layer,) = manifest["layers"]
        kept = index / "blobs" / layer["digest"].replace(":", "/")
        assert kept.read_text() == config["architecture"] == each["platform"]["architecture"]


def test_an_image_that_is_missing_is_named(tmp_path: Path) -> None:
    images = [layout(tmp_path / "amd64", "amd64"), tmp_path / "arm64"]

    with pytest.raises(release.PackagingError, match="arm64 is missing: make image"):
        image.combine(images, tmp_path / "index")
