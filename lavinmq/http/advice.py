"""What seems wrong with the broker, in words, and the page on which it can be mended.

Judged from what is counted anyway, when somebody asks. Advice is for what lasts: something has to
be so for minutes, and a broker that is quiet, or busy and well, gets none. The thresholds are the
constants below. Everything is gone over in portions, and so much is told of each kind and no more.
Source: docs/pages.md; decision 0073.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lavinmq.amqp.channel import Consumer
from lavinmq.arguments.keys import Kind
from lavinmq.files.definitions import damaged_copies
from lavinmq.files.disk import DiskWatch
from lavinmq.http import certificates
from lavinmq.http.clients import client_of, sessions_of
from lavinmq.http.listing import in_portions
from lavinmq.policy.features import queue_kind
from lavinmq.policy.pattern import Patience
from lavinmq.process.worker import NoThreadError, aside
from lavinmq.vhost.subscribing import PREFIX

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.http.clients import Client
    from lavinmq.policy.policies import Policy
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

MOST: Final = 20
"""So many things are told of one kind; of the others their number."""
HISTORY_S: Final = 60.0
"""Nothing is said of rates before they have been watched for so long."""
GROWING: Final = 1000
"""Messages of a queue that nobody consumes."""
LETTERS: Final = 100
"""Messages in a queue of dead letters that nobody consumes."""
HELD_PART: Final = 0.9
"""Of its prefetch, that a consumer holds."""
HELD_S: Final = 300
"""How long its oldest delivery has waited then, while nothing was acknowledged."""
TIMEOUT_PART: Final = 0.8
"""Of the consumer timeout, that the oldest delivery has waited."""
SCANNED: Final = 100_000
"""Deliveries of a channel among which the oldest of a queue is looked for: some 0.5 ms."""
SOME: Final = 50
"""Consumers of a queue that are looked at."""
DISK_HOURS: Final = 12.0
"""Until publishers are held, at the rate of the history."""
DISK_LOSS: Final = 64 << 20
"""Bytes that the disk has lost in the history at least."""
CERTIFICATE: Final = timedelta(days=14)
POLICIES: Final = 20
"""Idle ones of a virtual host that are compared with all names: 9 ms each for 10 000 names."""

ERROR: Final = "error"
WARNING: Final = "warning"
HINT: Final = "hint"
_ORDER: Final = (ERROR, WARNING, HINT)


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece. `page`: of the management pages, about `name` in `vhost`, where it is mended."""

    kind: str
    level: str
    text: str
    page: str
    vhost: str = ""
    name: str = ""


@dataclass(slots=True)
class Found:
    """The advice so far, `MOST` of a kind; `more` counts the others."""

    advice: list[Advice] = field(default_factory=list)
    more: int = 0
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, one: Advice | None) -> None:
        """Take one, if there is one."""
        if one is None:
            return
        n = self._counts[one.kind] = self._counts.get(one.kind, 0) + 1
        if n > MOST:
            self.more += 1
        else:
            self.advice.append(one)

    def to_json(self) -> dict[str, Any]:
        """The worst first."""
        rows = sorted(self.advice, key=lambda each: _ORDER.index(each.level))
        return {"advice": [asdict(each) for each in rows], "more": self.more}


# --- queues -----------------------------------------------------------------------------------


async def of_queues(broker: Broker, vhosts: Iterable[VHost], found: Found) -> None:
    """Queues that grow and nobody reads, dead letters, consumers that do not acknowledge."""
    watched_s = broker.sampler.samples * broker.config.stats_interval / 1000
    for vhost in vhosts:
        found.add(of_files(broker, vhost))
        letters: set[str] = set()
        left: list[Queue] = []
        async for queue in in_portions(list(vhost.queues.values())):
            target = queue.features.dead_letter_exchange
            if target is not None:
                key = queue.features.dead_letter_routing_key
                letters.add(target or f"\0{key or queue.name}")
            if queue.is_session:
                found.add(of_session(vhost, queue, watched_s))
            elif watched_s >= HISTORY_S and is_left(queue):
                left.append(queue)
            if queue.core.unacked and not queue.is_stream:
                found.add(of_unacked(vhost, queue))
        async for queue in in_portions(left):
            found.add(of_left(vhost, queue, letters))


def is_left(queue: Queue) -> bool:
    """Whether a queue has lately been given messages, nobody takes any, and nothing bounds it."""
    track, features = queue.track, queue.features
    if track is None or queue.core.ready < LETTERS or queue.consumers:
        return False
    if queue.is_stream or queue.is_internal or queue.core.is_paused:
        return False
    limits = (
        features.max_length, features.max_length_bytes, features.message_ttl_ms,
        features.expires_ms,
    )  # fmt: skip
    if any(limit is not None for limit in limits):
        return False
    return track.has_moved("publish") and not track.has_moved("deliver_get")


