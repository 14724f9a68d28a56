"""Policies and operator policies of one virtual host: what they say, which matches, their files.

Of all that match a name exactly one applies: that of the highest priority; among equals the one
whose name comes first in the order of characters. A `Policy` never changes; another one takes its
place. What a definition does to a queue is merged in `features.py` and brought there by
`vhost/rules.py`. Source: docs/policies.md, docs/formats.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from lavinmq.arguments.keys import KEYS, NAME, OPERATOR_KEYS, Kind, is_integer
from lavinmq.files.json_file import JsonFile
from lavinmq.files.saving import Disk
from lavinmq.nearest import VERY_LIKE, nearest
from lavinmq.policy import features
from lavinmq.policy.features import Definition
from lavinmq.policy.pattern import Patience, Pattern
from lavinmq.process.log import get

log = get("lmq.policy")

TARGETS: Final = MappingProxyType(
    {
        "all": frozenset(Kind),
        "queues": frozenset({Kind.QUEUE, Kind.STREAM}),
        "exchanges": frozenset({Kind.EXCHANGE}),
        "classic_queues": frozenset({Kind.QUEUE}),
        "quorum_queues": frozenset({Kind.QUEUE}),
        "streams": frozenset({Kind.STREAM}),
    }
)
"""What `apply-to` may be, and what that means."""

PRIORITIES: Final = range(-128, 128)

FOREIGN_KEYS: Final = frozenset(
    {"ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown",
     "ha-promote-on-failure", "queue-master-locator", "queue-leader-locator", "queue-mode",
     "queue-version", "max-in-memory-length", "max-in-memory-bytes", "dead-letter-strategy",
     "initial-cluster-size", "target-group-size", "stream-max-segment-size-bytes",
     "stream-filter-size-bytes", "federation-upstream-pattern", "shards-per-node", "routing-key"}
)  # fmt: skip
"""Keys of RabbitMQ and its plugins that mean nothing here: kept, so that its policies may come."""


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """One policy; made by `of` from what a user gives, by `from_json` from a file.

    `definition` is all it says, `usable` the part that has an effect.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: int = 0
    apply_to: str = "all"
    usable: Definition = field(init=False, repr=False)
    _pattern: Pattern = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises: ValueError for a pattern, a priority or a target that makes no sense."""
        if self.apply_to not in TARGETS:
            raise ValueError(f"Unknown apply-to {self.apply_to!r}; one of {', '.join(TARGETS)}")
        if self.priority not in PRIORITIES:
            raise ValueError("Policy priority must be between -128 and 127")
        object.__setattr__(self, "_pattern", Pattern(self.pattern))
        object.__setattr__(self, "usable", features.usable(self.definition)[0])

    @classmethod
    def of(
        cls, name: str, pattern: str, definition: Mapping[str, Any], priority: int = 0,
        apply_to: str = "all", *, is_operator: bool = False,
    ) -> Self:  # fmt: skip
        """A policy with the checks that users expect. Raises: ValueError with a text for them."""
        check_keys(definition)  # first: of a misspelt key nobody knows the type
        for key, value in definition.items():
            if key not in FOREIGN_KEYS:
                _check_type(key, value)
        made = cls(name, pattern, dict(definition), priority, apply_to)
        for key in made.without_effect(is_operator=True) if is_operator else ():
            raise ValueError(f"Operator policy definition '{key}' is not supported")
        return made

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """A policy as it is stored; values of wrong types stay, without effect.

        Raises: ValueError when it cannot be one.
        """
        if not isinstance(entry, dict):
            raise ValueError("not a policy")
        name, pattern_, definition = (entry.get(key) for key in ("name", "pattern", "definition"))
        priority, apply_to = entry.get("priority", 0), entry.get("apply-to", "all")
        if not (
            isinstance(name, str) and isinstance(pattern_, str) and isinstance(definition, dict)
            and is_integer(priority) and isinstance(apply_to, str)
        ):  # fmt: skip
            raise ValueError("a policy has a name, a pattern and a definition")
        return cls(name, pattern_, definition, priority, apply_to)

    def to_json(self, vhost: str) -> dict[str, Any]:
        """The policy as it is stored, and shown by management."""
        return {
            "name": self.name,
            "vhost": vhost,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "priority": self.priority,
            "definition": dict(self.definition),
        }

    def matches(self, name: str, kind: Kind, patience: Patience | None = None) -> bool:
        """Whether it is meant for the queue or exchange."""
        patience = patience or Patience()
        return kind in TARGETS[self.apply_to] and patience.search(self._pattern, name)

    @property
    def stumbles(self) -> int:
        """How many names its pattern took too long for: it does not apply to them."""
        return self._pattern.stumbles

    def unusable(self) -> list[str]:
        """Known keys whose values are of no use, for a warning."""
        return features.usable(self.definition)[1]

    def without_effect(self, *, is_operator: bool = False) -> list[str]:
        """Keys that are kept and do nothing in this release, by name. Args: is_operator: whether
        it is an operator policy, which only knows `OPERATOR_KEYS`."""
        known = OPERATOR_KEYS if is_operator else KEYS
        return [key for key in self.definition if key not in known]


class PolicyStore:
    """The policies of one kind of one virtual host, and their file. Call `load` once.

    Args: is_operator: whether they are operator policies, which only know `OPERATOR_KEYS`; disk:
        see `files/saving.py`; on_change: is called when other policies are in force: a change
        counts when it is on disk, for what it does to messages cannot be taken back.
    """

    def __init__(
        self, path: Path, vhost: str, is_operator: bool = False, disk: Disk | None = None,
        on_change: Callable[[], object] = bool,
    ) -> None:  # fmt: skip
        self.is_operator = is_operator
        self._vhost = vhost
        self._file = JsonFile(path, disk, is_needed=True)
        self._on_change = on_change
        self._policies: dict[str, Policy] = {}
        self._by_rank: list[Policy] = []

    def load(self) -> None:
        """Read the file. Raises: DefinitionsError when it, or an entry of it, cannot be read or
        understood: where messages go when they die, and how long they are kept, may be said in it.
        """
        stored = self._file.load_entries(Policy.from_json)
        self._policies = {policy.name: policy for policy in stored}
        self._by_rank = _by_rank(self._policies.values())
        for policy in self.all():
            self._warn(policy)

    def release(self) -> None:
        """Write nothing more. In a thread."""
        self._file.release()

    def all(self) -> list[Policy]:
        """All policies, in the order of their creation; those on their way to the disk, too."""
        return list(self._policies.values())

    def get(self, name: str) -> Policy | None:
        """The policy of that name."""
        return self._policies.get(name)

    def put(self, *policies: Policy) -> None:
        """Add policies, or replace those of the same names; the file is saved once.

        Raises: DefinitionsError when it cannot be saved; nothing has changed then. That may turn
            out later: then it is taken back.
        """
        self._save(self._policies | {policy.name: policy for policy in policies})
        for policy in policies:
            self._warn(policy)

    def delete(self, name: str) -> bool:
        """Remove a policy. Returns: whether it was there. Raises: DefinitionsError, as `put`."""
        if name not in self._policies:
            return False
        self._save({key: policy for key, policy in self._policies.items() if key != name})
        return True

    def match(self, name: str, kind: Kind, patience: Patience | None = None) -> Policy | None:
        """The one policy that applies to the queue or exchange, of those in force."""
        patience = patience or Patience()
        for policy in self._by_rank:
            if policy.matches(name, kind, patience):
                return policy
        return None

    def usable(self, policy: Policy | None) -> Definition:
        """What the policy says, as far as it has an effect in this store."""
        if policy is None:
            return features.NO_DEFINITION
        if not self.is_operator:
            return policy.usable
        return {k: value for k, value in policy.usable.items() if k in OPERATOR_KEYS}

    def _save(self, policies: dict[str, Policy]) -> None:
        self._file.save_entries(
            lambda: (policy.to_json(self._vhost) for policy in policies.values()),
            partial(setattr, self, "_policies", self._policies),
            partial(self._enforce, policies),
        )
        self._policies = policies

    def _enforce(self, policies: dict[str, Policy]) -> None:
        self._by_rank = _by_rank(policies.values())
        self._on_change()

    def when_saved(self, callback: Callable[[], object]) -> None:
        """Call back once all changes so far are in force, or taken back."""
        self._file.when_saved(callback)

    def _warn(self, policy: Policy) -> None:
        idle = policy.without_effect(is_operator=self.is_operator)
        if idle:
            log.warning(
                "policy %r of vhost %r: no effect here of %s",
                policy.name, self._vhost, ", ".join(idle),
            )  # fmt: skip
        for key in policy.unusable():
            log.warning(
                "policy %r of vhost %r: %s is left out, %r is not usable",
                policy.name, self._vhost, key, policy.definition[key],
            )  # fmt: skip


def _by_rank(policies: Iterable[Policy]) -> list[Policy]:
    """In the order in which they are asked."""
    return sorted(policies, key=lambda each: (-each.priority, each.name))


def check_keys(definition: Mapping[str, Any]) -> None:
    """Refuse keys that are misspelt. Others that nobody knows are kept: plugins have their own.

    Raises: ValueError that names the key that was meant.
    """
    known = [*KEYS, *sorted(FOREIGN_KEYS)]
    for key in definition:
        meant = "" if key in known else nearest(key, known, VERY_LIKE)
        if meant:
            raise ValueError(f"Policy definition '{key}' is unknown, did you mean '{meant}'?")


def _check_type(key: str, value: object) -> None:
    """What nobody knows is text. Raises: ValueError."""
    values = KEYS[key].values if key in KEYS else NAME
    if not values.is_typed(value):
        raise ValueError(f"Policy definition '{key}' should be of type {values.type_name}")
