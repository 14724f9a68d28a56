"""The churn scenarios of lavinmqperf: their options, their operations, and what they print."""

import json

import pytest
from pamqp import base

from lavinmq.cli.perf import __main__ as perf
from lavinmq.cli.perf import churn_report
from lavinmq.cli.perf.churn_operations import OPERATIONS, SERIAL, Operation
from lavinmq.cli.perf.churn_options import ChurnOptions, parse_churn
from lavinmq.cli.perf.churn_report import Measurement, human_rate, human_time
from lavinmq.cli.perf.conversation import Step
from tests.support.raw_wire import FrameReader, decode_method

SCENARIOS = [name for name in perf.SCENARIOS["amqp"] if name.endswith("-churn")]


def method_of(step: Step) -> base.Frame:
    """Decode the request of a step."""
    reader = FrameReader()
    reader.feed(step.request)
    frame = reader.next()
    assert frame is not None
    return decode_method(frame.payload)


def fields_of(step: Step, *names: str) -> tuple[object, ...]:
    method = method_of(step)
    return (method.name, *(getattr(method, name) for name in names))


def bodies(scenario: str) -> list[list[str]]:
    return [[method_of(step).name for step in one.body] for one in OPERATIONS[scenario]("q")]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--uri", "amqp://h"], "uri", "amqp://h"),
        (["-x", "3"], "clients", 3),
        (["--clients=3"], "clients", 3),
        (["-z", "0.5"], "time", 0.5),
        (["--time", "2"], "time", 2.0),
        (["-j"], "json", True),
        (["--json"], "json", True),
    ],
)
def test_each_option_sets_its_value(
    scenario: str, argv: list[str], name: str, value: object
) -> None:
    assert getattr(parse_churn(scenario, argv), name) == value


def test_defaults_are_one_client_and_five_seconds() -> None:
    assert parse_churn("bind-churn", []) == ChurnOptions(clients=1, time=5.0, json=False)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-x", "0"], "--clients must be in 1..10000"),
        (["-x", "10001"], "--clients must be in 1..10000"),
        (["-x", "many"], "invalid number value: 'many'"),
        (["-z", "0"], "--time must be more than 0"),
        (["-z", "-1"], "invalid number value: '-1'"),
        (["-z", "inf"], "invalid number value: 'inf'"),
    ],
)
def test_a_senseless_option_gets_a_message_and_status_1(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main(["queue-churn", *argv]) == 1
    assert text in capsys.readouterr().err


def test_every_churn_scenario_has_operations() -> None:
    assert list(OPERATIONS) == SCENARIOS


@pytest.mark.parametrize(
    ("scenario", "methods"),
    [
        ("bind-churn", [["Queue.Bind"]] * 2),
        ("queue-churn", [["Queue.Declare", "Queue.Delete"]] * 2),
        ("connection-churn", [[]]),
        ("channel-churn", [["Channel.Open", "Channel.Close"]]),
        ("consumer-churn", [["Basic.Consume", "Basic.Cancel"]]),
    ],
)
def test_an_operation_sends_its_methods(scenario: str, methods: list[list[str]]) -> None:
    assert bodies(scenario) == methods


def test_queues_are_bound_to_amq_direct_with_a_key_for_each_iteration() -> None:
    temporary, durable = OPERATIONS["bind-churn"]("q")

    for operation in (temporary, durable):
        names = ("queue", "exchange", "routing_key")
        assert fields_of(operation.body[0], *names)[2:] == ("amq.direct", SERIAL.decode())
        assert operation.body[0].request.count(SERIAL) == 1
        declared = fields_of(operation.prepare[0], "queue")[1]
        assert fields_of(operation.body[0], "queue")[1] == declared


@pytest.mark.parametrize("scenario", ["bind-churn", "queue-churn"])
def test_one_queue_is_exclusive_and_the_other_durable(scenario: str) -> None:
    declarations = [
        next(step for step in (*one.prepare, *one.body) if method_of(step).name == "Queue.Declare")
        for one in OPERATIONS[scenario]("q")
    ]

    kinds = [fields_of(step, "durable", "exclusive")[1:] for step in declarations]
    assert kinds == [(False, True), (True, False)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_durable_queue_is_known_as_a_leftover(scenario: str) -> None:
    for one in OPERATIONS[scenario]("q"):
        declared = {
            fields_of(step, "queue")[1]
            for step in (*one.prepare, *one.body)
            if method_of(step).name == "Queue.Declare" and fields_of(step, "durable")[1]
        }

        assert declared == ({one.durable_queue} if one.durable_queue else set())


def test_an_operation_without_a_body_is_a_connection() -> None:
    assert OPERATIONS["connection-churn"]("q") == [Operation("open/close connection with channel")]


def test_a_measurement_sums_up_its_slices() -> None:
    measured = Measurement("x", 2, [(0.5, 50), (1.5, 250)])

    assert (measured.elapsed_s, measured.iterations) == (2.0, 300)
    assert measured.rate == 150
    assert measured.mean_s == pytest.approx(2 / 150)


def test_the_deviation_is_relative_to_the_rate() -> None:
    assert Measurement("x", 1, [(1, 100), (1, 100)]).deviation == 0
    assert Measurement("x", 1, [(1, 90), (1, 110)]).deviation == pytest.approx(0.1)


def test_a_measurement_of_nothing_has_no_rate() -> None:
    nothing = Measurement("x", 1)

    assert (nothing.rate, nothing.deviation, nothing.mean_s) == (0, 0, float("inf"))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.5, " 0.50 "),
        (8.126, " 8.13 "),
        (81.26, " 81.3 "),
        (812.6, "  813 "),
        (1234, " 1.23k"),
        (12345, " 12.3k"),
        (99960, "  100k"),
        (123456, "  123k"),
        (1234567, " 1.23M"),
    ],
)
def test_a_rate_has_three_digits_and_a_unit(rate: float, text: str) -> None:
    assert human_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.1e-8, " 81ns"),
        (1.2e-6, "1.2µs"),
        (81.3e-6, " 81µs"),
        (812e-6, "812µs"),
        (1.24e-3, "1.2ms"),
        (9.97e-3, " 10ms"),
        (0.5, "500ms"),
        (2.5, "2.5s"),
    ],
)
def test_a_time_has_two_digits_or_three(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_lines_stand_in_columns_and_compare_with_the_fastest() -> None:
    fast = Measurement("bind non-durable queue", 1, [(1, 12_100), (1, 12_500)])
    slow = Measurement("bind durable queue", 1, [(1, 10_000), (1, 10_000)])

    assert churn_report.lines([fast, slow]).splitlines() == [
        "bind non-durable queue  12.3k ( 81µs) (± 2%) fastest",
        "bind durable queue      10.0k (100µs) (± 0%) 1.23x slower",
    ]


def test_a_single_operation_is_compared_with_nothing() -> None:
    line = churn_report.lines([Measurement("consume/cancel", 4, [(2, 400)])])

    assert line == "consume/cancel   200  ( 20ms) (± 0%)"


def test_json_has_the_numbers_of_every_operation() -> None:
    measured = [Measurement("x", 2, [(1, 90), (1, 110)])]

    assert json.loads(churn_report.as_json("queue-churn", 2, measured)) == {
        "scenario": "queue-churn",
        "clients": 2,
        "operations": [
            {
                "name": "x",
                "elapsed_seconds": 2.0,
                "iterations": 200,
                "iterations_per_second": 100.0,
                "mean_us": 20000.0,
                "relative_stddev_percent": 10.0,
            }
        ],
    }
