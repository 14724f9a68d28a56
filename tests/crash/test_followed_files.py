"""Whoever makes the changes again that a broker notes ends with the same files, byte by byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pika
import pytest

from tests.crash.conftest import MAX_DELETED, SEGMENT_SIZE, BrokerFactory
from tests.crash.workload import Workload
from tests.support.broker import Broker
from tests.support.follower import differences
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.crash


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Where the follower has its files."""
    return tmp_path / "copy"


@pytest.fixture
def followed(tmp_path: Path, copy: Path, broker_factory: BrokerFactory) -> Broker:
    """A broker that is followed, not started, with small segments."""
    settings = tmp_path / "lavinmq.ini"
    settings.write_text(
        f"[main]\nsegment_size = {SEGMENT_SIZE}\nmax_deleted_definitions = {MAX_DELETED}\n"
    )
    return broker_factory(
        ["-c", str(settings)], data_dir=tmp_path / "data", start=False,
        env={"PYTHONPATH": str(ROOT)},
        command=[sys.executable, "-m", "tests.support.follower", str(copy)],
    )  # fmt: skip


def test_a_follower_of_the_whole_workload_has_the_same_files(followed: Broker, copy: Path) -> None:
    workload = Workload()

    assert workload.run(followed)
    workload.check(followed)

    assert differences(followed.data_dir, copy) == []


def test_large_messages_that_go_on_are_followed_in_their_pieces(
    followed: Broker, copy: Path
) -> None:
    followed.start()
    parameters = pika.ConnectionParameters(followed.host, followed.port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        onward = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "to"}
        channel.queue_declare("from", durable=True, arguments=onward | {"x-message-ttl": 1})
        channel.queue_declare("to", durable=True)
        channel.confirm_delivery()
        for size in (3 << 20, 100, 2 << 20):
            channel.basic_publish("", "from", bytes(size), pika.BasicProperties(delivery_mode=2))
        wait_for(
            lambda: channel.queue_declare("to", passive=True).method.message_count == 3,
            "all dead letters",
        )
        method, _, body = channel.basic_get("to")
        assert len(body) in {3 << 20, 100, 2 << 20}
        channel.basic_ack(method.delivery_tag)
    assert followed.stop() == 0

    assert differences(followed.data_dir, copy) == []
