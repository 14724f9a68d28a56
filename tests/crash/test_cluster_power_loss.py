"""The power of a node of a cluster goes: what its disk may hold then has all that was acknowledged.

One run under load gives a log of all file calls of a follower. It is cut at random moments after
the node came in sync; what was not synced by then survives in part. A broker that starts on that
has to find everything that was acknowledged before: in a cluster it might lead. A failure names its
seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import EVERY_READING
from tests.support.api import Api
from tests.support.book import Book
from tests.support.broker import Broker
from tests.support.cluster import Cluster, ClusterNode
from tests.support.disk import Call, Disk, Record
from tests.support.etcd import WHY_NOT
from tests.support.power_loss import Reading, Survivors
from tests.support.wire import Wire

SHORT_CUTS, LONG_CUTS = 6, 400
ROUNDS = 12

pytestmark = [pytest.mark.crash, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
BrokerFactory = Callable[..., Broker]


class Run:
    """What was acknowledged, when, and what a follower's disk was asked to do."""

    def __init__(self, directory: Path, shim: Path, seed: int) -> None:
        self.users: list[tuple[int, str]] = []
        self.queues: list[tuple[int, str]] = []
        with Cluster(directory) as cluster:
            follower = cluster.nodes[2]
            disk = Disk(shim, follower.data_dir, directory)
            with closing(disk):
                follower.env = disk.env(log=True)
                for each in cluster.nodes[:2]:
                    each.start()
                cluster.wait_in_sync(cluster.nodes[:2])
                follower.start()
                leader = cluster.whole()
                with Book(cluster, seed=seed) as book, Wire.open(leader.port) as wire:
                    self.began = len(disk.records())
                    for number in range(ROUNDS):
                        book.progress(10)
                        self._change(leader, wire, number)
                self.book = book
                assert cluster.picture().epoch == 1
                follower.kill()
                self.records: list[Record] = disk.records()

    def _change(self, leader: ClusterNode, wire: Wire, number: int) -> None:
        """Have small files replaced, and names changed."""
        answer = Api(leader)("PUT", f"/api/users/user-{number}", {"password": "p", "tags": ""})
        assert answer.status == 201
        self.users.append((time.monotonic_ns(), f"user-{number}"))
        queue = commands.Queue.Declare(queue=f"queue-{number}", durable=True)
        wire.call(1, queue, commands.Queue.DeclareOk)
        self.queues.append((time.monotonic_ns(), f"queue-{number}"))

    def check(self, broker: Broker, before_ns: int) -> None:
        """A broker has all that was acknowledged before a time."""
        broker.start()
        users = {each["name"] for each in Api(broker).get("/api/users")}
        wanted = {name for at, name in self.users if at < before_ns}
        assert wanted <= users, f"lost: {wanted - users}"
        assert "guest" in users
        with Wire.open(broker.port) as wire:
            for at, name in self.queues:
                if at < before_ns:
                    passive = commands.Queue.Declare(queue=name, passive=True)
                    wire.call(1, passive, commands.Queue.DeclareOk)
            found = {*bodies(wire, self.book.queue), *bodies(wire, self.book.tx_queue)}
        for each in self.book.all:
            confirmed = max((n for at, n in each.confirms if at < before_ns), default=0)
            numbers = {
                int(number) for name, number in found if name == each.producer.encode()
            }  # fmt: skip
            missing = set(range(1, confirmed + 1)) - numbers
            assert not missing, f"lost of {each.producer}: {sorted(missing)[:10]} of {confirmed}"
        broker.close()


def bodies(wire: Wire, queue: str) -> Iterator[tuple[bytes, bytes]]:
    """Producer and number of each message of a queue."""
    passive = commands.Queue.Declare(queue=queue, passive=True)
    left = wire.call(1, passive, commands.Queue.DeclareOk).message_count
    wire.call(
        1, commands.Basic.Consume(queue=queue, no_ack=True, consumer_tag=queue),
        commands.Basic.ConsumeOk,
    )  # fmt: skip
    for _ in range(left or 0):
        parts = wire.expect_unit(commands.Basic.Deliver).body.split(b":")
        if len(parts) == 4 and parts[1].isdigit():
            yield parts[0], parts[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, disk_shim: Path) -> tuple[Run, int]:
    """One run, for all readings."""
    seed = random.SystemRandom().randrange(1 << 30)
    return Run(tmp_path_factory.mktemp("power"), disk_shim, seed), seed


@EVERY_READING
def test_follower_that_loses_its_power_has_all_that_was_acknowledged(
    run: tuple[Run, int], tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    done, seed = run
    chance = random.Random(seed)
    n_records = len(done.records)
    names = [  # right behind a change of a name, of which there are few
        at for at in range(done.began, n_records) if done.records[at - 1].kind is Call.RENAME
    ]
    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        cut = chance.choice(names) if number % 2 else chance.randrange(done.began, n_records)
        print(f"seed {seed}, cut {number}: after call {cut} of {n_records}")
        root = tmp_path / f"cut-{number}"
        Survivors(done.records[:cut], reading=reading).write(root, chance)
        broker = broker_factory(data_dir=root, start=False, http=True)
        done.check(broker, done.records[cut].time_ns)
