"""A cluster is updated node by node, and back: nodes of an earlier revision follow, and lead.

The revision is CLUSTER_TESTS_OLDER, else the third before this one; it is compiled, which takes
minutes: in the long form only (make chaos). Or that is the path of a checkout that is compiled.
Without the history of the repository it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.book import Book
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.links import DOWN, UP

TRIES = 12
"""One of two nodes leads next, by chance."""
BUILD_S = 1800.0
DEADLINE_S = BUILD_S + 4 * WAIT_S
ROOT = Path(__file__).parents[3]
REVISION = os.environ.get("CLUSTER_TESTS_OLDER", "HEAD~3")
ClusterFactory = Callable[..., Cluster]
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("CLUSTER_TESTS_LONG"), reason="compiles another revision: make chaos"
    ),
    pytest.mark.timeout(DEADLINE_S + WAIT_S),
]


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the earlier revision, compiled."""
    if os.path.isdir(REVISION):
        yield Path(REVISION)
        return
    found = git("rev-parse", "--verify", f"{REVISION}^{{commit}}")
    if found.returncode or git("cat-file", "-e", f"{REVISION}:lavinmq/cluster/node.py").returncode:
        warnings.warn(f"no revision {REVISION} with clustering: upgrades are not tested",
                      stacklevel=1)  # fmt: skip
        pytest.skip(f"no revision {REVISION} with clustering")
    place = tmp_path_factory.mktemp("older") / "checkout"
    made = git("worktree", "add", "--detach", str(place), found.stdout.strip())
    assert made.returncode == 0, made.stderr
    try:
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"],
            cwd=place, check=True, timeout=BUILD_S,
        )  # fmt: skip
        yield place
    finally:
        git("worktree", "remove", "--force", str(place))


def become(node: ClusterNode, checkout: Path | None) -> None:
    """Stop a node in order, and have another release be started; None: this one."""
    if node.is_running():
        node.stop()
    node.env = {} if checkout is None else {"PYTHONPATH": str(checkout)}
    # Without the directory of this checkout in front of the other one.
    node.command = [] if checkout is None else [sys.executable, "-P", "-m", "lavinmq"]
    node.start()


def test_nodes_are_updated_one_by_one_and_back(
    cluster_factory: ClusterFactory, older: Path
) -> None:
    cluster = cluster_factory(3)
    for each in cluster.nodes:
        become(each, older)
    leader = cluster.whole()
    with Book(cluster, name="upgrade", seed=11) as book:
        for checkout in (None, older):
            for number, each in enumerate([*cluster.followers(), leader]):
                each.stop()
                if number == 0:
                    shutil.rmtree(each.data_dir)  # it joins a leader of the other release
                become(each, checkout)
                cluster.whole()
                book.progress()
            leader = cluster.leader()
        book.check()
    cluster.check_epochs()


def led_by(cluster: Cluster, nodes: Sequence[ClusterNode]) -> ClusterNode:
    """Have one of these nodes lead."""
    for _ in range(TRIES):
        leader = cluster.whole()
        if leader in nodes:
            return leader
        leader.stop()
        cluster.leader(other_than=leader)
        leader.start()
    pytest.fail(f"none of {nodes} leads")


def test_releases_beside_each_other_know_who_is_cut_off(
    cluster_factory: ClusterFactory, older: Path
) -> None:
    """A follower says that it is there only to a leader that wants to hear so: neither takes the
    other for gone, and each makes way when it is cut off from the others."""
    cluster = cluster_factory(3, is_linked=True)
    one, two, three = cluster.nodes
    for each in cluster.nodes:
        become(each, None if each is two else older)
    with Book(cluster, name="cut-off", seed=12) as book:
        for nodes in ([one, three], [two]):
            leader = led_by(cluster, nodes)
            epoch = cluster.picture().epoch
            book.progress(30)
            assert cluster.picture().epoch == epoch, "a follower was taken for gone"
            for each in cluster.nodes:
                if each is not leader:
                    cluster.cut_nodes(leader, each, UP, DOWN)
            cluster.leader(other_than=leader)
            book.progress()
            cluster.heal()
        book.check()
    cluster.check_epochs()
