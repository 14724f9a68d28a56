"""What a broken rule on the wire is answered with: one row per error of the frame walker.

The numbers are those of `walk_error` in cext/amqp/amqp.pyx; the texts are what clients see.
Source: docs/protocol.md.
"""

from typing import Final

from lavinmq.errors import ChannelError, ConnectionError_, ReplyCode

_CONNECTION: Final[dict[int, tuple[ReplyCode, str]]] = {
    1: (ReplyCode.FRAME_ERROR, "Frame size {a} exceeds max frame size {b}"),
    2: (ReplyCode.FRAME_ERROR, "Frame has reached frame size limit"),
    3: (ReplyCode.FRAME_ERROR, "Invalid frame type {a}"),
    4: (ReplyCode.FRAME_ERROR, "Invalid property flags ({a:#b})"),
    5: (ReplyCode.FRAME_ERROR, "Heartbeat frame size must be 0, got {a}"),
    6: (ReplyCode.UNEXPECTED_FRAME, "Heartbeat frame must be on channel 0"),
    7: (ReplyCode.FRAME_ERROR, "Frame has reached frame size limit"),
    8: (ReplyCode.FRAME_ERROR, "Frame-end was {a}, expected 206"),
    9: (ReplyCode.FRAME_ERROR, "Malformed headers table"),
    10: (ReplyCode.FRAME_ERROR, "Body of {a} bytes is longer than the {b} announced"),
    11: (ReplyCode.UNEXPECTED_FRAME, "Content frame on channel 0"),
    12: (ReplyCode.INTERNAL_ERROR, "Out of memory"),
}

_CHANNEL: Final[dict[int, tuple[ReplyCode, str]]] = {
    21: (ReplyCode.UNEXPECTED_FRAME, "basic.publish before the content of another one is complete"),
    22: (ReplyCode.UNEXPECTED_FRAME, "content header that no basic.publish has announced"),
    23: (ReplyCode.UNEXPECTED_FRAME, "content body without a content header"),
    24: (ReplyCode.PRECONDITION_FAILED, "unknown delivery tag {a}"),
    25: (ReplyCode.PRECONDITION_FAILED, "message size {a} larger than max size {b}"),
    26: (ReplyCode.PRECONDITION_FAILED, "Expiration not a number"),
    27: (ReplyCode.PRECONDITION_FAILED, "Negative expiration not allowed"),
    28: (
        ReplyCode.PRECONDITION_FAILED,
        "Message's user_id property '{text}' doesn't match actual user '{user}'",
    ),
    29: (ReplyCode.PRECONDITION_FAILED, "Direct reply consumer does not exist"),
    30: (ReplyCode.PRECONDITION_FAILED, "Delivery tag already acked"),
    31: (ReplyCode.PRECONDITION_FAILED, "transaction holds more than {a} bytes"),
    32: (ReplyCode.PRECONDITION_FAILED, "CC header not a string array"),
    33: (ReplyCode.PRECONDITION_FAILED, "BCC header not a string array"),
    34: (ReplyCode.CONTENT_TOO_LARGE, "no memory for a message of {a} bytes"),
    35: (ReplyCode.PRECONDITION_FAILED, "Routing header must be string"),
    36: (ReplyCode.PRECONDITION_FAILED, "CC and BCC hold more keys than max_copy_keys allows"),
}


def walk_error(
    kind: int, method: int, a: int, b: int, text: bytes, user: str
) -> ChannelError | ConnectionError_:
    """The error for a row of the table.

    Args: method: class << 16 | method, 0 for content frames; a, b, text: what the row mentions;
        user: the login.
    """
    code, template = _CHANNEL.get(kind) or _CONNECTION[kind]
    shown = text.decode("utf-8", "surrogateescape")
    detail = template.format(a=a & 3 if kind == 4 else a, b=b, text=shown, user=user)
    if kind in _CHANNEL:
        return ChannelError(code, detail, method >> 16, method & 0xFFFF)
    return ConnectionError_(code, detail)
