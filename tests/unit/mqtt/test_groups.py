"""Permission groups: what rules with variables allow, and what is no group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lavinmq.mqtt import groups
from lavinmq.mqtt.groups import GroupRights, covers
from lavinmq.policy.parameters import Parameter, ParameterStore


def rights(tmp_path: Path, user: str, client_id: str, **given: Any) -> GroupRights | None:
    store = ParameterStore(tmp_path / "parameters.json")
    for name, value in given.items():
        store.put(Parameter(groups.COMPONENT, name, value))
    return groups.rights_of(store.in_force, user, client_id)


def group(*rules: tuple[str, str], members: tuple[str, ...] = ("*",)) -> dict[str, Any]:
    return {
        "members": list(members),
        "rules": [{"filter": text, "read": "r" in may, "write": "w" in may} for text, may in rules],
    }


@pytest.mark.parametrize(
    ("rule", "text", "is_covered"),
    [
        ("#", "a/b", True), ("#", "#", True), ("#", "+/x/#", True), ("#", "$SYS/x", False),
        ("a/#", "a", True), ("a/#", "a/b/#", True), ("a/#", "+/b", False), ("a/#", "ab", False),
        ("a/+", "a/b", True), ("a/+", "a/+", True), ("a/+", "a/#", False), ("a/+", "a", False),
        ("a/+/c", "a/+/c", True), ("a/b", "a/+", False), ("a/b", "a/b/c", False), ("+", "#", False),
        ("$SYS/#", "$SYS/broker/x", True), ("a//b", "a//b", True), ("a/+/b", "a//b", True),
    ],
)  # fmt: skip
def test_a_rule_covers_what_it_matches_whole(rule: str, text: str, is_covered: bool) -> None:
    assert covers(rule.split("/"), text.split("/")) is is_covered


def test_without_groups_everything_is_allowed(tmp_path: Path) -> None:
    assert rights(tmp_path, "u", "c") is None


def test_variables_are_those_of_the_client(tmp_path: Path) -> None:
    found = rights(tmp_path, "anna", "7", g=group(("{username}/x-{client_id}/#", "rw")))

    assert found is not None
    assert found.may_write("anna/x-7/t")
    assert found.may_read("anna/x-7/#")
    assert not found.may_write("anna/x-8/t")
    assert not found.may_write("{username}/x-7/t")


@pytest.mark.parametrize("client_id", ["#", "+", "a/b", "", "{username}"])
def test_who_chooses_his_name_does_not_choose_the_rule(tmp_path: Path, client_id: str) -> None:
    found = rights(
        tmp_path, "u", client_id, g=group(("{client_id}", "rw"), ("d/{client_id}", "rw"))
    )

    assert found == GroupRights((), ())


def test_groups_count_for_their_members_and_add_up(tmp_path: Path) -> None:
    given = {
        "one": group(("a/#", "r"), members=("u", "v")), "two": group(("b/#", "w"), members=("u",)),
        "three": group(("c/#", "rw"), members=("w",)),
    }  # fmt: skip
    found = rights(tmp_path, "u", "c", **given)

    assert found is not None
    assert (found.may_read("a/x"), found.may_write("a/x")) == (True, False)
    assert (found.may_read("b/x"), found.may_write("b/x")) == (False, True)
    assert not found.may_read("c/x")


def test_a_group_that_makes_no_sense_allows_nothing(tmp_path: Path) -> None:
    assert rights(tmp_path, "u", "c", g="all") == GroupRights((), ())


@pytest.mark.parametrize(
    "value",
    [
        None, [], {}, {"members": "*", "rules": []}, {"members": [1], "rules": []},
        {"members": [], "rules": {}}, {"members": [], "rules": [1]},
        {"members": [], "rules": [{"filter": "a/#/b"}]}, {"members": [], "rules": [{"filter": ""}]},
        {"members": [], "rules": [{"filter": "a", "read": 1}]},
        {"members": [], "rules": [{"filter": "a"}] * 1001},
    ],
)  # fmt: skip
def test_what_is_no_group_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Field|rule|Rule"):
        groups.parse(value)
