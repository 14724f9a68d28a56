"""Every endpoint of the API with every tag and all kinds of permissions: who is let in, who is not.

Made from the table of access, so that a new endpoint is tested the moment it is there. Requests
carry nonsense, so that nothing happens for those who are let in: what counts is whether they are
refused for who they are. That the table says the right thing is asked at the end, in other words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from lavinmq.http import api as _endpoints  # noqa: F401 - fills the table
from lavinmq.http.access.table import TABLE, Owned, Role
from lavinmq.http.routes import ROUTES, Route, Routes
from tests.support.api import Answer, Api
from tests.support.broker import Broker

TAGS = ("", "impersonator", "management", "policymaker", "monitoring", "administrator")
NAME = "no-such-thing"
ALL = (".*", ".*", ".*")
OTHER = ("^other$", "^other$", "^other$")
RIGHTS = ("configure", "write", "read")
STREAMS = ("/api/live", "/api/livelog")
"""Answers that never end."""
REFUSED = "Access refused"
READING = ("PUT /api/auth/hash_password", "POST /api/queues/:vhost/:name/stream")
"""Not by GET, and yet they change nothing."""


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("roles") / "data", http=True)
    try:
        broker.start()
        admin = Api(broker)
        assert admin("PUT", "/api/vhosts/mine", {}).status == 201
        for tags in TAGS:
            admin.as_user(f"in-{tags}", tags, mine=ALL)
            admin.as_user(f"other-{tags}", tags, mine=OTHER)
            admin.as_user(f"out-{tags}", tags)
        yield broker
    finally:
        broker.close()


def address(route: Route, vhost: str) -> str:
    """A path of this endpoint that names nothing that exists, but for the virtual host."""
    path = route.path.replace(":vhost", vhost)
    return re.sub(r"[:*]\w+", NAME, path)


def ask(broker: Broker, user: str, route: Route, vhost: str) -> Answer:
    """Send nonsense, so that whoever is let in gets no further."""
    path = address(route, vhost)
    if route.fields is None:
        if route.path in STREAMS:
            return _status_only(broker, user, path)
        return Api(broker, user)(route.method, path)
    return Api(broker, user)(route.method, path, raw=b"[]")


def _status_only(broker: Broker, user: str, path: str) -> Answer:
    connection = HTTPConnection(broker.host, broker.http_port, timeout=20)
    try:
        connection.request("GET", path, headers=Api(broker, user).login)
        response = connection.getresponse()
        content = b"" if response.status == 200 else response.read()
        return Answer(response.status, {}, content)
    finally:
        connection.close()


def is_refused(answer: Answer) -> bool:
    return answer.status == 403 and answer.json["reason"].startswith(REFUSED)


def is_harmless(route: Route, tags: str) -> bool:
    """Whether asking as that user leaves everything in place for the other tests."""
    is_end = (route.method, route.path) == ("DELETE", "/api/vhosts/:vhost")
    return tags != "administrator" or not is_end


def lacks_a_right(answer: Answer) -> bool:
    """Whether it is refused for a queue or an exchange."""
    if answer.status != 403 or answer.json["error"] != "access_refused":
        return False
    return " permissions to " in answer.json["reason"]


def each(routes: list[Route]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("route", routes, ids=lambda route: key(route))


def key(route: Route) -> str:
    return f"{route.method} {route.path}"


@each(list(ROUTES))
def test_only_those_with_the_role_are_let_in(route: Route, roles: Broker) -> None:
    for tags in TAGS:
        if not is_harmless(route, tags):
            continue
        answer = ask(roles, f"in-{tags}", route, "mine")
        if not tags:
            assert answer.status == 401, (tags, answer)
        elif route.row.owned is Owned.USERNAME and route.is_change:
            assert is_refused(answer) == (tags != "administrator"), (tags, answer)
        else:
            assert is_refused(answer) == (tags not in route.row.role.value), (tags, answer)
            assert not lacks_a_right(answer), (tags, answer)


@each([route for route in ROUTES if ":vhost" in route.path])
def test_a_virtual_host_takes_an_entry_of_permissions(route: Route, roles: Broker) -> None:
    for tags in TAGS[1:]:
        is_let_in = tags == "administrator"
        if not is_harmless(route, tags):
            continue
        answer = ask(roles, f"out-{tags}", route, "mine")
        assert is_refused(answer) == (not is_let_in), (tags, answer)
        assert lacks_a_right(answer) == (is_let_in and bool(route.row.needs)), (tags, answer)
    assert is_refused(ask(roles, "in-administrator", route, "no-such-vhost"))


@each([route for route in ROUTES if route.row.needs])
def test_permissions_for_another_object_do_not_count(route: Route, roles: Broker) -> None:
    for tags in TAGS[1:]:
        answer = ask(roles, f"other-{tags}", route, "mine")
        if tags in route.row.role.value:
            assert lacks_a_right(answer), (tags, answer)
        else:
            assert is_refused(answer), (tags, answer)


@each([route for route in ROUTES if route.row.needs])
def test_each_right_of_a_row_is_asked_for(route: Route, roles: Broker) -> None:
    admin = Api(roles)
    rights = [needed.right for needed in route.row.needs]
    for lacking in rights:
        granted = tuple("^$" if right == lacking else ".*" for right in RIGHTS)
        admin.as_user("lacking", "management", mine=granted)
        assert lacks_a_right(ask(roles, "lacking", route, "mine")), lacking
    admin.as_user(
        "lacking", "management", mine=tuple(".*" if right in rights else "^$" for right in RIGHTS)
    )
    assert not lacks_a_right(ask(roles, "lacking", route, "mine"))


# --- what the table says ----------------------------------------------------------------------


def test_every_endpoint_has_a_row_and_every_row_an_endpoint() -> None:
    assert {key(route) for route in ROUTES} == set(TABLE)


def test_there_is_no_endpoint_without_a_row() -> None:
    with pytest.raises(ValueError, match="no row in the table of access"):
        Routes().get("/api/secrets")(lambda _call: None)


def test_the_roles_are_those_of_the_tags() -> None:
    assert {tag for role in Role for tag in role.value} == set(TAGS[1:])


@each([route for route in ROUTES if route.is_change and key(route) not in READING])
def test_monitoring_and_impersonators_change_nothing(route: Route) -> None:
    assert {"monitoring", "impersonator"}.isdisjoint(route.row.role.value)


@each([route for route in ROUTES if route.is_change and key(route) not in READING])
def test_who_only_manages_changes_only_what_is_theirs(route: Route) -> None:
    """Either the object takes a permission, or it is the caller's own."""
    if "management" in route.row.role.value:
        assert route.row.needs or route.row.owned


