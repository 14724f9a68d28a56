"""The command line of lavinmq-pipeline: help, wrong usage, errors in one line; without Spark."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavinmq.pipeline import arguments, cli, job
from lavinmq.pipeline.arguments import Parser, broker_options, job_parser
from lavinmq.pipeline.errors import DataLossError, PipelineError, UsageError
from lavinmq.pipeline.job import Job, Result, Run, find_jobs

ROOT = Path(__file__).parents[3]
STREAM = ("--checkpoint", "c", "--queue", "q")


def configure(parser: Parser) -> None:
    parser.add_argument("--outcome", default="done")


def run(run: Run) -> Result:
    run.progress.note("at work")
    match run.options.outcome:
        case "done":
            return Result(values={"rows": 3}, text="3 rows")
        case "unequal":
            return Result(values={"rows": 3}, status=1)
        case "failed":
            raise PipelineError("it did not work")
        case "lost":
            raise DataLossError("messages are gone")
        case "usage":
            raise UsageError("--outcome is odd")
        case "interrupted":
            raise KeyboardInterrupt
    raise ZeroDivisionError("a bug\nof two lines with amqp://guest:secret@host/")


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = Job(name="work", help="Work", configure=configure, run=run, needs_spark=False)
    monkeypatch.setattr(cli, "find_jobs", lambda: {"work": made})
    yield


@pytest.mark.parametrize(
    ("outcome", "status", "output", "errors"),
    [
        ("done", 0, "3 rows\n", "at work\n"),
        ("unequal", 1, "rows: 3\n", "at work\n"),
        ("failed", 1, "", "at work\nError: it did not work\n"),
        ("lost", 3, "", "at work\nError: messages are gone\n"),
        ("usage", 2, "",
         "at work\nError: --outcome is odd\nSee lavinmq-pipeline work --help\n"),
        ("bug", 1, "", "at work\nError: a bug\n"),
        ("interrupted", 130, "", "at work\n"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("one_job")
def test_an_outcome_has_its_status_and_its_line(
    outcome: str, status: int, output: str, errors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["work", "--outcome", outcome]) == status

    assert capsys.readouterr() == (output, errors)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("done", {"command": "work", "status": 0, "rows": 3}),
        ("lost", {"command": "work", "status": 3, "error": "messages are gone"}),
    ],
)
@pytest.mark.usefixtures("one_job")
def test_json_is_one_line_and_there_is_no_progress(
    outcome: str, expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["work", "--json", "--outcome", outcome]) == expected["status"]

    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    assert json.loads(printed.out) == expected
    assert "at work" not in printed.err


@pytest.mark.usefixtures("one_job")
def test_only_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["work", "--debug", "--outcome", "bug"]) == 1

    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_help_names_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0

    text = capsys.readouterr().out
    jobs = find_jobs()
    assert {"archive", "check", "compact", "replay", "restore", "verify"} <= set(jobs)
    assert all(f"  {each.name} " in text and each.help in text for each in jobs.values())


@pytest.mark.parametrize("name", find_jobs())
def test_every_job_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0

    text = capsys.readouterr().out
    assert text.startswith(f"usage: lavinmq-pipeline {name} ")
    assert "--json" in text


def test_help_and_wrong_usage_need_neither_spark_nor_arrow() -> None:
    program = (
        "import sys\n"
        "from lavinmq.pipeline.cli import main\n"
        "assert main(['archive', '--help']) == 0\n"
        "assert main(['archive']) == 2\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)

    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "Usage:"),
        (["arhive"], "unknown command: arhive"),
        (["archive", "t"], "--checkpoint"),
        (["archive", "--checkpoint", "c", "t"], "--queue --queue-pattern --super-stream"),
        (["archive", *STREAM, "--super-stream", "x", "t"], "not allowed with"),
        (["archive", *STREAM, "--rows-per-file", "0", "t"], "--rows-per-file"),
        (["archive", *STREAM, "--rows-per-file", "many", "t"], "at least 1"),
        (["archive", *STREAM, "--trigger", "soon", "t"], "expected a duration such as 10s"),
        (["archive", *STREAM, "--conf", "spark.x", "t"], "expected key=value"),
        (["archive", *STREAM, "--comp", "zstd", "t"], "unrecognized arguments: --comp"),
        (["archive", *STREAM, "t"], "--url is missing, and LAVINMQ_URL is not set"),
        (["archive", *STREAM, "--url", "amqp://h", "--key-words", "9", "t"], "--key-words"),
        (["archive", *STREAM, "--url", "amqp://h", "--option", "queue=x", "t"], "--option queue"),
        (["archive", *STREAM, "--url", "amqp://h", "--option", "FAILONDATALOSS=x", "t",
          "--allow-data-loss"], "--option failondataloss"),
        (["compact"], "ARCHIVE"),
        (["compact", "a", "--file-size", "0"], "expected a size such as 128m"),
        (["verify"], "SOURCE"),
        (["verify", "a", "b", "c"], "two sources at most"),
        (["verify", "a", "--ignore", "colour"], "--ignore colour: no such column"),
        (["verify", "queue:q"], "--url is missing"),
        (["replay", "a", "--since", "yesterday"], "expected a time such as"),
        (["replay", "segments:"], "no source: 'segments:'"),
        (["replay", "a", "--rate", "-1"], "--rate"),
        (["replay", "a", "--dry-run", "--rate", "1"], "--dry-run needs no --rate"),
        (["replay", "a"], "--url is missing"),
        (["restore", "a"], "STREAM"),
        (["restore", "a", "s", "--argument", "x-max-age"], "expected name=value"),
    ],
)  # fmt: skip
def test_wrong_usage_has_status_2_and_names_the_option(
    argv: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(arguments.URL_VARIABLE, raising=False)
    # Usage is wrong before Spark starts.
    monkeypatch.setattr(job.Run, "spark", property(lambda _: pytest.fail("Spark was started")))

    assert cli.main(argv) == 2

    printed = capsys.readouterr()
    assert text in printed.err
    assert printed.out == ""
    assert len(printed.err.splitlines()) <= 2 or not argv


def test_the_path_for_spark_submit_runs_from_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["path"]) == 0
    path = capsys.readouterr().out.strip()

    done = subprocess.run(
        [sys.executable, path, "--version"], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout[0].isdigit()


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert arguments.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1 year", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        arguments.duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512k", 524288), ("128m", 1 << 27), ("1G", 1 << 30), ("2mb", 1 << 21)],
)
def test_sizes(text: str, size: int) -> None:
    assert arguments.size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5g", "12x", "³"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
        arguments.size(text)


def test_options_of_the_broker_become_those_of_the_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(arguments.URL_VARIABLE, "amqp://from-the-environment")
    given = ["--password-file", "/p", "--option", "prefetch=10", "--option", "filter=a=b"]

    options = job_parser(find_jobs()["replay"]).parse_args(["a", *given])

    assert broker_options(options) == {
        "url": "amqp://from-the-environment",
        "passwordFile": "/p",
        "prefetch": "10",
        "filter": "a=b",
    }


def test_check_does_not_pass_over_a_queue_that_it_cannot_ask_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(arguments.URL_VARIABLE, raising=False)

    assert cli.main(["check", "--no-spark", "--queue", "a"]) == 2

    assert "--queue needs --url" in capsys.readouterr().err


def test_a_shortened_option_is_not_guessed() -> None:
    with pytest.raises(UsageError, match="--check"):
        job_parser(find_jobs()["replay"]).parse_args(["a", "--check", "x"])
