"""The bridge of one virtual host: which exchange of AMQP shares its topics with MQTT.

By default it is the one that the configuration names; a parameter of the virtual host, component
`mqtt`, name `bridge`, names another, or none. It has to be a topic exchange, and may come later
than the parameter. Called by `vhost.py`. Source: docs/mqtt.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lavinmq import _core
from lavinmq.policy.parameters import ParameterStore
from lavinmq.vhost.exchange import Exchange, raw_key
from lavinmq.vhost.subscribing import EXCHANGE

COMPONENT: Final = "mqtt"
NAME: Final = "bridge"
MOST_NAME: Final = 255
"""Bytes of the name of an exchange."""
_SWAPPED: Final = str.maketrans("/.", "./")
_FILTERED: Final = str.maketrans("/.+", "./*")


def key_of(topic: str) -> str:
    """A topic as a routing key, or a routing key as a topic."""
    return topic.translate(_SWAPPED)


def binding_key_of(text: str) -> str:
    """A topic filter as the binding key that means the same."""
    return text.translate(_FILTERED)


def check(value: Any) -> None:
    """Refuse what the parameter cannot be. Raises: ValueError."""
    name = value.get("exchange") if isinstance(value, dict) else None
    if not isinstance(name, str) or len(raw_key(name)) > MOST_NAME:
        raise ValueError("Field 'value' must be an object with field 'exchange', a name or empty")


class Bridge:
    """The bridge of one virtual host.

    Args: core: of the virtual host; exchanges: what exists, by name; looked at only; parameters:
        those of the virtual host; default: the name of the exchange where no parameter names one,
        empty for none.
    """

    def __init__(
        self, core: _core.Vhost, exchanges: Mapping[str, Exchange], parameters: ParameterStore,
        default: str,
    ) -> None:  # fmt: skip
        self.on_change: Callable[[], object] | None = None
        """Is told when the exchange is another one, or there is none any more."""
        self._core = core
        self._exchanges = exchanges
        self._parameters = parameters
        self._default = default
        self._there: Exchange | None = None

    @property
    def exchange(self) -> str:
        """The name of the exchange, whether there is one or not; empty: there is to be none."""
        given = self._parameters.in_force.get(COMPONENT, NAME)
        if given is None:
            return self._default
        try:
            check(given.value)
        except ValueError:
            return ""
        return str(given.value["exchange"])

    @property
    def is_missing(self) -> bool:
        """Whether there is to be an exchange, and there is no topic exchange of its name."""
        return self._there is None and bool(self.exchange)

    def look(self) -> None:
        """Exchanges or parameters have changed: have it lead where it should."""
        mqtt = self._exchanges.get(EXCHANGE)
        if mqtt is None:
            return
        name = self.exchange
        there = self._exchanges.get(name) if name else None
        if there is not None and not there.is_topic:
            there = None
        if there is self._there:
            return
        self._there = there
        mqtt.core.set_bridge(raw_key(name), None if there is None else there.core, self._core)
        if self.on_change is not None:
            self.on_change()
