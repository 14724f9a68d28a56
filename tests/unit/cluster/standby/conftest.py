"""A leader, and a follower with what stands ready on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster import standby
from tests.support.standby import Leader, Node
from tests.unit.cluster.test_changes import Copy


@pytest.fixture
def leader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Leader]:
    """Its parameter, if it has one: settings."""
    with closing(Leader(tmp_path / "leader", **getattr(request, "param", {}))) as made:
        yield made


@pytest.fixture
def node(leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A follower from now on, with what stands ready on it."""
    monkeypatch.setattr(standby, "LOOK_S", 0.0)
    monkeypatch.setattr(standby, "SHARE", 0)
    monkeypatch.setattr(standby, "AGAIN_S", 0.0)
    with ExitStack() as stack:
        source: Any = SimpleNamespace(root=leader.root, feed=leader.feed)
        copy = stack.enter_context(closing(Copy(source, tmp_path / "copy")))
        copy.connect()
        yield stack.enter_context(closing(Node(copy)))
