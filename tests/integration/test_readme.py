"""What the README tells a newcomer is true: its example runs, its flags exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lavinmq.usage import help_text
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

README = Path(__file__).parents[2] / "README.md"
DEFAULT_PORT = "5672"
EXAMPLE_QUEUE = "greetings"


def section(title: str) -> str:
    """Return the text between a heading of the second level and the next one."""
    _, _, rest = README.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert rest, f"README.md has no section {title!r}"
    return rest.partition("\n## ")[0]


def code_block(text: str, language: str) -> str:
    """Return the only code block of that language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_first_message_arrives_as_the_readme_says(
    broker: Broker,
    channel: BlockingChannel,
    unique: UniqueName,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = section("The first message")
    queue = unique(EXAMPLE_QUEUE)
    source = code_block(text, "python").replace(EXAMPLE_QUEUE, queue)
    assert source.count(DEFAULT_PORT) == 1

    exec(compile(source.replace(DEFAULT_PORT, str(broker.port)), str(README), "exec"), {})

    assert capsys.readouterr().out == code_block(text, "text").replace(EXAMPLE_QUEUE, queue)
    assert channel.queue_delete(queue).method.message_count == 0


def test_every_flag_of_the_readme_is_one_of_the_broker() -> None:
    named = set(re.findall(r"^\| .*?\| ", section("Flags"), re.MULTILINE))
    flags = {flag for cell in named for flag in re.findall(r"`(-[-\w]+)", cell)}
    known = set(re.findall(r"(?<![\w-])-[-\w]+", help_text()))

    assert len(flags) > 10
    assert flags <= known
