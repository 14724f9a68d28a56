"""The table of all settings: ini key, type, default, environment variables and flags of each.

Everything else about configuration is derived from this table: reading and checking values
(``values.py``), flags (``command_line.py``), the help text and docs/configuration.md
(``usage.py``).

A setting with an ``attribute`` is a field of ``values.Config``. One without, or with the fate
``later``, is recognised and checked, but its feature is not built yet: setting it gives a warning.
To bring one to life, name its attribute here, add the field to ``Config``, take away the fate.
Defaults are written as they would stand in the ini file. Source: docs/configuration.md.
Longer than 500 lines: it is one table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lavinmq.config.setting_types import (
    ADDRESS,
    ANYTHING,
    BACKENDS,
    BOOLEAN,
    DIRECTORY,
    HOSTS,
    KEEPALIVE,
    LEVEL,
    LIST,
    MAX_INTEGER,
    MQTT_EXCHANGE,
    NAME,
    NETWORKS,
    ORIGINS,
    PASSWORD_HASH,
    PATH,
    PLAIN_PASSWORD,
    PORT,
    PROXY_PROTOCOL,
    SAFEGUARD,
    SOCKET_PATH,
    TEXT,
    TLS_VERSION,
    URL,
    Kind,
    choice,
    integer,
)

OPTIONS, BINDINGS, TLS, CLUSTERING, MISCELLANEOUS = GROUPS = (
    "Options",
    "Bindings",
    "TLS",
    "Clustering",
    "Miscellaneous",
)


class ConfigError(Exception):
    """A configuration that cannot be used; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One command line option.

    ``argument`` is the word for its argument in the help text, empty when it takes none; then
    ``value`` is what it sets. ``help`` replaces that of the setting. ``instead`` marks a
    deprecated flag and names its successor.
    """

    long: str
    short: str = ""
    argument: str = ""
    group: str = OPTIONS
    help: str = ""
    value: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the ini file.

    ``environment`` lists further variables beside ``LAVINMQ_<SECTION>_<KEY>``; ``fallback`` is a
    variable made by others than the operator, so it only replaces the default. ``live`` says that
    a reload changes the running broker. ``fate`` is ``later`` for a setting that nothing reads yet
    (a warning), ``unused`` for one that has no meaning in this broker (accepted in silence) and
    ``removed`` for one that is deprecated (a warning). ``secret`` says that its value is not shown.
    """

    section: str
    key: str
    kind: Kind
    default: str
    help: str
    attribute: str = ""
    live: bool = False
    environment: tuple[str, ...] = ()
    fallback: str = ""
    flags: tuple[Flag, ...] = ()
    fate: Literal["", "later", "unused", "removed"] = ""
    secret: bool = False

    @property
    def effect(self) -> str:
        """What setting it does: ``yes``, ``not yet``, ``unused`` or ``removed``."""
        if self.fate == "later" or not (self.fate or self.attribute):
            return "not yet"
        return self.fate or "yes"

    @property
    def name(self) -> str:
        """The setting as messages call it."""
        return f"'{self.key}' in [{self.section}]"

    @property
    def variables(self) -> tuple[str, ...]:
        """All environment variables that set it, the strongest first."""
        if self.section == "sni":
            return ()
        return (f"LAVINMQ_{self.section}_{self.key}".upper(), *self.environment)


# Tables, read across: the formatter would give every word a line of its own.
# fmt: off
BIND = Flag("--bind", "-b", "ADDR", BINDINGS, "Address of AMQP, MQTT and HTTP at once")

ACTIONS = (
    Flag("--config", "-c", "FILE", OPTIONS,
         "Configuration file (default: /etc/lavinmq/lavinmq.ini if it exists)"),
    Flag("--raise-gc-warn", group=OPTIONS, help="Accepted for compatibility, no effect"),
    Flag("--help", "-h", group=MISCELLANEOUS, help="Show this help"),
    Flag("--version", "-v", group=MISCELLANEOUS, help="Show the version"),
    Flag("--build-info", group=MISCELLANEOUS, help="Show version, compiler and platform"),
    Flag("--check-config", group=MISCELLANEOUS,
         help="Check the configuration without starting; 0: good, 1: not"),
    Flag("--print-config", group=MISCELLANEOUS,
         help="Show the values in force and where they come from"),
)

