"""Disks of nodes fail, fill up and stand still while publishers confirm: nothing that was
acknowledged is lost, and a node whose sync has failed never takes what it reads for what is on its
disk.

`disk_shim.c` stands between each node and its disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import book as book_of_tests
from tests.support.api import Api
from tests.support.book import WINDOW, Book
from tests.support.cluster import DISK_FAILED, WAIT_S, Cluster, ClusterNode
from tests.support.disk import Action, Call
from tests.support.disks import Disks
from tests.support.etcd import WHY_NOT
from tests.support.waiting import wait_for

DEADLINE_S = 10 * WAIT_S
LONG = pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)
ROLES = pytest.mark.parametrize("role", ["leader", "follower"])
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def cluster(disks: Disks) -> Cluster:
    """So that the report of a failing test has its logs."""
    return disks.cluster


def is_whole(node: ClusterNode) -> bool:
    """What a node has noted of its files."""
    found = json.loads((node.data_dir / ".clustering_state").read_bytes())
    return bool(found["whole"])


def n_bytes(node: ClusterNode) -> int:
    """Of all its files."""
    return sum(each.stat().st_size for each in node.data_dir.rglob("*") if each.is_file())


def last_join(node: ClusterNode) -> list[int]:
    """How many files it took for the same, and compared, and how many bytes came, as it says."""
    text = r"has the files of \S+: (\d+) were the same as before, (\d+) were compared, (\d+) bytes"
    return [int(each) for each in re.findall(text, node.log_text())[-1]]


def ends(node: ClusterNode, n_codes: int) -> int:
    """Wait until it has ended by itself. Returns: its exit code."""
    wait_for(lambda: len(node.exit_codes) > n_codes, f"{node} goes on", DEADLINE_S)
    return node.exit_codes[n_codes]


@ROLES
def test_node_whose_sync_has_failed_ends_and_gets_everything_anew(
    disks: Disks, cluster: Cluster, role: str
) -> None:
    """The kernel takes what it could not write for written: what is read says nothing."""
    node = disks.pick(role)
    n_codes = len(node.exit_codes)
    with Book(cluster, name=f"sync-fails-{role}", seed=1) as book:
        book.progress()
        disks.of[node].plan(Action.FAIL, Call.SYNC, "*/msgs.*", error=errno.EIO, last=1)
        if role == "follower":
            disks.of[node].plan(Action.FAIL, Call.SYNC, error=errno.EIO, last=1)
        assert ends(node, n_codes) == DISK_FAILED
        assert not is_whole(node)
        there = n_bytes(node)

        book.progress()
        node.start()
        cluster.whole()
        book.progress()
        book.check()

    assert is_whole(node)
    n_same, n_compared, n_came = last_join(node)
    assert (n_same, n_compared) == (0, 0)
    assert n_came > 0.9 * there


def test_sync_that_a_signal_cuts_short_is_made_again(disks: Disks, cluster: Cluster) -> None:
    """Some file systems let one. A follower took that for a disk that has failed, and ended."""
    node = cluster.followers()[0]
    n_codes = len(node.exit_codes)
    with Book(cluster, name="cut-short", seed=11) as book:
        book.progress()
        # It is late, so that a file and its new name come at once: it syncs the file in between.
        disks.of[node].plan(
            Action.FAIL, Call.SYNC, "*users.json*", error=errno.EINTR, last=3, sync_us=50_000
        )
        user = {"password": "p", "tags": "management"}
        api = Api(cluster.leader())
        wait_for(
            lambda: api("PUT", "/api/users/cut", user).status < 300 and disks.of[node].struck == 3,
            "no file is synced before its rename", DEADLINE_S,
        )  # fmt: skip
        disks.of[node].heal()
        book.progress()
        book.check()
    assert len(node.exit_codes) == n_codes
    assert is_whole(node)
    assert cluster.picture().in_sync == {each.id for each in cluster.nodes}


@ROLES
@LONG
def test_node_that_cannot_write_loses_nothing(disks: Disks, cluster: Cluster, role: str) -> None:
    node = disks.pick(role)
    with Book(cluster, name=f"write-fails-{role}", seed=2) as book:
        book.progress()
        disks.of[node].plan(Action.FAIL, Call.WRITE, "*/msgs.*", error=errno.EIO)
        disks.of[node].wait_for_strikes(1)
        if role == "leader":  # its queues are closed until they are read anew
            disks.of[node].heal()
            assert node.stop() == 0
            cluster.leader(other_than=node)
        book.progress()
        disks.of[node].heal()
        cluster.heal()
        book.progress()
        book.check()


@ROLES
@LONG
def test_node_without_room_loses_nothing(disks: Disks, cluster: Cluster, role: str) -> None:
    node = disks.pick(role)
    with Book(cluster, name=f"no-room-{role}", seed=3) as book:
        book.progress()
        disks.of[node].plan(Action.FAIL, Call.WRITE, "*/msgs.*", error=errno.ENOSPC)
        disks.of[node].wait_for_strikes(3)
        if role == "follower":
            book.progress()
            assert node.is_running()
        disks.of[node].heal()
        book.progress(1)  # the broker tries again twice a second, and refuses declarations before
        cluster.whole()
        book.progress()
        book.check()
    assert cluster.leader() is node or role == "follower"


@ROLES
@LONG
@pytest.mark.parametrize("sync_s", [1, 5])
def test_node_whose_disk_is_slow_loses_nothing(
    disks: Disks, cluster: Cluster, role: str, sync_s: int
) -> None:
    node = disks.pick(role)
    with Book(cluster, name=f"slow-{role}-{sync_s}", seed=4) as book:
        book.progress()
        disks.of[node].plan(Action.NOTHING, Call(0), sync_us=sync_s * 1_000_000)
        if role == "follower" or sync_s == 1:  # who answers after more than 3 s is left out
            book.progress(3)
        disks.heal()
        cluster.heal()
        book.progress()
        book.check()


@LONG
@pytest.mark.slow
def test_followers_whose_syncs_take_longer_than_a_leader_waits_still_count(
    disks: Disks, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their connections stay: without them nothing could be acknowledged either."""
    monkeypatch.setattr(book_of_tests, "SILENT_S", WAIT_S)
    followers = cluster.followers()
    with Book(cluster, name="all-slow", seed=10, producers=1, transactors=0) as book:
        book.progress()
        for each in followers:
            disks.of[each].plan(Action.NOTHING, Call(0), sync_us=4_000_000)
        n_before = cluster.leader().log_text().count("does not answer")
        book.progress(WINDOW)
        assert cluster.leader().log_text().count("does not answer") == n_before
        disks.heal()
        cluster.heal()
        book.progress()
        book.check()


