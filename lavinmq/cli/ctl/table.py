"""The commands and options of lavinmqctl, as data.

Everything else is derived from these tables: reading the command line (``arguments.py``), the
help texts, the completion of shells, the manual page and docs/lavinmqctl.md (``programs.py``). A
command is carried out by the function of its name in the module ``lavinmq.cli.ctl.<home>``, so that
only what is needed is loaded. Nothing is imported that costs a start time.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One option; `argument` is the word for its value, empty for one that takes none."""

    long: str
    argument: str
    help: str
    short: str = ""


class Command(NamedTuple):
    """One command.

    `arguments` is what the usage line says: `name`, `[name]` optional, `[name...]` any number,
    `name...` one or more. `needs` are the options that have to be given.
    """

    name: str
    arguments: str
    help: str
    home: str
    options: tuple[Option, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The command as it is called."""
        parts = [self.name, *(f"{name} {self.option(name).argument}" for name in self.needs)]
        if len(self.options) > len(self.needs):
            parts.append("[options]")
        return " ".join([*parts, *self.arguments.split()])

    def option(self, long: str) -> Option:
        """The option of that name. Raises: StopIteration."""
        return next(option for option in self.options if option.long == long)


GLOBAL_OPTIONS = (
    Option("--vhost", "VHOST", "virtual host, default /", "-p"),
    Option("--uri", "URI", "HTTP API to talk to, with user and password", "-U"),
    Option("--host", "URI", "the same, the older name; else LAVINMQCTL_HOST", "-H"),
    Option("--hostname", "HOST", "host of the HTTP API"),
    Option("--port", "PORT", "port of the HTTP API, default 15672, with https 15671"),
    Option("--scheme", "SCHEME", "http (default) or https"),
    Option("--user", "USER", "log in as this user"),
    Option("--password", "PASSWORD", "password of that user"),
    Option("--control-unix-path", "PATH",
           "socket of the broker, default LAVINMQCTL_CONTROL_UNIX_PATH, else the usual places"),
    Option("--node", "NODE", "accepted and ignored", "-n"),
    Option("--format", "FORMAT", "text (default) or json", "-f"),
    Option("--quiet", "", "no informational lines", "-q"),
    Option("--silent", "", "the same", "-s"),
    Option("--help", "", "show help, also about a command, and exit", "-h"),
    Option("--version", "", "show the version and exit", "-v"),
    Option("--build-info", "", "show build information and exit"),
)  # fmt: skip

QUEUE_OPTIONS = (
    Option("--auto-delete", "", "delete it when its last consumer is gone"),
    Option("--durable", "", "keep it over restarts of the broker"),
    Option("--expires", "MS", "delete it when it was not used for so long"),
    Option("--max-length", "N", "most messages in it"),
    Option("--message-ttl", "MS", "how long a message may stay"),
    Option("--delivery-limit", "N", "how often a message may be redelivered"),
    Option("--reject-on-overflow", "", "refuse publishes when it is full"),
    Option("--dead-letter-exchange", "EXCHANGE", "where dead messages go"),
    Option("--dead-letter-routing-key", "KEY", "with which routing key"),
    Option("--stream-queue", "", "a stream, which is durable"),
)
EXCHANGE_OPTIONS = (
    Option("--auto-delete", "", "delete it when its last binding is gone"),
    Option("--durable", "", "keep it over restarts of the broker"),
    Option("--internal", "", "clients may not publish to it"),
    Option("--delayed", "", "messages may be delayed"),
    Option("--alternate-exchange", "EXCHANGE", "where unroutable messages go"),
    Option("--persist-messages", "N", "messages kept for later bindings"),
    Option("--persist-ms", "MS", "how long they are kept"),
)
POLICY_OPTIONS = (
    Option("--priority", "N", "the highest of all that match counts, default 0"),
    Option("--apply-to", "TARGET",
           "all (default), queues, exchanges, classic_queues, quorum_queues or streams"),
)  # fmt: skip
SHOVEL_OPTIONS = (
    Option("--src-uri", "URI", "where messages are taken from"),
    Option("--dest-uri", "URI", "where they go"),
    Option("--src-queue", "QUEUE", "queue to take from"),
    Option("--src-exchange", "EXCHANGE", "exchange to take from"),
    Option("--src-exchange-key", "KEY", "binding key of that exchange"),
    Option("--dest-queue", "QUEUE", "queue to publish to"),
    Option("--dest-exchange", "EXCHANGE", "exchange to publish to"),
    Option("--dest-exchange-key", "KEY", "routing key to publish with"),
    Option("--src-prefetch-count", "N", "messages in flight, default 1000"),
    Option("--src-delete-after", "WHEN", "never (default), queue-length or a number"),
    Option("--ack-mode", "MODE", "on-confirm (default), on-publish or no-ack"),
    Option("--reconnect-delay", "SECONDS", "pause after an error, default 5"),
)
FEDERATION_OPTIONS = (
    Option("--uri", "URI", "the upstream broker"),
    Option("--expires", "MS", "how long the upstream queue outlives the link"),
    Option("--message-ttl", "MS", "how long messages may stay in the upstream queue"),
    Option("--max-hops", "N", "links a message may pass, default 1"),
    Option("--prefetch-count", "N", "messages in flight, default 1000"),
    Option("--reconnect-delay", "SECONDS", "pause after an error, default 1"),
    Option("--ack-mode", "MODE", "on-confirm (default), on-publish or no-ack"),
    Option("--consumer-tag", "TAG", "consumer tag in the upstream broker"),
    Option("--exchange", "EXCHANGE", "upstream exchange, default: the same name"),
    Option("--queue", "QUEUE", "upstream queue, default: the same name"),
)

COMMANDS: dict[str, tuple[Command, ...]] = {
    "Users": (
        Command("add_user", "user [password]", "Add a user, or give one another password", "users"),
        Command("delete_user", "user", "Delete a user", "users"),
        Command("change_password", "user [new_password]", "Give a user another password", "users"),
        Command("list_users", "", "List users and their tags", "users"),
        Command("set_user_tags", "user [tag...]", "Give a user these tags and no others", "users"),
        Command("hash_password", "[password]",
                "Print a salted SHA-256 hash of a password, as RabbitMQ reads it", "users"),
    ),
    "Permissions": (
        Command("set_permissions", "user configure write read",
                "Say what a user may do in a virtual host", "users"),
        Command("clear_permissions", "user", "Take a virtual host from a user", "users"),
        Command("list_permissions", "", "List who may do what in a virtual host", "users"),
        Command("list_user_permissions", "user", "List what a user may do", "users"),
        Command("set_topic_permissions", "user exchange write read",
                "Say with which routing keys a user may publish to and bind a topic exchange",
                "users"),
        Command("clear_topic_permissions", "user [exchange]",
                "Allow a user all routing keys again, of one exchange or of all", "users"),
        Command("list_topic_permissions", "",
                "List who may use which routing keys in a virtual host", "users"),
        Command("list_user_topic_permissions", "user",
                "List which routing keys a user may use", "users"),
    ),
    "Virtual hosts": (
        Command("add_vhost", "vhost", "Add a virtual host", "vhosts"),
        Command("delete_vhost", "vhost", "Delete a virtual host with all that is in it", "vhosts"),
        Command("list_vhosts", "[column...]", "List virtual hosts", "vhosts"),
        Command("set_vhost_limits", "json",
                'Limit a virtual host: {"max-connections": N, "max-queues": N}', "vhosts"),
        Command("clear_vhost_limits", "", "Take the limits of a virtual host away", "vhosts"),
        Command("list_vhost_limits", "", "Show the limits of a virtual host", "vhosts"),
    ),
    "Queues": (
        Command("list_queues", "[column...]", "List queues, default name and messages", "queues"),
        Command("create_queue", "name", "Create a queue", "queues", QUEUE_OPTIONS),
        Command("delete_queue", "name", "Delete a queue", "queues"),
        Command("purge_queue", "name", "Remove the messages of a queue", "queues"),
        Command("pause_queue", "name", "Stop deliveries to all consumers of a queue", "queues"),
        Command("resume_queue", "name", "Go on with deliveries", "queues"),
        Command("restart_queue", "name", "Open a queue that was closed by an error", "queues"),
    ),
    "Exchanges and bindings": (
        Command("list_exchanges", "[column...]", "List exchanges, default name and type", "queues"),
        Command("create_exchange", "type name", "Create an exchange", "queues", EXCHANGE_OPTIONS),
        Command("delete_exchange", "name", "Delete an exchange", "queues"),
        Command("list_bindings", "[column...]", "List bindings", "queues"),
    ),
    "Policies and parameters": (
        Command("list_policies", "", "List policies", "policies"),
        Command("set_policy", "name pattern definition", "Set a policy", "policies",
                POLICY_OPTIONS),
        Command("clear_policy", "name", "Delete a policy", "policies"),
        Command("list_operator_policies", "", "List operator policies", "policies"),
        Command("set_operator_policy", "name pattern definition", "Set an operator policy",
                "policies", POLICY_OPTIONS),
        Command("clear_operator_policy", "name", "Delete an operator policy", "policies"),
        Command("list_parameters", "[component]", "List parameters", "policies"),
        Command("set_parameter", "component name json", "Set a parameter", "policies"),
        Command("clear_parameter", "component name", "Delete a parameter", "policies"),
    ),
    "Connections": (
        Command("list_connections", "[column...]",
                "List connections, default user, peer_host, peer_port and state", "connections"),
        Command("close_connection", "name [reason]", "Close a connection", "connections"),
        Command("close_all_connections", "[reason]", "Close all connections", "connections"),
        Command("list_channels", "[column...]", "List channels", "connections"),
        Command("list_consumers", "[column...]", "List consumers", "connections"),
        Command("list_mqtt_connections", "[column...]",
                "List clients of MQTT, default client_id and conn_name", "connections"),
        Command("list_mqtt_sessions", "[column...]",
                "List sessions of MQTT clients with what waits for them", "connections"),
    ),
    "Definitions": (
        Command("export_definitions", "",
                "Print all definitions as JSON; with --vhost those of one virtual host",
                "definitions"),
        Command("import_definitions", "file",
                "Import definitions from a file, or - for standard input", "definitions",
                (Option("--dry-run", "", "only tell what an import would do"),
                 Option("--skip-errors", "", "leave out what cannot be, and tell what that is"))),
        Command("definitions", "datadir",
                "Print the definitions in a data directory; needs no broker", "datadir"),
    ),
    "Backups": (
        Command("backup", "directory",
                "Copy the running broker's data into a new folder in a directory", "backup",
                (Option("--archive", "", "write one tar file of that name, or - for stdout"),
                 Option("--since", "BACKUP", "of what has changed since an archive or a folder"),
                 Option("--keep", "N", "afterwards remove all folders but the last N"))),
        Command("verify_backup", "backup", "Look whether a folder is as it was made", "backup"),
        Command("restore", "backup... datadir",
                "Make a data directory of a folder or a tar file, and of what builds on it",
                "restore"),
    ),
    "Damage": (
        Command("verify", "", "Read all stored files, and fail if some are damaged", "integrity",
                (Option("--offline", "DATADIR", "those in a directory that no broker has"),)),
        Command("repair", "", "Get damaged files from another node of the cluster", "integrity",
                (Option("--offline", "DATADIR",
                        "keep what can be kept in a directory that no broker has"),
                 Option("--accept", "", "take definitions, users and rights as they are"))),
    ),
    "Shovels and federation": (
        Command("list_shovels", "", "List shovels, their states and errors", "links"),
        Command("add_shovel", "name", "Add a shovel", "links", SHOVEL_OPTIONS,
                ("--src-uri", "--dest-uri")),
        Command("delete_shovel", "name", "Delete a shovel", "links"),
        Command("pause_shovel", "name", "Stop a shovel, over restarts, too", "links"),
        Command("resume_shovel", "name", "Let a paused shovel go on", "links"),
        Command("list_federations", "", "List federation upstreams", "links"),
        Command("add_federation", "name", "Add a federation upstream", "links",
                FEDERATION_OPTIONS, ("--uri",)),
        Command("delete_federation", "name", "Delete a federation upstream", "links"),
    ),
    "Broker": (
        Command("status", "", "Show version, uptime and totals", "broker"),
        Command("cluster_status", "", "Show this node, its followers and its cluster", "broker"),
        Command("forget_cluster_node", "node", "Count a node no more that has gone", "broker"),
        Command("recover_cluster", "", "Show what is left of a cluster whose nodes are lost",
                "broker",
                (Option("--i-accept-loss", "", "have this node go on alone, whatever is lost"),)),
        Command("transfer_leadership", "", "Have another node of the cluster lead", "broker"),
        Command("await_online_quorum_plus_one", "",
                "Wait until enough nodes would be in sync without this one", "broker",
                (Option("--timeout", "SECONDS", "give up after this time, default 60"),)),
        Command("gc_collect", "", "Collect garbage and show memory numbers", "broker"),
        Command("stop_app", "", "Accepted, does nothing", "broker"),
        Command("start_app", "", "Accepted, does nothing", "broker"),
        Command("wait", "", "Wait until the broker answers", "broker",
                (Option("--timeout", "SECONDS", "give up after this time, default 60"),)),
    ),
    "Health checks": (
        Command("check_alarms", "", "Fail if an alarm is in effect anywhere", "broker"),
        Command("check_local_alarms", "", "Fail if an alarm is in effect here", "broker"),
        Command("check_port_listener", "port", "Fail if nothing listens on a port", "broker"),
        Command("check_protocol_listener", "protocol",
                "Fail if nothing listens for a protocol", "broker"),
        Command("check_virtual_hosts", "", "Fail if a virtual host is not running", "broker"),
        Command("check_running", "", "Fail if clients are not served", "broker"),
        Command("check_certificate_expiration", "number unit",
                "Fail if a certificate expires within so many days, weeks, months or years",
                "broker"),
    ),
    "This tool": (
        Command("completion", "shell", "Print completion for bash, zsh or fish", "tool",
                (Option("--program", "NAME",
                        "a program of ours; default: all of them"),)),
        Command("help", "[command]", "Show help, also about a command", "tool"),
    ),
}  # fmt: skip


def command_named(name: str) -> Command | None:
    """The command of that name."""
    for group in COMMANDS.values():
        for command in group:
            if command.name == name:
                return command
    return None
