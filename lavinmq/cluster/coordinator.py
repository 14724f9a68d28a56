"""What a cluster keeps in etcd: who leads, in which epoch, and which nodes are in sync.

Each change is one transaction that compares what it was decided on: of two nodes that decide at
the same time one succeeds. A node that leads may change the set only as long as the epoch is its
own. `State` is a picture of all keys; it changes by what a watch tells.

    <prefix>/leader/<lease>      the leader's URI; goes with its lease
    <prefix>/epoch               "<number> <id of the node that leads in it>"
    <prefix>/elections           JSON: the last leaders, from when, and why the one before ended
    <prefix>/isr                 ids of the nodes in sync, with commas
    <prefix>/members             ids of all nodes that count among those of which there are most
    <prefix>/places              JSON: which URI each of these advertises
    <prefix>/left/<id>           JSON: when a node left the set, in which epoch, at which position
    <prefix>/nodes/<id>          JSON: where a live node is reached; goes with its lease
    <prefix>/positions/<id>      "<epoch> <position>" of a node that would lead
    <prefix>/clustering_secret   by which nodes know each other

Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from lavinmq.cluster.elections import (
    ANEW,
    DEAD,
    GONE,
    UNAWARE,
    Election,
    began,
    ended,
    of_json,
    to_json,
)
from lavinmq.cluster.etcd import (
    Compare,
    Delete,
    Entry,
    Etcd,
    EtcdError,
    Event,
    Put,
    prefix_end,
)

SECRET_BYTES: Final = 32
MAX_IDS: Final = 64
NOTE_S: Final = 0.5
"""In which etcd has to take why a node leads no more: others wait for its end."""


class Leader(NamedTuple):
    """Who leads. Args: key: in etcd; modified: its revision."""

    key: str
    uri: str
    lease: int
    modified: int


@dataclass(frozen=True, slots=True)
class State:
    """A picture of the keys; revisions of those that are compared stand beside their values."""

    leader: Leader | None = None
    epoch: int = 0
    epoch_leader: str = ""
    epoch_modified: int = 0
    in_sync: tuple[str, ...] = ()
    in_sync_modified: int = 0
    members: tuple[str, ...] = ()
    members_modified: int = 0
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, Any] = field(default_factory=dict)
    elections: tuple[Election, ...] = ()
    """For people: nothing is decided by it."""
    left: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of nodes that were in sync: `at`, a Unix time, `epoch` and `position` of when they left."""

    def least(self, wanted: int) -> int:
        """How many nodes have to have what is acknowledged.

        Args: wanted: what the operator wants; 0: most of those known.
        """
        return wanted or max(len(self.members), 1) // 2 + 1


