"""One request to an endpoint: who asks, what for, and how endpoints answer.

Endpoints are plain functions of a `Call`, some of them coroutines. What they return is sent as JSON
with status 200, but for a `Reply` with another status, and a `listing.Listing`; `encoding.Pieces`
are JSON already.
Source: docs/http-api.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from lavinmq.arguments.bounds import TableBounds
from lavinmq.auth.standing import Standing
from lavinmq.errors import low_on_disk
from lavinmq.http import fields
from lavinmq.http.access import table as access
from lavinmq.http.access.table import Role
from lavinmq.http.errors import ApiError, access_refused, bad_request, not_found, too_large
from lavinmq.http.long_string import LongString
from lavinmq.http.routes import Route

if TYPE_CHECKING:
    from lavinmq.amqp.channel import Channel
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.sessions import Session
    from lavinmq.broker import Broker
    from lavinmq.http.clients import Client
    from lavinmq.http.handler import ApiHandler
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost


@dataclass(slots=True)
class Reply:
    """An answer with a status, headers or a content of its own; a content of None is empty."""

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)


CREATED: Final = Reply(201)
NO_CONTENT: Final = Reply(204)


class Actor:
    """The user of a request, as the methods of a virtual host want to know who asks."""

    __slots__ = ("exclusive_queues", "name", "user")

    def __init__(self, user: Identity) -> None:
        self.name = "HTTP API"
        self.user = user
        self.exclusive_queues: set[Queue] = set()


class Call:
    """A request that has been let in.

    `path`: the parameters of the route, decoded. `query`: those behind the question mark, each with
    all its values. `content`: the body, once it has come; `body`: the checked fields of the route,
    empty for a route without; `payload`: its field of that name, instead, where that is long;
    `raw`: the object as it came. `handler`: for endpoints that write
    their answer piece by piece. `connection`, `channel`: found by `owned.find`, for endpoints whose
    row says that they are owned.
    `session`: the log-in with a browser that it is part of.
    """

    def __init__(
        self, broker: Broker, user: Identity, route: Route, path: dict[str, str],
        query: Mapping[str, list[str]], headers: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.broker = broker
        self.user = user
        self.route = route
        self.path = path
        self.query = query
        self.headers = headers
        self.content: bytes | bytearray | None = None
        self.payload: LongString | None = None
        self.body: dict[str, Any] = {}
        self.raw: dict[str, Any] = {}
        self.handler: ApiHandler
        self.connection: Client
        self.channel: Channel
        self.session: Session | None = None
        self._standing = Standing(user)

    def check_rights(self) -> None:
        """Raises: ApiError 403 when the caller lacks what the table of access asks for."""
        access.check(self)

    @property
    def is_log_in_over(self) -> bool:
        """Whether the log-in counts no more: the user may be gone, or have another password."""
        if self.session is not None and self.session.is_over:
            return True
        return bool(self.broker.revocation.why_not(self._standing))

    def is_allowed_still(self) -> bool:
        """Whether the caller would be let in now: for long answers."""
        try:
            self.check_rights()
        except ApiError:
            return False
        return not self.is_log_in_over

    def check_still(self) -> None:
        """Raises: ApiError 403 when the caller would not be let in now: before something is done
        for which others were served meanwhile."""
        if not self.is_allowed_still():
            raise access_refused()

    def check_room(self) -> None:
        """Raises: LowOnDiskError while publishers are held, too: before something is added."""
        if self.broker.loop.is_held:
            raise low_on_disk()

    def take_payload(self, payload: LongString) -> None:
        """Parse the body but for its payload. Raises: ApiError 400, 413 for another long string."""
        assert self.content is not None
        mark = secrets.token_hex(8)
        self.raw = parsed_object(payload.replaced(mark.encode()), is_as_sent=False)
        if self.raw.get("payload") != mark:
            raise too_large(self.broker.config.max_json_size)
        self.payload, self.content = payload, b""
        self.body = fields.check(self.route.fields or {}, self.raw)

    def parse_body(self) -> None:
        """Check the body against the fields of the route. Raises: ApiError 400."""
        if self.route.fields is None:
            return
        if self.content is None and not any(each.required for each in self.route.fields.values()):
            self.content = b""
        self.raw = parsed_object(self.content)
        self.body = fields.check(self.route.fields, self.raw)

    def has_role(self, role: Role) -> bool:
        """Whether the caller has one of the tags of a role."""
        return any(self.user.has_tag(tag) for tag in role.value)

    def may_see(self, vhost: str) -> bool:
        """Whether a virtual host exists and the caller may address it."""
        if vhost not in self.broker.vhosts:
            return False
        return self.user.has_tag("administrator") or self.user.has_vhost(vhost)

    @property
    def is_vhost_gone(self) -> bool:
        """Whether the path has a virtual host that is not there any more."""
        name = self.path.get("vhost")
        return name is not None and name not in self.broker.vhosts

    @property
    def vhost(self) -> VHost:
        """The virtual host of the path."""
        return self.broker.vhosts[self.path["vhost"]]

    @property
    def actor(self) -> Actor:
        """Who asks, for the methods of a virtual host."""
        return Actor(self.user)

    @property
    def table_bounds(self) -> TableBounds:
        """How much a table of arguments in the body may hold."""
        return TableBounds.of(self.broker.config)

    def visible_vhosts(self) -> list[VHost]:
        """The virtual hosts whose resources lists over all of them show."""
        is_all = self.has_role(Role.MONITORING)
        return [
            vhost
            for name, vhost in self.broker.vhosts.items()
            if is_all or self.user.has_vhost(name)
        ]

    def flag(self, name: str) -> bool:
        """Whether a parameter behind the question mark is true.

        Raises: ApiError 400 for what is neither true nor false: who asks for care has it.
        """
        values = self.query.get(name)
        if not values:
            return False
        found = fields.to_boolean(values[-1])
        if found is None:
            raise bad_request(f"Parameter '{name}' must be a boolean")
        return found

    def number(self, name: str) -> int | None:
        """An integer behind the question mark. Raises: ApiError 400."""
        values = self.query.get(name)
        if not values:
            return None
        number = fields.to_integer(values[-1])
        if number is None or not -(2**63) <= number < 2**63:
            raise bad_request(f"Parameter '{name}' must be an integer of 64 bits")
        return number


async def completed(start: Callable[[Callable[[], None]], object]) -> None:
    """Wait until what is given to `start` is called: `VHost.when_synced`, `Loop.after_sync`."""
    done = asyncio.get_running_loop().create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    start(finish)
    await done


def found(thing: Any, kind: str, name: str, vhost: str | None = None) -> Any:
    """What was looked up. Raises: ApiError 404 for None, which says what there is not."""
    if thing is None:
        where = "" if vhost is None else f" in vhost '{vhost}'"
        raise not_found(f"Not Found: there is no {kind} '{name}'{where}")
    return thing


def parsed_object(content: bytes | bytearray | None, *, is_as_sent: bool = True) -> dict[str, Any]:
    """A body as a JSON object; an empty one counts as `{}`. Raises: ApiError 400, with the place of
    a slip if it is as it was sent."""
    if content is None:
        raise bad_request("Request body required")
    if not content or content.isspace():
        return {}
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        # Of what is no JSON at all, or ends too soon, LavinMQ's own words say as much.
        if not is_as_sent or not 0 < error.pos < len(error.doc):
            raise bad_request("Malformed JSON") from None
        where = f"line {error.lineno}, column {error.colno}"
        raise bad_request(f"Malformed JSON at {where}") from None
    if not isinstance(value, dict):
        raise bad_request("Request body has to be a JSON object")
    return value
