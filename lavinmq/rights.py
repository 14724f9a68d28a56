"""What a user needs to be allowed for a method, and the words in which a lack is refused.

Called by `vhost.py`, once name and existence are known to be right.
Source: AMQP reference, sections 7, 9 and 21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lavinmq.fieldtable import FieldTable
from lavinmq.names import refused

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity


def check_declare_exchange(user: Identity, vhost: str, name: str, arguments: FieldTable) -> None:
    """exchange.declare of a new exchange. Raises: ChannelError 403."""
    if not _may_declare(user, vhost, name, arguments.get("x-alternate-exchange")):
        raise refused(f"User '{user.name}' doesn't have permissions to declare exchange '{name}'")


def check_declare_queue(user: Identity, vhost: str, name: str, arguments: FieldTable) -> None:
    """queue.declare of a new queue. Raises: ChannelError 403."""
    if not _may_declare(user, vhost, name, arguments.get("x-dead-letter-exchange")):
        raise refused(f"User '{user.name}' doesn't have permissions to queue '{name}'")


def _may_declare(user: Identity, vhost: str, name: str, target: object) -> bool:
    """Messages can flow on to an exchange that is named: that takes rights on both."""
    if not user.can_configure(vhost, name):
        return False
    if not isinstance(target, str):
        return True
    return user.can_write(vhost, target) and user.can_read(vhost, name)


def check_bind(user: Identity, vhost: str, exchange: str, queue: str, who: str) -> None:
    """queue.bind and queue.unbind; `who` begins the refusal. Raises: ChannelError 403."""
    if not user.can_read(vhost, exchange):
        raise refused(f"{who} doesn't have read permissions to exchange '{exchange}'")
    if not user.can_write(vhost, queue):
        raise refused(f"{who} doesn't have write permissions to queue '{queue}'")


def check_bind_exchange(user: Identity, vhost: str, to: str, source: str, verb: str) -> None:
    """exchange.bind and exchange.unbind. Raises: ChannelError 403."""
    if not user.can_read(vhost, source):
        raise refused(f"User '{user.name}' doesn't have read permissions to exchange '{source}'")
    if not user.can_write(vhost, to):
        raise refused(f"User '{user.name}' doesn't have write permissions to exchange '{to}'")
    if not to or not source:
        raise refused(f"Not allowed to {verb} the default exchange")
