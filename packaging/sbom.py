"""The bill of materials of the executable, `dist/lavinmq.cdx.json`: `python packaging/sbom.py`.

CycloneDX 1.6, from dist/lavinmq.json (what is in it) and packaging/freeze/sources.toml (where that
comes from, by which licence), checked against the schema. What the container image has besides is
in it, too, as optional. Needs the extra `release`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import release
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

SOURCES = release.ROOT / "packaging/freeze/sources.toml"
PAGES = release.ROOT / "lavinmq/http/ui/static/vendor"
NAMESPACE = uuid.UUID("6d6f6e6b-6579-4c61-8769-6e6d71000000")


def build(architecture: str, output: Path) -> Path:
    """Write the bill and return its path. Raises: PackagingError."""
    described = release.executable(architecture)
    program = release.place(architecture) / "lavinmq"
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    ours = Component(
        type=ComponentType.APPLICATION, name="lavinmq", version=described["version"],
        bom_ref="lavinmq", licenses=[DisjunctiveLicense(id="Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )  # fmt: skip
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, digest))
    bom.metadata.timestamp = datetime.fromtimestamp(release.timestamp(), UTC)
    bom.metadata.component = ours
    sources = tomllib.loads(SOURCES.read_text())
    parts = [part(name, version, sources) for name, version in described["contains"].items()]
    parts.append(drawing())
    parts += [inner(**told) for told in described["parts"]]
    bom.components.update(parts)
    bom.components.update(tool(name, said) for name, said in described["built_with"].items())
    bom.components.update(of_image(sources))
    bom.register_dependency(ours, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error:
        raise release.PackagingError(f"the bill of materials is not valid: {error}")
    output.write_text(text + "\n")
    return output


def part(name: str, version: str, sources: dict[str, Any]) -> Component:
    """Return a component. Raises: PackagingError for one that sources.toml does not have."""
    source = sources.get(name)
    if source is None:
        raise release.PackagingError(f"packaging/freeze/sources.toml does not have {name!r}")
    package = source.get("names", [source.get("name", name)])[0]
    if source["kind"] == "pypi":
        origin = PackageURL("pypi", None, package.lower(), version)
    else:
        kind = {"arch": "source"} if source["kind"] == "source" else None
        origin = PackageURL("deb", "debian", package, version, qualifiers=kind)
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version, purl=origin, bom_ref=str(origin),
        # A sentence, as the table has it: what a component contains has licences of its own.
        licenses=[DisjunctiveLicense(name=source["license"])],
        properties=[Property(name="lavinmq:linked", value="static")],
    )  # fmt: skip


def inner(name: str, version: str, license: str, of: str, kind: str) -> Component:
    """Return what is in a component, as dist/lavinmq.json tells it (packaging/freeze/parts.py)."""
    origin = PackageURL(kind, None, name, version)
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version, purl=origin, bom_ref=str(origin),
        licenses=[DisjunctiveLicense(name=license)],
        properties=[
            Property(name="lavinmq:linked", value="static"),
            Property(name="lavinmq:part of", value=of),
        ],
    )  # fmt: skip


def of_image(sources: dict[str, Any]) -> Iterator[Component]:
    """Return what the container image has of Debian beside the executable."""
    for source in sources.values():
        if source.get("part") != "image":
            continue
        for name in source["names"]:
            origin = PackageURL("deb", "debian", name, source["version"])
            yield Component(
                type=ComponentType.LIBRARY, name=name, version=source["version"], purl=origin,
                bom_ref=str(origin), scope=ComponentScope.OPTIONAL,
                licenses=[DisjunctiveLicense(name=source["license"])],
                properties=[Property(name="lavinmq:shipped", value="in the container image")],
            )  # fmt: skip


def drawing() -> Component:
    """Return uPlot, which the management pages bring along; its first line has the version."""
    head = (PAGES / "uplot.js").read_text().partition("\n")[0]
    version = head.partition("(v")[2].partition(")")[0]
    if not version:
        raise release.PackagingError(f"{PAGES / 'uplot.js'} does not tell its version")
    origin = PackageURL("npm", None, "uplot", version)
    return Component(
        type=ComponentType.LIBRARY, name="uplot", version=version, purl=origin, bom_ref=str(origin),
        licenses=[DisjunctiveLicense(id="MIT")],
        properties=[Property(name="lavinmq:served", value="to browsers")],
    )  # fmt: skip


def tool(name: str, version: str) -> Component:
    """Return a program that has made the executable, and is no part of it."""
    return Component(
        type=ComponentType.APPLICATION, name=name, version=version, bom_ref=f"tool-{name}",
        scope=ComponentScope.EXCLUDED,
        properties=[Property(name="lavinmq:used", value="to build")],
    )  # fmt: skip


def main() -> int:
    """Write the bill; the exit status."""
    parser = argparse.ArgumentParser(description="Make the bill of materials of the executable.")
    release.add_architecture(parser)
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    output = options.output or release.place(options.arch) / "lavinmq.cdx.json"
    return release.reported(lambda: build(options.arch, output))


if __name__ == "__main__":
    sys.exit(main())
