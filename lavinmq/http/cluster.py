"""The cluster as HTTP shows it: what `lavinmq.cluster.status` knows, or that there is none.

A broker without clustering is shown as the one node of its own, so that whoever asks need not know
which kind it is. Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lavinmq import __version__

if TYPE_CHECKING:
    from lavinmq.broker import Broker

PLACES: Final = frozenset(["address", "remote_address", "uri"])
NOT_SERVING: Final = "the broker starts or stops"


def picture(broker: Broker) -> dict[str, Any]:
    """What there is to know, as JSON."""
    shown = _single(broker) if broker.cluster is None else broker.cluster.status()
    if not broker.is_serving:
        shown["ready"] = False
        shown["reasons"] = {**shown["reasons"], "ready": NOT_SERVING}
    return shown


def without_places(value: Any) -> Any:
    """A picture for who may not know where nodes are reached."""
    if isinstance(value, list):
        return [without_places(each) for each in value]
    if isinstance(value, dict):
        return {key: without_places(each) for key, each in value.items() if key not in PLACES}
    return value


def _single(broker: Broker) -> dict[str, Any]:
    name = broker.node_name
    node = {
        "id": name, "uri": None, "address": None, "version": __version__, "live": True,
        "in_sync": True, "member": True,
    }  # fmt: skip
    return {
        "id": name, "role": "none", "whole": True, "may_lead": False, "tls": "off",
        "ready": True,
        "safe_to_restart": True, "acknowledges": True, "refuses": False, "reasons": {}, "epoch": 0,
        "leader": None, "nodes": [node], "in_sync": [name], "members": [name],
        "min_insync_replicas": 1, "copies": 1, "position": 0, "followers": [], "following": None,
        "elections": [], "etcd_silent_seconds": None,
        "integrity": None if broker.integrity is None else broker.integrity.status(),
    }  # fmt: skip
