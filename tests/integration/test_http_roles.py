"""Every endpoint of the API with every role: who is let in, and who is not.

Made from the table of endpoints, so that a new one is tested the moment it is there. Requests carry
nonsense, so that nothing happens for those who are let in: what counts is whether they are refused
for who they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from lavinmq.http import api as _endpoints  # noqa: F401 - fills the table
from lavinmq.http.routes import ROUTES, Role, Route
from tests.support.api import Answer, Api
from tests.support.broker import Broker

TAGS = ("", "impersonator", "management", "policymaker", "monitoring", "administrator")
ALL = (".*", ".*", ".*")
STREAMS = ("/api/livelog",)
"""Answers that never end."""
REFUSED = {"error": "access_refused", "reason": "Access refused"}


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("roles") / "data", http=True)
    try:
        broker.start()
        admin = Api(broker)
        assert admin("PUT", "/api/vhosts/mine", {}).status == 201
        for tags in TAGS:
            admin.as_user(f"in-{tags}", tags, mine=ALL)
            admin.as_user(f"out-{tags}", tags)
        yield broker
    finally:
        broker.close()


def address(route: Route, vhost: str) -> str:
    """A path of this endpoint that names nothing that exists, but for the virtual host."""
    path = route.path.replace(":vhost", vhost)
    return re.sub(r"[:*]\w+", "no-such-thing", path)


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
    return answer.status == 403 and answer.json == REFUSED


def is_harmless(route: Route, tags: str) -> bool:
    """Whether asking as that user leaves everything in place for the other tests."""
    is_end = (route.method, route.path) == ("DELETE", "/api/vhosts/:vhost")
    return tags != "administrator" or not is_end


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: f"{route.method} {route.path}")
def test_only_those_with_the_role_are_let_in(route: Route, roles: Broker) -> None:
    for tags in TAGS:
        if not is_harmless(route, tags):
            continue
        answer = ask(roles, f"in-{tags}", route, "mine")
        if not tags:
            assert answer.status == 401, (tags, answer)
        else:
            assert is_refused(answer) == (tags not in route.role.value), (tags, answer)


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if ":vhost" in route.path],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_a_virtual_host_takes_an_entry_of_permissions(route: Route, roles: Broker) -> None:
    for tags in TAGS[1:]:
        is_let_in = tags == "administrator"
        if not is_harmless(route, tags):
            continue
        answer = ask(roles, f"out-{tags}", route, "mine")
        assert is_refused(answer) == (not is_let_in), (tags, answer)
    assert is_refused(ask(roles, "in-administrator", route, "no-such-vhost"))


def test_the_roles_are_those_of_the_tags() -> None:
    assert {tag for role in Role for tag in role.value} == set(TAGS[1:])
