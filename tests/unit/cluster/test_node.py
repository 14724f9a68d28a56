"""A node that ends lets go of everything, whatever else happens meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lavinmq.cluster.etcd import EtcdError
from lavinmq.cluster.node import Node
from lavinmq.config.values import load
from lavinmq.process.systemd import Service
from tests.support.ports import free_port


def made(root: Path, events: asyncio.AbstractEventLoop) -> Node:
    """One whose etcd does not answer."""
    config = load(
        ["-D", str(root), "--clustering", "--clustering-advertised-uri", "tcp://127.0.0.1:1",
         "--clustering-etcd-endpoints", f"127.0.0.1:{free_port()}"], {},
    )  # fmt: skip
    return Node(config, events, Service({}), is_clean=True, integrity=None)


@pytest.mark.parametrize("what", ["_end", "stop"])
def test_what_comes_while_a_node_lets_go_does_not_end_that(tmp_path: Path, what: str) -> None:
    """A leader that found again that it is in the way, or a second signal, left a traceback, and
    the lease to its end."""
    with closing(asyncio.new_event_loop()) as events:
        node: Any = made(tmp_path, events)
        revoked: list[int] = []

        async def revoke(lease: int) -> None:
            node.stop() if what == "stop" else node._end("once more", 3)
            await asyncio.sleep(0)
            revoked.append(lease)
            raise EtcdError("nobody answers")

        node._etcd.revoke, node._lease = revoke, 7
        events.call_soon(node._end, "it leads no more", 3)
        events.run_forever()

        events.run_until_complete(node.release())

        assert revoked == [7]
        assert node.exit_code == 3
