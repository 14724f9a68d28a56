"""A simulated cluster: the protocol step by step, in an order that a seed chooses.

The coordinator and the histories are the broker's own; etcd, network, disks, clocks and processes
are simulated: any step of any node may come next, answers are lost, nodes die with what they had
not synced, stand still, or are cut off from each other and from etcd. After every step the
invariants of docs/decisions/0110-a-cluster.md are checked.

A file's changes are entries of a log here, each with the epoch in which it was made. `Rules` are
the protocol's precautions: each can be left out, to see that the invariants find that.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

from lavinmq.cluster.coordinator import Coordinator, State
from lavinmq.cluster.elections import MOST
from lavinmq.cluster.etcd import Etcd, EtcdError, NoLease, Put
from lavinmq.cluster.history import History
from tests.simulation.etcd import Client, Store

TTL = 40
MARGIN = 5
RING = 12
"""Entries that a node keeps to send."""
HASTE = 0.05

T = TypeVar("T")


class ViolationError(Exception):
    """An invariant does not hold."""


class Change(NamedTuple):
    """One entry. Args: epoch: in which it was made; number: no two have the same."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What keeps the promise; False: it is left out."""

    waits_before_listing: bool = True
    """A follower is waited for before etcd lists it, and has caught up by then."""
    unlists_before_going_on: bool = True
    """One that is gone is waited for until etcd lists it no more."""
    compares_epoch: bool = True
    """The set is changed only in the epoch in which it was decided."""
    listed_only: bool = True
    """Only who is listed may lead."""
    whole_only: bool = True
    """Only who is whole may lead."""
    syncs_before_acking: bool = True
    listed_count: bool = True
    """Only who is listed counts among the least."""
    minds_lost_answers: bool = True
    """A change of the set whose answer is lost may have been made."""
    outdates_lost_changes: bool = True
    """It may also be made later, until the set is changed once more."""
    goes_on_placing: bool = True
    """A node that died while its files were replaced goes on with that when it starts."""
    checks_history: bool = True
    """A follower that has more than its leader joins anew."""


@dataclass
class Joining:
    """A follower's files on their way."""

    log: list[Change]
    position: int
    is_placing: bool = False


@dataclass
class Node:
    """One node: what is on its disk, and what its process knows."""

    name: str
    coordinator: Coordinator
    client: Client
    # --- on disk
    log: list[Change] = field(default_factory=list)
    synced: int = 0
    is_whole: bool = True
    staged: Joining | None = None
    """What its files are being replaced by, if they are not whole: a start goes on with that."""
    # --- the process
    is_alive: bool = False
    paused_until: int = 0
    seen: int = 0
    """Events of etcd that it knows of."""
    lease: int = 0
    deadline: int = 0
    history: History = field(default_factory=History)
    begin: int = 0
    """Of its log, where position 0 is; before `history` has an epoch nobody knows."""
    first: int = 0
    """Position from which on it can send."""
    # --- as a follower
    leader: Node | None = None
    is_streaming: bool = False
    joining: Joining | None = None
    dead: str = ""
    # --- as a leader
    epoch: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    coming: dict[str, int] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    missing: int = 0
    least: int = 1
    common: int = 0

    @property
    def state(self) -> State:
        return self.coordinator.state

    @property
    def head(self) -> int:
        return len(self.log) - self.begin

    @property
    def is_leading(self) -> bool:
        return self.is_alive and self.epoch > 0


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("it waits")


