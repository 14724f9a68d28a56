"""Logging in at the issuer in a browser: the two steps, and the texts of all that can fail."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from lavinmq.auth import oauth_login
from lavinmq.auth.oauth import OAuth
from lavinmq.auth.oauth_login import LoginError, NotConfigured, Session, authorize, complete
from lavinmq.auth.tasks import Tasks
from lavinmq.config.values import Config, from_keywords
from tests.support.issuer import AUDIENCE, Issuer, serving

T = TypeVar("T")
BASE = "https://broker.example/mq"
COOKIE = "state:verifier"


def config_for(issuer: str, **changes: Any) -> Config:
    settings = {
        "auth_backends": "local,oauth", "oauth_issuer": issuer, "oauth_client_id": "ui",
        "oauth_mgmt_base_url": BASE, "oauth_resource_server_id": AUDIENCE,
    }  # fmt: skip
    return from_keywords(settings | changes)


class Setting:
    """A broker's side of the log-in, with its issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.config = config_for(issuer.url)
        self.exchanged(issuer.token(scope="broker.tag:management"))

    def exchanged(self, token: Any, status: int = 200, **more: Any) -> None:
        """What the issuer gives for a code."""
        self.issuer.answers["/token"] = status, {"access_token": token} | more

    def run(self, work: Any, **given: Any) -> Any:
        async def scenario() -> Any:
            events = asyncio.get_running_loop()
            tasks = Tasks(events)
            oauth = OAuth(self.config, tasks, events)
            try:
                return await work(self.config, oauth, **given)
            finally:
                oauth.keys.stop()
                await tasks.stop()

        return asyncio.run(scenario())

    def complete(self, **changes: str) -> Session:
        given = {"cookie": COOKIE, "state": "state", "code": "c0de"} | changes
        session: Session = self.run(complete, **given)
        return session


@pytest.fixture
def s() -> Iterator[Setting]:
    with serving() as issuer:
        yield Setting(issuer)


def wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_the_browser_is_sent_to_the_issuer_with_a_challenge(s: Setting) -> None:
    first, second = s.run(authorize), s.run(authorize)

    parts = urlsplit(first.url)
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == s.issuer.url + "/authorize"
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    state, verifier = first.cookie.split(":")
    digest = hashlib.sha256(verifier.encode()).digest()
    assert query == {
        "client_id": "ui", "redirect_uri": BASE + "/oauth/callback", "response_type": "code",
        "scope": "openid profile", "state": state, "code_challenge_method": "S256",
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
    }  # fmt: skip
    assert first.cookie != second.cookie
    assert 43 <= len(verifier) <= 128  # RFC 7636, section 4.1


def test_the_audience_is_named_if_it_is_configured(s: Setting) -> None:
    s.config = config_for(s.issuer.url, oauth_audience="aud-1")

    assert parse_qs(urlsplit(s.run(authorize).url).query)["audience"] == ["aud-1"]


def test_a_code_becomes_a_session(s: Setting) -> None:
    session = s.complete()

    assert s.issuer.forms == [
        {"grant_type": "authorization_code", "code": "c0de", "client_id": "ui",
         "redirect_uri": BASE + "/oauth/callback", "code_verifier": "verifier"}
    ]  # fmt: skip
    assert (session.identity.name, session.identity.tags) == ("anna", ("management",))
    assert session.token == s.issuer.answers["/token"][1]["access_token"]
    assert session.marker.startswith("|oauth:")
    assert base64.b64decode(unquote(session.marker.removeprefix("|oauth:"))) == b"anna:"


