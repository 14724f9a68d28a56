"""The cluster, and what tools of RabbitMQ ask one for, as far as this broker has an answer.

There are no flags of features to turn on, nothing deprecated in use, and no queues to move
elsewhere. Source: docs/http-api.md.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from lavinmq.arguments.names import check_label
from lavinmq.http import cluster
from lavinmq.http.access.table import Role
from lavinmq.http.call import NO_CONTENT, Call, Reply
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.http.fields import Field
from lavinmq.http.routes import ROUTES
from lavinmq.policy.parameters import Parameter

if TYPE_CHECKING:
    from lavinmq.broker import Cluster

CLUSTER_NAME: Final = "cluster_name"


@ROUTES.get("/api/cluster")
def show_cluster(call: Call) -> Any:
    """Show the cluster as the node that leads it knows it; without one, this node."""
    found = cluster.picture(call.broker)
    return found if call.has_role(Role.MONITORING) else cluster.without_places(found)


@ROUTES.delete("/api/cluster/nodes/:node", failures=(409, 503))
async def forget_node(call: Call) -> Reply:
    """Count a node no more that has gone for good: fewer nodes are most of them then."""
    try:
        why = await _ordered(call).forget(call.path["node"])
    except OSError as error:
        raise ApiError(503, "service_unavailable", str(error)) from error
    if why:
        raise ApiError(409, "conflict", why)
    return NO_CONTENT


@ROUTES.get("/api/cluster/recovery", failures=(409, 503))
async def show_recovery(call: Call) -> dict[str, Any]:
    """Show what it would mean to go on without nodes that are lost for good."""
    try:
        return await _ordered(call).recovery()
    except OSError as error:
        raise ApiError(503, "service_unavailable", str(error)) from error


@ROUTES.post(
    "/api/cluster/recovery",
    {
        "accept_loss": Field(
            "boolean", "What may be lost is accepted; has to be true", required=True
        ),
        "seen": Field("array", "That of what was shown", required=True),
    },
    statuses=(204,),
    failures=(409, 503),
)
async def recover(call: Call) -> Reply:
    """Go on without nodes that are lost for good: this one is the only one in sync then."""
    if not call.body["accept_loss"]:
        raise bad_request("Field 'accept_loss' must be true")
    try:
        why = await _ordered(call).recover(call.body["seen"])
    except OSError as error:
        raise ApiError(503, "service_unavailable", str(error)) from error
    if why:
        raise ApiError(409, "conflict", why)
    return NO_CONTENT


@ROUTES.add("POST", "/api/cluster/transfer", statuses=(204,), failures=(409, 503))
def transfer_leadership(call: Call) -> Reply:
    """Stop this node in order, so that another one leads, and start it anew as a follower."""
    why = _ordered(call).transfer()
    if why:
        raise ApiError(409, "conflict", why)
    return NO_CONTENT


def _ordered(call: Call) -> Cluster:
    """The cluster that this node leads. Raises: ApiError when it is none."""
    if call.broker.cluster is None:
        raise ApiError(409, "conflict", "This broker is no node of a cluster")
    return call.broker.cluster


@ROUTES.get("/api/cluster-name")
def show_cluster_name(call: Call) -> dict[str, Any]:
    """Show what the broker is called: the global parameter `cluster_name`, or the host."""
    parameter = call.broker.parameters.get(None, CLUSTER_NAME)
    name = None if parameter is None else parameter.value
    return {"name": name if isinstance(name, str) else socket.gethostname()}


@ROUTES.put(
    "/api/cluster-name",
    {"name": Field("string", "The new name", required=True)},
    statuses=(204,),
)
def put_cluster_name(call: Call) -> Reply:
    """Change what the broker is called."""
    try:
        check_label("Cluster", call.body["name"])
    except ValueError as error:
        raise bad_request(str(error)) from error
    call.broker.parameters.put(Parameter(None, CLUSTER_NAME, call.body["name"]))
    return NO_CONTENT


@ROUTES.get("/api/feature-flags")
@ROUTES.get("/api/deprecated-features")
@ROUTES.get("/api/deprecated-features/used")
def list_nothing(_call: Call) -> list[Any]:
    """List flags of features, or deprecated features: there are none."""
    return []


@ROUTES.add("POST", "/api/rebalance/queues", statuses=(204,))
def rebalance(_call: Call) -> Reply:
    """Spread queues over nodes: the one that leads has them all."""
    return NO_CONTENT
