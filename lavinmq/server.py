"""Builds the broker from its parts, starts it and stops it in order.

Start: data directory lock, users, virtual hosts, listeners. Stop: listeners, clients (told 320),
messages to disk, lock. `run` is what the command calls; it blocks and returns the exit code. Other
programs start a broker by way of `embedded.py`; both go through `opened`.
Longer than 500 lines: the steps of stopping are those of starting in the other order.
Source: docs/architecture.md, docs/listeners.md.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq import __version__, _core
from lavinmq.amqp.connection import Connection
from lavinmq.arguments.bounds import TableBounds
from lavinmq.broker import Broker, Listening
from lavinmq.config.values import Config, ConfigError, load
from lavinmq.errors import DefinitionsError, ReplyCode
from lavinmq.federation.links import Federation
from lavinmq.files import file_systems
from lavinmq.files import vhosts as vhosts_file
from lavinmq.files.datadir import DataDir, DataDirError
from lavinmq.files.disk import DiskWatch
from lavinmq.files.standing import leave_cluster
from lavinmq.http.access.origin import Origin
from lavinmq.integrity.keeper import Integrity
from lavinmq.listeners.endpoints import Endpoints
from lavinmq.listeners.listener import Listener, Places, listeners
from lavinmq.listeners.tls import Contexts
from lavinmq.mqtt.service import Service as Mqtt
from lavinmq.process import descriptors, log
from lavinmq.process.portions import SharedPortion, in_portions
from lavinmq.process.systemd import Service
from lavinmq.shovel.shovels import STOP_S, Shovels
from lavinmq.stats import system
from lavinmq.vhost.log_exchange import LogExchange

if TYPE_CHECKING:
    from lavinmq.definitions_json.boot import BootFile
    from lavinmq.http.server import HttpListener

CHECK_INTERVAL_S: Final = 0.125
COMPACT_INTERVAL_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
HURRIED_S: Final = 0.2
"""What shovels get when the disk has failed, or the broker is to stop at once."""
COLLECTIONS: Final = (5_000, 1, 2_000)
"""Objects made, young passes and middle passes after which the garbage collector looks again. A
middle pass goes over all since the one before: it is short when young ones are few."""
SWITCH_S: Final = 0.001
"""How long a thread that works in Python may keep the loop waiting each time that it wants to go
on: each client that is answered in two turns would wait twice for what Python allows, 5 ms."""
_log = log.get("lmq.server")


class Server:
    """A broker on one event loop, which it stops when it has stopped itself. See `opened`.

    Args: config: the values in force; events: the loop that runs it; service: what systemd knows of
        this process, None for a broker that is not the whole of it; is_clean: whether an orderly
        stop has synced all that is in the data directory; integrity: the sums of its files, which
        whoever has made them closes.
    """

    failure: str
    """Why it did not stop in order, for people; empty if it did, or runs."""
    has_sync_failed: bool
    """Whether nobody knows what is on the disk."""
    is_stopped: bool
    """Whether it has stopped, and all that it had is on disk."""

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, service: Service | None = None,
        *, is_clean: bool = False, integrity: Integrity | None = None,
    ) -> None:  # fmt: skip
        self.failure = ""
        self.has_sync_failed = False
        self.is_stopped = False
        self.config = config
        self.events = events
        self.broker = Broker(config, events, self._fatal, self._finish, is_clean=is_clean)
        self.keep_sums(integrity)
        self.arrivals = SharedPortion(events.call_soon)
        self.peers: set[str] = set()
        self.mqtt = Mqtt(self.broker, self.arrivals)
        self.shovels = Shovels(self.broker)
        self.federation = Federation(self.broker)
        self._stopping: asyncio.Task[None] | None = None
        self.listeners: list[Listener] = []
        self.tls = Contexts(config)
        self.service = service or Service({})
        self.http: list[HttpListener] = []
        self._log_exchange: LogExchange | None = None
        if config.log_exchange:
            self._log_exchange = LogExchange(self.broker.loop, self.broker.vhosts)
        self._disk = DiskWatch(config)
        self._n_reloads = 0
        self._stop_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._compact_timer: asyncio.TimerHandle | None = None
        self._disk_timer: asyncio.TimerHandle | None = None

    def keep_sums(self, integrity: Integrity | None) -> None:
        """Have the sums of the files follow what it changes, and what it reads compared with them.
        Before `start`."""
        self.broker.integrity = integrity
        if integrity is not None:
            broker, events = self.broker, self.events
            if broker.loop not in integrity.observed:
                integrity.observe(broker.loop)
            integrity.on_looked = lambda: events.call_soon_threadsafe(broker.read_again)

    @property
    def port(self) -> int:
        """The TCP port that it listens on for AMQP, -1 when there is none."""
        return self._port_of(is_tls=False)

    @property
    def tls_port(self) -> int:
        """The TCP port that it listens on for AMQPS, -1 when there is none."""
        return self._port_of(is_tls=True)

    @property
    def http_port(self) -> int:
        """The TCP port of the HTTP API without TLS, -1 when there is none."""
        ports = [
            each.listener.port for each in self.http
            if each.origin is Origin.MANAGEMENT and not each.is_tls and each.listener.port >= 0
        ]  # fmt: skip
        return ports[0] if ports else -1

    @property
    def mqtt_port(self) -> int:
        """The TCP port that it listens on for MQTT, -1 when there is none."""
        return self._port_of(is_tls=False, protocol="mqtt")

    def _port_of(self, *, is_tls: bool, protocol: str = "amqp") -> int:
        ports = [
            each.port for each in self.listeners
            if each.protocol == protocol and each.is_tls == is_tls and each.port >= 0
        ]  # fmt: skip
        return ports[0] if ports else -1

    # --- start --------------------------------------------------------------------------------

    def start(self) -> None:
        """Load everything, then listen. Raises: TlsError, DefinitionsError, OSError."""
        started = time.monotonic()
        _log.info("LavinMQ-compatible broker %s, pid %d", __version__, os.getpid())
        _log.info("Data directory: %s", self.config.data_dir)
        self.tls.load()
        self._secure_what_is_there()
        integrity = self.broker.integrity
        if integrity is not None and not integrity.is_running:
            integrity.on_sync_failed = lambda path, error: self.events.call_soon_threadsafe(
                self._fatal, path, error
            )
            integrity.first_look(is_shallow=True)
        if integrity is not None:
            integrity.before_reading()
        definitions = boot_file(self.config)  # first: a bad one leaves no trace in a new directory
        self.broker.load(create_default=definitions is None)
        if definitions is not None:
            definitions.apply(self.broker, self.broker.disk)
            self._tell_whom_it_lacks()
        if self._log_exchange is not None:
            self._log_exchange.start()
        self.broker.chain.start()
        self.mqtt.start()
        self._open_amqp()
        self._open_mqtt()
        self._open_http()
        self._listen()
        self._check()
        self._look_at_disk()
        self._compact_timer = self.events.call_later(COMPACT_INTERVAL_S, self._compact)
        self.broker.is_started = True
        self.broker.disk.start()
        if integrity is not None and not integrity.is_running:
            integrity.start()
        _log.info("Finished startup in %.3fs", time.monotonic() - started)
        # Once the loop turns: a signal that comes before would not be heard.
        self.events.call_soon(self._tell_ready)
        self.events.call_soon(self.shovels.start)
        self.events.call_soon(self.federation.start)
        self.service.start_watchdog(self.events)

    def _tell_whom_it_lacks(self) -> None:
        """Definitions take the place of the default user and virtual host, and may have none."""
        lacks = []
        if not self.broker.users.all() and "oauth" not in self.config.auth_backends:
            lacks.append("user")
        if not self.broker.vhosts:
            lacks.append("virtual host")
        if lacks:
            _log.warning(
                "no client can connect: there is no %s: with 'load_definitions' in [main] nothing"
                " is made by default. Put them into the file, or use `lavinmqctl add_user` and"
                " `add_vhost`", " and no ".join(lacks),
            )  # fmt: skip

    def _secure_what_is_there(self) -> None:
        """Have on disk what the start is going to read: the last process may have died before it
        synced, and whoever finds a thing there is answered without another sync. Raises: OSError.
        """
        config = self.config
        if not os.path.exists(os.path.join(config.data_dir, vhosts_file.FILE_NAME)):
            return
        others = file_systems.others(config.data_dir)
        for path in others:
            _log.notice(
                "%s is on another file system than the data directory: files are synced one by one",
                path,
            )
        if others:
            self.broker.loop.sync_one_by_one()
        if config.sync:
            for path in (config.data_dir, *others):
                _core.sync_file_system(path)

    def _open_amqp(self) -> None:
        """Bind the listeners for AMQP. Raises: OSError."""
        config = self.config
        places = Places(
            config.amqp_bind, config.amqp_port, config.amqp_tls_port, config.amqp_unix_path
        )
        passed = self.service.take_sockets(config.amqp_systemd_socket_name)
        for listener in listeners(
            self, places, passed, "amqp", self._welcome_client, self.broker.newcomers
        ):
            self.listeners.append(listener)
            protocol = "amqps" if listener.is_tls else "amqp"
            self.broker.listening.append(Listening(listener.name, protocol, listener.is_tls))

    def _open_mqtt(self) -> None:
        """Bind the listeners for MQTT. Raises: OSError."""
        config = self.config
        places = Places(
            config.mqtt_bind, config.mqtt_port, config.mqtt_tls_port, config.mqtt_unix_path
        )
        passed = self.service.take_sockets(config.mqtt_systemd_socket_name)
        for listener in listeners(
            self, places, passed, "mqtt", self.mqtt.welcome, self.broker.newcomers
        ):
            self.listeners.append(listener)
            protocol = "mqtts" if listener.is_tls else "mqtt"
            self.broker.listening.append(Listening(listener.name, protocol, listener.is_tls))

    def _listen(self) -> None:
        """Let clients come. Raises: OSError."""
        for listener in self.listeners:
            listener.start()
            kind = listener.protocol.upper() + ("S" if listener.is_tls else "")
            _log.info("Listening for %s on %s", kind, listener.name)
        for http in self.http:
            http.start()
            kind = "HTTPS" if http.is_tls else "HTTP"
            _log.info("Listening for %s on %s", kind, http.name)
        for name in self.service.names:
            _log.warning("socket %r of systemd is not used: no setting names it", name)
        config = self.config
        if config.tcp_proxy_protocol and not config.proxy_protocol_trusted_sources:
            _log.warning("PROXY headers of every client are believed: there are no trusted sources")

    def _tell_ready(self) -> None:
        names = ", ".join(listener.name for listener in self.listeners)
        self.service.ready(f"Listening on {names}" if names else "Listening nowhere")

    def _open_http(self) -> None:
        """Bind what answers HTTP, if anything does: the library for it costs memory."""
        config = self.config
        is_tls = config.https_port >= 0 and self.tls.is_enabled
        is_passed = config.http_systemd_socket_name in self.service.names
        wanted = (config.http_port >= 0, config.metrics_http_port >= 0, is_tls, is_passed)
        if not any((*wanted, config.http_unix_path, config.control_unix_path)):
            return
        from lavinmq.http.listeners import bound

        passed = self.service.take_sockets(config.http_systemd_socket_name)
        for listener in bound(self.broker, self, passed):
            self.http.append(listener)
            self.broker.services.add(listener.service)
            if listener.origin is not Origin.CONTROL:
                place = Listening(listener.name, listener.protocol, listener.is_tls)
                self.broker.listening.append(place)

    def _look_at_disk(self) -> None:
        """Every few seconds: hold publishers while the disk is short of space, sample rates."""
        broker = self.broker
        broker.loop.is_low = self._disk.is_low()
        if self.http:
            broker.sampler.sample(self.config.stats_log_size)
            broker.system.sample(broker.sampler.samples)
            broker.latency.sample(broker.sampler.samples)
        interval_s = self.config.stats_interval / 1000
        self._disk_timer = self.events.call_later(interval_s, self._look_at_disk)

    def _compact(self) -> None:
        """Every half minute: give back disk space that a few old messages hold, in one queue after
        the other."""
        in_portions(self.events.call_soon, self._compactions(self._tidied()))

    def _tidied(self) -> Iterator[_core.Queue]:
        """All queues; streams also write anew, or cut, what has grown longer than it need be."""
        for vhost in list(self.broker.vhosts.values()):
            for queue in list(vhost.queues.values()):
                if queue.is_stream:
                    self.broker.stored_offsets.look(queue)
                    queue.core.finish_segments()
                yield queue.core

    def _compactions(self, queues: Iterator[_core.Queue]) -> Iterator[None]:
        """Look for one that is worth it; when it is done, look for the next."""
        for queue in queues:
            if queue.compact(partial(self._compact_next, queues)):
                return
            yield
        self._compact_timer = self.events.call_later(COMPACT_INTERVAL_S, self._compact)

    def _compact_next(self, queues: Iterator[_core.Queue]) -> None:
        in_portions(self.events.call_soon, self._compactions(queues))

    def _check(self) -> None:
        """Heartbeats and time-outs: each connection has its turn about once a second, or when its
        heartbeat is due."""
        pause_s = 0.0 if self.broker.loop.check_links() else CHECK_INTERVAL_S
        self._check_timer = self.events.call_later(pause_s, self._check)

    def _welcome_client(self, sock: socket.socket, ends: Endpoints) -> None:
        self.broker.welcome(Connection(self.broker, sock, ends))

    # --- stop ---------------------------------------------------------------------------------

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop in order; a second call ends at once, as a failure.

        Args: timeout_s: how long clients may take to answer.
        """
        if self.broker.is_stopping:
            _log.warning("Stopping at once")
            self._end("stopped before everything was written out")
            return
        self.broker.is_stopping = True
        _log.info("Stopping")
        self.service.stopping()
        self._close_listeners()
        if self.shovels.is_idle and self.federation.is_idle:
            self._stop_clients(timeout_s)
        else:
            self._stopping = self.events.create_task(self._stop_movers(timeout_s))

    async def _stop_movers(self, timeout_s: float) -> None:
        """What moves messages ends first: acknowledgements under way are still taken."""
        await asyncio.gather(self.shovels.close(), self.federation.close())
        self._stop_clients(timeout_s)

    def _stop_clients(self, timeout_s: float) -> None:
        self._stop_timer = self.events.call_later(timeout_s, self._cut)
        connections = list(self.broker.connections)
        for connection in connections:
            connection.close(ReplyCode.CONNECTION_FORCED, "Broker shutdown")
        if not connections:
            # Else the last one to go says so, maybe already: one in its handshake goes at once.
            self._finish()

    def _close_listeners(self) -> None:
        self.broker.listening.clear()
        self.broker.services.clear()
        while self.http:
            self.http.pop().close()
        while self.listeners:
            self.listeners.pop().close()

    def _cut(self) -> None:
        for connection in list(self.broker.connections):
            connection.on_lost("no answer to connection.close")

    def _finish(self) -> None:
        """All clients are gone: write everything out."""
        broker, failure = self.broker, ""
        if self._log_exchange is not None:
            self._log_exchange.stop()
        self.mqtt.stop()
        broker.disk.stop()
        broker.loop.tick()
        try:
            broker.loop.finish()
        except OSError as error:
            failure = f"Cannot sync {error.filename}: {error.strerror}"
            self.has_sync_failed = True
            _log.error("%s", failure)
        self.mqtt.close()
        broker.loop.stop()
        is_whole = not any(vhost.has_closed_streams for vhost in broker.vhosts.values())
        for vhost in broker.vhosts.values():
            try:
                vhost.close()
            except (OSError, DefinitionsError) as error:
                failure = f"vhost {vhost.name!r}: {error}"
                _log.error("%s", failure)
        self.is_stopped = is_whole and not failure and not self.failure
        _log.info("Stopped")
        self._end(failure)

    def _end(self, failure: str) -> None:
        """Leave the loop; the first failure counts."""
        self.failure = self.failure or failure
        self.events.stop()

    def cut(self) -> None:
        """Serve nobody from now on, and move nothing, without telling anybody: it has failed.
        Idempotent."""
        if not self.events.is_closed():
            # At a source of elsewhere, they would take and acknowledge what is another one's now.
            self.shovels.cut()
            self.federation.cut()
        self._close_listeners()
        self.mqtt.release()
        while self.broker.connections:
            self.broker.connections.popitem()[0].abandon()

    def release(self) -> None:
        """Let go of all that is still held, without writing or sending anything. Idempotent."""
        broker = self.broker
        if self._stopping is not None:
            self._stopping.cancel()
        if not self.events.is_closed():
            # After a failure nothing is confirmed any more, and nothing is waited for.
            time_s = HURRIED_S if self.failure else STOP_S
            if not self.shovels.is_idle:
                self.events.run_until_complete(self.shovels.close(time_s))
            if not self.federation.is_idle:
                self.events.run_until_complete(self.federation.close(time_s))
            self.events.run_until_complete(broker.chain.stop())
        for timer in (self._stop_timer, self._check_timer, self._disk_timer, self._compact_timer):
            if timer is not None:
                timer.cancel()
        if self._log_exchange is not None:
            self._log_exchange.stop()
        self.service.close()
        self.cut()
        broker.disk.stop()
        broker.loop.stop()
        for vhost in broker.vhosts.values():
            vhost.abandon()

    def reload(self) -> None:
        """Read the configuration again (SIGHUP) and take over what may change while running, if all
        of it is good. Source: docs/configuration.md."""
        self.service.reloading()
        self._n_reloads += 1
        in_portions(self.events.call_soon, self._reload(self._n_reloads))

    def _reload(self, number: int) -> Iterator[None]:
        """Check everything, then take it over. A context of TLS is built in each step; a newer
        reload overtakes this one."""
        was_enabled = self.tls.is_enabled
        try:
            fresh = load(self.config.argv, os.environ)
            contexts = self.tls.anew(fresh)
            for _ in contexts.loading():
                yield
                if number != self._n_reloads:
                    return
            log.setup(fresh.log_level, fresh.log_file, os.environ, fresh.log_format)
        except (ConfigError, OSError) as error:
            _log.warning("Configuration not reloaded: %s", error)
            self._tell_ready()
            return
        self.tls.take(contexts)
        self._take_over(fresh)
        if bool(self.config.tls_cert) != was_enabled:
            _log.warning("A restart is needed for: turning TLS on or off")
        self._tell_ready()

    def _take_over(self, fresh: Config) -> None:
        """Take the values that may change while running, and say which have changed."""
        changes = self.config.take_live(fresh)
        self.broker.take_settings()
        self.broker.loop.is_low = self._disk.is_low()
        _log.info("Configuration reloaded, changed: %s", ", ".join(changes.live) or "nothing")
        for warning in fresh.warnings:
            _log.warning("%s", warning)
        for line in fresh.ignored:
            _log.debug("%s", line)
        if changes.waiting:
            _log.warning("A restart is needed for: %s", ", ".join(changes.waiting))

    def tell_state(self) -> None:
        """Log what the process holds and what it is waiting for (SIGUSR1)."""
        numbers = {"resident": system.memory_used(), **system.heap()}
        _log.info("Memory: %s", " ".join(f"{name}={value}" for name, value in numbers.items()))
        _log.info(
            "%d connections, %d virtual hosts, %d queues",
            len(self.broker.connections), len(self.broker.vhosts),
            sum(len(vhost.queues) for vhost in self.broker.vhosts.values()),
        )  # fmt: skip
        for task in asyncio.all_tasks(self.events):
            _log.info("Task %s: %s", task.get_name(), task.get_coro())

    def collect_garbage(self) -> None:
        """Run the garbage collector and give memory back to the system (SIGUSR2)."""
        self.broker.chain.tasks.start(system.collect())
        _log.info("Collecting garbage")

    def _fatal(self, path: str, error: int) -> None:
        """A sync failed: stop, because what is on disk is not known any more."""
        failure = f"Cannot sync {path}: {os.strerror(error)}"
        _log.fatal("%s. Stopping; nothing was confirmed that is not on disk", failure)
        self.has_sync_failed = True
        self._end(failure)


