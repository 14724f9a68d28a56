"""What else may connect to the nodes of a cluster: strangers, nodes of other clusters, and nodes
that lie. None of it may harm those that are in order.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from lavinmq.cluster import frames
from lavinmq.files.changes import Change
from tests.support.book import PERSISTENT, Book
from tests.support.cluster import PREFIX, WAIT_S, Cluster, ClusterNode
from tests.support.etcd import WHY_NOT
from tests.support.ports import HOST
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed, WireTimeout

LONG = bool(os.environ.get("CLUSTER_TESTS_LONG"))
"""Whether to run all of it: `make chaos`."""
DEADLINE_S = WAIT_S
HEAD = struct.Struct("<IBBHHHIqq")
MARK = 32
POSITION = 1000
RELEASE: dict[str, Any] = {"version": "0", "protocol": [2, 2]}
"""Of a node by which changes go without blocks around them."""
SOON_S = 0.3
"""In which a follower ends a connection, if it does."""
APPEND = int(Change.APPEND)


def secret_of(cluster: Cluster) -> bytes:
    """By which the nodes know each other."""
    return base64.b64decode(cluster.keys()["clustering_secret"])


def coded(text: str) -> str:
    """As etcd takes it."""
    return base64.b64encode(text.encode()).decode()


def connected(node: ClusterNode) -> socket.socket:
    """A connection to a node's replication port."""
    sock = socket.create_connection((HOST, node.clustering_port), DEADLINE_S)
    sock.settimeout(DEADLINE_S)
    return sock


def is_closed(sock: socket.socket) -> bool:
    """Whether the node ends the connection; what it says before that is taken."""
    with suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return True


def greeted(cluster: Cluster, node: ClusterNode, **hello: Any) -> socket.socket:
    """A connection of one that has the secret and says who it is."""
    sock = connected(node)
    frames.greet_leader(sock, secret_of(cluster))
    sock.settimeout(DEADLINE_S)
    said = {"id": "stranger", "epoch": 0, "position": 0, "whole": False, **RELEASE}
    frames.send(sock, said | hello)
    return sock


def entry(
    kind: int, path: bytes, data: bytes = b"", *, target: bytes = b"", start: int = 0,
    end: int | None = None, size: int | None = None, n_path: int | None = None,
) -> bytes:  # fmt: skip
    """A change as a leader sends it, or otherwise."""
    whole = HEAD.size + len(path) + len(target) + len(data) if size is None else size
    last = start + len(data) if end is None else end
    n = len(path) if n_path is None else n_path
    return HEAD.pack(whole, kind, 0, n, len(target), 0, 0, start, last) + path + target + data


# ---- who connects to the leader


STRANGE = (
    b"", b"\0" * 100, os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n", frames.MAGIC,
    frames.MAGIC + bytes(32), frames.MAGIC + bytes(64), b"REPLI\x01\x00\x00" + b"\x01x",
)  # fmt: skip


def test_strangers_are_let_go(cluster: Cluster) -> None:
    leader = cluster.leader()
    with ExitStack() as stack:
        socks = [stack.enter_context(connected(leader)) for _ in STRANGE]
        for sock, said in zip(socks, STRANGE, strict=True):
            with suppress(OSError):
                sock.sendall(said)
        assert all(is_closed(sock) for sock in socks)


def test_follower_with_another_secret_is_refused(cluster: Cluster) -> None:
    with connected(cluster.leader()) as sock, pytest.raises(frames.PeerError, match="secret"):
        frames.greet_leader(sock, bytes(32))


def test_leader_does_not_say_who_is_right_by_a_reflection(cluster: Cluster) -> None:
    """Who has no secret cannot use one node to answer another, or itself."""
    leader = cluster.leader()
    with connected(leader) as one, connected(leader) as other:
        one.sendall(frames.MAGIC + bytes(32))
        nonce = frames.exactly(one, len(frames.MAGIC) + 64)[len(frames.MAGIC) :][:32]
        other.sendall(frames.MAGIC + nonce)
        proof = frames.exactly(other, len(frames.MAGIC) + 64)[-32:]
        one.sendall(proof)
        assert is_closed(one)


