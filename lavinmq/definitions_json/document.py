"""A document of definitions, read and checked as far as that is possible without a broker.

Sections and fields that nobody knows are ignored: documents of other brokers and releases have
more. What is known has to be right: bad entries are noted, all of them, in `refusals`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

from lavinmq.arguments import names
from lavinmq.arguments.bounds import UNBOUNDED, TableBounds
from lavinmq.auth import passwords, permissions, scram, topics
from lavinmq.auth.users import DIRECT_USER, SCRAM_KEY, parse_tags
from lavinmq.definitions_json.entry import (
    MOST_REFUSALS,
    DefinitionsRefused,
    Entry,
    Item,
    Refusals,
    Remark,
    refusal,
)
from lavinmq.definitions_json.reader import (
    WHOLE,
    MalformedError,
    NotAnObjectError,
    TooLongError,
    TooRichError,
    members,
)
from lavinmq.definitions_json.users import PermissionDef, TopicPermissionDef, UserDef
from lavinmq.errors import ChannelError
from lavinmq.files.definitions import BindingDef, ExchangeDef, QueueDef
from lavinmq.files.vhosts import VHostDef
from lavinmq.nearest import nearest
from lavinmq.policy.limits import USER_LIMITS, VHOST_LIMITS
from lavinmq.policy.parameters import Parameter
from lavinmq.policy.policies import Policy, check_keys
from lavinmq.process.portions import emptied
from lavinmq.vhost.vhosts import check_name

OPERATOR_POLICY: Final = "operator_policy"
LIMITS: Final = "vhost-limits"
MANAGED: Final = (OPERATOR_POLICY, LIMITS)
"""Components that parameters have in documents only: what they say has a place of its own."""

TAG_SPELLINGS: Final = {"policy_maker": "policymaker"}
"""How LavinMQ writes a tag in exports, and what it is."""

OWN_VERSION: Final = "lavinmq_version"
BESIDES: Final = frozenset(
    {OWN_VERSION, "rabbit_version", "rabbitmq_version", "rabbitmq_definition_format",
     "product_name", "product_version", "original_cluster_name", "original_vhost_name",
     "explanation", "metadata", "description", "default_queue_type", "limits"}
)  # fmt: skip
"""What brokers write beside the sections: of no use here, and nobody's mistake."""


