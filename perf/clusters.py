r"""What three nodes cost beside one, and for how long nothing is confirmed after a fault.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/clusters.py [--only NAME,...] [--reps 3] [--seconds 5] [--pin] \
        [--machines] [--rate N] [--flags="--clustering-compression off"] [--times 10]

`etcd-server` has to be installed. Rows of load: one producer with messages of 16 bytes, persistent,
to a durable queue; a single node and a cluster in turn; with `--pin` who is measured, the single
node or the leader, has a processor of its own, and everything else the others; with `--machines`,
too, each node is on a machine of its own (`machines.py`), and what its processor was busy with is
shown, whoever that is counted for. With `--rate N` messages come at that rate: what one costs
depends on how many come at once, so nodes are compared at the same. `--flags` are given to all
nodes. Nodes of one disk wait for each other's syncs: how many messages come in the time of the
slowest node's sync is shown, too. Rows of faults: a client with one message at a time, from the
fault until the next confirm through any node; with `--queues N` there are so many other durable
queues, with `--messages N` as many messages of 16 bytes in each, which whoever leads has to know
first. Rows of joins: 100 000 messages a second, confirmed in batches of 1 000, before and while a
node comes with nothing (`join`), or comes back after a minute (`rejoin`), and `--megabytes N` of
other messages, which take three times as much disk. Results, the middle of the repetitions with the
lowest and the highest, go to standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pamqp import commands

from perf import measure, starts
from perf.machines import Bridge
from tests.support.cluster import Cluster, ClusterNode
from tests.support.links import DOWN, UP
from tests.support.machines import PlacedCluster
from tests.support.metrics import scrape, values
from tests.support.nursery import broker_command
from tests.support.wire import Wire, WireClosed, WireTimeout, encode_publish

PLACE: Final = Path("build/perf")
FLAGS: Final[list[str]] = []
"""Of all nodes."""
CORES: Final = sorted(os.sched_getaffinity(0))
FLOOD: Final = PLACE / "flood"
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
ENDED: Final = (OSError, WireClosed, WireTimeout, AssertionError)
LOADS: Final = {
    "publish": ("-b", "65536"),
    "confirm-1000": ("-c", "1000"),
    "confirm-1": ("-c", "1"),
}
JOINS: Final = ("join", "rejoin")
SINGLE: Final = 1
SYNCS: Final = "lavinmq_sync_duration_seconds"
QUEUE: Final = "q"
PATIENCE_S: Final = 60.0
FILLED_AT_ONCE: Final = 10
"""Queues that are given messages before the first of them has confirmed all."""
SLOW_MB_S: Final = 10
"""So fast at least a node joins."""


class Load(NamedTuple):
    """What one run of the generator came to."""

    per_s: float
    leader_s_per_m: float
    followers_s_per_m: tuple[float, ...]
    sync_s: float
    """What a sync took, on average, of the node whose syncs took longest; 0: there was none."""
    core_s_per_m: float
    """What the first processor was busy for."""


@contextmanager
def nodes(
    n: int, *, is_linked: bool = False, bridge: Bridge | None = None
) -> Iterator[Cluster]:  # fmt: skip
    """So many, in sync; one alone is no cluster at all.

    Args: is_linked: they can be cut off; bridge: each is on a machine of its own there.
    """
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        if bridge is None:
            cluster = Cluster(Path(place), n, lease_ttl_s=4, is_linked=is_linked, args=FLAGS)
        else:
            cluster = PlacedCluster(Path(place), bridge, n, lease_ttl_s=4, args=FLAGS)
        for each in cluster.nodes:
            each.command = broker_command()  # a new process, as elsewhere, and no fork
        if n > SINGLE:
            with cluster:
                cluster.start()
                yield cluster
            return
        [node] = cluster.nodes
        try:
            alone = [each for each in node.command_line() if each != "--clustering"]
            node.process = subprocess.Popen(
                alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not node.is_serving():
                time.sleep(0.05)
            yield cluster
        finally:
            node.kill()


def load(cluster: Cluster, options: tuple[str, ...], seconds: int) -> Load:
    """Run the generator once."""
    leader = cluster.leader() if len(cluster.nodes) > SINGLE else cluster.nodes[0]
    others = [each for each in cluster.nodes if each is not leader]
    before = {each: _cpu_s(each) for each in cluster.nodes}
    synced = {each: _syncs(each) for each in cluster.nodes}
    argv = [str(FLOOD), "-H", leader.host, "-P", str(leader.port), "-x", "1", "-y", "0", "-s", "16",
            "-d", "-p", "-q", QUEUE, "-z", str(seconds), *options]  # fmt: skip
    core_before = _core_s(CORES[0])
    found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    core = _core_s(CORES[0]) - core_before
    time.sleep(1)  # followers have what is left
    count = found["published"]
    spent = {each: (_cpu_s(each) - before[each]) / count * 1e6 for each in cluster.nodes}
    took = [_mean(synced[each], _syncs(each)) for each in cluster.nodes]
    with Wire.open(leader.port, host=leader.host) as wire:
        wire.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
    followers = tuple(spent[each] for each in others)
    return Load(found["publish_rate"], spent[leader], followers, max(took), core / count * 1e6)


def _cpu_s(node: ClusterNode) -> float:
    assert node.process is not None
    return measure.tree_cpu_s(node.process.pid)


def _core_s(core: int) -> float:
    """For how long a processor has been busy, interrupts included."""
    name = f"cpu{core} "
    lines = Path("/proc/stat").read_text().splitlines()
    [fields] = [line.split()[1:] for line in lines if line.startswith(name)]
    user, nice, system, _, _, irq, softirq = (int(each) for each in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _syncs(node: ClusterNode) -> tuple[float, float]:
    """How many syncs there were, and how many seconds they took."""
    found = values(scrape(node))
    return found[f"{SYNCS}_count", ()], found[f"{SYNCS}_sum", ()]


def _mean(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Of the syncs between two looks."""
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def _leave_alone(node: ClusterNode, cluster: Cluster) -> None:
    """Have all of a node run on the first processor, and all else on the others."""
    assert node.process is not None
    for stat in measure.process_tree(node.process.pid):
        for thread in os.listdir(f"/proc/{stat.pid}/task"):
            os.sched_setaffinity(int(thread), CORES[:1])
    if isinstance(cluster, PlacedCluster):
        for each, machine in cluster.machines.items():
            own, others = (CORES[:1], CORES[1:]) if each is node else (CORES[1:], CORES[1:])
            machine.steer(own, others)


