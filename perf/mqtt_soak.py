"""Ten thousand clients of MQTT that come back for minutes: `make soak-mqtt`.

Owns the clients, the books of what they have said and heard, and the samples of what a broker of
its own holds. Each client connects, publishes to others with QoS 1 and 2, stays for a while, and
goes: by DISCONNECT, in the middle of a packet, by a reset, or by coming back on a second connection
while the first is there. Three of four have a session that is kept, every second one speaks version
5. In the end all come once more, until nothing is on its way. Exit code 1: what was acknowledged
did not come, QoS 2 came twice, a session was forgotten, the broker closed a connection, or its
memory grew. See `perf/README.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench, brokers, measure, mqtt, topology

ANSWER_S = 300.0
"""On a machine with much other work."""
SAMPLE_S = 10.0
QUIET_S = 20.0
GROWTH_MIB = 4.0
"""Memory may be this much more in the last quarter of a run than in the one before. Rates of the
last ten minutes are kept of each session, so it grows for as long."""
TOLD = 10
"""Failures in words."""
ARRIVALS_S = 300
"""Clients that come in a second when all do."""
SOURCES = 8
"""Addresses that they come from: one has too few ports for so many that were just closed."""
CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 2, 3, 4, 5, 6, 7, 9
REFUSED = 0x80
LEFT, RESET, TORN, TAKEN = range(4)


class Books:
    """What was published to whom, acknowledged, and heard. A message is its number."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.receivers = array("I")
        self.qos = bytearray()
        self.acknowledged = bytearray()
        self.heard = bytearray()

    def publish(self, receiver: int, qos: int) -> int:
        """Return the number of a new message."""
        self.receivers.append(receiver)
        self.qos.append(qos)
        self.acknowledged.append(0)
        self.heard.append(0)
        return len(self.receivers) - 1

    def acknowledge(self, number: int) -> None:
        """The broker has taken it over."""
        self.acknowledged[number] = 1

    def hear(self, receiver: int, number: int) -> None:
        """It came to that client."""
        if number >= len(self.receivers) or self.receivers[number] != receiver:
            self.failures.append(f"client {receiver} got message {number}, which is not for it")
        elif self.heard[number] and self.qos[number] == 2:
            self.failures.append(f"client {receiver} got message {number} twice, with QoS 2")
        else:
            self.heard[number] = 1

    def missing(self) -> list[int]:
        """Messages that were acknowledged, and did not come."""
        pairs = zip(self.acknowledged, self.heard, strict=True)
        return [number for number, (said, came) in enumerate(pairs) if said and not came]


class Wire(asyncio.Protocol):
    """One connection of a client: cuts packets out of what comes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say CONNECT."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.client.connect_packet())

    def data_received(self, data: bytes) -> None:
        """Give each whole packet to the client, as long as this is its connection."""
        data = self._rest + data
        while len(data) >= 2 and len(data) >= 2 + data[1] and self.client.wire is self:
            end = 2 + data[1]  # none has more than 127 bytes
            self.client.take(data[0], data[2:end])
            data = data[end:]
        self._rest = data

    def connection_lost(self, exc: Exception | None) -> None:
        """Only the broker ends a connection that is still the client's."""
        if self.client.wire is self:
            self.client.wire = None
            self.client.fail(f"the broker has closed the connection: {exc}")

    def write(self, packet: bytes) -> None:
        """Send, if it is still there."""
        if self.transport is not None:
            self.transport.write(packet)

    def end(self, *, by_reset: bool = False) -> None:
        """Close it: after all that was written, or as a network does that breaks."""
        if self.transport is None:
            return
        if by_reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()