def boot_file(config: Config) -> BootFile | None:
    """The definitions to import at a start, if any, read and checked. Raises: DefinitionsError."""
    if not config.load_definitions:
        return None
    from lavinmq.definitions_json.boot import BootFile  # few need it

    try:
        return BootFile(
            config.load_definitions, Path(config.data_dir), TableBounds.of(config),
            skip_if_unchanged=config.load_definitions_skip_if_unchanged,
        )  # fmt: skip
    except DefinitionsError as error:
        raise DefinitionsError(f"{error} ('load_definitions' in [main])") from error


@contextmanager
def opened(
    config: Config, events: asyncio.AbstractEventLoop, *, wait: bool = True,
    service: Service | None = None,
) -> Iterator[Server]:  # fmt: skip
    """A broker to start on `events`, on its locked data directory; released at the end.

    Args: wait: whether to wait for a directory that another broker has locked; service: see Server.
    Raises: DataDirError, OSError; StoppedWaiting.
    """
    with DataDir(
        config.data_dir, lock=config.data_dir_lock, wait=wait, access=config.data_dir_access
    ) as data_dir:
        leave_cluster(config.data_dir)
        integrity = Integrity.of(config, data_dir, lazy=True)
        server = Server(config, events, service, is_clean=data_dir.is_clean, integrity=integrity)
        try:
            yield server
        finally:
            server.release()
            if integrity is not None:
                integrity.close(is_orderly=server.is_stopped)
        if server.is_stopped:
            data_dir.stopped()


