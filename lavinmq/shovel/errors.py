"""What ends a run for good."""

from __future__ import annotations

from lavinmq.client.errors import Error


class NotCarried(Error):
    """These queues cannot be moved from store to store."""


class Stopped(Error):
    """The destination has answered that nothing more is to be sent."""
