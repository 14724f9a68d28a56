"""A cluster whose nodes speak TLS with each other: it bears what one without does, and no node
gets in that has not the right certificate.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.book import Book
from tests.support.certificates import Authority, Identity
from tests.support.cluster import WAIT_S, Cluster, ClusterNode, tls_options
from tests.support.etcd import WHY_NOT
from tests.support.links import DOWN
from tests.support.nursery import broker_command
from tests.support.ports import HOST
from tests.support.waiting import wait_for

DEADLINE_S = WAIT_S
ClusterFactory = Callable[..., Cluster]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a handshake begins."""


LONG = pytest.mark.skipif(
    not os.environ.get("CLUSTER_TESTS_LONG"), reason="takes more than ten seconds: make chaos"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> Identity:
    return authority.issue("good", (HOST,))


@pytest.fixture(scope="module")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, good: Identity
) -> Iterator[Cluster]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    directory = tmp_path_factory.mktemp("tls")
    args = tls_options(authority, good)
    with Cluster(directory, is_linked=True, args=args, scheme="tls") as cluster:
        yield cluster


class Sniffed:
    """What passes to and from the replication ports of nodes."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.data = bytearray()
        for each in nodes:
            assert each.gate is not None
            each.gate.taken = self.taken  # type: ignore[method-assign]

    def taken(self, _: object, __: str, data: bytes) -> bytes:
        self.data += data
        return data


def test_leader_and_follower_that_are_killed_lose_nothing(cluster: Cluster) -> None:
    """Nodes follow, go on from where they were, and join; what passes cannot be read."""
    sniffed = Sniffed(cluster.nodes)
    with Book(cluster, name="tls-killed", seed=1) as book:
        book.progress()
        leader = cluster.leader()
        leader.kill()
        cluster.leader(other_than=leader)
        book.progress()
        shutil.rmtree(leader.data_dir)
        cluster.start()
        book.progress()
        book.check()
    assert f"has the files of tls://{HOST}:" in leader.log_text()
    assert any("follows tls://" in each.log_text() for each in cluster.nodes)
    assert len(sniffed.data) > 10_000
    assert not any(word in sniffed.data for word in (b"tls-killed", b"history", b"CLUSTER1"))
    for each in cluster.nodes:
        assert each.gate is not None
        del each.gate.taken


@LONG
def test_link_that_is_half_dead_and_then_is_not(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.followers()[0]
    assert leader.gate is not None
    with Book(cluster, name="tls-half-dead", seed=2) as book:
        book.progress()
        leader.gate.hold(DOWN, who=follower.number)
        cluster.wait_in_sync(each for each in cluster.nodes if each is not follower)
        book.progress()
        leader.gate.free()
        cluster.whole()
        book.progress()
        leader.gate.cut()
        book.progress()
        book.check()


def said(node: ClusterNode, text: str, since: int) -> None:
    """Wait until a node's log has a text, behind a number of characters."""
    wait_for(lambda: text in node.log_text()[since:], f"{node} does not say: {text}", DEADLINE_S)


