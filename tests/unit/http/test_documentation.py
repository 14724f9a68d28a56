"""What is said about the API is what the API has."""

from __future__ import annotations

import json

from lavinmq.http import openapi
from lavinmq.http.routes import ROUTES
from tests.http_endpoints import PAGE, with_table


def test_the_page_lists_the_endpoints_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == with_table(page), "run: python -m tests.http_endpoints"


def test_every_endpoint_is_described() -> None:
    described = json.loads(openapi.encoded())
    operations = [each for path in described["paths"].values() for each in path.values()]

    assert len(operations) == len(list(ROUTES))
    assert all(operation["summary"].endswith(".") for operation in operations)
    assert len({operation["operationId"] for operation in operations}) == len(operations)


def test_all_that_stands_in_a_path_is_a_parameter() -> None:
    for path, methods in openapi.description()["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == {word[1:-1] for word in path.split("/") if word.startswith("{")}
