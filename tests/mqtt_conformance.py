"""Which test proves which statement of MQTT 3.1.1 and 5.0: makes and checks its page.

    python -m tests.mqtt_conformance > docs/mqtt-conformance.md
    python -m tests.mqtt_conformance --check

A test says in its docstring, or in a comment between its decorators and its end, what it proves,
the version first: `3.1.1 [MQTT-3.1.0-1], [MQTT-2.2.2-1], 5.0 [MQTT-3.3.1-9] to [MQTT-3.3.1-11]`.
What counts for which test is as in `conformance.py`. The wording of the statements, which of them
bind clients, and why some have no test, is in `mqtt_conformance.toml` beside this file.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance import ROOT, TESTS, Complaint, Proof, proofs_of

ITEMS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "mqtt-conformance.md"
VERSIONS = ("3.1.1", "5.0")
MARK = "[MQTT-"

_TOKEN = re.compile(
    r"(?P<to>\s+to\s+)?\[MQTT-(?P<id>[0-9.]+-[0-9]+)\]|(?<![\w.-])(?P<version>3\.1\.1|5\.0)(?![\w.-]*\d)"
)
_CHAPTERS = {
    "1": "Values", "2": "Packets", "3.1": "CONNECT", "3.2": "CONNACK", "3.3": "PUBLISH",
    "3.4": "PUBACK", "3.5": "PUBREC", "3.6": "PUBREL", "3.7": "PUBCOMP", "3.8": "SUBSCRIBE",
    "3.9": "SUBACK", "3.10": "UNSUBSCRIBE", "3.11": "UNSUBACK", "3.12": "PINGREQ",
    "3.14": "DISCONNECT", "3.15": "AUTH", "4": "Behaviour", "6": "WebSocket", "7": "Conformance",
}  # fmt: skip

HEAD = """\
# Conformance to MQTT

Every numbered statement of the standards MQTT 3.1.1 (OASIS, 29 October 2014) and MQTT 5.0 (OASIS,
7 March 2019), in words of our own, and the tests that prove it. The numbers are those of the
standards: `3.1.2-4` is their `[MQTT-3.1.2-4]`. A statement that binds clients is marked; a test
there shows what the broker does with a client that breaks it. [mqtt.md](mqtt.md) says what the
broker does where the standards leave a choice.

This page is made: `python -m tests.mqtt_conformance > docs/mqtt-conformance.md`. A test fails when
it is out of date, or when a statement has neither a test nor a reason.
"""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements by version, each with its wording, and what is said of some."""

    texts: dict[str, dict[str, str]]
    reasons: dict[tuple[str, str], str]


def named(text: str) -> set[str]:
    """The statements that a docstring or comment names, each as `version number`.

    Raises: Complaint: a number without a version before it.
    """
    found: set[str] = set()
    version = last = ""
    for match in _TOKEN.finditer(text):
        if match["version"]:
            version = match["version"]
            continue
        if not version:
            raise Complaint(f"no version is said for [MQTT-{match['id']}]")
        found |= _range(version, last, match["id"]) if match["to"] else {f"{version} {match['id']}"}
        last = match["id"]
    return found


def _range(version: str, first: str, last: str) -> set[str]:
    section, _, begin = first.rpartition("-")
    _, _, end = last.rpartition("-")
    return {f"{version} {section}-{number}" for number in range(int(begin), int(end) + 1)}


def proofs() -> dict[str, list[Proof]]:
    """All proofs by statement. Raises: Complaint."""
    found: set[tuple[str, Proof]] = set()
    for path in sorted(TESTS.rglob("test_*.py")):
        if "node_modules" in path.parts or path.name == "test_mqtt_conformance.py":
            continue
        source = path.read_text(encoding="utf-8")
        if MARK in source:
            try:
                found |= set(proofs_of(source, path.relative_to(ROOT).as_posix(), named, MARK))
            except Complaint as complaint:
                raise Complaint(f"{path.relative_to(ROOT)}: {complaint}") from complaint
    by_item: dict[str, list[Proof]] = {}
    for item, proof in sorted(found, key=lambda pair: (pair[1].path, pair[1].text)):
        by_item.setdefault(item, []).append(proof)
    return by_item


def read(text: str) -> Statements:
    """What `mqtt_conformance.toml` says."""
    table: dict[str, Any] = tomllib.loads(text)
    reasons: dict[tuple[str, str], str] = {}
    for reason, by_version in {
        "binds clients": table["binds clients"],
        **table["has no test"],
    }.items():
        for version, numbers in by_version.items():
            reasons |= {(version, number): reason for number in numbers.split()}
    return Statements({version: table[version] for version in VERSIONS}, reasons)


def complaints(items: Statements, found: dict[str, list[Proof]]) -> list[str]:
    """What is wrong with the statements and their proofs, a line each."""
    known = {(version, number) for version in items.texts for number in items.texts[version]}
    lines = [
        f"{version} [MQTT-{number}] has neither a test nor a reason"
        for version, numbers in items.texts.items()
        for number in numbers
        if f"{version} {number}" not in found and (version, number) not in items.reasons
    ]
    for item in found:
        version, _, number = item.partition(" ")
        if (version, number) not in known:
            lines.append(f"{found[item][0].text} names {version} [MQTT-{number}], which is none")
    lines += [
        f"a reason is given for {each}, which is none"
        for each in items.reasons
        if each not in known
    ]
    return lines


def _rows(items: Statements, found: dict[str, list[Proof]], version: str) -> Iterator[str]:
    chapter = ""
    for number, text in items.texts[version].items():
        parts = number.split("-")[0].split(".")
        name = parts[0] if parts[0] != "3" else ".".join(parts[:2])
        if name != chapter:
            chapter = name
            yield from ("", f"### {version}: {_CHAPTERS[name]}", "")
            yield from ("| Statement | What | Proved by |", "| --- | --- | --- |")
        proving = found.get(f"{version} {number}", [])
        cells = [f"*{reason}*"] if (reason := items.reasons.get((version, number))) else []
        cells += [f"[{proof.text}](../{proof.path})" for proof in proving]
        yield f"| {number} | {text} | {'<br>'.join(cells)} |"


def page(items: Statements, found: dict[str, list[Proof]]) -> str:
    """The page."""
    lines = [HEAD]
    for version, texts in items.texts.items():
        proved = sum(f"{version} {number}" in found for number in texts)
        clients = sum(
            items.reasons.get((version, number)) == "binds clients" for number in texts
        )  # fmt: skip
        lines += [
            f"## MQTT {version}", "",
            f"{len(texts)} statements, of which {clients} bind clients; {proved} have a test.",
            *_rows(items, found, version), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the page, or with `--check` what is wrong; return the exit code."""
    try:
        items, found = read(ITEMS.read_text(encoding="utf-8")), proofs()
    except Complaint as complaint:
        print(complaint, file=sys.stderr)
        return 1
    if arguments != ["--check"]:
        sys.stdout.write(page(items, found))
        return 0
    wrong = complaints(items, found)
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(items, found):
        wrong.append("run: python -m tests.mqtt_conformance > docs/mqtt-conformance.md")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