@pytest.mark.parametrize(
    "said",
    [struct.pack("<I", 2**32 - 1), struct.pack("<I", 65537), struct.pack("<I", 2) + b"[]",
     struct.pack("<I", 3) + b"\xff\xfe{", struct.pack("<I", 2) + b"{}",
     struct.pack("<I", 60_000) + b"[" * 60_000],
    ids=["huge", "large", "a list", "no text", "empty", "deep"],
)  # fmt: skip
def test_nonsense_of_one_with_the_secret_is_refused(cluster: Cluster, said: bytes) -> None:
    with connected(cluster.leader()) as sock:
        frames.greet_leader(sock, secret_of(cluster))
        with suppress(OSError):
            sock.sendall(said)
        assert is_closed(sock)


@pytest.mark.parametrize(
    "hello",
    [{"id": ""}, {"id": "../x"}, {"id": "a" * 100}, {"id": 5}, {"id": "ü"}, {"epoch": -1},
     {"epoch": 1 << 70}, {"position": 1.5}, {"position": True}, {"version": None}, {"id": "a,b"}],
    ids=str,
)  # fmt: skip
def test_hello_that_makes_no_sense_is_refused(cluster: Cluster, hello: dict[str, Any]) -> None:
    if hello.get("epoch") == 1 << 70:
        hello = {"epoch": "1180591620717411303424"}
    with greeted(cluster, cluster.leader(), **hello) as sock:
        assert is_closed(sock)
    assert "a" * 9 not in cluster.picture().members


def test_node_of_a_release_too_far_away_is_refused_and_told_why(cluster: Cluster) -> None:
    leader = cluster.leader()
    with greeted(cluster, leader, id="future", version="9.9", protocol=[7, 8]) as sock:
        with pytest.raises(frames.PeerError, match=r"release 9\.9.*protocol 7 to 8.*update by"):
            frames.receive(sock)
        assert is_closed(sock)
    wait_for(lambda: "release 9.9" in leader.log_text(), "its operator is not told", DEADLINE_S)
    assert "future" not in cluster.picture().members
    with greeted(cluster, leader, id="next", protocol=[1, 2]) as sock:
        assert frames.receive(sock)["join"] is True


def test_node_with_the_leaders_own_id_is_refused(cluster: Cluster) -> None:
    leader = cluster.leader()
    with greeted(cluster, leader, id=leader.id) as sock:
        with pytest.raises(frames.PeerError, match="own id"):
            frames.receive(sock)
        assert is_closed(sock)


def test_positions_nobody_has_end_in_a_join(cluster: Cluster) -> None:
    epoch = cluster.picture().epoch
    for position in (1 << 40, (1 << 63) - 1, 1 << 63):
        hello = {"epoch": epoch, "position": position, "whole": True}
        with greeted(cluster, cluster.leader(), **hello) as sock:
            assert frames.receive(sock).get("join") is True


