"""TLS between the nodes of a cluster: what a node shows of itself, and demands of the others.

Version 1.3 alone. Both sides show a certificate that the cluster's authority has signed, and who
connects demands that it names the host it has connected to. While TLS is introduced a node may
speak without it as well (`is_optional`). Files that have changed are read again
for the next connection; while there is something wrong with them what was there stays in force.
In the threads of connections. `_tls` is loaded with the first one of these objects.
Source: docs/clustering.md, decision 0111.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from lavinmq._cluster import Channel
from lavinmq.cluster.frames import GREETING_S, TLS_HANDSHAKE, Link, PeerError, words
from lavinmq.listeners.tls import Options, TlsError, set_up
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq import _tls
    from lavinmq.config.values import Config

SECTION: Final = "[clustering]"
INPUT: Final = 1
"""`_tls.INPUT`: what a handshake waits for."""
RECORDS_PER_KEY: Final = 1 << 23
"""128 GiB of full ones: a third of those after which AES-GCM is to have another key (RFC 8446,
5.5). Nodes stay connected for months."""
_log = log.get("lmq.cluster")


class HandshakeError(PeerError):
    """There is no TLS with the other node: it can be told nothing more."""


class NoTlsError(HandshakeError):
    """The other node does not speak TLS."""


class Certificates:
    """The certificate of this node and the authority of all. Thread-safe. Raises: TlsError."""

    def __init__(self, config: Config) -> None:
        self._options = Options(
            cert=config.clustering_tls_cert or "", key=config.clustering_tls_key,
            min_version="1.3", ciphers="", verify_peer=True,
            ca_cert=config.clustering_tls_ca_cert, crl=config.clustering_tls_crl,
            keylog_file=None, ktls=False,
        )  # fmt: skip
        self.is_optional = config.clustering_tls_optional
        """Whether nodes that have no certificates are spoken with as well."""
        self._lock = threading.Lock()
        self._read = self._standing()
        self._context = self._new()

    def accept(self, sock: socket.socket) -> Link:
        """TLS with a node that has connected, from now on the way to speak with it; the socket
        itself, if TLS is optional and the node does not speak it. Raises: OSError, PeerError; the
        socket stays the caller's then."""
        sock.settimeout(GREETING_S)
        begin = sock.recv(1, socket.MSG_PEEK)
        if not begin:
            raise ConnectionResetError("the other node has closed the connection")
        if begin[0] != TLS_HANDSHAKE and self.is_optional:
            return sock
        if begin[0] != TLS_HANDSHAKE:
            raise PeerError("a follower has to speak TLS here: see 'tls_cert' in [clustering]")
        return self._shake_hands(sock, None)

    def connect(self, sock: socket.socket, host: str) -> Channel:
        """TLS with a node that has to be this host. Raises: OSError, PeerError, NoTlsError; the
        socket stays the caller's then."""
        return self._shake_hands(sock, host)

    def _shake_hands(self, sock: socket.socket, host: str | None) -> Channel:
        from lavinmq import _tls

        ends_at = time.monotonic() + GREETING_S
        session = self._current().begin(sock.fileno(), host, _tls.Scratch())
        try:
            while waits_for := session.handshake():
                _wait(sock, select.POLLIN if waits_for == INPUT else select.POLLOUT, ends_at)
            return Channel(sock, session)
        except OSError as error:
            why = _why(error, session)
            session.close()
            kind = NoTlsError if _is_clear(error) else HandshakeError
            raise kind(why) from None

    # --- files ----------------------------------------------------------------------------------

    def _current(self) -> _tls.Context:
        """Terms for a connection that begins, by the files as they are now."""
        with self._lock:
            there = self._standing()
            if there != self._read:
                self._read = there
                try:
                    self._context = self._new()
                    _log.info("the certificate of this node was read again")
                except TlsError as error:
                    _log.error("%s: what was there stays in force", error)
            return self._context

    def _new(self) -> _tls.Context:
        from lavinmq import _tls

        context = _tls.Context(_tls.Scratch())
        set_up(context, self._options, SECTION)
        context.records_per_key = RECORDS_PER_KEY
        return context

    def _standing(self) -> list[tuple[int, ...]]:
        """By which one sees that a file is another one."""
        found: list[tuple[int, ...]] = []
        options = self._options
        for path in (options.cert, options.key, options.ca_cert, options.crl):
            try:
                stat = os.stat(path or "")
                found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            except OSError:
                found.append(())
        return found


def _wait(sock: socket.socket, event: int, ends_at: float) -> None:
    """Raises: TimeoutError."""
    poll = select.poll()  # select is for descriptors below 1024
    poll.register(sock, event)
    if not poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        raise TimeoutError(f"no handshake within {GREETING_S:.0f} s")


def _is_clear(error: OSError) -> bool:
    """Whether what the other node says is no TLS."""
    return getattr(error, "reason", "") == "WRONG_VERSION_NUMBER"


def _why(error: OSError, session: _tls.Session) -> str:
    reason = str(getattr(error, "reason", "") or "")
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"TLS: its certificate is not accepted: {session.verify_error}"
    if _is_clear(error):
        return "TLS: it speaks without, or is no node at all"
    text = words(error)
    return text if text.startswith("TLS: ") else f"TLS: {text.replace('_', ' ').lower()}"
