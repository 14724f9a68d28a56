"""`lavinmqperf mqtt connection-count`: opens batches of connections of MQTT and holds them."""

import dataclasses
import random
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from lavinmq.cli.perf import mqtt_wire
from lavinmq.cli.perf.connection_count import SLICE
from lavinmq.cli.perf.count_options import Keepalive, keepalive
from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.descriptors import allow_connections
from lavinmq.cli.perf.held import Held
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.mqtt_wire import Address, Connection
from lavinmq.cli.perf.options import Parser, check


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttCountOptions:
    """How many connections make a batch, and what each of them has."""

    uri: str = "mqtt://localhost:1883"
    count: int = 100
    subscriptions: int = 0
    topic: str = "connection-count"
    qos: int = 0
    clean_session: bool = False
    localhost: bool = False
    keepalive: Keepalive | None = None


def mqtt_count_parser() -> Parser:
    """Return the table of options of `mqtt connection-count`."""
    parser = Parser("mqtt connection-count", MqttCountOptions(), uri_names=("-u", "--uri"))
    value, flag = parser.value, parser.flag
    value("-x", "--count", text="connections of each batch, default 100")
    value("-y", "--subscriptions", text="subscriptions of each connection, default 0")
    text = "first levels of their topics, default connection-count"
    value("-t", "--topic", convert=str, metavar="NAME", text=text)
    value("--qos", text="QoS of the subscriptions, 0 (default), 1 or 2")
    flag("--clean-session", text="clean sessions; else the broker keeps them")
    flag("-l", "--localhost", text="connect to random addresses of 127.0.0.0/16")
    text = "TCP keepalive: seconds, probes, seconds"
    value("-k", "--keepalive", convert=keepalive, metavar="IDLE:COUNT:INTERVAL", text=text)
    return parser


def parse(argv: Sequence[str]) -> MqttCountOptions:
    """Read and check the options. Raises: UsageError, Information."""
    options = MqttCountOptions(**mqtt_count_parser().read(argv))
    check(
        {
            "--count must be at least 1": not options.count,
            "--qos is 0, 1 or 2": options.qos > 2,
            "--subscriptions need a --topic": bool(options.subscriptions) and not options.topic,
        }
    )
    return options


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options; returns the exit status.

    Raises: UsageError, Information, ValueError, OSError, Error.
    """
    options = parse(argv)
    address = mqtt_wire.parse_uri(options.uri)
    with Interrupts() as interrupts:
        held = Held(mqtt_wire.KEPT_CLOSED)
        try:
            batches = Batches(options, address, held, interrupts)
            repeat(batches.open, batches.totals, interrupts, {held.fileno(): held.drain})
        finally:
            held.close()
    return 0


class Batches:
    """Opens the connections of a run."""

    def __init__(
        self, options: MqttCountOptions, address: Address, held: Held, interrupts: Interrupts
    ) -> None:
        self._options = options
        self._address = address
        self._held = held
        self._interrupts = interrupts
        self._run = secrets.token_hex(4)
        self._n = 0

    def open(self) -> None:
        """Open one batch, some connections at a time. Raises: OSError, Error."""
        allow_connections(len(self._held) + self._options.count)
        for done in range(0, self._options.count, SLICE):
            with Dots(min(SLICE, self._options.count - done)) as dots:
                for _ in range(min(SLICE, self._options.count - done)):
                    if self._interrupts.happened:
                        return
                    self._held.add(self._opened())
                    dots.count()
            self._held.drain()

    def totals(self) -> str:
        """Say what there is by now."""
        connections = len(self._held)
        text = f"{connections} connections"
        text += f", {connections * self._options.subscriptions} subscriptions"
        return f"{text}, {self._held.lost} lost" if self._held.lost else text

    def _opened(self) -> socket.socket:
        options, address = self._options, self._address
        if options.localhost:
            number = random.randint(1, 0xFFFF)
            host = f"127.0.{number >> 8}.{number & 0xFF}"
            address = dataclasses.replace(address, host=host)
        self._n += 1
        name = f"lavinmqperf-{self._run}-{self._n}"
        connection = Connection.open(address, name, clean=options.clean_session)
        for number in range(options.subscriptions):
            connection.subscribe(f"{options.topic}/{name}/{number}", options.qos)
        sock = connection.socket
        if settings := options.keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, settings.idle_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, settings.probes)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, settings.interval_s)
        return sock
