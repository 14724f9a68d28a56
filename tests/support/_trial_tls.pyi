"""TLS of a link by an object of Python, from cext/trial_tls.pyx: `make trial`."""

from typing import Any

class SocketTls:
    """What `_core.Link.use_tls` takes.

    Args: tls: has `read`, `write` and `pending`, as an ssl.SSLSocket has them; what they raise is
        how they wait and fail.
    """

    def __init__(self, tls: Any) -> None: ...
    @property
    def failure(self) -> str | None:
        """Why it has failed, empty for its orderly end; None while it lives."""

    def wire(self) -> object:
        """A capsule of what a wire reads and writes by."""
