"""The picture of a cluster: what a node knows, and what it makes of that."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster.coordinator import Leader, State
from lavinmq.cluster.elections import Election
from lavinmq.cluster.status import Status

LEADER = Leader("lavinmq/leader/1", "tcp://a:5679", 1, 10)
NODES = {
    name: {"uri": f"tcp://{name}:5679", "address": name, "version": "1.0"} for name in ("a", "b")
}
STATE = State(
    leader=LEADER, epoch=3, epoch_leader="a", in_sync=("b", "a"), members=("c", "b", "a"),
    nodes=NODES,
)  # fmt: skip


def some(**values: Any) -> Any:
    """A part of a node that has these, and nothing else."""
    return SimpleNamespace(**values)


def session(
    node: str, *, acked: int = 90, is_required: bool = True, is_joining: bool = False
) -> Any:
    peer = some(sent=95, acked=acked, lag_s=0.25, is_required=is_required, n_sent=90, n_wire=20)
    return some(
        node=node, where=f"10.0.0.1:{len(node)}", version="1.0", is_encrypted=False,
        peer=None if is_joining else peer,
    )  # fmt: skip


def leading(*sessions: Any, in_sync: set[str]) -> Any:
    n_copies = 1 + sum(each.peer is not None and each.peer.is_required for each in sessions)
    return some(
        sessions=list(sessions), head=100, in_sync=in_sync, n_copies=n_copies, epoch=3,
        is_refusing=False,
    )  # fmt: skip


class Clock:
    """What the monotonic clock says."""

    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    found = Clock()
    monkeypatch.setattr("lavinmq.cluster.ages.time.monotonic", lambda: found.now)
    return found


class Known:
    """A node's parts, for a status to look at."""

    def __init__(self, me: str = "a", state: State = STATE, wanted: int = 0) -> None:
        self.coordinator = some(me=me, state=state, etcd=some(silent_s=0.5))
        self.ring = some(head=80)
        self.leading: Any = None
        self.following: Any = None
        self.is_whole = True
        self.status = Status(
            self.coordinator, self.ring, wanted, is_whole=lambda: self.is_whole,
            may_lead=lambda: True, leading=lambda: self.leading, following=lambda: self.following,
        )  # fmt: skip

    def see(self, **changes: Any) -> dict[str, Any]:
        """The picture after a change of what etcd says."""
        self.coordinator.state = replace(self.coordinator.state, **changes)
        return self.status.status()


def leader(*sessions: Any, in_sync: set[str], **others: Any) -> Known:
    known = Known(**others)
    known.leading = leading(*sessions, in_sync=in_sync)
    return known


def follower(**others: Any) -> Known:
    known = Known(me="b", **others)
    known.following = some(
        uri="tcp://a:5679", error="", is_joined=True, is_encrypted=False, follower=some(synced=75)
    )
    return known


def test_a_leader_shows_who_is_where() -> None:
    picture = leader(session("b"), in_sync={"a", "b"}).status.status()

    assert (picture["id"], picture["role"], picture["epoch"]) == ("a", "leader", 3)
    assert picture["leader"] == {"id": "a", "uri": "tcp://a:5679"}
    assert (picture["in_sync"], picture["members"]) == (["a", "b"], ["a", "b", "c"])
    assert (picture["min_insync_replicas"], picture["copies"], picture["position"]) == (2, 2, 100)
    assert [node["id"] for node in picture["nodes"]] == ["a", "b", "c"]
    assert picture["nodes"][1] == {
        "id": "b", "uri": "tcp://b:5679", "address": "b", "version": "1.0", "live": True,
        "in_sync": True, "member": True,
    }  # fmt: skip
    assert picture["nodes"][2] == {
        "id": "c", "uri": None, "address": None, "version": None, "live": False,
        "in_sync": False, "member": True,
    }  # fmt: skip
    assert picture["following"] is None


