"""The transport: how kombu's options become the client's."""

from __future__ import annotations

import contextlib
import ssl as ssl_module
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final
from urllib.parse import quote

import amqp
from kombu.transport import base
from kombu.utils.amq_manager import get_manager
from kombu.utils.text import version_string_as_tuple

from lavinmq.client.config import option_names
from lavinmq.client.errors import ConfigError, Error
from lavinmq.client.kombu.channel import Channel
from lavinmq.client.kombu.connection import Connection
from lavinmq.client.kombu.values import as_amqp
from lavinmq.client.sync import Client

KOMBUS: Final = frozenset({
    "max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout",
    "errback", "callback", "client_properties", "manager_hostname", "manager_port",
    "manager_protocol", "manager_userid", "manager_password", "read_timeout", "write_timeout",
    "login_method", "polling_interval", "global_keyprefix",
})  # fmt: skip
"""Transport options that kombu or its manager reads, or that only py-amqp's sockets need."""

TLS_OPTIONS: Final = {
    "ca_certs": "cacertfile",
    "certfile": "certfile",
    "keyfile": "keyfile",
    "server_hostname": "server_name",
    "context": "ssl_context",
}


class Transport(base.Transport):
    """`lavinmq://`."""

    default_port = 5672
    default_ssl_port = 5671
    connection_errors = amqp.Connection.connection_errors
    channel_errors = amqp.Connection.channel_errors
    recoverable_connection_errors = amqp.Connection.recoverable_connection_errors
    recoverable_channel_errors = amqp.Connection.recoverable_channel_errors
    driver_name = "lavinmq-client"
    driver_type = "amqp"
    # Heartbeats are the client's own affair: no worker has to look after them.
    implements = base.Transport.implements.extend(asynchronous=True, heartbeats=False)

    def driver_version(self) -> str:
        """The client's version."""
        for package in ("lavinmq-client", "lavinmq"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                return metadata.version(package)
        return "unknown"

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What a URL need not say."""
        return {
            "userid": "guest", "password": "guest", "hostname": "localhost",
            "port": self.default_ssl_port if self.client.ssl else self.default_port,
            "login_method": "PLAIN", "virtual_host": "/",
        }  # fmt: skip

    def establish_connection(self) -> Connection:
        """Connect. Raises: py-amqp's errors, ConfigError for an option that is none."""
        info = self.client
        for name, default in self.default_connection_params.items():
            if not getattr(info, name, None):
                setattr(info, name, default)
        options = dict(info.transport_options or {})
        confirms = bool(options.pop("confirm_publish", True))
        known = option_names()
        kept = {name: options[name] for name in options if name in known or name not in KOMBUS}
        if info.connect_timeout:
            kept.setdefault("connect_timeout", info.connect_timeout)
        if info.heartbeat:
            kept.setdefault("heartbeat", int(info.heartbeat))
        if info.login_method and info.login_method.lower() in ("external", "amqplain"):
            kept.setdefault("auth", info.login_method.lower())
        password = info.password() if callable(info.password) else info.password
        host = f"[{info.hostname}]" if ":" in info.hostname else info.hostname
        scheme = "amqps" if info.ssl else "amqp"
        try:
            inner = Client(
                f"{scheme}://{host}:{int(info.port)}/{quote(info.virtual_host, safe='')}",
                user=info.userid, password=password, reconnect=False, topology_recovery="off",
                **kept, **_tls(info.ssl),
            )  # fmt: skip
            return Connection(inner, confirms, info)
        except ConfigError:
            raise
        except (Error, OSError) as error:
            raise as_amqp(error) from error

    def create_channel(self, connection: Connection) -> Channel:
        """Open a channel."""
        return Channel(connection)

    def drain_events(self, connection: Connection, **options: Any) -> None:
        """Wait for an event."""
        connection.drain_events(**options)

    def verify_connection(self, connection: Connection) -> bool:
        """Whether it can be used."""
        return connection.connected

    def close_connection(self, connection: Connection) -> None:
        """Close it."""
        connection.client = None
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.collect()

    def get_heartbeat_interval(self, connection: Connection) -> int:
        """Seconds; the client keeps to it by itself."""
        return connection.heartbeat

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """Have a loop drain events when there are any."""
        loop.add_reader(connection.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """Have it no longer do so."""
        loop.remove_reader(connection.fileno())

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        """Whether a prefetch count without `global` is of the whole channel.

        It is of each consumer to come with this broker and RabbitMQ from 3.3 to 3.13; RabbitMQ 4
        has the other one no longer.
        """
        version = str(connection.server_properties.get("version") or "")
        if connection.server_properties.get("product") == "RabbitMQ" and version:
            return not (3, 3) <= version_string_as_tuple(version) < (4, 0)
        return False

    def get_manager(self, *args: Any, **kwargs: Any) -> Any:
        """A client of the HTTP API."""
        return get_manager(self.client, *args, **kwargs)


class SSLTransport(Transport):
    """`lavinmqs://`."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        if not client.ssl:
            client.ssl = True


def _tls(options: Any) -> dict[str, Any]:
    """The client's options for kombu's. Raises: ConfigError."""
    if not isinstance(options, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "cert_reqs":
            found["verify"] = value not in (ssl_module.CERT_NONE, "CERT_NONE", "none")
        elif name in TLS_OPTIONS:
            if value is not None:
                found[TLS_OPTIONS[name]] = value
        else:
            raise ConfigError(
                f"ssl option {name!r} is not known, known are cert_reqs, {', '.join(TLS_OPTIONS)}"
            )
    return found
