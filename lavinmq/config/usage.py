"""The two pages made from the table of settings: the help text and docs/configuration.md.

``help_text`` is called by ``__main__`` for ``--help``; the page is written by
``python -m lavinmq.config.usage > docs/configuration.md``, and a test compares the two.
Loaded by nothing else, so a running broker does not pay for it.
"""

from __future__ import annotations

from lavinmq.config.settings import GROUPS, MOVED, SECTIONS, SETTINGS, SNI, Flag, Setting, flags

FLAG_WIDTH = 42

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m lavinmq.config.usage > docs/configuration.md` of the table in
     lavinmq/config/settings.py: change that. -->

`lavinmq` takes each setting from the first of these that gives it:

1. command line flags,
2. environment variables (an empty one counts as absent),
3. the files `*.ini` of the directory [`conf.d`](#the-directory-confd) beside the ini file; of
   several that give it the last by name,
4. the ini file: `--config FILE`, else `lavinmq.ini` in the directory named by
   `LAVINMQ_CONFIGURATION_DIRECTORY`, else by `CONFIGURATION_DIRECTORY`, else in `/etc/lavinmq`,
5. the default.

Every setting has a variable `LAVINMQ_<SECTION>_<KEY>`, for example `LAVINMQ_MAIN_LOG_LEVEL`, and
one that names a file, `LAVINMQ_<SECTION>_<KEY>_FILE`: the content of that file, without blanks and
line ends around it, is the value. That is meant for secrets; a file that cannot be read or is empty
stops the start. Where the tables name further variables, they have a `_FILE` as well. Of several
variables of one setting the uniform one is the strongest, the plain one is stronger than its
`_FILE`, and a warning names two that differ.
`STATE_DIRECTORY` (set by systemd; the first of several paths counts), `SSLKEYLOGFILE` and
`LAVINMQ_DEFAULT_CONTROL_UNIX_PATH` (set by the unit of packages) only replace a default: a value in
the ini file is stronger.

`LAVINMQ_DEFAULT_PASSWORD` and `--default-password` hold a **hash**, despite their names. A plain
password there is refused unless it happens to look like a hash. A plain password goes into
`LAVINMQ_MAIN_DEFAULT_PASSWORD_PLAIN_FILE`, or `..._PLAIN`; it is hashed when the first start makes
the user, and later changes of it have no effect, as with the hash.

`lavinmq --check-config` reads all this, tells everything that is wrong on standard error, and exits
with 0 or 1: values, files that cannot be read or written, certificates that cannot be loaded, two
listeners in one place, addresses of a cluster that are none, definitions to load that would be
refused. Of the file that the service of this host uses it also tells what systemd
would not let the service do: paths outside of those that its unit lets it write, a data directory
of another user. It warns about a control socket where `lavinmqctl` does not look. It starts nothing
and does not mind a broker that runs.
`lavinmq --print-config` prints the values in force as an ini file, each below the source it comes
from; secrets are masked.

At a reload (SIGHUP) everything is read again in the same order, from the defaults on: a key that
was removed from the file goes back to its default, and flags and variables win as they did at the
start. What is wrong in any source, or in a certificate, leaves all as it is. The log names the
settings that have changed and those that wait for a restart.

## The ini file

```ini
[main]
data_dir = /var/lib/lavinmq
; a comment
[amqp]
bind = ::
```

A comment is a line that starts with `;` or `#`; after a value these are part of the value. `1`,
`true`, `yes`, `on` and `y` are true and everything else is false, with a warning when it is
not one of `0`, `false`, `no`, `off`, `n` or empty. Where the type is *true or false*, data or
access hang on it, and any other word stops the start. Turning `sync` or `data_dir_lock` off is
warned about, and so is a `tls_port` without a certificate. Lists are separated by commas. A section
may be opened again; of a repeated key the last one counts.

An unknown section, a line that is none, or a value of the wrong type or out of range stops the
start with exit code 1 and one line that says where. A data directory that the broker may not write
to, that is a file, or whose format it does not know, ends it with exit code 78 and a line that says
what helps; the unit of packages does not start it again then. An unknown key is only warned about,
and so is a variable that begins with `LAVINMQ_` and belongs to no setting; the warning names the
known one that is most like it, or the section that has the key. Where data or access hang on that
one, the unknown or misplaced key stops the start as well, and so does the variable if it is 'true',
'false' or another such word, or names a file: a slip must not leave them without what protects
them.

**Effect** tells what a setting does in this version: *yes*; *live* — yes, and a reload changes the
running broker; *not yet* — recognised and checked, setting it gives a warning in the log that says
what this release does not do; *unused* — has no meaning in this broker, accepted in silence;
*removed* — accepted with a warning. Warnings are in the log, and on standard error as well when the
log goes to a file or leaves them out.

