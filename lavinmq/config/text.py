"""The configuration in force as the text of an ini file, with the origin of each value.

Called by ``__main__`` for ``--print-config``. Reading the text again gives the same configuration,
apart from secrets: these, and credentials in addresses, are masked.
"""

from __future__ import annotations

import re

from lavinmq.config.settings import SECTIONS, SETTINGS, Setting
from lavinmq.config.sources import INI_FILE, Given
from lavinmq.config.values import Config

MASK = "********"
_CREDENTIALS = re.compile(r"(?<=://)[^/@,\s]+(?=@)")


def config_text(config: Config) -> str:
    """Return all settings by section; each stands below a comment that says where it is from.

    A secret is shown as a comment, and so is a value that cannot stand in an ini file.
    """
    lines = [f"; configuration file: {config.files or 'none'}"]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for setting in SETTINGS:
            if setting.section == section:
                lines += _lines(config, setting)
    hosts = dict.fromkeys(section for section, _ in config.given if section.startswith("sni:"))
    for host in hosts:
        lines += ["", f"[{host}]"]
        for (section, key), given in config.given.items():
            if section == host:
                lines += [f"; {_origin(config, given)}", f"{key} = {given.text}"]
    return "\n".join(lines) + "\n"


def _lines(config: Config, setting: Setting) -> list[str]:
    given = config.given.get((setting.section, setting.key))
    if given is None:
        if setting.effect == "removed":
            return []
        return ["; default", _assignment(setting, setting.default)]
    return [f"; {_origin(config, given)}", _assignment(setting, given.text)]


def _assignment(setting: Setting, text: str) -> str:
    if setting.secret and text:
        return f"; {setting.key} = {MASK}"
    shown = _CREDENTIALS.sub(MASK, text)
    if shown != shown.strip() or not (shown.isprintable() or not shown):
        return f"; {setting.key} = {shown!r}"
    return f"{setting.key} = {shown}".rstrip()


def _origin(config: Config, given: Given) -> str:
    if given.source == INI_FILE:
        return f"file {config.config_file}"
    if "/" in given.source:  # of conf.d
        return f"file {given.source}"
    return f"flag {given.source}" if given.source.startswith("-") else f"environment {given.source}"