def test_a_leader_shows_how_far_followers_are(clock: Clock) -> None:
    known = leader(session("b"), session("c", is_joining=True), session(""), in_sync={"a", "b"})

    first, second = known.status.status()["followers"]

    assert first == {
        "id": "b", "remote_address": "10.0.0.1:1", "version": "1.0", "sent_position": 95,
        "acked_position": 90, "lag_in_bytes": 10, "lag_seconds": 0, "in_sync": True,
        "joining": False, "uncompressed_bytes": 90, "compressed_bytes": 20, "encrypted": False,
    }  # fmt: skip
    assert (second["id"], second["joining"], second["lag_in_bytes"]) == ("c", True, None)
    assert known.status.followers() == [{
        "id": "b", "remote_address": "10.0.0.1:1", "sent_bytes": 95, "acked_bytes": 90,
        "lag_in_bytes": 10, "lag_seconds": 0, "in_sync": True, "epoch": 3,
        "compression_ratio": 4.5, "uncompressed_bytes": 90, "compressed_bytes": 20,
    }]  # fmt: skip


def test_a_lag_in_seconds_is_the_age_of_the_oldest_change_that_is_missing(clock: Clock) -> None:
    known = leader(session("b", acked=100), session("c", acked=105), in_sync={"a", "b", "c"})
    known.status.look()
    for head in (110, 120):
        clock.now += 3
        known.leading.head = head
        known.status.look()
    clock.now += 1

    assert [each["lag_seconds"] for each in known.status.followers()] == [4, 4]
    known.leading.sessions[0].peer.acked = 110
    known.leading.sessions[1].peer.acked = 120
    assert [each["lag_seconds"] for each in known.status.status()["followers"]] == [1, 0]


def test_a_leader_with_enough_in_sync_acknowledges() -> None:
    picture = leader(session("b"), in_sync={"a", "b"}).status.status()

    assert (picture["acknowledges"], picture["ready"]) == (True, True)
    assert picture["reasons"].keys() == {"safe_to_restart"}


def test_a_leader_says_whether_publishers_are_refused() -> None:
    known = leader(session("b"), in_sync={"a", "b"})
    assert known.status.status()["refuses"] is False
    known.leading.is_refusing = True
    assert known.status.status()["refuses"] is True
    assert follower().status.status()["refuses"] is None


def test_nothing_is_acknowledged_with_too_few_in_sync() -> None:
    known = leader(session("b", is_required=False), in_sync={"a"})

    picture = known.status.status()

    why = "1 of 2 nodes that are needed are in sync"
    assert (picture["acknowledges"], picture["ready"]) == (False, False)
    assert picture["reasons"]["acknowledges"] == picture["reasons"]["ready"] == why
    assert picture["followers"][0]["in_sync"] is False


def test_nothing_is_acknowledged_while_one_in_sync_does_not_follow() -> None:
    picture = leader(session("b"), in_sync={"a", "b", "c"}).status.status()

    assert picture["acknowledges"] is False
    assert picture["reasons"]["acknowledges"] == "nodes in sync do not follow: c"


def test_what_the_operator_wants_counts_instead_of_most() -> None:
    picture = leader(in_sync={"a"}, wanted=1).status.status()

    assert (picture["min_insync_replicas"], picture["acknowledges"]) == (1, True)


@pytest.mark.parametrize(
    ("names", "is_safe"), [((), False), (("b",), False), (("b", "c"), True)]
)  # fmt: skip
def test_a_leader_may_be_restarted_when_enough_others_follow(
    names: tuple[str, ...], is_safe: bool
) -> None:
    live = {**NODES, "c": {}}
    known = leader(*map(session, names), in_sync={"a", *names}, state=replace(STATE, nodes=live))

    picture = known.status.status()

    assert picture["safe_to_restart"] is is_safe
    assert is_safe or picture["reasons"]["safe_to_restart"] == (
        f"without this node {len(names)} of 2 nodes that are needed are in sync"
    )


@pytest.mark.parametrize(
    ("in_sync", "live", "is_safe"),
    [("abc", "abc", True), ("ac", "abc", True), ("ab", "abc", False), ("abc", "ab", False)],
)
def test_a_follower_may_be_restarted_when_enough_others_are_in_sync_and_live(
    in_sync: str, live: str, is_safe: bool
) -> None:
    picture = follower().see(in_sync=tuple(in_sync), nodes={each: {} for each in live})

    assert picture["safe_to_restart"] is is_safe


