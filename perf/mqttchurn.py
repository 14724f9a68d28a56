"""Ten thousand clients of MQTT that come and go for minutes: `perf/mqttchurn.py --clients 8000`.

Owns the clients and the samples of what a broker of its own holds. Each client connects, subscribes
to a topic of its own, publishes there with QoS 1 what it then gets, and leaves: by DISCONNECT, by
an end without a word, or by another one that takes its session. Every second one has a session that
is kept. Exit code 1: a client was refused, or a message that was acknowledged did not come.
See `perf/README.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench, brokers, measure, mqtt, topology

ANSWER_S = 60.0
SAMPLE_S = 10.0
QUIET_S = 20.0
CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9


class Churn:
    """The clients and what they have seen. `stay_s`: how long one stays, at most, and is away."""

    def __init__(self, port: int, stay_s: float) -> None:
        self.port = port
        self.stay_s = stay_s
        self.connects = self.messages = self.there = 0
        self.failed: list[str] = []

    async def live(self, number: int) -> None:
        """Be a client, again and again, until it is cancelled."""
        dice = random.Random(number)
        await asyncio.sleep(dice.random() * self.stay_s)
        writer = None
        while True:
            try:
                async with asyncio.timeout(ANSWER_S + self.stay_s):
                    left = await self._visit(number, dice)
                if writer is not None:
                    writer.close()  # of before, whose session has just been taken over
                writer = left
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                self.failed.append(f"client {number}: {type(error).__name__} {error}")
            await asyncio.sleep(dice.random() * self.stay_s / 4)

    async def _visit(self, number: int, dice: random.Random) -> asyncio.StreamWriter | None:
        """One connection. Returns: its socket, if it is left open for the next one to take over."""
        reader, writer = await asyncio.open_connection(topology.HOST, self.port, limit=4096)
        self.connects += 1
        self.there += 1
        try:
            writer.write(connect(f"churn-{number}", is_clean=number % 2 == 0))
            await expect(reader, CONNACK)
            topic = f"churn/{number}"
            writer.write(subscribe(f"{topic}/+"))
            await expect(reader, SUBACK)
            await self._publish(reader, writer, f"{topic}/x")
            await asyncio.sleep(dice.random() * self.stay_s)
            how = dice.randrange(3)
            if how == 0:
                writer.write(b"\xe0\0")
            if how == 2:
                return writer
        finally:
            self.there -= 1
        if how == 1:
            writer.transport.abort()
        else:
            writer.close()
        return None

    async def _publish(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, topic: str
    ) -> None:
        """Publish, and wait for the message and its acknowledgement."""
        body = text(topic) + b"\0\1" + b"x" * 16
        writer.write(packet(0x32, body))
        wanted = {PUBACK, PUBLISH}
        while wanted:
            kind, got = await receive(reader)
            wanted.discard(kind)
            if kind == PUBLISH:
                at = 2 + int.from_bytes(got[:2])
                writer.write(b"\x40\2" + got[at : at + 2])
        self.messages += 1


def text(value: str) -> bytes:
    """A string, with its length."""
    raw = value.encode()
    return len(raw).to_bytes(2) + raw


def packet(first: int, body: bytes) -> bytes:
    """A packet of less than 128 bytes."""
    return bytes((first, len(body))) + body


def connect(client_id: str, *, is_clean: bool) -> bytes:
    """CONNECT of version 3.1.1 as guest."""
    flags = 0xC2 if is_clean else 0xC0
    head = text("MQTT") + bytes((4, flags, 0, 0))
    return packet(0x10, head + text(client_id) + text("guest") + text("guest"))


def subscribe(filter_: str) -> bytes:
    """SUBSCRIBE to one filter with QoS 1."""
    return packet(0x82, b"\0\1" + text(filter_) + b"\1")


async def receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next packet: its type and what is behind its head."""
    head = await reader.readexactly(2)
    return head[0] >> 4, await reader.readexactly(head[1])


async def expect(reader: asyncio.StreamReader, kind: int) -> None:
    """Wait for an answer that says yes. Raises: ValueError."""
    got, body = await receive(reader)
    while got == PUBLISH and kind == SUBACK:  # what a kept session had not acknowledged
        got, body = await receive(reader)
    if got != kind or body[-1] > 1:
        raise ValueError(f"{got} {body!r} in the place of {kind}")


async def churn(
    port: int, pid: int, options: argparse.Namespace
) -> tuple[Churn, list[list[float]]]:
    """Run the clients and look at the broker: seconds, connects, clients there, MiB
    of memory, descriptors."""
    clients = Churn(port, options.stay)
    tasks = [asyncio.create_task(clients.live(each)) for each in range(options.clients)]
    samples: list[list[float]] = []
    started = time.monotonic()
    while time.monotonic() - started < options.minutes * 60:
        await asyncio.sleep(SAMPLE_S)
        held = measure.footprint(pid)
        samples.append([
            round(time.monotonic() - started), clients.connects, clients.there,
            round(held.anon_mib, 1), round(held.rss_mib, 1), held.descriptors,
        ])  # fmt: skip
        print(*samples[-1], sep="\t", flush=True)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return clients, samples


def warnings(log: Path) -> Counter[str]:
    """What the broker has warned of, and how often: without times and addresses."""
    found: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        _, is_warning, rest = line.partition(" WARN ")
        if is_warning:
            found[re.sub(r"\[.*?\]|\d+", "", rest)] += 1
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the clients and print what the broker held; return 1 when something went wrong."""
    parser = argparse.ArgumentParser(prog="mqttchurn.py", description=__doc__)
    parser.add_argument("--clients", type=int, default=9000, help="at once, at most")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--stay", type=float, default=20.0, help="seconds of a visit, at most")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all figures, as JSON")
    options = parser.parse_args(arguments)
    measure.raise_descriptor_limit()
    bench.BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.BUILD) as name:
        place = Path(name)
        (place / "data").mkdir()
        ports = dict(zip(("amqp", "http", "metrics", "mqtt"), brokers.free_ports(4), strict=True))
        command = mqtt.OURS.format(data=place / "data") + mqtt.OPTIONS.format(**ports)
        with (
            (place / "log").open("wb") as log,
            subprocess.Popen(shlex.split(command), stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            try:
                mqtt.wait_for_port(process, ports["mqtt"], place / "log")
                print("s", "connects", "there", "anon MiB", "RSS MiB", "descriptors", sep="\t")
                clients, samples = asyncio.run(churn(ports["mqtt"], process.pid, options))
                time.sleep(QUIET_S)
                print("after", measure.footprint(process.pid))
            finally:
                process.kill()
        for text_, count in warnings(place / "log").most_common(5):
            print(count, text_)
    for each in clients.failed[:5]:
        print(each, file=sys.stderr)
    print(f"{clients.connects} connects, {clients.messages} messages, {len(clients.failed)} failed")
    if options.out:
        options.out.write_text(json.dumps({"samples": samples, "failed": clients.failed}) + "\n")
    return 1 if clients.failed else 0


if __name__ == "__main__":
    sys.exit(main())
