"""The count scenarios of lavinmqperf: their options and how they show what they do."""

import os
import re
import resource
from pathlib import Path

import pytest

from lavinmq.cli.perf import __main__ as perf
from lavinmq.cli.perf import counts
from lavinmq.cli.perf.count_options import (
    ConnectionCountOptions,
    Keepalive,
    QueueCountOptions,
    parse_connection_count,
    parse_queue_count,
)
from lavinmq.cli.perf.descriptors import OWN_DESCRIPTORS, allow_connections
from lavinmq.cli.perf.interrupts import Interrupts


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--uri", "amqp://h"], "uri", "amqp://h"),
        (["-q", "7"], "queues", 7),
        (["--queues", "7"], "queues", 7),
        (["-D"], "durable", True),
        (["--durable"], "durable", True),
        (["--arguments", '{"x-max-length": 5}'], "arguments", {"x-max-length": 5}),
        (["-n"], "no_wait", True),
        (["--no-wait"], "no_wait", True),
    ],
)
def test_each_option_of_queue_count_sets_its_value(
    argv: list[str], name: str, value: object
) -> None:
    assert getattr(parse_queue_count(argv), name) == value


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--uri", "amqp://h"], "uri", "amqp://h"),
        (["-x", "7"], "count", 7),
        (["--count", "7"], "count", 7),
        (["-c", "3"], "channels", 3),
        (["--channels=0"], "channels", 0),
        (["-C", "2"], "consumers", 2),
        (["--consumers", "2"], "consumers", 2),
        (["-u", "name"], "queue", "name"),
        (["--queue", "name"], "queue", "name"),
        (["-l"], "localhost", True),
        (["--localhost"], "localhost", True),
        (["-k", "10:3:5"], "keepalive", Keepalive(idle_s=10, probes=3, interval_s=5)),
        (["--keepalive", "1:1:1"], "keepalive", Keepalive(1, 1, 1)),
    ],
)
def test_each_option_of_connection_count_sets_its_value(
    argv: list[str], name: str, value: object
) -> None:
    assert getattr(parse_connection_count(argv), name) == value


def test_defaults_are_those_of_the_manual() -> None:
    assert parse_queue_count([]) == QueueCountOptions(queues=100)
    assert parse_connection_count([]) == ConnectionCountOptions(
        count=100, channels=1, consumers=0, queue="connection-count"
    )


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["queue-count", "-q", "0"], "--queues must be at least 1"),
        (["queue-count", "-q", "x"], "invalid number value: 'x'"),
        (["queue-count", "--arguments", "[1]"], "expected a JSON object"),
        (["queue-count", "--arguments", "{"], "invalid JSON value"),
        (["connection-count", "-x", "0"], "--count must be at least 1"),
        (["connection-count", "-c", "65536"], "--channels must be at most 65535"),
        (["connection-count", "-c", "0", "-C", "1"], "--consumers need --channels"),
        (["connection-count", "-C", "1", "-u", ""], "--consumers need a --queue"),
        (["connection-count", "-k", "1:2"], "invalid IDLE:COUNT:INTERVAL value: '1:2'"),
        (["connection-count", "-k", "1:2:x"], "invalid IDLE:COUNT:INTERVAL value"),
        (["connection-count", "-k", "0:1:1"], "invalid IDLE:COUNT:INTERVAL value"),
        (["connection-count", "-k", "1:128:1"], "invalid IDLE:COUNT:INTERVAL value"),
    ],
)
def test_a_senseless_option_gets_a_message_and_status_1(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf.main(argv) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("total", "dots"), [(1, 1), (9, 1), (10, 1), (11, 2), (100, 10)])
def test_a_line_has_a_dot_for_every_ten_and_its_time(
    total: int, dots: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with counts.Dots(total) as line:
        for _ in range(total):
            line.count()

    assert re.fullmatch(rf"\.{{{dots}}} \d+ ms\n", capsys.readouterr().out)


def test_own_memory_is_that_of_this_process() -> None:
    match = re.fullmatch(r"own memory (\d+\.\d) MiB", counts.own_memory())

    assert match
    status = Path("/proc/self/status").read_text()
    kib = int(re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[0])
    assert float(match[1]) == pytest.approx(kib / 1024, rel=0.2)


class Typist:
    """A standard input with a descriptor, as `repeat` wants one."""

    def __init__(self, text: bytes) -> None:
        self._reader, writer = os.pipe()
        os.write(writer, text)
        os.close(writer)

    def fileno(self) -> int:
        return self._reader


@pytest.mark.parametrize(("typed", "batches"), [(b"", 1), (b"\n", 2), (b"yes\n\n", 3), (b"x", 1)])
def test_every_line_entered_makes_a_batch_until_the_input_ends(
    typed: bytes, batches: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typist = Typist(typed)
    monkeypatch.setattr("sys.stdin", typist)
    done: list[int] = []

    with Interrupts() as interrupts:
        counts.repeat(lambda: done.append(1), lambda: f"{len(done)} done", interrupts, {})

    os.close(typist.fileno())
    assert len(done) == batches
    assert f"{batches} done, own memory" in capsys.readouterr().out


def test_a_closed_input_makes_one_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    done: list[int] = []

    with Interrupts() as interrupts:
        counts.repeat(lambda: done.append(1), lambda: "done", interrupts, {})

    assert len(done) == 1


def test_too_many_connections_for_the_system_are_refused_in_words() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    with pytest.raises(OSError, match=r"connections need .* file descriptors"):
        allow_connections(1 << 70)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_the_limit_is_raised_to_what_the_connections_need() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft if soft != resource.RLIM_INFINITY else 4096
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low - 100, hard))

        allow_connections(low - OWN_DESCRIPTORS - 10)

        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low - 10, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
