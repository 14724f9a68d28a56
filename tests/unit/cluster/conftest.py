"""Two ends of a connection between nodes, plain and with TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lavinmq._cluster import Channel
from tests.support.certificates import Authority
from tests.support.secure_nodes import HOST, Nodes, Pair, linked, of

WAIT_S = 20.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """An authority, and a node that it knows."""
    authority = Authority(tmp_path_factory.mktemp("ca"))
    return Nodes(authority, authority.issue("good", (HOST, "127.0.0.1", "::1")))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.settimeout(WAIT_S)
        yield ours, theirs


@pytest.fixture
def ends(pair: Pair, nodes: Nodes) -> Iterator[list[Channel]]:
    """The same with TLS, the leader's end first."""
    made = linked(pair, of(nodes.authority, nodes.good))
    yield made
    for each in made:
        each.close()
