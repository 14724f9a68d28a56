"""The end of a WebSocket of Tornado's client. Left to the loop's end its socket stays open, and
some later test is told of it."""

from __future__ import annotations

from tornado.websocket import WebSocketClientConnection


async def close(connection: WebSocketClientConnection) -> None:
    """Close one whose end has not been read, and wait for it."""
    connection.close()
    while await connection.read_message() is not None:
        pass
