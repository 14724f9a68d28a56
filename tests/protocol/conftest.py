"""What the protocol tests share: connections and names, and the brokers of the transcripts.

Those are prepared with the vhosts and users that the transcripts need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.broker import PORT_VARIABLE, Broker
from tests.support.prepare import prepare
from tests.support.transcripts import Split, scenarios
from tests.support.wire import Wire


class TranscriptBrokers:
    """One broker for each way of splitting, since every play leaves its queues behind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brokers: dict[Split, Broker] = {}

    def running(self, split: Split) -> Broker:
        """Return the broker for this way of splitting, started if need be."""
        if split not in self._brokers:
            data_dir = self._directory / split.value
            prepare(data_dir, scenarios().values())
            # The original proposes one channel more by default.
            as_recorded = {"LAVINMQ_AMQP_CHANNEL_MAX": "2048"}
            self._brokers[split] = Broker(data_dir, http=True, env=as_recorded)
        broker = self._brokers[split]
        return broker if broker.is_running() else broker.start()

    def close(self) -> None:
        """End them all."""
        for broker in self._brokers.values():
            broker.close()


@pytest.fixture(scope="session")
def transcript_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TranscriptBrokers]:
    brokers = TranscriptBrokers(tmp_path_factory.mktemp("transcripts"))
    try:
        yield brokers
    finally:
        brokers.close()


@pytest.fixture
def split(request: pytest.FixtureRequest) -> Split:
    """How the test's input is cut; given by the test's parameters."""
    chosen: Split = request.param
    return chosen


@pytest.fixture
def transcript_broker(
    split: Split, transcript_brokers: TranscriptBrokers, tmp_path: Path
) -> Broker:
    """A running broker on which the scenario at hand was not played yet in this manner."""
    port = os.environ.get(PORT_VARIABLE)
    if port is None:
        return transcript_brokers.running(split)
    if split is not Split.WHOLE:
        pytest.skip("an attached broker is prepared for one play of each scenario")
    return Broker.attached(int(port), tmp_path)


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A connection to the shared broker with channels 1 and 2 open."""
    with Wire.open(broker.port, host=broker.host, channels=(1, 2)) as connection:
        yield connection


@pytest.fixture
def other(broker: Broker) -> Iterator[Wire]:
    """Another connection, with channel 1 open."""
    with Wire.open(broker.port, host=broker.host) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return f"protocol-{uuid4().hex[:12]}"