class Cluster:
    """Nodes, and the world between them, from one seed."""

    def __init__(
        self, seed: int, n: int = 3, rules: Rules | None = None, least: int = 0, *,
        is_slow: bool = False, is_hasty: bool = False,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.rules = rules or Rules()
        self.wanted = least
        self.is_slow = is_slow
        """Whether news of etcd come seldom, and many answers are lost."""
        self.is_hasty = is_hasty
        """Whether nodes take a leader for dead without any reason: no promise hangs on that."""
        self.store = Store()
        self.nodes = [self._node(f"n{number}") for number in range(n)]
        self.cut: set[frozenset[str]] = set()
        self.confirmed: list[Change] = []
        self.confirms: dict[int, str] = {}
        """Who has acknowledged in an epoch."""
        self.elections = self.joins = 0
        self.led: dict[int, str] = {}
        """Who has led in an epoch, as far as it knew."""
        self._number = 0

    def _node(self, name: str) -> Node:
        client = Client(self.store, self.chance)
        client.lost_answers = 0.7 if self.is_slow else self.chance.choice((0.0, 0.1, 0.5))
        coordinator = Coordinator(cast(Etcd, client), "c", name, {})
        return Node(name, coordinator, client)

    # --- the scheduler ------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Do so many steps. Raises: ViolationError."""
        actions: list[tuple[Callable[[Node], None], int]] = [
            (self.hear, 6 if self.is_slow else 60), (self.keep_lease, 40), (self.write, 30),
            (self.sync, 40),
            (self.connect, 40), (self.receive, 60), (self.ack, 60), (self.look, 40),
            (self.confirm, 60), (self.decide, 40), (self.join, 30), (self.check, 30),
            (self.crash, 1), (self.start, 20), (self.pause, 1), (self.part, 1), (self.heal, 6),
        ]  # fmt: skip
        names, weights = zip(*actions, strict=True)
        for _ in range(steps):
            self.store.now += self.chance.choice((0, 0, 0, 0, 0, 1))
            self.store.expire()
            if self.store.late and self.chance.random() < HASTE:
                self.store.catch_up()
            node = self.chance.choice(self.nodes)
            if node.paused_until <= self.store.now:
                action = self.chance.choices(names, weights)[0]
                with suppress(EtcdError):  # it is tried again, or not
                    action(node)
            self.check_invariants()

    def linked(self, a: Node, b: Node) -> bool:
        return a.is_alive and b.is_alive and frozenset((a.name, b.name)) not in self.cut

    # --- faults -------------------------------------------------------------------------------

    def crash(self, node: Node) -> None:
        if node.is_alive:
            # Of what was not synced any part may be on the disk.
            node.log = node.log[: self.chance.randint(node.synced, len(node.log))]
            node.synced = len(node.log)
            self._forget(node)

    def _forget(self, node: Node) -> None:
        """The process has ended."""
        node.is_alive = node.is_streaming = False
        node.epoch = node.lease = node.seen = 0
        node.history, node.leader, node.joining, node.dead = History(), None, None, ""
        node.acked, node.required, node.coming, node.maybe = {}, set(), {}, set()
        node.coordinator = Coordinator(cast(Etcd, node.client), "c", node.name, {})
        for other in self.nodes:
            if other.leader is node:
                other.is_streaming, other.joining = False, None

    def start(self, node: Node) -> None:
        if not node.is_alive:
            node.lease, _ = at_once(node.client.grant(TTL))
            node.deadline = self.store.now + TTL - MARGIN
            at_once(node.coordinator.look())
            node.seen = len(self.store.events)
            if not node.is_whole and self.rules.goes_on_placing:
                self._place(node)
            node.begin, node.first = len(node.log), 0
            node.is_alive = True

    def pause(self, node: Node) -> None:
        node.paused_until = self.store.now + self.chance.randint(1, 3 * TTL)

    def part(self, node: Node) -> None:
        if self.chance.random() < 0.4:
            node.client.is_cut = True
        else:
            self.cut.add(frozenset((node.name, self.chance.choice(self.nodes).name)))

    def heal(self, node: Node) -> None:
        node.client.is_cut = False
        self.cut = {pair for pair in self.cut if node.name not in pair}

    # --- etcd ---------------------------------------------------------------------------------

    def hear(self, node: Node) -> None:
        """Learn of some of what has changed in etcd."""
        if node.maybe and not node.client.is_cut and self.chance.random() < 0.2:
            at_once(node.coordinator.look())
            if self.rules.outdates_lost_changes:
                self._change(node, node.state.in_sync)
            node.maybe.clear()
            self._require(node)
        if node.is_alive and not node.client.is_cut and node.seen < len(self.store.events):
            ends = self.store.ends
            upto = ends[self.chance.randint(bisect_right(ends, node.seen), len(ends) - 1)]
            node.coordinator._take(self.store.events[node.seen : upto])
            node.seen = upto
            if node.is_leading:
                self._require(node)

    def keep_lease(self, node: Node) -> None:
        if node.is_alive:
            began = self.store.now
            try:
                at_once(node.client.keep_alive(node.lease, TTL))
                node.deadline = began + TTL - MARGIN
            except NoLease:
                if node.is_leading:
                    self._forget(node)
                else:
                    node.lease, _ = at_once(node.client.grant(TTL))

    # --- a leader -----------------------------------------------------------------------------

    def write(self, node: Node) -> None:
        if node.is_leading and self.store.now <= node.deadline:
            self._number += 1
            node.log.append(Change(node.epoch, self._number))
            node.first = max(node.first, node.head - RING)

    def sync(self, node: Node) -> None:
        if node.is_alive:
            node.synced = len(node.log)

    def check(self, node: Node) -> None:
        """Does it still lead, as far as it knows?"""
        if node.is_leading:
            state = node.state
            if (
                self.store.now > node.deadline or state.epoch != node.epoch
                or state.epoch_leader != node.name
                or state.leader is None or state.leader.lease != node.lease
            ):  # fmt: skip
                self._forget(node)

    def _in_sync(self, node: Node) -> set[str]:
        return {*node.state.in_sync, node.name, *node.maybe}

    def _require(self, node: Node) -> None:
        in_sync, listed = self._in_sync(node), {*node.state.in_sync, node.name}
        node.least = node.state.least(self.wanted)
        node.required = {name for name in node.acked if name in in_sync or name in node.coming}
        missing = len(in_sync - node.acked.keys() - {node.name})
        if self.rules.listed_count:
            missing = max(missing, node.least - len(listed))
        node.missing = missing

    def _gone(self, node: Node) -> set[str]:
        return self._in_sync(node) - node.acked.keys() - {node.name}

    def look(self, node: Node) -> None:
        """Who has gone, who has come near."""
        if not node.is_leading:
            return
        for name in list(node.acked):
            other = self._named(name)
            is_there = other.is_streaming and other.leader is node and self.linked(node, other)
            if not is_there and self.chance.random() < 0.5:  # it is noticed now
                self._ended(node, name)
        gone = self._gone(node)
        if gone and len(self._in_sync(node) - gone) >= node.least:
            self._change(node, self._in_sync(node) - gone)
        for name, acked in list(node.acked.items()):
            if name not in self._in_sync(node) and name not in node.coming:
                node.coming[name] = node.head
                self._require(node)
            if name in node.coming and (
                acked >= node.coming[name] or not self.rules.waits_before_listing
            ):
                try:
                    if name not in self._in_sync(node):
                        self._change(node, self._in_sync(node) | {name})
                finally:
                    del node.coming[name]
                    self._require(node)

    def _ended(self, node: Node, name: str) -> None:
        """A session is over."""
        node.acked.pop(name, None)
        node.coming.pop(name, None)
        if self.rules.unlists_before_going_on:
            self._require(node)

    def _change(self, node: Node, nodes: Iterable[str]) -> bool:
        coordinator = node.coordinator
        if not self.rules.compares_epoch:
            at_once(coordinator.look())
            puts = [Put("c/isr", ",".join(sorted(nodes)).encode())]
            done, _ = at_once(coordinator.etcd.transact([], puts))
            at_once(coordinator.look())
        else:
            if self.rules.minds_lost_answers:
                node.maybe |= set(nodes)
            try:
                done = at_once(coordinator.change_in_sync(node.epoch, nodes))
            except EtcdError as error:
                if self.rules.outdates_lost_changes or not error.maybe_done:
                    raise
                done = False
        node.maybe.clear()
        self._require(node)
        return done

    def confirm(self, node: Node) -> None:
        """Acknowledge what is where it has to be."""
        if not node.is_leading:
            return
        if not node.missing and 1 + len(node.required) >= node.least:
            acked = [node.acked.get(name, node.head) for name in node.required]
            node.common = max(node.common, min([node.head, *acked]))
        for change in node.log[: min(node.common + node.begin, node.synced)]:
            if change.epoch == node.epoch and change not in self.confirmed:
                self._confirmed(node, change)

    def _confirmed(self, node: Node, change: Change) -> None:
        other = self.confirms.setdefault(node.epoch, node.name)
        if other != node.name:
            raise ViolationError(f"{other} and {node.name} acknowledge in epoch {node.epoch}")
        for newer in self.nodes:
            if newer.epoch > node.epoch and change not in newer.log:
                raise ViolationError(f"{change} is acknowledged, {newer.name} leads without it")
        listed = self._listed()
        n_copies = sum(change in self._durable(node) for node in self.nodes if node.name in listed)
        if n_copies < node.state.least(self.wanted):
            raise ViolationError(f"{change} is acknowledged with {n_copies} copies that are listed")
        self.confirmed.append(change)

    # --- a follower ---------------------------------------------------------------------------

    def _named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def connect(self, node: Node) -> None:
        """Find who leads, and go on or join."""
        leader = node.state.leader
        if not node.is_alive or node.is_leading or node.is_streaming or leader is None:
            return
        found = self._named(leader.uri)
        if not found.is_alive and frozenset((node.name, found.name)) not in self.cut:
            node.dead = leader.key
        if not found.is_leading or not self.linked(node, found) or found is node:
            return
        if node.leader is not found:
            node.leader, node.joining = found, None
        position, continues = node.head, node.history.epoch > 0 and node.is_whole
        if continues:
            has = found.history.has(node.history.at(position), position, found.head)
            continues = position >= found.first and (has or not self.rules.checks_history)
        if continues:
            self._stream(node, found)
        elif node.joining is None:
            node.joining = Joining(list(found.log), found.head)

    def _stream(self, node: Node, leader: Node) -> None:
        node.history = History.of_json(leader.history.to_json())
        node.synced = len(node.log)
        node.is_streaming, node.joining = True, None
        leader.acked[node.name] = node.head
        leader.coming.pop(node.name, None)
        self._require(leader)

    def join(self, node: Node) -> None:
        """The next step of a join."""
        joining, leader = node.joining, node.leader
        if joining is None or leader is None or not node.is_alive:
            return
        if not (leader.is_leading and self.linked(node, leader)):
            node.joining = None
            return
        if not joining.is_placing:
            left = self._in_sync(leader) - {node.name}
            leaves = node.name in self._in_sync(leader) and len(left) >= leader.least
            if leaves and not self._change(leader, left):
                return
            joining.is_placing, node.is_whole, node.staged = True, False, joining
            node.history = History()
            # Between two states: some of either.
            node.log = self.chance.sample(node.log, self.chance.randint(0, len(node.log)))
            node.synced = len(node.log)
            return
        if joining.position < leader.first or node.staged is None:
            node.joining = None
            return
        self._place(node)
        node.begin = len(node.log) - joining.position
        node.first = joining.position
        self.joins += 1
        self._stream(node, leader)

    def _place(self, node: Node) -> None:
        assert node.staged is not None
        node.log, node.is_whole, node.staged = list(node.staged.log), True, None
        node.synced = len(node.log)

    def receive(self, node: Node) -> None:
        """Get some of what the leader has."""
        leader = node.leader
        if not node.is_streaming or leader is None or not node.is_alive:
            return
        if not (leader.is_leading and self.linked(node, leader)) or node.name not in leader.acked:
            node.is_streaming = False
            node.synced = len(node.log)
            return
        if node.head < leader.first:
            node.is_streaming = False  # too far behind
            return
        n = self.chance.randint(0, max(0, leader.head - node.head))
        node.log += leader.log[leader.begin + node.head : leader.begin + node.head + n]
        node.first = max(node.first, node.head - RING)

    def ack(self, node: Node) -> None:
        """Say what is on disk; the answer may not come."""
        leader = node.leader
        if node.is_alive and node.is_streaming and leader is not None:
            if self.rules.syncs_before_acking:
                node.synced = len(node.log)
            if self.linked(node, leader) and node.name in leader.acked and leader.is_leading:
                leader.acked[node.name] = max(leader.acked[node.name], node.head)

    def decide(self, node: Node) -> None:
        """Lead, if nobody does, or who does is dead."""
        if not node.is_alive or node.is_leading:
            return
        state, rules = node.state, self.rules
        is_vacant = state.leader is None or state.leader.key == node.dead or (
            state.epoch_leader == node.name and state.leader.lease != node.lease
        ) or (self.is_hasty and self.chance.random() < HASTE)  # fmt: skip
        if not is_vacant or (rules.whole_only and not node.is_whole):
            return
        if self.store.now > node.deadline - 1:
            return
        if not rules.listed_only and state.in_sync and node.name not in state.in_sync:
            state = replace(state, in_sync=(*state.in_sync, node.name))
        if node.joining is not None:
            node.joining = None
        node.is_streaming = False
        node.synced = len(node.log)
        if at_once(node.coordinator.take_over(state, node.lease, node.name)):
            self._lead(node)

    def _lead(self, node: Node) -> None:
        node.epoch = node.state.epoch
        node.history.begin(node.epoch, node.head)
        node.acked, node.required, node.coming, node.maybe = {}, set(), {}, set()
        node.common = 0
        node.leader = None
        self._require(node)
        self.elections += 1
        known = [(each.epoch, each.node) for each in node.state.elections]
        first = max(1, node.epoch - MOST + 1)
        if [epoch for epoch, _ in known] != list(range(first, node.epoch + 1)):
            raise ViolationError(f"elections are missing before epoch {node.epoch}: {known}")
        self.led[node.epoch] = node.name
        if any(self.led.get(epoch, name) != name for epoch, name in known):
            raise ViolationError(f"others have led than {known} says: {self.led}")
        lost = [change for change in self.confirmed if change not in node.log]
        if lost:
            raise ViolationError(f"{node.name} leads without {len(lost)} that were acknowledged")

    # --- invariants ---------------------------------------------------------------------------

    def _listed(self) -> list[str]:
        """Who is in sync, as etcd has it."""
        entry = self.store.entries.get("c/isr")
        return entry.value.decode().split(",") if entry is not None else []

    def _durable(self, node: Node) -> set[Change]:
        """What a node would have after a loss of power."""
        if node.is_whole:
            return set(node.log[: node.synced])
        if node.staged is not None and self.rules.goes_on_placing:
            return set(node.staged.log)
        return set()

    def check_invariants(self) -> None:
        """Raises: ViolationError."""
        listed = self._listed()
        for node in self.nodes:
            if node.name in listed and self.confirmed:
                durable = self._durable(node)
                lost = [change for change in self.confirmed if change not in durable]
                if lost:
                    raise ViolationError(f"{node.name} is listed without {lost[0]}")
