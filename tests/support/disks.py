"""The disks of a test's cluster: `disk_shim.c` between each node and its own."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from tests.support.cluster import Cluster, ClusterNode
from tests.support.disk import Action, Call, Disk


class Disks:
    """A cluster whose nodes have a disk of their own each."""

    def __init__(self, cluster: Cluster, shim: Path, stack: ExitStack) -> None:
        self.cluster = cluster
        self._shim, self._stack = shim, stack
        self.of: dict[ClusterNode, Disk] = {}
        for each in cluster.nodes:
            self._give(each)

    def _give(self, node: ClusterNode) -> None:
        directory = self.cluster.directory / f"disk-{node}"
        directory.mkdir()
        disk = self._stack.enter_context(closing(Disk(self._shim, node.data_dir, directory)))
        node.env |= disk.env()
        self.of[node] = disk

    def heal(self) -> None:
        """Let nothing happen any more."""
        for each in self.of.values():
            each.plan(Action.NOTHING, Call(0))

    def pick(self, role: str) -> ClusterNode:
        """Who leads, or a follower."""
        return self.cluster.leader() if role == "leader" else self.cluster.followers()[0]
