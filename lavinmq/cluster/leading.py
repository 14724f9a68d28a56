"""A leader's followers: lets them in, has them join, and decides which are in sync.

Each connection has a thread, which greets, compares files and then sends; all that is decided is
decided on the loop. Acknowledgements wait for a follower from before etcd has it in the set until
after etcd has it no more. Longer than 500 lines: a session is one thing from its greeting to its
end. Source: docs/clustering.md.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lavinmq._cluster import BlockSender, Feed, Peer
from lavinmq.backup.taking import Taking
from lavinmq.cluster import frames, joining, speech
from lavinmq.cluster.certificates import HandshakeError
from lavinmq.cluster.etcd import EtcdError
from lavinmq.cluster.frames import Connection, Link, PeerError
from lavinmq.cluster.telling import Telling
from lavinmq.files.snapshot import SnapshotError
from lavinmq.integrity.guard import DamagedError
from lavinmq.listeners.endpoints import plain, shown
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.cluster.certificates import Certificates
    from lavinmq.cluster.coordinator import Coordinator
    from lavinmq.cluster.history import History
    from lavinmq.cluster.recovery import Recovery

LOOK_S: Final = 0.1
BEAT_S: Final = 1.0
STUCK_S: Final = 6.0
"""For which a leader that cannot acknowledge waits for a follower to come before it makes way."""
UNHEARD_S: Final = 3.5
"""The same of one that beats, and has not been heard of since: this is no slow disk."""
BELOW_S: Final = 1.0
"""For which too few nodes are there before publishers are refused, if the operator wants that."""
SILENT_S: Final = 3.0
"""After which a follower that owes an answer is in sync no more."""
SILENT_AT_ALL_S: Final = 10.0
"""The same of a follower that does not beat, if the others could not do without it, while its
machine answers: its disk is slow, as it would be behind another connection."""
CLOSE_BYTES: Final = 8 << 20
"""How near a follower has to be before acknowledgements wait for it."""
MOST_STRANGERS: Final = 32
GRACE_S: Final = 0.1
"""For which a stranger keeps its place when others come."""
BACKLOG: Final = 256
ACCEPT_S: Final = 1.0
"""After which a leader without descriptors looks again who has come."""
GREETING_S: Final = 5.0
"""In which a connection has to say whose it is."""
STAGE_S: Final = 600.0
"""In which a follower has to bring to its disk what it has got."""
MOST_JOINING: Final = 2
"""Followers that get their files at once: of three nodes, none waits for a slow one."""
JOIN_S: Final = 10.0
"""After which one that waits for its turn is told so."""
HAND_OVER_S: Final = 3.0
SEND_S: Final = 30.0
_log = log.get("lmq.cluster")

T = TypeVar("T")


def listening(bind: str, port: int) -> socket.socket:
    """A socket for followers. Raises: OSError naming the address."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((bind, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {shown(bind, port)}: {error.strerror}"
        ) from error
    sock.setblocking(False)
    return sock


