"""What tests of the management API share: the API of the shared broker, and one with a staff."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import users
from tests.support.api import Api
from tests.support.broker import Broker


@pytest.fixture
def api(broker: Broker) -> Api:
    """The API of the shared broker."""
    return Api(broker)


@pytest.fixture(scope="module")
def staffed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker with the users of the module's `PEOPLE`."""
    data_dir = tmp_path_factory.mktemp("staffed") / "data"
    users.write(data_dir, request.module.PEOPLE)
    broker = Broker(data_dir, http=True)
    try:
        yield broker.start()
    finally:
        broker.close()