def loads(
    name: str, options: tuple[str, ...], reps: int, seconds: int, *, is_pinned: bool,
    has_machines: bool,
) -> None:  # fmt: skip
    """A row of load: single and cluster in turn."""
    if is_pinned:
        os.sched_setaffinity(0, CORES[1:])  # so do all that are started from here
    with (
        Bridge() if has_machines else nullcontext() as bridge,
        nodes(SINGLE, bridge=bridge) as single,
        nodes(3, bridge=bridge) as cluster,
    ):
        if is_pinned:
            _leave_alone(single.nodes[0], single)
            _leave_alone(cluster.leader(), cluster)
        for each in (single, cluster):
            load(each, options, 1)
        alone, led = [], []
        for _ in range(reps):
            alone.append(load(single, options, seconds))
            led.append(load(cluster, options, seconds))
    os.sched_setaffinity(0, CORES)
    rates = [a.per_s / b.per_s for a, b in zip(led, alone, strict=True)]
    costs = [a.leader_s_per_m / b.leader_s_per_m for a, b in zip(led, alone, strict=True)]
    follower = [max(each.followers_s_per_m) / each.leader_s_per_m for each in led]
    show(f"{name}: single, messages/s", [each.per_s for each in alone])
    show(f"{name}: cluster, messages/s", [each.per_s for each in led])
    show(f"{name}: cluster / single, messages/s", rates)
    show(f"{name}: single, ms of a sync", [each.sync_s * 1e3 for each in alone])
    show(f"{name}: cluster, ms of a sync of the slowest node", [each.sync_s * 1e3 for each in led])
    show(
        f"{name}: cluster / single, messages in the time of the slowest sync",
        [a.per_s * a.sync_s / (b.per_s * (b.sync_s or math.nan))
         for a, b in zip(led, alone, strict=True)],
    )  # fmt: skip
    show(f"{name}: single, CPU s/M", [each.leader_s_per_m for each in alone])
    show(f"{name}: leader, CPU s/M", [each.leader_s_per_m for each in led])
    show(f"{name}: leader / single, CPU", costs)
    show(f"{name}: the dearer follower / leader, CPU", follower)
    if is_pinned:
        busy = [a.core_s_per_m / b.core_s_per_m for a, b in zip(led, alone, strict=True)]
        show(f"{name}: single, its processor busy s/M", [each.core_s_per_m for each in alone])
        show(f"{name}: leader, its processor busy s/M", [each.core_s_per_m for each in led])
        show(f"{name}: leader / single, processor busy", busy)


# ---- faults