@ROLES
@LONG
def test_node_whose_disk_stands_still_loses_nothing(
    disks: Disks, cluster: Cluster, role: str
) -> None:
    node = disks.pick(role)
    with Book(cluster, name=f"still-{role}", seed=5) as book:
        book.progress()
        disks.of[node].plan(Action.HOLD, Call.SYNC | Call.WRITE)
        book.progress()  # a leader's lease is not renewed after ten seconds
        disks.of[node].heal()
        cluster.heal()
        book.progress()
        book.check()


@LONG
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_node_that_cannot_write_does_not_join(disks: Disks, cluster: Cluster, error: int) -> None:
    node = cluster.followers()[0]
    with Book(cluster, name=f"joins-{error}", seed=6) as book:
        book.progress()
        node.kill()
        shutil.rmtree(node.data_dir)
        others = [each for each in cluster.nodes if each is not node]
        disks.of[node].plan(Action.FAIL, Call.WRITE, ".joining/*", error=error)
        node.start()
        disks.of[node].wait_for_strikes(3)
        book.progress()
        assert cluster.picture().in_sync == {each.id for each in others}
        assert node.is_running()
        disks.of[node].heal()
        cluster.whole()
        book.progress()
        book.check()


@LONG
@pytest.mark.slow
def test_node_any_of_whose_syncs_fails_while_it_joins_is_not_whole(
    disks: Disks, cluster: Cluster
) -> None:
    """Each of them in turn, until one is not made any more before the node is in sync."""
    node = cluster.followers()[0]
    number, n_struck = 0, 1
    with Book(cluster, name="syncs", seed=7) as book:
        book.progress()
        for each in book.all:
            each.end()
        while n_struck:
            number += 1
            node.kill()
            shutil.rmtree(node.data_dir)
            n_codes = len(node.exit_codes)
            disks.of[node].plan(Action.FAIL, Call.SYNC, error=errno.EIO, first=number, last=number)
            node.start()
            wait_for(
                lambda n=n_codes: len(node.exit_codes) > n  # type: ignore[misc]
                or (node.id and node.id in cluster.picture().in_sync),
                "it neither joins nor ends", WAIT_S,
            )  # fmt: skip
            disks.of[node].heal()
            n_struck = disks.of[node].struck
            print(f"sync {number}: {node.exit_codes[n_codes:]}, {n_struck} failed", flush=True)
            if n_struck:
                assert ends(node, n_codes) == DISK_FAILED, f"goes on after sync {number}"
                node.start()
            cluster.whole()
        book.check()
    assert number > 5


