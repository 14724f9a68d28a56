"""The commands of lavinmqctl that export and import definitions by way of the broker."""

from __future__ import annotations

import sys

from lavinmq.cli.ctl.errors import CtlError
from lavinmq.cli.ctl.session import Session

HOW = ("--dry-run", "--skip-errors")


def export_definitions(session: Session) -> None:
    """Print what the broker exports, as it is."""
    from lavinmq.cli.ctl.api import path_of

    answer = session.api.request("GET", path_of("definitions", *_where(session)))
    sys.stdout.write(answer.body.decode("utf-8", "replace").rstrip("\n") + "\n")


def import_definitions(session: Session) -> None:
    """Import a file, or tell what an import would do."""
    from lavinmq.cli.ctl.api import path_of

    file = session.arguments[0]
    content = _read(file)
    if not content.strip():
        # The API takes it for an empty document; here it is what an export that failed has left.
        name = "Standard input" if file == "-" else file
        raise CtlError(f"{name} is empty: there is nothing to import")
    path = path_of("definitions", *_where(session))
    how = [option[2:].replace("-", "_") for option in HOW if session.has(option)]
    if how:
        path += "?" + "&".join(f"{name}=true" for name in how)
    answer = session.api.request("POST", path, content)
    if answer.body.strip(b" \r\n{}"):
        _show(session, answer.body)


def _show(session: Session, body: bytes) -> None:
    from lavinmq.cli.ctl.session import json_value

    report = json_value("answer", body.decode("utf-8", "replace"))
    if session.output.is_json or not isinstance(report, dict):
        session.output.json(report)
        return
    for key, value in report.items():
        is_list = isinstance(value, list)
        session.output.record({key: len(value) if is_list else value})
        for each in value if is_list else ():
            session.output.row(each.values() if isinstance(each, dict) else (each,))


def _where(session: Session) -> tuple[str, ...]:
    return (session.vhost,) if session.has_vhost else ()


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CtlError(f"Cannot read {path}: {error.strerror}") from None
