"""Data directories with all that MQTT keeps, left by earlier releases, are opened with all of it.

`tests/support/mqtt_past.py` has made them, and knows what there is to find.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.mqtt_past import ENDS, FOLDER, STORIES, Story, past

RELEASES = ("mqtt-0.2.1",)


@pytest.fixture(scope="module", params=[(name, end) for name in RELEASES for end in ENDS],
                ids=lambda given: "-".join(given))  # fmt: skip
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, str]]:
    """A broker on what a release has left, and how that has ended. Each story has clients and
    topics of its own."""
    name, end = request.param
    directory: Path = tmp_path_factory.mktemp("past") / "data"
    directory.mkdir()
    archive = FOLDER / f"{name}-{end}.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "-C", directory], check=True)
    with closing(past(directory).start()) as broker:
        yield broker, end


@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
def test_what_clients_have_left_is_there_once(opened: tuple[Broker, str], story: Story) -> None:
    broker, end = opened
    story.find(broker, end)