class Client:
    """A client with what it has of its session; its connections come and go."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.number, self.fleet = number, fleet
        self.is_kept = number % 4 != 0
        self.properties = b"\0" if number % 8 < 4 else b""
        """Those of a packet, none: version 5 has a length for them."""
        self.wire: Wire | None = None
        self.is_subscribed = False
        self.answer: asyncio.Future[None] | None = None
        self.sending: dict[int, tuple[int, bytes]] = {}
        """By packet identifier: the message, and the packet to send once more."""
        self.received: set[int] = set()
        """Identifiers of QoS 2 that the broker has not released."""
        self._last_id = 0
        self._dice = random.Random(number)

    def fail(self, why: str) -> None:
        """Note it in the books."""
        self.fleet.books.failures.append(f"client {self.number}: {why}")
        if len(self.fleet.books.failures) <= TOLD:
            print(self.fleet.books.failures[-1], file=sys.stderr, flush=True)
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)

    async def live(self) -> None:
        """Come and go, until the fleet's time is over."""
        await asyncio.sleep(self._dice.random() * self.fleet.stay_s)
        while not self.fleet.is_over:
            await self.come()
            self._publish_some()
            await asyncio.sleep(self._dice.random() * self.fleet.stay_s)
            self._publish_some()
            self._go(self._dice.choice((LEFT, RESET, TORN, TAKEN)))
            await asyncio.sleep(self._dice.random() * self.fleet.stay_s / 4)

    async def come(self) -> None:
        """Connect, beside a connection that may be there still, and wait for the session."""
        loop = asyncio.get_running_loop()
        before, self.wire = self.wire, Wire(self)
        wire = self.wire
        self.answer = loop.create_future()
        if not self.is_kept:  # nobody will say what became of it
            self.sending.clear()
            self.is_subscribed = False
        source = f"127.0.0.{2 + self.number % SOURCES}", 0
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.create_connection(
                    lambda: wire, topology.HOST, self.fleet.port, local_addr=source
                )
                self.fleet.connects += 1
                await self.answer
        except (OSError, TimeoutError) as error:
            self.wire = None
            self.fail(f"{type(error).__name__} {error}")
        if before is not None:
            before.end()

    def _go(self, how: int) -> None:
        wire = self.wire
        if wire is None or how == TAKEN:
            return
        self.wire = None
        if how == LEFT:
            wire.write(b"\xe0\0")
        elif how == TORN:
            wire.write(b"\x32\x7f\0\5torn")
        wire.end(by_reset=how == RESET)

    def _publish_some(self) -> None:
        for _ in range(self._dice.randrange(4)):
            receiver = self.fleet.clients[self._dice.randrange(len(self.fleet.clients))]
            if receiver.is_kept and receiver.is_subscribed and self.wire is not None:
                self._publish(receiver.number, self._dice.choice((1, 2)))

    def _publish(self, receiver: int, qos: int) -> None:
        assert self.wire is not None
        number = self.fleet.books.publish(receiver, qos)
        while True:
            self._last_id = self._last_id % 65535 + 1
            if self._last_id not in self.sending:
                break
        head = text(f"soak/{receiver}/x") + self._last_id.to_bytes(2) + self.properties
        packet = packed(0x30 | qos << 1, head + number.to_bytes(4) * 4)
        self.sending[self._last_id] = number, packet
        self.wire.write(packet)

    def connect_packet(self) -> bytes:
        """CONNECT as guest."""
        version = 5 if self.properties else 4
        expiry = b""
        if self.properties:
            expiry = b"\5\x11" + (86400).to_bytes(4) if self.is_kept else b"\0"
        flags = 0xC0 if self.is_kept else 0xC2
        head = text("MQTT") + bytes((version, flags, 0, 0)) + expiry
        return packed(0x10, head + text(f"soak-{self.number}") + 2 * text("guest"))

    def take(self, first: int, body: bytes) -> None:
        """A packet of the broker."""
        kind, identifier = first >> 4, body[:2]
        if kind in (PUBACK, PUBREC) and len(body) > 2 and body[2] >= REFUSED:
            self.fail(f"{kind} says {body!r}")
        elif kind == CONNACK:
            self._begin(body)
        elif kind == SUBACK:
            self._subscribed(body)
        elif kind == PUBLISH:
            self._hear(first, body)
        elif kind == PUBREL:
            self.received.discard(int.from_bytes(identifier))
            self._say(0x70, identifier)
        else:
            self._end_step(kind, int.from_bytes(identifier))

    def _say(self, first: int, identifier: bytes) -> None:
        if self.wire is not None:
            self.wire.write(packed(first, identifier))

    def _begin(self, body: bytes) -> None:
        assert self.wire is not None and self.answer is not None
        if body[1]:
            self.fail(f"CONNACK says {body!r}")
        elif body[0] != (self.is_kept and self.is_subscribed):
            self.fail(f"CONNACK says session present {body[0]}")
        elif body[0]:
            for _, packet in self.sending.values():
                is_publish = packet[0] >> 4 == PUBLISH
                self.wire.write(bytes((packet[0] | 8,)) + packet[1:] if is_publish else packet)
            self.answer.set_result(None)
        else:
            self.received.clear()
            filter_ = text(f"soak/{self.number}/+") + b"\2"
            self.wire.write(packed(0x82, b"\0\1" + self.properties + filter_))

    def _subscribed(self, body: bytes) -> None:
        assert self.answer is not None
        if body[-1] != 2:
            self.fail(f"SUBACK says {body!r}")
            return
        self.is_subscribed = True
        self.answer.set_result(None)

    def _hear(self, first: int, body: bytes) -> None:
        at = 2 + int.from_bytes(body[:2])
        identifier, number = body[at : at + 2], int.from_bytes(body[-4:])
        if body[-16:] != number.to_bytes(4) * 4:
            self.fail(f"a body is {body[-16:]!r}")
        if first & 6 == 4:
            known = int.from_bytes(identifier)
            if known not in self.received:
                self.received.add(known)
                self.fleet.books.hear(self.number, number)
            self._say(0x50, identifier)
        else:
            self.fleet.books.hear(self.number, number)
            self._say(0x40, identifier)

    def _end_step(self, kind: int, identifier: int) -> None:
        """One of our messages got as far as this."""
        number, packet = self.sending.get(identifier, (0, b"\0"))
        awaited = {0x32: (PUBACK,), 0x34: (PUBREC,), 0x62: (PUBREC, PUBCOMP)}.get(packet[0], ())
        if kind not in awaited:
            self.fail(f"packet {kind} for {identifier}, which awaits {awaited}")
            return
        self.fleet.books.acknowledge(number)
        if kind == PUBREC:
            release = packed(0x62, identifier.to_bytes(2))
            self.sending[identifier] = number, release
            self._say(0x62, identifier.to_bytes(2))
        else:
            del self.sending[identifier]


