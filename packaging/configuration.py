"""The shipped configuration: what a package sets, and all other settings as comments.

`configuration.text()` is called by ``install.py``. The file is made from the table of settings, so
it names every one that has an effect in this version, with its meaning and default.
"""

from __future__ import annotations

from collections.abc import Mapping

from lavinmq.config.settings import SECTIONS, SETTINGS, Setting

SHIPPED: Mapping[tuple[str, str], str] = {
    ("main", "data_dir"): "/var/lib/lavinmq",
    ("main", "log_level"): "info",
    # Not in /tmp, which belongs to everybody; lavinmqctl looks here first.
    ("main", "control_unix_path"): "/run/lavinmq/lavinmqctl.sock",
    # All addresses: the default user is kept out by default_user_only_loopback.
    ("amqp", "bind"): "::",
    ("mqtt", "bind"): "::",
    ("mgmt", "bind"): "::",
}
# In a container nothing else is reached over its own loopback, and no port is open that was not
# published: metrics and probes are for those who run it.
CONTAINER: Mapping[tuple[str, str], str] = {**SHIPPED, ("main", "metrics_http_bind"): "::"}
HEAD = """\
; Settings of the LavinMQ message broker; lavinmq.ini(5) describes them all.
;
; Files conf.d/*.ini beside this one are read after it and win: settings of a site may stand there.
; Lines behind a semicolon show defaults. `lavinmq --check-config` tells what is wrong in all these;
; `systemctl reload lavinmq` takes over what may change while the broker runs, marked "live".
; The broker listens on all addresses. Until another user exists only the default user can log in,
; guest with password guest, and only from this host.
"""


def text(shipped: Mapping[tuple[str, str], str] = SHIPPED) -> str:
    """Return the content of lavinmq.ini, with these values in force."""
    parts = [HEAD]
    for section in SECTIONS:
        lines = [
            line for each in SETTINGS if each.section == section for line in _lines(each, shipped)
        ]
        if lines:
            parts.append("\n".join([f"[{section}]", *lines]) + "\n")
    return "\n".join(parts)


def _lines(setting: Setting, values: Mapping[tuple[str, str], str]) -> list[str]:
    """The lines of a setting; none for one that does nothing, which would only cause a warning."""
    if setting.effect != "yes":
        return []
    live = " (live)" if setting.live else ""
    shipped = values.get((setting.section, setting.key))
    value = setting.default if shipped is None else shipped
    line = f"{setting.key} = {'' if setting.secret else value}".rstrip()
    return [f"; {setting.help}{live}", line if shipped is not None else f"; {line}", ""]
