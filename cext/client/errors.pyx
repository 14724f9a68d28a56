# Errors: what the engine itself raises. `lavinmq.client.errors` has the rest of the tree.


class Error(Exception):
    """Everything that this library raises."""


class ProtocolViolation(Error):
    """The peer sent what AMQP does not allow. The connection cannot go on."""


class ValueNotEncodable(Error, ValueError):
    """A value has no form in AMQP, or does not fit its field."""


class TooLarge(ValueNotEncodable):
    """A message, a name or a table is larger than the protocol or the connection allows."""


class PublishError(Error):
    """A message did not arrive; the receipt says how it ended."""


class NackError(PublishError):
    """The broker refused the message."""


class ReturnedError(PublishError):
    """No queue was there for the message, and it was mandatory."""


class DroppedError(PublishError):
    """The message was given up here; `reason` is a DropReason."""

    def __init__(self, reason=None):
        super().__init__(f"dropped: {getattr(reason, 'value', reason)}")
        self.reason = reason


class SpilledError(PublishError):
    """Its producer was closed; the message is in the file, and the next program sends it."""
