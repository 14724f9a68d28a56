"""Permission groups: which topics members may publish to and subscribe to, as LavinMQ has them.

A group is a parameter of the virtual host, component `mqtt-permissions`: members are names of
users, `*` for all; rules are topic filters with what they allow. `{client_id}` and `{username}` in
a rule stand for those of the client, as long as they are a level, or a part of one. Where a virtual
host has no group everything is allowed; else what one of a client's groups allows.
Source: docs/mqtt.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lavinmq.mqtt import filters
from lavinmq.mqtt.reasons import PacketError

if TYPE_CHECKING:
    from lavinmq.policy.parameters import Parameters

COMPONENT: Final = "mqtt-permissions"
ALL: Final = "*"
MOST_RULES: Final = 1000
"""Of one group: each is looked at for each topic that is not known."""


class Rule(NamedTuple):
    """What a topic filter allows; `filter`: with variables."""

    filter: str
    read: bool
    write: bool


class Group(NamedTuple):
    """A group. `members`: names of users, or `*`."""

    members: frozenset[str]
    rules: tuple[Rule, ...]


def parse(value: Any) -> Group:
    """A group as it is stored. Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError("Field 'value' must be an object")
    members, rules = value.get("members"), value.get("rules")
    if not isinstance(members, list) or not all(isinstance(each, str) for each in members):
        raise ValueError("Field 'members' must be an array of names")
    if not isinstance(rules, list) or len(rules) > MOST_RULES:
        raise ValueError(f"Field 'rules' must be an array of {MOST_RULES} objects at most")
    return Group(frozenset(members), tuple(map(_rule, rules)))


def _rule(value: Any) -> Rule:
    text = value.get("filter") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError("A rule must be an object with field 'filter'")
    read, write = value.get("read", False), value.get("write", False)
    if not isinstance(read, bool) or not isinstance(write, bool):
        raise ValueError("Fields 'read' and 'write' of a rule must be true or false")
    try:
        filters.check_filter(text)
    except PacketError as error:
        raise ValueError(f"Rule '{text[:100]}': {error}") from error
    return Rule(text, read, write)


class GroupRights(NamedTuple):
    """What the groups of one client allow: filters without variables, as levels."""

    readable: tuple[list[str], ...]
    writable: tuple[list[str], ...]

    def may_write(self, topic: str) -> bool:
        """Whether the client may publish to a topic."""
        levels = topic.split("/")
        return any(covers(each, levels) for each in self.writable)

    def may_read(self, text: str) -> bool:
        """Whether all that a topic filter matches may be read."""
        levels = text.split("/")
        return any(covers(each, levels) for each in self.readable)


def rights_of(parameters: Parameters, user: str, client_id: str) -> GroupRights | None:
    """What a client may do; None: there are no groups, and everything is allowed.

    A group that makes no sense, which no check has seen, allows nothing.
    """
    stored = parameters.all(COMPONENT) if parameters.is_any else ()
    if not stored:
        return None
    rules = [
        (levels, rule)
        for group in _parsed(each.value for each in stored)
        if ALL in group.members or user in group.members
        for rule in group.rules
        if (levels := _filled(rule.filter, user, client_id)) is not None
    ]
    return GroupRights(
        tuple(levels for levels, rule in rules if rule.read),
        tuple(levels for levels, rule in rules if rule.write),
    )


def _parsed(values: Iterable[Any]) -> Iterator[Group]:
    for value in values:
        try:
            yield parse(value)
        except ValueError:
            continue


def _filled(text: str, user: str, client_id: str) -> list[str] | None:
    """The levels of a rule; None when a variable has no value that is a part of a level: whoever
    chooses it would choose the rule."""
    for name, value in (("{client_id}", client_id), ("{username}", user)):
        if name not in text:
            continue
        if not value or any(each in value for each in "/+#{"):
            return None
        text = text.replace(name, value)
    return text.split("/")


def covers(rule: list[str], levels: list[str]) -> bool:
    """Whether a topic filter matches all that another one, or a topic, matches. Both are levels."""
    if rule[0] in ("+", "#") and levels[0].startswith("$"):
        return False
    for at, level in enumerate(rule):
        if level == "#":
            return True
        if at == len(levels) or levels[at] == "#" or level not in ("+", levels[at]):
            return False
    return len(rule) == len(levels)