def test_follower_that_claims_what_it_was_not_sent_ends(cluster: Cluster) -> None:
    """And nothing is acknowledged by that."""
    leader = cluster.leader()
    one, other = cluster.followers()
    with Wire.open(leader.port) as wire:
        declare = commands.Queue.Declare(queue="claims", durable=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        one.kill()
        other.kill()
        with greeted(cluster, leader, id=one.id) as sock:
            answer = joined(sock)
        hello = {"epoch": answer["history"][-1][0], "position": answer["position"], "whole": True}
        with greeted(cluster, leader, id=one.id, **hello) as sock:
            assert "history" in frames.receive(sock)
            wire.publish(1, "", "claims", b"1", PERSISTENT)
            sock.sendall(struct.pack("<Q", answer["position"] + (1 << 30)))
            assert is_closed(sock)
        with pytest.raises(WireTimeout):
            wire.receive(1)


def joined(sock: socket.socket) -> dict[str, Any]:
    """Go through a join as one that has nothing and keeps nothing. Returns: what follows it."""
    assert frames.receive(sock).get("join") is True
    assert frames.text(frames.receive(sock), "ticket")
    while files := frames.receive(sock)["files"]:
        for _ in files:
            frames.send(sock, {"have": [0, ""]})
            head = frames.receive(sock)
            frames.exactly(sock, max(0, head["size"]))
    while frames.receive(sock)["directories"]:
        pass
    frames.send(sock, {"staged": True})
    assert frames.receive(sock).get("place") is True
    frames.send(sock, {"placed": True})
    return frames.receive(sock)


@pytest.mark.parametrize(
    "have", [[], "x", None, [-1, ""], [1 << 62, ""], [0], [0, 5], [0, "", 0], {}], ids=str
)
def test_files_that_make_no_sense_end_a_join(cluster: Cluster, have: Any) -> None:
    with greeted(cluster, cluster.leader(), id="liar") as sock:
        assert frames.receive(sock).get("join") is True
        frames.receive(sock)
        assert frames.receive(sock)["files"]
        frames.send(sock, {"have": have})
        assert is_closed(sock)


@pytest.mark.parametrize("ticket", ["", "x", "0" * 32, 5, None], ids=repr)
def test_changes_go_to_nobody_without_a_ticket(cluster: Cluster, ticket: Any) -> None:
    with greeted(cluster, cluster.leader(), spool=ticket) as sock:
        assert is_closed(sock)


def test_many_silent_strangers_keep_nobody_out(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.followers()[0]
    with ExitStack() as stack:
        is_over = threading.Event()
        follower.kill()
        socks = [stack.enter_context(connected(leader)) for _ in range(100)]

        def drip() -> None:
            for byte in frames.MAGIC + bytes(32):
                for sock in socks:
                    with suppress(OSError):
                        sock.send(bytes([byte]))
                if is_over.wait(1):
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            follower.start()
            with Book(cluster, name="strangers", transactors=0) as book:
                cluster.whole()
                book.progress()
                book.check()
        finally:
            is_over.set()
            thread.join()


@pytest.mark.skipif(not LONG, reason="takes 40 s: make chaos")
def test_joining_node_that_stands_still_keeps_others_out_only_for_a_while(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.followers()[0]
    with greeted(cluster, leader, id="slow") as sock:
        assert frames.receive(sock).get("join") is True
        follower.kill()
        with Book(cluster, name="stands-still", transactors=0) as book:
            cluster.wait_in_sync(each for each in cluster.nodes if each is not follower)
            book.progress()
            follower.start()
            cluster.whole()
            book.check()


# ---- whom a follower connects to


class Liar:
    """Leads, as etcd says, and tells a follower what it likes: `script` gets the connection once
    that has said who it is, and what it said."""

    def __init__(self, script: Callable[[socket.socket, dict[str, Any]], None]) -> None:
        self.script = script
        self.secret = b""
        self.n_times = 0
        self.changes = entry(MARK, b"")
        """What comes to who joins meanwhile."""
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._speak, args=(sock,), daemon=True).start()

    def _speak(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, frames.PeerError):
            frames.greet_follower(sock, self.secret)
            sock.settimeout(DEADLINE_S)
            hello = frames.receive(sock)
            if "spool" in hello:
                sock.sendall(self.changes)
                sock.settimeout(3 * SOON_S)
                is_closed(sock)
                return
            try:
                self.script(sock, hello)
                sock.settimeout(SOON_S)
                is_closed(sock)
            finally:
                self.n_times += 1

    def close(self) -> None:
        """End."""
        self._listener.close()


class Misled:
    """One follower and the liar that it follows, in a cluster of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.follower = cluster.nodes[0]
        self.liar = Liar(lambda sock, hello: None)

    def follow(self, script: Callable[[socket.socket, dict[str, Any]], None]) -> None:
        """Have the follower follow the liar, until it has been told all twice: it comes again."""
        self.liar.script = script
        n = self.liar.n_times
        wait_for(lambda: self.liar.n_times >= n + 2, "it does not come", DEADLINE_S)

    def tree(self) -> dict[str, bytes]:
        """The follower's files, but for those of its own."""
        root = self.follower.data_dir
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and not str(path.relative_to(root)).startswith(".")
            and path.name not in ("schema_version", "clean_stop")
        }  # fmt: skip


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Misled]:
    """A follower that follows a liar."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with Cluster(tmp_path_factory.mktemp("misled"), 1) as cluster:
        found = Misled(cluster)
        found.liar.secret = bytes(32)
        keys = {
            "clustering_secret": base64.b64encode(bytes(32)).decode(),
            "leader/1": f"tcp://{HOST}:{found.liar.port}", "epoch": "1 liar", "isr": "liar",
            "members": "liar",
        }  # fmt: skip
        for key, value in keys.items():
            coded = [
                base64.b64encode(each.encode()).decode() for each in (f"{PREFIX}/{key}", value)
            ]
            cluster.ask("kv/put", key=coded[0], value=coded[1])
        found.follower.start()
        wait_for(lambda: found.liar.n_times > 0, "it does not come", DEADLINE_S)
        try:
            yield found
        finally:
            found.liar.close()


def offer(sock: socket.socket, files: list[tuple[Any, Any, bytes]], directories: list[Any]) -> None:
    """A leader's half of a join: paths, sizes and contents."""
    frames.send(sock, {"join": True, **RELEASE})
    frames.send(sock, {"ticket": "ticket"})
    frames.send(sock, {"files": [[path, size] for path, size, _ in files]})
    for _, size, data in files:
        frames.receive(sock)
        frames.send(sock, {"from": 0, "size": size})
        sock.sendall(data)
    frames.send(sock, {"files": []})
    if directories:
        frames.send(sock, {"directories": directories})
    frames.send(sock, {"directories": []})
    if frames.receive(sock).get("staged"):
        frames.send(sock, {"place": True})
        frames.receive(sock)


