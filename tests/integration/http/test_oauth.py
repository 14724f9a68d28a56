"""Logging in to the management pages at an issuer of tokens, as a browser does it."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookies import Morsel, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.issuer import Issuer, serving

BASE = "https://broker.example/mq"
MANAGEMENT = "broker.tag:management"
CHOSEN = ("oauth_token", "m")


class Seen(NamedTuple):
    """An answer, with the cookies it sets."""

    status: int
    headers: dict[str, str]
    cookies: dict[str, Morsel[str]]
    content: bytes

    @property
    def error(self) -> str:
        """What the log-in page is told."""
        place = self.headers["location"]
        assert (self.status, place.partition("?")[0]) == (302, "../login")
        return parse_qs(urlsplit(place).query)["error"][0]


def is_expired(morsel: Morsel[str]) -> bool:
    """Whether the browser is told to forget a cookie."""
    return bool(morsel["expires"]) and parsedate_to_datetime(morsel["expires"]) < datetime.now(UTC)


class Browser:
    """Keeps cookies; sends them with every request."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.kept: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Seen:
        connection = http.client.HTTPConnection(
            self._broker.host, self._broker.http_port, timeout=30
        )  # fmt: skip
        jar = "; ".join(f"{name}={value}" for name, value in self.kept.items())
        try:
            connection.request("GET", path, headers=({"Cookie": jar} if jar else {}) | headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        cookies: SimpleCookie = SimpleCookie()
        for name, value in response.getheaders():
            if name.lower() == "set-cookie":
                cookies.load(value)
        for name, morsel in cookies.items():
            if is_expired(morsel):
                self.kept.pop(name, None)
            else:
                self.kept[name] = morsel.value
        found = {name.lower(): value for name, value in response.getheaders()}
        return Seen(response.status, found, dict(cookies), content)

    def begin(self) -> str:
        """Ask where to log in. Returns: the state."""
        answer = self.get("/oauth/authorize")
        assert answer.status == 200, answer
        return parse_qs(urlsplit(json.loads(answer.content)["authorize_url"]).query)["state"][0]

    def come_back(self, **changes: str) -> Seen:
        """Begin, and come back from the issuer."""
        given = {"state": self.begin(), "code": "c0de"} | changes
        return self.get("/oauth/callback?" + "&".join(f"{k}={v}" for k, v in given.items()))


def variables(issuer: Issuer, **changes: str) -> dict[str, str]:
    pages = {"LAVINMQ_OAUTH_CLIENT_ID": "ui", "LAVINMQ_OAUTH_MGMT_BASE_URL": BASE}
    return issuer.variables | pages | changes


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Broker]:
    """A broker whose pages offer the log-in, shared by the tests of this module."""
    data_dir = tmp_path_factory.mktemp("front") / "data"
    broker = Broker(data_dir, env=variables(issuer), http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def browser(trusting: Broker, issuer: Issuer) -> Browser:
    exchanged(issuer, issuer.token(scope=MANAGEMENT))
    return Browser(trusting)


def exchanged(issuer: Issuer, token: Any, status: int = 200, **more: Any) -> None:
    """What the issuer gives for a code."""
    issuer.answers["/token"] = status, {"access_token": token} | more


def test_a_person_logs_in_looks_and_logs_out(browser: Browser, issuer: Issuer) -> None:
    assert browser.get("/api/whoami").status == 401

    back = browser.come_back()

    assert (back.status, back.headers["location"]) == (302, "..")
    assert set(browser.kept) == set(CHOSEN)
    assert browser.kept["m"] == "|oauth:" + base64.b64encode(b"anna:").decode().replace("=", "%3D")
    assert issuer.forms[-1]["redirect_uri"] == BASE + "/oauth/callback"
    answer = browser.get("/api/whoami")
    assert (answer.status, json.loads(answer.content)["name"]) == (200, "anna")
    assert browser.get("/api/users").status == 403

    assert browser.get("/queues").status == 200
    out = browser.get("/oauth/logout")

    assert browser.get("/queues").status == 307
    assert (out.status, out.headers["location"]) == (302, "../login")
    assert browser.kept == {}
    assert browser.get("/api/whoami").status == 401


def test_the_browser_is_told_where_to_log_in(browser: Browser, issuer: Issuer) -> None:
    enabled = browser.get("/oauth/enabled")
    answer = browser.get("/oauth/authorize")

    assert (enabled.status, json.loads(enabled.content)) == (200, {"enabled": True})
    assert json.loads(browser.get("/session").content)["sso"] is True
    url = json.loads(answer.content)["authorize_url"]
    assert url.startswith(issuer.url + "/authorize?")
    query = parse_qs(urlsplit(url).query)
    assert query["redirect_uri"] == [BASE + "/oauth/callback"]
    state, _, verifier = browser.kept["oauth_state"].partition(":")
    assert [state] == query["state"]
    assert verifier
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("base", "path", "is_secure"),
    [(BASE, "/mq", True), ("http://localhost:15672", "/", False)],
)
def test_cookies_are_for_the_pages_and_nobody_else(
    broker_factory: BrokerFactory, issuer: Issuer, base: str, path: str, is_secure: bool
) -> None:
    changed = variables(issuer, LAVINMQ_OAUTH_MGMT_BASE_URL=base)
    browser = Browser(broker_factory(env=changed, http=True))
    exchanged(issuer, issuer.token(scope=MANAGEMENT), expires_in="120")

    asked = browser.get("/oauth/authorize").cookies["oauth_state"]
    back = browser.come_back().cookies
    out = browser.get("/oauth/logout").cookies

    assert set(back) == {"oauth_token", "m", "oauth_state"}
    assert set(out) == set(CHOSEN)
    for morsel in (asked, *back.values(), *out.values()):
        assert (morsel["path"], morsel["samesite"]) == (path, "Lax")
        assert bool(morsel["secure"]) is is_secure
        assert bool(morsel["httponly"]) is (morsel.key != "m")
    assert asked["max-age"] == "300"
    assert [back[name]["max-age"] for name in CHOSEN] == ["120", "120"]
    assert is_expired(back["oauth_state"])
    assert all(is_expired(each) for each in out.values())


