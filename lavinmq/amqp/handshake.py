"""The handshake of one connection: start, tune, open, each with all its checks.

Sans I/O: methods in, methods out; `connection.py` feeds it and acts on what it raises.
Source: docs/protocol.md.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lavinmq import __version__
from lavinmq.amqp import methods as m
from lavinmq.auth.attempt import shown_name
from lavinmq.errors import ConnectionError_, ReplyCode
from lavinmq.fieldtable import FieldTable, FieldTableError, from_content

if TYPE_CHECKING:
    from lavinmq.config.values import Config

PROTOCOL_HEADERS: Final = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09")
"""0-9-1, and 0-9 as old clients say it."""

MAX_START_OK: Final = 4096
MAX_START_OK_WITH_TOKEN: Final = 8192
"""Access tokens are long; the link takes no longer frame in a handshake."""
MIN_FRAME_MAX: Final = 4096

CAPABILITIES: Final = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
    "connection.blocked", "consumer_priorities", "authentication_failure_close",
    "per_consumer_qos", "direct_reply_to",
)  # fmt: skip


class HandshakeError(Exception):
    """The peer gets no answer: the socket is closed."""


@lru_cache(maxsize=8)
def start(is_verified: bool = False, cluster_name: str = "") -> bytes:
    """What the broker says first, a whole frame.

    Args: is_verified: whether the client has shown a certificate that names a user; cluster_name:
        by which links of federation know where messages have been.
    """
    properties = FieldTable(
        {
            "product": "LavinMQ",
            "platform": f"Python {sys.version.split()[0]}",
            "version": __version__,
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            **({"cluster_name": cluster_name} if cluster_name else {}),
        }
    )
    mechanisms = b"AMQPLAIN PLAIN EXTERNAL" if is_verified else b"AMQPLAIN PLAIN"
    return m.encode_frame(0, m.ConnectionStart(0, 9, properties, mechanisms))


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """User name and password from the response. Raises: HandshakeError."""
    if mechanism == "PLAIN":
        user, separator, password = response[1:].partition(b"\0")
        if not separator:
            raise HandshakeError("malformed PLAIN response")
        return user.decode("utf-8", "surrogateescape"), password
    if mechanism == "AMQPLAIN":
        try:
            fields = from_content(response)
        except FieldTableError as error:
            raise HandshakeError(f"malformed AMQPLAIN response: {error}") from error
        login, password_ = fields.get("LOGIN"), fields.get("PASSWORD")
        name = login if isinstance(login, str) else ""
        secret = password_ if isinstance(password_, str) else ""
        return name, secret.encode("utf-8", "surrogateescape")
    raise HandshakeError(f"mechanism {mechanism!r} is not offered")


def max_start_ok(config: Config) -> int:
    """Bytes of the longest connection.start-ok."""
    return MAX_START_OK_WITH_TOKEN if "oauth" in config.auth_backends else MAX_START_OK


def refusal(method: m.ConnectionStartOk, name: str) -> Exception:
    """What to raise when nobody logs in: 403 for a client that wants to be told."""
    if has_capability(method, "authentication_failure_close"):
        return ConnectionError_(ReplyCode.ACCESS_REFUSED, "", method.CLASS_ID, method.METHOD_ID)
    return HandshakeError(f"user {shown_name(name)} could not log in")


def has_capability(method: m.ConnectionStartOk, name: str) -> bool:
    """Whether the client announces a capability."""
    capabilities = method.client_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(name) is True


def tune(config: Config) -> m.ConnectionTune:
    """The limits the broker proposes."""
    return m.ConnectionTune(config.channel_max, config.frame_max, config.heartbeat)


def check_tune(config: Config, method: m.ConnectionTuneOk) -> None:
    """Refuse limits that are too low, or higher than proposed. Raises: ConnectionError_ 530."""
    if 0 < method.frame_max < MIN_FRAME_MAX:
        raise _not_tuned(
            method,
            f"frame_max = {method.frame_max} is lower than the minimum allowed value "
            f"({MIN_FRAME_MAX})",
        )
    for name, given, limit in (
        ("frame_max", method.frame_max, config.frame_max),
        ("channel_max", method.channel_max, config.channel_max),
    ):
        if limit and (given == 0 or given > limit):
            raise _not_tuned(
                method, f"{name} = {given} is higher than the maximum allowed value ({limit})"
            )


def _not_tuned(method: m.Method, text: str) -> ConnectionError_:
    return ConnectionError_(
        ReplyCode.NOT_ALLOWED, f"failed to negotiate connection parameters: negotiated {text}",
        method.CLASS_ID, method.METHOD_ID,
    )  # fmt: skip