def test_nodes_with_other_certificates_do_not_follow(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    """Both nodes say why, and the others do not mind."""
    leader, follower = cluster.leader(), cluster.followers()[0]
    other = Authority(tmp_path / "other", "another authority")
    wrong = {
        "plain": ([], "a follower has to speak TLS here", "refused: a follower has to speak TLS"),
        "other": (tls_options(authority, other.issue("other", (HOST,))),
                  "TLS: its certificate is not accepted: ", "TLS: it says: unknown ca"),
        "expired": (tls_options(authority, authority.issue("old", (HOST,), expires=-timedelta(1))),
                    "not accepted: certificate has expired", "TLS: it says: certificate expired"),
        "wary": (tls_options(other, other.issue("other", (HOST,))), "TLS: it says: unknown ca",
                 "TLS: its certificate is not accepted: "),
    }  # fmt: skip
    args = follower.args
    cluster.scheme = "tcp"  # who does not speak TLS does not start with the other
    try:
        for name, (theirs, leader_says, follower_says) in wrong.items():
            since = len(leader.log_text()), len(follower.log_text())
            follower.kill()
            follower.args = theirs
            follower.start()
            said(leader, leader_says, since[0])
            said(follower, follower_says, since[1])
            assert follower.is_running(), name
    finally:
        follower.kill()
        follower.args = args
        cluster.scheme = "tls"
    cluster.start()


@LONG
def test_certificate_of_another_host_is_not_followed_and_one_that_is_new_is(
    cluster_factory: ClusterFactory, authority: Authority, good: Identity, tmp_path: Path
) -> None:
    """A leader takes another one without a new start."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(identity: Identity) -> None:
        for source, target in ((identity.cert, cert), (identity.key, key)):
            shutil.copy(source, tmp_path / "new")
            os.replace(tmp_path / "new", target)

    put(authority.issue("elsewhere", ("elsewhere.example.com",)))
    cluster = cluster_factory(2, least=1)
    first, second = cluster.nodes
    first.args = tls_options(authority, Identity(cert, key, 0))
    second.args = tls_options(authority, good)
    first.start()
    cluster.leader()
    second.start()
    said(second, "TLS: its certificate is not accepted: IP address mismatch", 0)
    said(first, "TLS: it says: bad certificate", 0)
    put(good)
    assert cluster.whole() is first
    assert "the certificate of this node was read again" in first.log_text()


def test_node_with_tls_does_not_follow_one_without(
    cluster_factory: ClusterFactory, authority: Authority, good: Identity
) -> None:
    cluster = cluster_factory(2, least=1)
    first, second = cluster.nodes
    second.args = tls_options(authority, good)
    first.start()
    cluster.leader()
    second.start()
    said(second, "TLS: it speaks without, or is no node at all", 0)
    said(first, "it speaks TLS, for which 'tls_cert' in [clustering] is missing here", 0)
    assert cluster.picture().in_sync == {first.id}


def about(node: ClusterNode) -> dict[str, Any]:
    """What a node says of the cluster."""
    url = f"http://{node.host}:{node.metrics_port}/api/cluster"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_nodes_with_and_without_tls_follow_each_other_while_it_is_optional(
    cluster_factory: ClusterFactory, authority: Authority, good: Identity
) -> None:
    """And all of them say so."""
    cluster = cluster_factory(2, least=1)
    first, second = cluster.nodes
    second.args = [*tls_options(authority, good), "--clustering-tls-optional"]
    first.start()
    cluster.leader()
    second.start()
    assert cluster.whole() is first
    said(second, f"follows tcp://{HOST}:{first.clustering_port} without TLS", 0)
    assert about(second)["tls"] == "optional"
    assert not about(second)["following"]["encrypted"]

    first.stop()
    cluster.leader(other_than=first)
    first.start()
    cluster.whole()
    said(second, f"{first.id} follows without TLS, which is optional here", 0)


@LONG
@pytest.mark.slow
def test_tls_is_introduced_node_by_node(
    cluster_factory: ClusterFactory, authority: Authority, good: Identity
) -> None:
    """Publishers go on meanwhile; in the end nobody gets in without."""
    cluster = cluster_factory(3)
    cluster.start()
    good_args = tls_options(authority, good)
    steps = [[*good_args, "--clustering-tls-optional"], good_args]
    with Book(cluster, name="introduced", seed=4) as book:
        book.progress()
        for args in steps:
            for node in [*cluster.followers(), cluster.leader()]:
                node.stop()
                node.args = args
                cluster.start()
                book.progress()
        book.check()
    leader = cluster.whole()
    assert about(leader)["tls"] == "required"
    assert [each["encrypted"] for each in about(leader)["followers"]] == [True, True]


@LONG
def test_strangers_change_nothing(cluster: Cluster) -> None:
    """More of them than are let in at once, which begin and stop, or talk nonsense."""
    leader = cluster.leader()
    with Book(cluster, name="tls-strangers", seed=3) as book, ExitStack() as stack:
        for number in range(60):
            sock = stack.enter_context(
                socket.create_connection((HOST, leader.clustering_port), DEADLINE_S)
            )
            sock.settimeout(DEADLINE_S)
            with suppress(OSError):
                sock.sendall((HELLO, HELLO[:3], os.urandom(100), b"GET / HTTP/1.1\r\n")[number % 4])
            stack.callback(ended, sock)
        book.progress()
        follower = cluster.followers()[0]
        follower.kill()
        cluster.start()
        book.progress()
        book.check()


def ended(sock: socket.socket) -> None:
    """The node ends the connection, however long that takes."""
    with suppress(ConnectionResetError):
        while sock.recv(65536):
            pass


def test_key_that_does_not_fit_is_refused(
    authority: Authority, good: Identity, tmp_path: Path
) -> None:
    """Before etcd is asked for anything."""
    another = authority.issue("another", (HOST,))
    args = tls_options(authority, Identity(good.cert, another.key, 0))
    command = [*broker_command(), "--clustering", "-D", str(tmp_path / "data"), *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert ended.returncode == 1
    assert "'tls_cert' in [clustering]" in ended.stdout + ended.stderr
    assert "key values mismatch" in ended.stdout + ended.stderr
