"""The command line of lavinmqperf: its options, what it prints, and the client's URIs."""

import json

import pytest

from lavinmq import __version__
from lavinmq.cli.perf import __main__ as perf
from lavinmq.cli.perf import report
from lavinmq.cli.perf.clients import Template
from lavinmq.cli.perf.options import UsageError
from lavinmq.cli.perf.peer import target_of
from lavinmq.cli.perf.throughput_options import ThroughputOptions, parse_throughput
from lavinmq.client._engine import decode_properties
from lavinmq.client.frames import Reader

LATENCY = report.Latency.of(5, 1_000_000, [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000])


SCENARIOS = perf.SCENARIOS["amqp"]


def options_of(*argv: str) -> ThroughputOptions:
    return parse_throughput(argv)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--uri", "amqp://h"], "uri", "amqp://h"),
        (["-x", "3"], "publishers", 3),
        (["--publishers=3"], "publishers", 3),
        (["-y3"], "consumers", 3),
        (["-s", "100"], "size", 100),
        (["--size", "0"], "size", 0),
        (["-V"], "verify", True),
        (["--verify"], "verify", True),
        (["-a", "10"], "ack", 10),
        (["-c", "100"], "confirm", 100),
        (["-t", "5"], "transaction", 5),
        (["-T", "5"], "ack_transaction", 5),
        (["-u", "", "-e", "x"], "queue", ""),
        (["-u", "", "-x", "0"], "queue", ""),
        (["-k", "key"], "routing_key", "key"),
        (["-e", "amq.topic"], "exchange", "amq.topic"),
        (["-r", "1000"], "rate", 1000.0),
        (["-R", "0.5"], "consumer_rate", 0.5),
        (["-p"], "persistent", True),
        (["-P", "65535"], "prefetch", 65535),
        (["-g"], "poll", True),
        (["-j"], "json", True),
        (["-z", "2.5"], "time", 2.5),
        (["-q"], "quiet", True),
        (["-C", "7"], "pmessages", 7),
        (["-D", "8"], "cmessages", 8),
        (["--queue-args", '{"x-max-length": 5}'], "queue_args", {"x-max-length": 5}),
        (["--consumer-args", '{"x-priority": 1}'], "consumer_args", {"x-priority": 1}),
        (["--properties", '{"priority": 1}'], "properties", {"priority": 1}),
        (["--random-bodies"], "random_bodies", True),
        (["-l"], "measure_latency", True),
    ],
)
def test_each_option_sets_its_value(argv: list[str], name: str, value: object) -> None:
    assert getattr(options_of(*argv), name) == value


def test_defaults_are_those_of_the_manual() -> None:
    assert options_of() == ThroughputOptions()


