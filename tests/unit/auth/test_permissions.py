"""Permission rules: search anywhere, deny by emptiness, bounded memory."""

import pytest

from lavinmq.auth import permissions
from lavinmq.auth.permissions import MAX_REMEMBERED, Rule


@pytest.mark.parametrize(
    ("regex", "allowed", "denied"),
    [
        (".*", ["", "q", "amq.direct"], []),
        ("^q", ["q", "queue"], ["aq", ""]),
        ("x", ["axb", "x"], ["a", ""]),
        ("^(a|b)$", ["a", "b"], ["ab", ""]),
        ("", [], ["", "q"]),
        ("^$", [], ["", "q"]),
    ],
)
def test_a_rule_is_searched_anywhere_in_the_name(
    regex: str, allowed: list[str], denied: list[str]
) -> None:
    """edge-cases.md 306"""
    rule = Rule(regex)

    for _ in range(2):  # the second answer is a remembered one
        assert all(rule.allows(name) for name in allowed)
        assert not any(rule.allows(name) for name in denied)


def test_a_rule_that_does_not_compile_denies_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule("(")

    assert not rule.allows("q")
    assert not rule.allows("(")
    assert "denies everything" in caplog.text


def test_a_rule_that_does_not_compile_is_refused_as_input() -> None:
    permissions.check(".*")
    with pytest.raises(ValueError, match="Invalid regular expression"):
        permissions.check("*")


def test_a_rule_remembers_a_bounded_number_of_answers() -> None:
    rule = Rule("^a")

    for number in range(MAX_REMEMBERED * 2 + 10):
        assert rule.allows(f"a{number}")

    assert len(rule._answers) <= MAX_REMEMBERED
