"""The soak run, seconds long: its books notice what is wrong, and find nothing on a real broker."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perf import client_soak, mqtt_soak, soak
from perf.soak_ledger import VOID, Ledger, Message, Numbers, body_of, message_of
from tests.support.nursery import broker_command

DEADLINE_S = 100.0


def test_a_short_soak_finds_nothing_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = shlex.join(broker_command())
    options = ["--minutes", "0.05", "--seed", "1", "--broker-command", command]

    code = soak.main([*options, "--data-dir", str(tmp_path), "--out", str(out)])

    result = json.loads(out.read_text())
    assert result["failures"] == []
    assert code == 0
    assert result["totals"]["delivered"] > 0
    assert result["totals"]["confirms"] > 0
    for column in ("idle", "minute_1", "end", "drained"):
        assert result[column]["anon_mib"] > 0
        assert result[column]["threads"] >= 1
    assert result["drained"]["descriptors"] < result["end"]["descriptors"]
    assert [each["phase"] for each in result["samples"]] == ["idle", "load", "drained"]


def test_numbers_are_a_set_whatever_the_order() -> None:
    numbers, confirmed = Numbers(), Numbers()
    for number in (3, 1, 7, 2, 1):
        numbers.add(number)
    confirmed.add_up_to(5)
    confirmed.add(9)
    confirmed.add_up_to(4)

    assert [number for number in range(10) if number in numbers] == [1, 2, 3, 7]
    assert confirmed.missing_from(numbers) == [4, 5, 9]


def test_a_body_says_which_message_it_is_and_that_it_was_not_changed() -> None:
    message = Message(12, 345)
    body = body_of(message, 1000)

    assert message_of(body) == message
    for changed in (body[:-1], body + b"x", body[:500] + b"?" + body[501:], b"churn"):
        with pytest.raises(ValueError):
            message_of(changed)


def delivered(
    ledger: Ledger, stream: int, number: int, queue: str = "q", *, again: bool = False
) -> None:
    body = body_of(Message(stream, number), 10)
    ledger.deliver(body, is_redelivered=again, queue=queue)


def lose_one(ledger: Ledger, stream: int) -> None:
    ledger.settle([Message(stream, 1)])
    ledger.close()


def repeat_without_flag(ledger: Ledger, stream: int) -> None:
    delivered(ledger, stream, 1)
    delivered(ledger, stream, 1)


def repeat_after_ack(ledger: Ledger, stream: int) -> None:
    delivered(ledger, stream, 1)
    ledger.vanish([Message(stream, 1)])
    delivered(ledger, stream, 1, again=True)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lose_one, "lost 1 confirmed"),
        (repeat_without_flag, "without the redelivered flag"),
        (repeat_after_ack, "came after it was settled"),
        (lambda ledger, stream: delivered(ledger, stream, VOID), "never committed"),
        (lambda ledger, stream: delivered(ledger, stream, 3), "never published"),
        (lambda ledger, stream: delivered(ledger, stream, 1, "other"), "belongs to q"),
        (lambda ledger, stream: ledger.confirm(stream, 3, multiple=True), "confirm of 3"),
    ],
)
def test_the_ledger_notices(wrong: Callable[[Ledger, int], None], complaint: str) -> None:
    ledger = Ledger()
    stream = ledger.open_stream("q", is_audited=True)
    ledger.publish(stream, 2)
    ledger.confirm(stream, 2, multiple=True)

    wrong(ledger, stream)

    assert len(ledger.failures) == 1
    assert complaint in ledger.failures[0]


def test_a_message_that_was_requeued_may_come_again() -> None:
    ledger = Ledger()
    stream = ledger.open_stream("q", is_audited=True)
    ledger.publish(stream, 1)
    ledger.confirm(stream, 1, multiple=False)
    delivered(ledger, stream, 1)
    delivered(ledger, stream, 1, again=True)
    ledger.settle([Message(stream, 1)])

    ledger.close()

    assert ledger.failures == []


# ---- the client's


@pytest.mark.nightly
def test_a_short_soak_of_the_client_finds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = shlex.join(broker_command())
    options = ["--minutes", "0.1", "--every-ms", "20", "--broker-command", command]

    code = client_soak.main([*options, "--data-dir", str(tmp_path), "--out", str(out)])

    result = json.loads(out.read_text())
    assert (code, result["failures"]) == (0, [])
    assert result["cuts"] > 10 and result["modes"]["confirm"]["confirmed"] > 0


def noted(mode: str, numbers: list[int], again: int | None = None) -> client_soak.Books:
    books = client_soak.Books(mode)
    for number in numbers:
        books.come(SimpleNamespace(body=b"%d" % number, redelivered=number == again))  # type: ignore[arg-type]
    return books


def test_the_books_of_the_client_notice() -> None:
    assert not noted("confirm", [0, 1, 2, 1, 2, 3]).failures
    assert noted("confirm", [0, 2]).failures == ["confirm: 2 came, where 1 was to come"]
    late = noted("fire_and_forget", [0, 5, 2, 6])
    assert (late.failures, late.late, late.missing) == ([], 1, 3)
    assert noted("fire_and_forget", [0, 1, 1]).failures
    assert not noted("fire_and_forget", [0, 1, 1], again=1).failures

    books = client_soak.Books("confirm")
    for number in (0, 2):
        books.end(SimpleNamespace(body=b"%d" % number))  # type: ignore[arg-type]
    assert books.failures == ["confirm: 2 was confirmed, where 1 was to be"]


# ---- of MQTT


@pytest.mark.nightly
def test_a_short_soak_of_mqtt_finds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = shlex.join([
        *broker_command(), "-D", "{data}", "--bind", "127.0.0.1",
        "--control-unix-path", "{data}.sock",
    ])  # fmt: skip
    options = ["--minutes", "0.05", "--clients", "60", "--stay", "0.5", "--out", str(out)]

    code = mqtt_soak.main([*options, "--data-dir", str(tmp_path), "--broker-command", command])

    result = json.loads(out.read_text())
    assert (code, result["failures"]) == (0, [])
    assert result["connects"] > 120
    assert result["acknowledged"] > 0
    assert result["heard"] >= result["acknowledged"]


def test_the_books_of_mqtt_notice() -> None:
    books = mqtt_soak.Books()
    once, often, unknown = (books.publish(receiver=5, qos=qos) for qos in (2, 1, 2))
    books.acknowledge(once)
    books.acknowledge(often)
    assert books.missing() == [once, often]

    for number in (once, often, often):
        books.hear(5, number)
    assert (books.missing(), books.failures) == ([], [])

    books.hear(5, once)
    books.hear(6, unknown)
    books.hear(5, 3)
    assert books.failures == [
        "client 5 got message 0 twice, with QoS 2",
        "client 6 got message 2, which is not for it",
        "client 5 got message 3, which is not for it",
    ]


def test_memory_that_grows_to_the_end_is_noticed() -> None:
    def growth(*mib: float) -> float:
        return mqtt_soak.growth_mib([{"anon_mib": each} for each in mib])

    assert growth(20, 60, 90, 100, 100, 100, 100, 100) == 0
    assert growth(20, 60, 70, 80, 90, 100, 110, 120) == 20
    assert growth(100) == 0
