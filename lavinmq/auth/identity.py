"""Who a client is and what it may do, however that was found out.

A `User` of `users.json` and a `TokenUser` of an access token are both one. Everything that checks
rights asks an `Identity` and needs to know no more.
Source: docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lavinmq.auth.topics import KeyRights


class Identity(Protocol):
    """Somebody who has logged in."""

    @property
    def name(self) -> str:
        """The user name, which limits, logs and the property `user_id` go by."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, of those in `users.TAGS`."""

    @property
    def expires_at(self) -> float | None:
        """Unix time in seconds from which it counts no more; None: it has no end."""

    def has_tag(self, tag: str) -> bool:
        """Whether it has the tag."""

    def has_vhost(self, vhost: str) -> bool:
        """Whether it may connect to the virtual host."""

    def can_configure(self, vhost: str, resource: str) -> bool:
        """Whether it may declare and delete the queue or exchange."""

    def can_read(self, vhost: str, resource: str) -> bool:
        """Whether it may consume, get, purge and bind from the queue or exchange."""

    def can_write(self, vhost: str, resource: str) -> bool:
        """Whether it may publish and bind to the queue or exchange."""

    def can_write_all(self, vhost: str) -> bool:
        """Whether it may publish to whatever exchange there is or will be, with every key."""

    def key_rights(self, vhost: str, exchange: str) -> KeyRights | None:
        """What it may do with the keys of a topic exchange; None: anything with all of them."""
