"""What a node knows of its cluster, as JSON: who leads, who is in sync, how far followers are.

On the loop's thread. The node has it look ten times a second, as the age of what is behind, and
silence, are seen only by who looks; HTTP asks it for a picture. It decides nothing.
Source: docs/clustering.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq.cluster.ages import Ages

if TYPE_CHECKING:
    from lavinmq._cluster import Ring
    from lavinmq.cluster.coordinator import Coordinator, State
    from lavinmq.cluster.following import Following
    from lavinmq.cluster.leading import Leading, Session
    from lavinmq.cluster.reads import Reads
    from lavinmq.cluster.standby import Standby
    from lavinmq.integrity.keeper import Integrity

NO_LEADER: Final = "no leader is known"
NOT_FOLLOWING: Final = "this node neither leads nor follows"
NOT_JOINED: Final = "this node does not follow the leader yet"


class Status:
    """The picture of one node.

    Args: wanted: how many nodes the operator wants to have what is acknowledged, 0: most; is_whole:
        whether its files are a whole; may_lead: whether it could lead; leading, following: what it
        does now; integrity: the sums of its files; reads: who serves readers, None: nobody;
        standby: what is read ahead; tls: how it speaks with others, "off", "optional" or
        "required".
    """

    def __init__(
        self, coordinator: Coordinator, ring: Ring, wanted: int, *, is_whole: Callable[[], bool],
        may_lead: Callable[[], bool], leading: Callable[[], Leading | None],
        following: Callable[[], Following | None], integrity: Integrity | None = None,
        reads: Reads | None = None, standby: Standby | None = None, tls: str = "off",
    ) -> None:  # fmt: skip
        self._coordinator = coordinator
        self._ring = ring
        self._wanted = wanted
        self._is_whole = is_whole
        self._may_lead = may_lead
        self._leading = leading
        self._following = following
        self._ages = Ages(ring.head)
        self._integrity = integrity
        self._reads = reads
        self._standby = standby
        self._tls = tls

    def look(self) -> None:
        """Notice what has happened since the last time."""
        self._ages.look(self._head())

    def _head(self) -> int:
        leading = self._leading()
        return self._ring.head if leading is None else leading.head

    def status(self) -> dict[str, Any]:
        """The picture."""
        self.look()
        state, leading, following = self._coordinator.state, self._leading(), self._following()
        in_sync = self._in_sync(state, leading)
        least = state.least(self._wanted)
        reasons = {
            "acknowledges": "" if leading is None else self._held(leading, in_sync, least),
            "ready": self._unready(state, leading, following),
            "safe_to_restart": self._critical(state, leading, in_sync, least),
        }
        reasons["ready"] = reasons["ready"] or reasons["acknowledges"]
        return {
            "id": self._coordinator.me,
            "role": "none" if leading is None and following is None
            else "follower" if leading is None else "leader",
            "whole": self._is_whole(),
            "may_lead": self._may_lead(),
            "tls": self._tls,
            "ready": not reasons["ready"],
            "safe_to_restart": not reasons["safe_to_restart"],
            "acknowledges": None if leading is None else not reasons["acknowledges"],
            "refuses": None if leading is None else leading.is_refusing,
            "reasons": {name: why for name, why in reasons.items() if why},
            "epoch": state.epoch,
            "leader": None if state.leader is None
            else {"id": state.epoch_leader, "uri": state.leader.uri},
            "nodes": self._nodes(state, in_sync),
            "in_sync": sorted(in_sync),
            "members": sorted(state.members),
            "min_insync_replicas": least,
            "copies": None if leading is None else leading.n_copies,
            "position": self._head(),
            "followers": [] if leading is None else self._followers(leading, in_sync),
            "following": None if following is None else self._followed(state, following),
            "reads": None if self._reads is None else self._reads.status(),
            "standby": None if self._standby is None or leading is not None
            else self._standby.status(),
            "elections": [each._asdict() for each in state.elections],
            "etcd_silent_seconds": round(self._coordinator.etcd.silent_s, 3),
            "integrity": None if self._integrity is None else self._integrity.status(),
        }  # fmt: skip

    def followers(self) -> list[dict[str, Any]]:
        """Who follows, by LavinMQ's names and a few more. Bytes are counted from the beginning of
        the cluster, but for the last two, which are those of the connection."""
        self.look()
        leading = self._leading()
        if leading is None:
            return []
        return [
            {
                "id": each["id"],
                "remote_address": each["remote_address"],
                "sent_bytes": each["sent_position"],
                "acked_bytes": each["acked_position"],
                "lag_in_bytes": each["lag_in_bytes"],
                "lag_seconds": each["lag_seconds"],
                "in_sync": each["in_sync"],
                "epoch": leading.epoch,
                "compression_ratio": _ratio(each["uncompressed_bytes"], each["compressed_bytes"]),
                "uncompressed_bytes": each["uncompressed_bytes"],
                "compressed_bytes": each["compressed_bytes"],
            }
            for each in self._followers(leading, self._in_sync(self._coordinator.state, leading))
            if not each["joining"]
        ]

    # --- parts --------------------------------------------------------------------------------

    @staticmethod
    def _in_sync(state: State, leading: Leading | None) -> set[str]:
        return set(state.in_sync) if leading is None else leading.in_sync

    @staticmethod
    def _nodes(state: State, in_sync: set[str]) -> list[dict[str, Any]]:
        members = set(state.members)
        rows = []
        for node in sorted({*members, *in_sync, *state.nodes}):
            said = state.nodes.get(node, {})
            place = {name: _text(said.get(name)) for name in ("uri", "address", "version")}
            rows.append({
                "id": node, **place, "live": node in state.nodes, "in_sync": node in in_sync,
                "member": node in members,
            })  # fmt: skip
        return rows

    def _followers(self, leading: Leading, in_sync: set[str]) -> list[dict[str, Any]]:
        sessions = sorted(leading.sessions, key=lambda each: (each.node, each.where))
        return [self._follower(each, leading.head, in_sync) for each in sessions if each.node]

    def _follower(self, session: Session, head: int, in_sync: set[str]) -> dict[str, Any]:
        peer = session.peer
        return {
            "id": session.node,
            "remote_address": session.where,
            "version": session.version,
            "encrypted": session.is_encrypted,
            "sent_position": None if peer is None else peer.sent,
            "acked_position": None if peer is None else peer.acked,
            "uncompressed_bytes": None if peer is None else peer.n_sent,
            "compressed_bytes": None if peer is None else peer.n_wire,
            "lag_in_bytes": None if peer is None else max(0, head - peer.acked),
            "lag_seconds": None if peer is None else round(self._ages.of(peer.acked), 3),
            "in_sync": peer is not None and session.node in in_sync and peer.is_required,
            "joining": peer is None,
        }

    def _followed(self, state: State, following: Following) -> dict[str, Any]:
        follower = following.follower
        synced = None if follower is None else follower.synced
        return {
            "id": state.epoch_leader if state.leader is not None else None,
            "uri": following.uri,
            "position": self._ring.head,
            "lag_in_bytes": None if synced is None else max(0, self._ring.head - synced),
            "lag_seconds": None if synced is None else round(self._ages.of(synced), 3),
            "joined": _is_joined(following),
            "encrypted": following.is_encrypted,
            "error": following.error,
            "silent_seconds": round(self._ages.head_s, 3),
        }

    # --- judgements: why not, for people; empty: it is so ----------------------------------------

    def _held(self, leading: Leading, in_sync: set[str], least: int) -> str:
        missing = in_sync - _required(leading) - {self._coordinator.me}
        if missing:
            return f"nodes in sync do not follow: {', '.join(sorted(missing))}"
        if leading.n_copies < least:
            return f"{leading.n_copies} of {least} nodes that are needed are in sync"
        return ""

    @staticmethod
    def _unready(state: State, leading: Leading | None, following: Following | None) -> str:
        if leading is not None:
            return ""
        if state.leader is None:
            return NO_LEADER
        if following is None:
            return NOT_FOLLOWING
        # From others a leader takes no clients that are passed on.
        return "" if _is_joined(following) else following.error or NOT_JOINED

    def _critical(
        self, state: State, leading: Leading | None, in_sync: set[str], least: int
    ) -> str:
        """Whether too few would be in sync without this node."""
        others = (in_sync & set(state.nodes)) - {self._coordinator.me}
        if leading is not None:
            others &= _required(leading)
        if len(others) >= least:
            return ""
        return f"without this node {len(others)} of {least} nodes that are needed are in sync"


def _is_joined(following: Following) -> bool:
    """Whether a follower has all files, and is connected."""
    return following.is_joined and following.follower is not None


def _required(leading: Leading) -> set[str]:
    """Followers for which acknowledgements wait, and that are there."""
    return {each.node for each in leading.sessions if each.peer and each.peer.is_required}


def _ratio(n: int, n_wire: int) -> float:
    """How many bytes of changes went as one. What has a head of its own does not count."""
    return round(max(n / n_wire, 1.0), 3) if n_wire else 1.0


def _text(value: Any) -> str | None:
    """What another node has written into etcd, if it is text."""
    return value if isinstance(value, str) else None