def run(config: Config) -> int:
    """Run a broker until a signal tells it to stop. Returns: the exit code."""
    events = new_events()
    try:
        with opened(config, events, service=Service(os.environ)) as server:
            follow_signals(server, events)
            server.start()
            spare_collections()
            events.run_forever()
            return 1 if server.failure else 0
    except DataDirError as error:
        _log.error("%s", error)
        return error.exit_code
    except (DefinitionsError, OSError) as error:
        _log.error("Cannot start: %s", error)
    return 1


def new_events() -> asyncio.AbstractEventLoop:
    """The event loop of a process that is a broker, which gets what it needs of the system."""
    import uvloop

    few = descriptors.raise_limit()
    if few is not None:
        _log.warning("Only %d file descriptors are allowed: raise the limit", few)
    descriptors.widen_table()
    _core.map_large_blocks()
    return uvloop.new_event_loop()


class Signalled(Protocol):
    """What signals are for."""

    def stop(self) -> None:
        """SIGTERM, SIGINT."""

    def reload(self) -> None:
        """SIGHUP."""

    def tell_state(self) -> None:
        """SIGUSR1."""

    def collect_garbage(self) -> None:
        """SIGUSR2."""


def follow_signals(server: Signalled, events: asyncio.AbstractEventLoop) -> None:
    """Have signals do as documented, once `events` runs.

    Those that come before are kept until then: uvloop would forget them, and a broker that is told
    to stop while it starts would go on.
    """
    handlers = {
        signal.SIGTERM: server.stop,
        signal.SIGINT: server.stop,
        signal.SIGHUP: server.reload,
        signal.SIGUSR1: server.tell_state,
        signal.SIGUSR2: server.collect_garbage,
    }
    early: list[int] = []

    def follow() -> None:
        for number, handler in handlers.items():
            events.add_signal_handler(number, handler)
        for come in early:
            handlers[signal.Signals(come)]()

    for number in handlers:
        signal.signal(number, lambda number, frame: early.append(number))
    events.call_soon(follow)


def spare_collections() -> None:
    """Have the garbage collector look seldom, and never at what was there at the start: a full pass
    over thousands of connections and queues holds up messages for tens of milliseconds."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    gc.enable()
