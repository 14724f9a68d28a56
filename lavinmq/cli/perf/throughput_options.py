"""The options of `lavinmqperf amqp throughput`: their table, defaults and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lavinmq.cli.perf.options import Parser, check, json_object, rate

STAMP_BYTES = 8
SIZE_MAX = 512 * 1024 * 1024
WINDOW_MAX = 1 << 24
PATTERN_QUEUES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """`amqp throughput`: what to publish and consume. Rates are messages/s, sizes bytes."""

    uri: str = "amqp://guest:guest@localhost"
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    verify: bool = False
    ack: int = 0
    confirm: int = 0
    transaction: int = 0
    ack_transaction: int = 0
    queue: str = "perf-test"
    routing_key: str | None = None
    exchange: str = ""
    rate: float = 0
    consumer_rate: float = 0
    persistent: bool = False
    prefetch: int = 0
    poll: bool = False
    json: bool = False
    time: float = 0
    quiet: bool = False
    pmessages: int = 0
    cmessages: int = 0
    queue_args: dict[str, Any] = field(default_factory=dict)
    consumer_args: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    random_bodies: bool = False
    queue_pattern: str | None = None
    queue_pattern_from: int = 1
    queue_pattern_to: int = 1
    measure_latency: bool = False

    @property
    def queues(self) -> list[str]:
        """The names of all queues of the run."""
        if self.queue_pattern is None:
            return [self.queue]
        numbers = range(self.queue_pattern_from, self.queue_pattern_to + 1)
        return [self.queue_pattern.replace("%", str(number)) for number in numbers]


def throughput_parser() -> Parser:
    """Return the table of options of `amqp throughput`."""
    parser = Parser("amqp throughput", ThroughputOptions())
    value, flag = parser.value, parser.flag
    value("-x", "--publishers", text="number of publishers, default 1")
    value("-y", "--consumers", text="number of consumers, default 1")
    value("-s", "--size", metavar="BYTES", text="size of each body, default 16")
    flag("-V", "--verify", text="check the body of every message consumed")
    value("-a", "--ack", text="acknowledge every N messages, 0 = no-ack mode (default)")
    value("-c", "--confirm", text="publisher confirms, at most N unconfirmed")
    value("-t", "--transaction", text="publish in transactions of N messages")
    value("-T", dest="ack_transaction", text="acknowledge in transactions of N messages")
    value("-u", "--queue", convert=str, metavar="NAME", text="queue, default perf-test")
    value("-k", "--routing-key", convert=str, metavar="KEY", text="default: the queue's name")
    value("-e", "--exchange", convert=str, metavar="NAME", text="default: the default exchange")
    value("-r", "--rate", convert=rate, text="messages/s of each publisher, 0 = no limit")
    value("-R", "--consumer-rate", convert=rate, text="messages/s of each consumer, 0 = no limit")
    flag("-p", "--persistent", text="publish persistent messages")
    value("-P", "--prefetch", text="prefetch of each consumer, 0 = no limit")
    flag("-g", "--poll", text="poll with basic.get instead of consuming")
    flag("-j", "--json", text="print nothing but the summary, as JSON")
    value("-z", "--time", convert=rate, metavar="SECONDS", text="stop after this time")
    flag("-q", "--quiet", text="no rates every second")
    value("-C", "--pmessages", text="publish N messages in total")
    value("-D", "--cmessages", text="consume N messages in total")
    for name, text in (
        ("--queue-args", "arguments of queue.declare"),
        ("--consumer-args", "arguments of basic.consume"),
        ("--properties", "properties of each message"),
    ):
        value(name, convert=json_object, metavar="JSON", text=text)
    flag("--random-bodies", text="new random bytes in each body")
    value("--queue-pattern", convert=str, metavar="NAME", text="many queues: %% is the number")
    value("--queue-pattern-from", text="first number, default 1")
    value("--queue-pattern-to", text="last number, default 1")
    flag("-l", "--measure-latency", text="measure the time from publisher to consumer")
    return parser


def parse_throughput(argv: Sequence[str]) -> ThroughputOptions:
    """Read and check the options of `amqp throughput`. Raises: UsageError, Information."""
    options = ThroughputOptions(**throughput_parser().read(argv))
    pattern, first, last = (
        options.queue_pattern,
        options.queue_pattern_from,
        options.queue_pattern_to,
    )
    check(
        {
            "nothing to do: neither publishers nor consumers": not (
                options.publishers or options.consumers
            ),
            "an empty --queue needs an --exchange to which it is bound: nothing would arrive": (
                not (options.queue or options.exchange or options.routing_key or pattern)
                and bool(options.publishers)
            ),
            f"--measure-latency needs a --size of at least {STAMP_BYTES}": (
                options.measure_latency and options.size < STAMP_BYTES
            ),
            f"--size must be at most {SIZE_MAX}": options.size > SIZE_MAX,
            f"--confirm must be at most {WINDOW_MAX}": options.confirm > WINDOW_MAX,
            "--prefetch must be at most 65535": options.prefetch > 65535,
            "--confirm and --transaction exclude each other": bool(
                options.confirm and options.transaction
            ),
            "--queue-pattern needs a % for the number": pattern is not None and "%" not in pattern,
            f"--queue-pattern-to must be in {first}..{first + PATTERN_QUEUES_MAX - 1}": (
                pattern is not None and not first <= last < first + PATTERN_QUEUES_MAX
            ),
        }
    )
    return options
