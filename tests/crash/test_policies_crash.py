"""The broker is killed, or loses its power, while policies come and go.

The file of the policies is the one before or after a change, never a torn one, and after a restart
everything follows it. Under load, what was confirmed is in its queue or among the dead letters,
unless a policy that was in force without a place for dead letters has dropped the oldest.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash import policy_broker
from tests.crash.books import messages_found
from tests.crash.conftest import EVERY_READING
from tests.crash.load import Client, Message, Publisher, Stream, stream_and_number
from tests.crash.policy_broker import DEAD, LOSSY, LOSSY_LENGTH, RULED, Change, State, read_journal
from tests.support.broker import Broker, BrokerError
from tests.support.disk import Action, Call, Disk
from tests.support.inside import Inside, inside
from tests.support.lavinmqperf import until
from tests.support.patience import PATIENCE
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import directory_name
from tests.support.waiting import wait_for
from tests.support.wire import Unit, Wire

SHORT_LIVES, LONG_LIVES = 3, 40
SHORT_CUTS, LONG_CUTS = 25, 400
CHANGES = 12
FILES = "*/policies.json*"
KINDS = (Call.OPEN, Call.WRITE, Call.SYNC, Call.RENAME)
ENOUGH_CHANGES = 15
PROGRESS_TIMEOUT_S = 20.0 * PATIENCE
ROOT = Path(__file__).resolve().parents[2]
QUEUES = (f"{RULED}-published", f"{RULED}-requeued", LOSSY, "plain", DEAD)
"""The dead letters come last: a message may move there while they are read, not back."""

pytestmark = pytest.mark.crash
MakeBroker = Callable[..., Broker]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where the program under test notes what it does."""
    return tmp_path / "journal"


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[MakeBroker]:
    """Call it to get a broker, not started, whose policies change."""
    made: list[Broker] = []

    def make(
        data_dir: Path, journal: Path, seed: int, *args: str, env: Mapping[str, str] | None = None
    ) -> Broker:
        options = ["--journal", str(journal), "--seed", str(seed), *args]
        command = [sys.executable, str(policy_broker.__file__)]
        made.append(
            Broker(data_dir, options, env={"PYTHONPATH": str(ROOT), **(env or {})}, command=command)
        )
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def stored(data_dir: Path) -> State:
    """Return what the file says. Raises ValueError for a torn one."""
    path = data_dir / directory_name("/") / "policies.json"
    if not path.exists():
        return {}
    return {entry["name"]: entry["definition"] for entry in json.loads(path.read_text())}


def check_stored(data_dir: Path, changes: list[Change], before_ns: int | None = None) -> None:
    """The file is what the last change that was carried out has left, or the one after it."""
    done, possible = [State()], [State()]
    for change in changes:
        if change.done_ns is not None and (before_ns is None or change.done_ns <= before_ns):
            done, possible = [change.state], [change.state]
        elif before_ns is None or change.began_ns <= before_ns:
            possible.append(change.state)
    assert len(possible) <= len(done) + 1
    assert stored(data_dir) in possible


def check_in_force(broker: Inside, state: State) -> None:
    """What was loaded is what the queues follow."""
    policies = {each.name: each.definition for each in broker.vhost().rules.policies.all()}
    assert policies == state
    for name in QUEUES:
        if name in broker.vhost().queues:
            queue, rule = broker.queue(name), name.partition("-")[0]
            assert queue.policy == (rule if rule in state else None)
            assert dict(queue.features.policy_definition) == state.get(rule, {})


# --- the file ---------------------------------------------------------------------------------

Point = tuple[Action, Call, int]


def points_of(disk: Disk, chance: random.Random, *, is_long: bool) -> list[Point]:
    """Before and after every kind of call, of any change; in the long form at every call."""
    numbers = {
        kind: [each.number for each in disk.records() if each.kind is kind and each.number]
        for kind in KINDS
    }
    assert all(len(each) == CHANGES for each in numbers.values()), numbers
    actions = (Action.KILL_BEFORE, Action.KILL_AFTER)
    points = [
        (action, kind, number)
        for kind in KINDS
        for action in (*actions, *([Action.KILL_MIDDLE] if kind is Call.WRITE else []))
        for number in (numbers[kind] if is_long else [chance.choice(numbers[kind])])
    ]
    return points


