"""A client of etcd v3, by its JSON gateway: keys, transactions, leases and watches.

An endpoint that cannot be reached, or has no leader, is left for the next one; a transaction that
may have been sent is not sent again. What comes is bounded and checked: whatever is wrong with it
is an `EtcdError`. It runs on the loop of its caller, and leaves no task behind.
`etcd_values.py` has the values and their JSON, `etcd_wire.py` the requests to one endpoint.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from lavinmq.cluster import etcd_values as values
from lavinmq.cluster.etcd_values import (
    Compare,
    Delete,
    Entry,
    EtcdError,
    Event,
    Failed,
    Fields,
    Garbled,
    Lost,
    NoLease,
    Put,
    Refused,
    Unreachable,
    prefix_end,
)
from lavinmq.cluster.etcd_wire import CLOSED, LOGIN, Endpoint, Exchange, answer_of, context_of

__all__ = [
    "Compare", "Delete", "Entry", "Etcd", "EtcdError", "Event", "NoLease", "Put", "Unreachable",
    "prefix_end",
]  # fmt: skip

SILENCE_S: Final = 30.0
"""A watch that has had no sign of life of its endpoint for so long is over."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_BAD_TOKEN: Final = ("invalid auth token", "auth store is old", "user name is empty")

T = TypeVar("T")


