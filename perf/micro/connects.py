"""What a client of MQTT costs to come and to go: `python -m perf.micro.connects [COUNT]`.

Has COUNT clients (10000) with a clean session come to a broker in this process, 64 at a time, and
go again, by DISCONNECT. Prints the processor's time that the loop's thread takes for each, the
kernel's included, without the clients': the median of all times 64. `--version 5` and `--stored`
make them others. `--profile` runs it below cProfile and prints the functions that take most.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from statistics import median

from lavinmq.config.values import from_keywords
from lavinmq.server import Server, new_events, opened, spare_collections

HOST = "127.0.0.1"
AT_ONCE = 64
WARM = 512
SHOWN = 70
DISCONNECT = b"\xe0\0"


def text(value: bytes) -> bytes:
    """Bytes behind their length."""
    return len(value).to_bytes(2, "big") + value


def connect(number: int, version: int, *, is_stored: bool) -> bytes:
    """The CONNECT of a client."""
    flags = b"\xc0" if is_stored else b"\xc2"
    properties = b"" if version < 5 else b"\5\x11\0\0\xff\xff" if is_stored else b"\0"
    body = text(b"MQTT") + bytes([version]) + flags + b"\0\0" + properties
    body += text(b"device-%07d" % number) + 2 * text(b"guest")
    return bytes([0x10, len(body)]) + body


class Wanted(argparse.Namespace):
    """What was asked for."""

    count: int
    version: int
    is_stored: bool
    profile: bool


class Bench:
    """A broker, and clients that come and go. Args: port: of MQTT."""

    def __init__(
        self, server: Server, events: asyncio.AbstractEventLoop, port: int, wanted: Wanted
    ) -> None:
        self._broker = server.broker
        self._events = events
        self._port = port
        self._wanted = wanted

    def once(self, first: int, profile: cProfile.Profile | None = None) -> tuple[float, float]:
        """Have a batch come and go. Returns: microseconds for each of them, of both."""
        socks = []
        for number in range(first, first + AT_ONCE):
            sock = socket.create_connection((HOST, self._port))
            sock.sendall(connect(number, self._wanted.version, is_stored=self._wanted.is_stored))
            socks.append(sock)
        connections = self._broker.connections
        came = self._timed(
            lambda: len(connections) == AT_ONCE and not len(self._broker.newcomers), profile
        )
        for sock in socks:
            assert sock.recv(64)[0] == 0x20
            sock.sendall(DISCONNECT)
            sock.close()
        return came, self._timed(lambda: not connections, profile)

    def _timed(self, is_over: Callable[[], bool], profile: cProfile.Profile | None) -> float:
        if profile is not None:
            profile.enable()
        began = time.thread_time()
        self._events.run_until_complete(_turn(is_over))
        took = time.thread_time() - began
        if profile is not None:
            profile.disable()
        return took / AT_ONCE * 1e6


async def _turn(is_over: Callable[[], bool]) -> None:
    while not is_over():
        await asyncio.sleep(0)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def main() -> None:
    """Have a broker that listens for MQTT alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--version", type=int, default=4, choices=(4, 5))
    parser.add_argument("--stored", dest="is_stored", action="store_true")
    parser.add_argument("--profile", action="store_true")
    wanted = parser.parse_args(namespace=Wanted())
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    events, port = new_events(), free_port()
    profile = cProfile.Profile(builtins=True) if wanted.profile else None
    with tempfile.TemporaryDirectory() as name:
        closed = dict.fromkeys(("amqp", "amqp_tls", "mgmt", "mgmt_tls", "mqtt_tls"), -1)
        config = from_keywords({
            "data_dir": name, "metrics_http_port": -1, "control_unix_path": "", "mqtt_port": port,
            **{f"{each}_port": none for each, none in closed.items()},
        })  # fmt: skip
        with opened(config, events, wait=False) as server:
            server.start()
            spare_collections()
            events.run_until_complete(asyncio.sleep(0.1))
            bench = Bench(server, events, port, wanted)
            for first in range(0, WARM, AT_ONCE):
                bench.once(first)
            took = [bench.once(WARM + first, profile) for first in range(0, wanted.count, AT_ONCE)]
            server.stop()
    for what, times in zip(("coming", "going"), zip(*took, strict=True), strict=True):
        print(f"{what}: {median(times):.1f} us ({min(times):.1f} ... {max(times):.1f})")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


if __name__ == "__main__":
    main()
