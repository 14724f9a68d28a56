"""Requests made up from the broker's own OpenAPI description: the answers are as it says.

Each operation gets valid and invalid requests, some about things that are there. Whatever comes,
the broker has no bug, and answers with a status, a type and a shape that the description names.
`HTTP_SCHEMA_LONG=1` makes more of them, others each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lavinmq.http.openapi import description
from lavinmq.http.routes import ROUTES
from tests.support.api import Api
from tests.support.broker import Broker

IS_LONG = bool(os.environ.get("HTTP_SCHEMA_LONG"))
EXAMPLES = 200 if IS_LONG else 5
ENDLESS = (
    "/api/live", "/api/livelog",
    "/api/exchanges/{vhost}/{name}/trace", "/api/queues/{vhost}/{name}/trace",
    "/api/exchanges/:vhost/:name/trace", "/api/queues/:vhost/:name/trace",
)  # fmt: skip
"""Answers that go on, as the description and as the table name them."""
SPARE = "spare"
"""What may be deleted: virtual hosts, users."""
CHECKS = [
    status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
KNOWN = {
    "vhost": ["%2F"], "source": ["e"], "destination": ["e2"], "queue": ["q"], "props": ["k", "~"],
    "component": ["federation-upstream", "shovel"], "user": [SPARE], "username": ["guest"],
    "limit": ["max-connections", "max-queues", "max-channels"], "protocol": ["amqp", "http"],
    "within": ["1"], "unit": ["weeks"], "port": ["5672"],
}  # fmt: skip
"""Parameters in paths, as they are sent; but for `name`, which depends on what has it."""
NAMES = {
    "queues": ["q", "s"], "exchanges": ["e", "amq.default"], "vhosts": [SPARE], "policies": ["p"],
    "operator-policies": ["p"], "parameters": ["up"], "global-parameters": ["g"],
}  # fmt: skip
DESCRIPTION = description()
del DESCRIPTION["security"]  # half of all requests would be made to fail at the log-in
OPERATIONS = {
    operation.label: operation
    for operation in (each.ok() for each in openapi.from_dict(DESCRIPTION).get_all_operations())
    if operation.path not in ENDLESS
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A broker of its own."""
    broker = Broker(tmp_path_factory.mktemp("schema") / "data", http=True)
    try:
        broker.start()
        api = Api(broker)
        yield api
    finally:
        broker.close()


@pytest.fixture(scope="module")
def changed_by() -> set[str]:
    """What may have taken something away since the broker was furnished."""
    return {"nothing is there"}


def furnish(api: Api) -> None:
    """Make what the requests may meet; what is there already stays."""
    things: list[tuple[str, dict[str, Any]]] = [
        ("vhosts/spare", {}),
        ("users/spare", {"password_hash": "", "tags": ""}),
        ("permissions/%2F/spare", {"configure": "", "write": "", "read": ""}),
        ("queues/%2F/q", {"durable": True}),
        ("queues/%2F/s", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
        ("exchanges/%2F/e", {"type": "topic"}),
        ("exchanges/%2F/e2", {"type": "headers"}),
        ("policies/%2F/p", {"pattern": "none", "definition": {"max-length": 9}}),
        ("operator-policies/%2F/p", {"pattern": "none", "definition": {"max-length": 9}}),
        ("parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://localhost:1"}}),
        ("global-parameters/g", {"value": 1}),
        ("vhost-limits/spare/max-queues", {"value": 5}),
        ("user-limits/spare/max-channels", {"value": 5}),
    ]
    for path, body in things:
        api("PUT", f"/api/{path}", body)
    for end in ("q/q", "q/s", "e/e2"):
        api("POST", f"/api/bindings/%2F/e/e/{end}", {"routing_key": "k"})
    message = {"properties": {}, "routing_key": "k", "payload": "é", "payload_encoding": "string"}
    api("POST", "/api/exchanges/%2F/e/publish", message)


def meant(case: Case, choice: int) -> None:
    """Make the path one of a thing that is there."""
    if case.path.startswith("/api/vhosts/"):
        known = KNOWN | {"vhost": [SPARE], "name": NAMES["vhosts"]}
    else:
        known = KNOWN | {"name": NAMES.get(case.path.split("/")[2], ["x"])}
    for name in case.path_parameters:
        if name in known:
            case.path_parameters[name] = known[name][choice % len(known[name])]


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        pytest.param(label, mode, id=f"{label}-{mode.value}")
        for label, operation in OPERATIONS.items()
        for mode in GenerationMode
        # Nothing is invalid in a path.
        if mode is GenerationMode.POSITIVE or operation.body or operation.query
    ],
)
def test_answers_are_as_described(
    api: Api, changed_by: set[str], label: str, mode: GenerationMode
) -> None:
    requests = OPERATIONS[label].as_strategy(generation_mode=mode)

    @settings(
        max_examples=EXAMPLES, derandomize=not IS_LONG, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    @given(requests, st.integers(0, 5))
    def exchange(case: Case, choice: int) -> None:
        if choice:
            meant(case, choice)
        response = case.call(base_url=api.broker.http_url, headers=api.login, timeout=30)
        wanted = [*CHECKS, not_a_server_error] if response.status_code != 503 else CHECKS
        case.validate_response(response, checks=wanted)

    if changed_by:
        furnish(api)
        changed_by.clear()
    if not label.startswith("GET "):
        changed_by.add(label)
    exchange()
    assert "bug in" not in api.broker.log_text()


@pytest.mark.parametrize(
    "octets", ["%FF%FE", "%00", "%2F", "%C3%A4" * 200], ids=lambda text: text[:9]
)
def test_no_octet_in_a_path_is_a_bug(api: Api, changed_by: set[str], octets: str) -> None:
    changed_by.add(octets)
    for route in ROUTES:
        if route.path in ENDLESS:
            continue
        for vhost in ("%2F", octets):
            words = [
                vhost if word == ":vhost" else octets if word[:1] in (":", "*") else word
                for word in route.path.split("/")
            ]
            path = "/".join(words)
            if path == "/api/vhosts/%2F":
                continue  # all of the others are in it
            answer = api(route.method, path, {} if route.fields is not None else None)

            assert answer.status < 500 or "health/checks" in path, (route.method, path, answer)
    assert "bug in" not in api.broker.log_text()
