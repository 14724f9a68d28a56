"""The endpoints of the HTTP API, one module for each kind of resource.

Importing this package registers all of them in `routes.ROUTES`.
"""

from lavinmq.http.api import (  # noqa: F401
    advice,
    aliveness,
    bindings,
    browse,
    channels,
    chosen,
    cluster,
    connections,
    consumers,
    definitions,
    exchanges,
    explain,
    federation,
    health,
    limits,
    live,
    logs,
    messages,
    mqtt,
    nodes,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    session,
    shovels,
    streams,
    trace,
    unacked,
    users,
    vhosts,
)
