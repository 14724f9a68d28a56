"""The broker as sessions, HTTP and imports of definitions know it: what is served, and to whom.

Holds users, virtual hosts, parameters, the message path's loop, numbers and open sessions. It knows
no protocol, no listener and no timer: those are the business of `server.py`, which makes it, starts
it and stops it. Source: decision 0049.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lavinmq import _core
from lavinmq.auth import revocation
from lavinmq.auth.accounts import Accounts
from lavinmq.auth.chain import Chain
from lavinmq.auth.identity import Identity
from lavinmq.auth.revocation import Revocation
from lavinmq.auth.sessions import Sessions
from lavinmq.auth.users import UserStore
from lavinmq.config.values import Config
from lavinmq.errors import ReplyCode
from lavinmq.files import vhosts as vhosts_file
from lavinmq.files.saving import Disk, gathered
from lavinmq.listeners.endpoints import Endpoints
from lavinmq.listeners.newcomers import Newcomers
from lavinmq.policy.limits import UserLimits
from lavinmq.policy.parameters import ParameterStore
from lavinmq.process.alike import Alike
from lavinmq.stats import totals
from lavinmq.stats.churn import Churn
from lavinmq.stats.histogram import Histogram
from lavinmq.stats.lags import Lags
from lavinmq.stats.latency import Latency
from lavinmq.stats.sampler import Sampler, Tracked
from lavinmq.stats.system import System, memory_limit
from lavinmq.vhost.bindings import BindingLimits
from lavinmq.vhost.stored_offsets import StoredOffsets
from lavinmq.vhost.vhost import VHost
from lavinmq.vhost.vhosts import VHosts

if TYPE_CHECKING:
    from lavinmq.client.rounds import Rounds
    from lavinmq.client.sockets import Sockets
    from lavinmq.integrity.keeper import Integrity
    from lavinmq.vhost.exchange import Exchange
    from lavinmq.vhost.queue import Queue

MIN_LARGE: Final = 64 << 20


class Channel(revocation.Channel, Tracked, Protocol):
    """One of the conversations that a session carries."""


class Session(revocation.Session, totals.Session, Protocol):
    """A client, from its first byte to its last, whatever protocol it speaks."""

    @property
    def channels(self) -> Mapping[int, Channel]:
        """By number."""

    @property
    def user(self) -> Identity:
        """Who it is, once it has logged in."""

    def start(self) -> None:
        """Begin to read."""

    def close(self, code: ReplyCode, text: str) -> None:
        """Tell the client that it is over, and wait for its answer."""

    def on_lost(self, why: str) -> None:
        """It is over, whether the client knows or not."""

    def abandon(self) -> None:
        """Let go of everything without telling anybody."""


class Mqtt(Protocol):
    """Who has the sessions of MQTT; `lavinmq.mqtt.service`."""

    def known(self, vhost: VHost) -> object | None:
        """The sessions of a virtual host, for who knows what they are."""


class Follower(Protocol):
    """Who moves messages for parameters; `lavinmq.shovel.shovels`."""

    def follow(self, vhost: VHost) -> None:
        """Parameters of a virtual host have changed, or it has gone."""


class Federation(Follower, Protocol):
    """Who brings messages of other brokers; `lavinmq.federation.links`."""

    def look(self, vhost: VHost, resource: Exchange | Queue) -> None:
        """An exchange or queue is new, has other features, or is gone."""


class Cluster(Protocol):
    """What is known of the cluster that this broker leads; `lavinmq.cluster.status`."""

    def status(self) -> dict[str, Any]:
        """All of it, as JSON."""

    def followers(self) -> list[dict[str, Any]]:
        """Who follows, by LavinMQ's names."""

    def place(self) -> tuple[int, int]:
        """The epoch, and the position behind the last change."""

    async def forget(self, node: str) -> str:
        """Count a node no more. Returns: why not, empty if it is so now. Raises: OSError."""

    async def recovery(self) -> dict[str, Any]:
        """What it would mean to go on without nodes that are lost, as JSON. Raises: OSError."""

    async def recover(self, seen: Any) -> str:
        """Go on without them. Args: seen: of what was shown. Returns: why not, empty if it is so
        now. Raises: OSError."""

    def transfer(self) -> str:
        """Have another node lead. Returns: why not, empty if it is going to."""


class Service(Protocol):
    """What serves clients that are no sessions."""

    @property
    def n_open(self) -> int:
        """How many connections are open."""


