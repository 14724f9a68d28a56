"""The generators of the benchmark do what its rows claim: counted at a broker, not timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pika
import pytest

from perf import bench, generator, measure, topology
from perf.generator import GeneratorRun
from perf.measure import BenchError
from tests.support.broker import Broker
from tests.support.lavinmqperf import sockets, until

TIMEOUT_S = 20.0
SETTLE_S = 10.0
CORE = min(os.sched_getaffinity(0))
QUEUE = "churn.0"
STAGED = """\
import json, os
print("ready", flush=True)
input()
print(json.dumps({"cores": sorted(os.sched_getaffinity(0))}), flush=True)
input()
"""
Churn = Callable[[str], AbstractContextManager[GeneratorRun]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return dict(bench.build_programs(tmp_path_factory.mktemp("programs")))


@pytest.fixture
def churn(programs: dict[str, Path], own_broker: Broker) -> Churn:
    """Run churnflood with the given options against a broker of the test's own."""

    def run(options: str) -> AbstractContextManager[GeneratorRun]:
        argv = [str(programs["churnflood"]), "-P", str(own_broker.port), *options.split()]
        return generator.staged_generator(argv, CORE, own_broker.pid, TIMEOUT_S)

    return run


@pytest.fixture
def client(own_broker: Broker) -> Iterator[topology.Client]:
    with topology.Client(own_broker.port).open() as client:
        yield client


def staged(program: str) -> AbstractContextManager[GeneratorRun]:
    return generator.staged_generator([sys.executable, "-c", program], CORE, os.getpid(), TIMEOUT_S)


def test_a_staged_generator_runs_on_its_core_only() -> None:
    with staged(STAGED) as run:
        assert run.report == {"cores": [CORE]}


def test_a_staged_generator_that_dies_says_why() -> None:
    with pytest.raises(BenchError, match="no such thing"), staged("exit('no such thing')"):
        pytest.fail("there was nothing to wait for")


def test_connections_are_kept_until_the_measurement_is_over(
    churn: Churn, own_broker: Broker
) -> None:
    # Whoever found out that the broker answers has gone, but maybe not for the broker yet.
    until(lambda: not any(one.local_port == own_broker.port for one in sockets()))
    before = measure.tree_descriptors(own_broker.pid)

    with churn("-S connections -n 20") as run:
        held = measure.tree_descriptors(own_broker.pid) - before

    assert run.report["done"] == 20
    assert held == 20


def test_every_queue_that_was_counted_exists(churn: Churn, client: topology.Client) -> None:
    with churn("-S queues -n 25 -w 10") as run:
        counts = [client.message_count(f"churn.{number}") for number in range(25)]

    assert run.report["done"] == 25
    assert counts == [0] * 25
    with pytest.raises(BenchError, match="404"):
        client.message_count("churn.25")


@pytest.fixture
def routes(own_broker: Broker) -> Iterator[Callable[[str], bool]]:
    """Tell whether the exchange of the binds has a queue for a key."""
    with pika.BlockingConnection(pika.URLParameters(own_broker.uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def ask(key: str) -> bool:
            try:
                channel.basic_publish("churn", key, b"", mandatory=True)
            except pika.exceptions.UnroutableError:
                return False
            return True

        yield ask


@pytest.mark.parametrize("options", ["", "-w 8", "-d"])
def test_as_many_binds_are_made_as_were_counted(
    churn: Churn, routes: Callable[[str], bool], options: str
) -> None:
    with churn(f"-S bindings -z 1 {options}") as run:
        done = run.report["done"]
        found = [routes(f"key.0.{number}") for number in (0, done - 1, done)]

    assert found == [True, True, False]


def test_parallel_clients_bind_each_for_themselves(
    churn: Churn, routes: Callable[[str], bool]
) -> None:
    with churn("-S bindings -z 1 -c 3"):
        found = [routes(f"key.{client}.0") for client in range(4)]

    assert found == [True, True, True, False]


def test_every_confirm_that_was_counted_is_a_message(churn: Churn, client: topology.Client) -> None:
    with churn("-S confirms -z 1 -d") as run:
        count = client.message_count(QUEUE)

    assert count == run.report["done"] > 0


def test_every_message_of_the_publishers_arrives(churn: Churn, client: topology.Client) -> None:
    with churn("-S publishers -z 1 -c 5 -r 2000") as run:
        client.wait_for_messages(QUEUE, run.report["done"], SETTLE_S)

    assert run.report["done"] > 0


@pytest.mark.parametrize(
    "options", ["-S connection-churn", "-S connection-churn -c 4", "-S channel-churn -w 20"]
)
def test_churn_leaves_nothing_open(churn: Churn, own_broker: Broker, options: str) -> None:
    before = measure.tree_descriptors(own_broker.pid)

    with churn(f"{options} -z 1") as run:
        assert run.report["done"] > 0

    # The broker may see the last one go a moment later than the generator.
    deadline = time.monotonic() + SETTLE_S
    while measure.tree_descriptors(own_broker.pid) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_refusal_of_the_broker_is_the_generators_error(
    churn: Churn, client: topology.Client
) -> None:
    client.declare_queue(QUEUE)

    with pytest.raises(BenchError, match="406"), churn("-S queues -n 1 -d"):
        pytest.fail("the queue is not durable")


def test_the_bare_sync_loop_counts_its_syncs_and_leaves_no_file(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [programs["syncloop"], tmp_path, "50"], check=True, capture_output=True, timeout=TIMEOUT_S
    )

    assert json.loads(done.stdout)["syncs"] > 0
    assert list(tmp_path.iterdir()) == []
