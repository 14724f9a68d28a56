"""A client for AMQP 0-9-1: a buffer that never lies, a connection that always comes back.

`Client` is for programs with threads, `aio.AsyncClient` for asyncio; both are in docs/client.md.
Names are imported when they are asked for: the package costs what is used of it, and needs nothing
of the broker and no other package.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in ``typing``
if TYPE_CHECKING:
    from lavinmq.client._engine import Batch, Message, Receipt
    from lavinmq.client._engine import Tracker as AckTracker
    from lavinmq.client.aio import AsyncClient, AsyncConsumer, AsyncProducer
    from lavinmq.client.buffer import MessageBuffer, RingBuffer
    from lavinmq.client.channel import AsyncChannel
    from lavinmq.client.config import Config
    from lavinmq.client.errors import (
        BufferFullError,
        ChannelClosed,
        ClientConnectionError,
        ClosedError,
        ConfigError,
        ConfirmTimeout,
        DroppedError,
        Error,
        NackError,
        PublishError,
        ReturnedError,
        SpilledError,
    )
    from lavinmq.client.metrics import Metrics
    from lavinmq.client.pool import ConnectionPool
    from lavinmq.client.sync import Client, Consumer, Producer
    from lavinmq.client.values import BufferPolicy, ConnectionState, DropReason, PublishMode

_HOMES = {
    "aio": ("AsyncClient", "AsyncConsumer", "AsyncProducer"),
    "buffer": ("MessageBuffer", "RingBuffer"),
    "channel": ("AsyncChannel",),
    "config": ("Config",),
    "errors": (
        "BufferFullError", "ChannelClosed", "ClientConnectionError", "ClosedError", "ConfigError",
        "ConfirmTimeout", "DroppedError", "Error", "NackError", "PublishError", "ReturnedError",
        "SpilledError",
    ),
    "metrics": ("Metrics",),
    "pool": ("ConnectionPool",),
    "sync": ("Client", "Consumer", "Producer"),
    "values": ("BufferPolicy", "ConnectionState", "DropReason", "PublishMode"),
    "_engine": ("AckTracker", "Batch", "Message", "Receipt"),
}  # fmt: skip
_PLACES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AckTracker",
    "AsyncChannel",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BufferFullError",
    "BufferPolicy",
    "ChannelClosed",
    "Client",
    "ClientConnectionError",
    "ClosedError",
    "Config",
    "ConfigError",
    "ConfirmTimeout",
    "ConnectionPool",
    "ConnectionState",
    "Consumer",
    "DropReason",
    "DroppedError",
    "Error",
    "Message",
    "MessageBuffer",
    "Metrics",
    "NackError",
    "Producer",
    "PublishError",
    "PublishMode",
    "Receipt",
    "ReturnedError",
    "RingBuffer",
    "SpilledError",
]

if not TYPE_CHECKING:  # with it in sight, a type checker takes any name for one of ours

    def __getattr__(name: str) -> object:
        """Import what was asked for, once."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        home = importlib.import_module(f"{__name__}.{_PLACES[name]}")
        value = getattr(home, "Tracker" if name == "AckTracker" else name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Name what can be asked for, imported or not."""
    return sorted({*globals(), *__all__})