class Listening(NamedTuple):
    """Where clients may come, an address or a path, and what is spoken there."""

    name: str
    protocol: str
    is_tls: bool


class Broker:
    """Everything that is served on one event loop.

    Args:
        config: the values in force.
        events: the loop that runs it.
        on_failure: hears of a file that could not be synced, and of the number of the error.
        on_empty: is called when the broker stops and the last session has gone.
        is_clean: whether an orderly stop has synced all that is in the data directory.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop,
        on_failure: Callable[[str, int], None], on_empty: Callable[[], None], *,
        is_clean: bool = False,
    ) -> None:  # fmt: skip
        self.is_started = self.is_stopping = False
        self.is_backed_up = False
        """Whether a backup is being made."""
        self._is_clean = is_clean
        self._on_empty = on_empty
        self.config = config
        self.events = events
        data_dir = Path(config.data_dir)
        self.disk = Disk(events, on_failure)
        self.users = UserStore(
            data_dir, config.default_user, config.default_password_hash,
            config.default_user_only_loopback, config.default_password_plain, self.disk,
        )  # fmt: skip
        self.chain = Chain(config, self.users, events)
        self.stored_offsets = StoredOffsets(self.disk, self.chain.tasks)
        self.user_limits = UserLimits(data_dir / "user_limits.json", self.disk)
        self.parameters = ParameterStore(
            data_dir / "parameters.json", is_global=True, disk=self.disk
        )
        self.vhosts = VHosts(data_dir, self.users, self._new_vhost, events.call_soon, self.disk)
        # In the order of their coming, which lists keep from one page to the next.
        self.connections: dict[Session, None] = {}
        self.newcomers = Newcomers()
        self.alike = Alike()
        self.revocation = Revocation(self.users, self.connections, events.call_soon)
        self.accounts = Accounts(
            self.users, self._permissions_changed, self.revocation.look_again,
            self.user_limits.forget, self.chain, config,
        )  # fmt: skip
        self.sessions = Sessions(self.users)
        self.churn = Churn()
        self.system = System(config.data_dir)
        self.started_at = time.monotonic()
        self.node_name = socket.gethostname()
        self.listening: list[Listening] = []
        """All but the control socket, which is nobody else's."""
        self.services: set[Service] = set()
        self.welcomes: dict[str, Callable[[socket.socket, Endpoints], None]] = {}
        """Who takes clients over that come inside something else, by the protocol they speak."""
        self.mqtt: Mqtt | None = None
        self.shovels: Follower | None = None
        self.federation: Federation | None = None
        self.rounds: Rounds | None = None
        """Looks after the connections of both."""
        self.sockets: Sockets | None = None
        """Those of the same connections."""
        self.cluster: Cluster | None = None
        self.refuses: Callable[[], str] | None = None
        """Says why nothing but reading streams is served; None: all is."""
        self.integrity: Integrity | None = None
        """The sums of its files; None: there are none."""
        self.loop = _core.Loop(events, config.data_dir, config.sync, on_failure, self._news)
        self.disk.changes.note = partial(_core.note_change, self.loop)
        self.loop.set_max_large(memory_for_large_messages())
        self.loop.set_max_files(files_of_queues())
        self.loop.set_max_copies(config.max_copy_keys)
        self.loop.is_stamping = config.set_timestamp
        self.loop.overdue_interval_s = config.consumer_timeout_loop_interval
        self.sampler = Sampler(self._tracked, events.call_soon)
        self.lags = Lags()
        self.request_times = Histogram()
        self.latency = Latency({
            "confirm": self.loop.confirm_times, "sync": self.loop.sync_times,
            "http": self.request_times.values,
        })  # fmt: skip

    @property
    def has_copies(self) -> bool:
        """Whether other nodes have to have what is acknowledged."""
        return self.disk.copied is not None

    @property
    def is_serving(self) -> bool:
        """Whether clients can connect."""
        return self.is_started and not self.is_stopping

    def load(self, *, create_default: bool) -> None:
        """Read all that is stored, before clients are served.

        Args: create_default: whether a new data directory gets the default user and virtual host.
        Raises: DefinitionsError, OSError.
        """
        self.users.load(create_default=create_default)
        self.user_limits.load()
        self.parameters.load()
        self.vhosts.load(create_default=create_default)

    def take_settings(self) -> None:
        """Follow what may change while it runs, in `config` and already changed there."""
        self.loop.sync = self.config.sync
        for vhost in self.vhosts.values():
            vhost.operators.set_default_timeout(self.config.consumer_timeout or 0)
            vhost.bindings.limits = self._binding_limits()
        self.loop.is_stamping = self.config.set_timestamp
        self.loop.overdue_interval_s = self.config.consumer_timeout_loop_interval

    def read_again(self) -> None:
        """Have queues go on whose files could not be read: they may be right, or given up, now."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.core.read_error:
                    queue.core.is_paused = queue.core.is_paused

    async def reset(self) -> None:
        """Be as after a first start: what was declared is gone, and all clients are disconnected.

        Raises: DefinitionsError when the disk refuses.
        """
        for connection in list(self.connections):
            connection.close(ReplyCode.CONNECTION_FORCED, "Broker reset")
        for name in list(self.vhosts):
            await self.vhosts.delete(name)
        async with gathered():
            self.accounts.delete_users(*(user.name for user in self.users.all()))
            for name in self.user_limits.all():  # also of the default user, who comes again
                self.user_limits.forget(name)
            for parameter in self.parameters.all():
                self.parameters.delete(None, parameter.name)
            self.users.add_default()
            self.accounts.changed()
        await self.vhosts.create(vhosts_file.DEFAULT_VHOST)

    # --- sessions -----------------------------------------------------------------------------

    def welcome(self, connection: Session) -> None:
        """A client has connected."""
        if self.is_stopping:
            connection.abandon()
            return
        self.connections[connection] = None
        connection.start()

    def lost(self, connection: Session) -> None:
        """A connection is over."""
        self.connections.pop(connection, None)
        if connection.traffic is not None:
            link = connection.link
            connection.traffic.leave(link.received_bytes, link.sent_bytes)
        if self.is_stopping and not self.connections:
            self._on_empty()

    def connections_of(self, user: Identity) -> list[Session]:
        """The connections of a user that are open to a virtual host; each token makes another
        object of the same user."""
        name = user.name
        return [each for each in self.connections if each.is_member and each.user.name == name]

    def _permissions_changed(self, name: str | None) -> None:
        """Links remember where they may publish: they have to ask again."""
        for vhost in self.vhosts.values():
            if name in (None, vhost.name):
                vhost.core.touch()

    # --- virtual hosts ------------------------------------------------------------------------

    def _new_vhost(self, name: str) -> VHost:
        """A virtual host that is not open yet."""
        config = self.config
        vhost = VHost(
            name, Path(config.data_dir), self.loop, config.segment_size,
            config.max_deleted_definitions, config.default_consistent_hash_algorithm,
            self.events.call_soon, config.consumer_timeout or 0, self.churn,
            self.disk,
            is_clean=self._is_clean and not self.is_started, bridge=config.mqtt_exchange,
        )  # fmt: skip
        vhost.bindings.limits = self._binding_limits()
        vhost.on_links = partial(self._links_changed, vhost)
        vhost.on_resource = partial(self._resource_changed, vhost)
        return vhost

    @property
    def cluster_name(self) -> str:
        """What the operator has named it, or the node."""
        return self.given_name or self.node_name

    @property
    def given_name(self) -> str:
        """What the operator has named it; empty if nobody has. Its peers are told only that."""
        parameter = self.parameters.get(None, "cluster_name")
        value = parameter.value if parameter is not None else None
        return value if isinstance(value, str) else ""

    def _links_changed(self, vhost: VHost) -> None:
        if self.shovels is not None:
            self.shovels.follow(vhost)
        if self.federation is not None:
            self.federation.follow(vhost)

    def _resource_changed(self, vhost: VHost, resource: Exchange | Queue) -> None:
        if self.federation is not None:
            self.federation.look(vhost, resource)

    def _binding_limits(self) -> BindingLimits:
        config = self.config
        return BindingLimits(config.max_bindings_per_queue, config.max_bindings_per_vhost)

    def _news(self) -> None:
        """A store was damaged, or could not be read or written, or can be again: say which."""
        for vhost in self.vhosts.values():
            vhost.report()

    def _tracked(self) -> Iterator[Tracked]:
        """Everything whose rates are shown."""
        yield self.churn
        yield from totals.sampled(
            self.vhosts.values(), self.connections, self.lags, lambda: self.sampler.samples
        )


def memory_for_large_messages() -> int:
    """Bytes of memory that messages too large for pooled blocks may take, all together: a quarter
    of what there is, of the machine or of the control group that bounds us."""
    return max(memory_limit() // 4, MIN_LARGE)


def files_of_queues() -> int:
    """Descriptors that queues may keep open between their uses: half of what we may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2
