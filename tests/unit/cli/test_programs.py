"""What is made from the tables of our programs: completion of shells and manual pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lavinmq.cli import manual
from lavinmq.cli.completion import SHELLS, script
from lavinmq.cli.ctl import __main__ as ctl
from lavinmq.cli.ctl import page as ctl_page
from lavinmq.cli.ctl.table import COMMANDS
from lavinmq.cli.perf import __main__ as perf
from lavinmq.cli.programs import PERF_HELP, PROGRAMS
from lavinmq.config.settings import SETTINGS, flags
from lavinmq.pipeline.arguments import job_parser
from lavinmq.pipeline.job import find_jobs

PAGES = manual.pages()
ROOT = Path(__file__).parents[3]
UNCOMPILED = """
import runpy, sys
_, compiled, module, *arguments = sys.argv
sys.modules.update(dict.fromkeys(compiled.split()))
sys.argv[1:] = arguments
runpy.run_module(module, run_name="__main__")
"""
"""Runs a module as install.py does, where no compiled one can be imported."""


def everything() -> list[str]:
    """Every command and every long option of all programs."""
    commands = [command.name for group in COMMANDS.values() for command in group]
    options = [option.long for group in COMMANDS.values() for c in group for option in c.options]
    broker = [flag.long for flag, _ in flags()]
    jobs = list(find_jobs())
    own = [names[-1] for job in find_jobs().values() for names, *_ in job_parser(job).table()[1]]
    return list(dict.fromkeys([*commands, *options, *broker, *perf.SCENARIOS["amqp"], *jobs, *own]))


def available(program: str) -> str:
    """Skip the test if a program is not there."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def test_the_page_of_lavinmqctl_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "docs" / "lavinmqctl.md"

    assert path.read_text() == ctl_page.page(), (
        "run: python -m lavinmq.cli.ctl.page > docs/lavinmqctl.md"
    )


@pytest.mark.parametrize(
    "command",
    ["lavinmq.cli.ctl completion bash --program lavinmqperf", "lavinmq.cli.manual . lavinmqperf"],
)
def test_packages_are_filled_from_sources_that_are_not_compiled(
    command: str, tmp_path: Path
) -> None:
    stubs = (path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("lavinmq/**/_*.pyi"))
    compiled = [".".join(path.parts) for path in stubs]

    done = subprocess.run(
        [sys.executable, "-c", UNCOMPILED, " ".join(compiled), *command.split()],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip

    assert "lavinmq._core" in compiled
    assert done.returncode == 0, done.stderr


# --- completion


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_every_command_and_option(shell: str) -> None:
    text = script(shell, [make() for make in PROGRAMS.values()])

    known = set(text.replace("[", " ").replace("'", " ").replace(":", " ").replace("|", " ")
                .replace(")", " ").replace('"', " ").split())  # fmt: skip
    if shell == "fish":
        known |= {f"--{word}" for word in known}
    assert [word for word in everything() if word not in known] == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    program = available(shell)
    for names in (list(PROGRAMS), *([name] for name in PROGRAMS)):
        path = tmp_path / "completion"
        path.write_text(script(shell, [PROGRAMS[name]() for name in names]))

        done = subprocess.run(
            [program, "-n", str(path)], capture_output=True, text=True, check=False
        )

        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lavinmqctl", "create_q"], ["create_queue"]),
        (["lavinmqctl", "-q", "-p", "v", "create_queue", "--dead-letter-r"],
         ["--dead-letter-routing-key"]),
        (["lavinmqctl", "create_queue", "--vh"], ["--vhost"]),
        (["lavinmqctl", "create_queue", "--expires", ""], []),
        (["lavinmqctl", "list_users", "create_q"], []),
        (["lavinmqctl", "import_definitions", "one"], ["one file"]),
        (["lavinmqctl", "import_definitions", "--dr"], ["--dry-run"]),
        (["lavinmqperf", "amqp", "through"], ["throughput"]),
        (["lavinmqperf", "throughput", "--pm"], ["--pmessages"]),
        (["lavinmqperf", "queue-count", "--pm"], []),
        (["lavinmq-pipeline", "arch"], ["archive"]),
        (["lavinmq-pipeline", "archive", "--rows"], ["--rows-per-file"]),
        (["lavinmq-pipeline", "compact", "--rows"], []),
        (["lavinmq-pipeline", "replay", "--checkpoint", "one"], ["one file"]),
        (["lavinmq", "--amqp-p"], ["--amqp-port"]),
        (["lavinmq", "--config", "one"], ["one file"]),
    ],
)  # fmt: skip
def test_bash_completes(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    (tmp_path / "one file").touch()
    path = tmp_path / "completion"
    path.write_text(script("bash", [make() for make in PROGRAMS.values()]))
    program = (
        f'. {path}; cd {tmp_path}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        f' _{words[0]}; [[ ${{#COMPREPLY[@]}} = 0 ]] || printf "%s\\n" "${{COMPREPLY[@]}}"'
    )

    done = subprocess.run(
        [available("bash"), "-c", program, "bash", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.splitlines() == expected


def test_fish_completes(tmp_path: Path) -> None:
    path = tmp_path / "completion"
    path.write_text(script("fish", [make() for make in PROGRAMS.values()]))
    lines = ("lavinmqctl create_q", "lavinmqctl create_queue --dead-letter-r", "lavinmq --amqp-p")
    program = f"source {path}; " + "; ".join(f'complete -C "{line}"' for line in lines)

    done = subprocess.run(
        [available("fish"), "--no-config", "-c", program],
        capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip

    words = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert words == ["create_queue", "--dead-letter-routing-key", "--amqp-port"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["completion", shell, "--program", "lavinmqperf"]) == 0

    assert capsys.readouterr().out == script(shell, [PROGRAMS["lavinmqperf"]()])


# --- manual pages


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_formatted_without_warnings(name: str, tmp_path: Path) -> None:
    groff = available("groff")
    path = tmp_path / "page"
    path.write_text(PAGES[name])

    done = subprocess.run(
        [groff, "-ww", "-man", "-Tutf8", str(path)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_pages_have_every_command_option_and_setting() -> None:
    text = "".join(PAGES.values()).replace("\\-", "-").replace("\\fB", " ").replace("\\fR", " ")
    words = set(text.replace(",", " ").split())

    wanted = [*everything(), *(setting.key for setting in SETTINGS)]
    assert [word for word in wanted if word not in words] == []


def test_the_pages_are_written_below_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

    assert manual.main([str(tmp_path / "man")]) == 0

    written = {str(path.relative_to(tmp_path / "man")) for path in tmp_path.rglob("*.[15]")}
    assert written == set(PAGES)
    first = (tmp_path / "man" / "man1" / "lavinmqctl.1").read_text().splitlines()[0]
    assert first.startswith('.TH "LAVINMQCTL" 1 "1970-01-02" "lavinmq ')


@pytest.mark.parametrize("argv", [[], ["-h"], ["a", "b"]])
def test_a_wrong_call_shows_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.main(argv) == 1

    assert "Usage:" in capsys.readouterr().err


def test_every_scenario_of_lavinmqperf_has_a_word_of_help() -> None:
    assert set(PERF_HELP) == set(perf.SCENARIOS["amqp"])
