"""Reads the command line into texts for settings and into actions, by the table of settings.

Called by ``__main__`` (for the actions) and by ``config.load`` (for the values). It judges no
value. Not argparse: the table already holds what argparse would be told again, and importing it
costs 0.4 to 1.6 MB for the life of the broker.

Understood: ``--flag value``, ``--flag=value``, ``-p 5672``, ``-p5672``, ``-p=5672`` and clusters
of short flags, of which only the last may take an argument (``-dp5672``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lavinmq.config.setting_types import shown
from lavinmq.config.settings import ConfigError, Flag, Setting, flags


class UsageError(ConfigError):
    """A command line that cannot be understood; worth a hint to ``--help``."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line says.

    ``values`` are the settings it gives, in order, each with the flag and the text;
    ``actions`` the other flags by long name (``--help``, ...), those without argument as ``""``.
    """

    values: list[tuple[Flag, Setting, str]] = field(default_factory=list)
    actions: dict[str, str] = field(default_factory=dict)


def parse(argv: Sequence[str]) -> Arguments:
    """Return what ``argv`` (without the program's name) says.

    Raises: ``UsageError`` for an unknown flag, a missing or superfluous argument, a stray word.
    Source: configuration reference, server command.
    """
    known: dict[str, Flag] = {}
    targets: dict[str, list[Setting]] = {}
    for flag, setting in flags():
        known[flag.long] = flag
        if flag.short:
            known[flag.short] = flag
        if setting is not None:
            targets.setdefault(flag.long, []).append(setting)
    arguments = Arguments()
    for flag, text in _words(iter(argv), known):
        if flag.long not in targets:
            arguments.actions[flag.long] = text
        for setting in targets.get(flag.long, ()):
            arguments.values.append((flag, setting, text))
    return arguments


def _words(rest: Iterator[str], known: dict[str, Flag]) -> Iterator[tuple[Flag, str]]:
    for word in rest:
        if word.startswith("--"):
            yield _long(word, rest, known)
        elif word.startswith("-") and len(word) > 1:
            yield from _cluster(word, rest, known)
        else:
            raise UsageError(f"Unexpected argument {shown(word)}")


def _long(word: str, rest: Iterator[str], known: dict[str, Flag]) -> tuple[Flag, str]:
    name, equals, text = word.partition("=")
    flag = known.get(name)
    if flag is None:
        raise UsageError(f"Unknown option {shown(name)}")
    if flag.argument:
        return flag, text if equals else _argument(name, rest)
    if equals:
        raise UsageError(f"Option {name} takes no argument")
    return flag, flag.value


def _cluster(word: str, rest: Iterator[str], known: dict[str, Flag]) -> Iterator[tuple[Flag, str]]:
    for index in range(1, len(word)):
        name = f"-{word[index]}"
        flag = known.get(name)
        if flag is None:
            raise UsageError(f"Unknown option {shown(name)}")
        if flag.argument:
            attached = word[index + 1 :].removeprefix("=")
            yield flag, attached or _argument(name, rest)
            return
        yield flag, flag.value


def _argument(name: str, rest: Iterator[str]) -> str:
    text = next(rest, None)
    # A forgotten argument must not swallow the next flag; "-1" is a port that is switched off.
    if text is None or (text.startswith("-") and not text[1:].isdigit() and text != "-"):
        raise UsageError(f"Missing argument of option {name}")
    return text
