"""The table of endpoints: which path leads to which, and what the parameters are."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http.access.table import Role, Row
from lavinmq.http.routes import Routes

ANYBODY = defaultdict(lambda: Row(Role.ANY, (), None))
"""A table of access that has a row for everything."""


def nothing(_call: object) -> None:
    """Do nothing."""


@pytest.fixture
def routes() -> Routes:
    table = Routes(ANYBODY)
    for path in (
        "/api/users", "/api/users/:name", "/api/users/bulk", "/api/users/:name/permissions",
        "/api/b/:vhost/e/:exchange/q/:queue/*props", "/api/b/:vhost/e/:exchange/q/:queue",
    ):  # fmt: skip
        table.get(path)(nothing)
    table.put("/api/users/:name")(nothing)
    return table


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/api/users", "/api/users", {}),
        ("api/users/", "/api/users", {}),
        ("/api/users/bulk", "/api/users/bulk", {}),
        ("/api/users/bulk/permissions", "/api/users/:name/permissions", {"name": "bulk"}),
        ("/api/users/%2F", "/api/users/:name", {"name": "/"}),
        ("/api/users/a%20b%3E%ff", "/api/users/:name", {"name": "a b>\udcff"}),
        ("/api/users/%2525", "/api/users/:name", {"name": "%25"}),
        (
            "/api/b/%2F/e/x/q/y/a/b%2Fc", "/api/b/:vhost/e/:exchange/q/:queue/*props",
            {"vhost": "/", "exchange": "x", "queue": "y", "props": "a/b/c"},
        ),
    ],
)  # fmt: skip
def test_a_path_leads_to_its_endpoint(
    routes: Routes, path: str, route: str, parameters: dict[str, str]
) -> None:
    found = routes.find("GET", path)

    assert found is not None
    assert (found[0].path, found[1]) == (route, parameters)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api"),
        ("GET", "/api/users//permissions"),
        ("GET", "/api/users/a/b"),
        ("POST", "/api/users"),
        ("PUT", "/api/users/bulk/permissions"),
    ],
)
def test_other_paths_and_methods_lead_nowhere(routes: Routes, method: str, path: str) -> None:
    assert routes.find(method, path) is None


def test_a_word_of_another_method_does_not_hide_a_parameter(routes: Routes) -> None:
    found = routes.find("PUT", "/api/users/bulk")

    assert found is not None
    assert found[1] == {"name": "bulk"}


def test_a_path_has_one_endpoint(routes: Routes) -> None:
    with pytest.raises(ValueError, match="is there already"):
        routes.get("/api/users/:other")(nothing)


@given(st.text(max_size=60))
def test_any_path_is_looked_up(path: str) -> None:
    table = Routes(ANYBODY)
    table.get("/api/:a/*b")(nothing)

    found = table.find("GET", "/api/" + path)

    assert found is None or set(found[1]) == {"a", "b"}
