"""The command: answers, errors, warnings, banner, exit codes. The broker itself is replaced."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lavinmq import __main__ as command
from lavinmq import __version__
from lavinmq.config.settings import GROUPS, flags
from lavinmq.config.values import Config, ConfigError
from lavinmq.files.datadir import DataDirError, StoppedWaiting

Start = Callable[[Config], int]


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the test from the machine's configuration and from the process's logging."""
    for name in [name for name in os.environ if name.startswith(("LAVINMQ_", "STATE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    monkeypatch.setenv("LAVINMQ_CONFIGURATION_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("lavinmq.process.log.setup", lambda *_: None)


def test_a_broker_alone_loads_nothing_of_a_cluster() -> None:
    script = (
        "import sys, lavinmq.__main__, lavinmq.server;"
        "print([name for name in sys.modules if 'cluster' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert "lavinmq._cluster" not in done.stdout
    assert "lavinmq.cluster.node" not in done.stdout


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands in for the broker; set `run`. By default it must not be reached."""

    def unexpected(config: Config) -> int:
        raise AssertionError("the broker was started")

    module = ModuleType("lavinmq.server")
    module.run = unexpected  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lavinmq.server", module)
    return module


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_version_prints_the_version_only(
    server: ModuleType, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert command.main([flag]) == 0

    assert capsys.readouterr().out == f"{__version__}\n"


def test_build_info_names_version_python_core_compiler_and_platform(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--build-info"]) == 0

    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"lavinmq {__version__}"
    assert [line.partition(": ")[0] for line in others[1:]] == [
        "Compiled core",
        "Compiler of Python",
        "Platform",
    ]
    assert others[0] == f"Python {sys.version.split()[0]}"


def test_answers_read_no_configuration(
    server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lavinmq.ini").write_text("broken")

    assert [command.main([flag]) for flag in ("-v", "--build-info", "-h")] == [0, 0, 0]
    assert capsys.readouterr().err == ""


def test_help_lists_every_flag_in_its_group(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--help"]) == 0

    text = capsys.readouterr().out
    parts = text.split("\n\n")
    assert [part.partition(":")[0] for part in parts[1:]] == list(GROUPS)
    for flag, _ in flags():
        part = parts[1 + GROUPS.index(flag.group)]
        rows = [line for line in part.splitlines() if f"{flag.long} " in f"{line} "[:47]]
        assert len(rows) >= 1, flag.long


def test_help_sorts_by_short_flag_with_those_without_last(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["-h"])

    options = capsys.readouterr().out.split("\n\n")[1].splitlines()[1:]
    starts = [line.strip()[:2] for line in options]
    assert starts[:3] == ["-D", "-c", "-l"]
    assert set(starts[3:]) == {"--"}


def test_an_unknown_option_is_an_error_with_a_hint(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--nope"]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    first, hint = captured.err.splitlines()
    assert first == "Error: Unknown option '--nope'"
    assert "--help" in hint


def test_a_bad_configuration_is_one_line_without_hint(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["-p", "x"]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: Failed to handle value for 'port' in [amqp]")


def test_the_broker_gets_the_configuration_and_gives_the_exit_code(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Config] = []

    def run(config: Config) -> int:
        seen.append(config)
        return 36

    server.run = run  # type: ignore[attr-defined]

    assert command.main(["-p", "1234"]) == 36
    assert [config.amqp_port for config in seen] == [1234]


def test_the_process_id_is_in_its_file_while_the_broker_runs(
    server: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    seen: list[str] = []

    def run(config: Config) -> int:
        seen.append(path.read_text())
        raise DataDirError("in vain")

    server.run = run  # type: ignore[attr-defined]

    assert command.main(["--pidfile", str(path)]) == 1
    assert seen == [f"{os.getpid()}\n"]
    assert not path.exists()


UNUSED = "--clustering-max-unsynced-actions", "1"
WARNING = "setting 'max_unsynced_actions' in [clustering] is deprecated and has no effect"


def test_warnings_are_told_once_in_the_log(
    server: ModuleType, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server.run = lambda config: 0  # type: ignore[attr-defined]

    command.main([*UNUSED])

    assert caplog.messages.count(WARNING) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("line", ["log_file = {tmp}/log", "log_level = error"])
def test_warnings_that_the_log_does_not_show_here_are_on_standard_error(
    server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    server.run = lambda config: 0  # type: ignore[attr-defined]
    (tmp_path / "ini").write_text(f"[main]\n{line.replace('{tmp}', str(tmp_path))}\n")

    command.main([*UNUSED, "-c", str(tmp_path / "ini")])

    assert capsys.readouterr().err == f"WARNING: {WARNING}\n"


def test_a_log_for_machines_has_no_banner_and_names_the_configuration_first(
    server: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.run = lambda config: 0  # type: ignore[attr-defined]
    path = tmp_path / "own.ini"
    path.write_text("[main]\nlog_format = json\n")

    with caplog.at_level(logging.INFO, "lmq"):
        command.main(["-c", str(path)])

    assert capsys.readouterr().out == ""
    assert caplog.messages[0] == f"Configuration: {path}"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("no bind"), 1, "Error: no bind\n"),
        (DataDirError("no directory"), 1, "Error: no directory\n"),
        (DataDirError("not yours", is_lasting=True), 78, "Error: not yours\n"),
        (StoppedWaiting(), 0, ""),
    ],
)
def test_expected_errors_of_the_broker_are_exit_codes(
    server: ModuleType,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    text: str,
) -> None:
    def run(config: Config) -> int:
        raise error

    server.run = run  # type: ignore[attr-defined]

    assert command.main([]) == code
    assert capsys.readouterr().err == text


def test_a_banner_is_printed_when_the_log_goes_to_standard_output(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    server.run = lambda config: 0  # type: ignore[attr-defined]

    command.main([])

    assert command.BANNER in capsys.readouterr().out


def test_no_banner_is_printed_when_the_log_goes_elsewhere(
    server: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server.run = lambda config: 0  # type: ignore[attr-defined]

    monkeypatch.setenv("LAVINMQ_MAIN_LOG_FILE", str(tmp_path / "log"))
    command.main([])
    monkeypatch.delenv("LAVINMQ_MAIN_LOG_FILE")
    monkeypatch.setattr("lavinmq.process.log.is_journal", lambda environ: True)
    command.main([])

    assert capsys.readouterr().out == ""


def test_the_module_runs_as_a_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lavinmq", "--nope"], capture_output=True, text=True, check=False
    )

    assert result.returncode == 1
    assert result.stderr.startswith("Error: Unknown option")


def test_the_command_line_of_the_process_is_the_default(
    server: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["lavinmq", "-v"])

    assert command.main() == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_answering_imports_neither_argparse_nor_the_broker() -> None:
    program = (
        "import sys; from lavinmq.__main__ import main; main(['-v']);"
        "print(sorted({'argparse', 'configparser', 'json', 'lavinmq.server',"
        " 'lavinmq.config.usage'} & sys.modules.keys()))"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout == f"{__version__}\n[]\n"


def test_starting_imports_nothing_that_few_installations_use() -> None:
    program = (
        "import sys, lavinmq.http.listeners, lavinmq.server;"
        "spared = {'argparse', 'ctypes', 'difflib', 'jwt', 'tornado.websocket',"
        " 'lavinmq.http.access.oauth', 'lavinmq.auth.oauth', 'lavinmq.auth.oauth_login',"
        " 'lavinmq.definitions_json.boot'};"
        "print(sorted(spared & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "[]\n", done.stderr


def test_check_config_tells_all_problems_and_starts_nothing(
    server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lavinmq.ini").write_text("[amqp]\nport = x\nheartbeat = y\n[main]\nz = 1\n")

    assert command.main(["--check-config", "-D", str(tmp_path)]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    warning, *errors = captured.err.splitlines()
    assert warning == "WARNING: Unknown setting 'z' in section [main]"
    assert [error.split(" (")[0] for error in errors] == [
        "Error: Failed to handle value for 'port' in [amqp]",
        "Error: Failed to handle value for 'heartbeat' in [amqp]",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[clustering]\nenabled = true\nport = -1\n",
         "'port' in [clustering] is -1: other nodes could not reach this one"),
        ("[clustering]\nenabled = true\netcd_endpoints = http://a:b:c\n",
         "'etcd_endpoints' in [clustering]: 'http://a:…' is no etcd endpoint"),
        ("[clustering]\nenabled = true\nadvertised_uri = http://node1:99999/x\n",
         "'advertised_uri' in [clustering]: 'http://node1:99999/x' is no tcp://host:port"),
        ("[main]\nload_definitions = {tmp}/policies.json\n", "{tmp}/policies.json: "),
        ("[main]\nload_definitions = {tmp}/none.json\n", "'load_definitions' in [main]: "),
    ],
)  # fmt: skip
def test_check_config_finds_what_would_end_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    (tmp_path / "policies.json").write_text(
        '{"vhosts": [{"name": "/"}], "policies": [{"vhost": "/", "name": "p", "pattern": "",'
        ' "definition": {"max-lenght": 1}}]}'
    )
    (tmp_path / "lavinmq.ini").write_text(text.replace("{tmp}", str(tmp_path)))
    place = ["-D", str(tmp_path / "data"), "--control-unix-path", str(tmp_path / "ctl")]

    assert command.main(["--check-config", *place]) == 1

    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.startswith("WARNING: ")]
    assert line.startswith("Error: " + error.replace("{tmp}", str(tmp_path)))
    assert "' in [" in line
    assert "policies.json" not in text or "max-lenght" in line
    assert not (tmp_path / "data").exists()


def test_check_config_of_a_good_configuration_ends_with_0(
    server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lavinmq.ini").write_text("[amqp]\nport = 5\n")
    place = ["-D", str(tmp_path), "--control-unix-path", str(tmp_path / "ctl")]

    assert command.main(["--check-config", *place]) == 0

    assert str(tmp_path / "lavinmq.ini") in capsys.readouterr().out


def test_print_config_shows_the_values_and_starts_nothing(
    server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--print-config", "-p", "77"]) == 0

    assert "; flag --amqp-port\nport = 77\n" in capsys.readouterr().out
