"""A socket whose TLS is ours: what a link with TLS reads and writes, in the place of ssl.SSLSocket.

Made before the handshake by `secured`. Its link takes the session; nobody else reads or writes it.
Source: docs/listeners.md, decision 0078.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lavinmq import _tls

INPUT = 1
"""`_tls.INPUT`: that module is loaded with a certificate only."""
ROOM = 2


class SecureSocket(socket.socket):
    """A connected socket, and TLS over it.

    Args: sock: the socket, non-blocking; it is this one's from now on.
    """

    __slots__ = ("session",)

    def __init__(self, context: _tls.Context, sock: socket.socket) -> None:
        self.session: _tls.Session = context.begin(sock.fileno())
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)

    def do_handshake(self) -> None:
        """Go on with it. Raises: ssl.SSLWantReadError, ssl.SSLWantWriteError; OSError."""
        waits_for = self.session.handshake()
        if waits_for == INPUT:
            raise ssl.SSLWantReadError
        if waits_for == ROOM:
            raise ssl.SSLWantWriteError

    def version(self) -> str:
        """As OpenSSL writes it: `TLSv1.3`."""
        return self.session.version()

    def cipher(self) -> tuple[str]:
        """The suite that was agreed on."""
        return (self.session.cipher(),)

    def getpeercert(self) -> dict[str, Any]:
        """The names in the client's certificate, if it was verified."""
        return self.session.peer_names()

    def say_goodbye(self) -> None:
        """Nothing more is written: what the peer has is all there was."""
        self.session.shutdown()

    def close(self) -> None:
        """Close the socket, after its link. Idempotent."""
        self.session.close()
        super().close()


def secured(
    context: ssl.SSLContext | _tls.Context, sock: socket.socket
) -> ssl.SSLSocket | SecureSocket:
    """Return a socket in whose place one with TLS goes on, by whichever of both the context is."""
    if isinstance(context, ssl.SSLContext):
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    return SecureSocket(context, sock)
