"""The options of `lavinmqperf amqp queue-count` and `connection-count`: tables and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lavinmq.cli.perf.options import Parser, check, json_object

CHANNELS_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCountOptions:
    """How many queues make a batch, and of which kind."""

    uri: str = "amqp://guest:guest@localhost"
    queues: int = 100
    durable: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    no_wait: bool = False


def queue_count_parser() -> Parser:
    """Return the table of options of `amqp queue-count`."""
    parser = Parser("amqp queue-count", QueueCountOptions())
    parser.value("-q", "--queues", text="queues of each batch, default 100")
    parser.flag("-D", "--durable", text="durable queues, which are left over; else exclusive ones")
    parser.value("--arguments", convert=json_object, metavar="JSON", text="of queue.declare")
    parser.flag("-n", "--no-wait", text="do not wait for the answer to each declaration")
    return parser


def parse_queue_count(argv: Sequence[str]) -> QueueCountOptions:
    """Read and check the options. Raises: UsageError, Information."""
    options = QueueCountOptions(**queue_count_parser().read(argv))
    check({"--queues must be at least 1": not options.queues})
    return options


class Keepalive(NamedTuple):
    """TCP keepalive: seconds until the first probe, probes until the end, seconds between them."""

    idle_s: int
    probes: int
    interval_s: int


# What Linux accepts.
KEEPALIVE_MAX = Keepalive(32767, 127, 32767)


def keepalive(text: str) -> Keepalive:
    """Read IDLE:COUNT:INTERVAL. Raises: ValueError."""
    idle_s, probes, interval_s = map(int, text.split(":"))
    numbers = Keepalive(idle_s, probes, interval_s)
    if not all(1 <= number <= limit for number, limit in zip(numbers, KEEPALIVE_MAX, strict=True)):
        raise ValueError
    return numbers


# argparse names a converter in its message.
keepalive.__name__ = "IDLE:COUNT:INTERVAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCountOptions:
    """How many connections make a batch, and what each of them has."""

    uri: str = "amqp://guest:guest@localhost"
    count: int = 100
    channels: int = 1
    consumers: int = 0
    queue: str = "connection-count"
    localhost: bool = False
    keepalive: Keepalive | None = None


def connection_count_parser() -> Parser:
    """Return the table of options of `amqp connection-count`."""
    parser = Parser("amqp connection-count", ConnectionCountOptions())
    value, flag = parser.value, parser.flag
    value("-x", "--count", text="connections of each batch, default 100")
    value("-c", "--channels", text="channels of each connection, default 1")
    value("-C", "--consumers", text="consumers of each channel, default 0")
    text = "queue of the consumers, default connection-count"
    value("-u", "--queue", convert=str, metavar="NAME", text=text)
    flag("-l", "--localhost", text="connect to random addresses of 127.0.0.0/16")
    text = "TCP keepalive: seconds, probes, seconds"
    value("-k", "--keepalive", convert=keepalive, metavar="IDLE:COUNT:INTERVAL", text=text)
    return parser


def parse_connection_count(argv: Sequence[str]) -> ConnectionCountOptions:
    """Read and check the options. Raises: UsageError, Information."""
    options = ConnectionCountOptions(**connection_count_parser().read(argv))
    check(
        {
            "--count must be at least 1": not options.count,
            f"--channels must be at most {CHANNELS_MAX}": options.channels > CHANNELS_MAX,
            "--consumers need --channels": bool(options.consumers) and not options.channels,
            "--consumers need a --queue": bool(options.consumers) and not options.queue,
        }
    )
    return options
