"""Who is at both ends of a connection: addresses and TLS, as names, lists and logs show them.

Made where a connection comes in, by `arrival.py` or by whoever hands over a socket, and kept by the
connection. Source: docs/listeners.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from lavinmq._core import Endpoints, shown

__all__ = ["UNIX", "Endpoints", "TlsInfo", "between", "is_loopback", "plain", "shown"]


@dataclass(frozen=True, slots=True)
class TlsInfo:
    """What TLS was agreed on, by us or by a proxy in front of us."""

    version: str
    """As OpenSSL writes it: `TLSv1.3`."""
    cipher: str
    login: str | None = None
    """The user whom a certificate names that we have verified ourselves."""


UNIX = Endpoints("127.0.0.1", 0, "127.0.0.1", 0, True)
"""Both ends of a unix socket."""


def between(peer: tuple[str, int], local: tuple[str, int], tls: TlsInfo | None = None) -> Endpoints:
    """Return the endpoints for two addresses."""
    # There are few addresses of our own, and many connections to each of them; and from each of
    # those of a proxy, or of a back end.
    peer_host, host = sys.intern(plain(peer[0])), sys.intern(plain(local[0]))
    return Endpoints(peer_host, peer[1], host, local[1], is_loopback(peer_host), tls)


def plain(host: str) -> str:
    """Return an IPv4 address inside an IPv6 one, as a socket of `::` sees it, without that."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_loopback(host: str) -> bool:
    """Loopback, also as an IPv4 address inside an IPv6 one; the kernel writes it one way only."""
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
