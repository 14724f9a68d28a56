"""A client of the management API for tests: JSON in, status and JSON out."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote


class Managed(Protocol):
    """A broker with such an API."""

    @property
    def host(self) -> str:
        """Where it listens."""

    @property
    def http_port(self) -> int:
        """And on which port."""


class Answer(NamedTuple):
    """An answer; the headers' names are lower case."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The content as JSON. Raises ValueError when it is none."""
        return json.loads(self.content)


class Api:
    """The management API of a broker, as one user; every request has a connection of its own."""

    def __init__(self, broker: Managed, user: str = "guest", password: str = "") -> None:
        self.broker = broker
        given = f"{user}:{password or (user if user == 'guest' else f'{user}-pw')}"
        self.login = {"Authorization": "Basic " + base64.b64encode(given.encode()).decode()}

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send a request; `body` as JSON, or `raw` as it is."""
        sent = dict(self.login)
        content = raw if body is None else json.dumps(body).encode()
        if content is not None:
            sent["Content-Type"] = "application/json"
        elif method in ("PUT", "POST"):
            sent["Content-Length"] = "0"
        connection = http.client.HTTPConnection(
            self.broker.host, self.broker.http_port, timeout=30
        )  # fmt: skip
        try:
            connection.request(method, path, body=content, headers=sent | (headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a resource. Raises AssertionError for another status than 200."""
        answer = self("GET", path, **options)
        assert answer.status == 200, (answer.status, answer.content)
        return answer.json

    def as_user(self, name: str, tags: str, **permissions: tuple[str, str, str]) -> Api:
        """Create a user with permissions (configure, write, read) by vhost; return its API."""
        assert (
            self("PUT", f"/api/users/{name}", {"password": f"{name}-pw", "tags": tags}).status < 300
        )
        for vhost, (configure, write, read) in permissions.items():
            rights = {"configure": configure, "write": write, "read": read}
            path = f"/api/permissions/{quote(vhost, safe='')}/{name}"
            assert self("PUT", path, rights).status < 300
        return Api(self.broker, name)