BUFFER = integer(1, 2**31 - 1, optional=True)
GUEST_HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"


def _flag(long: str, argument: str, short: str = "", group: str = OPTIONS) -> tuple[Flag, ...]:
    return (Flag(long, short, argument, group),)


MAIN = (
    Setting("main", "data_dir", DIRECTORY, "/var/lib/lavinmq", "Directory of all stored data",
            "data_dir", environment=("LAVINMQ_DATADIR",), fallback="STATE_DIRECTORY",
            flags=_flag("--data-dir", "DIR", "-D")),
    Setting("main", "log_level", LEVEL, "info", "Least severity that is logged", "log_level",
            live=True,
            flags=(Flag("--log-level", "-l", "LEVEL"),
                   Flag("--debug", "-d", "", MISCELLANEOUS, "Log level debug", "debug"))),
    Setting("main", "log_file", PATH, "", "File to append the log to, instead of standard output",
            "log_file", live=True),
    Setting("main", "log_format", choice("text", "json", "logfmt"), "text",
            "Form of the lines of the log", "log_format", live=True),
    Setting("main", "pidfile", PATH, "", "File to write the process id to", "pidfile",
            flags=_flag("--pidfile", "FILE")),
    Setting("main", "control_unix_path", SOCKET_PATH, "/tmp/lavinmqctl.sock",
            "Socket of the control tool", "control_unix_path",
            environment=("LAVINMQ_CONTROL_UNIX_PATH",),
            fallback="LAVINMQ_DEFAULT_CONTROL_UNIX_PATH",
            flags=_flag("--control-unix-path", "PATH", group=BINDINGS)),
    Setting("main", "tls_cert", PATH, "", "Certificate with its chain", "tls_cert", live=True,
            environment=("LAVINMQ_TLS_CERT_PATH",), flags=_flag("--cert", "FILE", group=TLS)),
    Setting("main", "tls_key", PATH, "", "Private key; empty: in the certificate's file",
            "tls_key", live=True, environment=("LAVINMQ_TLS_KEY_PATH",),
            flags=_flag("--key", "FILE", group=TLS)),
    Setting("main", "tls_ciphers", TEXT, "", "OpenSSL cipher list", "tls_ciphers", live=True,
            environment=("LAVINMQ_TLS_CIPHERS",), flags=_flag("--ciphers", "LIST", group=TLS)),
    Setting("main", "tls_min_version", TLS_VERSION, "", "Oldest TLS version accepted; empty: 1.2",
            "tls_min_version", live=True, environment=("LAVINMQ_TLS_MIN_VERSION",),
            flags=_flag("--tls-min-version", "VERSION", group=TLS)),
    Setting("main", "tls_keylog_file", PATH, "", "File for TLS session keys",
            "tls_keylog_file", live=True, fallback="SSLKEYLOGFILE"),
    Setting("main", "tls_ktls", BOOLEAN, "false", "TLS in the kernel", "tls_ktls", live=True,
            flags=_flag("--tls-ktls", "BOOL", group=TLS)),
    Setting("main", "tls_verify_peer", SAFEGUARD, "false", "Demand and verify client certificates",
            "tls_verify_peer", live=True),
    Setting("main", "tls_ca_cert", PATH, "",
            "Authorities that client certificates are verified with, file or directory",
            "tls_ca_cert", live=True),
    Setting("main", "tls_crl", PATH, "",
            "Revocation list of the authority that issues client certificates", "tls_crl",
            live=True),
    Setting("main", "tls_cert_login_from",
            choice("common_name", "distinguished_name", "subject_alternative_name", "none"),
            "common_name", "What of a client certificate names the user of SASL EXTERNAL",
            "tls_cert_login_from", live=True),
    Setting("main", "metrics_http_bind", ADDRESS, "127.0.0.1", "Address of the metrics listener",
            "metrics_http_bind", flags=_flag("--metrics-http-bind", "ADDR")),
    Setting("main", "metrics_http_port", PORT, "15692", "Port of the metrics listener, -1: none",
            "metrics_http_port", flags=_flag("--metrics-http-port", "PORT")),
    Setting("main", "stats_interval", integer(1, 2**31 - 1), "5000",
            "Milliseconds between samples of rates and of the free disk space", "stats_interval"),
    Setting("main", "stats_log_size", integer(1, 2**20), "120", "Samples kept", "stats_log_size"),
    Setting("main", "set_timestamp", BOOLEAN, "false", "Stamp received messages with the time",
            "set_timestamp", live=True),
    Setting("main", "socket_buffer_size", integer(0, 2**31 - 1), "16384",
            "Bytes buffered per connection; here all connections share one buffer",
            "socket_buffer_size", fate="unused"),
    # LavinMQ's default is false. This broker writes once per turn of its loop, so that waiting
    # for more to send (Nagle) saves no packet and only delays the last one.
    Setting("main", "tcp_nodelay", BOOLEAN, "true", "Send at once; LavinMQ's default is false",
            "tcp_nodelay", live=True),
    Setting("main", "tcp_keepalive", KEEPALIVE, "60:10:3",
            "Keepalive of connections that are not local", "tcp_keepalive", live=True),
    Setting("main", "tcp_recv_buffer_size", BUFFER, "",
            "Receive buffer of a socket; empty: the system's", "tcp_recv_buffer_size", live=True),
    Setting("main", "tcp_send_buffer_size", BUFFER, "",
            "Send buffer of a socket; empty: the system's", "tcp_send_buffer_size", live=True),
    Setting("main", "segment_size", integer(4096, 2**32 - 1), "8388608",
            "Bytes of a message store file", "segment_size"),
    Setting("main", "sync", SAFEGUARD, "true", "Sync to disk before confirming", "sync", live=True,
            environment=("LAVINMQ_SYNC",),
            flags=(Flag("--no-sync", help="Do not sync to disk: unsafe", value="false"),)),
    Setting("main", "log_exchange", BOOLEAN, "false",
            "Publish the log to the exchange amq.lavinmq.log", "log_exchange"),
    Setting("main", "free_disk_min", integer(0, MAX_INTEGER), "0",
            "Bytes free on disk below which publishers are stopped", "free_disk_min", live=True),
    Setting("main", "free_disk_warn", integer(0, MAX_INTEGER), "0",
            "Bytes free on disk below which a warning is logged", "free_disk_warn", live=True),
    Setting("main", "load_definitions", PATH, "",
            "Definitions to import at each start; a new data directory gets no `/` and no user",
            "load_definitions"),
    Setting("main", "load_definitions_skip_if_unchanged", BOOLEAN, "false",
            "Import that file again only when it has changed",
            "load_definitions_skip_if_unchanged"),
    Setting("main", "max_deleted_definitions", integer(0, MAX_INTEGER), "8192",
            "Deletions before the definitions file is compacted", "max_deleted_definitions",
            live=True),
    # A table of strings of one byte each becomes objects of a hundred times its bytes.
    Setting("main", "max_arguments_bytes", integer(1024, 2**31 - 1), "65536",
            "Bytes of a table of arguments: of a queue, exchange, binding or consumer",
            "max_arguments_bytes", live=True),
    Setting("main", "max_arguments_entries", integer(16, 2**31 - 1), "1024",
            "Entries of such a table, with those of tables and arrays in it",
            "max_arguments_entries", live=True),
    Setting("main", "max_copy_keys", integer(1, 2**31 - 1), "1024",
            "Keys in CC and BCC of one message", "max_copy_keys"),
    Setting("main", "max_filter_conditions", integer(1, 65536), "256",
            "Conditions of a stream consumer's filter, with the points of its polygons",
            "max_filter_conditions", live=True),
    Setting("main", "consumer_timeout", integer(0, MAX_INTEGER, optional=True), "",
            "Milliseconds a delivery may stay unacknowledged; empty or 0: for ever",
            "consumer_timeout", live=True),
    Setting("main", "consumer_timeout_loop_interval", integer(1, 2**31 - 1), "60",
            "Seconds between checks of consumer_timeout", "consumer_timeout_loop_interval",
            live=True),
    Setting("main", "default_consumer_prefetch", integer(0, 65535), "65535",
            "Prefetch of a consumer that asks for none", "default_consumer_prefetch", live=True,
            environment=("LAVINMQ_DEFAULT_CONSUMER_PREFETCH",),
            flags=_flag("--default-consumer-prefetch", "N")),
    Setting("main", "auth_backends", BACKENDS, "",
            "Where users are looked up, in order; empty: local", "auth_backends"),
    Setting("main", "login_throttling", SAFEGUARD, "true",
            "Let log-ins wait after several that failed", "login_throttling", live=True),
    Setting("main", "password_hashing_algorithm", choice("scrypt", "sha256", "sha512", "bcrypt"),
            "scrypt", "Kind of hash made for new passwords", "password_hashing_algorithm",
            live=True),
    Setting("main", "default_user", NAME, "guest", "User created in a new data directory",
            "default_user", environment=("LAVINMQ_DEFAULT_USER",),
            flags=_flag("--default-user", "NAME")),
    Setting("main", "default_password_hash", PASSWORD_HASH, GUEST_HASH,
            "Password hash of that user", "default_password_hash", secret=True,
            environment=("LAVINMQ_DEFAULT_PASSWORD",),
            flags=(Flag("--default-password-hash", "", "HASH"),
                   Flag("--default-password", "", "HASH", instead="--default-password-hash"))),
    Setting("main", "default_password_plain", PLAIN_PASSWORD, "",
            "Password of that user, hashed at the first start; wins over the hash",
            "default_password_plain", secret=True),
    Setting("main", "webhook_private_networks", SAFEGUARD, "true",
            "Shovels may post to private addresses and this machine", "webhook_private_networks",
            live=True),
    Setting("main", "default_user_only_loopback", SAFEGUARD, "true",
            "That user may log in from this host only", "default_user_only_loopback",
            flags=(Flag("--default-user-only-loopback", "", "BOOL"),
                   Flag("--guest-only-loopback", "", "BOOL",
                        instead="--default-user-only-loopback"))),
    Setting("main", "data_dir_lock", SAFEGUARD, "true",
            "Lock the data directory; a second broker waits", "data_dir_lock", flags=(
            Flag("--no-data-dir-lock", help="Do not lock the data directory", value="false"),)),
    Setting("main", "data_dir_access", choice("owner", "group", "keep"), "owner",
            "Who may look into the data directory besides root: its owner (0700), its group too"
            " (0750), or whoever its present mode allows", "data_dir_access"),
    Setting("main", "scrub_rate", integer(0, MAX_INTEGER), "8388608",
            "Bytes of stored files to read per second, to make and check their sums; 0: there are"
            " none", "scrub_rate"),
    Setting("main", "scrub_interval", integer(1, 2**31 - 1), "60",
            "Seconds from the end of one pass over all files to the next one", "scrub_interval"),
    Setting("main", "default_consistent_hash_algorithm", choice("ring", "jump"), "ring",
            "Algorithm of consistent hash exchanges that name none",
            "default_consistent_hash_algorithm"),
)

