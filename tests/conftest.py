"""Fixtures every test may use: a running broker, shared or of one's own.

`broker` is shared by all tests of a worker, so a test on it uses names of its own and cleans up
nothing but those; `own_broker` belongs to one test, which may stop or kill it; `broker_factory`
makes any number. A failing test's report carries the log of the brokers it used.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.broker import PORT_VARIABLE, Broker
from tests.support.nursery import COMMAND_VARIABLE

LOG_TAIL_LINES = 200
NIGHTLY_VARIABLE = "NIGHTLY_TESTS"
IS_NIGHTLY = bool(os.environ.get(NIGHTLY_VARIABLE))
PACE = (
    "tests/spark/test_", "tests/browser/test_every", "tests/browser/test_tab_walk",
    "tests/browser/", "tests/spark/apart/", "tests/packaging/", "tests/protocol/test_transcripts",
    "tests/crash/", "tests/integration/", "tests/protocol/", "tests/fuzz/", "tests/unit/",
)  # fmt: skip
"""Directories, the one with the longest tests first: no worker is left alone with a long test, or
with one that mostly waits."""
ON_ONE_WORKER = (
    "tests/spark/", "tests/browser/test_every", "tests/browser/test_tab_walk", "tests/browser/",
    "tests/integration/rabbitmq/",
)  # fmt: skip
"""One Spark session, a broker that nobody has used before for what a browser lists, and one
RabbitMQ: a worker runs the whole directory, in order. The two files that go to every page take as
long as all others, and are for workers of their own."""
ON_ANY_WORKER = ("tests/spark/apart/", "tests/crash/", "tests/simulation/")
"""Tests that share nothing with others of their file; elsewhere a worker runs a whole file."""


class BrokerFactory:
    """Makes brokers for one test and ends them all after it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.brokers: list[Broker] = []

    def __call__(
        self,
        args: Sequence[str] = (),
        *,
        data_dir: Path | None = None,
        start: bool = True,
        env: dict[str, str] | None = None,
        http: bool = False,
        mqtt: bool = False,
        command: Sequence[str] = (),
    ) -> Broker:
        """Return a broker on `data_dir` (default: a new directory), started unless told not to.

        `http`: with the management interface; `mqtt`: listening for that; `command`: another
        program than usual.
        """
        directory = data_dir or self._directory / f"broker-{len(self.brokers)}"
        broker = Broker(directory, args, env=env, http=http, mqtt=mqtt, command=command)
        self.brokers.append(broker)
        return broker.start() if start else broker

    def close(self) -> None:
        """End every broker made here."""
        for broker in self.brokers:
            broker.close()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what is compiled, and let nothing fail because the machine is slow.

    A broker takes twice as long to start without bytecode, and there are hundreds of starts.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow],
        max_examples=100 if IS_NIGHTLY else 50,
    )  # fmt: skip
    settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector from what has been collected, which stays until the end.

    Looking through it takes a quarter of a second, each time, and hundreds of tests have all of
    the garbage of theirs collected.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have workers begin with what takes longest; the order in a directory stays. Leave out what
    a change cannot wait for."""
    if not IS_NIGHTLY:
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason="takes long: make nightly"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place(item.nodeid, PACE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, so that what a file shares is started once, in their order.

    xdist's own way, `--dist loadgroup`, renames tests by an attribute that pytest 9.2 has not.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class LongestFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ON_ANY_WORKER):
                return nodeid
            file = nodeid.partition("::")[0]
            return next((each for each in ON_ONE_WORKER if file.startswith(each)), file)

    config.option.loadscopereorder = False
    return LongestFirst(config, log)


def _place(nodeid: str, directories: Sequence[str]) -> int:
    """Return which of the directories a test is in: the first that fits."""
    fitting = (i for i, each in enumerate(directories) if nodeid.startswith(each))
    return next(fitting, len(directories))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker shared by all tests of this worker; an attached one if so configured."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    port = os.environ.get(PORT_VARIABLE)
    if port:
        yield Broker.attached(int(port), data_dir)
        return
    shared = Broker(data_dir, http=True)
    try:
        yield shared.start()
    finally:
        shared.close()


@pytest.fixture
def broker_factory(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Call it to get a broker that only this test uses."""
    if PORT_VARIABLE in os.environ and COMMAND_VARIABLE not in os.environ:
        pytest.skip(f"needs a broker of its own; {PORT_VARIABLE} names a shared one")
    factory = BrokerFactory(tmp_path)
    try:
        yield factory
    finally:
        factory.close()


@pytest.fixture
def own_broker(broker_factory: BrokerFactory) -> Broker:
    """A running broker with a data directory of its own; the test may stop or kill it."""
    return broker_factory()


@pytest.fixture
def http_broker(broker_factory: BrokerFactory) -> Broker:
    """A running broker of one's own, with the management interface."""
    return broker_factory(http=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the broker's log to the report of a failing test."""
    report = yield
    if report.failed:
        for broker in _brokers_of(item):
            tail = "\n".join(broker.log_text().splitlines()[-LOG_TAIL_LINES:])
            report.sections.append((f"broker log ({broker.log_path})", tail))
    return report


def _brokers_of(item: pytest.Item) -> list[Broker]:
    found: list[Broker] = []
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Broker):
            found.append(value)
        elif isinstance(value, BrokerFactory):
            found.extend(value.brokers)
    return list(dict.fromkeys(found))
