"""Where a node serves clients, is reached by others, and finds etcd, as its configuration says.

Source: docs/clustering.md.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lavinmq import __version__
from lavinmq.cluster.etcd import Etcd
from lavinmq.cluster.etcd_wire import Endpoint
from lavinmq.cluster.following import PORT, address_of
from lavinmq.cluster.proxy import Door, Target

if TYPE_CHECKING:
    from lavinmq.cluster.coordinator import State
    from lavinmq.config.values import Config


def problems(config: Config) -> Iterator[str]:
    """What keeps a node of this configuration from starting, one line each."""
    try:
        etcd(config)
    except ValueError as error:
        yield str(error)
    try:
        told(config, config.clustering_advertised_uri or default_uri(config))
    except ValueError as error:
        yield str(error)


def default_uri(config: Config) -> str:
    """Where other nodes reach this one, unless the operator says so."""
    scheme = "tls" if config.clustering_tls_cert else "tcp"
    return f"{scheme}://{socket.gethostname()}:{config.clustering_port or PORT}"


def told(config: Config, uri: str) -> dict[str, Any]:
    """What other nodes have to know of this one. Args: uri: where they reach it. Raises:
    ValueError."""
    with _named("'advertised_uri'"):
        address, _ = address_of(uri)
    return {
        "uri": uri, "host": socket.gethostname(), "directory": config.data_dir,
        "address": address, "ports": ports(config), "version": __version__,
    }  # fmt: skip


def tls(config: Config) -> str:
    """How this node speaks with others: "off", "optional" (with some without), or "required"."""
    if not config.clustering_tls_cert:
        return "off"
    return "optional" if config.clustering_tls_optional else "required"


def etcd(config: Config) -> Etcd:
    """A client of etcd. Raises: ValueError."""
    if bool(config.clustering_etcd_cert) != bool(config.clustering_etcd_key):
        raise ValueError("of 'etcd_cert' and 'etcd_key' in [clustering] one is missing")
    with _named("'etcd_endpoints'"):
        if not [Endpoint(each) for each in config.clustering_etcd_endpoints]:
            raise ValueError("there is no etcd endpoint")
    with _named("'etcd_ca_cert' or 'etcd_cert'"):
        return Etcd(
            config.clustering_etcd_endpoints, timeout_s=max(1.0, config.clustering_lease_ttl / 3),
            ca=config.clustering_etcd_ca_cert or "", cert=config.clustering_etcd_cert or "",
            key=config.clustering_etcd_key or "",
        )  # fmt: skip


@contextmanager
def _named(keys: str) -> Iterator[None]:
    """Have an error name the settings that it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{keys} in [clustering]: {error}") from None


def ports(config: Config) -> dict[str, int]:
    """Where a leader of this configuration serves clients."""
    wanted = {
        "amqp": config.amqp_port, "mqtt": config.mqtt_port, "http": config.http_port,
    }  # fmt: skip
    if config.tls_cert:
        wanted |= {
            "amqps": config.amqp_tls_port, "mqtts": config.mqtt_tls_port,
            "https": config.https_port,
        }  # fmt: skip
    return {name: port for name, port in wanted.items() if port > 0}


def doors(config: Config) -> list[Door]:
    """Where a follower takes clients."""
    binds = {
        "amqp": config.amqp_bind, "amqps": config.amqp_bind, "mqtt": config.mqtt_bind,
        "mqtts": config.mqtt_bind, "http": config.http_bind, "https": config.http_bind,
    }  # fmt: skip
    doors = [Door(name, binds[name], port) for name, port in ports(config).items()]
    paths = {
        "amqp": config.amqp_unix_path, "mqtt": config.mqtt_unix_path, "http": config.http_unix_path,
    }  # fmt: skip
    return doors + [Door(name, "", -1, path) for name, path in paths.items() if path]


def of_leader(state: State, me: str, protocol: str) -> Target | None:
    """Where the leader serves a protocol, None: nobody knows, or it is this node."""
    there = state.nodes.get(state.epoch_leader) if state.leader is not None else None
    if there is None or state.epoch_leader == me:
        return None
    ports, address = there.get("ports"), there.get("address")
    port = ports.get(protocol) if isinstance(ports, dict) else None
    if not isinstance(port, int) or not isinstance(address, str):
        return None
    return Target(address, port)
