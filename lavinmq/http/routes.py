"""The table of endpoints: method, path, what it takes; and finding one by path.

Modules of `api/` register functions with the decorators of `ROUTES`. A path is matched between
its slashes before percent-decoding, so that `%2F` is a virtual host; leading and trailing slashes
do not count. `:name` matches one segment, `*name` the rest of the path. Who may call an endpoint
stands in `access/table.py`. The OpenAPI description and the tests of roles are made from both.
Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lavinmq.http.access.table import TABLE, Row
from lavinmq.http.fields import NO_FIELDS, Fields

if TYPE_CHECKING:
    from lavinmq.http.call import Call

FORM: Final = "multipart/form-data"
Endpoint = Callable[["Call"], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter behind the question mark."""

    name: str
    doc: str
    kind: str = "string"


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    `path` as in the table, for example `/api/queues/:vhost/:name`; with a `:vhost` in it the caller
    needs an entry of permissions for that virtual host, which has to exist. `is_list`: it takes the
    parameters of lists. `fields`: of the body, None when there is none. `statuses`: of success.
    `failures`: those that not every endpoint may answer with. `silent`: those that may come without
    a body. `content`: the type of what comes with 200; JSON for GET, and else nothing, unless told.
    `document`: what the body is when the endpoint checks it itself. `file_part`: the part of a form
    that may hold it instead. `has_large_body`: it may be as long as `max_body_size`; others end at
    `max_json_size`.
    """

    method: str
    path: str
    row: Row
    endpoint: Endpoint
    fields: Fields | None = None
    query: tuple[Query, ...] = ()
    is_list: bool = False
    statuses: tuple[int, ...] = (200,)
    failures: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    content: str = ""
    document: str = ""
    file_part: str = ""
    has_large_body: bool = False

    @property
    def is_change(self) -> bool:
        """Whether it may change something, and belongs into the audit log."""
        return self.method != "GET"

    @property
    def summary(self) -> str:
        """The first line of the endpoint's docstring."""
        return (self.endpoint.__doc__ or "").strip().partition("\n")[0]


@dataclass(slots=True)
class _Node:
    """A place in the tree of paths."""

    words: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    rest: dict[str, Route] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Routes:
    """All endpoints of the API. `table`: who may call them."""

    def __init__(self, table: Mapping[str, Row] = TABLE) -> None:
        self._table = table
        self._root = _Node()
        self._all: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._all)

    def add(
        self, method: str, path: str, *, fields: Fields | None = None,
        query: tuple[Query, ...] = (), is_list: bool = False, statuses: tuple[int, ...] = (200,),
        failures: tuple[int, ...] = (), silent: tuple[int, ...] = (), content: str = "",
        document: str = "", file_part: str = "", has_large_body: bool = False,
    ) -> Callable[[Endpoint], Endpoint]:  # fmt: skip
        """Decorate the function that answers; one function may answer several paths.

        Raises: ValueError when nobody has said in `access.TABLE` who may call it.
        """
        try:
            row = self._table[f"{method} {path}"]
        except KeyError as error:
            raise ValueError(f"{method} {path} has no row in the table of access") from error

        def register(endpoint: Endpoint) -> Endpoint:
            route = Route(
                method, path, row, endpoint, fields, query, is_list, statuses, failures, silent,
                content, document, file_part, has_large_body,
            )  # fmt: skip
            self._insert(route)
            return endpoint

        return register

    def get(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """GET: look at something."""
        return self.add("GET", path, **options)

    def list(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """GET of a list, which the endpoint returns as a `listing.Listing`."""
        return self.add("GET", path, is_list=True, **options)

    def put(
        self, path: str, fields: Fields = NO_FIELDS, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """PUT with a JSON object of these fields."""
        options.setdefault("statuses", (201, 204))
        return self.add("PUT", path, fields=fields, **options)

    def post(
        self, path: str, fields: Fields = NO_FIELDS, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """POST with a JSON object of these fields."""
        return self.add("POST", path, fields=fields, **options)

    def delete(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """DELETE: take something away."""
        options.setdefault("statuses", (204,))
        return self.add("DELETE", path, **options)

    def _insert(self, route: Route) -> None:
        node = self._root
        names = []
        for word in route.path.strip("/").split("/"):
            if word.startswith("*"):
                names.append(word[1:])
                node.rest[route.method] = route
                node.names["*" + route.method] = tuple(names)
                self._all.append(route)
                return
            if word.startswith(":"):
                names.append(word[1:])
                node.parameter = node = node.parameter or _Node()
            else:
                node = node.words.setdefault(word, _Node())
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} is there already")
        node.routes[route.method] = route
        node.names[route.method] = tuple(names)
        self._all.append(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The endpoint for a path that is still percent-encoded, with its decoded parameters.

        Words of the table win over parameters. None when there is none for this method.
        """
        words = path.strip("/").split("/")
        found = _walk(self._root, method, words, 0, ())
        if found is None:
            return None
        route, names, values = found
        decoded = (unquote(value, errors="surrogateescape") for value in values)
        return route, dict(zip(names, decoded, strict=True))


def _walk(
    node: _Node, method: str, words: list[str], at: int, values: tuple[str, ...]
) -> tuple[Route, tuple[str, ...], tuple[str, ...]] | None:
    if at == len(words):
        if method in node.routes:
            return node.routes[method], node.names[method], values
        return None
    word = words[at]
    found = None
    if word in node.words:
        found = _walk(node.words[word], method, words, at + 1, values)
    if found is None and node.parameter is not None and word:
        found = _walk(node.parameter, method, words, at + 1, (*values, word))
    if found is None and method in node.rest:
        rest = "/".join(words[at:])
        return node.rest[method], node.names["*" + method], (*values, rest)
    return found


ROUTES = Routes()
"""What `api/` registers; one table, as the endpoints are the same for all brokers of a process."""