@pytest.mark.parametrize(
    ("expires_in", "max_age_s"),
    [(600, 600), ("600", 600), (600.9, 600), (10**9, 28800), (None, 28800), ("x", 28800),
     (0, 28800), (-5, 28800), ([1], 28800), ("1e999", 28800)],
)  # fmt: skip
def test_a_session_lasts_as_long_as_the_token_but_no_more_than_a_working_day(
    s: Setting, expires_in: Any, max_age_s: int
) -> None:
    s.exchanged(s.issuer.token(scope="broker.tag:management"), expires_in=expires_in)

    assert s.complete().max_age_s == max_age_s


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cookie": ""}, "Missing OAuth state"),
        ({"state": ""}, "Missing OAuth state"),
        ({"cookie": "state"}, "Invalid OAuth state cookie"),
        ({"cookie": "state:"}, "Invalid OAuth state cookie"),
        ({"cookie": ":verifier"}, "Invalid OAuth state cookie"),
        ({"cookie": "state:\ud800"}, "Invalid OAuth state cookie"),
        ({"state": "other"}, "State mismatch"),
        ({"state": "\ud800"}, "State mismatch"),
        ({"state": "other", "error": "access_denied"}, "State mismatch"),
        ({"error": "access_denied"}, "access_denied"),
        ({"error": "x", "error_description": "You\n may not" + "!" * 300},
         "You may not" + "!" * 188),
        ({"code": ""}, "Missing authorization code"),
        ({"code": "x" * 5000}, "Missing authorization code"),
        ({"code": "\ud800"}, "Missing authorization code"),
    ],
)  # fmt: skip
def test_a_callback_that_is_wrong_is_refused_in_words(
    s: Setting, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(LoginError) as error:
        s.complete(**changes)

    assert str(error.value) == text
    assert s.issuer.forms == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((400, {"error": "x", "error_description": "Code is used up"}), "Code is used up"),
        ((400, {"error": "x"}), "OAuth authentication failed"),
        ((500, None), "OAuth authentication failed"),
        ((200, {}), "OAuth authentication failed"),
        ((200, {"access_token": 5}), "OAuth authentication failed"),
        ((200, {"access_token": "x" * 20000}), "OAuth authentication failed"),
        ((200, {"access_token": "opaque"}), "Token validation failed"),
        ((200, {"access_token": "\ud800"}), "Token validation failed"),
    ],
)
def test_an_issuer_that_refuses_is_told_in_words(
    s: Setting, answer: tuple[int, Any], text: str
) -> None:
    s.issuer.answers["/token"] = answer

    with pytest.raises(LoginError) as error:
        s.complete()

    assert str(error.value) == text


def test_whoever_has_no_tag_has_no_business_here(s: Setting) -> None:
    s.exchanged(s.issuer.token(scope="broker.read:*/*"))

    with pytest.raises(LoginError, match=r"^Token validation failed$"):
        s.complete()


def test_an_issuer_that_is_not_there(s: Setting) -> None:
    s.issuer.answers["/.well-known/openid-configuration"] = 500, None

    with pytest.raises(LoginError, match=r"^OAuth authorization failed$"):
        s.run(authorize)
    with pytest.raises(LoginError, match=r"^OAuth authentication failed$"):
        s.complete()


def test_an_issuer_without_log_in_for_people(s: Setting) -> None:
    s.issuer.answers["/.well-known/openid-configuration"] = 200, {
        "issuer": s.issuer.url, "jwks_uri": s.issuer.url + "/keys",
    }  # fmt: skip

    with pytest.raises(LoginError, match=r"^OAuth authorization failed$"):
        s.run(authorize)
    with pytest.raises(LoginError, match=r"^OAuth authentication failed$"):
        s.complete()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"oauth_mgmt_base_url": "http://localhost:15672"}, ""),
        ({"oauth_mgmt_base_url": "http://[::1]:15672"}, ""),
        ({"oauth_mgmt_base_url": "http://broker.example"}, "neither https nor local"),
        ({"oauth_mgmt_base_url": "https://["}, "neither https nor local"),
        ({"oauth_client_id": ""}, "lacks client_id"),
        ({"oauth_mgmt_base_url": ""}, "lacks mgmt_base_url"),
    ],
)
def test_it_is_on_when_everything_is_configured(changes: dict[str, str], why: str) -> None:
    config = config_for("https://issuer.example", **changes)

    assert why in oauth_login.missing(config)
    assert oauth_login.is_enabled(config) == (why == "")


def test_nobody_who_wants_tokens_only_is_told_that_something_is_missing() -> None:
    config = config_for("https://i.example", oauth_client_id="", oauth_mgmt_base_url="")

    assert oauth_login.missing(config) == ""
    assert not oauth_login.is_enabled(config)


def test_without_configuration_both_steps_say_so(s: Setting) -> None:
    s.config = config_for(s.issuer.url, oauth_client_id="")

    with pytest.raises(NotConfigured, match=r"^OAuth not configured$"):
        s.run(authorize)
    with pytest.raises(NotConfigured):
        s.complete()


@pytest.mark.parametrize(
    ("base", "path", "secure"),
    [
        (BASE, "/mq", True),
        (BASE + "/", "/mq", True),
        ("https://broker.example", "/", True),
        ("http://localhost:15672/", "/", False),
    ],
)
def test_cookies_belong_to_the_base_url(base: str, path: str, secure: bool) -> None:
    config = config_for("https://issuer.example", oauth_mgmt_base_url=base)

    assert oauth_login.cookie_path(config) == path
    assert oauth_login.is_secure(config) == secure