def test_a_log_in_without_a_known_end_lasts_eight_hours(browser: Browser) -> None:
    assert browser.come_back().cookies["oauth_token"]["max-age"] == str(8 * 3600)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "other"}, "State mismatch"),
        ({"state": ""}, "Missing OAuth state"),
        ({"state": "%ff%fe"}, "State mismatch"),
        ({"code": ""}, "Missing authorization code"),
        ({"error": "access_denied"}, "access_denied"),
        ({"error": "x", "error_description": "Not+you,+%C3%84nn%0D%0Aa"}, "Not you, Änna"),
    ],
)
def test_a_bad_way_back_is_told_on_the_log_in_page(
    browser: Browser, changes: dict[str, str], text: str
) -> None:
    back = browser.come_back(**changes)

    assert back.error == text
    assert set(back.cookies) == set()


def test_whoever_has_not_begun_cannot_come_back(browser: Browser) -> None:
    assert browser.get("/oauth/callback?state=s&code=c").error == "Missing OAuth state"
    browser.kept["oauth_state"] = "s"
    assert browser.get("/oauth/callback?state=s&code=c").error == "Invalid OAuth state cookie"


def test_what_the_issuer_refuses_is_told(browser: Browser, issuer: Issuer) -> None:
    exchanged(issuer, "", 400, error_description="Code not valid")
    assert browser.come_back().error == "Code not valid"
    exchanged(issuer, "", 500)
    assert browser.come_back().error == "OAuth authentication failed"


@pytest.mark.parametrize("claims", [{"scope": ""}, {"aud": "other"}, {"exp": 1}])
def test_a_token_that_gives_nothing_logs_nobody_in(
    browser: Browser, issuer: Issuer, claims: dict[str, Any]
) -> None:
    exchanged(issuer, issuer.token(**({"scope": MANAGEMENT} | claims)))

    assert browser.come_back().error == "Token validation failed"
    assert "oauth_token" not in browser.kept


def test_a_token_that_is_over_is_forgotten(browser: Browser, issuer: Issuer) -> None:
    browser.kept = {
        "oauth_token": issuer.token(scope=MANAGEMENT, exp=time.time() - 1),
        "m": "|oauth:x",
    }

    answer = browser.get("/api/whoami")

    assert answer.status == 401
    assert all(is_expired(answer.cookies[name]) for name in CHOSEN)
    assert browser.kept == {}