class Fleet:
    """All clients. `stay_s`: how long one stays, at most."""

    def __init__(self, port: int, count: int, stay_s: float) -> None:
        self.port, self.stay_s = port, stay_s
        self.books = Books()
        self.connects = 0
        self.is_over = False
        self.clients = [Client(number, self) for number in range(count)]

    async def live(self, pid: int, minutes: float) -> list[dict[str, float]]:
        """Have them live so long, and then until all has come. Returns: what the broker held."""
        loop = asyncio.get_running_loop()
        lives = [loop.create_task(each.live()) for each in self.clients]
        began, samples = time.monotonic(), []
        every_s = min(SAMPLE_S, minutes * 60 / 6)
        while time.monotonic() - began < minutes * 60:
            await asyncio.sleep(every_s)
            held = measure.footprint(pid)
            samples.append({
                "s": round(time.monotonic() - began), "connects": self.connects,
                "there": sum(each.wire is not None for each in self.clients),
                "published": len(self.books.receivers),
                "acknowledged": sum(self.books.acknowledged),
                "heard": sum(self.books.heard), "failures": len(self.books.failures),
                "anon_mib": round(held.anon_mib, 1), "rss_mib": round(held.rss_mib, 1),
                "descriptors": held.descriptors, "cpu_s": round(held.cpu_s, 1),
            })  # fmt: skip
            print(*samples[-1].values(), sep="\t", flush=True)
        self.is_over = True
        await asyncio.gather(*lives)
        await self._settle()
        return samples

    async def _settle(self) -> None:
        """Have those with a session come once more, until nothing is on its way."""
        kept = [each for each in self.clients if each.is_kept]
        loop = asyncio.get_running_loop()
        coming = []
        for client in kept:
            coming.append(loop.create_task(client.come()))
            await asyncio.sleep(1 / ARRIVALS_S)
        await asyncio.gather(*coming)
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            await asyncio.sleep(1)
            if not self.books.missing() and not any(each.sending for each in kept):
                break
        self.books.failures += [f"message {each} is lost" for each in self.books.missing()]
        for client in kept:
            if client.sending:
                client.fail(f"no answer to {list(client.sending)}")
        for client in self.clients:
            if client.wire is not None:
                wire, client.wire = client.wire, None
                wire.end()