class Session:
    """A follower that is connected, from its greeting on."""

    def __init__(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.sock: Connection = sock
        self.tcp = sock
        self.host = plain(address[0])
        self.where = shown(self.host, address[1])
        self.node = ""
        self.version = ""
        self.has_readers = False
        """Whether it serves readers, who may see what all nodes have on disk."""
        self.is_encrypted = False
        """Whether it speaks TLS."""
        self.is_beating = False
        """Whether it says every moment that it is there, also when it has nothing new on disk."""
        self.came_at = time.monotonic()
        self.is_known = self.is_ended = False
        """Whether it has said whose it is; whether its thread is about to end."""
        self.peer: Peer | None = None
        self.spool: Peer | None = None
        """It only gets what is changed while its node joins."""
        self.is_coming = False
        """Whether it is being taken into the set."""
        self.heard_at: float | None = None
        """When it was heard of last, if it had been beating and has ended by its silence."""

    def end(self) -> None:
        """Have its thread end; what waits for it goes on waiting until it has."""
        self.is_ended = True
        for peer in filter(None, (self.peer, self.spool)):
            peer.stop()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class Leading:
    """The replication of one leader, in one epoch. On the loop, unless it says otherwise.

    Args: sock: where followers come, closed by `close`; least: how many nodes the operator wants to
        have what is acknowledged, 0: most; lease_ttl: seconds that leases have; nacks: publishers
        are refused while fewer have; peers: the hosts whose PROXY headers count; certificates: by
        which followers have to speak TLS, None: they speak without; compression: of what they are
        sent, as `Peer` takes it; on_lost: is told why this node leads no more; on_fatal: why it
        cannot go on at all.
    """

    def __init__(
        self, broker: Broker, feed: Feed, coordinator: Coordinator, history: History,
        secret: bytes, sock: socket.socket, *, least: int, lease_ttl: int, nacks: bool,
        peers: set[str],
        certificates: Certificates | None, compression: str,
        on_lost: Callable[[str], object], on_fatal: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.epoch = history.epoch
        self.sessions: set[Session] = set()
        self._broker = broker
        self._events = broker.events
        self._feed = feed
        self._coordinator = coordinator
        self._history = history
        self._secret = secret
        self._wanted = least
        self._lease_ttl = lease_ttl
        self._nacks = nacks
        self._peers = peers
        self._certificates = certificates
        self._compression = compression
        self._on_lost = on_lost
        self._on_fatal = on_fatal
        self._socket = sock
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()
        self._joining = threading.BoundedSemaphore(MOST_JOINING)
        self._tickets: dict[str, tuple[int, str | None]] = {}
        """Of followers that join: from which position on they are to hear of changes, and how."""
        self._patient_until: dict[str, float] = {}
        """Until when followers that have gone are waited for."""
        self._is_over = False
        self._beat_at = 0.0
        self._stuck_since = 0.0
        """Since when nothing can be acknowledged; 0: it can."""
        self._is_asking = False
        """Whether etcd is asked who is alive."""
        self._short_since = 0.0
        """Since when fewer nodes in sync are there than there have to be; 0: enough are."""
        self._said = ("", "")
        """Who has gone last, and why."""
        self._telling = Telling(broker, feed, self._has_readers)
        self._maybe: set[str] = set()
        """Nodes of a change of the set of which nobody knows whether it was made, or will be."""
        self._require()

    # --- start and end ------------------------------------------------------------------------

    def start(self) -> None:
        """Let followers come."""
        self._listen()
        self._look()
        _log.info("leads in epoch %d, with %s", self.epoch, ", ".join(sorted(self.in_sync)))

    def close(self) -> None:
        """Let go of all followers. Idempotent."""
        self._is_over = True
        if self._socket.fileno() >= 0:
            self._events.remove_reader(self._socket.fileno())
            self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for session in self.sessions:
            session.end()
        self._telling.close()

    async def hand_over(self) -> None:
        """The broker has stopped: have the followers in sync get all that it did, for a while.
        One that goes away meanwhile has all that was acknowledged, and is not waited for."""
        position = self._feed.mark()
        ends_at = time.monotonic() + HAND_OVER_S
        while any(
            each.peer and each.peer.is_required and each.peer.acked < position
            for each in self.sessions if not each.is_ended
        ):  # fmt: skip
            if time.monotonic() > ends_at:
                _log.warning("a follower has not got everything before the stop")
                return
            await asyncio.sleep(0.01)

    @property
    def head(self) -> int:
        """The position behind the last change."""
        return self._feed.head

    @property
    def n_copies(self) -> int:
        """How many nodes acknowledgements wait for by now, this one included."""
        return self._feed.n_copies

    # --- who is in sync -----------------------------------------------------------------------

    @property
    def least(self) -> int:
        """How many nodes have to have what is acknowledged, this one included."""
        return self._coordinator.state.least(self._wanted)

    @property
    def in_sync(self) -> set[str]:
        """The nodes in sync, this one included, as etcd has them, or may have."""
        return {*self._coordinator.state.in_sync, self._coordinator.me, *self._maybe}

    def _require(self) -> None:
        """Have acknowledgements wait for what they have to: for all that etcd may list, and for
        those that are about to be listed."""
        in_sync = self.in_sync
        there = set()
        for session in self.sessions:
            if session.peer is not None:
                is_required = session.node in in_sync or session.is_coming
                if is_required != session.peer.is_required:
                    session.peer.is_required = is_required
                there.add(session.node)
        missing = len(in_sync - there - {self._coordinator.me})
        # One that is not listed yet may not lead: it does not count.
        listed = {*self._coordinator.state.in_sync, self._coordinator.me}
        missing = max(missing, self.least - len(listed), 0)
        self._feed.require(self.least, missing)
        is_short = len(listed & (there | {self._coordinator.me})) < self.least
        self._short_since = (self._short_since or time.monotonic()) if is_short else 0.0
        if not is_short and self.is_refusing:
            self._broker.loop.is_below = False
            _log.notice("publishers are not refused any more")
        if not missing:
            self._stuck_since = 0.0
        elif not self._stuck_since:
            self._stuck_since = time.monotonic()

    @property
    def is_refusing(self) -> bool:
        """Whether publishers are told that too few nodes are in sync."""
        return self._broker.loop.is_below

    def _refuse(self) -> None:
        """Tell publishers, once too few nodes have been there for a moment."""
        is_long = self._short_since and time.monotonic() - self._short_since > BELOW_S
        if self._nacks and is_long and not self.is_refusing:
            self._broker.loop.is_below = True
            _log.warning("publishers are refused: fewer than %d nodes are in sync", self.least)

    def state_changed(self) -> None:
        """Another picture of etcd."""
        if not self._is_over:
            self._require()

    def _look(self) -> None:
        """Ten times a second: who is silent, who has come near."""
        self._timer = self._events.call_later(LOOK_S, self._look)
        if time.monotonic() - self._beat_at > BEAT_S:
            # A follower that hears nothing for long makes another connection.
            self._beat_at = time.monotonic()
            self._feed.mark()
        if self._feed.error:
            self._on_fatal(f"a change of a file could not be read: error {self._feed.error}")
            return
        for session in list(self.sessions):
            peer = session.peer
            if peer is None or session.is_coming:
                continue
            if peer.is_required and self._is_silent(session, peer):
                _log.warning("%s does not answer for %.1f s", session.node, peer.lag_s)
                if session.is_beating:
                    session.heard_at = time.monotonic() - peer.silent_s
                session.end()
            elif session.node not in self.in_sync and self._feed.head - peer.acked < CLOSE_BYTES:
                session.is_coming = True
                self._start(self._take_in(session, peer))
        self._refuse()
        self._telling.look()
        if not self._is_asking and self._could_do_without(self._cut_off()):
            self._is_asking = True
            self._start(self._make_way())
        if self._changing.locked():
            return
        gone = self._gone()
        if gone and len(self.in_sync - gone) >= self.least:
            self._start(self._leave_out())
        elif self._coordinator.replaced():
            self._start(self._count_anew())

    def _is_silent(self, session: Session, peer: Peer) -> bool:
        """Whether a follower has owed an answer for so long that its connection had better end."""
        lag_s = peer.lag_s
        if lag_s <= SILENT_S:
            return False
        slow = {
            each.node for each in self.sessions
            if each.peer is not None and each.peer.is_required and each.peer.lag_s > SILENT_S
        }  # fmt: skip
        if len(self.in_sync - self._gone() - slow) >= self.least:
            return True
        if session.is_beating:
            return peer.silent_s > SILENT_S
        return lag_s > SILENT_AT_ALL_S or not frames.is_heard(session.tcp, SILENT_S)

    def _has_readers(self) -> bool:
        """Whether a follower is there that serves readers."""
        return any(each.has_readers and each.peer is not None for each in self.sessions)

    def _reached(self) -> set[str]:
        """Followers that are connected; one that joins gets its files meanwhile."""
        return {
            each.node for each in self.sessions
            if each.peer is not None
            or (each.node and not each.is_ended and frames.is_heard(each.tcp, SEND_S / 2))
        }  # fmt: skip

    def _cut_off(self) -> set[str]:
        """Nodes that have been away for long, while nothing could be acknowledged, and are alive,
        as etcd says."""
        if not self._stuck_since:
            return set()
        state = self._coordinator.state
        away = {*state.members, *state.in_sync} & set(state.nodes)
        away -= {self._coordinator.me, *self._reached()}
        if_new = self._stuck_since + self._patience_s(STUCK_S)
        return {each for each in away if time.monotonic() >= self._patient_until.get(each, if_new)}

    def _patience_s(self, least_s: float) -> float:
        """For how long a follower that is away may be so: the lease of one that has ended at the
        same time has to be more than half over."""
        return max(least_s, self._lease_ttl / 2 + 1)

    def _could_do_without(self, cut_off: set[str]) -> bool:
        """Whether this node reaches too few to acknowledge anything, while others could, with those
        from which it is cut off, one of them in sync: what has failed is the network between."""
        state, reached = self._coordinator.state, self._reached()
        others = cut_off | (reached & set(state.nodes) & {*state.members, *state.in_sync})
        return bool(cut_off) and bool(others & set(state.in_sync)) and (
            len(others) >= self.least > 1 + len(reached)
        )  # fmt: skip

    async def _make_way(self) -> None:
        """End, if those from which it is cut off have renewed their leases meanwhile."""
        try:
            alive = await self._coordinator.alive(self._cut_off(), self._lease_ttl / 2)
            if self._could_do_without(alive & self._cut_off()):
                self._on_lost("its followers do not reach it, and could do without it")
        finally:
            self._is_asking = False

    def _gone(self) -> set[str]:
        """Nodes in sync that are not connected."""
        connected = {each.node for each in self.sessions if each.peer is not None}
        return self.in_sync - connected - {self._coordinator.me}

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._events.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except EtcdError as error:
            _log.warning("the set of nodes in sync may stay as it is: %s", error)
            await asyncio.sleep(LOOK_S)
            with suppress(EtcdError):
                async with self._changing:
                    await self._coordinator.look()
                    if self._maybe:
                        # What is still on its way compares a revision that is over after this.
                        await self._change(set(self._coordinator.state.in_sync))
            self._require()

    async def _count_anew(self) -> None:
        """Count nodes no more whose places others have taken."""
        async with self._changing:
            replaced = self._coordinator.replaced()
            await self._change(self.in_sync)
            _log.info("replaced by others: %s", ", ".join(sorted(replaced)))

    async def _leave_out(self) -> None:
        """Take those that are gone out of the set, if enough are left."""
        async with self._changing:
            gone = self._gone()
            left = self.in_sync - gone
            if gone and len(left) >= self.least:
                await self._change(left)
                _log.warning("in sync no more: %s; in sync: %s", ", ".join(sorted(gone)),
                             ", ".join(sorted(left)))  # fmt: skip

    async def _take_in(self, session: Session, peer: Peer) -> None:
        """Have acknowledgements wait for a follower; once it has all that was acknowledged before,
        put it into the set."""
        try:
            self._require()
            position = self._feed.mark()
            ends_at = time.monotonic() + SILENT_S
            while peer.acked < position:
                if session not in self.sessions or time.monotonic() > ends_at:
                    return
                await asyncio.sleep(0.005)
            async with self._changing:
                if session in self.sessions and session.node not in self.in_sync:
                    await self._change(self.in_sync | {session.node})
                    _log.info("in sync: %s", ", ".join(sorted(self.in_sync)))
        finally:
            session.is_coming = False
            self._require()

    async def recover(self, recovery: Recovery, seen: Any) -> str:
        """As `Recovery.recover`, while nothing else changes the set. Raises: OSError."""
        async with self._changing:
            why = await recovery.recover(seen)
            if not why:
                self._maybe.clear()  # what is still on its way comes too late
        self._require()
        return why

    async def _change(self, nodes: set[str]) -> None:
        """Set who is in sync. Raises: EtcdError: maybe they are, maybe not."""
        self._maybe |= nodes
        if not await self._coordinator.change_in_sync(self.epoch, nodes, self._feed.head):
            state = self._coordinator.state
            if state.epoch != self.epoch or state.leader is None:
                self._on_lost("another node leads, or nobody does")
        self._maybe.clear()
        self._require()

    # --- sessions -----------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._events.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # it waits still, and would be found in every turn
            _log.error("followers cannot come: %s", error.strerror)
            self._events.remove_reader(self._socket.fileno())
            self._events.call_later(ACCEPT_S, self._listen)
            return
        session = Session(sock, address[:2])
        strangers = [each for each in self.sessions if not (each.is_known or each.is_ended)]
        if len(strangers) >= MOST_STRANGERS:
            # Who has had time enough makes room: else those that say nothing would keep others out.
            oldest = min(strangers, key=lambda each: each.came_at)
            if session.came_at - oldest.came_at < GRACE_S:
                sock.close()
                return
            oldest.end()
        thread = threading.Thread(
            target=self._run, args=(session, sock), name="follower", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("%s is sent away: %s", session.where, error)
            sock.close()
            return
        self.sessions.add(session)
        self._events.call_later(GREETING_S, self._hurry, session)

    def _hurry(self, session: Session) -> None:
        if not session.is_known:
            session.end()

    def _run(self, session: Session, sock: socket.socket) -> None:
        """A session's thread."""
        why = ""
        try:
            sock.setblocking(True)
            why = self._serve(session, sock)
        except HandshakeError as error:
            why = str(error)
        except (OSError, PeerError, SnapshotError, LookupError, DamagedError) as error:
            why = frames.words(error)
            with suppress(OSError):
                frames.send(session.sock, {"refused": why})
        finally:
            if not session.is_known:
                frames.part(session.sock)
            if not self._is_over:
                with suppress(RuntimeError):
                    self._events.call_soon_threadsafe(self._ended, session, why)
            session.sock.close()

    def _ended(self, session: Session, why: str) -> None:
        if not self._is_over:
            name = f"{session.node} ({session.where})" if session.node else session.where
            # One that is refused comes again and again.
            is_news = session.node and (session.node, why) != self._said
            self._said = (session.node, why)
            level = 30 if is_news else 10 if session.is_ended else 20
            _log.log(level, "follower %s has gone: %s", name, why)
        peer = session.peer
        self.sessions.discard(session)
        if session.heard_at is not None:
            until = session.heard_at + self._patience_s(UNHEARD_S)
        else:
            until = time.monotonic() + self._patience_s(STUCK_S)
        if session.node:
            self._patient_until[session.node] = until
        self._know_peers()
        self._require()  # before the peer goes: nothing is acknowledged in between
        for each in filter(None, (peer, session.spool)):
            each.close()

    def _serve(self, session: Session, plain: socket.socket) -> str:
        """In the session's thread. Returns: why it ended. Raises: OSError, PeerError,
        SnapshotError, LookupError."""
        frames.tune(plain)
        sock: Link = plain if self._certificates is None else self._certificates.accept(plain)
        session.sock = sock
        session.is_encrypted = sock is not plain
        frames.greet_follower(sock, self._secret)
        hello = frames.receive(sock, 65536)
        if "spool" in hello:
            return self._on_loop(self._begin_spool(session, sock, hello)).serve()
        node, epoch = frames.text(hello, "id"), frames.number(hello, "epoch")
        position = frames.number(hello, "position")
        session.version = frames.text(hello, "version")
        session.has_readers = hello.get("readers") is True
        session.is_beating = hello.get("beats") is True
        self._on_loop(self._welcome(session, node))
        if self._certificates is not None and not session.is_encrypted:
            _log.warning("%s follows without TLS, which is optional here", node)
        compression = self._compression if speech.agreed(hello) >= speech.BLOCKS else None
        sock.settimeout(SEND_S)
        is_sound = _is_sound(hello)
        is_ours = is_sound and self._history.has(epoch, position, self._feed.head)
        is_whole = hello.get("whole") is True
        if not (is_ours and is_whole and position >= self._feed.first):
            had = position if is_ours else self._had(hello)
            try:
                self._join(session, sock, had, compression)
            except DamagedError:
                if is_whole:
                    self._events.call_soon_threadsafe(self._make_way_for, node)
                raise
            return "it has joined"
        frames.send(sock, {"history": self._history.to_json(), "beats": True, **speech.spoken()})
        sock.settimeout(None)
        peer = self._on_loop(self._begin(session, sock, position, compression))
        return peer.serve()

    def _make_way_for(self, node: str) -> None:
        """Files of this node are damaged, and it cannot send them: one that is in sync has all that
        was acknowledged."""
        if node in self._coordinator.state.in_sync and not self._is_over:
            self._on_lost(f"its files are damaged, and node {node} has all that was acknowledged")

    def _had(self, hello: dict[str, Any]) -> int:
        """Up to where a node that has crashed had everything; -1: nobody knows. What it has of
        later changes is ours, if it came in our epoch."""
        least = hello.get("at_least")
        if not (
            _is_sound(hello) and isinstance(least, list)
            and [type(n) for n in least] == [int, int] and least[0] == self.epoch
        ):  # fmt: skip
            return -1
        return least[1] if 0 <= least[1] <= self._feed.head else -1

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done on the loop, from a session's thread."""
        if self._is_over:
            work.close()
            raise PeerError("this node leads no more")
        return asyncio.run_coroutine_threadsafe(work, self._events).result()

    async def _welcome(self, session: Session, node: str) -> None:
        """Learn who it is; an older connection of the same node ends. Raises: PeerError."""
        if node == self._coordinator.me:
            raise PeerError(f"it has this node's own id, {node}")
        if not node or len(node) > 8 or not node.isascii() or not node.isalnum():
            raise PeerError("it has no id")
        for other in self.sessions:
            if other.node == node:
                other.end()
        session.node, session.is_known = node, True
        self._know_peers()

    def _know_peers(self) -> None:
        """Take clients that are passed on from where there are nodes, and from nowhere else. Two
        may come from one host: a connection, and the one that takes its place."""
        self._peers.clear()
        self._peers.update(each.host for each in self.sessions if each.is_known)

    async def _begin(
        self, session: Session, sock: Link, position: int, compression: str | None
    ) -> Peer:
        session.peer = Peer(self._feed, sock, position, compression)
        if session.has_readers:
            self._telling.begin_anew()
        self._said = ("", "")
        self._require()
        return session.peer

    def _join(self, session: Session, link: Link, had: int, compression: str | None) -> None:
        """Have a follower's files be ours. What is changed meanwhile comes to it by a connection of
        its own (`_begin_spool`), with a position from which on, and one from which on its files are
        of one moment. Args: had: the position up to which it had everything; -1: nobody knows."""
        feed, integrity = self._feed, self._broker.integrity
        if integrity is not None and len(integrity.damages):
            raise DamagedError(integrity.damages.all()[0].path)
        with self._turn():
            frames.send(link, {"join": True, **speech.spoken()})
            sock: Connection = link if compression is None else BlockSender(link, compression)
            session.sock = sock
            _log.info("%s joins", session.node)
            taking = Taking(self._broker, lambda: self._feed.head)
            self._on_loop(taking.take())
            ticket = secrets.token_hex(16)
            self._tickets[ticket] = taking.since, compression
            try:
                taking.look()
                frames.send(sock, {"ticket": ticket})
                joining.offer(
                    sock, taking.snapshot,
                    lambda path: had >= 0 and feed.is_same(os.fsencode(path), had),
                    integrity,
                )  # fmt: skip
                sock.settimeout(STAGE_S)
                joining.staged(sock)
                self._on_loop(self._before_placing(session))
                joining.placed(sock)
                frames.send(sock, {
                    "position": taking.since, "until": max(taking.until, self._feed.mark()),
                    "history": self._history.to_json(), **speech.spoken(),
                })  # fmt: skip
            finally:
                del self._tickets[ticket]
                self._on_loop(taking.release())

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Have few join at once. Raises: PeerError: others take long."""
        if not self._joining.acquire(timeout=JOIN_S):
            raise PeerError(f"{MOST_JOINING} others get their files just now")
        try:
            yield
        finally:
            self._joining.release()

    async def _begin_spool(self, session: Session, sock: Link, hello: dict[str, Any]) -> Peer:
        """Send what is changed to a follower that joins. Nothing waits for it. Raises: PeerError,
        LookupError."""
        ticket = self._tickets.get(frames.text(hello, "spool"))
        if ticket is None:
            raise PeerError("it has no ticket")
        session.is_known = True
        session.spool = Peer(self._feed, sock, *ticket)
        sock.settimeout(None)
        return session.spool

    async def _before_placing(self, session: Session) -> None:
        """Its files are between two states soon: it is in sync no more, if enough others are."""
        async with self._changing:
            left = self.in_sync - {session.node}
            if session.node in self.in_sync and len(left) >= self.least:
                try:
                    await self._change(left)
                except EtcdError as error:
                    raise PeerError(f"it cannot join now: {error}") from None


def _is_sound(hello: dict[str, Any]) -> bool:
    """Whether a follower's files are of one moment, but for those that it knows to be damaged: it
    asks for them."""
    damaged = hello.get("damaged")
    return hello.get("whole") is True or (type(damaged) is int and damaged > 0)
