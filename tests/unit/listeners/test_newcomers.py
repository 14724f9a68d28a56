"""Clients that are not through: how many there may be, and who has to go."""

from __future__ import annotations

import logging

import pytest

from lavinmq.listeners.endpoints import UNIX, Endpoints
from lavinmq.listeners.newcomers import Newcomers


class Client:
    """One who has connected."""

    def __init__(self) -> None:
        self.is_gone = False

    def make_room(self) -> None:
        self.is_gone = True


def ends(host: str) -> Endpoints:
    return Endpoints(host, 1, "10.0.0.1", 5672, False)


def come(newcomers: Newcomers, where: Endpoints, n: int = 1) -> list[Client]:
    """As many as may come."""
    clients = []
    for _ in range(n):
        if newcomers.has_room(where):
            client = Client()
            newcomers.enter(client, where)
            clients.append(client)
    return clients


def test_an_address_has_half_of_the_places() -> None:
    newcomers = Newcomers(10)

    greedy = come(newcomers, ends("10.0.0.2"), 100)
    others = come(newcomers, ends("10.0.0.3"), 5)

    assert (len(greedy), len(others), len(newcomers)) == (5, 5, 10)
    assert not any(each.is_gone for each in greedy)


def test_the_oldest_goes_when_all_places_are_taken() -> None:
    newcomers = Newcomers(10)
    first, second = come(newcomers, ends("10.0.0.2"), 2)
    for n in range(8):
        come(newcomers, ends(f"10.0.1.{n}"))

    come(newcomers, ends("10.0.0.3"))

    assert (first.is_gone, second.is_gone, len(newcomers)) == (True, False, 10)


def test_who_is_through_makes_room() -> None:
    newcomers = Newcomers(2)
    (client,) = come(newcomers, ends("10.0.0.2"))
    assert not newcomers.has_room(ends("10.0.0.2"))

    newcomers.leave(client)
    newcomers.leave(client)

    assert newcomers.has_room(ends("10.0.0.2"))
    assert len(newcomers) == 0


def test_those_of_a_unix_socket_have_no_share_of_their_own() -> None:
    newcomers = Newcomers(10)

    assert len(come(newcomers, UNIX, 20)) == 20
    assert len(newcomers) == 10


def test_refusals_are_logged_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    newcomers = Newcomers(2)
    with caplog.at_level(logging.WARNING):
        come(newcomers, ends("10.0.0.2"), 50)

    assert [record.getMessage() for record in caplog.records] == [
        "connections of 10.0.0.2 are refused: too many of it are not logged in"
    ]
