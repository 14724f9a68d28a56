"""Two nodes of a cluster with certificates, as the two ends of a connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lavinmq._cluster import Channel
from lavinmq.cluster.certificates import Certificates
from lavinmq.cluster.frames import PeerError
from lavinmq.config.values import defaults
from tests.support.certificates import Authority, Identity

HOST: Final = "node1.example.com"
Pair = tuple[socket.socket, socket.socket]


class Nodes(NamedTuple):
    """An authority, and what it has issued for a node."""

    authority: Authority
    good: Identity


def of(authority: Authority, identity: Identity, **others: Any) -> Certificates:
    """What a node has that trusts an authority and shows a certificate. Args: others: settings of
    [clustering]."""
    config = defaults()
    config.clustering_tls_cert = str(identity.cert)
    config.clustering_tls_key = str(identity.key)
    config.clustering_tls_ca_cert = str(authority.path)
    for key, value in others.items():
        setattr(config, f"clustering_{key}", value)
    return Certificates(config)


def at_once(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """What two calls come to that need each other: results, or what they raise."""
    results: list[Any] = [None, None]

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            results[number] = call()
        except (PeerError, OSError, ValueError) as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def linked(pair: Pair, one: Certificates, other: Certificates | None = None) -> list[Channel]:
    """Two ends of a connection with TLS, the leader's first."""
    ours, theirs = pair
    ends = at_once(lambda: one.accept(ours), lambda: (other or one).connect(theirs, HOST))
    assert all(isinstance(each, Channel) for each in ends), ends
    return ends
