"""`/` of the HTTP port says where everything is, to people and to programs."""

from __future__ import annotations

import re

import pytest

from tests.support.api import Api
from tests.support.broker import Broker


def test_a_program_is_told_in_json(broker: Broker) -> None:
    answer = Api(broker)("GET", "/", headers={"Accept": "*/*"})

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["api"] == "/api/overview"


def test_a_browser_gets_a_page_whose_links_lead_somewhere(broker: Broker) -> None:
    api = Api(broker)

    answer = api("GET", "/", headers={"Accept": "text/html,application/xhtml+xml"})

    assert answer.headers["content-type"].startswith("text/html")
    links = re.findall('href="([^"]+)"', answer.content.decode())
    assert len(links) == 5
    assert [api("GET", link).status for link in links] == [200] * 5


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed_there(broker: Broker, method: str) -> None:
    assert Api(broker)(method, "/").status == 405


def test_nobody_has_to_log_in_and_nothing_is_told_about_the_broker(broker: Broker) -> None:
    api = Api(broker)
    api.login = {}

    answer = api("GET", "/")

    assert answer.status == 200
    assert set(answer.json) == {"product", "api", "description", "metrics", "liveness", "readiness"}
