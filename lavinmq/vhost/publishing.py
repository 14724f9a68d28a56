"""To which exchanges a user may publish, and with which routing keys.

Asked once for each exchange that a connection does not know yet; the message path keeps the answer.
Source: docs/authentication.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lavinmq.arguments.names import missing, refused
from lavinmq.auth.identity import Identity
from lavinmq.auth.topics import KeyRights
from lavinmq.vhost import rights
from lavinmq.vhost.exchange import Exchange


class Publishing:
    """Publishing in one virtual host.

    Args: vhost: its name; exchanges: what exists, by name; looked at, never changed.
    """

    def __init__(self, vhost: str, exchanges: Mapping[str, Exchange]) -> None:
        self._vhost = vhost
        self._exchanges = exchanges

    def check(self, user: Identity, name: str, keys: Iterable[str] = ()) -> Exchange:
        """The exchange, when the user may publish to it with these routing keys.

        Raises: ChannelError.
        """
        rights.check_publish(user, self._vhost, name)
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise missing(f"No exchange '{name}' in vhost '{self._vhost}'")
        self._check_not_internal(exchange)
        granted = self.key_rights(user, name)
        if granted is not None:
            rights.check_keys(user, granted, name, keys)
        return exchange

    def check_letter(self, user: Identity, name: str, keys: Collection[str]) -> Exchange | None:
        """Refuse a message that says where it goes when it dies, as if it were published there now.

        Rights are asked by the name, since the exchange may come later. Where not every key is
        allowed it has to name the one of its letter: those of a queue are somebody else's choice.
        Returns: the exchange, None when there is none yet. Raises: ChannelError 403.
        """
        rights.check_publish(user, self._vhost, name)
        exchange = self._exchanges.get(name)
        if exchange is not None:
            self._check_not_internal(exchange)
        granted = self.key_rights(user, name)
        if granted is not None and not keys:
            raise refused(
                f"User '{user.name}' has to name the routing key of dead letters for exchange"
                f" '{name}'"
            )
        if granted is not None:
            rights.check_keys(user, granted, name, keys)
        return exchange

    def key_rights(self, user: Identity, name: str) -> KeyRights | None:
        """What a user may do with the keys of an exchange of that name, which need not exist; None
        when every key may be published."""
        exchange = self._exchanges.get(name)
        if exchange is not None and not exchange.is_topic:
            return None
        granted = user.key_rights(self._vhost, name)
        return None if granted is None or granted.is_any_written else granted

    def _check_not_internal(self, exchange: Exchange) -> None:
        if exchange.internal:
            raise refused(f"Exchange '{exchange.name}' in vhost '{self._vhost}' is internal")
