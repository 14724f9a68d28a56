"""What both fronts of a client have in common: options, callbacks, figures."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from lavinmq.client.config import Config, check_names
from lavinmq.client.core import Core
from lavinmq.client.errors import ClosedError, ConfigError
from lavinmq.client.metrics import Metrics, snapshot
from lavinmq.client.together import Alone, Together
from lavinmq.client.url import ALSO, Target, parse_url
from lavinmq.client.values import BufferPolicy, ConnectionState, PublishMode

DEFAULT_URL: Final = "amqp://localhost"
PRODUCER_OPTIONS: Final = (
    "buffer_size", "buffer_bytes", "message_ttl", "max_in_flight", "confirm_timeout",
    "flush_retries", "retry_nacks", "block_timeout", "spill_directory", "spill_bytes",
    "deduplicate", "buffer_while_disconnected", "close_timeout",
)  # fmt: skip
CONSUMER_OPTIONS: Final = ("max_unacked_age",)
Hook = Callable[..., Any]
LIVING: Final[weakref.WeakSet[Face]] = weakref.WeakSet()
"""Clients of this process that were started, for forks."""


def settle(
    url: str | None, config: Config | None, overrides: dict[str, Any]
) -> tuple[Target, Config]:
    """Where to and how: keywords win over the URL, the URL over `config`. Raises: ConfigError."""
    target = parse_url(url or os.environ.get("AMQP_URL") or DEFAULT_URL)
    check_names(overrides, ALSO)
    named = {name: overrides[name] for name in ALSO if name in overrides}
    for name, value in named.items():
        if not isinstance(value, str):
            raise ConfigError(f"option {name} is of type {type(value).__name__}, a text is wanted")
    options = {name: value for name, value in overrides.items() if name not in ALSO}
    made = (config or Config()).updated({**target.options, **options})
    return (replace(target, **named) if named else target), made


def narrowed(config: Config, allowed: tuple[str, ...], options: dict[str, Any]) -> Config:
    """The options of one producer or consumer. Raises: ConfigError for those of a client."""
    for name in options:
        if name not in allowed:
            check_names({name: None})
            raise ConfigError(f"option {name} is one of the client, not of this")
    return config.updated(options)


def policy_of(value: BufferPolicy | str | None, config: Config) -> BufferPolicy:
    """A policy by name. Raises: ConfigError."""
    if value is None:
        return config.buffer_policy
    return config.updated({"buffer_policy": value}).buffer_policy


def mode_of(value: PublishMode | str | None, config: Config) -> PublishMode:
    """A mode by name. Raises: ConfigError."""
    return config.mode if value is None else config.updated({"mode": value}).mode


class Face:
    """A client: what needs no waiting."""

    _core: Core
    _together: Together | Alone

    def _forked(self) -> None:
        """In the child of a fork: connections, messages and files are the parent's."""
        self._together.end()
        error = ClosedError("the process was forked: make a client of its own")
        for core in self._together.cores:
            for member in core.members:
                member.forked(error)
            link = core.link
            sock = link.transport.get_extra_info("socket") if link and link.transport else None
            if sock is not None and sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    os.close(sock.fileno())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core.target}, {self.state.value}>"

    @property
    def config(self) -> Config:
        """Its options."""
        return self._core.config

    @property
    def state(self) -> ConnectionState:
        """Where it stands; of several connections the worst one."""
        return self._together.state

    @property
    def connected(self) -> bool:
        """Whether there is a connection; be it blocked."""
        return self._together.is_connected

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no messages for now."""
        return self.state is ConnectionState.BLOCKED

    @property
    def last_error(self) -> Exception | None:
        """Why the last connection ended, or could not be made."""
        return self._together.last_error

    @property
    def server_properties(self) -> dict[str, Any]:
        """What the broker says of itself; empty without a connection."""
        link = self._core.link
        return dict(link.server_properties) if link is not None else {}

    def metrics(self) -> Metrics:
        """Figures as they are now."""
        return snapshot(self._together)

    def _on(self, event: str, callback: Hook) -> Hook:
        self._core.callbacks.setdefault(event, []).append(callback)
        return callback

    def on_state_change(self, callback: Hook) -> Hook:
        """Call it with the old state, the new one and the cause."""
        return self._on("state_change", callback)

    def on_reconnect_attempt(self, callback: Hook) -> Hook:
        """Call it with the number of the attempt and the seconds until it."""
        return self._on("reconnect_attempt", callback)

    def on_recovered(self, callback: Hook) -> Hook:
        """Call it when all is as it was before the connection was lost."""
        return self._on("recovered", callback)

    def on_recovery_failed(self, callback: Hook) -> Hook:
        """Call it with what could not be restored, and the error; it is tried again."""
        return self._on("recovery_failed", callback)

    def on_blocked(self, callback: Hook) -> Hook:
        """Call it with the reason when the broker takes no messages for now."""
        return self._on("blocked", callback)

    def on_unblocked(self, callback: Hook) -> Hook:
        """Call it when it does again."""
        return self._on("unblocked", callback)

    def on_queue_renamed(self, callback: Hook) -> Hook:
        """Call it with the old and the new name of a queue that the broker names."""
        return self._on("queue_renamed", callback)

    def on_error(self, callback: Hook) -> Hook:
        """Call it with errors that nobody else hears of; without one they are logged."""
        return self._on("error", callback)


def _after_fork() -> None:
    for client in list(LIVING):
        client._forked()
    LIVING.clear()


os.register_at_fork(after_in_child=_after_fork)