class Document:
    """What a document asks for, by kind and in its order. Call `read` to the end.

    Args: vhost: what all entries are for, whatever they say; users, virtual hosts, permissions and
        global parameters are ignored then. None: each says for itself. bounds: of the tables in it.
        is_skipping: whether bad entries are left out, instead of refusing the document. longest: an
        entry with more characters refuses it, for each is read in one go; most: values in an entry,
        for the same reason.
    """

    def __init__(
        self, vhost: str | None = None, bounds: TableBounds = UNBOUNDED, *,
        is_skipping: bool = False, longest: int = sys.maxsize,
        most: int = sys.maxsize,
    ) -> None:  # fmt: skip
        self.refusals = Refusals(is_skipping=is_skipping)
        self.notes: list[Remark] = []
        """Sections that are misspelt."""
        self.is_own = False
        """Whether it is an export of this broker, or of LavinMQ."""
        self._strange = ""
        self._bounds = bounds
        self._longest = longest
        self._most = most
        self.users: list[Item] = []
        self.vhosts: list[Item] = []
        self.permissions: list[Item] = []
        self.topic_permissions: list[Item] = []
        self.limits: list[Item] = []
        self.policies: list[Item] = []
        self.operator_policies: list[Item] = []
        self.exchanges: list[Item] = []
        self.queues: list[Item] = []
        self.bindings: list[Item] = []
        self.parameters: list[Item] = []
        self.global_parameters: list[Item] = []
        self._vhost = vhost

    def read(self, content: bytes | bytearray) -> Iterator[None]:
        """Read a JSON text, one entry in each step; bad entries are in `refusals`.

        Raises: DefinitionsRefused for a text that is no document, or has very many bad entries.
        """
        try:
            for section, position, value in members(content, self._longest, self._most):
                self._take(section, position, value)
                yield
        except NotAnObjectError:
            raise refusal("", "Request body has to be a JSON object") from None
        except MalformedError as error:
            if (error.line, error.column) == (1, 1):  # no JSON at all: there is no place to mend
                raise refusal("", "Malformed JSON") from None
            where = f"line {error.line}, column {error.column}"
            raise refusal("", f"Malformed JSON at {where}") from None
        except TooLongError:
            raise refusal("", f"An entry is longer than {self._longest} bytes") from None
        except TooRichError:
            raise refusal("", f"An entry has more than {self._most} values") from None

    def emptied(self) -> Iterator[None]:
        """Let go of all entries, in short steps."""
        yield from emptied(
            self.users, self.vhosts, self.permissions, self.topic_permissions, self.limits,
            self.policies, self.operator_policies, self.exchanges, self.queues, self.bindings,
            self.parameters, self.global_parameters, self.refusals.found, self.notes,
        )  # fmt: skip

    def _take(self, section: str, position: int, value: Any) -> None:
        take = self._SECTIONS.get(section)
        if take is None:
            self._note_strange(section)
            return
        if self._vhost is not None and section not in OF_A_VHOST:
            return
        if position == WHOLE:
            if value is not None:
                self.refusals.add(refusal("", f"Field '{section}' must be an array"))
            return
        try:
            self._take_entry(take, Entry(f"{section}[{position}]", value, self._bounds))
        except DefinitionsRefused as error:
            self.refusals.add(error)

    def _note_strange(self, section: str) -> None:
        """Tell of a section that looks like one of ours, at its first entry."""
        if section in BESIDES:
            self.is_own = self.is_own or section == OWN_VERSION
            return
        if section == self._strange or len(self.notes) >= MOST_REFUSALS:
            return
        self._strange = section
        meant = nearest(section, self._SECTIONS)
        if meant:
            reason = f"unknown section, nothing of it is imported; did you mean '{meant}'?"
            self.notes.append(Remark(section, reason))

    def _take_entry(self, take: Callable[[Document, Entry], None], entry: Entry) -> None:
        """Raises: DefinitionsRefused."""
        try:
            take(self, entry)
        except DefinitionsRefused:
            raise
        except ChannelError as error:
            raise entry.refused(error.text or error.reply_text) from error
        except ValueError as error:
            raise entry.refused(str(error)) from error

    def _of_vhost(self, entry: Entry, thing: Any) -> Item:
        if self._vhost is not None:
            return Item(entry.place, self._vhost, thing)
        has_one = entry.value.get("vhost") is not None
        return Item(entry.place, entry.text("vhost") if has_one else None, thing)

    def _user(self, entry: Entry) -> None:
        name = entry.text("name")
        names.check_label("User", name)
        if name == DIRECT_USER:
            raise entry.refused("Illegal user name")
        hashed = entry.long_text("password_hash", "")
        algorithm = None
        if entry.value.get("hashing_algorithm", "") is not None:
            algorithm = entry.text("hashing_algorithm", passwords.DEFAULT_ALGORITHM)
        passwords.validate(hashed, algorithm)
        tags = [TAG_SPELLINGS.get(tag, tag) for tag in entry.words("tags") or ()]
        limits = _limits(entry, entry.object("limits", {}), USER_LIMITS)
        keys = entry.long_text(SCRAM_KEY, "") or None
        if keys:
            scram.parse(keys)
        user = UserDef(
            name, hashed, algorithm if hashed else None, parse_tags(",".join(tags)), limits, keys
        )
        self.users.append(Item(entry.place, None, user))

    def _vhost_entry(self, entry: Entry) -> None:
        name = entry.text("name")
        check_name(name)
        more = Entry(entry.place, entry.value.get("metadata") or {})
        tags = entry.words("tags")
        vhost = VHostDef(
            name,
            entry.long_text("description", "") or more.long_text("description", ""),
            (more.words("tags") if tags is None else tags) or (),
        )
        self.vhosts.append(Item(entry.place, name, vhost))

    def _permission(self, entry: Entry) -> None:
        user = entry.text("user")
        entry.place = f"{entry.place} of {user!r}"
        regexes = [
            _regex(entry, field, permissions.check) for field in ("configure", "read", "write")
        ]
        self.permissions.append(self._of_vhost(entry, PermissionDef(user, *regexes)))

    def _topic_permission(self, entry: Entry) -> None:
        user = entry.text("user")
        entry.place = f"{entry.place} of {user!r}"
        exchange = entry.text("exchange")
        write, read = (_regex(entry, field, topics.check) for field in ("write", "read"))
        thing = TopicPermissionDef(user, exchange, write, read)
        self.topic_permissions.append(self._of_vhost(entry, thing))

    def _queue(self, entry: Entry) -> None:
        name = entry.text("name")
        if not name:
            raise entry.refused("field 'name' must not be empty")
        names.check_name("Queue", name)
        durable, auto_delete = entry.flag("durable", True), entry.flag("auto_delete", False)
        queue = QueueDef(name, durable, False, auto_delete, entry.table())
        self.queues.append(self._of_vhost(entry, queue))

    def _exchange(self, entry: Entry) -> None:
        name = entry.text("name")
        names.check_name("Exchange", name)
        exchange = ExchangeDef(
            name, entry.text("type"), entry.flag("durable", True),
            entry.flag("auto_delete", False), entry.flag("internal", False), entry.table(),
        )  # fmt: skip
        self.exchanges.append(self._of_vhost(entry, exchange))

    def _binding(self, entry: Entry) -> None:
        kind = entry.text("destination_type", "queue")
        if kind not in ("queue", "exchange"):
            raise entry.refused("field 'destination_type' must be 'queue' or 'exchange'")
        binding = BindingDef(
            entry.text("source"), entry.text("destination"),
            "queue" if kind == "queue" else "exchange", entry.text("routing_key", ""),
            entry.table(),
        )  # fmt: skip
        entry.place = f"{entry.place} {binding.source!r} to {binding.destination!r}"
        self.bindings.append(self._of_vhost(entry, binding))

    def _policy(self, entry: Entry) -> None:
        self.policies.append(self._of_vhost(entry, _policy(entry, entry.text("name"))))

    def _parameter(self, entry: Entry) -> None:
        component, name, value = entry.text("component"), entry.text("name"), entry.any("value")
        names.check_label("Component", component)
        names.check_label("Parameter", name)
        if component == OPERATOR_POLICY:
            inner = Entry(entry.place, value)
            inner.place = entry.place
            self.operator_policies.append(self._of_vhost(entry, _policy(inner, name)))
        elif component == LIMITS:
            limits = _limits(entry, entry.object("value"), VHOST_LIMITS)
            self.limits.append(self._of_vhost(entry, limits))
        else:
            self.parameters.append(self._of_vhost(entry, Parameter(component, name, value)))

    def _global_parameter(self, entry: Entry) -> None:
        name, value = entry.text("name"), entry.any("value")
        names.check_label("Parameter", name)
        self.global_parameters.append(Item(entry.place, None, Parameter(None, name, value)))

    _SECTIONS: ClassVar[dict[str, Callable[[Document, Entry], None]]] = {
        "users": _user,
        "vhosts": _vhost_entry,
        "permissions": _permission,
        "topic_permissions": _topic_permission,
        "queues": _queue,
        "exchanges": _exchange,
        "bindings": _binding,
        "policies": _policy,
        "parameters": _parameter,
        "global_parameters": _global_parameter,
    }


