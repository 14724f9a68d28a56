"""The stream of changes that drives a page: what it shows, told as it becomes another.

Source: decision 0081, docs/http-api.md.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from lavinmq.http.call import Call
from lavinmq.http.errors import bad_request
from lavinmq.http.live import Live, Stream, View
from lavinmq.http.routes import ROUTES, Query

MAX_VIEWS: Final = 8
MAX_VIEW: Final = 2048
MAX_TAB: Final = 64
RATES_S: Final = (1, 60)
LISTS: Final = (
    "bindings", "channels", "connections", "consumers", "exchanges", "federation-links",
    "operator-policies", "parameters", "permissions", "policies", "queues", "shovels", "users",
    "vhost-limits", "vhosts",
)  # fmt: skip
SHOWN: Final = frozenset(
    [f"/api/{name}" for name in LISTS]
    + [f"/api/{name}/:vhost" for name in LISTS]
    + [
        "/api/advice", "/api/overview", "/api/nodes", "/api/channels/:name",
        "/api/connections/:name", "/api/connections/:name/channels",
        "/api/exchanges/:vhost/:name", "/api/exchanges/:vhost/:name/bindings/source",
        "/api/exchanges/:vhost/:name/bindings/destination", "/api/parameters/:component",
        "/api/parameters/:component/:vhost", "/api/queues/:vhost/:name",
        "/api/queues/:vhost/:name/bindings", "/api/queues/:vhost/:name/stream/consumers",
        "/api/queues/:vhost/:name/unacked", "/api/users/:user", "/api/users/:user/permissions",
        "/api/vhosts/:vhost/channels", "/api/vhosts/:vhost/connections",
        "/api/vhosts/:vhost/permissions",
    ]
)  # fmt: skip
"""Paths that may be watched: those that pages show, whose answers are made without doing anything
else."""


@ROUTES.get(
    "/api/live", failures=(503,), content="text/event-stream",
    query=(
        Query("view", "A path below /api/ with its parameters; up to eight of them"),
        Query("rate", "Seconds between two looks, 1 to 60; 5 unless told", "integer"),
        Query("tab", "Names the reader: an older stream of the same one ends"),
    ),
)  # fmt: skip
async def follow(call: Call) -> None:
    """Follow what lists and objects show, as server-sent events, whenever it changes."""
    texts = list(dict.fromkeys(call.query.get("view", [])))
    if not 1 <= len(texts) <= MAX_VIEWS:
        raise bad_request(f"Parameter 'view' is needed, {MAX_VIEWS} times at most")
    rate_s = call.number("rate")
    rate_s = 5 if rate_s is None else rate_s
    if not RATES_S[0] <= rate_s <= RATES_S[1]:
        raise bad_request(f"Parameter 'rate' must be between {RATES_S[0]} and {RATES_S[1]}")
    tab = call.query.get("tab", [""])[-1]
    if len(tab) > MAX_TAB:
        raise bad_request(f"Parameter 'tab' may have {MAX_TAB} characters")
    handler = call.handler
    live: Live = handler.application.settings["live"]
    stream = Stream(call, [_view(call, text) for text in texts], rate_s, tab)
    live.open(stream)
    try:
        handler.on_gone = stream.close
        if not handler.is_gone:
            stream.begin()
            await stream.over()
    finally:
        live.close(stream)
        handler.end()


def _view(call: Call, text: str) -> View:
    """Raises: ApiError 400 for what may not be watched. Rights are asked when it is told."""
    path, _, query = text.partition("?")
    found = ROUTES.find("GET", f"/api/{path}") if len(text) <= MAX_VIEW else None
    if found is None or found[0].path not in SHOWN:
        raise bad_request("Parameter 'view' must be a path that can be watched")
    route, names = found
    given = parse_qs(query, keep_blank_values=True, errors="surrogateescape")
    wanted = Call(call.broker, call.user, route, names, given, {})
    wanted.session = call.session
    return View(text, wanted)
