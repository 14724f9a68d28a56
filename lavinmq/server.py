"""Builds the broker from its parts, starts it and stops it in order.

Start: data directory lock, users, virtual hosts, listeners. Stop: listeners, clients (told 320),
messages to disk, lock. `run` is what the command calls; it blocks and returns the exit code.
Source: command line reference, section 8; architecture section 2.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lavinmq import __version__, _core, log, vhosts_file
from lavinmq.amqp.connection import Connection
from lavinmq.amqp.listener import Listener
from lavinmq.auth.users import UserStore
from lavinmq.config import Config, ConfigError, load
from lavinmq.datadir import DataDir, DataDirError
from lavinmq.errors import DefinitionsError, ReplyCode
from lavinmq.vhost import VHost

CHECK_INTERVAL_S: Final = 1.0
STOP_TIMEOUT_S: Final = 15.0
_log = log.get("lmq.server")


class Server:
    """A running broker on one event loop.

    Args: config: the values in force; events: the loop that runs it; on_stopped: called with the
        exit code when it has stopped.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, on_stopped: Callable[[int], None]
    ) -> None:
        self.config = config
        self.events = events
        self.users = UserStore(
            Path(config.data_dir), config.default_user, config.default_password_hash,
            config.default_user_only_loopback,
        )  # fmt: skip
        self.vhosts: dict[str, VHost] = {}
        self.connections: set[Connection] = set()
        self.listeners: list[Listener] = []
        self.loop = _core.Loop(events, config.data_dir, config.sync, self._fatal, self._damaged)
        self._on_stopped = on_stopped
        self._is_stopping = False
        self._stop_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    # --- start --------------------------------------------------------------------------------

    def start(self) -> None:
        """Load everything, then listen. Raises: DefinitionsError, OSError."""
        self.users.load()
        data_dir = Path(self.config.data_dir)
        for stored in vhosts_file.load(data_dir):
            vhost = VHost(
                stored.name, data_dir, self.loop, self.config.segment_size,
                self.config.max_deleted_definitions,
            )  # fmt: skip
            try:
                vhost.open()
            except (OSError, DefinitionsError) as error:
                _log.error("vhost %r is closed, its files are left alone: %s", stored.name, error)
                continue
            self.vhosts[stored.name] = vhost
        if self.config.amqp_port >= 0:
            self.listeners.append(Listener.tcp(self, self.config.amqp_bind, self.config.amqp_port))
        if self.config.amqp_unix_path:
            self.listeners.append(Listener.unix(self, self.config.amqp_unix_path))
        for listener in self.listeners:
            listener.start()
            _log.info("Listening for AMQP on %s", listener.name)
        self._check()

    def _check(self) -> None:
        """Once a second: heartbeats and time-outs of all connections."""
        self.loop.check_links()
        self._check_timer = self.events.call_later(CHECK_INTERVAL_S, self._check)

    def welcome(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections.add(connection)
        connection.start()

    def lost(self, connection: Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        if self._is_stopping and not self.connections:
            self._finish()

    # --- stop ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop in order; a second call ends at once with exit code 1."""
        if self._is_stopping:
            _log.warning("Stopping at once")
            self._on_stopped(1)
            return
        self._is_stopping = True
        _log.info("Stopping")
        for listener in self.listeners:
            listener.close()
        self._stop_timer = self.events.call_later(STOP_TIMEOUT_S, self._cut)
        connections = list(self.connections)
        for connection in connections:
            connection.close(ReplyCode.CONNECTION_FORCED, "Broker shutdown")
        if not connections:
            # Else the last one to go says so, maybe already: one in its handshake goes at once.
            self._finish()

    def _cut(self) -> None:
        for connection in list(self.connections):
            connection.on_lost("no answer to connection.close")

    def _finish(self) -> None:
        """All clients are gone: write everything out."""
        for timer in (self._stop_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        code = 0
        self.loop.tick()
        self.loop.stop()
        for vhost in self.vhosts.values():
            try:
                vhost.close()
            except (OSError, DefinitionsError) as error:
                _log.error("vhost %r: %s", vhost.name, error)
                code = 1
        _log.info("Stopped")
        self._on_stopped(code)

    def _damaged(self) -> None:
        """A store has lost records or could not be read: say which, once for each change."""
        for vhost in self.vhosts.values():
            vhost.report_damage()

    def reload(self) -> None:
        """Read the configuration again (SIGHUP) and take over what may change while running.

        Source: command line reference, section 7."""
        try:
            fresh = load(self.config.argv, os.environ)
            log.setup(fresh.log_level, fresh.log_file, os.environ)
        except (ConfigError, OSError) as error:
            _log.warning("Configuration not reloaded: %s", error)
            return
        waiting = self.config.take_live(fresh)
        self.loop.sync = self.config.sync
        _log.info("Configuration reloaded")
        for warning in fresh.warnings:
            _log.warning("%s", warning)
        if waiting:
            _log.warning("A restart is needed for: %s", ", ".join(waiting))

    def _fatal(self, path: str, error: int) -> None:
        """A write or sync failed: stop before anything is confirmed that is not on disk."""
        _log.fatal(
            "Cannot write %s: %s. Stopping; nothing was confirmed that is not on disk",
            path, os.strerror(error),
        )  # fmt: skip
        self._on_stopped(1)


def run(config: Config) -> int:
    """Run a broker until it is told to stop. Returns: the exit code."""
    started = time.monotonic()
    _raise_descriptor_limit()
    data_dir = DataDir(config.data_dir, lock=config.data_dir_lock)
    try:
        data_dir.open()
    except DataDirError as error:
        _log.error("%s", error)
        return 1
    try:
        return _run_in(config, started)
    finally:
        data_dir.close()


def _run_in(config: Config, started: float) -> int:
    import uvloop

    events = uvloop.new_event_loop()
    codes: list[int] = []

    def stopped(code: int) -> None:
        codes.append(code)
        events.stop()

    server = Server(config, events, stopped)
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, server.stop)
    events.add_signal_handler(signal.SIGHUP, server.reload)
    _log.info("LavinMQ-compatible broker %s, pid %d", __version__, os.getpid())
    _log.info("Data directory: %s", config.data_dir)
    try:
        server.start()
    except (DefinitionsError, OSError) as error:
        _log.error("Cannot start: %s", error)
        return 1
    _log.info("Finished startup in %.3fs", time.monotonic() - started)
    events.run_forever()
    return codes[0] if codes else 1


def _raise_descriptor_limit() -> None:
    """As many descriptors as we may have: one for each connection and active queue."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < 1025:
        _log.warning("Only %d file descriptors are allowed: raise the limit", hard)
