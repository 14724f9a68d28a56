"""What kombu gives and takes: messages, and py-amqp's errors for the client's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import amqp
from amqp.exceptions import MessageNacked, error_for_code
from kombu.transport import base

from lavinmq.client._engine import PROPERTY_NAMES
from lavinmq.client.errors import ChannelClosed, ClosedError, ConnectionClosed, NackError

if TYPE_CHECKING:
    from lavinmq.client._engine import Message as Delivered

PROPERTIES: Final = frozenset(PROPERTY_NAMES)
"""What a message can have; kombu hands over options of its own beside them."""


def as_amqp(error: BaseException) -> BaseException:
    """The error of py-amqp for one of ours; others stay as they are."""
    if isinstance(error, (ChannelClosed, ConnectionClosed)):
        other = amqp.ChannelError if isinstance(error, ChannelClosed) else amqp.ConnectionError
        found: BaseException = error_for_code(error.code, error.text, (0, 0), other)
        return found
    if isinstance(error, TimeoutError):
        return TimeoutError(str(error))
    if isinstance(error, NackError):
        nacked: BaseException = MessageNacked(str(error))
        return nacked
    if isinstance(error, (ConnectionError, ClosedError)):
        lost: BaseException = amqp.RecoverableConnectionError(str(error))
        return lost
    return error


class Outgoing(NamedTuple):
    """A message that `prepare_message` has made."""

    body: bytes | str
    properties: dict[str, Any]


class Message(base.Message):
    """A message that came."""

    def __init__(self, message: Delivered, channel: base.StdChannel) -> None:
        properties = message.properties
        headers = properties.get("headers") or {}
        body: bytes | str = message.body
        encoding = properties.get("content_encoding")
        if encoding:
            # As py-amqp does it: what has the name of a text's encoding becomes text.
            with contextlib.suppress(LookupError, UnicodeDecodeError):
                body = message.body.decode(encoding)
        info = {
            "delivery_tag": message.delivery_tag, "redelivered": message.redelivered,
            "exchange": message.exchange, "routing_key": message.routing_key,
            "message_count": message.message_count,
        }  # fmt: skip
        if message.consumer_tag:
            info["consumer_tag"] = message.consumer_tag
            del info["message_count"]
        super().__init__(
            body=body, channel=channel, delivery_tag=message.delivery_tag,
            content_type=properties.get("content_type"), content_encoding=encoding,
            delivery_info=info, properties={**properties, "application_headers": headers},
            headers=headers,
        )  # fmt: skip
