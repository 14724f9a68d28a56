"""What scopes allow, and claims that name users."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.auth.attempt import TokenError
from lavinmq.auth.scopes import MAX_REMEMBERED, ClaimReader, Glob, TokenUser

READER = ClaimReader("broker", ("sub", "client_id"), ("more",), "")


def user_of(*scopes: str, prefix: str = "broker.") -> TokenUser:
    text = " ".join(prefix + scope for scope in scopes)
    return READER.user({"sub": "anna", "exp": 5, "scope": text})


def test_a_user_has_name_tags_and_an_end() -> None:
    user = user_of("tag:administrator", "tag:Monitoring", "tag:king", "tag:administrator")

    assert (user.name, user.expires_at) == ("anna", 5.0)
    assert user.tags == ("administrator", "monitoring")
    assert user.has_tag("monitoring") and not user.has_tag("management")


def test_what_is_not_given_is_denied() -> None:
    user = user_of("read:%2F/q1")

    assert user.has_vhost("/") and not user.has_vhost("other")
    assert user.can_read("/", "q1")
    assert not user.can_read("/", "q10") and not user.can_read("/", "aq1")
    assert not user.can_write("/", "q1") and not user.can_configure("/", "q1")
    assert not user_of().has_vhost("/")


def test_each_kind_of_scope_gives_its_right() -> None:
    user = user_of("configure:v/c*", "read:v/r*", "write:v/w*")

    assert [user.can_configure("v", name) for name in ("c1", "r1", "w1")] == [True, False, False]
    assert [user.can_read("v", name) for name in ("c1", "r1", "w1")] == [False, True, False]
    assert [user.can_write("v", name) for name in ("c1", "r1", "w1")] == [False, False, True]


def test_several_scopes_add_up() -> None:
    user = user_of("read:a/x", "read:a/y", "read:b*/z")

    assert user.can_read("a", "x") and user.can_read("a", "y") and not user.can_read("a", "z")
    assert user.can_read("bcd", "z") and not user.can_read("bcd", "x")


def test_scopes_are_percent_encoded() -> None:
    user = user_of("write:%2F/a%2Fb%20c/routing.key", "write:%2F/star%2A")

    assert user.can_write("/", "a/b c")
    assert user.can_write("/", "star*") and not user.can_write("/", "stars")


def test_a_third_part_is_for_routing_keys() -> None:
    user = user_of("write:v/x/own.*", "write:v/x/%2A", "read:v/x", "write:v/y/k", "write:v/y")

    keys = user.key_rights("v", "x")
    assert keys is not None and not keys.is_any_written
    assert keys.can_write("own.a") and keys.can_write("*") and not keys.can_write("other")
    assert keys.can_read("other")
    assert user.key_rights("v", "y") is None, "a scope without third part gives all keys"
    assert user.key_rights("w", "x") is None


def test_keys_that_may_be_read_leave_those_that_may_be_written_alone() -> None:
    keys = user_of("read:v/x/a.*", "write:v/x").key_rights("v", "x")

    assert keys is not None and keys.is_any_written and keys.can_write("z")
    assert keys.can_read("a.b") and not keys.can_read("z")


def test_the_default_exchange_goes_by_two_names() -> None:
    user = user_of("write:v/amq.default")

    assert user.can_write("v", "") and not user.can_write("w", "")


@pytest.mark.parametrize(
    "scope", ["read", "read:", "read:v", "read:v/", "read:/q", "read:%FF/q", "own:v/q", "tag:", ""]
)
def test_scopes_that_make_no_sense_give_nothing(scope: str) -> None:
    user = user_of(scope)

    assert not user.has_vhost("v") and not user.tags


def test_regular_expressions_mean_nothing() -> None:
    user = user_of("read:v/.*", "read:v/[ab]", "read:v/q?")

    assert not user.can_read("v", "anything") and not user.can_read("v", "a")
    assert user.can_read("v", ".anything") and user.can_read("v", "q?")


@pytest.mark.parametrize(
    ("server", "prefix", "counts"),
    [("broker", "", "broker.x"), ("", "", "x"), ("broker", "p-", "p-x"), ("", "p-", "p-x")],
)
def test_only_scopes_with_the_prefix_count(server: str, prefix: str, counts: str) -> None:
    reader = ClaimReader(server, ("sub",), (), prefix)
    scope = f"{counts.removesuffix('x')}tag:administrator other.tag:monitoring"

    assert reader.user({"sub": "a", "exp": 1, "scope": scope}).tags == ("administrator",)


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": "broker.tag:monitoring"},
        {"scope": ["broker.tag:monitoring"]},
        {"resource_access": {"broker": {"roles": ["broker.tag:monitoring"]}}},
        {"more": "other broker.tag:monitoring"},
        {"more": ["other", "broker.tag:monitoring"]},
        {"more": {"broker": ["broker.tag:monitoring"], "else": []}},
        {"more": {"broker": "broker.tag:monitoring"}},
    ],
)
def test_scopes_are_found_in_every_claim_for_them(claims: dict[str, Any]) -> None:
    assert READER.user({"sub": "a", "exp": 1} | claims).tags == ("monitoring",)


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": 5}, {"scope": {"a": 1}}, {"scope": [5, None]}, {"more": {"broker": 5}},
        {"resource_access": []}, {"resource_access": {"broker": []}}, {"less": "broker.tag:x"},
        {"resource_access": {"other": {"roles": ["broker.tag:monitoring"]}}},
        {"more": {"other": ["broker.tag:monitoring"]}},
    ],
)  # fmt: skip
def test_claims_of_other_types_give_nothing(claims: dict[str, Any]) -> None:
    assert READER.user({"sub": "a", "exp": 1} | claims).tags == ()


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"sub": "a", "client_id": "b"}, "a"),
        ({"sub": 5, "client_id": "b"}, "b"),
        ({"sub": "", "client_id": "b"}, "b"),
        ({"client_id": "bär"}, "bär"),
    ],
)
def test_the_first_claim_that_is_a_text_names_the_user(claims: dict[str, Any], name: str) -> None:
    assert READER.user({"exp": 1} | claims).name == name


@pytest.mark.parametrize(
    "claims",
    [{}, {"sub": None}, {"sub": "x" * 256}, {"sub": "a\nb"}, {"sub": "\ud800"},
     {"sub": "__direct"}],
)  # fmt: skip
def test_names_that_cannot_be_used_are_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        READER.user({"exp": 1} | claims)


def test_the_answers_remembered_are_bounded() -> None:
    user = user_of("read:v/q*")
    for number in range(MAX_REMEMBERED + 10):
        assert user.can_read("v", f"q{number}")

    assert len(user._answers) <= MAX_REMEMBERED


@given(st.text("ab*", max_size=12), st.text("ab", max_size=16))
def test_a_glob_matches_what_the_expression_for_it_matches(text: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in text.split("*"))

    assert Glob(text).matches(name) == bool(re.fullmatch(expression, name))
    assert Glob(text).matches(name) == fnmatch.fnmatchcase(name, text)


def test_a_glob_of_many_stars_takes_no_time() -> None:
    assert not Glob("*a" * 2000 + "*b").matches("a" * 255)


@given(
    st.dictionaries(
        st.sampled_from(["sub", "client_id", "scope", "more", "resource_access"]),
        st.recursive(
            st.none() | st.text(max_size=20) | st.integers() | st.just("broker.read:%/%"),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.just("broker") | st.just("roles"), inner, max_size=2)
            ),
            max_leaves=8,
        ),
    )
)
def test_any_claims_make_a_user_or_are_refused(claims: dict[str, Any]) -> None:
    try:
        user = READER.user(claims | {"exp": 1})
    except TokenError:
        return
    assert user.name and not user.can_read("/", "q")


def test_a_star_for_all_exchanges_and_keys_is_everything() -> None:
    assert user_of("write:*/*").can_write_all("v")
    assert user_of("write:v/a/k", "write:v/**").can_write_all("v")
    for scope in ("write:v/*/k", "write:v/a*", "write:v/%2A", "write:w/*", "read:*/*"):
        assert not user_of(scope).can_write_all("v")
