"""However much there is to tell, no answer is made in one go: others have their turn meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import lavinmq
from lavinmq.http import encoding, listing
from lavinmq.process import portions
from tests.support.api import Api
from tests.support.raw_connection import Address, Connection

MANY = 300


class Embedded:
    """Where the API of a broker in this process listens."""

    def __init__(self, broker: lavinmq.Broker) -> None:
        self.host = broker.host
        self.http_port = urlsplit(broker.http_url).port or 0


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """A broker in this process, with a queue that one channel consumes from very often."""
    with (
        lavinmq.run(mgmt_port=0) as broker,
        Connection.open(Address(broker.host, broker.port)) as connection,
    ):
        channel = connection.channel()
        channel.declare_queue("q")
        for number in range(MANY):
            channel.consume("q", f"consumer-{number}")
        for _ in range(MANY):
            connection.channel()
        yield Api(Embedded(broker))


def channel_path(api: Api) -> str:
    (name,) = (row["name"] for row in api.get("/api/channels?name=[1]"))
    return f"/api/channels/{quote(name, safe='')}"


@pytest.mark.parametrize("of", ["queue", "channel"])
def test_consumers_of_one_thing_are_written_one_by_one(
    api: Api, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """All of them were made into JSON at once, however many there were."""
    path = "/api/queues/%2F/q" if of == "queue" else channel_path(api)
    sizes, encode = [], encoding.encode

    def noted(value: Any) -> bytes:
        text = encode(value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(encoding, "encode", noted)
    answer = api("GET", path)

    assert len(json.loads(answer.content)["consumer_details"]) == MANY
    assert max(sizes) < len(answer.content) / 10


@pytest.mark.parametrize("path", ["/api/consumers", "/api/channels"])
def test_what_one_connection_has_is_gathered_in_portions(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Portions ended with a connection, which may have any number of channels and consumers."""
    turns = []
    others_first = portions.others_first

    async def noted() -> None:
        turns.append(1)
        await others_first()

    monkeypatch.setattr(listing, "PORTION_S", 0)
    monkeypatch.setattr(listing, "others_first", noted)

    assert len(api.get(f"{path}?page=1&page_size=1")["items"]) == 1

    assert len(turns) >= MANY