def of_left(vhost: VHost, queue: Queue, letters: set[str]) -> Advice | None:
    """Advice about a queue that `is_left`. Args: letters: exchanges that take dead letters, and
    behind a zero the queues that the default exchange takes them to."""
    ready = queue.core.ready
    sources = {source.name for source, _, _ in queue.incoming} & letters
    if sources or f"\0{queue.name}" in letters:
        text = f"{ready} dead letters wait in the queue {queue.name}, and nobody consumes them"
        return Advice("dead_letters", WARNING, text, "queue", vhost.name, queue.name)
    if ready < GROWING:
        return None
    text = (
        f"The queue {queue.name} grows, has {ready} messages and no consumer: start one, or give"
        " it a limit by a policy"
    )
    return Advice("growing_queue", WARNING, text, "queue", vhost.name, queue.name)


def of_session(vhost: VHost, queue: Queue, watched_s: float) -> Advice | None:
    """Advice about the session of an MQTT client, or a shared subscription, that is left alone."""
    track, features, ready = queue.track, queue.features, queue.core.ready
    if track is None or not ready or not track.has_moved("publish"):
        return None
    name = queue.name.removeprefix(PREFIX)
    if not queue.consumers:
        limits = (features.max_length, features.max_length_bytes, features.message_ttl_ms)
        if ready < GROWING or watched_s < HISTORY_S or any(each is not None for each in limits):
            return None
        if track.has_moved("deliver_get"):
            return None
        text = (
            f"The MQTT session {name} grows, has {ready} messages, and its client is away: give it"
            " a limit by a policy, or delete it"
        )
        return Advice("growing_session", WARNING, text, "queue", vhost.name, queue.name)
    client = client_of(queue)
    if client is None or watched_s < HELD_S or track.has_moved("deliver_get"):
        return None
    in_flight = client.link.mqtt_counters().get("in_flight", 0)
    if in_flight < client.receive_maximum or track.has_moved("ack"):
        return None
    text = (
        f"The MQTT client {client.client_id} has {in_flight} messages and acknowledges none, while"
        f" {ready} wait for it"
    )
    return Advice("silent_client", WARNING, text, "queue", vhost.name, queue.name)


def of_files(broker: Broker, vhost: VHost) -> Advice | None:
    """Advice about what MQTT keeps, when it cannot be read."""
    known = sessions_of(broker, vhost)
    if known is None or known.stores.are_well:
        return None
    text = (
        f"Files of MQTT in the virtual host {vhost.name} cannot be read: nobody is served there."
        " The log says which"
    )
    return Advice("mqtt_files", ERROR, text, "mqtt")


def of_unacked(vhost: VHost, queue: Queue) -> Advice | None:
    """Advice about the first consumer of a queue that keeps what it was given for too long."""
    timeout_s = queue.core.consumer_timeout_ms / 1000
    is_still = queue.track is None or not queue.track.has_moved("ack")
    if not timeout_s and not (is_still and queue.core.ready):
        return None
    for consumer in list(islice(queue.consumers, SOME)):
        if not isinstance(consumer, Consumer):
            continue
        age_s = _oldest_s(consumer)
        core = consumer.core
        who = f"The consumer {consumer.tag} of the queue {queue.name}"
        if timeout_s and age_s >= timeout_s * TIMEOUT_PART:
            text = (
                f"{who} has had a message for {age_s} s: its channel is closed after"
                f" {timeout_s:g} s without an acknowledgement"
            )
            return Advice("consumer_timeout", WARNING, text, "unacked", vhost.name, queue.name)
        is_full = 0 < core.prefetch * HELD_PART <= core.unacked
        if is_full and is_still and queue.core.ready and age_s >= HELD_S:
            text = (
                f"{who} holds {core.unacked} of {core.prefetch} messages that it may hold, the"
                f" oldest for {age_s} s, and acknowledges none while {queue.core.ready} wait"
            )
            return Advice("unacknowledged", WARNING, text, "unacked", vhost.name, queue.name)
    return None


def _oldest_s(consumer: Consumer) -> int:
    """Age of the oldest delivery of the queue on the consumer's channel, 0 when there is none."""
    channel = consumer.channel
    if channel.is_over or not consumer.core.unacked:
        return 0
    link = channel.connection.link
    if link.unacked(channel.id) > SCANNED:
        return 0
    oldest = link.unacked_of(channel.id, consumer.queue.core, 0, 1)
    return oldest[0][2] if oldest else 0


# --- policies ---------------------------------------------------------------------------------


async def of_policies(vhosts: Iterable[VHost], found: Found) -> None:
    """Policies whose patterns match nothing that there is, where there is something to match."""
    for vhost in vhosts:
        if not any(not queue.is_internal for queue in vhost.queues.values()):
            continue
        for is_operator in (False, True):
            rules = vhost.rules
            store = rules.operator_policies if is_operator else rules.policies
            idle = {each.name: each for each in store.all()}
            async for name in in_portions(_applied(vhost, is_operator=is_operator)):
                idle.pop(name or "", None)
            for policy in list(idle.values())[:POLICIES]:
                if not policy.stumbles and not await _matches_any(vhost, policy):
                    found.add(_of_policy(vhost, policy, is_operator=is_operator))


