"""The words of the client: modes, policies, states and reasons, each with a text form."""

from enum import Enum


class PublishMode(Enum):
    """What a producer knows of its messages."""

    FIRE_AND_FORGET = "fire_and_forget"
    CONFIRM = "confirm"


class BufferPolicy(Enum):
    """What happens to a message when the buffer is full."""

    BLOCK = "block"
    RAISE = "raise"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    SPILL = "spill"


class ConnectionState(Enum):
    """Where a client stands."""

    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    BLOCKED = "blocked"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "closed"


class DropReason(Enum):
    """Why a message was given up here."""

    DISCONNECTED = "disconnected"
    BUFFER_FULL = "buffer_full"
    CLOSED = "closed"
    TTL_EXPIRED = "ttl_expired"
    FLUSH_RETRY_EXCEEDED = "flush_retry_exceeded"
    CONFIRM_TIMEOUT = "confirm_timeout"
    TOO_LARGE = "too_large"
    RETURNED = "returned"