def until_confirmed(
    cluster: Cluster, since: float, nodes: Sequence[ClusterNode] = ()
) -> float:  # fmt: skip
    """Publish through any node until one message is confirmed. Returns: seconds since then.

    Args: nodes: through these, else any.
    """
    while time.monotonic() - since < PATIENCE_S:
        for node in nodes or cluster.nodes:
            if not node.is_running() or node.is_paused:
                continue
            with suppress(*ENDED), Wire.open(node.port) as wire:
                wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                wire.publish(1, "", QUEUE, b"x" * 16, PERSISTENT)
                wire.expect(commands.Basic.Ack)
                return time.monotonic() - since
        time.sleep(0.002)
    raise measure.BenchError("nothing is confirmed any more")


def killed(cluster: Cluster) -> float:
    """SIGKILL of the leader."""
    leader = cluster.leader()
    began = time.monotonic()
    leader.kill()
    return until_confirmed(cluster, began)


def paused(cluster: Cluster) -> float:
    """SIGSTOP of the leader."""
    leader = cluster.leader()
    began = time.monotonic()
    leader.pause()
    took = until_confirmed(cluster, began)
    leader.kill()
    return took


def cut(cluster: Cluster) -> float:
    """Nothing passes between the leader and the others, nor between it and etcd."""
    leader = cluster.leader()
    assert leader.etcd_link is not None
    began = time.monotonic()
    leader.etcd_link.hold()
    return _cut_from_nodes(cluster, leader, began)


def cut_from_followers(cluster: Cluster) -> float:
    """Nothing passes between the leader and the others; what is in between answers for them."""
    return _cut_from_nodes(cluster, cluster.leader(), time.monotonic())


def _cut_from_nodes(cluster: Cluster, leader: ClusterNode, began: float) -> float:
    for each in cluster.nodes:
        if each is not leader:
            cluster.cut_nodes(leader, each, UP, DOWN)
    took = until_confirmed(cluster, began, [each for each in cluster.nodes if each is not leader])
    cluster.heal()
    return took


def handed_over(cluster: Cluster) -> float:
    """SIGTERM of the leader."""
    leader = cluster.leader()
    began = time.monotonic()
    leader.signal(signal.SIGTERM)
    return until_confirmed(cluster, began)


def all_killed(cluster: Cluster) -> float:
    """SIGKILL of all; from the start of the last one on."""
    for node in cluster.nodes:
        node.kill()
    began = time.monotonic()
    for node in cluster.nodes:
        began = time.monotonic()
        node.start()
    return until_confirmed(cluster, began)


FAULTS: Final[dict[str, Callable[[Cluster], float]]] = {
    "killed": killed, "handed-over": handed_over, "all": all_killed, "stopped": paused,
    "cut": cut, "cut-from-followers": cut_from_followers,
}  # fmt: skip


