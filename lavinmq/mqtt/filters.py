"""Topic filters and topic names: what they may look like, and which are shared.

Bytes throughout: a filter is as long as 65 535 of them, whatever characters they make. Matching is
the message path's. Source: MQTT 5.0 sections 4.7 and 4.8, 3.1.1 section 4.7.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lavinmq.mqtt.reasons import PacketError, Reason

SHARE: Final = "$share/"


class Shared(NamedTuple):
    """A shared subscription: its group, and the filter behind it."""

    group: str
    filter: str


def check_filter(text: str) -> None:
    """Refuse what is no topic filter. Raises: PacketError 0x8F."""
    if not text:
        raise _invalid("a topic filter has one character at least")
    if "#" not in text and "+" not in text:
        return
    levels = text.split("/")
    last = len(levels) - 1
    for at, level in enumerate(levels):
        if "#" in level and (level != "#" or at != last):
            raise _invalid("# stands alone in the last level of a topic filter")
        if "+" in level and level != "+":
            raise _invalid("+ stands alone in its level of a topic filter")


def shared(text: str) -> Shared | None:
    """The parts of `$share/group/filter`; None of a filter that is not shared.

    Raises: PacketError 0x8F when it is neither.
    """
    if text != "$share" and not text.startswith(SHARE):
        return None
    group, slash, rest = text[len(SHARE) :].partition("/")
    if not group or not slash or not rest:
        raise _invalid("a shared subscription is $share, a name and a topic filter")
    if "#" in group or "+" in group:
        raise _invalid("the name of a shared subscription has no wildcards")
    return Shared(group, rest)


def matches(text: str, topic: str) -> bool:
    """Whether a topic filter matches a topic: for a few topics, messages are matched elsewhere."""
    wanted, levels = text.split("/"), topic.split("/")
    if wanted[0] in ("#", "+") and topic.startswith("$"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at == len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


def check_topic(text: str) -> None:
    """Refuse what is no topic name. Raises: PacketError 0x90."""
    if not text:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "a topic has one character at least")
    if "#" in text or "+" in text:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "a topic has no wildcards")


def _invalid(text: str) -> PacketError:
    return PacketError(Reason.TOPIC_FILTER_INVALID, text)
