"""Planning without an HTTP API: what streams hold is found out by consuming a little. No Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")

from lavinmq.spark.admin import NotServed
from lavinmq.spark.connection import ConnectionFailure
from lavinmq.spark.errors import SourceError
from lavinmq.spark.offsets import Bounds
from lavinmq.spark.options import SourceOptions
from lavinmq.spark.streams import Streams
from tests.conftest import BrokerFactory
from tests.spark.streams import Stream, channel, numbers
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.ports import free_port


@pytest.fixture
def mute(broker_factory: BrokerFactory) -> Broker:
    """A broker without a management API."""
    return broker_factory()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have nobody listen where the API usually is, whatever else runs on this machine."""
    monkeypatch.setattr("lavinmq.spark.admin.HTTP_PORT", free_port())
    yield


def streams_of(broker: Broker, queue: str, *, is_told: bool = False, **more: str) -> Streams:
    options = SourceOptions.parse({"url": broker.uri, "queue": queue} | more)
    return Streams(options, is_told=is_told)


def test_both_ends_of_a_stream_are_found(mute: Broker) -> None:
    Stream(mute, "a").declare().publish(numbers(0, 3000))
    Stream(mute, "empty").declare()

    with streams_of(mute, "a,empty") as streams:
        held = streams.bounds()

        assert held["a"] == Bounds(1, 3001)
        # Whether the first offset is 0 or 1 is not known before there is one.
        assert held["empty"] == Bounds(0, 0)
        assert streams.offset_at("a", 0, held["a"]) == 1
        assert streams.offset_at("a", 4_000_000_000_000, held["a"]) is None
        assert streams.segments("a", (1, 3001)) == []


def test_a_queue_that_is_no_stream_is_told(mute: Broker) -> None:
    with channel(mute) as opened:
        opened.declare_queue("classic")
        opened.publish("", "classic", b"")

    classic = streams_of(mute, "classic")
    with classic, pytest.raises(SourceError, match="'classic' is no stream"):
        classic.bounds()


def test_a_queue_that_is_not_there_is_told(mute: Broker) -> None:
    nowhere = streams_of(mute, "nowhere")
    with nowhere, pytest.raises(ConnectionFailure, match=r"404 .*nowhere"):
        nowhere.bounds()


def test_a_broker_that_told_identities_must_tell_them_again(
    mute: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavinmq.spark.admin.PAUSES_S", (0.01,))
    Stream(mute, "a").declare()

    told = streams_of(mute, "a", is_told=True)
    with told, pytest.raises(NotServed, match="Connection refused"):
        told.bounds()


def test_what_only_the_api_knows_is_refused(mute: Broker) -> None:
    by_pattern = SourceOptions.parse({"url": mute.uri, "queuePattern": ".*"})
    with Streams(by_pattern) as streams, pytest.raises(NotServed, match="Connection refused"):
        streams.bounds()


def test_a_user_who_may_not_use_the_api_may_read(http_broker: Broker) -> None:
    Stream(http_broker, "a").declare().publish(numbers(0, 5))
    Api(http_broker).as_user("eve", "", **{"/": (".*", ".*", ".*")})
    eve = {"user": "eve", "password": "eve-pw", "httpUrl": http_broker.http_url}

    with streams_of(http_broker, "a", **eve) as streams:
        held = streams.bounds()["a"]

    # The broker may let every user of a vhost see it; either way the bounds are right.
    assert (held.first, held.end) == (1, 6)


def test_a_wrong_password_is_told_by_amqp(http_broker: Broker) -> None:
    wrong = {"password": "wrong-password", "httpUrl": http_broker.http_url}
    streams = streams_of(http_broker, "a", **wrong)

    with streams, pytest.raises(ConnectionFailure, match="403") as caught:
        streams.bounds()

    assert "wrong-password" not in str(caught.value)
