"""Health checks in the form of RabbitMQ: `ok`, or 503 with what has failed.

Source: docs/monitoring.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lavinmq.http import certificates, cluster, health
from lavinmq.http.api import listeners
from lavinmq.http.call import Call, Reply
from lavinmq.http.errors import bad_request
from lavinmq.http.routes import ROUTES
from lavinmq.process.worker import NoThreadError, aside

CHECK: Final = "/api/health/checks/"
UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
MAX_WITHIN: Final = 36_500
"""Days: what lies further ahead is no warning."""
PROTOCOLS: Final = {
    "amqp091": "amqp", "amqp0-9-1": "amqp", "amqp0.9.1": "amqp", "amqp/ssl": "amqps",
    "prometheus": "http/prometheus",
}  # fmt: skip
"""Other names of protocols, as tools spell them."""


def _failed(reason: str, **details: Any) -> Reply:
    return Reply(503, {"status": "failed", "reason": reason, **details})


def _ok(**details: Any) -> dict[str, Any]:
    return {"status": "ok", **details}


@ROUTES.get(CHECK + "alarms", failures=(503,))
@ROUTES.get(CHECK + "local-alarms", failures=(503,))
def check_alarms(call: Call) -> Any:
    """Check that nothing holds publishers."""
    found = health.alarms(call.broker)
    if not found:
        return _ok()
    which = ", ".join(f"{each['resource']} of {each['node']}" for each in found)
    return _failed(f"There are alarms in effect: {which}", alarms=found)


@ROUTES.get(CHECK + "port-listener/:port", failures=(503,))
def check_port(call: Call) -> Any:
    """Check that something listens on a port."""
    text = call.path["port"]
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise bad_request("Port must be an integer")
    port = int(text)
    ports = [each["port"] for each in listeners.shown(call.broker) if "port" in each]
    if port in ports:
        return _ok(port=port)
    return _failed(f"No active listener on port {port}", missing=port, ports=ports)


@ROUTES.get(CHECK + "protocol-listener/:protocol", failures=(503,))
def check_protocol(call: Call) -> Any:
    """Check that something listens for a protocol."""
    given = call.path["protocol"]
    name = PROTOCOLS.get(given.lower(), given.lower())
    protocols = sorted({each["protocol"] for each in listeners.shown(call.broker)})
    if name in protocols:
        return _ok(protocol=given)
    return _failed(f"No active listener for {given}", missing=given, protocols=protocols)


@ROUTES.get(CHECK + "virtual-hosts", failures=(503,))
def check_vhosts(call: Call) -> Any:
    """Check that all virtual hosts could be loaded."""
    closed = call.broker.vhosts.closed()
    if not closed:
        return _ok()
    return _failed("Some virtual hosts are down", **{"virtual-hosts": closed})


@ROUTES.get(CHECK + "stored-files", failures=(503,))
def check_files(call: Call) -> Any:
    """Check that no stored file is known to be damaged or missing."""
    integrity = call.broker.integrity
    damaged = [] if integrity is None else [each.path for each in integrity.damages.all()]
    return _failed("Some stored files are damaged", files=damaged) if damaged else _ok()


@ROUTES.get(CHECK + "ready-to-serve-clients", failures=(503,))
def check_ready(call: Call) -> Any:
    """Check that clients are served."""
    return _ok() if call.broker.is_serving else _failed("The node does not serve clients")


@ROUTES.get(CHECK + "node-is-quorum-critical", failures=(503,))
@ROUTES.get(CHECK + "node-is-mirror-sync-critical", failures=(503,))
def check_critical(call: Call) -> Any:
    """Check that enough nodes are in sync without this one; fine where there is no cluster."""
    found = cluster.picture(call.broker)
    return _ok() if found["safe_to_restart"] else _failed(found["reasons"]["safe_to_restart"])


@ROUTES.get(CHECK + "acknowledges", failures=(503,))
def check_acknowledges(call: Call) -> Any:
    """Check that enough nodes are in sync to acknowledge; fine where there is no cluster."""
    found = cluster.picture(call.broker)
    if found["acknowledges"]:
        return _ok()
    names = ("in_sync", "min_insync_replicas", "refuses")
    return _failed(found["reasons"]["acknowledges"], **{name: found[name] for name in names})


@ROUTES.get(CHECK + "certificate-expiration/:within/:unit", failures=(503,))
async def check_certificates(call: Call) -> Any:
    """Check that no certificate of a listener expires within a time."""
    text, unit = call.path["within"], call.path["unit"]
    if unit not in UNITS:
        raise bad_request(f"Unit must be one of {', '.join(UNITS)}")
    if not text.isdecimal() or len(text) > 5 or int(text) * UNITS[unit] > MAX_WITHIN:
        raise bad_request(f"Within must be an integer, at most {MAX_WITHIN} days")
    until = datetime.now(UTC) + timedelta(days=int(text) * UNITS[unit])
    files = certificates.paths(call.broker.config)
    try:
        found = await aside(certificates.expirations, files)
    except (OSError, ValueError, NoThreadError) as error:
        return _failed(f"Cannot read a certificate: {error}")
    expired = [{"file": path, "expires_on": end.isoformat()} for path, end in found if end <= until]
    return _failed("Certificates expiring", expired=expired) if expired else _ok()
