"""What operators have decided for one virtual host: policies, limits and parameters; and how
policies come to queues and exchanges.

A change of policies is saved, and then brought to everything that exists, in portions: thousands of
queues do not stop the loop. What is declared meanwhile is right at once. Until the change is on
disk the policies from before count: messages that a refused one had dropped could not be taken
back. Owned by a `VHost`, which gives what exists and is told of each exchange whose features have
changed. On the loop thread.
Source: docs/policies.md, docs/formats.md.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lavinmq.arguments.keys import Kind
from lavinmq.fieldtable import FieldTable
from lavinmq.files.saving import Disk
from lavinmq.policy.features import (
    PLAIN,
    Definition,
    ExchangeFeatures,
    Features,
    exchange_features,
    queue_features,
    queue_kind,
)
from lavinmq.policy.limits import VHostLimits
from lavinmq.policy.parameters import ParameterStore
from lavinmq.policy.pattern import Patience
from lavinmq.policy.policies import Policy, PolicyStore
from lavinmq.process.log import hushed
from lavinmq.process.portions import in_portions
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue

MAX_SHARED = 1024
"""Features that are remembered to be shared: most queues of many have the same."""
MAX_SHARED_BYTES = 512
"""Arguments above that are not remembered: clients can send a frame full of them."""
PATIENCE_OF_START = 200
"""Searches that take too long, for all of a virtual host that is being opened: a tenth of a second.
What is left out follows in portions."""


class VHostRules:
    """The rules of one virtual host. Call `load` before queues and exchanges are made.

    Args:
        directory: of the virtual host; its files are in there.
        vhost: its name.
        queues, exchanges: what exists, by name; looked at, never changed.
        call_soon: of the event loop.
        on_queue: is called with a queue that has new features.
        on_exchange: is called with an exchange that has new features, and these.
        disk: see `files/saving.py`.
    """

    def __init__(
        self, directory: Path, vhost: str, queues: Mapping[str, Queue],
        exchanges: Mapping[str, Exchange], call_soon: Callable[..., Any],
        on_queue: Callable[[Queue], None],
        on_exchange: Callable[[Exchange], None], disk: Disk | None = None,
    ) -> None:  # fmt: skip
        self.policies = PolicyStore(
            directory / "policies.json", vhost, disk=disk, on_change=self._apply_all
        )
        self.operator_policies = PolicyStore(
            directory / "operator_policies.json", vhost, is_operator=True, disk=disk,
            on_change=self._apply_all,
        )  # fmt: skip
        self.parameters = ParameterStore(directory / "parameters.json", disk=disk)
        self.paused = ParameterStore(directory / "paused.json", disk=disk)
        """Which of those that parameters make are paused, by component and name."""
        self.offsets = ParameterStore(directory / "shovel_offsets.json", disk=disk)
        """How far they have read streams."""
        self.limits = VHostLimits(directory / "limits.json", disk)
        self._disk = disk
        self._queues = queues
        self._exchanges = exchanges
        self._call_soon = call_soon
        self._on_queue = on_queue
        self._on_exchange = on_exchange
        self._shared: dict[tuple[FieldTable, Policy | None, Policy | None], Features] = {}
        self._is_applying = False
        self._is_outdated = False
        self._waiting: list[Callable[[], None]] = []
        self._start: Patience | None = None
        self._starting: asyncio.Handle | None = None

    @property
    def _stores(self) -> tuple[PolicyStore | ParameterStore | VHostLimits, ...]:
        parameters = self.parameters, self.paused, self.offsets
        return self.policies, self.operator_policies, *parameters, self.limits

    def release(self) -> None:
        """Write no file any more: the virtual host is deleted, and another one of its name gets the
        same directory. In a thread."""
        for store in self._stores:
            store.release()

    def load(self) -> None:
        """Read all files. All that is declared before the loop turns next is counted as one start.
        Raises: DefinitionsError when policies or limits cannot be read or understood."""
        for store in self._stores:
            store.load()
        self._begin()

    def load_ahead(self) -> None:
        """The same, before `load_parameters` reads once more what is not needed to go on. Raises:
        DefinitionsError."""
        for store in (self.policies, self.operator_policies, self.limits):
            store.load()
        with hushed([]):
            self.load_parameters()
        self._begin()

    def load_parameters(self) -> None:
        """Read parameters, and what belongs to them and changes without anybody's order."""
        for store in (self.parameters, self.paused, self.offsets):
            store.load()

    def _begin(self) -> None:
        self._start = Patience(PATIENCE_OF_START)
        self._starting = self._call_soon(self._started)

    def stop(self) -> None:
        """Nothing comes of the start any more. Idempotent."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    def _started(self) -> None:
        """The loop turns: policies that took too long for the start come to what was left out."""
        start, self._start, self._starting = self._start, None, None
        if start is not None and start.has_skipped:
            self._apply_all()

    # --- changes ------------------------------------------------------------------------------

    def put_policy(self, *policies: Policy) -> None:
        """Add policies, or replace those of the same names. Raises: DefinitionsError."""
        self.policies.put(*policies)

    def delete_policy(self, name: str) -> bool:
        """Remove a policy. Returns: whether it was there. Raises: DefinitionsError."""
        return self.policies.delete(name)

    def put_operator_policy(self, *policies: Policy) -> None:
        """Add operator policies, or replace those of the same names. Raises: DefinitionsError."""
        self.operator_policies.put(*policies)

    def delete_operator_policy(self, name: str) -> bool:
        """Remove an operator policy. Returns: whether it was there. Raises: DefinitionsError."""
        return self.operator_policies.delete(name)

    # --- bringing them to queues and exchanges ------------------------------------------------

    def apply_to_queue(self, queue: Queue) -> None:
        """Give a queue the features that its arguments and the policies in force come to."""
        if queue.is_internal:
            return
        kind = queue_kind(queue.arguments)
        patience = self._start or Patience()
        policy = self.policies.match(queue.name, kind, patience)
        operator = self.operator_policies.match(queue.name, kind, patience)
        features = self._features(queue.arguments, policy, operator)
        known = queue.features
        # What is made of arguments is hardly ever plain: looking closer would cost more.
        if features is not known and (known is PLAIN or features != known):
            queue.apply(features)
            self._on_queue(queue)

    def apply_to_exchange(self, exchange: Exchange) -> None:
        """Give an exchange the features that its arguments and the policies in force come to."""
        features = self.features_of_exchange(exchange.name, exchange.type, exchange.arguments)
        if features != exchange.features:
            exchange.features = features
            self._on_exchange(exchange)

    def features_of_exchange(
        self, name: str, type_: str, arguments: FieldTable
    ) -> ExchangeFeatures:
        """The features of an exchange that there is, or that is to be."""
        patience = self._start or Patience()
        policy = self.policies.match(name, Kind.EXCHANGE, patience)
        operator = self.operator_policies.match(name, Kind.EXCHANGE, patience)
        return exchange_features(type_, arguments, *self._what(policy, operator))

    def when_applied(self, callback: Callable[[], None]) -> None:
        """Call back once everything has the features that the policies of now give it, and the
        directories that it needs for them; or once these are taken back."""
        applied = partial(self._when_in_force, callback)
        self.policies.when_saved(partial(self.operator_policies.when_saved, applied))

    def _when_in_force(self, callback: Callable[[], None]) -> None:
        """The same for the policies in force."""
        if self._is_applying:
            self._waiting.append(callback)
        else:
            self._when_named(callback)

    def _when_named(self, callback: Callable[[], None]) -> None:
        """Call back behind all changes of names that were asked for."""
        if self._disk is not None and self._disk.is_running:
            self._disk.names.add(_nothing, lambda *_: callback())
        else:
            callback()

    def _features(
        self, arguments: FieldTable, policy: Policy | None, operator: Policy | None
    ) -> Features:
        """The features of a queue; one value for all that have the same arguments and policies."""
        found = self._shared.get((arguments, policy, operator))
        if found is None:
            found = queue_features(arguments, *self._what(policy, operator))
            if len(arguments.raw) <= MAX_SHARED_BYTES:
                if len(self._shared) >= MAX_SHARED:
                    self._shared.clear()
                self._shared[arguments, policy, operator] = found
        return found

    def _what(
        self, policy: Policy | None, operator: Policy | None
    ) -> tuple[Definition, Definition, tuple[str | None, str | None]]:
        """What a policy and an operator policy say, and their names."""
        names = (policy.name if policy else None, operator.name if operator else None)
        return self.policies.usable(policy), self.operator_policies.usable(operator), names

    def _apply_all(self) -> None:
        """Other policies are in force. A round under way goes on, so that those at its end are
        reached however fast changes come; another one follows for those it has passed."""
        self._shared.clear()
        if self._is_applying:
            self._is_outdated = True
            return
        self._is_applying = True
        self._call_soon(partial(in_portions, self._call_soon, self._steps()))

    def _steps(self) -> Iterator[None]:
        """A round for each change that came during the last one, a step for each object."""
        self._is_outdated = True
        while self._is_outdated:
            self._is_outdated = False
            for exchange in list(self._exchanges.values()):
                if self._exchanges.get(exchange.name) is exchange:
                    self.apply_to_exchange(exchange)
                yield
            for queue in list(self._queues.values()):
                if self._queues.get(queue.name) is queue:
                    self.apply_to_queue(queue)
                yield
        self._is_applying = False
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self._when_named(callback)


def _nothing() -> None:
    """What was asked for before is done."""
