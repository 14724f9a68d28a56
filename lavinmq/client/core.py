"""The life of a client behind both fronts: it connects, restores, watches, and connects again.

States: IDLE → CONNECTING → CONNECTED ⇄ BLOCKED; → RECONNECTING → CONNECTED; any → CLOSING → CLOSED.
A task (`_supervise`) makes a connection, and another one makes the next when that has ended: there
is none while it lasts. A connection ends by an event (end of file, reset, close, silence) or is
found dead by the poll (`_watch`), which counts what it found.

Longer than 500 lines, because states, connections, their restoring and the poll that watches them
are one life, and parts of it would name each other in circles.

Everything here runs in the thread of the event loop. Callbacks of the program are handed to
`dispatch`, which is the front's: never called from within, so that one that blocks blocks no I/O.
"""

from __future__ import annotations

import asyncio
import logging
import random
import select
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from lavinmq.client.config import Config
from lavinmq.client.errors import (
    AuthenticationError,
    BlockedTimeout,
    ChannelClosed,
    ClientConnectionError,
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    ConnectionLost,
    Error,
    NotFound,
    RpcTimeout,
)
from lavinmq.client.link import Chan, ChannelOwner, Link, token_of
from lavinmq.client.opening import open_link
from lavinmq.client.rounds import Rounds
from lavinmq.client.topology import (
    NOTHING,
    BindingSpec,
    Entity,
    QueueSpec,
    Topology,
    own,
)
from lavinmq.client.url import Endpoint, Target
from lavinmq.client.values import ConnectionState

LOG: Final = logging.getLogger("lavinmq.client")
ALLOWED: Final[dict[ConnectionState, set[ConnectionState]]] = {
    ConnectionState.IDLE: {ConnectionState.CONNECTING},
    ConnectionState.CONNECTING: {ConnectionState.CONNECTED, ConnectionState.RECONNECTING},
    ConnectionState.CONNECTED: {ConnectionState.BLOCKED, ConnectionState.RECONNECTING},
    ConnectionState.BLOCKED: {ConnectionState.CONNECTED, ConnectionState.RECONNECTING},
    ConnectionState.RECONNECTING: {ConnectionState.CONNECTED},
    ConnectionState.CLOSING: set(),
    ConnectionState.CLOSED: set(),
}
"""Legal steps, beside those to CLOSING and CLOSED, which come after any but CLOSED."""


class Member(ChannelOwner):
    """A producer or a consumer, as the core sees it."""

    __slots__ = ()

    async def join(self, link: Link) -> None:
        """Take up work on a new connection. Raises: why it cannot, or cannot any more."""
        raise NotImplementedError

    async def rejoin(self, link: Link) -> None:
        """Take it up again, on a connection on which it was not possible for a while."""
        await self.join(link)

    def leave(self, cause: Exception) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def finish(self, cause: Exception) -> None:
        """There will be no other."""
        raise NotImplementedError

    def tick(self, is_blocked: bool) -> None:
        """The health poll comes by. Raises: ConnectionLost, ConfirmTimeout: the link is dead."""
        raise NotImplementedError

    def rest(self) -> None:
        """Nothing happens for now: give back memory that nothing is in."""

    def forked(self, error: Exception) -> None:
        """In the child of a fork: what is here is the parent's."""

    def renamed(self, old: str, new: str) -> None:
        """A queue that the broker names has another name now."""

    @property
    def done(self) -> int:
        """Messages that the broker has confirmed, or was told to forget, since it was made: what
        says that a connection was worth making again at once."""
        raise NotImplementedError

    async def closing(self, flush: bool = True) -> None:
        """The client is about to close: end in good order."""
        raise NotImplementedError


class Owner(Protocol):
    """Who has the connections of a client."""

    def changed(self, core: Core, cause: Exception | None) -> None:
        """One of them has another state, and why."""

    def gave_up(self, cause: Exception) -> None:
        """There will be no other connection."""


class Front(Protocol):
    """What a program has of a client."""

    def _dispatch(self, function: Callable[..., Any], *values: Any) -> None:
        """Have a function called where those of the program are."""