def test_a_kill_at_any_call_leaves_the_old_policies_or_the_new_ones(
    tmp_path: Path, disk_shim: Path, changing: MakeBroker, is_long: bool
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    disk = Disk(disk_shim, tmp_path / "whole", tmp_path)
    disk.plan(Action.NOTHING, Call.CHANGES, FILES)
    options = ("--changes", str(CHANGES))
    whole = changing(
        tmp_path / "whole", tmp_path / "whole.journal", seed, *options, env=disk.env(log=True)
    )
    run_to_the_end(whole, tmp_path / "whole.journal")
    assert whole.stop() == 0
    check_stored(whole.data_dir, read_journal(tmp_path / "whole.journal"))

    for action, kind, number in points_of(disk, chance, is_long=is_long):
        print(f"seed {seed}: {action.name} call {number}, {kind.name}")
        root = tmp_path / f"{action.name}-{number}"
        (tmp_path / f"{root.name}.disk").mkdir()
        killing = Disk(disk_shim, root, tmp_path / f"{root.name}.disk")
        killing.plan(action, Call.CHANGES, FILES, first=number, last=number)
        journal = tmp_path / f"{root.name}.journal"
        broker = changing(root, journal, seed, *options, env=killing.env())
        with suppress(BrokerError):  # it may be dead before the port answers
            broker.start()
        assert broker.wait() == -signal.SIGKILL
        killing.close()

        check_stored(root, read_journal(journal))
        state = stored(root)
        with inside(root) as again:
            declare_queues(again.port)
            check_in_force(again, state)
            again.put_policy("new", "^plain", {"max-length": 1})
        assert stored(root) == {**state, "new": {"max-length": 1}}


def run_to_the_end(broker: Broker, journal: Path) -> None:
    broker.start()
    wait_for(lambda: is_finished(journal), "not all changes were made")


def is_finished(journal: Path) -> bool:
    made = read_journal(journal) if journal.exists() else []
    return len(made) == CHANGES and made[-1].done_ns is not None


@EVERY_READING
def test_a_loss_of_power_leaves_the_old_policies_or_the_new_ones(
    tmp_path: Path, disk_shim: Path, changing: MakeBroker, journal: Path, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    disk = Disk(disk_shim, tmp_path / "data", tmp_path)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker = changing(
        tmp_path / "data", journal, seed, "--changes", str(CHANGES), env=disk.env(log=True)
    )
    run_to_the_end(broker, journal)
    broker.kill()
    made, records = read_journal(journal), disk.records()
    first = next(at for at, each in enumerate(records) if "policies.json" in each.path)

    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        cut = chance.randrange(first, len(records) + 1)
        print(f"seed {seed}: after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        # The change under way at the next call was not answered before it.
        before_ns = records[cut].time_ns if cut < len(records) else time.monotonic_ns()
        check_stored(root, made, before_ns)


# --- under load -------------------------------------------------------------------------------


class RefusablePublisher(Publisher):
    """Takes a nack as the word that a message was not stored."""

    def __init__(self, port: int, streams: list[Stream], seed: int) -> None:
        super().__init__(port, streams, seed)
        self.refused: set[Message] = set()

    def _take(self, unit: Unit) -> None:
        """A nack may come before the acks of earlier messages, which come together."""
        method, stream = unit.method, self.streams[unit.channel]
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
        tag = confirmed = method.delivery_tag
        if isinstance(method, commands.Basic.Nack):
            assert not method.multiple
            self.refused.add((stream.name, tag))
            confirmed = stream.confirmed
        while (stream.name, confirmed + 1) in self.refused:
            confirmed += 1
        if confirmed > stream.confirmed:
            stream.confirm(confirmed)


class Requeuer(Client):
    """Acks some of what it gets and requeues the rest."""

    def __init__(self, port: int, queue: str, seed: int) -> None:
        super().__init__(Wire.open(port))
        self._chance = random.Random(seed)
        self.acknowledged: set[Message] = set()
        self.wire.call(1, commands.Basic.Qos(prefetch_count=30), commands.Basic.QosOk)
        self.wire.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)

    def work(self) -> None:
        while True:
            unit = self.wire.receive()
            assert isinstance(unit.method, commands.Basic.Deliver)
            tag = unit.method.delivery_tag
            if self._chance.random() < 0.3:
                self.acknowledged.add(stream_and_number(unit.body))
                self.wire.send(1, commands.Basic.Ack(tag))
            else:
                self.wire.send(1, commands.Basic.Reject(tag, requeue=True))


@dataclass(slots=True)
class Books:
    """What clients did, over any number of lives of a broker."""

    streams: dict[str, Stream] = field(default_factory=dict)
    refused: set[Message] = field(default_factory=set)
    acknowledged: set[Message] = field(default_factory=set)

    def check(self, found: Mapping[str, list[Message]]) -> None:
        """Compare with what is in the queues."""
        there = set().union(*found.values())
        for stream in self.streams.values():
            confirmed = {(stream.name, number) for number in range(1, stream.confirmed + 1)}
            missing = confirmed - there - self.refused - self.acknowledged
            if stream.queue != LOSSY:
                assert not missing, f"confirmed and lost: {sorted(missing)[:5]} of {len(missing)}"
        for queue, messages in found.items():
            assert queue == DEAD or not self.refused.intersection(messages), "nacked and stored"
            self._check_order(queue, messages)
        self._check_lossy(found[LOSSY])

    def _check_order(self, queue: str, messages: list[Message]) -> None:
        numbers: dict[str, list[int]] = defaultdict(list)
        for name, number in messages:
            stream = self.streams[name]
            assert 1 <= number <= stream.published, f"{name}: never published"
            assert stream.queue == queue or (queue == DEAD and stream.queue.startswith(RULED))
            numbers[name].append(number)
        for name, each in numbers.items():
            if queue != DEAD:
                assert each == sorted(set(each)), f"{queue}: {name}: twice or out of order"

    def _check_lossy(self, messages: list[Message]) -> None:
        """Only the oldest may be gone, each for as many newer ones, which a kill may have taken."""
        streams = [stream for stream in self.streams.values() if stream.queue == LOSSY]
        sent = [
            (stream.name, number) for stream in streams for number in range(1, stream.published + 1)
        ]
        there = set(messages)
        oldest = next((at for at, message in enumerate(sent) if message in there), len(sent))
        gone = [
            at
            for at, (name, number) in enumerate(sent)
            if number <= self.streams[name].confirmed and (name, number) not in there
        ]
        assert all(at < oldest for at in gone), "a gap"
        assert all(at + LOSSY_LENGTH < len(sent) for at in gone), "more than the policy says"


def declare_queues(port: int) -> None:
    with Wire.open(port) as wire:
        for queue in QUEUES:
            declare = commands.Queue.Declare(queue=queue, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)


def work_until_killed(broker: Broker, journal: Path, books: Books, life: int, seed: int) -> None:
    """Publish and requeue while policies change; kill after some changes; fill the books."""
    port = broker.port
    streams = [Stream(f"{life}-{queue}", queue) for queue in QUEUES if queue != DEAD]
    publisher = RefusablePublisher(port, streams, seed)
    requeuer = Requeuer(port, f"{RULED}-requeued", seed)
    clients: list[Client] = [publisher, requeuer]
    begun = len(read_journal(journal))
    for client in clients:
        client.start()
    enough = random.Random(seed).randrange(50, 300)
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while (len(read_journal(journal)) < begun + ENOUGH_CHANGES
           or any(stream.confirmed < enough for stream in streams)):  # fmt: skip
        assert all(client.is_alive() for client in clients), [each.error for each in clients]
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.005)
    broker.kill()
    for client in clients:
        client.finish()
    books.streams.update((stream.name, stream) for stream in streams)
    books.refused |= publisher.refused
    books.acknowledged |= requeuer.acknowledged


def test_what_was_confirmed_survives_kills_while_policies_change(
    tmp_path: Path, changing: MakeBroker, is_long: bool
) -> None:
    data_dir, books = tmp_path / "data", Books()
    with inside(data_dir) as first:
        declare_queues(first.port)
    state = State()
    for life in range(LONG_LIVES if is_long else SHORT_LIVES):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"life {life}: seed {seed}")
        journal = tmp_path / f"journal-{life}"
        broker = changing(data_dir, journal, seed)
        broker.start()
        work_until_killed(broker, journal, books, life, seed)

        check_stored(data_dir, [Change(state, 0, 0), *read_journal(journal)])
        state = stored(data_dir)
        with inside(data_dir) as again:
            check_in_force(again, state)
            if LOSSY in state:  # limits are enforced in portions, and consumers may be faster
                until(lambda inside=again: inside.queue(LOSSY).core.ready <= LOSSY_LENGTH)
            found = messages_found(again.port, QUEUES, count_is_exact=False)
            books.check(found)
            if LOSSY in state:
                assert len(found[LOSSY]) <= LOSSY_LENGTH
