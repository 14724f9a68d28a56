"""The commands of lavinmqctl about shovels and federation upstreams, which are parameters."""

from __future__ import annotations

from typing import Any

from lavinmq.cli.ctl.errors import ApiError, CtlError, UsageError
from lavinmq.cli.ctl.session import Session

SHOVEL_TEXTS = ("--src-uri", "--dest-uri", "--src-queue", "--src-exchange", "--src-exchange-key",
                "--dest-queue", "--dest-exchange", "--dest-exchange-key")  # fmt: skip
FEDERATION_TEXTS = ("--uri", "--consumer-tag", "--exchange", "--queue")
NOT_FOUND = 404
ACK_MODES = ("on-confirm", "on-publish", "no-ack")


def list_shovels(session: Session) -> None:
    """List shovels, of one virtual host if one was named."""
    where = (session.vhost,) if session.has_vhost else ()
    rows = session.api.rows("shovels", *where)
    session.output.table("shovels", ("name", "vhost", "state", "error"), rows)


def add_shovel(session: Session) -> None:
    """Add a shovel."""
    if not (session.has("--src-queue") or session.has("--src-exchange")):
        raise UsageError("--src-queue or --src-exchange is needed")
    value = _texts(session, SHOVEL_TEXTS)
    value["src-prefetch-count"] = session.integer("--src-prefetch-count", 1000)
    after = session.options.get("--src-delete-after", "never")
    value["src-delete-after"] = int(after) if after.isdecimal() else after
    value["reconnect-delay"] = session.integer("--reconnect-delay", 5)
    value["ack-mode"] = _ack_mode(session)
    _put(session, "shovel", value)


def delete_shovel(session: Session) -> None:
    """Delete a shovel."""
    session.api.delete("parameters", "shovel", session.vhost, session.arguments[0])


def pause_shovel(session: Session) -> None:
    """Stop a shovel, whether it runs or waits for its next try."""
    _steer(session, "pause", force="true")


def resume_shovel(session: Session) -> None:
    """Let a paused shovel go on."""
    _steer(session, "resume")


def list_federations(session: Session) -> None:
    """List the upstreams of a virtual host."""
    rows = session.api.rows("parameters", "federation-upstream", session.vhost)
    title = f"federation upstreams of vhost {session.vhost}"
    session.output.table(title, ("name", "component"), rows)


def add_federation(session: Session) -> None:
    """Add an upstream."""
    value = _texts(session, FEDERATION_TEXTS)
    for option, default in (("--expires", None), ("--message-ttl", None), ("--max-hops", 1),
                            ("--prefetch-count", 1000), ("--reconnect-delay", 1)):  # fmt: skip
        number = session.integer(option, default)
        if number is not None:
            value[option[2:]] = number
    value["ack-mode"] = _ack_mode(session)
    _put(session, "federation-upstream", value)


def delete_federation(session: Session) -> None:
    """Delete an upstream."""
    session.api.delete("parameters", "federation-upstream", session.vhost, session.arguments[0])


def _steer(session: Session, action: str, **query: str) -> None:
    """Tell a shovel what to do. Raises: CtlError, which names one that is not there."""
    name = session.arguments[0]
    try:
        session.api.put("shovels", session.vhost, name, action, **query)
    except ApiError as error:
        if error.code == NOT_FOUND and not error.reason:  # a shovel's refusals say nothing
            where = f"in the virtual host {session.vhost!r}"
            raise CtlError(f"There is no shovel {name!r} {where}") from None
        raise


def _texts(session: Session, options: tuple[str, ...]) -> dict[str, Any]:
    return {name[2:]: session.options[name] for name in options if session.has(name)}


def _ack_mode(session: Session) -> str:
    mode = session.options.get("--ack-mode", "on-confirm")
    if mode not in ACK_MODES:
        raise UsageError(f"Invalid value of --ack-mode: one of {', '.join(ACK_MODES)}")
    return mode


def _put(session: Session, component: str, value: dict[str, Any]) -> None:
    name = session.arguments[0]
    session.api.put("parameters", component, session.vhost, name, body={"value": value})
