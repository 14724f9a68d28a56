"""The options of `lavinmqperf mqtt throughput`: their table, defaults and checks."""

from collections.abc import Sequence
from dataclasses import dataclass

from lavinmq.cli.perf.options import Parser, check, rate
from lavinmq.cli.perf.throughput_options import STAMP_BYTES

SIZE_MAX = 268_435_455 - 65_540
"""Bytes of a payload: a packet has no more, with its topic."""
WINDOW_MAX = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """`mqtt throughput`: what to publish and consume. Rates are messages/s, sizes bytes."""

    uri: str = "mqtt://localhost:1883"
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    verify: bool = False
    qos: int = 0
    topic: str = "perf-test"
    confirm: int = 1
    rate: float = 0
    consumer_rate: float = 0
    json: bool = False
    time: float = 0
    quiet: bool = False
    pmessages: int = 0
    cmessages: int = 0
    random_bodies: bool = False
    retain: bool = False
    clean_session: bool = False
    measure_latency: bool = False


def mqtt_parser() -> Parser:
    """Return the table of options of `mqtt throughput`."""
    parser = Parser("mqtt throughput", MqttOptions(), uri_names=("-u", "--uri"))
    value, flag = parser.value, parser.flag
    value("-x", "--publishers", text="number of publishers, default 1")
    value("-y", "--consumers", text="number of subscribers, default 1")
    value("-s", "--size", metavar="BYTES", text="size of each payload, default 16")
    flag("-V", "--verify", text="check the payload of every message consumed")
    value("--qos", text="QoS of messages and subscriptions, 0 (default) or 1")
    value("-t", "--topic", convert=str, metavar="NAME", text="topic, default perf-test")
    value("-c", "--confirm", text="with QoS 1: at most N unacknowledged, default 1")
    value("-r", "--rate", convert=rate, text="messages/s of each publisher, 0 = no limit")
    value("-R", "--consumer-rate", convert=rate, text="messages/s of each subscriber, 0 = no limit")
    flag("-j", "--json", text="print nothing but the summary, as JSON")
    value("-z", "--time", convert=rate, metavar="SECONDS", text="stop after this time")
    flag("-q", "--quiet", text="no rates every second")
    value("-C", "--pmessages", text="publish N messages in total")
    value("-D", "--cmessages", text="consume N messages in total")
    flag("--random-bodies", text="new random bytes in each payload")
    flag("--retain", text="publish retained messages")
    flag("--clean-session", text="clean sessions; else those of earlier runs go on")
    flag("-l", "--measure-latency", text="measure the time from publisher to subscriber")
    return parser


def parse_mqtt(argv: Sequence[str]) -> MqttOptions:
    """Read and check the options of `mqtt throughput`. Raises: UsageError, Information."""
    options = MqttOptions(**mqtt_parser().read(argv))
    check(
        {
            "nothing to do: neither publishers nor consumers": not (
                options.publishers or options.consumers
            ),
            "--qos is 0 or 1": options.qos > 1,
            "a --topic is needed": not options.topic,
            f"--confirm must be in 1..{WINDOW_MAX}": not 1 <= options.confirm <= WINDOW_MAX,
            f"--measure-latency needs a --size of at least {STAMP_BYTES}": (
                options.measure_latency and options.size < STAMP_BYTES
            ),
            f"--size must be at most {SIZE_MAX}": options.size > SIZE_MAX,
        }
    )
    return options
