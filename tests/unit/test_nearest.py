"""Which known name is meant by a misspelt one."""

from __future__ import annotations

import pytest

from lavinmq.nearest import VERY_LIKE, hint, nearest

KNOWN = ("list_queues", "list_users", "Port")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("list_queue", "list_queues"), ("LIST_USER", "list_users"), ("prot", "Port"), ("xyz", "")],
)
def test_the_nearest_name_is_found_whatever_its_case(name: str, meant: str) -> None:
    assert nearest(name, KNOWN) == meant


def test_a_name_has_to_be_very_like_if_that_is_asked() -> None:
    assert nearest("list_cues", KNOWN, VERY_LIKE) == "list_queues"
    assert nearest("queues", KNOWN, VERY_LIKE) == ""


def test_a_hint_is_the_end_of_a_sentence() -> None:
    assert hint("prot", KNOWN) == ", did you mean 'Port'?"
    assert hint("xyz", KNOWN) == ""


def test_very_long_names_are_not_compared() -> None:
    assert nearest("list_queues" * 100, KNOWN) == ""
