"""The endpoints of the HTTP API, one module for each kind of resource.

Importing this package registers all of them in `routes.ROUTES`.
"""

from lavinmq.http.api import (  # noqa: F401
    aliveness,
    bindings,
    channels,
    connections,
    consumers,
    exchanges,
    federation,
    health,
    logs,
    messages,
    nodes,
    overview,
    queues,
    session,
    vhosts,
)
