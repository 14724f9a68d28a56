"""A node of a cluster from its start to its end: follows who leads, and leads when nobody does.

Longer than 500 lines: whatever ends a node, or changes what it is, is decided here.
A node that leads never follows again: it ends, and is started anew. Exit codes are the original's:
3: it leads no more, or may not; 5: no etcd answers; 36: it cannot follow; 1: its disk has failed.
Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq._cluster import Feed, Ring
from lavinmq.cluster import control, places, speech
from lavinmq.cluster.certificates import Certificates
from lavinmq.cluster.control import elsewhere
from lavinmq.cluster.coordinator import Coordinator, Leader
from lavinmq.cluster.elections import DEAD, GONE, MADE_WAY, STOPPED
from lavinmq.cluster.etcd import EtcdError, NoLease, Unreachable
from lavinmq.cluster.following import Following
from lavinmq.cluster.frames import PeerError
from lavinmq.cluster.history import History
from lavinmq.cluster.hooks import run_hook
from lavinmq.cluster.identity import node_id
from lavinmq.cluster.joining import finish
from lavinmq.cluster.leading import Leading, listening
from lavinmq.cluster.lease import MARGIN_S, Ending, kept_meanwhile
from lavinmq.cluster.orders import Orders
from lavinmq.cluster.probes import Probes
from lavinmq.cluster.proxy import Proxy, Target
from lavinmq.cluster.reads import Reads, is_wanted
from lavinmq.cluster.recovery import Recovery
from lavinmq.cluster.standby import Standby
from lavinmq.cluster.status import Status
from lavinmq.errors import DefinitionsError
from lavinmq.files.standing import Standing
from lavinmq.process import log
from lavinmq.server import Server, spare_collections

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.integrity.keeper import Integrity
    from lavinmq.process.systemd import Service
    from lavinmq.stats.histogram import Values

RING_BYTES: Final = 64 << 20
CHECK_S: Final = 0.1
BEAT_S: Final = 0.5
SILENT_S: Final = 1.5
"""After which etcd is asked whether a leader, which says something each second, renews its
lease."""
AGAIN_S: Final = 0.5
ANSWER_S: Final = 0.1
RANK_S: Final = 0.03
"""How long others have to say that they have more."""
YIELD_S: Final = 0.3
STALLED_S: Final = 10.0
LOAD_S: Final = 300.0
"""How long the loop may stand still while a leader loads its data, before systemd ends it; as the
unit has it for the start of a broker alone (packaging/systemd/lavinmq.service)."""
FIRST_PROGRESS_S: Final = 1.0
PROGRESS_S: Final = 5.0
HAND_OVER_AGAIN_S: Final = 2.0
MOST_PROXIED: Final = 60_000
LOST, NO_ETCD, CANNOT_FOLLOW = 3, 5, 36
_log = log.get("lmq.cluster")


class NodeError(Exception):
    """The node ends; the text says why, for people."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Node:
    """One node on one event loop, which it stops when it has ended.

    Args: is_clean: whether an orderly stop was the last that happened to the data directory, which
        is locked; integrity: the sums of its files, which whoever has made them closes.
    Raises: ValueError, OSError, DataDirError.
    """

    exit_code: int
    server: Server | None
    """While it leads."""

    is_stopped: bool
    """Whether it has stopped in order, and all that it had is on disk."""

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop, service: Service, *,
        is_clean: bool, integrity: Integrity | None = None,
    ) -> None:  # fmt: skip
        self.exit_code = 0
        self.server = None
        self.is_stopped = False
        self._config = config
        self._events = events
        self._root = config.data_dir
        self._service = service
        self.me = node_id(self._root)
        self._standing = Standing(self._root)
        self._is_known = self._standing.load()
        self._integrity = integrity
        finish(self._root, self._standing, integrity)
        if integrity is not None:
            integrity.on_damage = lambda _: events.call_soon_threadsafe(self._found_damage)
            integrity.on_sync_failed = lambda path, error: events.call_soon_threadsafe(
                self._disk_failed, f"{path}: {os.strerror(error)}"
            )
        self._history, position = History(), 0
        if is_clean and self._standing.position:
            with suppress(PeerError):
                self._history = History.of_json(self._standing.history)
                position = self._standing.position
        self._ring = Ring(RING_BYTES, position)
        self._uri = config.clustering_advertised_uri or places.default_uri(config)
        self._certificates = Certificates(config) if config.clustering_tls_cert else None
        self._etcd = places.etcd(config)
        self._coordinator = Coordinator(
            self._etcd, config.clustering_etcd_prefix, self.me, places.told(config, self._uri)
        )
        self._lease = 0
        self._deadline = 0.0
        self._ending = Ending(self._etcd.time_left)
        self._secret = b""
        self._cluster = ""
        """What the files of this cluster's nodes are known by."""
        self._following: Following | None = None
        self._leading: Leading | None = None
        self._proxy: Proxy | None = None
        self._reads = Reads(
            config, events, self._ring, lambda: self._following, self._only_reads, integrity
        ) if is_wanted(config) else None  # fmt: skip
        self._standby = Standby(
            config, events, service, self._ring, lambda: self._following, integrity
        ) if config.clustering_hot_standby else None  # fmt: skip
        self._status = Status(
            self._coordinator, self._ring, config.clustering_min_insync_replicas,
            is_whole=lambda: self._standing.is_good, may_lead=self._may_lead,
            leading=lambda: self._leading, following=lambda: self._following, integrity=integrity,
            reads=self._reads, standby=self._standby, tls=places.tls(config),
        )  # fmt: skip
        self._recovery = Recovery(
            self._coordinator, config.clustering_min_insync_replicas, self._stands,
            self._n_damaged,
        )  # fmt: skip
        served = control.application(
            config, self._status.status, self._recovery,
            lambda: elsewhere(self._coordinator.state, self.me), integrity,
        )  # fmt: skip
        self._probes = Probes(config, events, self._status.status, served, self._sync_times)
        self._dead = ""
        """Key of a leader at whose address there is nobody."""
        self._heard, self._heard_at = -1, 0.0
        """Up to which position this node has heard of its leader, and when it saw that."""
        self._yields_until = 0.0
        self._yielded_in = 0
        self._orders: Orders | None = None
        self._why_not: str | None = None
        """Why no other node leads in the place of this one, whose files are damaged."""
        self._changed = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._is_stopping = self._makes_way = self._is_over = False
        self._has_peers = False

    def _sync_times(self) -> Values | None:
        """How long syncs took that the leader waits for; None: this node follows nobody."""
        follower = None if self._following is None else self._following.follower
        return None if follower is None else follower.sync_times()

    # --- from start to end --------------------------------------------------------------------

    def start(self) -> None:
        """Begin, once the loop turns."""
        _log.info("node %s of the cluster %r", self.me, self._config.clustering_etcd_prefix)
        if self._config.clustering_tls_optional:
            _log.warning("TLS between nodes is optional: take 'tls_optional' in [clustering] out"
                         " when all nodes have certificates")  # fmt: skip
        self._service.start_watchdog(self._events)
        self._main = self._events.create_task(self._run())
        self._main.add_done_callback(self._over)

    async def _run(self) -> None:
        """Raises: NodeError, maybe in a group."""
        spare_collections()  # it may follow for weeks
        try:
            self._probes.start()
        except OSError as error:
            raise NodeError(str(error.strerror), CANNOT_FOLLOW) from None
        await self._look_at_files()
        await self._join_cluster()
        self._service.ready("Waits for a leader")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_lease())
            group.create_task(self._watch())
            group.create_task(self._decide())
            group.create_task(self._note_progress())
            group.create_task(self._beat())
            if self._reads is not None:
                group.create_task(self._reads.run())
            if self._standby is not None:
                group.create_task(self._standby.run())

    async def _look_at_files(self) -> None:
        """Compare what was changed while this node was away with its sums, before it says that its
        files are whole."""
        if self._integrity is None:
            return
        try:
            if self._standing.is_whole:
                await self._events.run_in_executor(None, self._integrity.first_look)
        except OSError as error:
            _log.error("the files could not be compared with their sums: %s", error)
        if len(self._integrity.damages):
            self._found_damage()
        self._integrity.start()

    def _found_damage(self) -> None:
        """Some files are damaged: this node does not lead, and gets them from who does."""
        try:
            self._standing.note_damage(is_damaged=True)
        except OSError as error:  # this life knows it all the same
            _log.error("damage could not be noted: %s", error)
        if self._following is not None:
            self._following.again()

    def _over(self, main: asyncio.Task[None]) -> None:
        """It has failed, or was cancelled because the node stops."""
        error = None if main.cancelled() else main.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, NodeError):
            self._end(str(error), error.exit_code)
        elif error is not None:
            _log.error("a mistake of the node's own", exc_info=error)
            self._end("a mistake of its own", 1)

    def _end(self, why: str, exit_code: int) -> None:
        """End, without writing or acknowledging anything more."""
        if not (self._is_stopping or self._makes_way or self._is_over):
            _log.fatal("%s. Stopping", why)
        self.exit_code = self.exit_code or exit_code
        if self.server is not None:
            self.server.failure = self.server.failure or why
        self._leave_loop()

    def stop(self) -> None:
        """Stop in order; who asks for that twice has it at once."""
        if self.server is not None:
            if self._is_stopping or not self.server.broker.is_stopping:
                self.server.stop()
        elif not self._is_stopping:
            _log.info("Stopping")
            self._service.stopping()
            self._leave_loop()
        self._is_stopping = True

    def _leave_loop(self) -> None:
        """Have the main run end; who is about to let go of everything goes on with that."""
        if not self._is_over:
            self._events.stop()

    async def release(self) -> None:
        """The loop has ended its main run: leave the cluster in order, or just let go."""
        self._is_over = True
        server, leading = self.server, self._leading
        if server is not None and server.failure:
            server.cut()  # what comes here may wait for an etcd that does not answer
        self._probes.close()
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait([self._main])
        if self._reads is not None:
            await self._reads.close("this node stops")
        if self._standby is not None:
            await self._standby.stop()
            self._standby.close()
        is_orderly = server is None or not server.failure
        if leading is not None:
            if is_orderly:
                await leading.hand_over()
            if time.monotonic() < self._deadline:
                why = server.failure if server is not None else ""
                # Before anybody finds that there is nobody at its address.
                await self._coordinator.note_end(why or (MADE_WAY if self._makes_way else STOPPED))
            leading.close()
        if self._following is not None:
            await self._unfollow()
        if self._proxy is not None:
            await self._proxy.close()
        self._note_end(is_orderly=is_orderly)
        if self._makes_way:
            self.exit_code = self.exit_code or LOST
        if self._lease:
            with suppress(EtcdError):
                await self._etcd.revoke(self._lease)
        await self._etcd.close()

    def _note_end(self, *, is_orderly: bool) -> None:
        """Note how the files stand that nobody changes any more."""
        server, leading = self.server, self._leading
        if is_orderly and not self.exit_code and self._standing.is_whole and self._history.epoch:
            head = self._ring.head if leading is None else leading.head
            with suppress(OSError):
                self._standing.note(is_whole=True, position=head, history=self._history.to_json())
                self.is_stopped = server is None or server.is_stopped
        if server is not None and server.has_sync_failed and self._coordinator.state.in_sync[1:]:
            with suppress(OSError):  # what it reads may not be on disk; others have it
                self._standing.note(is_whole=False)

    def _make_way(self) -> None:
        """Stop in order, as a node that leads no more, so that it is started anew; whoever has
        asked for that gets an answer first. Nobody's stop is at once because of this one."""
        if not self._makes_way:
            self._makes_way = True
            self._events.call_later(ANSWER_S, self._stop_once)

    def _stop_once(self) -> None:
        if self.server is not None and not self.server.broker.is_stopping:
            self.server.stop()

    def reload(self) -> None:
        """Read the configuration again; a follower has nothing that may change."""
        if self.server is not None:
            self.server.reload()

    def tell_state(self) -> None:
        """Log what the process is waiting for."""
        state = self._coordinator.state
        _log.info("node %s, epoch %d, led by %s, in sync: %s", self.me, state.epoch,
                  state.epoch_leader, ", ".join(state.in_sync))  # fmt: skip
        if self.server is not None:
            self.server.tell_state()

    def collect_garbage(self) -> None:
        """Give memory back to the system."""
        if self.server is not None:
            self.server.collect_garbage()

    # --- etcd ---------------------------------------------------------------------------------

    async def _join_cluster(self) -> None:
        """Raises: NodeError."""
        try:
            why = await self._register()
            if why:
                _log.warning("%s: waiting for it to go", why)
                await asyncio.sleep(self._deadline + MARGIN_S - time.monotonic() + 2)
                why = await self._register()
            if why:
                raise NodeError(why, LOST)
            self._secret = await self._coordinator.secret()
            await self._coordinator.look()
            self._begin_standing()
        except OSError as error:
            raise NodeError(f"the disk has failed: {error.strerror}", 1) from None
        except Unreachable as error:
            raise NodeError(str(error), NO_ETCD) from None
        except EtcdError as error:
            raise NodeError(str(error), LOST) from None

    def _begin_standing(self) -> None:
        """A node that the cluster knows, and whose files do not, has lost them."""
        self._cluster = hmac.digest(self._secret, b"cluster", "sha256").hex()[:16]
        if not self._standing.cluster:
            self._standing.note_cluster(self._cluster)
        if self._is_known:
            return
        state = self._coordinator.state
        is_lost = self.me in {*state.members, *state.in_sync}
        if is_lost:
            _log.error("this node was in the cluster, and its files are gone: it does not lead")
        self._standing.note(is_whole=not is_lost)

    async def _keep_lease(self) -> None:
        """Renew the lease; a follower that has lost it gets another one."""
        ttl = self._config.clustering_lease_ttl
        while True:
            await asyncio.sleep(ttl / 4)
            if self._leading is not None and self._is_stalled():
                continue
            began = time.monotonic()
            try:
                self._renewed(began + await self._etcd.keep_alive(self._lease))
            except NoLease:
                if self._leading is not None:
                    raise NodeError("the lease by which it leads is gone", LOST) from None
                await self._again()
            except EtcdError as error:
                _log.warning("the lease is not renewed: %s", error)

    async def _again(self) -> None:
        """Another lease. Raises: NodeError."""
        with suppress(EtcdError):
            why = await self._register()
            if why:
                raise NodeError(why, LOST)

    async def _register(self) -> str:
        """Get a lease, and be there by it. Returns: why not. Raises: EtcdError: the lease is none
        of this node's."""
        began = time.monotonic()
        lease, ttl = await self._etcd.grant(self._config.clustering_lease_ttl)
        self._deadline = began + ttl - MARGIN_S
        why = await self._coordinator.register(lease)
        self._lease = lease
        return why

    def _is_stalled(self) -> bool:
        """Whether the disk makes no progress, so that another node had better lead."""
        assert self.server is not None
        since_s = self.server.broker.loop.sync_age
        if since_s > max(STALLED_S, 2 * self._config.clustering_lease_ttl):
            _log.error("the disk has not answered for %.0f s: the lease is not renewed", since_s)
            return True
        return False

    async def _watch(self) -> None:
        """Follow what etcd has."""
        while True:
            try:
                revision = await self._coordinator.look()
                self._changed.set()
                async for _ in self._coordinator.changes(revision):
                    self._changed.set()
            except EtcdError as error:
                _log.warning("etcd is not watched: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _note_progress(self) -> None:
        """While it follows, note now and then what it has at least, for a crash."""
        noted = (0, 0)
        while True:
            await asyncio.sleep(PROGRESS_S if noted[0] else FIRST_PROGRESS_S)
            following = self._following
            follower = following.follower if following is not None else None
            if following is None or follower is None or not following.is_joined:
                noted = (0, 0)
                continue
            progress = following.history.epoch, follower.synced
            if progress == noted:
                continue
            try:
                await self._events.run_in_executor(None, self._standing.note_progress, *progress)
            except OSError as error:
                _log.warning("what the files have could not be noted: %s", error.strerror)
            noted = progress

    async def _beat(self) -> None:
        """While it follows, have the leader hear so."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self._following is not None:
                self._following.beat()

    # --- decisions ----------------------------------------------------------------------------

    async def _decide(self) -> None:
        """After each change, and ten times a second: is this the right thing to do?"""
        while True:
            self._changed.clear()
            self._status.look()
            if self._leading is not None:
                self._look_at_leading(self._leading)
            else:
                await self._look_at_leader()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._changed.wait()

    def _look_at_leading(self, leading: Leading) -> None:
        """Raises: NodeError: it leads no more."""
        state = self._coordinator.state
        self._check_deadline()
        if state.epoch != leading.epoch or state.epoch_leader != self.me:
            raise NodeError(f"node {state.epoch_leader} leads in epoch {state.epoch}", LOST)
        if state.leader is None or state.leader.lease != self._lease:
            raise NodeError("etcd says that this node does not lead", LOST)
        leading.state_changed()
        self._await_peers()
        if self._standing.is_damaged and not self._makes_way:
            self._hand_over()

    def _check_deadline(self) -> None:
        """Raises: NodeError: another node may lead."""
        if time.monotonic() > self._deadline:
            raise NodeError("etcd has not renewed the lease in time, another node may lead", LOST)

    def _await_peers(self) -> None:
        """What is damaged is given up by a node that is alone; another one will lead."""
        assert self.server is not None
        state, broker = self._coordinator.state, self.server.broker
        has_peers = not {*state.members, *state.in_sync} <= {self.me}
        if has_peers != self._has_peers:
            self._has_peers = has_peers
            _core.await_peers(broker.loop, has_peers)
            broker.read_again()

    def _hand_over(self) -> None:
        """Have another node lead, whose files are not damaged; if there is none, go on."""
        if time.monotonic() < self._yields_until:
            return
        self._yields_until = time.monotonic() + HAND_OVER_AGAIN_S
        why = self._orders.transfer() if self._orders is not None else "it starts"
        if why != self._why_not:
            self._why_not = why
            _log.error("files of this node are damaged: %s", why or "another node is to lead")

    async def _look_at_leader(self) -> None:
        state = self._coordinator.state
        leader = state.leader
        try:
            if leader is None:
                await self._unfollow()
                await self._campaign()
            elif state.epoch_leader == self.me:
                await self._campaign()  # an earlier life of this node, or an answer that was lost
            elif leader.uri == self._uri:
                raise NodeError(
                    f"node {state.epoch_leader} leads by the address of this one, {self._uri}:"
                    " advertised_uri has to be another one on each node",
                    CANNOT_FOLLOW,
                )
            elif self._may_lead() and (why := await self._why_free(leader)):
                await self._campaign(why)
            else:
                await self._follow(leader)
        except EtcdError as error:
            _log.warning("cannot decide who leads: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _why_free(self, leader: Leader) -> str:
        """Why the place of a leader is free that etcd still has; empty: it is not. Raises:
        EtcdError."""
        if leader.key == self._dead:
            return DEAD
        if self._ring.head != self._heard:
            self._heard, self._heard_at = self._ring.head, time.monotonic()
        if time.monotonic() - self._heard_at < SILENT_S:
            return ""
        return GONE if await self._ending.is_over(leader.lease) else ""

    def _may_lead(self) -> bool:
        state = self._coordinator.state
        if self._standing.is_damaged and not {*state.members, *state.in_sync} <= {self.me}:
            return False  # others have what it has not
        return self._standing.is_whole and (not state.in_sync or self.me in state.in_sync)

    async def _follow(self, leader: Leader) -> None:
        """Follow who leads. Raises: NodeError."""
        if self._following is not None and self._following.uri == leader.uri:
            return
        if self._is_of_another_cluster():
            raise NodeError(
                "the files of this node are of another cluster than the one below"
                f" {self._config.clustering_etcd_prefix!r} in etcd, and would be replaced. If that"
                " is wanted remove '.clustering_state' from the data directory",
                LOST,
            )
        await self._unfollow()
        self._dead = ""

        def key() -> str:
            there = self._coordinator.state.leader
            return there.key if there is not None and there.uri == leader.uri else ""

        def dead(key: str) -> None:
            self._dead = key
            self._changed.set()

        try:
            self._following = Following(
                leader.uri, self.me, self._secret, self._ring, self._root, self._standing,
                self._history, certificates=self._certificates,
                call=self._events.call_soon_threadsafe, key=key, on_dead=dead,
                on_disk=self._disk_failed, integrity=self._integrity,
                has_readers=self._reads is not None,
            )  # fmt: skip
        except ValueError as error:
            raise NodeError(f"the leader's address: {error}", CANNOT_FOLLOW) from None
        self._following.start()
        if self._proxy is None:
            self._open_proxy()
        else:
            self._proxy.drop()

    def _is_of_another_cluster(self) -> bool:
        """Whether to follow would cost files that nobody here has: of a cluster with another etcd,
        or another prefix, or whose etcd was lost."""
        return (
            self._standing.cluster not in ("", self._cluster)
            and self.me not in self._coordinator.state.in_sync
        )

    async def _unfollow(self) -> None:
        """Change nothing any more. If this is cancelled it has to be asked for again."""
        following = self._following
        if following is not None:
            await self._events.run_in_executor(None, following.stop)
            self._following, self._history = None, following.history

    def _disk_failed(self, why: str) -> None:
        self._end(f"the disk has failed: {why}", 1)

    def _open_proxy(self) -> None:
        """Raises: NodeError."""
        self._proxy = Proxy(
            self._events, places.doors(self._config), self._target, most=MOST_PROXIED,
            config=self._config,
        )  # fmt: skip
        try:
            self._proxy.start()
        except OSError as error:
            self._proxy = None
            raise NodeError(str(error.strerror or error), CANNOT_FOLLOW) from None
        self._service.ready("Follows")

    def _target(self, protocol: str) -> Target | None:
        return places.of_leader(self._coordinator.state, self.me, protocol)

    # --- leading ------------------------------------------------------------------------------

    async def _campaign(self, why: str = DEAD) -> None:
        """Lead, unless somebody else has more or is quicker. Args: why: another node may be
        replaced that etcd still has. Raises: EtcdError, NodeError."""
        if not self._may_lead() or time.monotonic() < self._yields_until:
            return
        if time.monotonic() > self._deadline - 1:
            return  # the lease is renewed soon, or gone
        following, state = self._following, self._coordinator.state
        history = self._history if following is None else following.history
        others = set(state.in_sync) & set(state.nodes)
        if others - {self.me, state.epoch_leader}:
            await self._coordinator.offer(self._lease, history.epoch, self._ring.head)
            await asyncio.sleep(RANK_S)
            is_best = await self._coordinator.is_best(history.epoch, self._ring.head)
            if not is_best and self._yielded_in != state.epoch:
                # Once: who has more may not be able to lead.
                self._yielded_in = state.epoch
                self._yields_until = time.monotonic() + YIELD_S
                return
        await self._unfollow()
        try:
            # Before it leads: nobody may find that there is nobody at the address of who leads.
            config = self._config
            sock = listening(config.clustering_bind, config.clustering_port)
        except OSError as error:
            raise NodeError(str(error.strerror), CANNOT_FOLLOW) from None
        is_leader = False
        try:
            if self._may_lead():
                is_leader = await self._coordinator.take_over(state, self._lease, self._uri, why)
        finally:
            if not is_leader:
                sock.close()
        if is_leader:
            await self._lead(sock)

    async def _lead(self, sock: socket.socket) -> None:
        """Be the broker. Raises: NodeError."""
        config, epoch = self._config, self._coordinator.state.epoch
        _log.notice("leads from now on, in epoch %d", epoch)
        run_hook(config.clustering_on_leader_elected)
        if self._proxy is not None:
            await self._proxy.close()
            self._proxy = None
        await self._recovery.answered()
        self._probes.close()
        if self._reads is not None:
            await self._reads.close("this node leads from now on")
        with suppress(OSError):  # it is asked for when this node follows
            self._standing.note_cluster(self._cluster)
        self._history.begin(epoch, self._ring.head)
        feed = Feed(self._ring)
        gc.disable()  # until it has started, as where there is no cluster
        server = self.server = await self._made_server()
        broker = server.broker
        self._await_peers()
        _core.observe_copies(broker.loop, self._root, feed.note, feed.address)
        broker.loop.wait_for_copies(feed.fileno())
        broker.disk.copied = broker.loop.when_copied
        self._leading = Leading(
            broker, feed, self._coordinator, self._history, self._secret, sock,
            least=config.clustering_min_insync_replicas, lease_ttl=config.clustering_lease_ttl,
            nacks=config.clustering_below_min_insync == "nack", peers=server.peers,
            certificates=self._certificates, compression=speech.compression(config),
            on_lost=lambda why: self._end(why, LOST), on_fatal=lambda why: self._end(why, 1),
        )  # fmt: skip
        broker.cluster = self._orders = Orders(
            self._status, self._coordinator, self._leading, self._recovery, self._make_way
        )
        try:
            ttl_s = config.clustering_lease_ttl
            with (
                kept_meanwhile(partial(places.etcd, config), self._lease, ttl_s, self._renewed),
                self._service.patient(LOAD_S),
            ):
                server.start()
                spare_collections()
            if time.monotonic() > self._deadline:
                server.cut()  # before the loop turns, and serves somebody
            self._check_deadline()
            self._leading.start()
        except (DefinitionsError, OSError) as error:
            raise NodeError(f"Cannot start: {error}", 1) from None

    async def _made_server(self) -> Server:
        """The broker that stands ready, or one that reads everything."""
        server = None
        if self._standby is not None:
            await self._standby.stop()
            server = self._standby.take()
        if server is None:
            return Server(self._config, self._events, self._service, integrity=self._integrity)
        server.keep_sums(self._integrity)
        return server

    def _stands(self) -> tuple[bool, int, int]:
        """Whether the files are whole, and the epoch and position up to which they have all."""
        history = self._history if self._following is None else self._following.history
        head = self._ring.head if self._leading is None else self._leading.head
        return self._standing.is_whole, history.at(head), head

    def _n_damaged(self) -> int:
        """How many files are known to be damaged, at least."""
        n = 0 if self._integrity is None else len(self._integrity.damages)
        return n or int(self._standing.is_damaged)

    def _only_reads(self) -> str:
        """What clients are told who want more of a follower than to read streams."""
        state = self._coordinator.state
        target = places.of_leader(state, self.me, "amqp")
        leads = f"node {state.epoch_leader} leads"
        if target is not None:
            leads += f", at {target.host}:{target.port}"
        return f"this is a follower's port for reading streams; {leads}"

    def _renewed(self, deadline: float) -> None:
        """The lease is ours until then, at least. From any thread."""
        self._deadline = max(self._deadline, deadline - MARGIN_S)

    def tell_lost(self) -> None:
        """It leads no more: run the operator's command for that."""
        config = self._config
        if self._leading is not None:
            run_hook(config.clustering_on_leader_lost)
