"""Who may use which endpoint: the one table of method, path, role and what is needed of the object.

`ROUTES` refuses an endpoint that has no row here. What a row asks is checked before a body is read
(`check`), and for connections once they are found (`owned.py`), in one place for all endpoints. A
path with `:vhost` in it also asks for an entry of permissions in that virtual host, which has to
exist; administrators need none. What a body names, such as an exchange for dead letters, is asked
about by the functions that AMQP uses (`vhost/rights.py`). docs/http-api.md and the tests of roles
are made from the table. Source: decision 0041, docs/authentication.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from lavinmq.http.errors import access_refused
from lavinmq.vhost import rights

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.http.call import Call

DEFAULT: Final = "amq.default"
"""What paths call the default exchange."""


class Role(Enum):
    """Who may call an endpoint; the value are the tags, one of which is needed."""

    ANY = ("administrator", "monitoring", "management", "policymaker", "impersonator")
    MANAGEMENT = ("administrator", "monitoring", "management", "policymaker")
    """To look at what is in a virtual host."""
    CHANGE = ("administrator", "management", "policymaker")
    """To change it: `monitoring` only looks."""
    POLICY = ("administrator", "policymaker")
    MONITORING = ("administrator", "monitoring")
    ADMINISTRATOR = ("administrator",)


class Owned(Enum):
    """What is its user's own: an administrator may change it too, who monitors may see it. The
    value says it in the documentation."""

    CONNECTION = "own connection"
    CHANNEL = "own channel"
    CONSUMER = "own consumer"
    USERNAME = "own name"


@dataclass(frozen=True, slots=True)
class Needed:
    """A permission for something that the path names.

    Args: parameter: of the path, without one: the default exchange; thing: "queue" or "exchange";
        verb: what the endpoint does to it, for the refusal.
    """

    right: rights.Right
    parameter: str
    thing: str
    verb: str = ""

    def check(self, user: Identity, vhost: str, path: dict[str, str]) -> None:
        """Raises: ApiError 403."""
        name = path[self.parameter] if self.parameter else ""
        if self.thing == "exchange" and name == DEFAULT:
            name = ""
        if rights.holds(user, self.right, vhost, name):
            return
        if not self.verb:
            raise access_refused(
                f"User doesn't have {self.right} permissions to {self.thing} '{name}'"
            )
        raise access_refused(
            f"User doesn't have permissions to {self.verb} {self.thing} '{name or DEFAULT}'"
        )

    def __str__(self) -> str:
        return f"{self.right} `{':' + self.parameter if self.parameter else DEFAULT}`"


@dataclass(frozen=True, slots=True)
class Row:
    """What one endpoint asks for."""

    role: Role
    needs: tuple[Needed, ...]
    owned: Owned | None

    def __str__(self) -> str:
        return ", ".join([*map(str, self.needs), *([self.owned.value] if self.owned else [])])


def check(call: Call) -> None:
    """Whether the caller may use the endpoint on what the path names.

    Raises: ApiError 403, the first that is missing: role, virtual host, permissions.
    """
    row, vhost = call.route.row, call.path.get("vhost")
    if not call.has_role(row.role):
        raise access_refused()
    if vhost is None:
        return
    if not call.may_see(vhost):
        is_missing = call.user.has_tag("administrator")  # who may see them all may know
        why = "there is no vhost" if is_missing else "no permissions in vhost"
        raise access_refused(f"Access refused: {why} '{vhost}'")
    for needed in row.needs:
        needed.check(call.user, vhost, call.path)


def _row(role: Role, *needs: Needed | Owned) -> Row:
    owned = next((each for each in needs if isinstance(each, Owned)), None)
    return Row(role, tuple(each for each in needs if isinstance(each, Needed)), owned)


def _queue(right: rights.Right, verb: str) -> Needed:
    return Needed(right, "name", "queue", verb)


def _exchange(right: rights.Right, verb: str) -> Needed:
    return Needed(right, "name", "exchange", verb)


SOURCE: Final = Needed("read", "source", "exchange")
TO_QUEUE: Final = SOURCE, Needed("write", "queue", "queue")
TO_EXCHANGE: Final = SOURCE, Needed("write", "destination", "exchange")
READ_STREAM: Final = Needed("read", "name", "stream", "read")
WRITE_DEFAULT: Final = Needed("write", "", "exchange", "write")

TABLE: Final[dict[str, Row]] = {
    "GET /api/advice": _row(Role.ANY),
    "GET /api/aliveness-test/:vhost": _row(Role.ANY),
    "PUT /api/auth/hash_password": _row(Role.ANY),
    "POST /api/backup": _row(Role.ADMINISTRATOR),
    "DELETE /api/cluster/nodes/:node": _row(Role.ADMINISTRATOR),
    "GET /api/cluster/recovery": _row(Role.ADMINISTRATOR),
    "POST /api/cluster/recovery": _row(Role.ADMINISTRATOR),
    "POST /api/cluster/transfer": _row(Role.ADMINISTRATOR),
    "GET /api/bindings": _row(Role.ANY),
    "GET /api/bindings/:vhost": _row(Role.MANAGEMENT),
    "GET /api/bindings/:vhost/e/:source/e/:destination": _row(Role.MANAGEMENT),
    "POST /api/bindings/:vhost/e/:source/e/:destination": _row(Role.CHANGE, *TO_EXCHANGE),
    "DELETE /api/bindings/:vhost/e/:source/e/:destination/*props": _row(Role.CHANGE, *TO_EXCHANGE),
    "GET /api/bindings/:vhost/e/:source/e/:destination/*props": _row(Role.MANAGEMENT),
    "GET /api/bindings/:vhost/e/:source/q/:queue": _row(Role.MANAGEMENT),
    "POST /api/bindings/:vhost/e/:source/q/:queue": _row(Role.CHANGE, *TO_QUEUE),
    "DELETE /api/bindings/:vhost/e/:source/q/:queue/*props": _row(Role.CHANGE, *TO_QUEUE),
    "GET /api/bindings/:vhost/e/:source/q/:queue/*props": _row(Role.MANAGEMENT),
    "GET /api/channels": _row(Role.ANY),
    "GET /api/channels/:name": _row(Role.ANY),
    "PUT /api/channels/:name": _row(Role.CHANGE, Owned.CHANNEL),
    "GET /api/cluster": _row(Role.ANY),
    "GET /api/cluster-name": _row(Role.ANY),
    "PUT /api/cluster-name": _row(Role.ADMINISTRATOR),
    "GET /api/integrity": _row(Role.MONITORING),
    "POST /api/integrity/repair": _row(Role.ADMINISTRATOR),
    "POST /api/integrity/verify": _row(Role.ADMINISTRATOR),
    "GET /api/connections": _row(Role.ANY),
    "DELETE /api/connections/:name": _row(Role.CHANGE, Owned.CONNECTION),
    "GET /api/connections/:name": _row(Role.ANY, Owned.CONNECTION),
    "GET /api/connections/:name/channels": _row(Role.ANY, Owned.CONNECTION),
    "DELETE /api/connections/username/:username": _row(Role.CHANGE, Owned.USERNAME),
    "GET /api/connections/username/:username": _row(Role.ANY),
    "GET /api/consumers": _row(Role.ANY),
    "GET /api/consumers/:vhost": _row(Role.MANAGEMENT),
    "DELETE /api/consumers/:vhost/:connection/:channel/:consumer_tag": _row(
        Role.CHANGE, Owned.CONSUMER
    ),
    "GET /api/definitions": _row(Role.ADMINISTRATOR),
    "POST /api/definitions": _row(Role.ADMINISTRATOR),
    "GET /api/definitions/:vhost": _row(Role.ADMINISTRATOR),
    "POST /api/definitions/:vhost": _row(Role.ADMINISTRATOR),
    "POST /api/definitions/:vhost/upload": _row(Role.ADMINISTRATOR),
    "POST /api/definitions/upload": _row(Role.ADMINISTRATOR),
    "GET /api/deprecated-features": _row(Role.ANY),
    "GET /api/deprecated-features/used": _row(Role.ANY),
    "GET /api/exchanges": _row(Role.ANY),
    "GET /api/exchanges/:vhost": _row(Role.MANAGEMENT),
    "DELETE /api/exchanges/:vhost/:name": _row(Role.CHANGE, _exchange("configure", "delete")),
    "GET /api/exchanges/:vhost/:name": _row(Role.MANAGEMENT),
    "POST /api/exchanges/:vhost/:name/trace": _row(Role.CHANGE, _exchange("read", "read")),
    "PUT /api/exchanges/:vhost/:name": _row(Role.CHANGE, _exchange("configure", "declare")),
    "GET /api/exchanges/:vhost/:name/bindings/destination": _row(Role.MANAGEMENT),
    "GET /api/exchanges/:vhost/:name/bindings/source": _row(Role.MANAGEMENT),
    "GET /api/exchanges/:vhost/:name/delayed": _row(Role.MANAGEMENT, _exchange("read", "read")),
    "POST /api/exchanges/:vhost/:name/publish": _row(Role.CHANGE, _exchange("write", "write")),
    "GET /api/extensions": _row(Role.ANY),
    "GET /api/feature-flags": _row(Role.ANY),
    "GET /api/federation-links": _row(Role.ANY),
    "GET /api/federation-links/:vhost": _row(Role.ANY),
    "PUT /api/federation-links/:vhost/:upstream/:type/:name/pause": _row(Role.POLICY),
    "PUT /api/federation-links/:vhost/:upstream/:type/:name/resume": _row(Role.POLICY),
    "PUT /api/federation-links/:vhost/:upstream/pause": _row(Role.POLICY),
    "PUT /api/federation-links/:vhost/:upstream/resume": _row(Role.POLICY),
    "GET /api/global-parameters": _row(Role.POLICY),
    "DELETE /api/global-parameters/:name": _row(Role.ADMINISTRATOR),
    "GET /api/global-parameters/:name": _row(Role.POLICY),
    "PUT /api/global-parameters/:name": _row(Role.ADMINISTRATOR),
    "GET /api/health/checks/acknowledges": _row(Role.ANY),
    "GET /api/health/checks/alarms": _row(Role.ANY),
    "GET /api/health/checks/certificate-expiration/:within/:unit": _row(Role.ANY),
    "GET /api/health/checks/local-alarms": _row(Role.ANY),
    "GET /api/health/checks/node-is-mirror-sync-critical": _row(Role.ANY),
    "GET /api/health/checks/node-is-quorum-critical": _row(Role.ANY),
    "GET /api/health/checks/port-listener/:port": _row(Role.ANY),
    "GET /api/health/checks/protocol-listener/:protocol": _row(Role.ANY),
    "GET /api/health/checks/ready-to-serve-clients": _row(Role.ANY),
    "GET /api/health/checks/stored-files": _row(Role.ANY),
    "GET /api/health/checks/virtual-hosts": _row(Role.ANY),
    "GET /api/live": _row(Role.ANY),
    "GET /api/livelog": _row(Role.ADMINISTRATOR),
    "GET /api/logs": _row(Role.ADMINISTRATOR),
    "GET /api/mqtt": _row(Role.ANY),
    "GET /api/mqtt/sessions": _row(Role.ANY),
    "GET /api/mqtt/sessions/:vhost": _row(Role.MANAGEMENT),
    "GET /api/mqtt/sessions/:vhost/:client_id": _row(Role.MANAGEMENT),
    "GET /api/mqtt/sessions/:vhost/:client_id/subscriptions": _row(Role.MANAGEMENT),
    "GET /api/mqtt/shared-subscriptions": _row(Role.ANY),
    "GET /api/nodes": _row(Role.ANY),
    "GET /api/nodes/:name": _row(Role.ANY),
    "POST /api/nodes/:name/gc_collect": _row(Role.ADMINISTRATOR),
    "POST /api/nodes/gc_collect": _row(Role.ADMINISTRATOR),
    "GET /api/nodes/gc_stats": _row(Role.ADMINISTRATOR),
    "GET /api/operator-policies": _row(Role.POLICY),
    "GET /api/operator-policies/:vhost": _row(Role.POLICY),
    "DELETE /api/operator-policies/:vhost/:name": _row(Role.ADMINISTRATOR),
    "GET /api/operator-policies/:vhost/:name": _row(Role.POLICY),
    "PUT /api/operator-policies/:vhost/:name": _row(Role.ADMINISTRATOR),
    "GET /api/overview": _row(Role.ANY),
    "GET /api/parameters": _row(Role.POLICY),
    "GET /api/parameters/:component": _row(Role.POLICY),
    "GET /api/parameters/:component/:vhost": _row(Role.POLICY),
    "DELETE /api/parameters/:component/:vhost/:name": _row(Role.POLICY),
    "GET /api/parameters/:component/:vhost/:name": _row(Role.POLICY),
    "PUT /api/parameters/:component/:vhost/:name": _row(Role.POLICY),
    "GET /api/permissions": _row(Role.ADMINISTRATOR),
    "DELETE /api/permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "GET /api/permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "GET /api/permissions/:vhost/:user/effective": _row(Role.ADMINISTRATOR),
    "PUT /api/permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "GET /api/policies": _row(Role.POLICY),
    "GET /api/policies/:vhost": _row(Role.POLICY),
    "DELETE /api/policies/:vhost/:name": _row(Role.POLICY),
    "GET /api/policies/:vhost/:name": _row(Role.POLICY),
    "PUT /api/policies/:vhost/:name": _row(Role.POLICY),
    "GET /api/policy-matches/:vhost": _row(Role.POLICY),
    "GET /api/queues": _row(Role.ANY),
    "GET /api/queues/:vhost": _row(Role.MANAGEMENT),
    "DELETE /api/queues/:vhost/:name": _row(Role.CHANGE, _queue("configure", "delete")),
    "GET /api/queues/:vhost/:name": _row(Role.MANAGEMENT),
    "PUT /api/queues/:vhost/:name": _row(Role.CHANGE, _queue("configure", "declare")),
    "GET /api/queues/:vhost/:name/bindings": _row(Role.MANAGEMENT),
    "POST /api/queues/:vhost/:name/browse": _row(Role.CHANGE, _queue("read", "read")),
    "POST /api/queues/:vhost/:name/browse/copy": _row(
        Role.CHANGE, _queue("read", "read"), WRITE_DEFAULT
    ),
    "POST /api/queues/:vhost/:name/browse/delete": _row(Role.CHANGE, _queue("read", "read")),
    "POST /api/queues/:vhost/:name/browse/move": _row(
        Role.CHANGE, _queue("read", "read"), WRITE_DEFAULT
    ),
    "DELETE /api/queues/:vhost/:name/contents": _row(Role.CHANGE, _queue("read", "read")),
    "POST /api/queues/:vhost/:name/get": _row(Role.CHANGE, _queue("read", "read")),
    "POST /api/queues/:vhost/:name/move": _row(Role.CHANGE, _queue("read", "read"), WRITE_DEFAULT),
    "PUT /api/queues/:vhost/:name/pause": _row(Role.CHANGE, _queue("configure", "pause")),
    "PUT /api/queues/:vhost/:name/restart": _row(Role.CHANGE, _queue("configure", "restart")),
    "PUT /api/queues/:vhost/:name/resume": _row(Role.CHANGE, _queue("configure", "resume")),
    "POST /api/queues/:vhost/:name/stream": _row(Role.MANAGEMENT, READ_STREAM),
    "GET /api/queues/:vhost/:name/stream/consumers": _row(Role.MANAGEMENT),
    "DELETE /api/queues/:vhost/:name/stream/consumers/:consumer": _row(Role.CHANGE, READ_STREAM),
    "PUT /api/queues/:vhost/:name/stream/consumers/:consumer": _row(Role.CHANGE, READ_STREAM),
    "GET /api/queues/:vhost/:name/stream/offset": _row(Role.MANAGEMENT),
    "GET /api/queues/:vhost/:name/stream/raw": _row(Role.MANAGEMENT, READ_STREAM),
    "GET /api/queues/:vhost/:name/stream/segments": _row(Role.MANAGEMENT),
    "POST /api/queues/:vhost/:name/trace": _row(Role.CHANGE, _queue("read", "read")),
    "GET /api/queues/:vhost/:name/unacked": _row(Role.MANAGEMENT),
    "POST /api/rebalance/queues": _row(Role.ADMINISTRATOR),
    "GET /api/shovels": _row(Role.POLICY),
    "GET /api/shovels/:vhost": _row(Role.POLICY),
    "GET /api/shovels/:vhost/:name": _row(Role.POLICY),
    "PUT /api/shovels/:vhost/:name/pause": _row(Role.POLICY),
    "PUT /api/shovels/:vhost/:name/resume": _row(Role.POLICY),
    "GET /api/topic-permissions": _row(Role.ADMINISTRATOR),
    "GET /api/topic-permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "PUT /api/topic-permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "DELETE /api/topic-permissions/:vhost/:user": _row(Role.ADMINISTRATOR),
    "DELETE /api/topic-permissions/:vhost/:user/:exchange": _row(Role.ADMINISTRATOR),
    "GET /api/user-limits": _row(Role.ADMINISTRATOR),
    "GET /api/user-limits/:user": _row(Role.ADMINISTRATOR),
    "DELETE /api/user-limits/:user/:limit": _row(Role.ADMINISTRATOR),
    "PUT /api/user-limits/:user/:limit": _row(Role.ADMINISTRATOR),
    "GET /api/users": _row(Role.ADMINISTRATOR),
    "DELETE /api/users/:user": _row(Role.ADMINISTRATOR),
    "GET /api/users/:user": _row(Role.ADMINISTRATOR),
    "PUT /api/users/:user": _row(Role.ADMINISTRATOR),
    "GET /api/users/:user/permissions": _row(Role.ADMINISTRATOR),
    "GET /api/users/:user/topic-permissions": _row(Role.ADMINISTRATOR),
    "POST /api/users/bulk-delete": _row(Role.ADMINISTRATOR),
    "GET /api/users/without-permissions": _row(Role.ADMINISTRATOR),
    "GET /api/vhost-limits": _row(Role.ANY),
    "GET /api/vhost-limits/:vhost": _row(Role.MANAGEMENT),
    "DELETE /api/vhost-limits/:vhost/:limit": _row(Role.ADMINISTRATOR),
    "PUT /api/vhost-limits/:vhost/:limit": _row(Role.ADMINISTRATOR),
    "GET /api/vhosts": _row(Role.ANY),
    "PUT /api/vhosts/:name": _row(Role.ADMINISTRATOR),
    "DELETE /api/vhosts/:vhost": _row(Role.ADMINISTRATOR),
    "GET /api/vhosts/:vhost": _row(Role.MANAGEMENT),
    "GET /api/vhosts/:vhost/channels": _row(Role.MANAGEMENT),
    "GET /api/vhosts/:vhost/connections": _row(Role.MANAGEMENT),
    "GET /api/vhosts/:vhost/permissions": _row(Role.ADMINISTRATOR),
    "GET /api/vhosts/:vhost/topic-permissions": _row(Role.ADMINISTRATOR),
    "GET /api/whoami": _row(Role.ANY),
}
