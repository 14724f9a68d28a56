"""The command ``lavinmq``: reads the command line, then starts the broker or answers and ends.

Runs as ``python -m lavinmq`` and as console script. It owns what is said to a person at the
terminal: help, version, errors, warnings, banner. The broker itself is ``server.run``, imported
only once the configuration is known to be good.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

from lavinmq import __version__
from lavinmq.config.command_line import parse
from lavinmq.config.values import Config, ConfigError, UsageError, load
from lavinmq.files.datadir import DataDirError, PidFile, StoppedWaiting
from lavinmq.process import log

_log = log.get("lmq.launcher")
BANNER = """
   __             _       __  __  ___
  / /  __ ___   _(_)_ __ |  \\/  |/ _ \\
 / /  / _` \\ \\ / / | '_ \\| |\\/| | | | |
/ /__| (_| |\\ V /| | | | | |  | | |_| |
\\____/\\__,_| \\_/ |_|_| |_|_|  |_|\\__\\_\\
        messages in, messages out
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 normal, 1 for any error of configuration, 78 for
    a data directory that only a person can make usable.

    Args: the arguments without the program's name; default those of the process.
    Source: docs/configuration.md.
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        answer = _answer(given)
        if answer:
            sys.stdout.write(answer)
            return 0
        actions = parse(given).actions
        if "--check-config" in actions:
            return _check(given)
        if "--print-config" in actions:
            return _print(given)
        return _start(given)
    except (ConfigError, DataDirError) as error:
        print(f"Error: {error}", file=sys.stderr)
        if isinstance(error, UsageError):
            print("See 'lavinmq --help' for all options.", file=sys.stderr)
        return error.exit_code if isinstance(error, DataDirError) else 1
    except StoppedWaiting:
        return 0


def _answer(argv: list[str]) -> str:
    """Return what is to be printed instead of starting, if anything; reads no configuration."""
    actions = parse(argv).actions
    if "--help" in actions:
        from lavinmq.config.usage import help_text

        return help_text()
    if "--version" in actions:
        return f"{__version__}\n"
    return _build_info() if "--build-info" in actions else ""


def _build_info() -> str:
    try:
        from lavinmq import _core
    except ImportError as error:
        core = f"missing ({error})"
    else:
        core = getattr(_core, "BUILD_INFO", "present")
    version, _, compiler = sys.version.partition(" [")
    system = os.uname()
    return (
        f"lavinmq {__version__}\n"
        f"Python {version.split()[0]}\n"
        f"Compiled core: {core}\n"
        f"Compiler of Python: {compiler.rstrip(']')}\n"
        f"Platform: {system.sysname} {system.release} {system.machine}\n"
    )


def _check(argv: list[str]) -> int:
    """Tell all that is wrong with the configuration. Returns: the exit code."""
    from lavinmq.config.check import doubts, problems

    errors: list[str] = []
    config = load(argv, os.environ, errors)
    warnings = [*config.warnings, *doubts(config)]
    errors += problems(config)
    errors += _deep_problems(config, errors)
    for warning in warnings:
        print(f"WARNING: {warning}", file=sys.stderr)
    for line in config.ignored:
        print(line, file=sys.stderr)
    for error in errors:
        print(f"Error: {error}", file=sys.stderr)
    if not errors:
        print(f"The configuration is good ({config.files or 'no file'})")
    return 1 if errors else 0


def _deep_problems(config: Config, errors: list[str]) -> Iterator[str]:
    """What only those see who read a setting as the broker does, one line each."""
    if config.clustering_enabled:
        from lavinmq.cluster import places

        yield from places.problems(config)
    if config.load_definitions and not any("'load_definitions'" in line for line in errors):
        from lavinmq.errors import DefinitionsError
        from lavinmq.server import boot_file

        try:
            boot_file(config)
        except DefinitionsError as error:
            yield str(error)


def _print(argv: list[str]) -> int:
    """Show the values in force. Returns: the exit code."""
    from lavinmq.config.text import config_text

    config = load(argv, os.environ)
    for warning in config.warnings:
        print(f"WARNING: {warning}", file=sys.stderr)
    sys.stdout.write(config_text(config))
    return 0


def _start(argv: list[str]) -> int:
    config = load(argv, os.environ)
    log.setup(config.log_level, config.log_file, os.environ, config.log_format)
    _show_banner(config)
    _log.info("Configuration: %s", config.files or "defaults, variables and flags, no file")
    for line in config.ignored:
        _log.debug("%s", line)
    _tell_warnings(config)
    gc.disable()  # until the broker has started: next to nothing of what that makes is garbage
    try:
        return _run(config)
    finally:
        gc.enable()


def _run(config: Config) -> int:
    if config.clustering_enabled:
        from lavinmq.cluster.run import run
    else:
        from lavinmq.server import run

    pidfile = PidFile(config.pidfile) if config.pidfile else None
    if pidfile:
        pidfile.write()
    try:
        return run(config)
    finally:
        if pidfile:
            pidfile.remove()


def _show_banner(config: Config) -> None:
    if config.log_file or config.log_format != "text" or log.is_journal(os.environ):
        return
    print(BANNER, flush=True)


def _tell_warnings(config: Config) -> None:
    """Once each in the log, and on standard error where that does not show them."""
    is_seen = not config.log_file and log.LEVELS[config.log_level] <= log.LEVELS["warn"]
    for warning in config.warnings:
        _log.warning("%s", warning)
        if not is_seen:
            print(f"WARNING: {warning}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