def fill(port: int, n_queues: int, n_messages: int) -> None:
    """Give each of so many queues of `starts.declare` so many messages."""
    with Wire.open(port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        confirmed = 0
        for i in range(n_queues):
            wire.send_bytes(n_messages * encode_publish(1, "", f"q{i}", b"x" * 16, PERSISTENT))
            while confirmed < (i + 1 - FILLED_AT_ONCE) * n_messages:
                confirmed = wire.expect(commands.Basic.Ack).delivery_tag
        while confirmed < n_queues * n_messages:
            confirmed = wire.expect(commands.Basic.Ack).delivery_tag


def until_ready(cluster: Cluster, n_queues: int) -> None:
    """Wait until all that follow have read so many queues ahead, if they do that at all."""
    for node in cluster.followers() if n_queues else ():
        ends_at = time.monotonic() + 3 * PATIENCE_S
        while time.monotonic() < ends_at:
            with suppress(*ENDED):
                standby = scrape(node, "/api/cluster").json["standby"]
                if standby is None or standby["ready_queues"] >= n_queues:
                    break
            time.sleep(0.2)
        else:
            raise measure.BenchError(f"{node} does not read ahead")


def faults(name: str, times: int, n_queues: int, n_messages: int) -> None:
    """A row of faults: for how long nothing was confirmed."""
    took = []
    with nodes(3, is_linked=name.startswith("cut")) as cluster:
        if n_queues:
            starts.declare(cluster.leader().http_port, n_queues)
            if n_messages:
                fill(cluster.leader().port, n_queues, n_messages)
            cluster.whole()
        with Wire.open(cluster.leader().port) as wire:
            declare = commands.Queue.Declare(queue=QUEUE, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
        for _ in range(times):
            until_ready(cluster, n_queues)
            took.append(FAULTS[name](cluster))
            for node in cluster.nodes:
                if node.process is not None and node.process.poll() is not None:
                    node.process = None
            cluster.start()
    took.sort()
    high = took[min(len(took) - 1, int(0.99 * len(took)))]
    sys.stdout.write(
        f"{name}, {n_queues} other queues of {n_messages} messages, {times} times:"
        f" p50 {statistics.median(took):.3f} s, p99 {high:.3f} s, least {took[0]:.3f} s,"
        f" most {took[-1]:.3f} s\n"
    )
    sys.stdout.flush()


# ---- joins


class Stream(threading.Thread):
    """A publisher of so many batches a second, and how long each waited for its confirm."""

    BATCH, PER_S = 1000, 100

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.waits: list[tuple[float, float]] = []
        """When a batch was sent, and for how many seconds it waited."""
        self._wire = Wire.open(port)
        self._wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self._data = self.BATCH * encode_publish(1, "", QUEUE, b"x" * 16, PERSISTENT)
        self._sent: list[float] = []
        self._is_over = threading.Event()
        self._hearer = threading.Thread(target=self._hear, daemon=True)

    def run(self) -> None:
        """Publish."""
        self._hearer.start()
        due = time.monotonic()
        while not self._is_over.is_set():
            self._sent.append(time.monotonic())
            self._wire.send_bytes(self._data)
            due = max(due + 1 / self.PER_S, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))

    def _hear(self) -> None:
        with suppress(*ENDED):
            while True:
                ack = self._wire.expect(commands.Basic.Ack)
                while (len(self.waits) + 1) * self.BATCH <= ack.delivery_tag:
                    sent = self._sent[len(self.waits)]
                    self.waits.append((sent, time.monotonic() - sent))

    def end(self) -> None:
        """Publish no more."""
        self._is_over.set()
        self.join()
        self._wire.close()

    def told(self, since: float, until: float) -> str:
        """What happened between two moments, for people."""
        waits = sorted(wait for sent, wait in self.waits if since <= sent < until)
        rate = len(waits) * self.BATCH / (until - since)
        high = waits[int(0.99 * len(waits))]
        return (
            f"{rate:.0f} messages/s, confirms p50 {1e3 * statistics.median(waits):.1f} ms,"
            f" p99 {1e3 * high:.1f} ms, most {1e3 * waits[-1]:.1f} ms"
        )


def joins(name: str, megabytes: int, away_s: float) -> None:
    """A row of joins."""
    with nodes(3) as cluster:
        leader, follower = cluster.leader(), cluster.followers()[0]
        argv = [str(FLOOD), "-P", str(leader.port), "-y", "0", "-s", "100000", "-d", "-p",
                "-c", "200", "-q", "large", "-n", str(10 * megabytes)]  # fmt: skip
        subprocess.run(argv, capture_output=True, check=True)
        with Wire.open(leader.port) as wire:
            declare = commands.Queue.Declare(queue=QUEUE, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
        cluster.whole()
        stream = Stream(leader.port)
        if name == "join":
            follower.kill()
            shutil.rmtree(follower.data_dir)
            time.sleep(2)
            stream.start()
            time.sleep(5)
        else:
            stream.start()
            time.sleep(2)
            follower.stop()
            time.sleep(away_s)
        began = time.monotonic()
        follower.start()
        cluster.wait_in_sync(cluster.nodes, PATIENCE_S + megabytes / SLOW_MB_S)
        over = time.monotonic()
        time.sleep(1)
        stream.end()
        took = over - began
        show(f"{name}: {megabytes} MB, seconds from the start of the process to in sync", [took])
        sys.stdout.write(f"{name}: before: {stream.told(began - 4, began)}\n")
        sys.stdout.write(f"{name}: meanwhile: {stream.told(began, over)}\n")
        sys.stdout.flush()


def show(name: str, values: list[float]) -> None:
    """The middle, the lowest and the highest."""
    sys.stdout.write(
        f"{name}: {statistics.median(values):.4g} ({min(values):.4g} … {max(values):.4g})\n"
    )
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--queues", type=int, default=0)
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--away", type=float, default=60)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--machines", action="store_true")
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--flags", default="")
    parser.add_argument("--only", default=",".join((*LOADS, *FAULTS, *JOINS)))
    options = parser.parse_args()
    FLAGS.extend(shlex.split(options.flags))
    PLACE.mkdir(parents=True, exist_ok=True)
    if not FLOOD.exists():
        source = Path(__file__).with_name("flood.c")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-pthread", "-o", FLOOD, source],
                       check=True)  # fmt: skip
    for name in options.only.split(","):
        if name in LOADS:
            loads(
                name, (*LOADS[name], "-r", str(options.rate)), options.reps, options.seconds,
                is_pinned=options.pin or options.machines, has_machines=options.machines,
            )  # fmt: skip
        elif name in JOINS:
            joins(name, options.megabytes, options.away)
        else:
            faults(name, options.times, options.queues, options.messages)


if __name__ == "__main__":
    main()
