"""What a document changes in a broker: found out first, as a whole, and applied afterwards.

`check` compares everything and refuses what cannot be; nothing has been changed then. `apply` does
it, in an order in which each thing finds what it needs: policies come before queues, so that these
are right from their beginning. Files are saved once for each kind; the caller has the definitions
of `touched` synced. What other requests change between the two is met by the checks that every
declaration goes through. Source: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from lavinmq.auth.topics import TopicRow
from lavinmq.broker import Broker
from lavinmq.definitions_json.document import Document
from lavinmq.definitions_json.entry import DefinitionsRefused, Item, Remark, refusal
from lavinmq.definitions_json.topology import Topology
from lavinmq.definitions_json.users import PermissionDef, TopicPermissionDef, UserDef
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.policy.policies import Policy
from lavinmq.process.portions import emptied
from lavinmq.vhost.rules import VHostRules
from lavinmq.vhost.vhost import VHost

ACCOUNTS: Final = ("user", "topic permission", "permission")
"""Kinds of changes that are saved together."""

SHOVEL: Final = "shovel"
PROTOCOLS: Final = ("src-protocol", "dest-protocol")
NOT_SPOKEN: Final = "amqp10"
"""What fields of a shovel may say in RabbitMQ, and shovels of this broker cannot do."""


def _nothing() -> None:
    """Nobody has to be asked."""


class Change(NamedTuple):
    """Something that is not yet as the document wants it. `action`: create or update."""

    kind: str
    vhost: str | None
    name: str
    action: str


class Plan:
    """The way from a broker as it is to one with a document in it. Nothing is ever removed.

    Args:
        broker: what is changed by `apply`.
        document: read to its end.
        creator: who has sent the document; gets all rights in new virtual hosts. An unknown one:
            nobody.
        keep_existing: whatever is there stays as it is, where it differs too.
    """

    def __init__(
        self, broker: Broker, document: Document, creator: str, *, keep_existing: bool = False
    ) -> None:
        self.changes: list[Change] = []
        self.skipped: list[Remark] = []
        """Entries that are left out."""
        self.notes: list[Remark] = []
        """Entries of which a part has no effect, and sections that are none."""
        self.unchanged = 0
        self._broker = broker
        self._document = document
        self._creator = creator
        self._keep_existing = keep_existing
        self._created: set[Change] = set()
        self._touched: dict[str, None] = {}
        self._steps: list[Callable[[], object]] = []
        self._own: list[Callable[[], object]] = []
        self._has_untold = False
        """Whether accounts have changed of which nobody was told."""
        self._topologies: dict[str, Topology] = {}
        self._default_vhost = next(
            iter([*broker.vhosts, *(item.thing.name for item in document.vhosts)]), None
        )

    def check(self) -> Iterator[None]:
        """Compare, one entry in each step.

        Raises: DefinitionsRefused with all bad entries, also those found by reading; if they are
            to be left out, only for what no entry alone is to blame for.
        """
        yield from self._each(self._document.vhosts, self._vhost)
        yield from self._each(self._document.users, self._user)
        # Topics first: what restricts a user is there before what it restricts.
        yield from self._each(self._document.topic_permissions, self._topic_permission)
        yield from self._each(self._document.permissions, self._permission)
        if any(
            change.kind in ("user", "topic permission", "permission") for change in self.changes
        ):
            self._steps.append(self._save_accounts)
        yield from self._each(self._document.limits, self._limits)
        yield from self._policies(self._document.policies, is_operator=False)
        yield from self._policies(self._document.operator_policies, is_operator=True)
        for items, compare in (
            (self._document.exchanges, Topology.exchange),
            (self._document.queues, Topology.queue),
            (self._document.bindings, Topology.binding),
        ):
            yield from self._each(items, partial(self._topology_entry, compare))
            yield from emptied(items)
        limited = {item.vhost for item in self._document.limits if "max-queues" in item.thing}
        for name, topology in self._topologies.items():
            if name not in limited:
                topology.check_limit()
        yield from self._parameters()
        self._steps.extend(self._own)
        refusals = self._document.refusals
        refusals.check()
        self.skipped[:0] = refusals.found
        self.notes[:0] = self._document.notes

    def apply(
        self, check: Callable[[], object] = _nothing
    ) -> Iterator[Coroutine[Any, Any, object] | None]:
        """Do it. What a step gives has to be awaited before the next one.

        Args: check: is called before each step, and may raise what ends all.
        Raises: what `check` raises; DefinitionsRefused, ProtocolError, DefinitionsError, OSError
            when the disk refuses or others have changed what matters since. What has been done so
            far stays.
        """
        # None is freed before all are done, see `emptied`: the garbage collector counts what is
        # made less what is freed, and would look at all of it in one pass of tens of milliseconds.
        try:
            for step in self._steps:
                check()
                result = step()
                yield result if isinstance(result, Coroutine) else None
        finally:
            if self._has_untold:  # it ends early: links remember what their users might do
                self._save_accounts()

    def emptied(self) -> Iterator[None]:
        """Let go of all that has been found out, in short steps."""
        yield from emptied(self._steps, self.changes, self._created, self.skipped, self.notes)
        for topology in self._topologies.values():
            yield from topology.emptied()

    @property
    def touched(self) -> list[VHost]:
        """The virtual hosts that have been changed, as far as they are still there."""
        found = map(self._broker.vhosts.get, self._touched)
        return [vhost for vhost in found if vhost is not None]

    def _each(self, items: list[Item], compare: Callable[[Item], None]) -> Iterator[None]:
        for item in items:
            try:
                compare(item)
            except DefinitionsRefused as error:
                self._document.refusals.add(error)
            yield

    # --- one kind after the other -------------------------------------------------------------

    def _vhost(self, item: Item) -> None:
        wanted = item.thing
        vhosts = self._broker.vhosts
        if wanted.name not in vhosts:
            if vhosts.stored(wanted.name) is not None:
                raise refusal(item.place, "it exists, its files could not be loaded")
            self._note("vhost", wanted.name, wanted.name, is_new=True)
        else:
            # What is left empty says nothing: most documents have only names.
            described = vhosts.described(
                wanted.name, wanted.description or None, wanted.tags or None
            )
            if not self._is_update(
                "vhost", item, wanted.name, vhosts.stored(wanted.name), described
            ):
                return
        self._steps.append(
            partial(
                vhosts.create, wanted.name, self._creator, wanted.description or None,
                wanted.tags or None,
            )
        )  # fmt: skip

    def _user(self, item: Item) -> None:
        wanted: UserDef = item.thing
        there = self._broker.users.get(wanted.name)
        if there is None:
            self._note("user", None, wanted.name, is_new=True)
        else:
            limits = self._broker.user_limits.of(wanted.name)
            present = UserDef(
                there.name, there.password_hash, there.hashing_algorithm, there.tags, limits,
                None if wanted.keys is None else there.scram,
            )  # fmt: skip
            if not self._is_update(
                "user", item, wanted.name, present, wanted._replace(limits=limits | wanted.limits)
            ):
                return
        if wanted.name == self._creator:
            self._own.append(partial(self._put_own_user, wanted))
        else:
            self._steps.append(partial(self._put_user, wanted))

    async def _put_own_user(self, wanted: UserDef) -> None:
        """It may take from who has sent the document what all the rest needs: it comes last."""
        await self._put_user(wanted)
        self._save_accounts()

    async def _put_user(self, wanted: UserDef) -> None:
        await self._broker.accounts.clear(wanted.name)
        self._has_untold = True
        self._broker.users.add(
            wanted.name, wanted.password_hash, wanted.hashing_algorithm, wanted.tags, wanted.keys
        )
        for limit, value in wanted.limits.items():
            self._broker.user_limits.set(wanted.name, limit, value)

    def _topic_permission(self, item: Item) -> None:
        wanted: TopicPermissionDef = item.thing
        vhost = self._known_vhost(item)
        if vhost is None or not self._is_known_user(item, wanted.user):
            return
        user = self._broker.users.get(wanted.user)
        granted = user.topics.get(vhost, {}).get(wanted.exchange) if user is not None else None
        present = granted and TopicPermissionDef(
            wanted.user, wanted.exchange, granted.write, granted.read
        )
        name = f"{wanted.user} on {wanted.exchange}"
        if self._is_wanted("topic permission", item, name, present, wanted, vhost):
            self._steps.append(partial(self._restrict, vhost, wanted))

    def _restrict(self, vhost: str, wanted: TopicPermissionDef) -> None:
        if self._broker.users.get(wanted.user) is not None and vhost in self._broker.vhosts:
            self._has_untold = True
            self._broker.users.set_topic_permissions(
                TopicRow(wanted.user, vhost, wanted.exchange, wanted.write, wanted.read)
            )

    def _is_known_user(self, item: Item, name: str) -> bool:
        """Whether the user of an entry is there, or comes; else it is left out, which is noted."""
        if self._broker.users.get(name) is not None or self._is_new("user", None, name):
            return True
        self._skip(item, f"there is no user {name!r}")
        return False

    def _permission(self, item: Item) -> None:
        wanted: PermissionDef = item.thing
        vhost = self._known_vhost(item)
        if vhost is None or not self._is_known_user(item, wanted.user):
            return
        user = self._broker.users.get(wanted.user)
        granted = user.permissions.get(vhost) if user is not None else None
        present = granted and PermissionDef(
            wanted.user, granted.configure.regex, granted.read.regex, granted.write.regex
        )
        if self._is_wanted("permission", item, wanted.user, present, wanted, vhost):
            self._steps.append(partial(self._grant, vhost, wanted))

    def _grant(self, vhost: str, wanted: PermissionDef) -> None:
        if self._broker.users.get(wanted.user) is not None and vhost in self._broker.vhosts:
            self._has_untold = True
            self._broker.users.set_permissions(
                wanted.user, vhost, wanted.configure, wanted.read, wanted.write
            )

    def _save_accounts(self) -> None:
        self._has_untold = False
        self._broker.accounts.changed()

    def _limits(self, item: Item) -> None:
        vhost = self._known_vhost(item)
        if vhost is None or not item.thing:
            return
        there = self._broker.vhosts.get(vhost)
        present = there.rules.limits.all() if there is not None else {}
        if not present:
            self._note("limits", vhost, "limits", is_new=True)
        elif not self._is_update("limits", item, "limits", present, present | item.thing, vhost):
            return
        self._steps.append(partial(self._set_limits, vhost, item.thing))

    def _set_limits(self, vhost: str, limits: dict[str, int]) -> None:
        for limit, value in limits.items():
            self._rules(vhost).limits.set(limit, value)

    def _policies(self, items: list[Item], *, is_operator: bool) -> Iterator[None]:
        kind = "operator policy" if is_operator else "policy"
        wanted: dict[str, list[Policy]] = {}
        for item in items:
            vhost = self._known_vhost(item)
            if vhost is not None:
                there = self._broker.vhosts.get(vhost)
                policy: Policy = item.thing
                self._note_idle(item, ", ".join(policy.without_effect(is_operator=is_operator)))
                old = None
                if there is not None:
                    rules = there.rules
                    store = rules.operator_policies if is_operator else rules.policies
                    old = store.get(policy.name)
                present = None if old is None else old.to_json(vhost)
                if self._is_wanted(kind, item, policy.name, present, policy.to_json(vhost), vhost):
                    wanted.setdefault(vhost, []).append(policy)
            yield
        for vhost, policies in wanted.items():
            self._steps.append(partial(self._put_policies, vhost, policies, is_operator))

    def _note_idle(self, item: Item, what: str) -> None:
        if what:
            self.notes.append(Remark(item.place, f"no effect in this release: {what}"))

    def _put_policies(self, vhost: str, policies: list[Policy], is_operator: bool) -> None:
        rules = self._rules(vhost)
        (rules.put_operator_policy if is_operator else rules.put_policy)(*policies)

    def _parameters(self) -> Iterator[None]:
        wanted: dict[str | None, list[Parameter]] = {}
        for item in self._document.parameters:
            vhost = self._known_vhost(item)
            if vhost is not None:
                there = self._broker.vhosts.get(vhost)
                store = there.rules.parameters if there is not None else None
                self._parameter(item, vhost, store, wanted)
            yield
        for item in self._document.global_parameters:
            self._parameter(item, None, self._broker.parameters, wanted)
            yield
        for name, parameters in wanted.items():
            self._steps.append(partial(self._put_parameters, name, parameters))

    def _parameter(
        self, item: Item, vhost: str | None, store: ParameterStore | None,
        wanted: dict[str | None, list[Parameter]],
    ) -> None:  # fmt: skip
        parameter: Parameter = item.thing
        old = None if store is None else store.get(parameter.component, parameter.name)
        name = parameter.name
        if parameter.component is not None:
            name = f"{parameter.component}/{name}"
        kind = "global parameter" if vhost is None else "parameter"
        if parameter.component == SHOVEL and isinstance(parameter.value, dict):
            self._note_not_spoken(item, parameter.value)
        if self._is_wanted(kind, item, name, old, parameter, vhost):
            wanted.setdefault(vhost, []).append(parameter)

    def _note_not_spoken(self, item: Item, shovel: dict[str, Any]) -> None:
        keys = [key for key in PROTOCOLS if shovel.get(key) == NOT_SPOKEN]
        if keys:
            reason = f"it will not run, AMQP 1.0 is not spoken: {', '.join(keys)}"
            self.notes.append(Remark(item.place, reason))

    def _put_parameters(self, vhost: str | None, parameters: list[Parameter]) -> None:
        store = self._broker.parameters
        if vhost is not None:
            store = self._rules(vhost).parameters
        store.put(*parameters)

    def _topology_entry(self, compare: Callable[[Topology, Item], Any], item: Item) -> None:
        vhost = self._known_vhost(item)
        if vhost is None:
            return
        topology = self._topologies.get(vhost)
        if topology is None:
            topology = self._topologies[vhost] = Topology(
                vhost, self._broker.vhosts, self._broker.users.direct_user, self._keep_existing,
                has_sessions=not self._document.is_own,
            )  # fmt: skip
        result = compare(topology, item)
        if result is None:
            self.unchanged += 1
        elif isinstance(result, str):
            self._skip(item, result)
        else:
            self._note(result.kind, vhost, result.name, is_new=True)
            self._steps.append(result.run)

    def _rules(self, vhost: str) -> VHostRules:
        there = self._broker.vhosts.get(vhost)
        if there is None:
            raise refusal("", f"vhost '{vhost}' has been deleted meanwhile")
        return there.rules

    # --- what all kinds have in common --------------------------------------------------------

    def _known_vhost(self, item: Item) -> str | None:
        """The virtual host of an entry; None for one that is left out, which is noted."""
        name = self._default_vhost if item.vhost is None else item.vhost
        if name is None:
            self._skip(item, "there is no vhost")
        elif name not in self._broker.vhosts and not self._is_new("vhost", name, name):
            self._skip(item, f"there is no vhost {name!r}")
        else:
            return name
        return None

    def _is_wanted(
        self, kind: str, item: Item, name: str, old: Any, new: Any, vhost: str | None
    ) -> bool:
        """Note what becomes of an entry. Returns: whether it changes something."""
        if old is None:
            self._note(kind, vhost, name, is_new=True)
            return True
        return self._is_update(kind, item, name, old, new, vhost)

    def _is_update(
        self, kind: str, item: Item, name: str, old: Any, new: Any, vhost: str | None = None
    ) -> bool:
        """The same for one that is there."""
        if old == new:
            self.unchanged += 1
            return False
        if self._keep_existing:
            self._skip(item, "it exists and stays as it is")
            return False
        self._note(kind, vhost, name, is_new=False)
        return True

    def _note(self, kind: str, vhost: str | None, name: str, *, is_new: bool) -> None:
        change = Change(kind, vhost, name, "create" if is_new else "update")
        self.changes.append(change)
        if vhost is not None:
            self._touched[vhost] = None
        if is_new:
            self._created.add(change)

    def _is_new(self, kind: str, vhost: str | None, name: str) -> bool:
        """Whether the document brings it."""
        return Change(kind, vhost, name, "create") in self._created

    def _skip(self, item: Item, reason: str) -> None:
        self.skipped.append(Remark(item.place, reason))