class Coordinator:
    """One node's view of etcd. Its coroutines raise EtcdError.

    Args: me: the node's id; info: what others have to know of it.
    """

    def __init__(self, etcd: Etcd, prefix: str, me: str, info: dict[str, Any]) -> None:
        self.etcd = etcd
        self.me = me
        self.info = info
        self.state = State()
        self._prefix = prefix.rstrip("/")
        self._keys: dict[str, Entry] = {}
        self._revision = 0
        """Of the picture, which does not go back as long as etcd is watched."""

    def key(self, *parts: str) -> str:
        """A key of the cluster."""
        return "/".join((self._prefix, *parts))

    # --- the picture --------------------------------------------------------------------------

    async def look(self) -> int:
        """Take the picture anew. Returns: its revision."""
        entries, revision = await self.etcd.get_prefix(self.key(""))
        if revision >= self._revision:  # else a watch has told more meanwhile, and only once
            self._keys, self._revision = {entry.key: entry for entry in entries}, revision
            self.state = self._state()
        return revision

    async def changes(self, revision: int) -> AsyncGenerator[State]:
        """The picture after each change behind a revision."""
        try:
            async for events, upto in self.etcd.watch(self.key(""), revision + 1):
                self._take(events, upto)
                yield self.state
        finally:
            self._revision = 0

    def _take(self, events: Iterable[Event], upto: int = 0) -> None:
        self._revision = max(self._revision, upto)
        for event in events:
            known = self._keys.get(event.key)
            if event.entry is None:
                self._keys.pop(event.key, None)
            elif known is None or event.entry.modified >= known.modified:
                self._keys[event.key] = event.entry
        self.state = self._state()

    def _state(self) -> State:
        epoch, in_sync = self._keys.get(self.key("epoch")), self._keys.get(self.key("isr"))
        members = self._keys.get(self.key("members"))
        number, _, leads = _text(epoch).partition(" ")
        if epoch is not None and not (number.isascii() and number.isdigit()):
            raise EtcdError(f"{epoch.key} says {_text(epoch)!r}, which is no epoch")
        prefix = self.key("leader", "")
        leaders = [entry for key, entry in self._keys.items() if key.startswith(prefix)]
        # Of several, which only older releases could make, the one that came first counts.
        first = min(leaders, key=lambda entry: entry.created, default=None)
        return State(
            leader=None if first is None
            else Leader(first.key, _text(first), first.lease, first.modified),
            epoch=int(number or 0), epoch_leader=leads,
            epoch_modified=0 if epoch is None else epoch.modified,
            in_sync=_ids(in_sync), in_sync_modified=0 if in_sync is None else in_sync.modified,
            members=_ids(members), members_modified=0 if members is None else members.modified,
            nodes=self._below("nodes"), left=_leavings(self._below("left")),
            places=_info(self._keys.get(self.key("places"))),
            elections=of_json(_bytes(self._keys.get(self.key("elections")))),
        )  # fmt: skip

    def _below(self, name: str) -> dict[str, dict[str, Any]]:
        """What is said of nodes, by their ids."""
        prefix = self.key(name, "")
        found = {}
        for key, entry in self._keys.items():
            if key.startswith(prefix):
                found[key.removeprefix(prefix)] = _info(entry)
        return found

    # --- this node ----------------------------------------------------------------------------

    async def register(self, lease: int) -> str:
        """Say that this node is there. Returns: why it may not be, empty if it may: another one
        that has its id. One of the same directory on the same host is an earlier life of it."""
        key = self.key("nodes", self.me)
        entry = await self.etcd.get(key)
        if entry is not None:
            there = _info(entry)
            ours = all(there.get(name) == self.info[name] for name in ("host", "directory"))
            if not ours:
                where = f"{there.get('directory')} on {there.get('host')}"
                return f"another node has the id {self.me}: {where}"
        done, _ = await self.etcd.transact(
            [Compare(key, "MOD", 0 if entry is None else entry.modified)],
            [Put(key, orjson.dumps(self.info), lease)],
        )
        return "" if done else f"another node has just taken the id {self.me}"

    async def alive(self, nodes: Iterable[str], since_s: float) -> set[str]:
        """Which of these nodes have renewed their leases within some seconds: a key goes only some
        time after its node."""
        found = set()
        for node in nodes:
            entry = self._keys.get(self.key("nodes", node))
            if entry is not None and entry.lease:
                left, ttl = await self.etcd.time_left(entry.lease)
                if left >= max(0, ttl - since_s):
                    found.add(node)
        return found

    async def secret(self) -> bytes:
        """By which the nodes know each other; the first one makes it."""
        key = self.key("clustering_secret")
        made = base64.b64encode(os.urandom(SECRET_BYTES))
        await self.etcd.transact([Compare(key, "CREATE", 0)], [Put(key, made)])
        entry = await self.etcd.get(key)
        try:
            return base64.b64decode(entry.value if entry is not None else b"", validate=True)
        except binascii.Error:
            raise EtcdError(f"{key} is not base64") from None

    async def offer(self, lease: int, epoch: int, position: int) -> None:
        """Say how much this node has, which would lead."""
        text = f"{epoch} {position}".encode()
        await self.etcd.transact([], [Put(self.key("positions", self.me), text, lease)])

    async def is_best(self, epoch: int, position: int) -> bool:
        """Whether no node in sync that would lead has more."""
        entries, _ = await self.etcd.get_prefix(self.key("positions", ""))
        mine = (epoch, position)
        for entry in entries:
            node = entry.key.rpartition("/")[2]
            parts = _text(entry).split(" ")
            if node == self.me or node not in self.state.in_sync or len(parts) != 2:
                continue
            if not all(part.isascii() and part.isdigit() for part in parts):
                continue
            if (int(parts[0]), int(parts[1])) > mine:
                return False
        return True

    # --- who leads ----------------------------------------------------------------------------

    async def take_over(self, state: State, lease: int, uri: str, why: str = DEAD) -> bool:
        """Lead in the next epoch, in the place of who leads in a picture. Args: why: another node
        may be replaced that etcd still has. Returns: whether it does: not when anything has changed
        since, or this node is not in sync."""
        if state.in_sync and self.me not in state.in_sync:
            return False
        leaders = self.key("leader", "")
        ours = f"{leaders}{lease:x}"
        compares = [
            Compare(self.key("epoch"), "MOD", state.epoch_modified),
            Compare(self.key("isr"), "MOD", state.in_sync_modified),
        ]
        puts: list[Put | Delete] = [
            Put(ours, uri.encode(), lease),
            Put(self.key("epoch"), f"{state.epoch + 1} {self.me}".encode()),
            Put(self.key("elections"), self._elected(state, ours, uri, why)),
            Delete(self.key("positions", ""), prefix_end(self.key("positions", ""))),
        ]
        if state.leader is None:
            compares.append(Compare(leaders, "CREATE", 0, prefix_end(leaders)))
        else:
            compares.append(Compare(state.leader.key, "MOD", state.leader.modified))
            if state.leader.key != ours:
                puts.append(Delete(state.leader.key))
        if not state.in_sync:
            puts.append(Put(self.key("isr"), self.me.encode()))
        puts += self._counting(state, {self.me})
        try:
            done, _ = await self.etcd.transact(compares, puts)
        except EtcdError as error:
            if not error.maybe_done:
                raise
            done = True
        await self.look()
        leader = self.state.leader
        return (
            done and self.state.epoch == state.epoch + 1 and self.state.epoch_leader == self.me
            and leader is not None and leader.key == ours
        )  # fmt: skip

    def _elected(self, state: State, ours: str, uri: str, why: str) -> bytes:
        """The elections with one more. Args: ours: the key of this leader; why: see `take_over`."""
        if state.leader is None:
            why = GONE
        elif state.epoch_leader == self.me:
            why = UNAWARE if state.leader.key == ours else ANEW
        return to_json(began(state.elections, state.epoch + 1, self.me, uri, why))

    async def note_end(self, why: str) -> None:
        """Have the elections say why this node, which has led, leads no more, if that is heard in
        time and no other one leads already."""
        state = self.state
        if state.epoch_leader == self.me:
            text = to_json(ended(state.elections, state.epoch, why))
            with suppress(EtcdError, TimeoutError):
                async with asyncio.timeout(NOTE_S):
                    await self.etcd.transact(
                        [Compare(self.key("epoch"), "MOD", state.epoch_modified)],
                        [Put(self.key("elections"), text)],
                    )

    async def forget(self, epoch: int, node: str) -> str:
        """Have a node counted no more that does not come back. Returns: why not, empty if it is so
        now."""
        state = self.state
        if node not in state.members:
            return f"no node {node} is known"
        if node == self.me or node in state.nodes:
            return f"node {node} is there: stop it first"
        if node in state.in_sync:
            return f"node {node} is in sync as far as anybody knows: too few others are"
        if state.epoch != epoch or state.epoch_leader != self.me:
            return "another node leads"
        left = [each for each in state.members if each != node]
        done, _ = await self.etcd.transact(
            [Compare(self.key("epoch"), "MOD", state.epoch_modified),
             Compare(self.key("members"), "MOD", state.members_modified),
             Compare(self.key("isr"), "MOD", state.in_sync_modified)],
            [Put(self.key("members"), _joined(left))],
        )  # fmt: skip
        await self.look()
        return "" if done else "something else has changed meanwhile, try again"

    def replaced(self, taken_in: Iterable[str] = ()) -> set[str]:
        """Nodes whose place another one has taken, which advertises their URI: their directories
        were lost. They are not there, and not in sync.

        Args: taken_in: nodes that are about to be in sync.
        """
        state = self.state
        there = {node: info.get("uri") for node, info in state.nodes.items()}
        count = {*state.members, *taken_in} & {*there, *state.in_sync, *taken_in}
        taken = {there.get(node) or state.places.get(node) for node in count} - {None}
        return {
            node for node in state.members
            if node not in count and state.places.get(node) in taken
        }  # fmt: skip

    def _counting(self, state: State, nodes: set[str]) -> list[Put]:
        """What has these nodes counted from now on, and no more those that were replaced."""
        members = (set(state.members) - self.replaced(nodes)) | nodes
        if members == set(state.members):
            return []
        uris = {node: info.get("uri") for node, info in state.nodes.items()}
        uris[self.me] = self.info.get("uri")
        places = {node: uris.get(node) or state.places.get(node) for node in members}
        return [
            Put(self.key("members"), _joined(members)),
            Put(self.key("places"), orjson.dumps(places)),
        ]

    # --- going on without nodes that are lost -------------------------------------------------

    def seen(self) -> tuple[int, int, int]:
        """What `go_on_alone` compares: revisions."""
        state = self.state
        return state.epoch_modified, state.in_sync_modified, state.members_modified

    def left_over(self) -> set[str]:
        """Nodes that would count: this one, and those that are there."""
        return ({*self.state.members} & {*self.state.nodes}) | {self.me}

    async def go_on_alone(self, seen: tuple[int, int, int]) -> bool:
        """Have this node be the only one in sync, and those that are not there count no more.
        Returns: whether it is so; False: something has changed since, another one leads, or one
        that is lost is there."""
        state, leaders = self.state, self.key("leader", "")
        lost = {*state.in_sync, *state.members} - self.left_over()
        compares = [
            Compare(self.key(name), "MOD", modified)
            for name, modified in zip(("epoch", "isr", "members"), seen, strict=True)
        ]
        compares += [Compare(self.key("nodes", node), "CREATE", 0) for node in sorted(lost)]
        if state.leader is None:
            compares.append(Compare(leaders, "CREATE", 0, prefix_end(leaders)))
        elif state.epoch_leader == self.me:
            compares.append(Compare(state.leader.key, "MOD", state.leader.modified))
        else:
            return False
        members = self.left_over()
        places = {node: state.places.get(node) for node in members}
        done, _ = await self.etcd.transact(compares, [
            Put(self.key("isr"), self.me.encode()), Put(self.key("members"), _joined(members)),
            Put(self.key("places"), orjson.dumps(places)),
            Delete(self.key("left", ""), prefix_end(self.key("left", ""))),
        ])  # fmt: skip
        await self.look()
        return done

    # --- who is in sync -----------------------------------------------------------------------

    async def change_in_sync(self, epoch: int, nodes: Iterable[str], position: int = 0) -> bool:
        """Set which nodes are in sync, as the leader of an epoch. Returns: whether it is so now;
        False: somebody else leads, or may. It is asked also when the picture says so already: that
        may be older than a change whose answer was lost.

        Args: position: up to where the leader has changes, for who asks when a node left.
        Raises: EtcdError; with `maybe_done` it may be so now, or later: until the set is changed by
            another call."""
        state = self.state
        wanted = set(nodes)
        if state.epoch != epoch or state.epoch_leader != self.me or state.leader is None:
            return False
        left = orjson.dumps({"at": int(time.time()), "epoch": epoch, "position": position})
        puts: list[Put | Delete] = [
            Put(self.key("isr"), _joined(wanted)), *self._counting(state, wanted),
            *(Put(self.key("left", node), left) for node in state.in_sync if node not in wanted),
            *(Delete(self.key("left", node)) for node in state.left if node in wanted),
        ]  # fmt: skip
        compared = self._compared()
        compares = [Compare(key, "MOD", modified) for key, modified in compared.items()]
        lost: EtcdError | None = None
        try:
            await self.etcd.transact(compares, puts)
        except EtcdError as error:
            if not error.maybe_done:
                raise
            lost = error
        await self.look()
        if lost is not None and self._compared() == compared:
            raise lost  # it may be on its way still
        return (
            self.state.epoch == epoch and self.state.epoch_leader == self.me
            and set(self.state.in_sync) == wanted
        )  # fmt: skip

    def _compared(self) -> dict[str, int]:
        """What a change of the set compares, by keys: revisions."""
        state = self.state
        found = {self.key("epoch"): state.epoch_modified, self.key("isr"): state.in_sync_modified}
        return found if state.leader is None else found | {state.leader.key: state.leader.modified}


def _text(entry: Entry | None) -> str:
    return "" if entry is None else entry.value.decode(errors="replace")


def _bytes(entry: Entry | None) -> bytes:
    return b"" if entry is None else entry.value


def _ids(entry: Entry | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in _text(entry).split(",")[:MAX_IDS] if each.strip())


def _joined(ids: Iterable[str]) -> bytes:
    return ",".join(sorted(ids)).encode()


def _leavings(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of them that make sense."""
    return {
        node: each for node, each in found.items()
        if all(isinstance(each.get(name), int) for name in ("at", "epoch", "position"))
    }  # fmt: skip


def _info(entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    try:
        found = orjson.loads(entry.value)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