class Etcd:
    """All of one etcd cluster, by any of its endpoints. Call it from one event loop.

    Args: endpoints: `host`, `host:port` or `http(s)://[user:password@]host[:port]`, IPv6 in
        brackets. timeout_s: for each endpoint that is asked. ca: a file of authorities, else those
        of the system; cert, key: files of a client's certificate.
    Raises: ValueError, for what is no endpoint, or a file that cannot be used.
    """

    def __init__(
        self, endpoints: Sequence[str], *, timeout_s: float = 2.0,
        ca: str = "", cert: str = "", key: str = "",
    ) -> None:  # fmt: skip
        self._endpoints = [Endpoint(each.strip()) for each in endpoints]
        if not self._endpoints:
            raise ValueError("there is no etcd endpoint")
        self._tls = None
        if any(each.is_tls for each in self._endpoints):
            self._tls = context_of(ca, cert, key)
        self.timeout_s = timeout_s
        self.silence_s = SILENCE_S
        self._last: Endpoint | None = None
        self._cluster: int | None = None
        self._running: set[Exchange] = set()
        self._is_closed = False
        self._answered_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since it has answered; while nothing is asked it says nothing either."""
        return time.monotonic() - self._answered_at

    async def get(self, key: str) -> Entry | None:
        """The entry of a key, None if there is none. Raises: EtcdError."""
        rows, _ = await self._range({"key": values.coded(key)})
        return rows[0] if rows else None

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        """All entries with a prefix, by key, and the revision of the answer. Raises: EtcdError."""
        rows, revision = await self._range(values.range_of(prefix))
        return sorted(rows), revision

    async def _range(self, body: Fields) -> tuple[list[Entry], int]:
        def read(fields: Fields) -> tuple[list[Entry], int]:
            found = [values.entry_of(row) for row in values.rows(fields, "kvs")]
            return found, values.revision_of(fields)

        return await self._call("kv/range", body, read)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put | Delete]
    ) -> tuple[bool, int]:
        """Do all of it if all is equal. Returns whether it was, and the revision after it.

        Raises: EtcdError; with `maybe_done` it may have been carried out, and has to be looked at:
            it is not sent again. NoLease, if a lease of it is gone: nothing was done.
        """
        body = {"compare": [values.compared(each) for each in compares],
                "success": [values.operation(each) for each in puts]}  # fmt: skip

        def read(fields: Fields) -> tuple[bool, int]:
            return values.flag(fields, "succeeded"), values.revision_of(fields)

        return await self._call("kv/txn", body, read, once=True)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Make a lease: its id and its time to live, which etcd may have raised, in seconds.

        When an answer is lost, a lease of which nobody knows may be left until it expires.
        """

        def read(fields: Fields) -> tuple[int, int]:
            return values.number(fields, "ID", least=1), values.number(fields, "TTL", least=1)

        return await self._call("lease/grant", {"TTL": str(ttl_s)}, read)

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease: the seconds it has from now on. Raises: NoLease, EtcdError."""

        def read(fields: Fields) -> int:
            if values.number(fields, "ID") != lease:
                raise Garbled("it is about another lease")
            return values.number(fields, "TTL", least=0, or_zero=True)

        left = await self._call("lease/keepalive", {"ID": str(lease)}, read)
        if left == 0:
            raise NoLease(f"etcd: lease/keepalive: lease {lease} is gone")
        return left

    async def time_left(self, lease: int) -> tuple[int, int]:
        """The whole seconds that a lease has left, -1: it is gone, and those that it has had.
        Raises: EtcdError."""

        def read(fields: Fields) -> tuple[int, int]:
            if values.number(fields, "ID") != lease:
                raise Garbled("it is about another lease")
            left = values.number(fields, "TTL", least=-1, or_zero=True)
            return left, values.number(fields, "grantedTTL", or_zero=True)

        return await self._call("lease/timetolive", {"ID": str(lease)}, read)

    async def revoke(self, lease: int) -> None:
        """End a lease, and the keys with it; one that is gone is no error. Raises: EtcdError."""
        with suppress(NoLease):
            await self._call("lease/revoke", {"ID": str(lease)}, lambda fields: None)

    async def watch(
        self, prefix: str, revision: int
    ) -> AsyncGenerator[tuple[list[Event], int], None]:
        """What changes below a prefix from a revision on (0: from now on), and how far that goes.

        Go on at the revision given last, plus one.
        Raises: EtcdError, when it cannot begin; when the stream ends, is cancelled by etcd (the
            text says so when the revision is compacted), or its endpoint gives no sign of life
            for `silence_s`.
        """
        endpoint, stream = await self._begin_watch(prefix, revision)
        try:
            while True:
                fields = await self._next(endpoint, stream, prefix)
                batch = self._batch(endpoint, fields, revision)
                if batch is not None:
                    yield batch
                    revision = batch[1] + 1
        except Failed as failed:
            raise EtcdError(f"etcd: watch at {endpoint}: {failed}") from None
        finally:
            await self._end(stream)

    async def close(self) -> None:
        """End all that runs; calls and watches under way fail, as do later ones."""
        self._is_closed = True
        running = list(self._running)
        for each in running:
            each.end()
        for each in running:
            await each.ended()

    # ---- watches

    async def _begin_watch(self, prefix: str, revision: int) -> tuple[Endpoint, Exchange]:
        """Make one at the first endpoint that takes it."""
        where = values.range_of(prefix)
        create = where | {"start_revision": str(revision), "progress_notify": True}

        async def begin(endpoint: Endpoint) -> Exchange:
            deadline = self._deadline()
            # etcd tells a watch of an old token only that it is not permitted: so ask before.
            await self._ask(endpoint, "kv/range", where | {"count_only": True}, deadline)
            stream = self._exchange(endpoint)
            try:
                async with asyncio.timeout_at(deadline):
                    await stream.send(endpoint.request("watch", {"create_request": create}))
                    fields = self._message(endpoint, await stream.line(), stream.status)
                if self._batch(endpoint, fields, revision) or not values.flag(fields, "created"):
                    raise Garbled("it does not begin with a watch that was created")
            except BaseException as error:
                await self._end(stream)
                if isinstance(error, TimeoutError):
                    raise Lost(self._no_answer()) from None
                raise
            return stream

        return await self._anywhere("watch", begin)

    async def _next(self, endpoint: Endpoint, stream: Exchange, prefix: str) -> Fields:
        """The next message. In a silence the endpoint is asked whether it is there."""
        loop = asyncio.get_running_loop()
        heard, body = loop.time(), values.range_of(prefix) | {"count_only": True}
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.silence_s / 3):
                    return self._message(endpoint, await stream.line(), stream.status)
            try:
                await self._ask(endpoint, "kv/range", body, self._deadline())
                heard = loop.time()
            except Lost as lost:
                if loop.time() - heard >= 0.9 * self.silence_s:
                    raise Lost(f"it stands still: {lost}") from None

    def _message(self, endpoint: Endpoint, line: bytes, status: int) -> Fields:
        fields = answer_of(endpoint, status, line)
        self._check_cluster(fields)
        self._answered_at = time.monotonic()
        return fields

    def _batch(
        self, endpoint: Endpoint, fields: Fields, revision: int
    ) -> tuple[list[Event], int] | None:
        """The events of a message, None if there are none."""
        if compacted := values.number(fields, "compact_revision", or_zero=True):
            raise Refused(f"revision {revision} is compacted, the oldest is {compacted}", False)
        if values.flag(fields, "canceled"):
            reason = endpoint.clean(str(fields.get("cancel_reason", "no reason given")))
            raise Refused(f"etcd has cancelled it: {reason}", False)
        found = [values.event_of(row) for row in values.rows(fields, "events")]
        if not found:
            return None
        return [event for event, _ in found], max(last for _, last in found)

    # ---- calls

    async def _call(
        self, path: str, body: Fields, read: Callable[[Fields], T], *, once: bool = False
    ) -> T:
        """Ask the endpoints in turn; with `once` none after one that may have done it."""

        async def ask(endpoint: Endpoint) -> T:
            return read(await self._ask(endpoint, path, body, self._deadline()))

        return (await self._anywhere(path, ask, once=once))[1]

    async def _anywhere(
        self, path: str, ask: Callable[[Endpoint], Awaitable[T]], *, once: bool = False
    ) -> tuple[Endpoint, T]:
        """The first endpoint that answers, and what it has answered. Raises: EtcdError."""
        reasons = []
        for endpoint in self._order():
            try:
                found = await ask(endpoint)
            except Failed as failed:
                self._last = endpoint if isinstance(failed, Refused) else None
                reasons.append(f"{endpoint}: {failed}")
                may_be_done = once and failed.is_sent
                if may_be_done or self._is_closed or not isinstance(failed, Lost):
                    text = f"{path} at {'; '.join(reasons)}"
                    raise self._error(failed, text, may_be_done) from None
            else:
                self._last = endpoint
                return endpoint, found
        raise Unreachable(f"etcd: {path}: no endpoint answers: {'; '.join(reasons)}")

    def _error(self, failed: Failed, text: str, maybe_done: bool = False) -> EtcdError:
        """What callers are told about the failure of one endpoint."""
        kind = EtcdError
        if isinstance(failed, Lost) and not self._is_closed:
            kind = Unreachable
        elif isinstance(failed, Refused) and "lease not found" in str(failed):
            kind = NoLease
        error = kind(f"etcd: {text}")
        error.maybe_done = maybe_done
        return error

    def _order(self) -> list[Endpoint]:
        """All endpoints, at random, after the one that has answered last."""
        found = random.sample(self._endpoints, len(self._endpoints))
        return sorted(found, key=lambda each: each is not self._last)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout_s

    def _no_answer(self) -> str:
        return f"no answer within {self.timeout_s:g} s"

    async def _ask(self, endpoint: Endpoint, path: str, body: Fields, deadline: float) -> Fields:
        """Ask one endpoint, with a new token if the old one is refused. Raises: Failed."""
        try:
            if endpoint.token is None:
                await self._log_in(endpoint, deadline)
            return await self._post(endpoint, path, body, deadline)
        except Refused as refused:
            if not endpoint.user or not any(text in str(refused) for text in _BAD_TOKEN):
                raise
        await self._log_in(endpoint, deadline)
        return await self._post(endpoint, path, body, deadline)

    async def _log_in(self, endpoint: Endpoint, deadline: float) -> None:
        """Get a token, if etcd wants one. What is to be asked after it has not been sent then."""
        login = {"name": endpoint.user, "password": endpoint.password}
        try:
            token = (await self._post(endpoint, LOGIN, login, deadline)).get("token")
            if not isinstance(token, str) or not _TOKEN.fullmatch(token):
                raise Garbled("there is no token")
        except Failed as failed:
            if not isinstance(failed, Refused) or "is not enabled" not in str(failed):
                raise type(failed)(f"login of {endpoint.user!r}: {failed}", False) from None
            token = ""
        endpoint.token = token

    async def _post(self, endpoint: Endpoint, path: str, body: Fields, deadline: float) -> Fields:
        exchange = self._exchange(endpoint)
        try:
            async with asyncio.timeout_at(deadline):
                await exchange.send(endpoint.request(path, body))
                content = await exchange.whole()
        except TimeoutError:
            raise Lost(self._no_answer(), exchange.is_sent) from None
        finally:
            await self._end(exchange)
        return self._message(endpoint, content, exchange.status)

    def _exchange(self, endpoint: Endpoint) -> Exchange:
        if self._is_closed:
            raise Lost(CLOSED, False)
        exchange = Exchange(endpoint, self._tls, self.timeout_s)
        self._running.add(exchange)
        return exchange

    async def _end(self, exchange: Exchange) -> None:
        exchange.end()
        self._running.discard(exchange)
        await exchange.ended()

    def _check_cluster(self, fields: Fields) -> None:
        header = values.header_of(fields)
        cluster = values.number(header, "cluster_id", least=1, most=(1 << 64) - 1)
        if self._cluster is None:
            self._cluster = cluster
        if cluster != self._cluster:
            raise Garbled(f"it is of cluster {cluster:x}, ours is {self._cluster:x}")
