"""Types of the compiled module `lavinmq._tls`, made of cext/tls.pyx: TLS by OpenSSL.

What a `Context` is set by bears the names of `ssl.SSLContext`, and means the same. All of it
belongs to the loop's thread, but for a session with a scratch of its own: that belongs to one
thread at a time.
"""

import os
from collections.abc import Callable
from typing import Any, Final, final

DEFAULT_CIPHERS: Final[str]
"""Suites of TLS 1.2 and older, as a list of OpenSSL: those of Python's ssl."""
DONE: Final[int]
"""What `Session.handshake` has come to: it is over."""
INPUT: Final[int]
"""It waits for the peer."""
ROOM: Final[int]
"""It waits for room in the socket."""
SSL_OP_ENABLE_KTLS: Final[int]
"""The option that lets the kernel encrypt."""

@final
class Scratch:
    """The buffers that sessions work in, 272 KiB; one for a loop, and one for each session that
    works in another thread. Raises: MemoryError."""

    def __init__(self) -> None: ...

@final
class Context:
    """Terms for connections. Args: scratch: what its sessions work in. Raises: ssl.SSLError."""

    options: int
    minimum_version: int
    verify_mode: int
    verify_flags: int
    keylog_filename: Any
    records_per_key: int
    """After so many sent ones a session of TLS 1.3 takes another key; 0, which it is at first: it
    keeps its key."""

    def __init__(self, scratch: Scratch) -> None: ...
    def set_ciphers(self, ciphers: str) -> None:
        """Suites of TLS 1.2 and older. Raises: ssl.SSLError when none is left."""

    def load_cert_chain(
        self,
        certfile: str | os.PathLike[str],
        keyfile: str | os.PathLike[str] | None = None,
        password: Callable[[], object] | None = None,
    ) -> None:
        """Take a certificate with its chain, and its key.

        Raises: ssl.SSLError; and what `password` raises, which is called for an encrypted key.
        """

    def load_verify_locations(self, cafile: str | os.PathLike[str]) -> None:
        """Take the authorities, or revocation lists, of a file. Raises: ssl.SSLError."""

    def cert_store_stats(self) -> dict[str, int]:
        """How many certificates, of them authorities, and revocation lists there are."""

    def begin(self, fd: int, host: str | None = None, scratch: Scratch | None = None) -> Session:
        """A session over a connected socket, which stays the caller's to close, after the session.
        It never waits, whether the socket blocks or not.

        Args: host: it is a client's, of a server whose certificate has to name this host or address
        (the subject does not count); scratch: the session works in this one instead.
        Raises: ssl.SSLError; ValueError: there can be no such host.
        """

@final
class Session:
    """TLS of one connection; made by `Context.begin`. Idle it takes about 10 KiB."""

    @property
    def failure(self) -> str | None:
        """Why the connection has ended, empty for its orderly end, None while it lives."""

    @property
    def verify_error(self) -> str:
        """What is wrong with the peer's certificate, for people; empty: nothing that is known."""

    @property
    def is_resumed(self) -> bool:
        """Whether the client has come back with a ticket."""

    def handshake(self) -> int:
        """Go on with it: DONE, or INPUT or ROOM that it waits for.

        Raises: OSError, an ssl.SSLError with its `reason`. Cost: a millisecond in all.
        """

    def shutdown(self) -> None:
        """Say goodbye, as far as the kernel takes it; nothing is written afterwards."""

    def close(self) -> None:
        """Let go of everything: before the socket is closed, and after its wire. Idempotent."""

    def version(self) -> str:
        """As OpenSSL writes it: `TLSv1.3`."""

    def cipher(self) -> str:
        """The suite that was agreed on; empty before."""

    def peer_names(self) -> dict[str, Any]:
        """The names in the client's certificate, in the form of `ssl.SSLSocket.getpeercert`.

        Empty unless it was verified. A name that is no UTF-8 takes those beside it with it.
        """

    def wire(self) -> object:
        """A capsule of what a wire reads and writes by, for `_core.Link.use_tls`; this has to
        outlive it."""