PROTOCOLS = (
    Setting("amqp", "bind", ADDRESS, "127.0.0.1", "Address of the AMQP listener", "amqp_bind",
            environment=("LAVINMQ_AMQP_BIND",),
            flags=(Flag("--amqp-bind", "", "ADDR", BINDINGS), BIND)),
    Setting("amqp", "port", PORT, "5672", "Port of the AMQP listener, -1: none", "amqp_port",
            environment=("LAVINMQ_AMQP_PORT",), flags=_flag("--amqp-port", "PORT", "-p", BINDINGS)),
    Setting("amqp", "tls_port", PORT, "5671", "Port of the AMQPS listener, -1: none",
            "amqp_tls_port", environment=("LAVINMQ_AMQPS_PORT",),
            flags=_flag("--amqps-port", "PORT", group=BINDINGS)),
    Setting("amqp", "unix_path", SOCKET_PATH, "", "Socket of the AMQP listener", "amqp_unix_path",
            flags=_flag("--amqp-unix-path", "PATH", group=BINDINGS)),
    Setting("amqp", "tcp_proxy_protocol", PROXY_PROTOCOL, "false",
            "Detect PROXY protocol headers on plain TCP", "tcp_proxy_protocol", live=True),
    Setting("amqp", "proxy_protocol_trusted_sources", NETWORKS, "",
            "Peers whose PROXY headers count; empty: all", "proxy_protocol_trusted_sources",
            live=True),
    Setting("amqp", "unix_proxy_protocol", ANYTHING, "", "Always detected", fate="removed"),
    Setting("amqp", "heartbeat", integer(0, 65535), "300", "Seconds between heartbeats, 0: none",
            "heartbeat", live=True),
    Setting("amqp", "frame_max", integer(4096, 2**32 - 1, also=0), "131072",
            "Bytes of a frame, 0: no limit", "frame_max", live=True),
    Setting("amqp", "channel_max", integer(0, 65535), "2047",
            "Channels of a connection, 0: no limit", "channel_max", live=True),
    Setting("amqp", "max_message_size", integer(1, MAX_INTEGER), "134217728",
            "Bytes of a message body", "max_message_size", live=True),
    Setting("amqp", "max_consumers_per_channel", integer(0, 2**31 - 1), "0",
            "Consumers of a channel, 0: no limit", "max_consumers_per_channel", live=True),
    Setting("amqp", "max_consumers_per_connection", integer(0, 2**31 - 1), "65536",
            "Consumers of a connection, 0: no limit", "max_consumers_per_connection", live=True),
    Setting("amqp", "max_bindings_per_queue", integer(0, 2**31 - 1), "100000",
            "Bindings of a queue, or to an exchange, 0: no limit", "max_bindings_per_queue",
            live=True),
    Setting("amqp", "max_bindings_per_vhost", integer(0, 2**31 - 1), "1000000",
            "Bindings of a virtual host, 0: no limit", "max_bindings_per_vhost", live=True),
    Setting("amqp", "amqp_systemd_socket_name", TEXT, "lavinmq-amqp.socket",
            "Name of a socket passed by systemd", "amqp_systemd_socket_name"),

    Setting("mqtt", "bind", ADDRESS, "127.0.0.1", "Address of the MQTT listener", "mqtt_bind",
            flags=(Flag("--mqtt-bind", "", "ADDR", BINDINGS), BIND)),
    Setting("mqtt", "port", PORT, "1883", "Port of the MQTT listener, -1: none", "mqtt_port",
            flags=_flag("--mqtt-port", "PORT", group=BINDINGS)),
    Setting("mqtt", "tls_port", PORT, "8883", "Port of the MQTTS listener, -1: none",
            "mqtt_tls_port", flags=_flag("--mqtts-port", "PORT", group=BINDINGS)),
    Setting("mqtt", "unix_path", SOCKET_PATH, "", "Socket of the MQTT listener", "mqtt_unix_path",
            flags=_flag("--mqtt-unix-path", "PATH", group=BINDINGS)),
    Setting("mqtt", "max_inflight_messages", integer(1, 65535), "65535",
            "Unacknowledged messages of a session, each way", "mqtt_max_inflight_messages",
            live=True),
    Setting("mqtt", "max_packet_size", integer(1, 268435455), "268435455",
            "Bytes of a packet; a retained message has 8 MiB at most", "mqtt_max_packet_size",
            live=True),
    Setting("mqtt", "default_vhost", NAME, "/", "Virtual host of clients that name none",
            "mqtt_default_vhost", live=True),
    Setting("mqtt", "permission_check_enabled", SAFEGUARD, "false", "Check permissions",
            "mqtt_permission_check_enabled", live=True),
    Setting("mqtt", "client_id_validation", choice("none", "username"), "none",
            "What a client id must equal", "mqtt_client_id_validation", live=True),
    Setting("mqtt", "max_session_expiry", integer(0, 2**32 - 1), "86400",
            "Seconds that a session is kept without its client, at most; 4294967295: for ever",
            "mqtt_max_session_expiry", live=True),
    Setting("mqtt", "sys_interval", integer(0, 86400), "10",
            "Seconds between two messages of a topic below $SYS, 0: none", "mqtt_sys_interval",
            live=True),
    Setting("mqtt", "refused_publish", choice("drop", "disconnect"), "drop",
            "What a publish without the right to it comes to, before version 5",
            "mqtt_refused_publish", live=True),
    Setting("mqtt", "exchange", MQTT_EXCHANGE, "amq.topic",
            "Topic exchange of AMQP that shares its topics with MQTT, unless a parameter of the"
            " virtual host names another; empty: none", "mqtt_exchange"),
    Setting("mqtt", "anonymous_user", TEXT, "", "User of clients that give no name; empty: none",
            "mqtt_anonymous_user", live=True),
    Setting("mqtt", "mqtt_systemd_socket_name", TEXT, "lavinmq-mqtt.socket",
            "Name of a socket passed by systemd", "mqtt_systemd_socket_name"),

    Setting("mgmt", "bind", ADDRESS, "127.0.0.1", "Address of the HTTP listener", "http_bind",
            environment=("LAVINMQ_HTTP_BIND",),
            flags=(Flag("--http-bind", "", "ADDR", BINDINGS), BIND)),
    Setting("mgmt", "port", PORT, "15672", "Port of the HTTP listener, -1: none", "http_port",
            environment=("LAVINMQ_HTTP_PORT",), flags=_flag("--http-port", "PORT", group=BINDINGS)),
    Setting("mgmt", "tls_port", PORT, "15671", "Port of the HTTPS listener, -1: none",
            "https_port", environment=("LAVINMQ_HTTPS_PORT",),
            flags=_flag("--https-port", "PORT", group=BINDINGS)),
    Setting("mgmt", "unix_path", SOCKET_PATH, "", "Socket of the HTTP listener", "http_unix_path",
            flags=_flag("--http-unix-path", "PATH", group=BINDINGS)),
    Setting("mgmt", "cors_allowed_origins", ORIGINS, "",
            "Origins whose pages may use the HTTP API, *: any that logs in by itself",
            "cors_allowed_origins", live=True),
    Setting("mgmt", "websocket_allowed_origins", ORIGINS, "",
            "Other origins whose pages may open a WebSocket, *: any", "websocket_allowed_origins",
            live=True),
    Setting("mgmt", "allowed_hosts", HOSTS, "",
            "Further names by which browsers reach this broker, such as that of a proxy; *: any"
            " name will do at a loopback address", "allowed_hosts", live=True),
    Setting("mgmt", "max_body_size", integer(1024, MAX_INTEGER), str(32 << 20),
            "Bytes of the body of a publish or an import of definitions, and of an answer with"
            " messages", "max_body_size", live=True),
    # Parsed in one go: a megabyte of small values takes 30 ms and 50 MB.
    Setting("mgmt", "max_json_size", integer(1024, MAX_INTEGER), str(256 << 10),
            "Bytes of any other request's body, max_body_size at most", "max_json_size", live=True),
    Setting("mgmt", "max_connections", integer(1, 2**31 - 1, optional=True), "",
            "Connections for management, and as many for metrics; empty: a quarter of the file"
            " descriptors", "http_max_connections", live=True),
    Setting("mgmt", "head_timeout", integer(1, 3600), "15",
            "Seconds until the head of a request that has begun is complete", "head_timeout",
            live=True),
    Setting("mgmt", "http_systemd_socket_name", TEXT, "lavinmq-http.socket",
            "Name of a socket passed by systemd", "http_systemd_socket_name"),
)