def test_a_policymaker_changes_what_belongs_to_a_virtual_host_only() -> None:
    for route in ROUTES:
        if route.is_change and route.row.role is Role.POLICY:
            assert ":vhost" in route.path


@pytest.mark.parametrize(
    ("endpoint", "row"),
    [
        ("PUT /api/queues/:vhost/:name", "configure `:name`"),
        ("DELETE /api/queues/:vhost/:name", "configure `:name`"),
        ("PUT /api/queues/:vhost/:name/pause", "configure `:name`"),
        ("PUT /api/queues/:vhost/:name/resume", "configure `:name`"),
        ("PUT /api/queues/:vhost/:name/restart", "configure `:name`"),
        ("DELETE /api/queues/:vhost/:name/contents", "read `:name`"),
        ("POST /api/queues/:vhost/:name/get", "read `:name`"),
        ("POST /api/queues/:vhost/:name/move", "read `:name`, write `amq.default`"),
        ("GET /api/queues/:vhost/:name/stream/raw", "read `:name`"),
        ("POST /api/queues/:vhost/:name/stream", "read `:name`"),
        ("PUT /api/exchanges/:vhost/:name", "configure `:name`"),
        ("DELETE /api/exchanges/:vhost/:name", "configure `:name`"),
        ("POST /api/exchanges/:vhost/:name/publish", "write `:name`"),
        ("GET /api/exchanges/:vhost/:name/delayed", "read `:name`"),
        ("POST /api/bindings/:vhost/e/:source/q/:queue", "read `:source`, write `:queue`"),
        (
            "DELETE /api/bindings/:vhost/e/:source/e/:destination/*props",
            "read `:source`, write `:destination`",
        ),
        ("DELETE /api/connections/:name", "own connection"),
        ("DELETE /api/connections/username/:username", "own name"),
        ("PUT /api/channels/:name", "own channel"),
        ("DELETE /api/consumers/:vhost/:connection/:channel/:consumer_tag", "own consumer"),
    ],
)
def test_the_row_says_what_amqp_would_ask_for(endpoint: str, row: str) -> None:
    assert str(TABLE[endpoint]) == row