def test_a_queue_pattern_names_every_queue_of_its_range() -> None:
    argv = ["--queue-pattern", "q-%-x", "--queue-pattern-from", "2", "--queue-pattern-to", "4"]

    assert options_of(*argv).queues == ["q-2-x", "q-3-x", "q-4-x"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["unexpected"], "unexpected"),
        (["--no-such-option"], "--no-such-option"),
        (["-x"], "expected one argument"),
        (["-x", "-1"], "invalid number value: '-1'"),
        (["-r", "fast"], "invalid number value: 'fast'"),
        (["-r", "nan"], "invalid number value: 'nan'"),
        (["--queue-args", "[]"], "expected a JSON object"),
        (["--queue-args", "{"], "invalid JSON value"),
        (["-l", "-s", "7"], "at least 8"),
        (["-c", "1", "-t", "1"], "exclude each other"),
        (["-x", "0", "-y", "0"], "nothing to do"),
        (["-s", str(1 << 40)], "--size must be at most"),
        (["-c", str(1 << 40)], "--confirm must be at most"),
        (["-P", "65536"], "--prefetch must be at most"),
        (["--queue-pattern", "q"], "needs a %"),
        (["--queue-pattern", "q%", "--queue-pattern-from", "3"], "--queue-pattern-to must be in"),
        (["--uri", "amqps://localhost"], "amqps is not supported"),
        (["--uri", "localhost"], "invalid URI"),
        (["--properties", '{"colour": 1}'], "unknown message properties: colour"),
        (["--properties", '{"priority": "high"}'], "cannot encode properties"),
        (["-k", "k" * 256], "cannot encode exchange or routing key"),
    ],
)
def test_a_senseless_command_line_gets_a_message_and_status_1(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main(["throughput", *argv]) == 1
    assert text in capsys.readouterr().err


def test_no_scenario_prints_the_usage_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert perf.main([]) == 1
    assert "Usage: lavinmqperf [amqp|mqtt] <scenario>" in capsys.readouterr().err


def test_an_unknown_scenario_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert perf.main(["amqp", "nonsense"]) == 1
    assert "unknown scenario: amqp nonsense" in capsys.readouterr().err


def test_mqtt_has_options_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert perf.main(["mqtt", "throughput", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("-u", "--qos", "--topic", "--retain", "--clean-session"):
        assert flag in text


def test_the_usage_lists_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert perf.main(["--help"]) == 0
    listed = capsys.readouterr().out.split()
    assert set(SCENARIOS) <= set(listed)


@pytest.mark.parametrize("scenario", [[], *([name] for name in SCENARIOS), ["amqp", "throughput"]])
@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("-v", __version__),
        ("--version", __version__),
        ("--build-info", "Python 3"),
        ("-h", "lavinmqperf"),
    ],
)
def test_information_is_printed_instead_of_a_run(
    scenario: list[str], flag: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main([*scenario, flag]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["unexpected"], "unrecognized arguments: unexpected"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--uri"], "expected one argument"),
        (["--uri", "http://localhost"], "invalid URI"),
    ],
)
def test_what_no_scenario_understands_gets_a_message_and_status_1(
    scenario: str, argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main([scenario, *argv]) == 1
    assert text in capsys.readouterr().err


def test_the_line_of_a_second_shows_both_rates() -> None:
    line = report.rate_line(report.Totals(2.0, 200, 101))

    assert line == "Publish rate: 100 msgs/s Consume rate: 50 msgs/s"


def test_the_line_of_a_second_shows_latency_when_measured() -> None:
    line = report.rate_line(report.Totals(1.0, 5, 5, LATENCY))

    assert line == (
        "Publish rate: 5 msgs/s Consume rate: 5 msgs/s"
        " | Latency (ms) min/median/75th/95th/99th: 1.000/3.000/4.000/5.000/5.000"
    )


def test_the_summary_follows_a_blank_line() -> None:
    assert report.summary(report.Totals(2.0, 10, 6)).splitlines() == [
        "",
        "Summary:",
        "Average publish rate: 5 msgs/s",
        "Average consume rate: 3 msgs/s",
    ]


def test_the_summary_lists_latencies_with_three_decimals() -> None:
    lines = report.summary(report.Totals(1.0, 5, 5, LATENCY)).splitlines()

    assert lines[4:] == [
        "Latency (ms, n=5):",
        "  min: 1.000",
        "  median: 3.000",
        "  75th: 4.000",
        "  95th: 5.000",
        "  99th: 5.000",
    ]


def test_the_summary_says_when_latencies_were_sampled() -> None:
    latency = report.Latency.of(10, 1, [1, 2])

    assert "n=10, sampled=2" in report.summary(report.Totals(1.0, 5, 5, latency))


def test_json_has_integer_rates_and_no_latency_unless_measured() -> None:
    result = json.loads(report.summary_json(report.Totals(1.9, 10, 6)))

    assert result == {"elapsed_seconds": 2, "avg_pub_rate": 5, "avg_consume_rate": 3}


def test_json_has_every_latency_key_when_measured() -> None:
    result = json.loads(report.summary_json(report.Totals(1.0, 5, 5, LATENCY)))

    assert result == {
        "elapsed_seconds": 1,
        "avg_pub_rate": 5,
        "avg_consume_rate": 5,
        "latency_min_ms": 1.0,
        "latency_median_ms": 3.0,
        "latency_p75_ms": 4.0,
        "latency_p95_ms": 5.0,
        "latency_p99_ms": 5.0,
        "latency_count": 5,
        "latency_sample_size": 5,
    }


def test_rates_of_a_run_that_took_no_time_are_zero() -> None:
    assert report.Totals(0.0, 1, 1).publish_rate == 0


@pytest.mark.parametrize(
    ("uri", "meant"),
    [
        ("amqp://", ("localhost", 5672, "guest", "guest", "/")),
        ("amqp://h:5673", ("h", 5673, "guest", "guest", "/")),
        ("amqp://u:p@h", ("h", 5672, "u", "p", "/")),
        ("amqp://u%40x:p%2F%3A@h/v%2Fw", ("h", 5672, "u@x", "p/:", "v/w")),
        ("amqp://h/", ("h", 5672, "guest", "guest", "/")),
        ("amqp://h/%2f", ("h", 5672, "guest", "guest", "/")),
        ("amqp://[::1]:5672", ("::1", 5672, "guest", "guest", "/")),
        ("amqp://u:@h", ("h", 5672, "u", "", "/")),
    ],
)
def test_a_uri_is_read_with_defaults_and_percent_escapes(
    uri: str, meant: tuple[object, ...]
) -> None:
    target = target_of(uri)
    (endpoint,) = target.endpoints

    found = (endpoint.host, endpoint.port, target.user, target.password, target.vhost)
    assert found == meant


def test_options_behind_a_uri_are_said_to_have_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert target_of("amqp://h/name?heartbeat=5&x=y").vhost == "name"
    assert "no effect: heartbeat=5&x=y" in capsys.readouterr().err


@pytest.mark.parametrize(
    "uri",
    ["", "h", "http://h", "amqp:h", "amqp://h:port", "amqp://h:99999", "amqp://[::1", "amqp://a,b"],
)
def test_a_bad_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="invalid URI"):
        target_of(uri)


def test_messages_that_would_arrive_nowhere_are_refused() -> None:
    with pytest.raises(UsageError, match="an empty --queue needs an --exchange"):
        options_of("-u", "")


def test_a_body_is_the_pattern_cut_into_frames() -> None:
    template = Template(options_of("-s", "5000"))
    reader = Reader()
    reader.feed(template.content(4096))

    frames = list(iter(reader.next, None))

    assert [frame.kind for frame in frames] == [2, 3, 3]
    assert [len(frame.payload) for frame in frames[1:]] == [4088, 912]
    body = frames[1].payload + frames[2].payload
    assert body == bytes(i % 27 + 64 for i in range(5000))


def test_persistent_messages_have_delivery_mode_2() -> None:
    template = Template(options_of("-p", "--properties", '{"type": "t", "timestamp": 1}'))

    properties = decode_properties(template.properties)
    assert properties["delivery_mode"] == 2
    assert properties["type"] == "t"
