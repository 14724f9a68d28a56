"""Alternate exchanges of one virtual host: who has which, whether that exists yet or not.

An alternate is named by arguments or a policy and may come and go after those that name it. Called
by `vhost.py`. Source: docs/protocol.md.
"""

from collections.abc import Mapping

from lavinmq import _core
from lavinmq.vhost.exchange import Exchange


class Alternates:
    """The alternates of one virtual host.

    Args: core: whose epoch moves with changes; exchanges: what exists, by name; looked at only.
    """

    def __init__(self, core: _core.Vhost, exchanges: Mapping[str, Exchange]) -> None:
        self._core = core
        self._exchanges = exchanges
        self._users: dict[str, set[Exchange]] = {}
        self._name_of: dict[Exchange, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether any exchange has that one as its alternate."""
        return name in self._users

    def link(self, exchange: Exchange) -> None:
        """Its arguments, or a policy, name another alternate than before, or none."""
        wanted = exchange.alternate_name
        if self._name_of.get(exchange) == wanted:
            return
        self.unlink(exchange)
        there = None
        if wanted is not None:
            self._users.setdefault(wanted, set()).add(exchange)
            self._name_of[exchange] = wanted
            there = self._exchanges.get(wanted)
        exchange.core.set_alternate(there.core if there is not None else None)
        self._core.touch()

    def unlink(self, exchange: Exchange) -> None:
        """It goes, or has no alternate any more."""
        former = self._name_of.pop(exchange, None)
        if former is not None:
            self._users[former].discard(exchange)
            if not self._users[former]:
                del self._users[former]

    def tell_users_of(self, name: str, exchange: Exchange | None) -> None:
        """The exchange of that name has come or gone: tell those that have it as alternate."""
        for user in self._users.get(name, ()):
            user.core.set_alternate(exchange.core if exchange is not None else None)
