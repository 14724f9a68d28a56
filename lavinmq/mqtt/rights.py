"""What a client of MQTT may do with topics: the rights of its user on `mqtt.default`.

Whether permissions of the virtual host are asked is a setting; topic permissions for `mqtt.default`
always are, with `{client_id}` in them. Topics and filters are compared as MQTT writes them.
Source: docs/mqtt.md, docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lavinmq.vhost.subscribing import EXCHANGE

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.topics import KeyRights


class TopicRights:
    """The rights of one client, as they are now: look them up anew when the user has changed.

    Args: vhost: its name; client_id: that of the client; is_asked: whether the permissions of the
        virtual host count.
    """

    __slots__ = ("_keys", "_may_read", "_may_write", "is_limited")

    def __init__(
        self, user: Identity, vhost: str, client_id: str, queue: str, *, is_asked: bool
    ) -> None:
        keys = user.key_rights(vhost, EXCHANGE)
        self._keys: Final[KeyRights | None] = None if keys is None else keys.of_client(client_id)
        self._may_write = not is_asked or user.can_write(vhost, EXCHANGE)
        self._may_read = not is_asked or (
            user.can_read(vhost, EXCHANGE) and user.can_write(vhost, queue)
        )
        self.is_limited = self._keys is not None or not (self._may_read and self._may_write)
        """Whether there is anything that the client may not do."""

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return self._may_write and (self._keys is None or self._keys.can_write(topic))

    def may_subscribe(self, text: str) -> bool:
        """Whether it may subscribe to a topic filter."""
        return self._may_read and (self._keys is None or self._keys.can_read(text))
