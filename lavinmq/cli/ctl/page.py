"""docs/lavinmqctl.md, made from the tables of lavinmqctl.

Written by `python -m lavinmq.cli.ctl.page > docs/lavinmqctl.md`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable

from lavinmq.cli.ctl.table import COMMANDS, GLOBAL_OPTIONS, Command, Option

INTRODUCTION = """\
# lavinmqctl

<!-- Made by `python -m lavinmq.cli.ctl.page > docs/lavinmqctl.md`. -->

`lavinmqctl [options] command [arguments]` administers a broker from the command line and from
scripts. It talks to the HTTP API. Differences to the program of LavinMQ:
[differences.md](differences.md#lavinmqctl).

```sh
lavinmqctl add_user bo                          # asks for the password
lavinmqctl set_permissions bo '.*' '.*' '.*'
lavinmqctl list_queues name messages consumers
lavinmqctl -q -f json list_connections user state
lavinmqctl import_definitions --dry-run definitions.json
lavinmqctl -p other create_queue orders --durable --max-length 1000
```

## Where it connects

The first of these that is given:

1. `--uri URI` (or `--host URI`, the older name): `http://user:password@host:15672`. Without a port
   it is 80 or 443; a path before `/api` is kept, for a broker behind a proxy. User and password are
   percent-encoded.
2. `--hostname HOST`, `--port PORT`, `--scheme http|https`, each with a default. They cannot be
   combined with a URI.
3. `--control-unix-path PATH`
4. the variable `LAVINMQCTL_HOST`, a URI
5. the variable `LAVINMQCTL_CONTROL_UNIX_PATH`, else `/run/lavinmq/lavinmqctl.sock` if it is there
   (packages put it there), else `/tmp/lavinmqctl.sock`: the control socket of a broker on this host
   (`control_unix_path`). Whoever may write to it is an administrator. In `/tmp`, where everybody
   may make one, it has to be of root, of `lavinmq` or of who calls, unless it is named.

A login is sent only when there is one: `--user` and `--password`, or those of the URI. Certificates
are verified with the system's authorities, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names.
A password on the command line can be seen by other users of the host: where it is an argument,
leave it out, and it is asked for at a terminal, else read as a line of standard input.

## What it prints

Lists in text are a line for people (`Listing queues ...`, left out by `--quiet`), a line with the
names of the columns, and a row for each item, separated by tabs; single objects are lines of the
form `key: value`. With `--format json` it is one line of JSON without anything else. In text,
characters that are not printable are escaped, so that a name cannot add rows.

Commands with `[column...]` take the names of any fields of the API's objects, also nested ones such
as `queue.name`; a field that a row does not have is empty. Lists are fetched in pages of 10000.

Errors go to standard error:

| Exit status | Meaning |
| --- | --- |
| 0 | done |
| 1 | any error: in the command line, the connection or the broker; a health check that failed |
| 2 | the node is not the leader of its cluster (it answers 503) |

Options may stand before and behind the command and its arguments; `--` ends them. Values are given
as `--option value` or `--option=value`. Names are taken as they are, with slashes and spaces.

## Options

"""
NOTES = {
    "Shovels and federation": (
        "What a shovel can do beyond these options is set with"
        " `set_parameter shovel NAME JSON` ([shovels.md](shovels.md)).\n\n"
    ),
}
"""What stands before the commands of a group."""
TAIL = """\
## Health checks

Each `check_` command asks one health check of the API and exits with 0, or with 1 and the reason on
standard error. `wait` comes before them in scripts: it ends when the broker answers at all.

```sh
lavinmqctl wait --timeout 30 && lavinmqctl check_running && lavinmqctl check_port_listener 5672
```

## Definitions without a broker

`lavinmqctl definitions DATADIR` reads users, permissions, virtual hosts, exchanges, queues,
bindings, policies, limits and parameters from a data directory and prints them in the form of an
export, which can be imported. It only reads: the directory may be in use, or a copy.

## Completion and manual pages

```sh
lavinmqctl completion bash > /etc/bash_completion.d/lavinmq      # or zsh, fish
python -m lavinmq.cli.manual /usr/share/man                      # lavinmq(1), lavinmq.ini(5), ...
```

`completion` covers all programs of this package; `--program` chooses one of them, for
packages that install a file for each.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION + _options(GLOBAL_OPTIONS), "## Commands\n"]
    for group, commands in COMMANDS.items():
        parts.append(f"### {group}\n\n{NOTES.get(group, '')}{_commands(commands)}")
        parts += [
            f"Options of `{command.name}`:\n\n{_options(command.options)}"
            for command in commands
            if command.options
        ]
    return "\n".join([*parts, TAIL])


def _commands(commands: Iterable[Command]) -> str:
    rows = ["| Command | What it does |", "| --- | --- |"]
    for command in commands:
        call = f"{command.name} {command.arguments}".rstrip()
        rows.append(f"| `{call}` | {command.help} |")
    return "\n".join(rows) + "\n"


def _options(options: Iterable[Option]) -> str:
    rows = ["| Option | Meaning |", "| --- | --- |"]
    for option in options:
        long = f"{option.long} {option.argument}".rstrip()
        short = f"`{option.short}`, " if option.short else ""
        rows.append(f"| {short}`{long}` | {option.help} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