def _clustering(key: str, kind: Kind, default: str, text: str, argument: str) -> Setting:
    return Setting("clustering", key, kind, default, text, f"clustering_{key}",
                   flags=_flag(f"--clustering-{key.replace('_', '-')}", argument, group=CLUSTERING))


FEATURES = (
    Setting("clustering", "enabled", SAFEGUARD, "false", "Replicate to other nodes",
            "clustering_enabled", environment=("LAVINMQ_CLUSTERING",),
            flags=(Flag("--clustering", group=CLUSTERING, value="true"),)),
    _clustering("bind", ADDRESS, "127.0.0.1", "Address of the clustering listener", "ADDR"),
    _clustering("port", PORT, "5679", "Port of the clustering listener", "PORT"),
    _clustering("advertised_uri", TEXT, "", "Address other nodes use", "URI"),
    _clustering("etcd_endpoints", LIST, "localhost:2379", "Addresses of etcd", "LIST"),
    _clustering("etcd_prefix", NAME, "lavinmq", "Prefix of all keys in etcd", "KEY"),
    _clustering("etcd_ca_cert", PATH, "", "CA certificates that etcd's is checked with", "FILE"),
    _clustering("etcd_cert", PATH, "", "Certificate that this node shows to etcd", "FILE"),
    _clustering("etcd_key", PATH, "", "Key of that certificate", "FILE"),
    _clustering("tls_cert", PATH, "", "Certificate that this node shows to other nodes", "FILE"),
    _clustering("tls_key", PATH, "", "Key of that certificate", "FILE"),
    _clustering("tls_ca_cert", PATH, "", "CA certificates that other nodes' are checked with",
                "FILE"),
    _clustering("tls_crl", PATH, "", "Revocation list of the authority of nodes", "FILE"),
    Setting("clustering", "tls_optional", SAFEGUARD, "false",
            "Speak with nodes that have no certificates as well, while TLS is introduced",
            "clustering_tls_optional",
            flags=(Flag("--clustering-tls-optional", group=CLUSTERING, value="true"),)),
    _clustering("min_insync_replicas", integer(0, 99), "0",
                "Nodes that have to have what is acknowledged; 0: most of those known", "N"),
    _clustering("below_min_insync", choice("wait", "nack"), "wait",
                "What publishers get while fewer are in sync: no confirm, or a negative one",
                "WHAT"),
    _clustering("compression", choice("auto", "on", "off"), "auto",
                "Compress what followers are sent; auto: where the network is slow, without TLS",
                "WHEN"),
    _clustering("lease_ttl", integer(2, 300), "4",
                "Seconds after which a leader that is not heard of is replaced", "SECONDS"),
    _clustering("hot_standby", BOOLEAN, "true",
                "Have followers read ahead what a leader is loaded from", "BOOL"),
    _clustering("reads_port", PORT, "-1",
                "Port on which a node that follows serves readers of streams, -1: none", "PORT"),
    _clustering("reads_tls_port", PORT, "-1", "The same with TLS, -1: none", "PORT"),
    _clustering("on_leader_elected", TEXT, "", "Shell command run when this node becomes leader",
            "COMMAND"),
    _clustering("on_leader_lost", TEXT, "", "Shell command run when this node stops being leader",
            "COMMAND"),
    Setting("clustering", "max_unsynced_actions", ANYTHING, "", "Deprecated, no effect",
            fate="removed",
            flags=_flag("--clustering-max-unsynced-actions", "N", group=CLUSTERING)),

    Setting("oauth", "issuer", URL, "", "Issuer of tokens", "oauth_issuer"),
    Setting("oauth", "client_id", TEXT, "", "Client id of the management interface",
            "oauth_client_id"),
    Setting("oauth", "mgmt_base_url", URL, "", "Address browsers use for the management interface",
            "oauth_mgmt_base_url"),
    Setting("oauth", "mgmt_scopes", TEXT, "openid profile",
            "Scopes the management interface asks for", "oauth_mgmt_scopes"),
    Setting("oauth", "resource_server_id", TEXT, "", "Name of this broker in tokens",
            "oauth_resource_server_id"),
    Setting("oauth", "preferred_username_claims", LIST, "sub,client_id",
            "Claims that may hold the user name, in order", "oauth_preferred_username_claims"),
    Setting("oauth", "additional_scopes_keys", LIST, "", "Further claims with scopes",
            "oauth_additional_scopes_keys"),
    Setting("oauth", "scope_prefix", TEXT, "",
            "Prefix of the scopes that count; empty: resource_server_id and a dot",
            "oauth_scope_prefix"),
    Setting("oauth", "verify_aud", SAFEGUARD, "true", "Verify the audience", "oauth_verify_aud"),
    Setting("oauth", "audience", TEXT, "", "Audience tokens must name; empty: resource_server_id",
            "oauth_audience"),
    Setting("oauth", "jwks_cache_ttl", integer(1, 2**31 - 1), "3600", "Seconds keys are kept",
            "oauth_jwks_cache_ttl"),

    Setting("experimental", "yield_each_received_bytes", integer(1, MAX_INTEGER), "131072",
            "Bytes read from a connection in one turn"),
    Setting("experimental", "yield_each_delivered_bytes", integer(1, MAX_INTEGER), "1048576",
            "Bytes delivered to a consumer in one turn"),
)