## The directory conf.d

The files of a directory `conf.d` beside the ini file, as `/etc/lavinmq/conf.d`, are read after the
ini file, in the order of the bytes of their names: `10-tls.ini`, then `20-site.ini`. Each is a
whole ini file, with sections of its own. A key that several give has the value of the last one, and
sections `[sni:HOST]` of one spelling are put together. The directory is also read when there is no
ini file. Messages about what stands in one of them name it, and `--print-config` shows for each
value which file it comes from. A reload reads all of them again.

A name that begins with a dot or does not end in `.ini`, as editors and package managers leave them,
is not read: `--check-config` tells it, and the log does at level `debug`. A `README` is expected
there. Any other file that cannot be read stops the start, and so do more than 256 entries, and
files that are larger than 1 MiB together with the ini file.

Who can add a file there rules the broker. So the start is refused when everybody may write to the
directory or to a file in it, and when the directory belongs to somebody else than root, the user of
the broker or the owner of the ini file. Through a mount that is read-only nobody can write: there
the mode does not count, as volumes made of a ConfigMap have 0777.

## Ports

A port of -1 is no TCP listener, with 0 the system chooses a free one.
`--bind` sets the AMQP, MQTT and HTTP address at once.
"""


def help_text() -> str:
    """Return what ``--help`` prints: all flags by group, those with a short form first."""
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    ordered = sorted(flags(), key=lambda item: (not item[0].short, item[0].short, item[0].long))
    for flag, setting in ordered:
        # A flag for several settings comes several times and is shown once.
        groups[flag.group].setdefault(_spelling(flag), flag_help(flag, setting))
    lines = ["Usage: lavinmq [arguments]"]
    for group, entries in groups.items():
        lines += ["", f"{group}:"]
        for spelling, text in entries.items():
            lines.append(f"    {spelling:<{FLAG_WIDTH}} {text}".rstrip())
    return "\n".join(lines) + "\n"


def _spelling(flag: Flag) -> str:
    long = f"{flag.long} {flag.argument}".rstrip()
    return f"{flag.short}, {long}" if flag.short else f"    {long}"


def flag_help(flag: Flag, setting: Setting | None) -> str:
    """Return what the help text says about a flag of a setting."""
    if flag.instead:
        return f"Deprecated, use {flag.instead}"
    if flag.help or setting is None:
        return flag.help
    shows_default = flag.argument and setting.default and len(setting.default) < 40
    default = f" (default: {setting.default})" if shows_default else ""
    later = " [no effect yet]" if setting.effect == "not yet" else ""
    return f"{setting.help}{default}{later}"


def describe() -> str:
    """Return docs/configuration.md: every key, flag, variable, default, and its effect."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        parts.append(_section(section, [s for s in SETTINGS if s.section == section]))
    parts.append(_section("sni:HOST", list(SNI)))
    parts.append(
        "`HOST` is a name, or `*.` and a domain. Each key may be prefixed with `amqp_`, `mqtt_` or"
        " `http_`.\nA section without `tls_cert` is ignored, with a warning; one that also demands"
        " client certificates\nstops the start.\n"
    )
    parts.append(_old_names())
    parts.append(f"## All flags\n\n```\n{help_text()}```\n")
    return "\n".join(parts)


def _section(title: str, settings: list[Setting]) -> str:
    rows = [
        f"## `[{title}]`\n",
        "| Key | Type | Default | Effect | Meaning | Flags and environment |",
        "|---|---|---|---|---|---|",
    ]
    for setting in settings:
        sources = [f"`{flag.long}`" for flag in setting.flags if not flag.instead]
        further = (*setting.environment, *filter(None, (setting.fallback,)))
        sources += [f"`{name}`" for name in dict.fromkeys(further)]
        default = f"`{setting.default}`" if setting.default else ""
        effect = "live" if setting.live and setting.effect == "yes" else setting.effect
        rows.append(
            f"| `{setting.key}` | {setting.kind.name} | {default} | {effect} "
            f"| {setting.help} | {', '.join(sources)} |"
        )
    return "\n".join(rows) + "\n"


def _old_names() -> str:
    rows = ["## Old names\n", "Still read, with a warning.\n", "| Old | Now |", "|---|---|"]
    for (section, key), (new_section, new_key) in MOVED.items():
        rows.append(f"| `[{section}] {key}` | `[{new_section}] {new_key}` |")
    for flag, _ in flags():
        if flag.instead:
            rows.append(f"| `{flag.long}` | `{flag.instead}` |")
    rows.append("| section `[http]` | `[mgmt]` |")
    rows.append("| section `[replication]` | `[clustering]` (an error, not a warning) |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(describe(), end="")
