"""What a user needs to be allowed for a method, and the words in which a lack is refused.

Asked once name and existence are known to be right.
Source: docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lavinmq.arguments.names import refused
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable
from lavinmq.policy.features import argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lavinmq.auth.identity import Identity
    from lavinmq.auth.topics import KeyRights
    from lavinmq.vhost.queue import Queue


Right = Literal["configure", "read", "write"]
"""What somebody may do with a queue or an exchange."""


def holds(user: Identity, right: Right, vhost: str, name: str) -> bool:
    """Whether a user has a right; the name of the default exchange is empty."""
    match right:
        case "configure":
            return user.can_configure(vhost, name)
        case "read":
            return user.can_read(vhost, name)
        case "write":
            return user.can_write(vhost, name)


def check_declare_exchange(user: Identity, vhost: str, name: str, arguments: FieldTable) -> None:
    """exchange.declare of a new exchange. Raises: ChannelError 403."""
    if not may_declare_exchange(user, vhost, name, arguments):
        raise refused(f"User '{user.name}' doesn't have permissions to declare exchange '{name}'")


def check_declare_queue(user: Identity, vhost: str, name: str, arguments: FieldTable) -> None:
    """queue.declare of a new queue. Raises: ChannelError 403."""
    if not may_declare_queue(user, vhost, name, arguments):
        raise refused(f"User '{user.name}' doesn't have permissions to queue '{name}'")


def may_declare_exchange(user: Identity, vhost: str, name: str, arguments: FieldTable) -> bool:
    """Whether the user may make the exchange, with the alternate that takes effect."""
    return _may_declare(user, vhost, name, argument(arguments, "alternate-exchange")[1])


def may_declare_queue(user: Identity, vhost: str, name: str, arguments: FieldTable) -> bool:
    """Whether the user may make the queue, with the exchange that takes its dead letters."""
    return _may_declare(user, vhost, name, argument(arguments, "dead-letter-exchange")[1])


def _may_declare(user: Identity, vhost: str, name: str, target: str | None) -> bool:
    """Messages can flow on to an exchange that is named: that takes rights on both."""
    if not user.can_configure(vhost, name):
        return False
    return target is None or (_may_lead_to(user, vhost, target) and user.can_read(vhost, name))


def _may_lead_to(user: Identity, vhost: str, target: str) -> bool:
    """Whether messages with any routing key may go to an exchange, which need not exist yet."""
    keys = user.key_rights(vhost, target)
    return user.can_write(vhost, target) and (keys is None or keys.is_any_written)


def check_delete(user: Identity, vhost: str, kind: Literal["queue", "exchange"], name: str) -> None:
    """queue.delete and exchange.delete. Raises: ChannelError 403."""
    if not user.can_configure(vhost, name):
        raise refused(f"User '{user.name}' doesn't have permissions to delete {kind} '{name}'")


def check_purge(user: Identity, vhost: str, name: str) -> None:
    """queue.purge. Raises: ChannelError 403."""
    if not user.can_read(vhost, name):
        raise refused(f"User '{user.name}' doesn't have write permissions to queue '{name}'")


def check_not_internal(vhost: str, queue: Queue) -> None:
    """Messages of a delayed exchange wait in an internal queue. Raises: ChannelError 403."""
    if queue.is_internal:
        raise refused(f"Queue '{queue.name}' in vhost '{vhost}' is internal")


def check_usable(vhost: str, queue: Queue) -> None:
    """Nor does anybody but its client take messages out of a session of MQTT, or put some there.
    Raises: ChannelError 403."""
    check_not_internal(vhost, queue)
    if queue.is_session:
        raise refused(f"Queue '{queue.name}' in vhost '{vhost}' is an MQTT session")


def locked(vhost: str, queue: Queue) -> ChannelError:
    """405, for the exclusive queue of another connection."""
    return ChannelError(
        ReplyCode.RESOURCE_LOCKED,
        f"Exclusive queue '{queue.name}' in vhost '{vhost}', of another connection",
    )


def check_bind(
    user: Identity, vhost: str, exchange: str, queue: str, who: str, topic: str | None
) -> None:
    """queue.bind and queue.unbind. Raises: ChannelError 403.

    Args: who: begins the refusal; topic: the binding key, if the source is a topic exchange.
    """
    if not user.can_read(vhost, exchange):
        raise refused(f"{who} doesn't have read permissions to exchange '{exchange}'")
    if not user.can_write(vhost, queue):
        raise refused(f"{who} doesn't have write permissions to queue '{queue}'")
    _check_topic(user, vhost, exchange, who, topic)


def check_bind_exchange(
    user: Identity, vhost: str, to: str, source: str, verb: str, topic: str | None
) -> None:
    """exchange.bind and exchange.unbind; see `check_bind`. Raises: ChannelError 403."""
    who = f"User '{user.name}'"
    if not user.can_read(vhost, source):
        raise refused(f"{who} doesn't have read permissions to exchange '{source}'")
    if not _may_lead_to(user, vhost, to):
        raise refused(f"{who} doesn't have write permissions to exchange '{to}'")
    _check_topic(user, vhost, source, who, topic)
    if not to or not source:
        raise refused(f"Not allowed to {verb} the default exchange")


def _check_topic(user: Identity, vhost: str, exchange: str, who: str, topic: str | None) -> None:
    """Raises: ChannelError 403 when the exchange may not be bound with the key."""
    keys = None if topic is None else user.key_rights(vhost, exchange)
    if keys is not None and topic is not None and not keys.can_read(topic):
        raise refused(
            f"{who} doesn't have read permissions to routing key '{topic}' of exchange '{exchange}'"
        )


def check_publish(user: Identity, vhost: str, exchange: str) -> None:
    """basic.publish, whether the exchange exists or not. Raises: ChannelError 403."""
    if not user.can_write(vhost, exchange):
        raise refused(f"User '{user.name}' not allowed to publish to exchange '{exchange}'")


def check_letter_key(user: Identity, vhost: str) -> None:
    """A message that names the routing key of its dead letter, and not the exchange: that is what
    its queues say then, and was declared by others for other keys. Raises: ChannelError 403."""
    if not user.can_write_all(vhost):
        raise refused(
            f"User '{user.name}' has to name the exchange of dead letters (x-dead-letter-exchange)"
            " together with their routing key"
        )


def check_keys(user: Identity, rights: KeyRights, exchange: str, keys: Iterable[str]) -> None:
    """The routing keys of a message for an exchange on which not all are allowed: its own, those of
    CC and BCC, or that of its dead letter. Raises: ChannelError 403."""
    for key in keys:
        if not rights.can_write(key):
            raise refused(
                f"User '{user.name}' not allowed to publish to exchange '{exchange}' with routing"
                f" key '{key}'"
            )