class Steward(Protocol):
    """Who has clients that are no program's: it knows where they connect to, and hears of all."""

    async def opened(self) -> Link:
        """Make the next connection. Raises: ClientConnectionError and the like."""
        raise NotImplementedError

    def heard(self, event: str, *values: Any) -> None:
        """Something has happened of which a program's callbacks are told."""
        raise NotImplementedError


class Core:
    """One connection of a client, again and again; started in an event loop.

    Args: beside: the client's first, when this is another (see `together`): it knows what was
    declared, and the program's callbacks.
    """

    __slots__ = (
        "_admin", "_admin_lock", "_blocked_seconds", "_closer", "_delay_s", "_done_at",
        "_done_before", "_ended", "_ended_most", "_endpoints", "_failures", "_first",
        "_is_started", "_next", "_returning", "_since", "_supervisor", "_tasks", "_up_since",
        "_waiting", "_watcher",
        "bytes_in", "bytes_out", "callbacks", "config", "connects", "front",
        "is_beside", "last_error", "link", "loop", "members", "owner", "poll_detected",
        "reconnect_attempts", "reconnects", "rounds", "state", "steward", "target", "topology",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        config: Config,
        front: Front,
        beside: Core | None = None,
    ) -> None:
        self.target, self.config, self.front = target, config, front
        self.state = ConnectionState.IDLE
        self.link: Link | None = None
        self.is_beside = beside is not None
        self.topology: Topology = Topology() if beside is None else beside.topology
        self.members: dict[Member, None] = NOTHING
        self._ended: tuple[weakref.ref[Any], ...] = ()
        """Members that somebody may still have."""
        self._ended_most = 16
        self._done_before = 0
        self.callbacks: dict[str, list[Callable[..., Any]]] = (
            {} if beside is None else beside.callbacks
        )
        """By event; those that somebody wants to hear of."""
        self.owner: Owner
        """Is told of other states, and that there will be no other connection."""
        self.last_error: Exception | None = None
        self.connects = self.reconnects = self.reconnect_attempts = self.poll_detected = 0
        self.bytes_in = self.bytes_out = 0
        self._blocked_seconds = 0.0
        self.loop: asyncio.AbstractEventLoop
        self._since = 0.0
        self.steward: Steward | None = None
        """In place of the program's callbacks and of where it says to connect to."""
        self._endpoints = target.endpoints
        if config.failover == "shuffle":
            self._endpoints = tuple(random.sample(self._endpoints, len(self._endpoints)))
        self._next = 0
        self._admin: Chan | None = None
        self._tasks: dict[asyncio.Task[Any], None] = NOTHING
        self._supervisor: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        """Until the first connection is there: who starts may wait for it."""
        self._failures, self._delay_s = 0, 0.0
        self._up_since, self._done_at = 0.0, 0
        """When the connection that there is, or was last, was made; what was done until then."""
        self._waiting: list[asyncio.Future[None]] | None = None
        """Who waits for another state; None: nobody."""
        self._returning: dict[Member, Link] | None = None
        """Who is brought back, on which connection; None: nobody."""
        self._admin_lock: asyncio.Lock | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self.rounds: Rounds | None = None
        """Who looks after it, if it does not do so itself."""
        self._is_started = False
        self._closer: asyncio.Future[None] | None = None
        """Until who closes has done that; None: nobody does."""

    # ---- what the fronts ask for

    async def start(self) -> None:
        """Connect; with `fail_fast` wait for the first connection. Raises: why there is none."""
        if self.state is ConnectionState.CLOSED:
            raise ClosedError("the client was closed")
        if self._is_started:
            return
        self._is_started = True
        self.loop = asyncio.get_running_loop()
        self._since = self.loop.time()
        self.set_state(ConnectionState.CONNECTING, None)
        first = self._first = self.loop.create_future()
        self._supervisor = self.loop.create_task(self._supervise())
        if self.rounds is not None:
            self.rounds.add(self)
        else:
            self._watcher = self.loop.call_later(self.config.health_interval, self._watch)
        if self.config.token is not None and self.config.token_interval:
            self.spawn(self._renew())
        if self.config.fail_fast:
            try:
                await first
            except asyncio.CancelledError:
                self._cut(ClosedError("the client was closed"))  # nobody else would
                raise
        else:
            first.add_done_callback(lambda done: done.exception())

    async def close(self, timeout: float | None = None, flush: bool = True) -> None:
        """End all: consumers first, then what is buffered within the time, then the connection."""
        timeout = self.config.close_timeout if timeout is None else timeout
        if self.state is ConnectionState.CLOSED:
            return
        if not self._is_started:
            self.state = ConnectionState.CLOSED
            return
        error = ClosedError("the client was closed")
        if self._closer is not None:
            if flush:  # somebody else does it; who has less time than he ends that
                await asyncio.wait([self._closer], timeout=timeout)
            self._cut(error)
            return
        self._closer = self.loop.create_future()
        try:
            await self._end(timeout, flush, error)
        except asyncio.CancelledError:
            self._cut(error)  # what is held ends here, too
            raise
        finally:
            if not self._closer.done():
                self._closer.set_result(None)

    def _cut(self, error: Exception) -> None:
        """Close at once, if it is not closed."""
        for task in self._others():
            task.cancel()
        self.abandon(error)

    async def _end(self, timeout: float, flush: bool, error: Exception) -> None:
        self.set_state(ConnectionState.CLOSING, None)
        closing = [member.closing(flush) for member in self.members]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*closing, return_exceptions=True)
                if self.link is not None and flush:
                    await self.link.all_sent()
        except TimeoutError:
            pass
        if self._watcher is not None:
            self._watcher.cancel()
        for task in self._others():
            task.cancel()
        if self.link is not None:
            link, self.link = self.link, None
            await link.close()
            self._count(link)
        if left := self._others():
            await asyncio.wait(left, timeout=1)
        self._finish(error)

    def _others(self) -> list[asyncio.Task[Any]]:
        """What runs beside who asks."""
        tasks = [*self._tasks] if self._supervisor is None else [self._supervisor, *self._tasks]
        return [each for each in tasks if each is not asyncio.current_task()]

    async def connected(self, timeout: float | None) -> Link:
        """Wait for a connection. Raises: ClientConnectionError, ClosedError."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self.state is ConnectionState.CLOSED:
                        raise ClosedError(f"the client is closed: {self.last_error or 'by itself'}")
                    if self.link is not None and self.is_connected:
                        return self.link
                    await self._another_state()
        except TimeoutError:
            cause = f": {self.last_error}" if self.last_error else ""
            raise ClientConnectionError(f"no connection within {timeout:g} s{cause}") from None

    async def _another_state(self) -> None:
        """Wait for the next change of the state."""
        waiting: asyncio.Future[None] = self.loop.create_future()
        self._waiting = [*(self._waiting or ()), waiting]
        try:
            await waiting
        except asyncio.CancelledError:
            self._waiting = [each for each in self._waiting or () if each is not waiting] or None
            raise

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, be it blocked."""
        return self.state in (ConnectionState.CONNECTED, ConnectionState.BLOCKED)

    async def call(self, name: str, *values: Any) -> Any:
        """Ask the broker on the channel for rare methods. Raises: ChannelClosed and the like."""
        link = await self.connected(self.config.rpc_timeout)
        return await self.call_on(link, name, *values)

    async def call_on(self, link: Link, name: str, *values: Any) -> Any:
        """As `call`, on a connection that need not be announced yet."""
        if self._admin_lock is None:
            self._admin_lock = asyncio.Lock()
        async with self._admin_lock:
            if self._admin is None or self._admin.error or self._admin.link is not link:
                self._admin = await link.channel()
            return await self._admin.call(name, *values)

    async def release(self) -> None:
        """Close the channel for rare methods: none are to come for long."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def declare(self, entity: Entity) -> Any:
        """Declare and remember. Raises: ChannelClosed and the like."""
        answer = await self.call(*entity.method)
        if isinstance(entity, QueueSpec) and not entity.name:
            entity = QueueSpec(
                answer[0], entity.durable, entity.exclusive, entity.auto_delete,
                entity.arguments, server_named=True,
            )  # fmt: skip
        self.topology.add(entity)
        return answer

    async def unbind(self, binding: BindingSpec) -> None:
        """Take a binding away, and forget it."""
        await self.call(*binding.call("unbind"))
        self.topology.unbind(binding)

    async def ensure_queue(self, link: Link, name: str) -> None:
        """Make sure that a queue is there: one that was not declared by us is, if it is missing."""
        if name in self.topology.queues or name.startswith("amq."):
            return
        try:
            await self.call_on(link, "queue.declare", 0, name, True, *(False,) * 4, {})
        except NotFound:
            await self.call_on(link, *QueueSpec(name).method)

    async def enter(self, member: Member) -> None:
        """A producer or a consumer begins. Raises: why it cannot."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            raise ClosedError("the client was closed")
        self.members = own(self.members)
        self.members[member] = None
        link = self.link
        if link is not None and self.is_connected:
            try:
                await member.join(link)
            except ClientConnectionError:
                pass  # the next connection is its
            except BaseException:
                self.members.pop(member, None)
                member.finish(ClosedError("it could not begin"))
                raise

    @property
    def blocked_seconds(self) -> float:
        """How long the broker took no messages, until now."""
        is_blocked = self.state is ConnectionState.BLOCKED
        return self._blocked_seconds + (self.loop.time() - self._since if is_blocked else 0.0)

    def everybody(self) -> list[Any]:
        """Producers and consumers whose figures count, also those that have ended."""
        ended = [member for each in self._ended if (member := each()) is not None]
        return [*ended, *self.members]

    def exit(self, member: Member) -> None:
        """A producer or a consumer has ended."""
        if member in self.members:
            del self.members[member]
            self._done_before += member.done
            self._remember(member)

    def _remember(self, member: Member) -> None:
        self._ended += (weakref.ref(member),)
        if len(self._ended) > self._ended_most:
            self._ended = tuple(each for each in self._ended if each() is not None)
            self._ended_most = 2 * len(self._ended) + 16

    # ---- callbacks and tasks

    def dispatch(self, function: Callable[..., Any], *values: Any) -> None:
        """Have a function called where those of the program are."""
        self.front._dispatch(function, *values)

    def tell(self, event: str, *values: Any) -> None:
        """Hand an event to the program's callbacks."""
        if self.steward is not None:
            self.loop.call_soon(self.steward.heard, event, *values)
            return
        for callback in self.callbacks.get(event, ()):
            self.dispatch(self.guarded, callback, values)
        if event == "error" and not self.callbacks.get("error"):
            LOG.warning("%s", values[0])

    def guarded(self, callback: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """Call what the program gave; what it raises goes to `on_error`."""
        try:
            result = callback(*values)
        except BaseException as error:  # noqa: BLE001 - an exit, too, would end our thread
            self._failed(callback, error)
            return None
        if asyncio.iscoroutine(result):
            try:
                self.loop.call_soon_threadsafe(self._go_on, callback, result)
            except RuntimeError:  # the loop has ended
                result.close()
        return result

    def _go_on(self, callback: Callable[..., Any], result: Coroutine[Any, Any, Any]) -> None:
        self.spawn(self._awaited(callback, result))

    async def _awaited(
        self, callback: Callable[..., Any], result: Coroutine[Any, Any, Any]
    ) -> None:
        try:
            await result
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(callback, error)

    def _failed(self, callback: Callable[..., Any], error: BaseException) -> None:
        if callback not in self.callbacks.get("error", ()):
            self.caught(error)
        elif is_exit(error):
            raise error
        else:
            LOG.error("an on_error callback failed", exc_info=error)

    def caught(self, error: BaseException) -> None:
        """Tell of what a function of the program raised, unless that is to end the program."""
        if is_exit(error):
            raise error
        self.tell("error", told_as(error))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside; it ends with the client."""
        task = self.loop.create_task(work)
        self._tasks = own(self._tasks)
        self._tasks[task] = None
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, (ClientConnectionError, ClosedError)):
                self.tell("error", error)

    def set_state(self, state: ConnectionState, cause: Exception | None) -> None:
        """Go to another state, if that is a legal step."""
        old = self.state
        ends = (ConnectionState.CLOSING, ConnectionState.CLOSED)
        if state is old or old is ConnectionState.CLOSED:
            return
        if state not in ALLOWED[old] and state not in ends:
            return
        now = self.loop.time()
        if old is ConnectionState.BLOCKED:
            self._blocked_seconds += now - self._since
        self._since, self.state = now, state
        waiting, self._waiting = self._waiting, None
        for each in waiting or ():
            if not each.done():
                each.set_result(None)
        self.owner.changed(self, cause)

    # ---- connecting

    async def _supervise(self, lost: Link | None = None) -> None:
        """Make the first connection, or the next one after one that was lost."""
        try:
            if (lost is None and await self._try()) or (lost is not None and self._ends_with(lost)):
                return
            while await self._may_go_on() and not await self._try():
                pass
        except Exception as error:
            # A mistake of ours must not leave anybody waiting.
            self._give_up(error)
            raise
        finally:
            if self._supervisor is asyncio.current_task():
                self._supervisor = None
            if self._first is not None and not self._first.done():
                error_ = self.last_error or ClosedError("the client was closed")
                self._first.set_exception(error_)
                self._first.exception()

    async def _try(self) -> bool:
        """Connect; whether that is all: there is a connection, or there will be none."""
        try:
            link = await (self.steward or self).opened()
            self._up_since, self._done_at = self.loop.time(), self._done()
            try:
                await self._begin(link)
            except asyncio.CancelledError:
                if self.link is not link and not link.is_closing:
                    link.end(ClosedError("the client was closed"))  # who closes did not know of it
                raise
        except (Error, OSError) as error:
            self.last_error = error
            if (self.config.fail_fast and self._first is not None) or self._is_final(error):
                self._give_up(error)
                return True
            return False
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._first = None
        return True

    def over(self, link: Link) -> None:
        """A connection has ended. Who is just making it has seen that by itself."""
        is_ours = self.link is link and self._supervisor is None
        if is_ours and self.state not in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            self._supervisor = self.loop.create_task(self._supervise(link))

    def _ends_with(self, link: Link) -> bool:
        """A connection is lost; whether there will be no other."""
        cause = link.lost
        assert cause is not None
        self._lose(link, cause)
        if self._is_final(cause):
            self._give_up(cause)
            return True
        # A broker that closes at once is not asked again at once; one whose connections are
        # short, but carry something, is.
        lived = self.loop.time() - self._up_since
        least = max(self._delay_s, self.config.reconnect_initial_delay)
        if lived > least or self._done() > self._done_at:
            self._failures = 0
            if self.config.failover == "ordered":
                self._next = 0
        return False

    async def _may_go_on(self) -> bool:
        """Pause before the next try; whether there is one."""
        self._failures += 1
        most = self.config.reconnect_max_attempts
        if most is not None and self._failures > most:
            self._give_up(self.last_error or ConnectionLost("the connection was lost"))
            return False
        self._delay_s = self._delay(self._failures)
        self.reconnect_attempts += 1
        self.set_state(ConnectionState.RECONNECTING, self.last_error)
        self.tell("reconnect_attempt", self._failures, self._delay_s)
        await asyncio.sleep(self._delay_s)
        return True

    async def opened(self) -> Link:
        """Connect to the host whose turn it is. Raises: ClientConnectionError and the like."""
        return await open_link(self.config, self.target, self._endpoint())

    def _done(self) -> int:
        return self._done_before + sum(member.done for member in self.members)

    def _endpoint(self) -> Endpoint:
        """The next host's turn."""
        endpoint = self._endpoints[self._next % len(self._endpoints)]
        self._next += 1
        return endpoint

    def _delay(self, attempt: int) -> float:
        config = self.config
        power = min(attempt - 1, 64)
        grown = config.reconnect_initial_delay * config.reconnect_multiplier**power
        delay = min(config.reconnect_max_delay, grown)
        return float(delay * (1 - config.reconnect_jitter * random.random()))

    def _is_final(self, error: Exception) -> bool:
        """Whether it makes no sense to try again."""
        if not self.config.reconnect or isinstance(error, (ConfigError, ClosedError)):
            return True
        if isinstance(error, AuthenticationError):
            return not self.config.retry_auth
        return isinstance(error, ssl.SSLCertVerificationError)

    async def _begin(self, link: Link) -> None:
        """Restore on a new connection all that there was. Raises: why it ended."""
        link.owner = self
        link.is_watched()
        self.connects += 1
        self._admin = None
        try:
            await self._take_up(link)
        except (Error, OSError) as error:
            # Who has joined it may have sent by it already: all have to leave.
            link.end(error)
            self._lose(link, link.lost or error)
            raise
        if self.connects > 1:
            self.reconnects += 1
        self.set_state(ConnectionState.CONNECTED, None)
        if link.blocked_since is not None:
            self.set_state(ConnectionState.BLOCKED, None)

    async def _take_up(self, link: Link) -> None:
        """Restore, and have all members join. Raises: what ended the connection meanwhile."""
        if self.connects > 1 and self.config.topology_recovery == "declared":
            await self._restore(link)
        self.link = link
        joined: set[Member] = set()
        while members := [member for member in self.members if member not in joined]:
            for member in members:  # others may begin meanwhile
                joined.add(member)
                await self._guarded_join(member, link)
        if link.lost is not None:
            raise link.lost

    async def _guarded_join(self, member: Member, link: Link) -> None:
        try:
            await member.join(link)
        except ClientConnectionError:
            raise
        except Error as error:
            self.tell("recovery_failed", member, error)
            self.tell("error", error)
            self.bring_back(member, link)

    async def _restore(self, link: Link) -> None:
        """Declare again what was declared: exchanges, queues, then bindings."""
        for entity in self.topology.restoring(self.is_beside):
            await self._restore_one(link, entity)

    async def _restore_one(self, link: Link, entity: Entity) -> None:
        try:
            await self._declare_again(link, entity)
        except (ChannelClosed, RpcTimeout) as error:
            self.tell("recovery_failed", entity, error)
            self.tell("error", error)
            self.spawn(self._again(lambda: self._restore_late(link, entity), link, entity))

    async def _declare_again(self, link: Link, entity: Entity) -> str:
        """Declare what was declared; return the name that it has now."""
        answer = await self.call_on(link, *entity.method)
        if not isinstance(entity, QueueSpec) or not entity.server_named:
            return entity.name
        name = str(answer[0])
        if name != entity.name:
            self.topology.rename(entity.name, name)
            for member in list(self.members):
                member.renamed(entity.name, name)
            self.tell("queue_renamed", entity.name, name)
        return name

    async def _restore_late(self, link: Link, entity: Entity) -> None:
        """Declare what was refused at first. Bindings of a queue with a new name are made anew:
        who tries to make them knows the old one alone."""
        name = await self._declare_again(link, entity)
        if name != entity.name:
            for binding in self.topology.bindings_of(name):
                await self._restore_one(link, binding)

    def bring_back(self, member: Member, link: Link, first: float = 0.5) -> None:
        """Have a member take up work until it can: once, however often it is asked for. While it
        tries, its channel may end, and then it asks as well."""
        if self._returning is None:
            self._returning = {}
        if self._returning.get(member) is not link:
            self._returning[member] = link
            self.spawn(self._bring_back(member, link, first))

    async def _bring_back(self, member: Member, link: Link, first: float) -> None:
        try:
            await self._again(lambda: member.rejoin(link), link, member, first)
        finally:
            if self._returning is not None and self._returning.get(member) is link:
                del self._returning[member]
                self._returning = self._returning or None

    async def _again(
        self, work: Callable[[], Awaitable[Any]], link: Link, what: Member | Entity,
        first: float = 0.5,
    ) -> None:  # fmt: skip
        """Try something until it works, with pauses that grow, as long as the connection lives and
        the program has not ended or deleted it."""
        delay = first
        while True:
            await asyncio.sleep(delay)
            if link.lost is not None:
                return
            is_wanted = what in self.members if isinstance(what, Member) else what in self.topology
            if not is_wanted:
                return
            try:
                await work()
                return
            except ClientConnectionError:
                return
            except Error as error:
                self.tell("recovery_failed", what, error)
                delay = min(delay * 2, self.config.reconnect_max_delay)

    def _lose(self, link: Link, cause: Exception) -> None:
        """A connection is over."""
        self.last_error = cause
        self.link = None
        self._count(link)
        self.set_state(ConnectionState.RECONNECTING, cause)
        for member in list(self.members):
            member.leave(cause)

    def _count(self, link: Link) -> None:
        self.bytes_in += link.input.bytes_in
        self.bytes_out += link.bytes_out

    def _finish(self, cause: Exception) -> None:
        """Nothing comes after this: everything that is held ends, everybody who waits hears."""
        self.link = None
        if self._watcher is not None:
            self._watcher.cancel()
        self.set_state(ConnectionState.CLOSED, cause)
        members, self.members = self.members, NOTHING
        for member in members:
            self._remember(member)
            member.finish(cause)

    def _give_up(self, cause: Exception) -> None:
        self._finish(cause)
        self.owner.gave_up(cause)

    def abandon(self, cause: Exception) -> None:
        """End without a word to the broker, because another connection of the client gave up."""
        if self.state is ConnectionState.CLOSED:
            return
        if self._supervisor is not None:
            self._supervisor.cancel()
        if self.link is not None:
            self._count(self.link)
            self.link.end(ClosedError("the client was closed"))
        self.last_error = self.last_error or cause
        self._finish(cause)

    def blocked(self, reason: str | None) -> None:
        """The broker takes no messages for now, or (None) does again."""
        if reason is None:
            self.set_state(ConnectionState.CONNECTED, None)
            self.tell("unblocked")
        else:
            self.set_state(ConnectionState.BLOCKED, ConnectionLost(f"blocked: {reason}"))
            self.tell("blocked", reason)

    # ---- the poll

    def _watch(self) -> None:
        """Look after the connection, again and again."""
        self._watcher = self.loop.call_later(self.config.health_interval, self._watch)
        self.look()

    @property
    def is_over(self) -> bool:
        """Whether there will be no other connection."""
        return self.state is ConnectionState.CLOSED

    def look(self) -> None:
        """Look after the connection, in case that an event was missed, and tell that we live."""
        link = self.link
        try:
            if link is not None and link.lost is None:
                self._look_at(link)
            elif link is None:
                for member in list(self.members):
                    member.tick(True)
        except Exception as error:  # noqa: BLE001 - the poll goes on
            self.tell("error", error)

    def _look_at(self, link: Link) -> None:
        link.beat()
        if link.lost is not None:
            return
        is_blocked = link.blocked_since is not None
        timeout = self.config.blocked_timeout
        if link.blocked_since is not None and timeout is not None:
            blocked = self.loop.time() - link.blocked_since
            if blocked > timeout:
                link.end(BlockedTimeout(f"the broker took no messages for {blocked:.1f} s"))
                return
        sock = link.transport.get_extra_info("socket") if link.transport is not None else None
        if sock is not None and not link.is_held and _is_dead(sock.fileno()):
            self.poll_detected += 1
            link.end(ConnectionLost("the poll found the socket dead"))
            return
        for member in list(self.members):
            try:
                member.tick(is_blocked)
            except (ConfirmTimeout, ConnectionLost) as error:
                self.poll_detected += 1
                lost = ConnectionLost(str(error))
                lost.__cause__ = error
                link.end(lost)
                return
        if link.rest():
            for member in list(self.members):
                member.rest()

    # ---- access tokens

    async def renew(self, secret: str) -> None:
        """Give the broker a new token for the connection that there is."""
        link = await self.connected(self.config.rpc_timeout)
        await link.root.call("connection.update-secret", secret.encode(), "renewed")

    async def _renew(self) -> None:
        """Ask the program for a new token before the old one ends."""
        interval = delay = self.config.token_interval
        while self.config.token is not None and interval and delay:
            await asyncio.sleep(delay)
            try:
                await self.renew(await token_of(self.config.token))
                delay = interval
            except ClosedError:
                return
            except (Error, OSError) as error:
                self.tell("error", error)
                delay = interval / 10  # the old one ends soon


def is_exit(error: BaseException) -> bool:
    """Whether what a function of the program raised ends the program: in the main thread alone.

    In others it would end a thread of ours, and nobody would hear of it.
    """
    is_meant = isinstance(error, (SystemExit, KeyboardInterrupt))
    return is_meant and threading.current_thread() is threading.main_thread()


def told_as(error: BaseException) -> Exception:
    """What `on_error` hears of what a function of the program raised."""
    if isinstance(error, Exception):
        return error
    told = Error(f"a function of the program raised {type(error).__name__}")
    told.__cause__ = error
    return told


def _is_dead(descriptor: int) -> bool:
    """Whether the kernel knows that the other side of a socket has gone."""
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    return any(
        events
        & (select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0))
        for _, events in poll.poll(0)
    )
