"""Everything that the client raises; `Error` is the base of all.

What ends a message is a `PublishError`, what ends a channel a `ChannelClosed`, what ends a
connection a `ClientConnectionError`. No text of an error has a password in it.
"""

from lavinmq.client._engine import (
    DroppedError,
    Error,
    NackError,
    ProtocolViolation,
    PublishError,
    Receipt,
    ReturnedError,
    SpilledError,
    TooLarge,
    ValueNotEncodable,
)

__all__ = [
    "AccessRefused",
    "AuthenticationError",
    "BlockedTimeout",
    "BufferFullError",
    "ChannelClosed",
    "ClientConnectionError",
    "ClosedError",
    "ConfigError",
    "ConfirmTimeout",
    "ConnectionClosed",
    "ConnectionLost",
    "ConsumerCancelled",
    "DroppedError",
    "Error",
    "NackError",
    "NotFound",
    "PreconditionFailed",
    "ProtocolViolation",
    "PublishError",
    "ResourceLocked",
    "ReturnedError",
    "RpcTimeout",
    "SpillDamaged",
    "SpilledError",
    "TooLarge",
    "UnsupportedContentEncoding",
    "UnsupportedContentType",
    "ValueNotEncodable",
]


class ConfigError(Error, ValueError):
    """An option or a URL is wrong; the text names it."""


class ClosedError(Error):
    """The client, producer, consumer or channel was closed."""


class BufferFullError(PublishError):
    """There was no room for a message within the time its policy allows.

    `receipt` is that of a batch, for its messages before this one, which were taken.
    """

    receipt: Receipt | None = None


class SpillDamaged(Error):
    """Messages in the file of a producer cannot be read; the text names what is kept of them."""


class ConfirmTimeout(PublishError, TimeoutError):
    """The broker has not answered for a message in time: whether it has it is not known yet."""


class RpcTimeout(Error, TimeoutError):
    """The broker, or who was asked, has not answered in time."""


class ClientConnectionError(Error, ConnectionError):
    """There is no connection, or it cannot be made."""


class ConnectionLost(ClientConnectionError):
    """The connection broke, or the broker has gone silent."""


class BlockedTimeout(ConnectionLost):
    """The broker did not take messages for longer than `blocked_timeout`."""


class ConnectionClosed(ClientConnectionError):
    """The broker closed the connection, with a reply code and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


class AuthenticationError(ConnectionClosed):
    """The broker refused the user, the password or the token, or the virtual host."""


class ChannelClosed(Error):
    """The broker closed a channel, with a reply code and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


class AccessRefused(ChannelClosed):
    """403: the user may not do that."""


class NotFound(ChannelClosed):
    """404: there is no such queue or exchange."""


class ResourceLocked(ChannelClosed):
    """405: another connection has it for itself."""


class PreconditionFailed(ChannelClosed):
    """406: it is there, and is not what was asked for."""


class ConsumerCancelled(Error):
    """The broker ended a consumer, as it does when its queue is deleted."""


class UnsupportedContentType(Error):
    """No codec knows this content type."""


class UnsupportedContentEncoding(Error):
    """No codec knows this content encoding."""


_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_closed(code: int, text: str) -> ChannelClosed:
    """The error for a reply code of channel.close."""
    return _BY_CODE.get(code, ChannelClosed)(code, text)


def connection_closed(code: int, text: str, is_open: bool = False) -> ConnectionClosed:
    """The error for a reply code of connection.close. Of one that was open, 403 and 530 say nothing
    of its user: what it did was not allowed."""
    is_refused = code in (403, 530) and not is_open
    return (AuthenticationError if is_refused else ConnectionClosed)(code, text)
