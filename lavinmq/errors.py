"""The error tree and all reply codes, in one table.

Every layer may import this module; it imports nothing of ours. The question is always *who pays?*:
`ChannelError` closes one channel, `ConnectionError_` one connection, `StoreError` one queue,
`DefinitionsError` stops a start or an import. Any other exception is a bug.
Source: docs/protocol.md.
"""

from enum import IntEnum
from typing import Literal

Scope = Literal["connection", "channel", "return", "either", "unused"]

MAX_REPLY_TEXT = 255
"""Bytes of a short string: the most a reply text may have on the wire."""
TOO_FEW = "too few nodes of the cluster are in sync"
LOW_DISK = "Server low on disk space"


class ReplyCode(IntEnum):
    """A reply code; the member's name is the name on the wire, `scope` says what it ends."""

    scope: Scope

    def __new__(cls, code: int, scope: Scope) -> "ReplyCode":
        """Make a member from its line of the table; `ReplyCode(404)` looks one up by its code."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.scope = scope
        return member

    REPLY_SUCCESS = 200, "either"
    CONTENT_TOO_LARGE = 311, "channel"
    NO_ROUTE = 312, "return"
    NO_CONSUMERS = 313, "return"
    CONNECTION_FORCED = 320, "connection"
    INVALID_PATH = 402, "unused"
    ACCESS_REFUSED = 403, "either"
    NOT_FOUND = 404, "channel"
    RESOURCE_LOCKED = 405, "channel"
    PRECONDITION_FAILED = 406, "channel"
    FRAME_ERROR = 501, "connection"
    SYNTAX_ERROR = 502, "unused"
    COMMAND_INVALID = 503, "unused"
    CHANNEL_ERROR = 504, "connection"
    UNEXPECTED_FRAME = 505, "connection"
    RESOURCE_ERROR = 506, "connection"
    NOT_ALLOWED = 530, "connection"
    NOT_IMPLEMENTED = 540, "connection"
    INTERNAL_ERROR = 541, "connection"


class ProtocolError(Exception):
    """What a close method carries. Raise one of the two subclasses, which say what is closed.

    Args:
        code: a reply code.
        text: the detail. None gives the bare code name (`NOT_IMPLEMENTED`, `NO_ROUTE`); an empty
            string keeps the dash (`ACCESS_REFUSED - `), which clients match on.
        class_id, method_id: the failing method; 0 and 0 when a content frame is to blame.
    """

    def __init__(
        self, code: int, text: str | None = None, class_id: int = 0, method_id: int = 0
    ) -> None:
        super().__init__(code, text, class_id, method_id)
        self.code = ReplyCode(code)  # type: ignore[call-arg]  # a look-up, not __new__
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        """The reply text for the wire, at most 255 bytes of UTF-8."""
        return reply_text(self.code, self.text)

    def __str__(self) -> str:
        return f"{int(self.code)} {self.reply_text}"


class ChannelError(ProtocolError):
    """Closes the channel on which it was raised; or the connection, where AMQP says that of the
    code: what raises it need not know."""


class ConnectionError_(ProtocolError):
    """Closes the connection. The underscore keeps the built-in ConnectionError reachable."""


class LowOnDiskError(ChannelError):
    """406 for want of room; the HTTP API has a status of its own for that."""


class StoreError(Exception):
    """The files of one queue cannot be used; that queue is closed, the broker goes on."""


class DefinitionsError(Exception):
    """A file of definitions, users or virtual hosts cannot be read or written; names the file."""


def reply_text(code: ReplyCode, text: str | None = None) -> str:
    """The text of a reply: `NAME - text`, or `NAME` alone when text is None.

    Returns: at most 255 bytes when encoded as UTF-8; never cut inside a character. Bytes of names
    that are no UTF-8 are shown as `\\xff`: clients may give up on a text that they cannot decode.
    """
    whole = code.name if text is None else f"{code.name} - {text}"
    whole = whole.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    raw = whole.encode()
    if len(raw) <= MAX_REPLY_TEXT:
        return whole
    end = MAX_REPLY_TEXT
    while end > MAX_REPLY_TEXT - 3 and _is_continuation(raw[end]):
        end -= 1
    return raw[:end].decode()


def _is_continuation(byte: int) -> bool:
    """Whether the byte can only stand inside a UTF-8 character, not begin one."""
    return byte & 0xC0 == 0x80


def low_on_disk(text: str = LOW_DISK) -> LowOnDiskError:
    """Nothing is added while the disk is short of space."""
    return LowOnDiskError(ReplyCode.PRECONDITION_FAILED, text)
