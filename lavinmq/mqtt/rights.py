"""What a client of MQTT may do with topics: the rights of its user on `mqtt.default`, and on the
exchange behind the bridge.

Whether permissions of the virtual host are asked is a setting; topic permissions for `mqtt.default`
always are, with `{client_id}` in them. Topics and filters are compared as MQTT writes them.
Source: docs/mqtt.md, docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lavinmq.mqtt import filters, groups, taking
from lavinmq.vhost.bridge import binding_key_of, key_of
from lavinmq.vhost.subscribing import EXCHANGE, PREFIX

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.topics import KeyRights
    from lavinmq.vhost.vhost import VHost


class TopicRights:
    """The rights of one client, as they are now: look them up anew when the user has changed.

    Args: client_id: that of the client; is_asked: whether the permissions of the virtual host
        count. What the user may do with the exchange behind the bridge always does: it is not
        MQTT's alone.
    """

    __slots__ = (
        "_bridge_keys", "_crosses", "_groups", "_hears", "_keys", "_may_read", "_may_write",
        "is_limited",
    )  # fmt: skip

    def __init__(self, user: Identity, there: VHost, client_id: str, *, is_asked: bool) -> None:
        vhost, queue, bridge = there.name, PREFIX + client_id, there.bridge.exchange
        self._groups = groups.rights_of(there.rules.parameters.in_force, user.name, client_id)
        keys = user.key_rights(vhost, EXCHANGE)
        self._keys: Final[KeyRights | None] = None if keys is None else keys.of_client(client_id)
        self._may_write = not is_asked or user.can_write(vhost, EXCHANGE)
        self._may_read = not is_asked or (
            user.can_read(vhost, EXCHANGE) and user.can_write(vhost, queue)
        )
        self.is_limited = (
            self._groups is not None or self._keys is not None
            or not (self._may_read and self._may_write)
        )  # fmt: skip
        """Whether there is anything that the client may not do."""
        self._crosses = bool(bridge) and user.can_write(vhost, bridge)
        self._hears = bool(bridge) and user.can_read(vhost, bridge)
        keys = user.key_rights(vhost, bridge) if bridge else None
        self._bridge_keys: Final[KeyRights | None] = (
            None if keys is None else keys.of_client(client_id)
        )

    @property
    def plain(self) -> tuple[bool, ...] | None:
        """What there is to it, where the client's identifier does not matter; else None."""
        if not (self._groups is None and self._keys is None and self._bridge_keys is None):
            return None
        return self._may_read, self._may_write, self._crosses, self._hears

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return (
            self._may_write and (self._keys is None or self._keys.can_write(topic))
            and (self._groups is None or self._groups.may_write(topic))
        )  # fmt: skip

    def may_subscribe(self, text: str) -> bool:
        """Whether it may subscribe to a topic filter."""
        return (
            self._may_read and (self._keys is None or self._keys.can_read(text))
            and (self._groups is None or self._groups.may_read(text))
        )  # fmt: skip

    @property
    def crosses(self) -> bool:
        """Whether all that it publishes may cross the bridge."""
        return self._crosses and self._bridge_keys is None

    @property
    def is_asked(self) -> bool:
        """Whether the topic of a publish decides about anything."""
        return self.is_limited or (self._crosses and self._bridge_keys is not None)

    def may_cross(self, topic: str) -> bool:
        """Whether a message may cross the bridge to AMQP."""
        keys = self._bridge_keys
        return self._crosses and (keys is None or keys.can_write(key_of(topic)))

    def may_hear(self, text: str) -> bool:
        """Whether messages of AMQP may come by a topic filter."""
        keys = self._bridge_keys
        return self._hears and (keys is None or keys.can_read(binding_key_of(text)))


def may_subscribe(user: Identity, vhost: str, rights: TopicRights, text: str) -> bool:
    """Whether a client may have a subscription, as it is written: one that takes from a queue of
    AMQP needs the right to that, a shared one the right to the filter behind its group."""
    name = taking.queue_of(text)
    if name is not None:
        return user.can_read(vhost, name)
    parts = filters.shared(text)
    return rights.may_subscribe(text if parts is None else parts.filter)