def test_a_follower_shows_whom_it_follows(clock: Clock) -> None:
    known = follower()
    known.ring.head = 70
    known.status.look()  # other files have come
    known.ring.head = 80
    known.status.look()
    clock.now += 7
    picture = known.status.status()

    assert (picture["role"], picture["copies"], picture["acknowledges"]) == ("follower", None, None)
    assert (picture["ready"], picture["followers"], picture["position"]) == (True, [], 80)
    assert picture["following"] == {
        "id": "a", "uri": "tcp://a:5679", "position": 80, "lag_in_bytes": 5, "lag_seconds": 7,
        "joined": True, "error": "", "silent_seconds": 7, "encrypted": False,
    }  # fmt: skip


def test_a_follower_that_is_not_connected_says_why() -> None:
    known = follower()
    known.following.follower, known.following.error = None, "Connection refused"

    picture = known.status.status()

    shown = picture["following"]
    assert (shown["joined"], shown["lag_in_bytes"]) == (False, None)
    assert shown["error"] == picture["reasons"]["ready"] == "Connection refused"


def test_nobody_is_served_through_a_follower_that_has_not_joined() -> None:
    known = follower()
    known.following.is_joined = False

    picture = known.status.status()

    assert picture["ready"] is False
    assert picture["reasons"]["ready"] == "this node does not follow the leader yet"


def test_nobody_is_served_without_a_leader() -> None:
    picture = follower().see(leader=None)

    assert (picture["ready"], picture["reasons"]["ready"]) == (False, "no leader is known")
    assert (picture["leader"], picture["following"]["id"]) == (None, None)


def test_a_node_that_has_just_started_has_no_role() -> None:
    known = Known(me="z", state=State())

    picture = known.status.status()

    assert (picture["role"], picture["epoch"], picture["ready"]) == ("none", 0, False)
    assert (picture["nodes"], picture["elections"], picture["leader"]) == ([], [], None)
    assert known.see(leader=LEADER)["reasons"]["ready"] == "this node neither leads nor follows"
    assert known.status.followers() == []


def test_silence_ends_when_something_comes(clock: Clock) -> None:
    known = follower()
    clock.now += 7

    assert known.status.status()["following"]["silent_seconds"] == 7
    known.ring.head += 1
    assert known.status.status()["following"]["silent_seconds"] == 0


def test_elections_are_those_of_the_cluster() -> None:
    elections = (Election(2, "b", "tcp://b:5679", 5.5, "it was stopped"), Election(3, "a", "u", 7))

    shown = follower().see(elections=elections)["elections"]

    assert shown == [
        {"epoch": 2, "node": "b", "uri": "tcp://b:5679", "at": 5.5, "ended": "it was stopped"},
        {"epoch": 3, "node": "a", "uri": "u", "at": 7, "ended": ""},
    ]


def test_a_node_shows_whether_its_files_are_whole_and_etcd_answers() -> None:
    known = follower()
    known.is_whole = False

    picture = known.status.status()

    assert (picture["whole"], picture["etcd_silent_seconds"]) == (False, 0.5)


def test_what_other_nodes_say_of_themselves_is_shown_only_if_it_is_text() -> None:
    picture = follower().see(nodes={"b": {"uri": 5, "address": ["x"], "version": None}})

    assert picture["nodes"][1] == {
        "id": "b", "uri": None, "address": None, "version": None, "live": True, "in_sync": True,
        "member": True,
    }  # fmt: skip


def test_it_says_whether_readers_are_served() -> None:
    known = follower()
    assert known.status.status()["reads"] is None
    served = {"serving": True, "position": 7, "connections": 1, "reason": ""}
    status = Status(
        known.coordinator, known.ring, 0, is_whole=lambda: True, may_lead=lambda: True,
        leading=lambda: None, following=lambda: known.following,
        reads=some(status=lambda: served),
    )  # fmt: skip

    assert status.status()["reads"] == served
