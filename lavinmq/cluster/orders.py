"""What operators ask of a cluster at the node that leads: its picture, and changes of it.

Source: docs/clustering.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lavinmq.cluster.coordinator import Coordinator
    from lavinmq.cluster.leading import Leading
    from lavinmq.cluster.recovery import Recovery
    from lavinmq.cluster.status import Status


class Orders:
    """A `broker.Cluster`. Args: make_way: ends this node in order, so that another one leads."""

    def __init__(
        self, status: Status, coordinator: Coordinator, leading: Leading,
        recovery: Recovery, make_way: Callable[[], object],
    ) -> None:  # fmt: skip
        self.status = status.status
        self.followers = status.followers
        self.recovery = recovery.report
        self._recovery = recovery
        self._status = status
        self._coordinator = coordinator
        self._leading = leading
        self._make_way = make_way

    def place(self) -> tuple[int, int]:
        """The epoch, and the position behind the last change."""
        return self._leading.epoch, self._leading.head

    async def forget(self, node: str) -> str:
        """Count a node no more that does not come back. Returns: why not, empty if it is so now.
        Raises: OSError when etcd does not say so."""
        from lavinmq.cluster.etcd import EtcdError

        try:
            return await self._coordinator.forget(self._leading.epoch, node)
        except EtcdError as error:
            raise OSError(str(error)) from error

    async def recover(self, seen: Any) -> str:
        """Go on without nodes that are lost. Returns: why not, empty if it is so now. Raises:
        OSError when etcd does not say so."""
        return await self._leading.recover(self._recovery, seen)

    def transfer(self) -> str:
        """Have another node lead. Returns: why not, empty if it is going to."""
        picture: dict[str, Any] = self._status.status()
        if not picture["safe_to_restart"]:
            return str(picture["reasons"]["safe_to_restart"])
        if not any(each["in_sync"] for each in picture["followers"]):
            return "no other node is in sync"
        self._make_way()
        return ""
