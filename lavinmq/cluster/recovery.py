"""Going on without nodes that are lost for good, as an operator orders it at a node that is left.

`report` says what etcd and this node know, and what may be lost; `recover` changes etcd by one
transaction, which compares what the report has seen. It has this node be the only one in sync, so
that it leads; others that are there get its files. Nobody is ever asked by a timer or a vote.
Source: docs/clustering.md, decision 0115.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lavinmq.cluster.etcd import EtcdError
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.cluster.coordinator import Coordinator, State

ANSWER_S: Final = 1.0
CHANGED: Final = "etcd says something else than was shown: look again"
_log = log.get("lmq.cluster")


class Recovery:
    """What an operator may order at this node.

    Args: wanted: how many nodes have to have what is acknowledged, as configured; standing: whether
        this node's files are whole, the epoch and the position up to which they have everything;
        position 0: nobody knows; n_damaged: how many of them are known to be damaged.
    """

    def __init__(
        self, coordinator: Coordinator, wanted: int, standing: Callable[[], tuple[bool, int, int]],
        n_damaged: Callable[[], int] = int,
    ) -> None:  # fmt: skip
        self._coordinator = coordinator
        self._wanted = wanted
        self._standing = standing
        self._n_damaged = n_damaged
        self._n_orders = 0
        self._are_answered = asyncio.Event()
        self._are_answered.set()

    async def report(self) -> dict[str, Any]:
        """What is known, as JSON. Raises: OSError when etcd does not answer."""
        try:
            await self._coordinator.look()
        except EtcdError as error:
            raise OSError(str(error)) from error
        state, me = self._coordinator.state, self._coordinator.me
        is_whole, epoch, position = self._standing()
        is_in_sync = me in state.in_sync
        left = state.left.get(me)
        members = self._coordinator.left_over()
        return {
            "node": me,
            "is_in_sync": is_in_sync,
            "is_whole": is_whole,
            "damaged_files": self._n_damaged(),
            "epoch": epoch or None,
            "position": position or None,
            "left": left,
            "cluster": {
                "epoch": state.epoch,
                "epoch_leader": state.epoch_leader or None,
                "leads_now": None if state.leader is None else state.epoch_leader,
                "in_sync": sorted(state.in_sync),
                "members": sorted(state.members),
                "there": sorted(state.nodes),
            },
            "lost": sorted({*state.in_sync, *state.members} - {*state.nodes, me}),
            "members_then": sorted(members),
            "min_insync_replicas_then": self._wanted or len(members) // 2 + 1,
            "loss": _loss(is_in_sync, left, self._n_damaged()),
            "refusal": self._refusal(state, is_whole),
            "seen": list(self._coordinator.seen()),
        }

    async def recover(self, seen: Any) -> str:
        """Have this node go on alone. Args: seen: of a report. Returns: why not, empty if it is so
        now. Raises: OSError when etcd does not say so."""
        report = await self.report()
        if report["refusal"]:
            return str(report["refusal"])
        if seen != report["seen"]:
            return CHANGED
        cluster = report["cluster"]
        _log.warning(
            "an operator has this node go on alone, from epoch %s and position %s, with %d damaged"
            " files; lost: %s; in sync were: %s", report["epoch"], report["position"],
            report["damaged_files"], ", ".join(report["lost"]), ", ".join(cluster["in_sync"]),
        )  # fmt: skip
        self._n_orders += 1
        self._are_answered.clear()
        try:
            is_done = await self._coordinator.go_on_alone(tuple(report["seen"]))
        except EtcdError as error:
            raise OSError(str(error)) from error
        finally:
            self._n_orders -= 1
            if not self._n_orders:
                self._are_answered.set()
        if not is_done:
            _log.warning("it does not go on alone: %s", CHANGED)
        return "" if is_done else CHANGED

    async def answered(self) -> None:
        """Wait until etcd has answered every order. The node may hear of it from etcd before the
        one who ordered it has his answer, which he would not get from a closed socket."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._are_answered.wait()

    def _refusal(self, state: State, is_whole: bool) -> str:
        """Why it must not go on alone; empty: it may."""
        me = self._coordinator.me
        others = {*state.in_sync} & {*state.nodes} - {me}
        if not state.in_sync:
            return "etcd knows of no cluster: the first node that starts makes one"
        if not is_whole:
            return "the files of this node are between two states: it can never lead by them"
        if others:
            return f"nodes in sync are there, and can go on: {', '.join(sorted(others))}"
        if state.leader is not None and state.epoch_leader != me:
            return f"node {state.epoch_leader} leads"
        if set(state.in_sync) == {me} and set(state.members) <= {*state.nodes, me}:
            return "no node is missing: this one goes on already"
        return ""


def _loss(is_in_sync: bool, left: dict[str, Any] | None, n_damaged: int) -> str:
    """What may be lost, for people."""
    if n_damaged:
        which = f"what is damaged in {n_damaged} files of this node, which verify names"
        lost = _loss(is_in_sync, left, 0)
        return f"{which}; else {lost}" if is_in_sync else f"{which}, and {lost}"
    if is_in_sync:
        return "nothing that was acknowledged: this node is in sync"
    since = "an unknown time"
    if left is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(left["at"]))
        since = f"{when}, in epoch {left['epoch']} at position {left['position']}"
    return f"all that was acknowledged after this node had left the set: {since}"