def lead(sock: socket.socket, hello: dict[str, Any], *entries: bytes) -> None:
    """Be a leader that has one file, and send changes to a follower that has joined."""
    if hello["whole"] and hello["position"] == POSITION:
        frames.send(sock, {"history": [[1, 0]], **RELEASE})
        sock.sendall(b"".join(entries))
        return
    offer(sock, [("users.json", 2, b"[]")], ["d"])
    frames.send(sock, {
        "position": POSITION - MARK, "until": POSITION, "history": [[1, 0]], **RELEASE,
    })  # fmt: skip


PATHS = [
    "../x", "/tmp/x", ".lock", ".clustering_id", ".clustering_state", "schema_version", "a/../../x",
    "clean_stop", "", "a//b", "a/", "./a", "a/./b", ".joining/x", "a\0b", "x" * 5000, ".", "..",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS if LONG else PATHS[:3], ids=lambda path: repr(path[:20]))
def test_joining_follower_writes_nothing_elsewhere(misled: Misled, path: str) -> None:
    root = misled.follower.data_dir
    identity = (root / ".clustering_id").read_text()
    misled.follow(lambda sock, hello: offer(sock, [(path, 4, b"evil")], []))
    misled.follow(lambda sock, hello: offer(sock, [], [path]))
    assert_unharmed(misled, identity)


@pytest.mark.parametrize("path", PATHS if LONG else PATHS[:3], ids=lambda path: repr(path[:20]))
def test_following_node_writes_nothing_elsewhere(misled: Misled, path: str) -> None:
    root = misled.follower.data_dir
    identity = (root / ".clustering_id").read_text()
    raw = path.encode()
    wrong = [
        entry(int(kind), raw, b"evil") for kind in (Change.APPEND, Change.PATCH)
    ] + [
        entry(int(kind), raw) for kind in (Change.MAKE, Change.TRUNCATE, Change.REMOVE)
    ] + [entry(int(Change.RENAME), b"users.json", target=raw)]  # fmt: skip
    for each in wrong:
        misled.follow(lambda sock, hello, each=each: lead(sock, hello, each))  # type: ignore[misc]
    assert_unharmed(misled, identity)


def assert_unharmed(misled: Misled, identity: str) -> None:
    root = misled.follower.data_dir
    assert misled.follower.is_running()
    assert (root / ".clustering_id").read_text() == identity
    assert not Path("/tmp/x").exists()
    assert not (root.parent / "x").exists()
    assert (root / "schema_version").read_text().strip() == "4"
    assert not any(b"evil" in content for content in misled.tree().values())


def test_links_in_the_directory_lead_nowhere(misled: Misled, tmp_path: Path) -> None:
    """Nobody but the node's own user could make them."""
    root = misled.follower.data_dir
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    for name, target in (("l", outside), ("f", outside / "file")):
        with suppress(FileExistsError):
            (root / name).symlink_to(target)
    misled.follow(lambda sock, hello: offer(sock, [("l/file", 4, b"evil")], ["l"]))
    (root / "l").unlink() if (root / "l").is_symlink() else None
    with suppress(FileExistsError):
        (root / "f").symlink_to(outside / "file")
    misled.follow(lambda sock, hello: offer(sock, [("f", 4, b"evil")], []))
    misled.follow(lambda sock, hello: lead(sock, hello, entry(APPEND, b"f", b"evil")))
    assert (outside / "file").read_text() == "mine"
    assert list(outside.iterdir()) == [outside / "file"]