def _applied(vhost: VHost, *, is_operator: bool) -> Iterator[str | None]:
    """The names of the policies that queues and exchanges follow."""
    for queue in list(vhost.queues.values()):
        yield queue.features.operator_policy if is_operator else queue.features.policy
    for exchange in list(vhost.exchanges.values()):
        yield exchange.features.operator_policy if is_operator else exchange.features.policy


async def _matches_any(vhost: VHost, policy: Policy) -> bool:
    """Whether it would apply to something, were there no other policy."""
    patience = Patience()
    async for queue in in_portions(list(vhost.queues.values())):
        if policy.matches(queue.name, queue_kind(queue.arguments), patience):
            return True
    async for exchange in in_portions(list(vhost.exchanges.values())):
        if policy.matches(exchange.name, Kind.EXCHANGE, patience):
            return True
    return patience.has_skipped or bool(policy.stumbles)


def _of_policy(vhost: VHost, policy: Policy, *, is_operator: bool) -> Advice:
    what, page = ("operator policy", "operator-policies") if is_operator else ("policy", "policies")
    text = f"The {what} {policy.name} matches nothing in the virtual host {vhost.name}"
    return Advice("idle_policy", HINT, text, page, vhost.name, policy.name)


# --- virtual hosts ---------------------------------------------------------------------------


def of_definitions(vhost: VHost) -> Advice | None:
    """Definitions that a start could not read, as long as their copies are there."""
    copies = damaged_copies(vhost.recorded.file.path)
    if not copies:
        return None
    text = (
        f"Of the definitions of the virtual host {vhost.name} some could not be read: exchanges,"
        f" queues or bindings may be missing. Copies of the damaged file are in {vhost.directory}:"
        f" {', '.join(copies)}. Remove them once all is there"
    )
    return Advice("damaged_definitions", ERROR, text, "vhosts", vhost.name)


# --- the machine ------------------------------------------------------------------------------


def of_publishers(broker: Broker, connections: list[Client]) -> Advice | None:
    """Publishers that are held. Args: connections: those that the caller may see."""
    if not broker.loop.is_held:
        return None
    n = sum(each.is_blocked for each in connections)
    text = f"The disk is short of space: publishers are held, {n} connections wait. Make room"
    return Advice("held_publishers", ERROR, text, "nodes")


def of_disk(free: list[float], interval_s: float, limit: int) -> Advice | None:
    """Free space that ends soon.

    Args: free: bytes at each sample, the oldest first; zeros are unknown; interval_s: between two;
        limit: bytes below which publishers are held.
    """
    known = [value for value in free if value > 0]
    n = len(known)
    if n < 4 or (n - 1) * interval_s < HISTORY_S:
        return None
    first, middle, last = known[0], known[n // 2], known[-1]
    # It has to have gone down in both halves: one large file is no rate.
    if first - last < DISK_LOSS or min(first - middle, middle - last) * 4 < first - last:
        return None
    rate = (first - last) / ((n - 1) * interval_s)
    hours = max(last - limit, 0) / rate / 3600
    if hours >= DISK_HOURS:
        return None
    when = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    text = (
        f"The disk loses {rate / (1 << 20):.1f} MiB each second: at this rate publishers are held"
        f" in {when}"
    )
    return Advice("disk_soon_full", WARNING, text, "nodes")


async def of_certificates(broker: Broker, found: Found) -> None:
    """Certificates of listeners that end soon, or cannot be read."""
    files = certificates.paths(broker.config)
    if not files:
        return
    try:
        ends = await aside(certificates.expirations, files)
    except (OSError, ValueError, NoThreadError) as error:
        text = f"A certificate cannot be read: {error}"
        found.add(Advice("certificate", ERROR, text, "nodes"))
        return
    now = datetime.now(UTC)
    for path, end in ends:
        found.add(of_certificate(path, end, now))


def of_certificate(path: str, end: datetime, now: datetime) -> Advice | None:
    """A certificate that ends within two weeks, or has ended."""
    if end - now > CERTIFICATE:
        return None
    if end <= now:
        text = f"The certificate {path} has ended on {end:%Y-%m-%d}: clients refuse it"
        return Advice("certificate", ERROR, text, "nodes")
    text = f"The certificate {path} ends on {end:%Y-%m-%d}, in {(end - now).days} days: renew it"
    return Advice("certificate", WARNING, text, "nodes")


def of_machine(broker: Broker) -> Advice | None:
    """The disk of this broker, see `of_disk`."""
    free = broker.system.log("disk_free", broker.sampler.samples)
    interval_s = broker.config.stats_interval / 1000
    return of_disk(free, interval_s, DiskWatch(broker.config).limit)
