"""What may be declared, whoever asks: properties and arguments, without names and rights.

Pure functions, for declarations of clients and for documents that are imported.
Source: docs/protocol.md, docs/definitions.md.
"""

from __future__ import annotations

from typing import Final

from lavinmq.arguments import exchange_types
from lavinmq.arguments import queue as queue_arguments
from lavinmq.arguments.names import failed
from lavinmq.arguments.stream import check_declaration, is_stream
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import DELAYED_TYPES, ExchangeDef
from lavinmq.policy.features import mistyped
from lavinmq.vhost import dedup, delayed
from lavinmq.vhost.exchange import raw_key

BUILT_IN: Final = (
    ("", "direct"), ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"),
    ("amq.headers", "headers"), ("amq.match", "headers"),
)  # fmt: skip
"""Exchanges that every virtual host has, all durable."""


def check_queue(durable: bool, exclusive: bool, auto_delete: bool, arguments: FieldTable) -> None:
    """Refuse properties that no queue can have. Raises: ChannelError."""
    if is_stream(arguments):
        check_declaration(durable, exclusive, auto_delete, arguments)
    queue_arguments.check(arguments)
    if arguments.get("x-queue-type") == "mqtt":
        raise ChannelError(
            ReplyCode.NOT_IMPLEMENTED, "x-queue-type mqtt: sessions are made by clients of MQTT"
        )


def checked_exchange(name: str, type_: str, arguments: FieldTable) -> tuple[str, FieldTable]:
    """The type and arguments with which an exchange lives. Raises: ChannelError 406."""
    if type_ in DELAYED_TYPES:
        wanted = arguments.get("x-delayed-type")
        if wanted is None:
            raise failed("Missing required argument 'x-delayed-type'")
        if not isinstance(wanted, str) or wanted not in exchange_types.EXCHANGE_TYPES:
            raise failed(
                f"unknown exchange type '{wanted!s}'{exchange_types.unserved(str(wanted))}"
            )
        resolved = ExchangeDef(name, type_, arguments=arguments).resolved()
        type_, arguments = resolved.type, resolved.arguments
    if type_ not in exchange_types.EXCHANGE_TYPES:
        raise failed(f"unknown exchange type '{type_}'{exchange_types.unserved(type_)}")
    if arguments.get("x-delayed-exchange") is True and len(raw_key(name)) > delayed.MAX_NAME:
        raise failed(f"the name of a delayed exchange has at most {delayed.MAX_NAME} bytes")
    wrong = mistyped(arguments, "alternate-exchange")
    if wrong is not None:
        raise failed(f"{wrong} header not a string")
    exchange_types.check(type_, arguments)
    dedup.check_exchange(arguments)
    return type_, arguments
