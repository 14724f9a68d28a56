"""What the README tells a newcomer is true: its programs run, in each of their languages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.client_program import environment, library, program
from tests.integration.conftest import UniqueName
from tests.integration.test_go_amqp091 import CACHE, GOPATH, LIBRARY
from tests.integration.test_java_client import LIBRARIES
from tests.integration.test_node_amqplib import NODE_DIRECTORY
from tests.support.broker import Broker

README = Path(__file__).parents[2] / "README.md"
DEFAULT_PORT = "5672"
EXAMPLE_QUEUE = "greetings"
PROGRAM_TIMEOUT_S = 90.0
FILES = {"python": "hello.py", "javascript": "hello.js", "go": "hello.go", "java": "Hello.java"}


def section(title: str) -> str:
    """Return the text between a heading of the second level and the next one."""
    _, _, rest = README.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert rest, f"README.md has no section {title!r}"
    return rest.partition("\n## ")[0]


def code_block(text: str, language: str) -> str:
    """Return the only code block of that language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(block)


def command(language: str, source: Path) -> tuple[list[str | Path], dict[str, str]]:
    """Return what runs a source, and the environment it needs beside the usual one."""
    if language == "python":
        return [sys.executable, source], {}
    if language == "javascript":
        return [program("node"), source], {"NODE_PATH": str(NODE_DIRECTORY / "node_modules")}
    if language == "go":
        library(LIBRARY)
        settings = {"GO111MODULE": "off", "GOPATH": GOPATH, "GOCACHE": str(CACHE)}
        return [program("go"), "run", source], settings
    path = ":".join(str(library(each)) for each in LIBRARIES)
    # One source file: the launcher compiles it, with the compiler of the run-time image.
    return [program("java"), "-cp", path, "--source", "17", source], {}


@pytest.mark.parametrize("language", FILES)
def test_the_first_message_arrives_as_the_readme_says(
    language: str, broker: Broker, channel: BlockingChannel, unique: UniqueName, tmp_path: Path
) -> None:
    text = section("The first message")
    queue = unique(EXAMPLE_QUEUE)
    source = code_block(text, language).replace(EXAMPLE_QUEUE, queue)
    assert source.count(DEFAULT_PORT) == 1
    path = tmp_path / FILES[language]
    path.write_text(source.replace(DEFAULT_PORT, str(broker.port)))
    argv, settings = command(language, path)

    ended = subprocess.run(
        argv, env=environment() | settings, cwd=tmp_path, capture_output=True, text=True,
        timeout=PROGRAM_TIMEOUT_S, check=False,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (
        0, code_block(text, "text").replace(EXAMPLE_QUEUE, queue),
    ), ended.stderr  # fmt: skip
    assert channel.queue_delete(queue).method.message_count == 0
