"""Manual pages, made from the tables of our programs and settings.

`python -m lavinmq.cli.manual DIR [PROGRAM]...` writes `man1/lavinmq.1`, `man1/lavinmqctl.1`,
`man1/lavinmqperf.1`, `man1/lavinmq-pipeline.1`, or those that are named, and `man5/lavinmq.ini.5`
below DIR; packages call it. With SOURCE_DATE_EPOCH in the environment the date of the pages is that
one, so that builds can be repeated.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lavinmq import __version__
from lavinmq.cli.programs import PROGRAMS, CommandText, OptionText, Program, installed
from lavinmq.config.settings import MOVED, SECTIONS, SETTINGS, SNI, Setting

DESCRIPTIONS: Mapping[str, tuple[str, ...]] = {
    "lavinmq": (
        "A message broker that speaks AMQP 0-9-1. It runs in the foreground until it is told to "
        "stop.",
        "Each setting is taken from the command line, else from the environment, else from the "
        "configuration file, else it has its default. All of them are in lavinmq.ini(5).",
    ),
    "lavinmqctl": (
        "Talks to a broker by its HTTP API and prints what it answers. Without an option or "
        "variable that says where, it uses the control socket of a broker on this host, which "
        "needs no password but the permission to write to the socket.",
        "Options may stand before and behind the command; -- ends them. Names are taken as they "
        "are. Where a password is an argument that was left out, it is asked for at a terminal, "
        "else read from standard input.",
    ),
    "lavinmqperf": ("Loads a broker and measures it. Every scenario has options of its own.",),
    "lavinmq-pipeline": (
        "Archives, replays and examines messages with Apache Spark, on this host or a cluster. It "
        "needs PySpark and Java 17. The options of a command stand behind its name.",
    ),
}
EXIT_STATUS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "lavinmq": (
        ("0", "It was told to stop and has written everything out; or it has answered --help, "
              "--version, --build-info, --print-config, or a good --check-config."),
        ("1", "The configuration cannot be used, an address is taken, files in the data directory "
              "cannot be used, or not everything could be written out."),
    ),
    "lavinmqctl": (
        ("0", "Done."),
        ("1", "Any error, also a health check that has failed; standard error says which."),
        ("2", "The node is not the leader of its cluster."),
    ),
    "lavinmqperf": (("0", "Done."), ("1", "Any error.")),
    "lavinmq-pipeline": (
        ("0", "Done."),
        ("1", "Failed, or what was compared is not equal."),
        ("2", "The command line makes no sense."),
        ("3", "Messages that should have been read are gone."),
    ),
}  # fmt: skip
SIGNALS = (
    ("TERM, INT", "Stop in order; a second one stops at once, with exit status 1."),
    ("HUP", "Read the configuration again and take over what may change while running; the log "
            "says what has changed and what needs a restart."),
)  # fmt: skip
VARIABLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "lavinmq": (
        ("LAVINMQ_SECTION_KEY", "The setting of that section and key, for example "
                                "LAVINMQ_AMQP_PORT."),
        ("LAVINMQ_SECTION_KEY_FILE", "A file whose content is the value; for secrets."),
        ("LAVINMQ_CONFIGURATION_DIRECTORY, CONFIGURATION_DIRECTORY",
         "Where lavinmq.ini and conf.d are, else /etc/lavinmq."),
        ("STATE_DIRECTORY", "The data directory, unless something else names one."),
    ),
    "lavinmqctl": (
        ("LAVINMQCTL_HOST", "The URI of the API, unless an option says where it is."),
        ("LAVINMQCTL_CONTROL_UNIX_PATH", "The control socket, unless an option names one."),
        ("SSL_CERT_FILE, SSL_CERT_DIR", "Authorities that certificates are verified with."),
    ),
    "lavinmqperf": (),
    "lavinmq-pipeline": (
        ("LAVINMQ_URL", "The broker, unless --url says it."),
        ("JAVA_HOME", "Where Java is, unless it is in the PATH."),
        ("PYSPARK_PYTHON", "The interpreter of executors, on a cluster."),
    ),
}  # fmt: skip
FILES = (
    ("/etc/lavinmq/lavinmq.ini", "The file."),
    ("/etc/lavinmq/conf.d/*.ini", "Further files of the same form, read after it in the order of "
                                  "their names; of a repeated key the last one counts."),
)  # fmt: skip
SEE_ALSO = "lavinmq(1), lavinmqctl(1), lavinmqperf(1), lavinmq-pipeline(1), lavinmq.ini(5)"


def pages(names: Sequence[str] = ()) -> dict[str, str]:
    """Return the pages of some programs, of all without names, and that of the settings; by the
    path below a directory of manual pages. Raises: KeyError."""
    wanted = names or installed()
    made: dict[str, str] = {f"man1/{name}.1": page(PROGRAMS[name]()) for name in wanted}
    made["man5/lavinmq.ini.5"] = settings_page()
    return made


def page(program: Program) -> str:
    """Return the page of a program."""
    lines = [_title(program.name, 1), *_heading("NAME")]
    lines += [f"{_text(program.name)} \\- {_text(program.summary)}", *_heading("SYNOPSIS")]
    first, _, rest = program.usage.partition(" ")
    lines += [f".B {_text(first)}", _text(rest), *_heading("DESCRIPTION")]
    lines += _paragraphs(DESCRIPTIONS[program.name])
    lines += _heading("OPTIONS")
    for group, options in program.options.items():
        lines += [f".SS {_text(group)}"] if group else []
        lines += _options(options)
    for group, commands in program.commands.items():
        lines += _heading(group.upper())
        for command in commands:
            lines += _command(command)
    if program.name == "lavinmq":
        lines += [*_heading("SIGNALS"), *_items(SIGNALS)]
    lines += [*_heading("EXIT STATUS"), *_items(EXIT_STATUS[program.name])]
    if VARIABLES[program.name]:
        lines += [*_heading("ENVIRONMENT"), *_items(VARIABLES[program.name])]
    return _ended(lines, f"{program.name}(1)")


def settings_page() -> str:
    """Return the page of the configuration file."""
    lines = [_title("lavinmq.ini", 5), *_heading("NAME")]
    lines += ["lavinmq.ini \\- settings of a lavinmq broker", *_heading("DESCRIPTION")]
    lines += _paragraphs(
        (
            "Sections in brackets, and in them lines of the form key = value. A line that starts "
            "with ; or # is a comment. A section may be opened again; of a repeated key the last "
            "one counts. Lists are separated by commas; 1, true, yes, on and y are true.",
            "An unknown section and a value that cannot be used stop the start, an unknown key is "
            "only warned about. lavinmq --check-config tells beforehand, lavinmq --print-config "
            "shows which values are in force and why.",
        )
    )
    for section in SECTIONS:
        lines += _heading(f"SECTION [{section}]")
        for setting in SETTINGS:
            if setting.section == section:
                lines += _setting(setting)
    lines += _heading("SECTIONS [sni:HOST]")
    lines += _paragraphs(
        ("HOST is a name, or *. and a domain. Each key may be prefixed with amqp_, mqtt_ or "
         "http_. A section without tls_cert is ignored.",)
    )  # fmt: skip
    for setting in SNI:
        lines += _setting(setting)
    lines += _heading("OLD NAMES")
    lines += _items(
        (f"[{old[0]}] {old[1]}", f"Now [{new[0]}] {new[1]}.") for old, new in MOVED.items()
    )
    lines += _items((("[http]", "Now [mgmt]."),))
    lines += [*_heading("FILES"), *_items(FILES)]
    return _ended(lines, "lavinmq.ini(5)")


def _title(name: str, section: int) -> str:
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    date = time.strftime("%Y-%m-%d", moment)
    return f'.TH "{_text(name.upper())}" {section} "{date}" "lavinmq {__version__}"'


def _heading(text: str) -> list[str]:
    return [f'.SH "{_text(text)}"']


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in (".PP", _text(text))]


def _items(items: Iterable[tuple[str, str]]) -> list[str]:
    return [line for name, text in items for line in (".TP", f".B {_text(name)}", _text(text))]


def _options(options: Iterable[OptionText]) -> list[str]:
    lines = []
    for option in options:
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in option.names)
        value = f" \\fI{_text(option.argument)}\\fR" if option.argument else ""
        lines += [".TP", names + value, _text(option.help)]
    return lines


def _command(command: CommandText) -> list[str]:
    arguments = f" \\fI{_text(command.arguments)}\\fR" if command.arguments else ""
    lines = [".TP", f"\\fB{_text(command.name)}\\fR{arguments}", _text(command.help) + "."]
    if command.options:
        lines += [".RS", *_options(command.options), ".RE"]
    return lines


def _setting(setting: Setting) -> list[str]:
    facts = [setting.kind.name]
    if setting.default and not setting.secret:
        facts.append(f"default {setting.default}")
    if setting.effect == "yes":
        facts += ["changes at a reload"] if setting.live else []
    else:
        facts.append({"not yet": "no effect yet"}.get(setting.effect, setting.effect))
    text = f"{setting.help} ({'; '.join(facts)})."
    return [".TP", f".B {_text(setting.key)}", _text(text)]


def _ended(lines: list[str], own: str) -> str:
    others = ", ".join(name for name in SEE_ALSO.split(", ") if name != own)
    return "\n".join([*lines, *_heading("SEE ALSO"), _text(others)]) + "\n"


def _text(text: str) -> str:
    """Escape what the formatter would take for its own: backslashes, hyphens, leading dots."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main(argv: list[str] | None = None) -> int:
    """Write pages below the directory of the first argument: those of the programs behind it, or
    all; returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    if not given or given[0].startswith("-") or not set(given[1:]) <= set(installed()):
        print("Usage: python -m lavinmq.cli.manual DIR [PROGRAM]...", file=sys.stderr)
        return 1
    for name, content in pages(given[1:]).items():
        path = Path(given[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
