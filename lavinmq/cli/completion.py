"""Scripts that make a shell complete the command lines of our programs.

Printed by `lavinmqctl completion SHELL`, made from the tables of ``programs.py``. They complete
commands and options, and file names where a file is wanted; they ask no broker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lavinmq.cli.programs import CommandText, OptionText, Program

SHELLS = ("bash", "zsh", "fish")
FILES = frozenset({"FILE", "DIR", "PATH", "file", "datadir", "ARCHIVE", "SOURCE", "TARGET"})
"""Words for values and arguments that are paths."""


def script(shell: str, programs: Sequence[Program]) -> str:
    """Return the script of a shell for some programs. Raises: KeyError for another shell."""
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    head = f"#compdef {' '.join(program.name for program in programs)}\n" if shell == "zsh" else ""
    comment = f"# Completion of {shell} for {', '.join(program.name for program in programs)}.\n"
    tail = _zsh_end(programs) if shell == "zsh" else ""
    return head + comment + "".join(map(write, programs)) + tail


_BASH_FILES = 'mapfile -t COMPREPLY < <(compgen -f -- "$current"); compopt -o filenames 2>/dev/null'


def _names(options: Sequence[OptionText]) -> str:
    return " ".join(name for option in options for name in option.names)


def _with_value(options: Sequence[OptionText], *, files: bool = False) -> list[str]:
    """The spellings of options that take a value, all or those that take a path."""
    return [
        name
        for option in options
        if option.argument and (not files or option.argument in FILES)
        for name in option.names
    ]


def _takes_file(command: CommandText) -> bool:
    return not FILES.isdisjoint(re.split(r"[\s\[\].]+", command.arguments))


def _bash(program: Program) -> str:
    options, commands = program.all_options(), program.all_commands()
    everything = [*options, *(option for command in commands for option in command.options)]
    words = " ".join(command.name for command in commands)
    function = f"_{program.name}"
    lines = [
        f"{function}() {{",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        f'    local command="" index options="{_names(options)}" files=""',
        "    COMPREPLY=()",
    ]
    paths, values = _with_value(everything, files=True), _with_value(everything)
    lines.append('    case "$previous" in')
    if paths:
        lines.append(f"        {'|'.join(dict.fromkeys(paths))})")
        lines.append(f"            {_BASH_FILES}; return ;;")
    lines.append(f"        {'|'.join(dict.fromkeys(values)) or '--'}) return ;;")
    lines.append("    esac")
    if commands:
        lines += [
            "    for ((index = 1; index < COMP_CWORD; index++)); do",
            '        case "${COMP_WORDS[index]}" in',
            f"            {words.replace(' ', '|')}) command=${{COMP_WORDS[index]}}; break ;;",
            "        esac",
            "    done",
            '    case "$command" in',
            f'        "") options="$options {words}" ;;',
        ]
        for command in commands:
            actions = []
            if command.options:
                actions.append(f'options="$options {_names(command.options)}"')
            if _takes_file(command):
                actions.append("files=1")
            if actions:
                lines.append(f"        {command.name}) {'; '.join(actions)} ;;")
        lines.append("    esac")
    lines += [
        "    if [[ $current == -* || ( -z $command && -z $files ) ]]; then",
        '        COMPREPLY=($(compgen -W "$options" -- "$current"))',
        "    elif [[ -n $files ]]; then",
        f"        {_BASH_FILES}",
        "    fi",
        "}",
        f"complete -F {function} {program.name}",
        "",
    ]
    return "\n".join(lines)


def _zsh(program: Program) -> str:
    commands = program.all_commands()
    lines = [f"_{program.name}_words() {{", "    local -a specs"]
    lines += _zsh_specs("specs", program.all_options(), "    ")
    if not commands:
        lines += ["    _arguments -s $specs", "}", ""]
        return "\n".join(lines)
    lines.append("    local -a names")
    lines.append("    names=(")
    lines += [f"        {_quoted(f'{c.name}:{c.help}')}" for c in commands]
    lines.append("    )")
    lines.append("    local word command=''")
    lines.append("    for word in ${words[2,CURRENT-1]}; do")
    lines.append("        if (( ${names[(I)$word:*]} )); then command=$word; break; fi")
    lines.append("    done")
    lines.append("    case $command in")
    lines.append("        '')")
    lines.append("            _arguments -s $specs '*:command:->command' && return")
    lines.append(f"            [[ $state == command ]] && _describe {program.name} names ;;")
    for command in commands:
        if command.options or _takes_file(command):
            lines.append(f"        {command.name})")
            lines += _zsh_specs("specs+", command.options, "            ")
            rest = "'*:file:_files'" if _takes_file(command) else "'*: :'"
            lines.append(f"            _arguments -s $specs {rest} ;;")
    lines += ["        *) _arguments -s $specs '*: :' ;;", "    esac", "}", ""]
    return "\n".join(lines)


def _zsh_specs(name: str, options: Sequence[OptionText], indent: str) -> list[str]:
    lines = [f"{indent}{name}=("]
    for option in options:
        text = re.sub(r"([\[\]:])", r"\\\1", option.help)
        action = "_files" if option.argument in FILES else " "
        value = f":{option.argument}:{action}" if option.argument else ""
        lines += [f"{indent}    {_quoted(f'{each}[{text}]{value}')}" for each in option.names]
    return [*lines, f"{indent})"]


def _zsh_end(programs: Sequence[Program]) -> str:
    """One function for all, as the file is loaded for whichever program comes first."""
    lines = ["_lavinmq_programs() {", "    local state", "    case $service in"]
    lines += [f"        {program.name}) _{program.name}_words ;;" for program in programs]
    names = " ".join(program.name for program in programs)
    lines += [
        "    esac",
        "}",
        # Found in a directory of functions, the file is itself the function that completes.
        "if (( ${+compstate} )); then",
        '    _lavinmq_programs "$@"',
        "else",
        f"    compdef _lavinmq_programs {names}",
        "fi",
        "",
    ]
    return "\n".join(lines)


def _fish(program: Program) -> str:
    commands = program.all_commands()
    lines = []
    for option in program.all_options():
        lines.append(_fish_option(program.name, "", option))
    if commands:
        names = " ".join(command.name for command in commands)
        none = f"-n {_quoted(f'not __fish_seen_subcommand_from {names}')}"
        for command in commands:
            lines.append(
                f"complete -c {program.name} -f {none} -a {command.name} -d {_quoted(command.help)}"
            )
        for command in commands:
            seen = f"-n {_quoted(f'__fish_seen_subcommand_from {command.name}')}"
            if not _takes_file(command):
                lines.append(f"complete -c {program.name} -f {seen}")
            lines += [_fish_option(program.name, seen, option) for option in command.options]
    else:
        lines.insert(0, f"complete -c {program.name} -f")
    return "\n".join([*lines, ""])


def _fish_option(program: str, condition: str, option: OptionText) -> str:
    parts = [f"complete -c {program}", condition]
    for name in option.names:
        parts.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if option.argument:
        parts.append("-r -F" if option.argument in FILES else "-x")
    parts.append(f"-d {_quoted(option.help)}")
    return " ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    """A word for any of these shells."""
    return "'" + text.replace("'", "'\\''") + "'"
