"""Names of queues and exchanges: which are legal, and the refusals that declarations share.

Called by `vhost/vhost.py`. Source: docs/protocol.md.
"""

import re
from typing import Final

from lavinmq.errors import ChannelError, ReplyCode

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What a name must not contain: control characters, and bytes that are not UTF-8."""

MAX_BYTES: Final = 255
"""Of any name or routing key: it has to fit into a short string."""

REPLY_TO: Final = ("amq.rabbitmq.reply-to", "amq.direct.reply-to")
"""Pseudo-queues: consuming one gives a channel an address for direct replies."""

REPLY_PREFIX: Final = "amq.direct.reply-to."
"""What such an address begins with."""

RESERVED: Final = ("mqtt.", "amq.")


def check_name(kind: str, name: str) -> None:
    """Names are UTF-8 without control characters. Raises: ChannelError 406."""
    if _CONTROL.search(name):
        raise failed(f"{kind} name isn't valid")


def check_prefix(name: str) -> None:
    """Some beginnings are for the broker's own objects. Raises: ChannelError 403."""
    if name.startswith(RESERVED):
        raise refused('Prefix ["mqtt.", "amq."] forbidden, please choose another name')


def check_label(kind: str, name: str) -> None:
    """Names of users, policies and parameters, which stand in JSON files: UTF-8 without control
    characters, 1 to 255 bytes. Raises: ValueError."""
    if _CONTROL.search(name):
        raise ValueError(f"{kind} name isn't valid: it has to be UTF-8 without control characters")
    if not 0 < len(name.encode()) <= MAX_BYTES:
        raise ValueError(f"{kind} name must have 1 to {MAX_BYTES} bytes")


def refused(text: str) -> ChannelError:
    """403, for lack of permission and for what nobody may do."""
    return ChannelError(ReplyCode.ACCESS_REFUSED, text)


def missing(text: str) -> ChannelError:
    """404."""
    return ChannelError(ReplyCode.NOT_FOUND, text)


def failed(text: str) -> ChannelError:
    """406, for arguments and states that do not fit."""
    return ChannelError(ReplyCode.PRECONDITION_FAILED, text)
