"""Shovels over HTTP: kept as parameters, listed with what keeps them from running."""

from __future__ import annotations

import pytest

from tests.support.api import Api
from tests.support.broker import Broker


@pytest.fixture
def api(http_broker: Broker) -> Api:
    return Api(http_broker)


def test_a_shovel_is_listed_with_the_reason_why_it_does_not_run(api: Api) -> None:
    api("PUT", "/api/vhosts/shovels", {})
    value = {
        "src-uri": "amqp://127.0.0.1", "src-queue": "a",
        "dest-uri": "amqp://127.0.0.1", "dest-queue": "b",
    }  # fmt: skip
    put = api("PUT", "/api/parameters/shovel/shovels/s", {"value": value})
    assert put.status == 201

    [row] = api("GET", "/api/shovels/shovels").json
    assert (row["name"], row["vhost"], row["state"], row["message_count"]) == (
        "s", "shovels", "Error", 0
    )  # fmt: skip
    assert "not run" in row["error"]
    assert row in api("GET", "/api/shovels").json
    assert api("GET", "/api/shovels/shovels/s").json == row
    for change in ("pause", "resume"):
        assert api("PUT", f"/api/shovels/shovels/s/{change}").status == 422
        assert api("PUT", f"/api/shovels/shovels/none/{change}").status == 404
    assert api("DELETE", "/api/parameters/shovel/shovels/s").status == 204
    assert api("GET", "/api/shovels/shovels").json == []