OF_A_VHOST: Final = ("queues", "exchanges", "bindings", "policies", "parameters")
"""The sections of a document for one virtual host."""


def _regex(entry: Entry, field: str, check: Callable[[str], None]) -> str:
    """A regular expression, required. Raises: DefinitionsRefused naming the field."""
    regex = entry.long_text(field)
    try:
        check(regex)
    except ValueError as error:
        raise entry.refused(f"field '{field}': {error}") from error
    return regex


def _policy(entry: Entry, name: str) -> Policy:
    """A policy. Keys that nobody knows are kept, as other brokers have more of them."""
    names.check_label("Policy", name)
    policy = Policy(
        name, entry.long_text("pattern"), entry.object("definition"),
        entry.integer("priority", 0), entry.text("apply-to", "all"),
    )  # fmt: skip
    check_keys(policy.definition)
    for key in policy.unusable():
        raise entry.refused(f"field 'definition': the value of '{key}' is not usable")
    return policy


def _limits(entry: Entry, values: dict[str, Any], known: tuple[str, ...]) -> dict[str, int]:
    for limit, value in values.items():
        if limit not in known:
            raise entry.refused(f"unknown limit {limit!r}; one of {', '.join(known)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise entry.refused(f"limit '{limit}' must be an integer")
    return {limit: value for limit, value in values.items() if value >= 0}