SMALL, LARGE = "40m", "4g"


@pytest.fixture
def small_disk(disks: Disks) -> Iterator[Callable[[ClusterNode], Callable[[], None]]]:
    """Call it to have a node, which does not run, begin again on a small disk. What that returns
    makes it larger."""
    places: list[Path] = []

    def give(node: ClusterNode) -> Callable[[], None]:
        place = node.data_dir
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)]
        if os.geteuid() or subprocess.run(mount, check=False).returncode:
            pytest.skip("needs root, and to mount: a disk that is full is NOT tested")
        places.append(place)

        def enlarge() -> None:
            subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(place)], check=True)

        return enlarge

    yield give
    for node in disks.cluster.nodes:
        if node.data_dir in places:
            node.kill()
            subprocess.run(["umount", str(node.data_dir)], check=True)


def says(node: ClusterNode, what: str, n_before: int) -> None:
    """Wait until its log has it once more."""
    wait_for(lambda: node.log_text().count(what) > n_before, f"no: {what}", DEADLINE_S)


@ROLES
@LONG
def test_node_whose_disk_is_full_loses_nothing(
    disks: Disks, cluster: Cluster, role: str,
    small_disk: Callable[[ClusterNode], Callable[[], None]],
) -> None:  # fmt: skip
    """A real one. A leader holds publishers before nothing at all can be written."""
    node = cluster.followers()[0]
    node.kill()
    enlarge = small_disk(node)
    node.start()
    cluster.whole()
    if role == "leader":
        others = [each for each in cluster.nodes if each is not node]
        for each in others:
            each.kill()
        cluster.leader()
        for each in others:
            each.start()
        cluster.whole()
        assert cluster.leader() is node
    what = "No space left" if role == "follower" else "publishers are held"
    n_before = node.log_text().count(what)
    with Book(cluster, name=f"full-{role}", seed=8, size=20_000) as book:
        says(node, what, n_before)
        if role == "follower":
            wait_for(lambda: node.id not in cluster.picture().in_sync, "it stays", DEADLINE_S)
            book.progress()
        enlarge()
        book.progress()
        for each in book.all:
            each.end()
        cluster.whole()
        book.check()


@LONG
def test_node_whose_disk_is_too_small_does_not_join(
    disks: Disks, cluster: Cluster, small_disk: Callable[[ClusterNode], Callable[[], None]]
) -> None:
    node = cluster.followers()[0]
    with Book(cluster, name="too-small", seed=9, size=100_000) as book:
        book.progress(200)
        node.kill()
        enlarge = small_disk(node)
        n_before = node.log_text().count("No space left")
        node.start()
        says(node, "No space left", n_before)
        book.progress()
        assert node.is_running()
        assert node.id not in cluster.picture().in_sync
        for each in book.all:
            each.end()
        enlarge()
        cluster.whole()
        book.check()