def text(value: str) -> bytes:
    """A string, with its length."""
    raw = value.encode()
    return len(raw).to_bytes(2) + raw


def packed(first: int, body: bytes) -> bytes:
    """A packet of less than 128 bytes."""
    return bytes((first, len(body))) + body


def growth_mib(samples: Sequence[dict[str, float]]) -> float:
    """By how much memory is more in the last quarter than in the one before."""
    held = [each["anon_mib"] for each in samples]
    n = len(held) // 4
    return fmean(held[-n:]) - fmean(held[-2 * n : -n]) if n else 0.0


def warnings(log: Path) -> Counter[str]:
    """What the broker has warned of, and how often: without times and addresses."""
    found: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        _, is_warning, rest = line.partition(" WARN ")
        if is_warning:
            found[re.sub(r"\[.*?\]|\d+", "", rest)] += 1
    return found


def run(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The fleet and a broker, whose data is in that directory: what was found."""
    (place / "data").mkdir()
    ports = dict(zip(("amqp", "http", "metrics", "mqtt"), brokers.free_ports(4), strict=True))
    command = options.broker_command.format(data=place / "data") + mqtt.OPTIONS.format(**ports)
    with (
        (place / "log").open("wb") as log,
        subprocess.Popen(shlex.split(command), stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            mqtt.wait_for_port(process, ports["mqtt"], place / "log")
            fleet = Fleet(ports["mqtt"], options.clients, options.stay)
            samples = asyncio.run(fleet.live(process.pid, options.minutes))
            time.sleep(min(QUIET_S, options.minutes * 60))
            after = measure.footprint(process.pid)
        finally:
            process.kill()
    books = fleet.books
    growth = growth_mib(samples)
    if growth > GROWTH_MIB:
        books.failures.append(f"memory grew by {growth:.1f} MiB")
    return {
        "clients": options.clients, "minutes": options.minutes, "connects": fleet.connects,
        "published": len(books.receivers), "acknowledged": sum(books.acknowledged),
        "heard": sum(books.heard), "growth_mib": round(growth, 2),
        "after_anon_mib": round(after.anon_mib, 1), "after_descriptors": after.descriptors,
        "warnings": dict(warnings(place / "log").most_common(5)),
        "failures": books.failures, "samples": samples,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fleet and print what was found; return 1 when something went wrong."""
    parser = argparse.ArgumentParser(prog="mqtt_soak.py", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--stay", type=float, default=100.0, help="seconds of a visit, at most")
    parser.add_argument("--broker-command", default=mqtt.OURS, metavar="CMD")
    parser.add_argument("--data-dir", type=Path, default=bench.BUILD)
    parser.add_argument("--out", type=Path, metavar="FILE", help="all figures, as JSON")
    options = parser.parse_args(arguments)
    measure.raise_descriptor_limit()
    options.data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.data_dir) as name:
        found = run(Path(name), options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    for each in found["failures"][:TOLD]:
        print(each, file=sys.stderr)
    n_failures = len(found["failures"])
    print({key: value for key, value in found.items() if key not in ("failures", "samples")})
    print(f"{n_failures} failures")
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())
