"""Options of the format `lavinmq`: text in, checked values out; nothing of pyspark.

A mistyped option must not read from the wrong place without a word: names are checked against the
known ones, values where they are used. Every error is one line that names the option.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

AMQP_PORT = 5672
AMQPS_PORT = 5671
HTTP_PORT = 15672


class OptionError(ValueError):
    """An option that cannot be used; the text is one line that names it."""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker to try: where it listens, and whether it speaks TLS there."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the broker, for AMQP in tasks and for HTTP while planning. Picklable.

    `nodes` are tried in order. The password is in `password`, or in the first line of the file
    `password_file`, read where the connection is made; it is never part of `repr`.
    """

    nodes: tuple[Node, ...]
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    password_file: str | None = None
    http_url: str | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    ssl_verify: bool = True
    client_name: str = "spark"

    def secret(self) -> str:
        """Return the password. Raises OptionError when its file cannot be read."""
        if self.password_file is None:
            return self.password
        try:
            text = Path(self.password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise OptionError(f"passwordFile {self.password_file}: {reason}") from None
        return text.splitlines()[0] if text else ""

    def __str__(self) -> str:
        """Hosts and vhost, for error texts."""
        return f"{','.join(map(str, self.nodes))} vhost {self.vhost}"
