"""The endpoints of the HTTP API, one module for each kind of resource.

Importing this package registers all of them in `routes.ROUTES`.
"""

from lavinmq.http.api import (  # noqa: F401
    bindings,
    exchanges,
    messages,
    queues,
    session,
    vhosts,
)
