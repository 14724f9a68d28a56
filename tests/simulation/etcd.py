"""An etcd in memory, for simulations: what `lavinmq.cluster.etcd.Etcd` promises, without a network.

A client may be cut off, and a transaction may be carried out although its answer is lost: before
anybody looks whether it was, or after that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from lavinmq.cluster.etcd import Compare, Delete, Entry, Event, NoLease, Put, Unreachable

LATE = 0.3
"""How many of those whose answer is lost are carried out later."""


class Store:
    """The keys, with revisions and leases, and all events since the beginning."""

    def __init__(self) -> None:
        self.revision = 1
        self.now = 0
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, int] = {}
        self.events: list[Event] = []
        self.ends: list[int] = []
        """How many events there were after each revision: a watch is told of all of one at once."""
        self.late: list[tuple[Sequence[Compare], Sequence[Put | Delete]]] = []
        """Transactions that are still on their way, although nobody waits for them any more."""

    def expire(self) -> None:
        """Let go of leases whose time is over."""
        for lease in [each for each, ends in self.leases.items() if ends < self.now]:
            self.drop(lease)

    def catch_up(self) -> None:
        """Carry out what came late."""
        late, self.late = self.late, []
        for each in late:
            with suppress(NoLease):
                self.transact(*each)

    def drop(self, lease: int) -> None:
        """Let go of one, with its keys."""
        self.leases.pop(lease, None)
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        if gone:
            self.revision += 1
        for key in gone:
            self._delete(key)
        self._end()

    def _delete(self, key: str) -> None:
        if self.entries.pop(key, None) is not None:
            self.events.append(Event(key, None))

    def _end(self) -> None:
        """A revision is over."""
        if self.events and (not self.ends or self.ends[-1] < len(self.events)):
            self.ends.append(len(self.events))

    def holds(self, compare: Compare) -> bool:
        """Whether a comparison holds."""
        if compare.end:
            found = [e for key, e in self.entries.items() if compare.key <= key < compare.end]
            return all(self._value(each, compare.target) == compare.value for each in found)
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.target != "VALUE" and compare.value == 0
        return self._value(entry, compare.target) == compare.value

    @staticmethod
    def _value(entry: Entry, target: str) -> int | bytes:
        values: dict[str, int | bytes] = {
            "CREATE": entry.created, "MOD": entry.modified, "VALUE": entry.value,
            "LEASE": entry.lease,
        }  # fmt: skip
        return values[target]

    def transact(self, compares: Sequence[Compare], puts: Sequence[Put | Delete]) -> bool:
        """Carry a transaction out, if all its comparisons hold."""
        if not all(map(self.holds, compares)):
            return False
        if any(isinstance(each, Put) and each.lease not in {0, *self.leases} for each in puts):
            raise NoLease("the lease is gone")
        self.revision += 1
        for each in puts:
            if isinstance(each, Delete):
                end = each.end or f"{each.key}\0"
                keys = [key for key in self.entries if each.key <= key < end]
                for key in keys:
                    self._delete(key)
            else:
                old = self.entries.get(each.key)
                created = self.revision if old is None else old.created
                entry = Entry(each.key, each.value, created, self.revision, each.lease)
                self.entries[each.key] = entry
                self.events.append(Event(each.key, entry))
        self._end()
        return True


class Client:
    """One node's way to it. Nothing in it ever waits."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store = store
        self.is_cut = False
        self.lost_answers = 0.0
        """How many of all transactions are carried out without an answer."""
        self._chance = chance

    def _reach(self) -> None:
        if self.is_cut:
            raise Unreachable("cut off")

    async def get(self, key: str) -> Entry | None:
        self._reach()
        return self.store.entries.get(key)

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        self._reach()
        found = [entry for key, entry in self.store.entries.items() if key.startswith(prefix)]
        return found, self.store.revision

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put | Delete]
    ) -> tuple[bool, int]:
        self._reach()
        is_lost = self._chance.random() < self.lost_answers
        is_late = is_lost and self._chance.random() < LATE
        if is_late:
            self.store.late.append((compares, puts))
        done = not is_late and self.store.transact(compares, puts)
        if is_lost:
            self.is_cut = self._chance.random() < 0.5
            error = Unreachable("the answer is lost")
            error.maybe_done = True
            raise error
        return done, self.store.revision

    async def grant(self, ttl: int) -> tuple[int, int]:
        self._reach()
        self.store.revision += 1
        self.store.leases[self.store.revision] = self.store.now + ttl
        return self.store.revision, ttl

    async def keep_alive(self, lease: int, ttl: int) -> int:
        self._reach()
        if lease not in self.store.leases:
            raise NoLease("the lease is gone")
        self.store.leases[lease] = self.store.now + ttl
        return ttl
