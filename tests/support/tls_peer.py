"""A client of TLS that does what Python's ssl cannot: new keys, another handshake, its own records.

By OpenSSL's library through ctypes, over a non-blocking socket. Certificates are not verified.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.support.certificates import Identity

SSL_CTRL_SET_MAX_PROTO_VERSION: Final = 124
TLS_1_2: Final = 0x0303
FILETYPE_PEM: Final = 1


def library() -> Any:
    """Return OpenSSL's library, or None when there is none of version 3."""
    name = ctypes.util.find_library("ssl")
    if not name or not name.endswith(".so.3"):
        return None
    found = ctypes.CDLL(name)
    for function in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(found, function).restype = ctypes.c_void_p
    return found


class Peer:
    """The client's end of a connection. Args: newest: a version, 0: whatever there is; identity:
    what it shows, None: nothing."""

    def __init__(
        self, sock: socket.socket, newest: int = 0, identity: Identity | None = None
    ) -> None:
        self._lib = library()
        self._ctx = ctypes.c_void_p(
            self._lib.SSL_CTX_new(ctypes.c_void_p(self._lib.TLS_client_method()))
        )
        if newest:
            self._lib.SSL_CTX_ctrl(
                self._ctx, SSL_CTRL_SET_MAX_PROTO_VERSION, ctypes.c_long(newest), None
            )
        self._ssl = ctypes.c_void_p(self._lib.SSL_new(self._ctx))
        if identity is not None:
            cert, key = (os.fsencode(path) for path in identity[:2])
            assert self._lib.SSL_use_certificate_file(self._ssl, cert, FILETYPE_PEM) == 1
            assert self._lib.SSL_use_PrivateKey_file(self._ssl, key, FILETYPE_PEM) == 1
        self._lib.SSL_set_fd(self._ssl, sock.fileno())
        self._lib.SSL_set_connect_state(self._ssl)

    def close(self) -> None:
        """Free everything; the socket stays."""
        self._lib.SSL_free(self._ssl)
        self._lib.SSL_CTX_free(self._ctx)

    def shake_hands(self) -> bool:
        """Go on with the handshake. Whether it is over."""
        self._lib.ERR_clear_error()
        return bool(self._lib.SSL_do_handshake(self._ssl) == 1)

    def write(self, data: bytes) -> int:
        """Send one record or several. How many bytes were taken."""
        self._lib.ERR_clear_error()
        return max(0, int(self._lib.SSL_write(self._ssl, data, len(data))))

    def read(self, most: int = 65536) -> bytes:
        """What has come, empty when nothing has."""
        self._lib.ERR_clear_error()
        buffer = ctypes.create_string_buffer(most)
        got = self._lib.SSL_read(self._ssl, buffer, most)
        return buffer.raw[:got] if got > 0 else b""

    def change_key(self) -> None:
        """Tell the server that new keys follow, and ask for new ones: a record without data."""
        assert self._lib.SSL_key_update(self._ssl, 1) == 1
        assert self.shake_hands()

    def renegotiate(self) -> None:
        """Ask for another handshake, in TLS 1.2."""
        assert self._lib.SSL_renegotiate(self._ssl) == 1
        self.shake_hands()