# Sections [sni:<host name>], kept in ``Config.sni``. Each key may be prefixed with amqp_, mqtt_ or
# http_; what is not given, except certificate and key, is as in [main].
SNI = (
    Setting("sni", "tls_cert", PATH, "", "Certificate with its chain; required", "sni"),
    Setting("sni", "tls_key", PATH, "", "Private key; empty: in the certificate's file", "sni"),
    Setting("sni", "tls_min_version", TLS_VERSION, "", "Oldest TLS version accepted", "sni"),
    Setting("sni", "tls_ciphers", TEXT, "", "OpenSSL cipher list", "sni"),
    Setting("sni", "tls_verify_peer", SAFEGUARD, "", "Demand and verify client certificates",
            "sni"),
    Setting("sni", "tls_ca_cert", PATH, "",
            "Authorities that client certificates are verified with, file or directory", "sni"),
    Setting("sni", "tls_crl", PATH, "",
            "Revocation list of the authority that issues client certificates", "sni"),
    Setting("sni", "tls_keylog_file", PATH, "", "File for TLS session keys", "sni"),
)
SNI_PREFIXES = ("amqp_", "mqtt_", "http_")

SETTINGS = MAIN + PROTOCOLS + FEATURES
# `[mqtt] enabled` is meant for MQTT, whatever other section has a key of that name.
SAY_NOTHING_ALONE = frozenset({"enabled"})
SECTIONS = ("main", "amqp", "mqtt", "mgmt", "clustering", "oauth", "experimental")

# Old place -> where the setting stands now. Still read, with a warning.
MOVED = {
    ("amqp", "tls_cert"): ("main", "tls_cert"),
    ("amqp", "tls_key"): ("main", "tls_key"),
    ("mgmt", "tls_cert"): ("main", "tls_cert"),
    ("mgmt", "tls_key"): ("main", "tls_key"),
    ("amqp", "set_timestamp"): ("main", "set_timestamp"),
    ("amqp", "consumer_timeout"): ("main", "consumer_timeout"),
    ("amqp", "default_consumer_prefetch"): ("main", "default_consumer_prefetch"),
    ("main", "default_password"): ("main", "default_password_hash"),
    ("main", "guest_only_loopback"): ("main", "default_user_only_loopback"),
}
# fmt: on


def flags() -> Iterator[tuple[Flag, Setting | None]]:
    """Return every flag with what it sets; a flag for several settings comes several times."""
    for action in ACTIONS:
        yield action, None
    for setting in SETTINGS:
        for flag in setting.flags:
            yield flag, setting
