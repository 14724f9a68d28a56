"""The endpoints of the HTTP API, one module for each kind of resource.

Importing this package registers all of them in `routes.ROUTES`.
"""

from lavinmq.http.api import (
    aliveness,  # noqa: F401
    channels,  # noqa: F401
    connections,  # noqa: F401
    consumers,  # noqa: F401
    federation,  # noqa: F401
    health,  # noqa: F401
    logs,  # noqa: F401
    nodes,  # noqa: F401
    overview,  # noqa: F401
    session,  # noqa: F401
    vhosts,  # noqa: F401
)
