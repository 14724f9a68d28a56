"""Every example of the client's pages runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import Broker

DEADLINE_S = 120.0
DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (
    "client.md",
    "client-from-others.md",
    "client-adapters.md",
    "../packaging/client/README.md",
)
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(program, id=f"{Path(page).stem}-{number}")
    for page in PAGES
    for number, program in enumerate(PROGRAM.findall((DOCS / page).read_text()))
]
PRINTS = {
    "client-0": ["confirmed", "b'one' {'k': 1}"],
    "client-1": ["confirmed", "b'two'"],
    "client-2": ["{'confirmed'} 3"],
    "client-3": ["42"],
    "client-from-others-0": ["confirmed", "greetings b'hello'"],
    "client-from-others-1": ["{'id': 1}"],
    "client-adapters-0": ["5"],
    "client-adapters-1": ["{'hello': 'kombu'}"],
    "client-adapters-2": ["{'order': 7, 'total': 12}"],
    "client-adapters-3": ["hello dramatiq at the try 3"],
    "README-0": ["confirmed"],
}


@pytest.mark.parametrize("program", EXAMPLES)
def test_an_example_runs(program: str, own_broker: Broker, request: pytest.FixtureRequest) -> None:
    place = f"amqp://guest:guest@{own_broker.host}:{own_broker.port}"
    text = program.replace("amqp://guest:guest@localhost", place)
    text = text.replace("lavinmq://guest:guest@localhost", place.replace("amqp", "lavinmq"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    name = request.node.callspec.id
    assert done.stdout.splitlines() == PRINTS[name]
