"""The commands of lavinmqctl about the broker as a whole, and the health checks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lavinmq.cli.ctl.errors import NOT_THE_LEADER, ApiError, CtlError, UnreachableError, UsageError
from lavinmq.cli.ctl.session import Session, whole_number

WAIT_S = 60.0
POLL_S = 0.2
NOT_FOUND, SERVICE_UNAVAILABLE = 404, 503
SHOWN = ("role", "epoch", "leader", "in_sync", "min_insync_replicas", "acknowledges")
"""What is shown of a cluster as a whole."""
UNITS = ("days", "weeks", "months", "years")


def status(session: Session) -> None:
    """Show what the overview has."""
    overview = session.api.record("overview")
    totals = overview.get("object_totals", {})
    messages = overview.get("queue_totals", {})
    values = {
        "Version": overview.get("lavinmq_version"),
        "Node": overview.get("node"),
        "Uptime": overview.get("uptime"),
    }
    for name in ("connections", "channels", "consumers", "exchanges", "queues", "bindings"):
        values[name.capitalize()] = totals.get(name)
    values["Messages"] = messages.get("messages")
    values["Messages_ready"] = messages.get("messages_ready")
    values["Messages_unacked"] = messages.get("messages_unacknowledged")
    session.output.record(values)


def cluster_status(session: Session) -> None:
    """Show this node and who follows it; of a cluster who leads, and how far each node is."""
    picture = _picture(session)
    nodes, is_broker = _self(session, picture)
    if picture is not None and is_broker and picture.get("role") == "none":
        picture = None  # it is the only one
    for node in nodes:
        applications = node.get("applications") or [{}]
        values = {
            "this_node": node.get("name"),
            "version": applications[0].get("version"),
            "followers": node.get("followers", []),
        }
        if picture is None:
            session.output.record(values)
            continue
        values |= {name: picture.get(name) for name in SHOWN}
        values["leader"] = (picture.get("leader") or {}).get("id")
        reasons, following = picture.get("reasons") or {}, picture.get("following") or {}
        why = reasons.get("acknowledges") or following.get("error") or reasons.get("ready")
        if why:
            values["reason"] = why
        _show_nodes(session, values, _nodes(picture), picture.get("elections") or [])


def _picture(session: Session) -> dict[str, Any] | None:
    """The cluster; None when the broker knows of no such thing."""
    try:
        return session.api.record("cluster")
    except ApiError as error:
        if error.code != NOT_FOUND:
            raise
        return None


def _self(
    session: Session, picture: Mapping[str, Any] | None
) -> tuple[list[Mapping[str, Any]], bool]:
    """The node that is asked, and whether it is a broker: one that does not lead, and the port for
    metrics, have the cluster alone."""
    try:
        return list(session.api.rows("nodes")), True
    except ApiError as error:
        if (error.code != NOT_FOUND and error.status != NOT_THE_LEADER) or picture is None:
            raise
        me = picture.get("id")
        known = [each for each in picture.get("nodes") or [] if each.get("id") == me]
        return [{"name": me, "applications": known}], False


def _nodes(picture: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All nodes of a cluster, each with how far it is."""
    followers = {each.get("id"): each for each in picture.get("followers") or []}
    leader = (picture.get("leader") or {}).get("id")
    rows = []
    for node in picture.get("nodes") or []:
        follower = followers.get(node.get("id"))
        if node.get("id") == leader:
            state = "leader"
        elif picture.get("role") != "leader":  # who is connected only the leader knows
            state = "in sync" if node.get("in_sync") else "behind" if node.get("live") else "away"
        elif follower is None:
            state = "not connected" if node.get("live") else "away"
        elif follower.get("joining"):
            state = "joining"
        else:
            state = "in sync" if follower.get("in_sync") else "behind"
        rows.append({
            "id": node.get("id"), "uri": node.get("uri"), "version": node.get("version"),
            "state": state, "lag_in_bytes": (follower or {}).get("lag_in_bytes"),
            "lag_seconds": (follower or {}).get("lag_seconds"),
        })  # fmt: skip
    return rows


def _show_nodes(
    session: Session, values: dict[str, Any], rows: list[dict[str, Any]],
    elections: list[dict[str, Any]],
) -> None:  # fmt: skip
    output = session.output
    if output.is_json:
        output.record({**values, "nodes": rows, "elections": elections})
        return
    output.record({**values, "nodes": len(rows)})
    for row in rows:
        lags = (row["lag_in_bytes"], row["lag_seconds"])
        told = [] if None in lags else [f"{lags[0]} bytes", f"{lags[1]} s"]
        output.row([row["id"], row["uri"], row["version"], row["state"], *told])
    output.record({"elections": len(elections)})
    for each in elections:
        ended = each.get("ended")
        told = [f"ended: {ended}"] if ended else []
        output.row([_time(each.get("at")), f"epoch {each.get('epoch')}", each.get("node"), *told])