@pytest.mark.parametrize(
    "wrong",
    [
        entry(APPEND, b"users.json", b"evil", size=20), entry(APPEND, b"users.json", size=1 << 31),
        entry(APPEND, b"users.json", b"evil", end=1 << 40), entry(APPEND, b"users.json", end=-1),
        entry(APPEND, b"users.json", b"evil", start=-4), entry(0, b"users.json"),
        entry(200, b"users.json"), entry(APPEND, b"us", b"evil", n_path=5000),
        entry(APPEND, b"missing/dir/file", b"evil"), entry(int(Change.HOLE), b"users.json", end=-9),
        entry(int(Change.TRUNCATE), b"users.json", end=1 << 62), b"\0" * 64, b"\xff" * 64,
        entry(int(Change.REMOVE), b"none"), entry(int(Change.REMOVE_DIRECTORY), b"users.json"),
    ],
    ids=range(15),
)  # fmt: skip
def test_follower_ends_with_entries_that_make_no_sense(misled: Misled, wrong: bytes) -> None:
    misled.follow(lambda sock, hello: lead(sock, hello, wrong))
    assert misled.follower.is_running()
    assert not any(b"evil" in content for content in misled.tree().values())


def test_follower_that_was_refused_joins_anew(misled: Misled) -> None:
    """After an entry that it could not do again it does not claim to be whole."""
    hellos: list[dict[str, Any]] = []

    def script(sock: socket.socket, hello: dict[str, Any]) -> None:
        hellos.append(hello)
        lead(sock, hello, entry(int(Change.REMOVE), b"none"))

    misled.follow(script)
    misled.follow(script)
    followed = [hello["whole"] and hello["position"] == POSITION for hello in hellos]
    assert any(followed)
    assert not any(one and next_ for one, next_ in pairwise(followed))


def test_entry_that_is_cut_is_not_done(misled: Misled) -> None:
    whole = entry(APPEND, b"users.json", b"more", start=2)

    def script(sock: socket.socket, hello: dict[str, Any]) -> None:
        lead(sock, hello, whole[:-2])
        sock.shutdown(socket.SHUT_WR)

    misled.follow(script)
    assert misled.tree()["users.json"] == b"[]"


@pytest.mark.parametrize(
    "answer",
    [{}, {"position": -1}, {"position": 5}, {"position": 5, "until": "x"},
     {"position": 5, "until": 5, "history": [[2, 0], [1, 0]], **RELEASE},
     {"position": 5, "until": 5, "history": "x", **RELEASE},
     {"position": (1 << 63) - 1, "until": (1 << 63) - 1, "history": [[1, 0]], **RELEASE},
     {"position": (1 << 64) - 1, "until": (1 << 64) - 1, "history": [[1, 0]], **RELEASE}],
    ids=str,
)  # fmt: skip
def test_follower_bears_answers_that_make_no_sense(misled: Misled, answer: Any) -> None:
    def script(sock: socket.socket, hello: dict[str, Any]) -> None:
        offer(sock, [("users.json", 2, b"[]")], [])
        frames.send(sock, answer)
        sock.sendall(entry(MARK, b"") * 3)

    misled.follow(script)
    assert misled.follower.is_running()


@pytest.mark.parametrize(
    "head",
    [{"from": 0, "size": 5}, {"from": 3, "size": 1}, {"from": -1}, {"from": -1, "size": 9},
     {"from": "x", "size": 4}, {"size": 4}, {"from": 0, "size": 1 << 62}],
    ids=str,
)  # fmt: skip
def test_sizes_that_lie_end_a_join(misled: Misled, head: dict[str, Any]) -> None:
    def script(sock: socket.socket, hello: dict[str, Any]) -> None:
        frames.send(sock, {"join": True, **RELEASE})
        frames.send(sock, {"files": [["lied", 4]]})
        frames.receive(sock)
        frames.send(sock, head)
        sock.sendall(b"evil")
        frames.send(sock, {"files": []})
        frames.send(sock, {"directories": []})
        sock.shutdown(socket.SHUT_WR)

    misled.follow(script)
    assert misled.follower.is_running()


def test_follower_of_a_leader_without_the_secret_tells_it_nothing(misled: Misled) -> None:
    """Nor takes anything of it."""
    misled.liar.secret = b"another"
    try:
        log = misled.follower.log_text().count("does not have the secret")
        wait_for(
            lambda: misled.follower.log_text().count("does not have the secret") > log,
            "it goes on", DEADLINE_S,
        )  # fmt: skip
    finally:
        misled.liar.secret = bytes(32)


def test_follower_of_a_liar_does_not_serve(misled: Misled) -> None:
    with suppress(WireClosed, OSError, AssertionError), Wire.open(misled.follower.port):
        pytest.fail("it serves")
