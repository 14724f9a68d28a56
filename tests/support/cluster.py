"""A cluster for tests: etcd and several nodes, as processes on this machine.

Nodes can be killed, stopped, paused, and cut off from each other and from etcd (`links.py`). One
that ends by itself as a leader that leads no more (exit code 3) is started again, as systemd would.
`book.py` has publishers and the checker. Nothing here looks into a data directory while its node
runs, but for its id.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from pamqp import commands

from tests.support.broker import is_answering
from tests.support.certificates import Authority, Identity
from tests.support.control import control_path
from tests.support.etcd import EtcdCluster
from tests.support.links import Link, owner_of
from tests.support.nursery import Process, begin, broker_command
from tests.support.patience import PATIENCE
from tests.support.ports import HOST, free_port
from tests.support.wire import Wire, WireClosed, WireTimeout

WAIT_S = 60.0 * PATIENCE
PREFIX = "c"
DISK_FAILED, LOST, NO_ETCD, CANNOT_FOLLOW = 1, 3, 5, 36
RESTART_S = 0.1
LOG_TAIL_LINES = 80


class Picture(NamedTuple):
    """What etcd has."""

    leaders: tuple[str, ...]
    """Their URIs."""
    epoch: int
    epoch_leader: str
    in_sync: frozenset[str]
    members: frozenset[str]
    nodes: frozenset[str]


class ClusterNode:
    """One node. Its ports stay the same over restarts. The cluster makes it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.host = HOST
        self.port, self.http_port, self.mqtt_port = free_port(), free_port(), free_port()
        self.metrics_port, self.clustering_port = free_port(), free_port()
        self.reads_port = free_port() if cluster.has_readers else -1
        self.control_path = control_path(self.port)
        self.data_dir = cluster.directory / f"n{number}"
        self.log_path = cluster.directory / f"n{number}.log"
        self.gate: Link | None = None
        """Between the others and its replication port."""
        self.etcd_link: Link | None = None
        self.args: list[str] = []
        """More of them, for the next start."""
        self.env: dict[str, str] = {}
        self.command: list[str] = []
        """Another program than usual, for the next start."""
        self.within: list[str] = []
        """What stands in front of that."""
        self.exit_codes: list[int] = []
        """Of all its lives that ended by themselves."""
        self.process: Process | None = None
        self.is_paused = False

    def __repr__(self) -> str:
        return f"n{self.number}"

    @property
    def advertised_port(self) -> int:
        """Where others reach it."""
        return self.gate.port if self.gate is not None else self.clustering_port

    @property
    def uri(self) -> str:
        """What it advertises."""
        return f"{self.cluster.scheme}://{self.host}:{self.advertised_port}"

    @property
    def id(self) -> str:
        """Its id, empty before it has one."""
        try:
            return (self.data_dir / ".clustering_id").read_text().strip()
        except FileNotFoundError:
            return ""

    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.poll() is None

    def is_serving(self) -> bool:
        """Whether clients get through by it."""
        return is_answering(self.host, self.port)

    def start(self) -> ClusterNode:
        """Start it, and wait for nothing."""
        if self.gate is not None:
            self.gate.open()
        self.is_paused = False
        # The cluster itself may be about to start it again.
        with self.cluster.lock, self.log_path.open("ab") as log:
            assert not self.is_running(), f"{self} runs"
            self.process = begin(self.program(), self.options(), self.env, log)
        return self

    def program(self) -> list[str]:
        """What starts it, if that is not what starts every broker."""
        if not self.within:
            return self.command
        return [*self.within, *(self.command or broker_command())]

    def command_line(self) -> list[str]:
        """What starts it, with its options."""
        return [*(self.program() or broker_command()), *self.options()]

    def options(self) -> list[str]:
        """Its flags."""
        cluster = self.cluster
        etcd = [f"{HOST}:{self.etcd_link.port}"] if self.etcd_link else cluster.etcd.endpoints
        if cluster.etcd.tls is not None:
            etcd = [f"https://{each}" for each in etcd]
        options = {
            "-D": f"{self.data_dir}/", "-b": self.host, "-p": self.port,
            "--http-port": self.http_port,
            "--metrics-http-port": self.metrics_port, "--control-unix-path": self.control_path,
            "--https-port": -1, "--mqtt-port": self.mqtt_port, "--mqtts-port": -1,
            "--clustering-port": self.clustering_port, "--clustering-advertised-uri": self.uri,
            "--clustering-etcd-endpoints": ",".join(etcd), "--clustering-etcd-prefix": PREFIX,
            "--clustering-lease-ttl": cluster.lease_ttl_s,
            "--clustering-min-insync-replicas": cluster.least,
        }  # fmt: skip
        if cluster.has_readers:
            options["--clustering-reads-port"] = self.reads_port
        flat = [str(each) for pair in options.items() for each in pair]
        return ["--clustering", *flat, *self.args]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        with self.cluster.lock:
            process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
        self._gone()

    def _gone(self) -> None:
        """Nobody listens any more: who connects is to see that."""
        if self.gate is not None:
            self.gate.refuse()

    def stop(self) -> int:
        """SIGTERM, and wait for the end. Returns: the exit code."""
        with self.cluster.lock:
            process, self.process = self.process, None
        assert process is not None, f"{self} does not run"
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
            self._gone()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.signal(signal.SIGCONT)

    def log_text(self) -> str:
        """All that it has written."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


class Cluster:
    """Nodes 1 to n and their etcd. Use it as a context manager.

    Args: is_linked: there is a `Link` in front of each node and between each node and etcd; least:
        `min_insync_replicas`; restarts: nodes that end with 3 are started again; has_readers: nodes
        that follow serve readers of streams.
    """

    def __init__(
        self, directory: Path, n_nodes: int = 3, *, lease_ttl_s: int = 5, least: int = 0,
        is_linked: bool = False, restarts: bool = True, args: Sequence[str] = (),
        scheme: str = "tcp", etcd: EtcdCluster | None = None, has_readers: bool = False,
    ) -> None:  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.lease_ttl_s = lease_ttl_s
        self.has_readers = has_readers
        self.least = least
        self.lock = threading.RLock()
        self.etcd = etcd or EtcdCluster(directory / "etcd")
        self.is_linked = is_linked
        self.scheme = scheme
        """Of what nodes advertise."""
        self.nodes: list[ClusterNode] = []
        self._args = list(args)
        self.restarted = {LOST} if restarts else set()
        """Exit codes after which a node is started again."""
        self._is_over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        for _ in range(n_nodes):
            self.add()

    # ---- start and end

    def __enter__(self) -> Self:
        self.etcd.__enter__()
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._is_over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for each in self.nodes:
            each.kill()
            for link in (each.gate, each.etcd_link):
                if link is not None:
                    link.close()
            with suppress(FileNotFoundError):
                os.unlink(each.control_path)
        self.etcd.stop()

    def add(self) -> ClusterNode:
        """Make one node more, which is not started."""
        node = self.make_node(len(self.nodes) + 1)
        node.args += self._args
        if self.is_linked:
            node.gate = Link(node.clustering_port, self._who)
            node.etcd_link = Link(self.etcd.members[0].client_port)
        self.nodes.append(node)
        return node

    def make_node(self, number: int) -> ClusterNode:
        """One of this cluster."""
        return ClusterNode(self, number)

    def start(self) -> ClusterNode:
        """Start all nodes that do not run. Returns: who leads, once all are in sync."""
        for each in self.nodes:
            with self.lock:
                if not each.is_running():
                    each.start()
        return self.whole()

    def whole(self) -> ClusterNode:
        """Wait until all nodes are in sync, and are there. Returns: who leads."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self.wait_in_sync(self.nodes)
            leader = self.leader()
            if self._is_answered(leader) and self.picture().in_sync == {n.id for n in self.nodes}:
                return leader
            assert time.monotonic() < deadline, f"not all are there: {self.picture()}"

    def _is_answered(self, leader: ClusterNode) -> bool:
        """Whether a change is acknowledged: what is in sync is there, then."""
        # A broker whose disk has just got room again may still refuse.
        ended = (OSError, WireClosed, WireTimeout, AssertionError)
        with suppress(*ended), Wire.open(leader.port, host=leader.host) as wire:
            name = f"probe-{time.monotonic_ns()}"
            wire.call(1, commands.Queue.Declare(queue=name, durable=True), commands.Queue.DeclareOk)
            wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
            return True
        return False

    def heal(self) -> ClusterNode:
        """Make good whatever a test has done. Returns: who leads, once all are in sync."""
        for each in self.nodes:
            for link in (each.gate, each.etcd_link):
                if link is not None:
                    link.free()
            if each.is_running():
                each.resume()
        return self.start()

    def _who(self, port: int, to: int) -> int:
        with self.lock:
            pids = {each.process.pid: each.number for each in self.nodes if each.process}
        return owner_of(port, pids, to)

    def _keep(self) -> None:
        """In a thread: be systemd."""
        while not self._is_over.wait(RESTART_S):
            with self.lock:
                for each in self.nodes:
                    code = each.process.poll() if each.process is not None else None
                    if code is not None:
                        each.exit_codes.append(code)
                        each.process = None
                        if code in self.restarted:
                            each.start()

    # ---- what is so

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """What etcd answers, {} when it does not."""
        for each in self.etcd.members:
            status, found = each.ask(path, fields)
            if status == 200:
                return found
        return {}

    def keys(self) -> dict[str, str]:
        """All keys of the cluster, without their prefix."""
        rows = self.ask("kv/range", **_below(f"{PREFIX}/")).get("kvs", [])
        return {_text(row["key"]).removeprefix(f"{PREFIX}/"): _text(row.get("value", ""))
                for row in rows}  # fmt: skip

    def picture(self) -> Picture:
        """What etcd has now."""
        keys = self.keys()
        number, _, leads = keys.get("epoch", "0 ").partition(" ")
        return Picture(
            tuple(value for key, value in keys.items() if key.startswith("leader/")),
            int(number), leads, _ids(keys.get("isr", "")), _ids(keys.get("members", "")),
            frozenset(key.partition("/")[2] for key in keys if key.startswith("nodes/")),
        )  # fmt: skip

    def leading(self) -> ClusterNode | None:
        """Who leads as etcd says, and serves clients; None: nobody."""
        picture = self.picture()
        for each in self.nodes:
            is_it = picture.leaders == (each.uri,) and picture.epoch_leader == each.id
            if is_it and each.is_running() and each.is_serving():
                return each
        return None

    def leader(self, *, other_than: ClusterNode | None = None) -> ClusterNode:
        """Wait until somebody leads and serves clients."""
        deadline = time.monotonic() + WAIT_S
        while True:
            leading = self.leading()
            if leading is not None and leading is not other_than:
                return leading
            assert time.monotonic() < deadline, (
                f"nobody leads, or {other_than} does: {self.picture()}"
            )
            time.sleep(0.05)

    def followers(self) -> list[ClusterNode]:
        """All nodes but who leads."""
        leader = self.leader()
        return [each for each in self.nodes if each is not leader]

    def wait_in_sync(self, nodes: Iterable[ClusterNode], wait_s: float = WAIT_S) -> None:
        """Wait until just these are in sync, as etcd says, and one of them serves clients."""
        wanted = list(nodes)
        deadline = time.monotonic() + wait_s
        while True:
            picture = self.picture()
            if picture.in_sync == {each.id for each in wanted} and self.leading() is not None:
                return
            assert time.monotonic() < deadline, f"wanted in sync: {wanted}, there is {picture}"
            time.sleep(0.05)

    # ---- what is done to it

    def cut_nodes(self, one: ClusterNode, other: ClusterNode, *ways: str) -> None:
        """Hold all between two nodes. Args: ways: to the first of them, `UP`, or from it."""
        assert one.gate is not None
        assert other.gate is not None
        one.gate.hold(*ways, who=other.number)
        back = {"up": "down", "down": "up"}
        other.gate.hold(*(back[each] for each in ways), who=one.number)

    # ---- history

    def events(self, key: str) -> list[tuple[int, str | None]]:
        """All values that a key has had, with their revisions; None: it was removed."""
        status, found = self.etcd.members[0].ask("kv/range", {"key": _coded(f"{PREFIX}/{key}")})
        assert status == 200, found
        revision = int(found["header"]["revision"])
        watched = {"create_request": {
            "key": _coded(f"{PREFIX}/{key}"), "start_revision": "1",
        }}  # fmt: skip
        last = int(found["kvs"][0]["mod_revision"]) if found.get("kvs") else revision
        events: list[tuple[int, str | None]] = []
        with self.etcd.members[0].open("watch", watched, 10) as answer:
            while not events or events[-1][0] < last:
                for event in json.loads(answer.readline())["result"].get("events", []):
                    kv = event["kv"]
                    is_put = event.get("type", "PUT") == "PUT"
                    value = _text(kv.get("value", "")) if is_put else None
                    events.append((int(kv["mod_revision"]), value))
        return events

    def check_epochs(self) -> None:
        """Assert that each epoch had one leader, and that epochs came one behind the other."""
        found = [value.split(" ") for _, value in self.events("epoch") if value is not None]
        numbers = [int(number) for number, _ in found]
        assert numbers == list(range(1, len(numbers) + 1)), f"epochs: {found}"
        led: dict[int, ClusterNode] = {}
        for each in self.nodes:
            for line in each.log_text().splitlines():
                _, mark, number = line.partition("leads from now on, in epoch ")
                if mark:
                    other = led.setdefault(int(number), each)
                    assert other is each, f"{other} and {each} have led in epoch {number}"

    def check_changes(self) -> None:
        """Assert that no follower was given a change that it had to refuse."""
        refused = [line for each in self.nodes for line in each.log_text().splitlines()
                   if "the change at position" in line]  # fmt: skip
        assert not refused, refused

    def logs(self) -> str:
        """The last lines of all nodes, for a test that fails."""
        parts = []
        for each in self.nodes:
            tail = "\n".join(each.log_text().splitlines()[-LOG_TAIL_LINES:])
            parts.append(f"---- {each}, {each.id}, ended with {each.exit_codes}\n{tail}")
        with suppress(OSError, ValueError, AssertionError):
            parts.append(f"---- etcd: {self.keys()}")
        return "\n".join(parts)


def tls_options(authority: Authority, identity: Identity, what: str = "tls") -> list[str]:
    """Those of a node with this certificate. Args: what: "tls": between nodes; "etcd"."""
    return [
        f"--clustering-{what}-cert", str(identity.cert),
        f"--clustering-{what}-key", str(identity.key),
        f"--clustering-{what}-ca-cert", str(authority.path),
    ]  # fmt: skip


def program(module: str) -> list[str]:
    """A command that starts another program than usual: a module of the tests."""
    return [sys.executable, "-m", module]


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _below(prefix: str) -> dict[str, str]:
    return {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode(errors="replace")


def _ids(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))
