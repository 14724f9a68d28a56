"""Reads the command line into texts for settings and into actions, by the table of settings.

Called by ``__main__`` (for the actions) and by ``config.load`` (for the values). It judges no
value. How options are written is the business of ``option_words.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lavinmq.config.option_words import OptionError, cut
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
    Source: docs/configuration.md.
    """
    known: dict[str, Flag] = {}
    targets: dict[str, list[Setting]] = {}
    for flag, setting in flags():
        known[flag.long] = flag
        if flag.short:
            known[flag.short] = flag
        if setting is not None:
            targets.setdefault(flag.long, []).append(setting)

    def takes_value(name: str) -> bool:
        if name not in known:
            raise UsageError(f"Unknown option {shown(name)}")
        return bool(known[name].argument)

    arguments = Arguments()
    try:
        for name, text in cut(argv, takes_value):
            if not name:
                raise UsageError(f"Unexpected argument {shown(text)}")
            flag = known[name]
            value = text if flag.argument else flag.value
            if flag.long not in targets:
                arguments.actions[flag.long] = value
            for setting in targets.get(flag.long, ()):
                arguments.values.append((flag, setting, value))
    except OptionError as error:
        raise UsageError(str(error)) from error
    return arguments
