"""A query reads a stream, the power of the broker's machine goes, and the query goes on.

What was not on disk is lost, and other messages have its offsets. A query has planned up to what
was there. With `--no-sync` nothing is sure: there it is told.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from tests.conftest import BrokerFactory
from tests.crash.conftest import DiskFactory
from tests.spark import hasty_broker
from tests.spark.frames import failure
from tests.spark.streams import Stream, channel, numbers
from tests.spark.test_source_stream import END_S, Archive
from tests.support.api import Api
from tests.support.disk import Action, Call, compile_shim
from tests.support.power_loss import Survivors

pytestmark = pytest.mark.spark

NAME = "s"
SAFE, AT_RISK, OTHERS = 20, 80, 120
SHORT_SYNC_US, HELD_US = 3000, 3_000_000_000
T = TypeVar("T")


class Unlucky(random.Random):
    """Of what was not synced nothing survives."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]


@pytest.fixture
def on_disk(tmp_path: Path, broker_factory: BrokerFactory) -> Iterator[DiskFactory]:
    directory = tmp_path / "shim"
    directory.mkdir()
    with closing(DiskFactory(compile_shim(directory), tmp_path, broker_factory)) as factory:
        yield factory


def publish_unconfirmed(stream: Stream) -> None:
    """Publish more, and return when the broker has got it."""
    with channel(stream.broker) as opened:
        for body in numbers(SAFE, SAFE + AT_RISK):
            opened.publish("", stream.name, body)
        opened.declare_queue(stream.name, passive=True)


def test_a_query_misses_nothing_after_a_loss_of_power(
    spark: SparkSession, on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    broker, disk = on_disk(log=True, http=True, program=hasty_broker)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SHORT_SYNC_US)
    stream = Stream(broker.start(), NAME).declare()
    for body in numbers(0, SAFE):
        stream.publish([body])
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=HELD_US)
    publish_unconfirmed(stream)
    archive = Archive(spark, stream, tmp_path)

    archive.run()
    assert archive.numbers() == list(range(SAFE))
    broker.kill()
    root = tmp_path / "after"
    Survivors(disk.records()).write(root, Unlucky())
    stream.broker = broker_factory(data_dir=root, http=True)
    stream.publish(numbers(1000, 1000 + OTHERS))
    archive.run()

    assert archive.numbers() == [*range(SAFE), *range(1000, 1000 + OTHERS)]


def test_a_query_that_has_read_what_is_lost_is_told_so(
    spark: SparkSession, on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    broker, disk = on_disk("--no-sync", log=True, http=True)
    stream = Stream(broker.start(), NAME).declare()
    stream.publish(numbers(0, SAFE))
    broker.restart()  # that is on disk
    publish_unconfirmed(stream)
    archive = Archive(spark, stream, tmp_path)

    archive.run()
    assert archive.numbers() == list(range(SAFE + AT_RISK))
    broker.kill()
    root = tmp_path / "after"
    Survivors(disk.records()).write(root, Unlucky())
    stream.broker = broker_factory(data_dir=root, http=True)
    stream.publish(numbers(1000, 1000 + OTHERS))
    first = Api(stream.broker).get(f"/api/queues/%2F/{NAME}")["stream"]["epochs"][-1]
    assert first == {"epoch": 2, "first_offset": SAFE + 1}

    query = archive.start()
    told = failure(lambda: query.awaitTermination(END_S))
    archive.run(failOnDataLoss="false")

    assert (
        f"stream 's': it was read up to offset {SAFE + AT_RISK + 1} in epoch 1, and epoch 2 begins "
        f"at offset {SAFE + 1}"
    ) in told
    rows = spark.read.parquet(str(archive.data)).select("body").collect()
    expected = [*range(SAFE + AT_RISK), *range(1000, 1000 + OTHERS)]
    assert sorted(int(row.body) for row in rows) == expected
    last = max((archive.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(last.read_text().splitlines()[2])["epochs"] == {NAME: 2}