def _time(seconds: Any) -> str:
    """A moment as people read it, in UTC; a dash for what is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return "-"


def forget_cluster_node(session: Session) -> None:
    """Count a node no more that has gone for good."""
    session.api.delete("cluster", "nodes", session.arguments[0])


def transfer_leadership(session: Session) -> None:
    """Have another node lead; this one stops in order, and its service starts it anew."""
    session.api.request("POST", "/api/cluster/transfer")


def recover_cluster(session: Session) -> None:
    """Show what this node and etcd know of lost nodes; have it go on alone if that is accepted."""
    report = session.api.record("cluster", "recovery")
    seen, refusal = report.pop("seen", None), report.pop("refusal", "")
    session.output.record(report)
    if refusal:
        raise CtlError(f"This node does not go on alone: {refusal}")
    if not session.has("--i-accept-loss"):
        session.output.warn(
            f"nothing was changed. With --i-accept-loss this node goes on alone; lost is"
            f" {report.get('loss')}"
        )
        return
    order = {"accept_loss": True, "seen": seen}
    session.api.request("POST", "/api/cluster/recovery", order)


def gc_collect(session: Session) -> None:
    """Collect garbage in the broker."""
    session.api.request("POST", "/api/nodes/gc_collect")
    session.output.record(session.api.record("nodes", "gc_stats"))


def stop_app(_session: Session) -> None:
    """Do nothing: the broker and its applications are one."""


def start_app(_session: Session) -> None:
    """Do nothing."""


def wait(session: Session) -> None:
    """Wait until the broker answers; one that refuses us has answered."""
    timeout_s = session.integer("--timeout", int(WAIT_S)) or 0
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            session.api.record("overview")
            return
        except UnreachableError as error:
            problem: CtlError = error
        except ApiError as error:
            if error.status != NOT_THE_LEADER:
                raise
            problem = error
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise CtlError(f"No broker after {timeout_s} s: {problem}", problem.status)
        time.sleep(min(POLL_S, left_s))


def await_online_quorum_plus_one(session: Session) -> None:
    """Wait until enough nodes would be in sync without this one."""
    deadline = time.monotonic() + (session.integer("--timeout", int(WAIT_S)) or 0)
    while True:
        try:
            picture = session.api.record("cluster")
            if picture.get("safe_to_restart"):
                return
            problem = str((picture.get("reasons") or {}).get("safe_to_restart"))
        except UnreachableError as error:
            problem = str(error)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise CtlError(f"It may not be stopped: {problem}")
        time.sleep(min(POLL_S, left_s))


def check_alarms(session: Session) -> None:
    """No alarm is in effect in the cluster."""
    _check(session, "alarms")


def check_local_alarms(session: Session) -> None:
    """No alarm is in effect on this node."""
    _check(session, "local-alarms")


def check_port_listener(session: Session) -> None:
    """Somebody listens on the port."""
    port = whole_number("port", session.arguments[0])
    _check(session, "port-listener", str(port))


def check_protocol_listener(session: Session) -> None:
    """Somebody listens for the protocol."""
    _check(session, "protocol-listener", session.arguments[0])


def check_virtual_hosts(session: Session) -> None:
    """All virtual hosts are running."""
    _check(session, "virtual-hosts")


def check_running(session: Session) -> None:
    """Clients are served."""
    _check(session, "ready-to-serve-clients")


def check_certificate_expiration(session: Session) -> None:
    """No certificate expires that soon."""
    number, unit = session.arguments
    if unit not in UNITS:
        raise UsageError(f"Invalid argument: {unit} (one of {', '.join(UNITS)})")
    within = whole_number("number", number)
    _check(session, "certificate-expiration", str(within), unit)


def _check(session: Session, *check: str) -> None:
    """Ask for one health check. Raises: CtlError when it fails."""
    try:
        answer = session.api.record("health", "checks", *check)
    except ApiError as error:
        if error.code == SERVICE_UNAVAILABLE and error.status != NOT_THE_LEADER:
            raise CtlError(f"The check has failed: {error.reason}") from None
        raise
    session.output.record(answer)