def test_the_token_of_a_user_without_a_tag_is_no_log_in(browser: Browser, issuer: Issuer) -> None:
    browser.kept = {"oauth_token": issuer.token(scope="broker.read:*/*")}

    assert browser.get("/api/whoami").status == 401
    assert browser.kept == {}


def test_the_cookie_is_for_the_api_alone(browser: Browser) -> None:
    browser.come_back()

    answer = browser.get("/nothing")

    assert (answer.status, answer.cookies) == (401, {})


def test_credentials_that_were_sent_win_over_the_cookie(browser: Browser) -> None:
    browser.come_back()
    right = "Basic " + base64.b64encode(b"guest:guest").decode()
    wrong = "Basic " + base64.b64encode(b"guest:wrong").decode()

    assert json.loads(browser.get("/api/whoami", Authorization=right).content)["name"] == "guest"
    assert browser.get("/api/whoami", Authorization=wrong).status == 401
    assert "oauth_token" in browser.kept


def test_a_token_is_a_password_too(trusting: Broker, issuer: Issuer) -> None:
    api = Api(trusting, "any", issuer.token(scope=MANAGEMENT))

    assert api.get("/api/whoami")["name"] == "anna"


def test_a_password_still_logs_in_by_the_form(browser: Browser, trusting: Broker) -> None:
    api = Api(trusting)
    answer = api("POST", "/session", {"username": "guest", "password": "guest"})
    cookies: SimpleCookie = SimpleCookie(answer.headers["set-cookie"])
    browser.kept = {name: morsel.value for name, morsel in cookies.items()}

    answered = browser.get("/api/whoami")

    assert (answered.status, answered.content[:15]) == (200, b'{"name":"guest"')


def test_without_keys_nobody_is_logged_out(broker_factory: BrokerFactory) -> None:
    with serving() as gone:
        token = gone.token(scope=MANAGEMENT)
    browser = Browser(broker_factory(env=variables(gone), http=True))
    browser.kept = {"oauth_token": token, "m": "|oauth:x"}

    answer = browser.get("/api/whoami")

    assert (answer.status, answer.cookies) == (401, {})
    failed = browser.get("/oauth/authorize")
    assert failed.status == 502
    assert json.loads(failed.content) == {"reason": "OAuth authorization failed"}


def test_tokens_without_pages_offer_no_log_in(
    broker_factory: BrokerFactory, issuer: Issuer
) -> None:
    changed = variables(issuer)
    del changed["LAVINMQ_OAUTH_CLIENT_ID"], changed["LAVINMQ_OAUTH_MGMT_BASE_URL"]
    browser = Browser(broker_factory(env=changed, http=True))

    assert json.loads(browser.get("/oauth/enabled").content) == {"enabled": False}
    assert json.loads(browser.get("/session").content) == {"password": True, "sso": False}
    asked = browser.get("/oauth/authorize")
    assert (asked.status, json.loads(asked.content)) == (503, {"reason": "OAuth not configured"})
    assert browser.get("/oauth/callback?state=s&code=c").error == "OAuth not configured"


@pytest.mark.parametrize("step", ["enabled", "authorize", "callback", "logout"])
def test_without_the_backend_there_is_nothing(broker: Broker, step: str) -> None:
    answer = Browser(broker).get(f"/oauth/{step}")

    assert (answer.status, answer.content) == (401, b"")
    assert Api(broker)("GET", f"/oauth/{step}").status == 404


def test_nothing_of_it_is_served_with_the_metrics(trusting: Broker) -> None:
    connection = http.client.HTTPConnection(trusting.host, trusting.metrics_port, timeout=30)
    connection.request("GET", "/oauth/enabled")

    assert connection.getresponse().status == 404
    connection.close()


def test_the_name_in_the_marker_is_the_users(browser: Browser, issuer: Issuer) -> None:
    exchanged(issuer, issuer.token(scope=MANAGEMENT, sub="Ånn;a"))

    marker = browser.come_back().cookies["m"].value

    assert base64.b64decode(unquote(marker.removeprefix("|oauth:"))).decode() == "Ånn;a:"
