"""Clusters for the tests of this directory. A failing test's report carries the logs of all nodes.

`cluster` is shared by the tests of a file and whole when one begins; `disks` is such a one whose
disks fail on order; `cluster_factory` makes one for a test alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.disk import compile_shim
from tests.support.disks import Disks
from tests.support.etcd import WHY_NOT

ClusterFactory = Callable[..., Cluster]


@pytest.fixture(scope="module")
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes; `CLUSTER` of the module says more."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    options: dict[str, Any] = getattr(request.module, "CLUSTER", {})
    with Cluster(tmp_path_factory.mktemp("cluster"), **options) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes in sync, shared by the tests of a file: what one does is made good."""
    shared_cluster.heal()
    yield shared_cluster
    shared_cluster.check_epochs()
    shared_cluster.check_changes()


@pytest.fixture(scope="module")
def shared_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    """Three nodes, for all tests of a file."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("disks")
        shim = compile_shim(directory)
        cluster = stack.enter_context(Cluster(directory / "cluster"))
        yield Disks(cluster, shim, stack)


@pytest.fixture
def disks(shared_disks: Disks) -> Iterator[Disks]:
    """The same, with all disks well and all nodes in sync."""
    shared_disks.heal()
    shared_disks.cluster.heal()
    yield shared_disks
    shared_disks.cluster.check_epochs()


@pytest.fixture
def cluster_factory(tmp_path: Path) -> Iterator[ClusterFactory]:
    """Call it to get a cluster, not started, for one test."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Cluster:
            name = f"cluster-{len(made)}"
            made.append(stack.enter_context(Cluster(tmp_path / name, *args, **options)))
            return made[-1]

        made: list[Cluster] = []
        make.made = made  # type: ignore[attr-defined]
        yield make
        for each in made:
            each.check_changes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the logs of all nodes to the report of a failing test."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            for cluster in [value, *getattr(value, "made", [])]:
                if isinstance(cluster, Cluster):
                    report.sections.append(("cluster", cluster.logs()))
    return report
