"""The management pages as they are sent: addresses, headers, log-ins. No browser is needed."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq.http.ui.places import PLACES
from tests.conftest import BrokerFactory
from tests.support.api import Answer, Api
from tests.support.broker import Broker

FRAMED = [name for name, place in PLACES.items() if place.has_frame]
OPEN = ["login", "401", "404"]
GUEST = {"username": "guest", "password": "guest"}


def ask(broker: Broker, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request without credentials of its own."""
    api = Api(broker)
    api.login = {}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return api(method, path, body, headers=sent)


def logged_in(broker: Broker, name: str = "guest", password: str = "guest") -> str:
    """Log in. Returns: the cookie."""
    answer = ask(broker, "POST", "/session", {"username": name, "password": password})
    assert answer.status == 204, answer
    return answer.headers["set-cookie"].partition(";")[0]


def whoami(broker: Broker, cookie: str) -> int:
    return ask(broker, "GET", "/api/whoami", Cookie=cookie).status


class Parts(HTMLParser):
    """What a page loads, and what of it would be written into it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        for name in ("src", "href"):
            if (value := given.get(name)) and tag in ("script", "link", "use"):
                self.loaded.append(value.partition("#")[0])


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *FRAMED])
@pytest.mark.parametrize("suffix", ["", ".html"])
def test_without_a_log_in_a_page_sends_to_where_one_is_made(
    broker: Broker, name: str, suffix: str
) -> None:
    answer = ask(broker, "GET", f"/{name}{suffix if name else ''}")
    assert (answer.status, answer.headers["location"], answer.content) == (307, "login", b"")


@pytest.mark.parametrize("name", ["", *FRAMED, *OPEN])
def test_pages_have_nothing_written_into_them_and_all_that_they_load(
    broker: Broker, name: str
) -> None:
    cookie = logged_in(broker)
    answer = ask(broker, "GET", f"/{name}", Cookie=cookie)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html;charset=utf-8"
    text = answer.content.decode()
    assert "{{" not in text
    parts = Parts(text)
    assert parts.inline == []
    assert len(parts.loaded) >= 3
    for each in parts.loaded:
        assert ask(broker, "GET", f"/{each}").status == 200, each


@pytest.mark.parametrize("path", ["/login", "/login.html", "/queues.html", "/docs/", "/not/there"])
def test_pages_keep_others_out(broker: Broker, path: str) -> None:
    headers = ask(broker, "GET", path, Accept="text/html").headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'self'" in policy
    assert "form-action 'none'" in policy
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert "lavinmq-version" not in headers


def test_a_page_of_somebody_else_cannot_be_asked_for_by_another_name(broker: Broker) -> None:
    assert ask(broker, "GET", "/login", Host="evil.example").status == 403


def test_an_address_that_is_not_there_has_a_page_for_people_alone(broker: Broker) -> None:
    people = ask(broker, "GET", "/a/b/c", Accept="text/html,*/*")
    assert people.status == 404
    assert 'href="../../ui/' in people.content.decode()
    assert ask(broker, "GET", "/a/b/c").status == 401
    assert ask(broker, "POST", "/a/b/c", Accept="text/html").status == 401


def test_a_page_that_the_browser_has_is_not_sent_again(broker: Broker) -> None:
    first = ask(broker, "GET", "/login")
    again = ask(broker, "GET", "/login", If_None_Match=first.headers["etag"])
    assert (again.status, again.content) == (304, b"")


def test_a_page_can_be_asked_for_its_headers(broker: Broker) -> None:
    answer = ask(broker, "HEAD", "/login")
    assert (answer.status, answer.content) == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_pages_change_nothing(broker: Broker, method: str) -> None:
    assert ask(broker, method, "/queues").status == 405


# --- files ------------------------------------------------------------------------------------


def loaded(broker: Broker) -> list[str]:
    page = ask(broker, "GET", "/queue", Cookie=logged_in(broker))
    return Parts(page.content.decode()).loaded


def test_files_have_types_and_are_kept_for_ever(broker: Broker) -> None:
    kinds = {
        "js": "text/javascript;charset=utf-8", "css": "text/css;charset=utf-8",
        "svg": "image/svg+xml",
    }  # fmt: skip
    for each in loaded(broker):
        headers = ask(broker, "GET", f"/{each}").headers
        assert headers["content-type"] == kinds[each.rpartition(".")[2]]
        assert headers["cache-control"] == "public, max-age=31536000, immutable"


def test_files_are_sent_compressed_to_those_who_take_it(broker: Broker) -> None:
    each = next(name for name in loaded(broker) if name.endswith("uplot.js"))
    plain = ask(broker, "GET", f"/{each}")
    packed = ask(broker, "GET", f"/{each}", Accept_Encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content) / 2


@pytest.mark.parametrize(
    "name", ["places.py", "../places.py", "..%2fplaces.py", "shell.html", "pages/queue.html", ""]
)
def test_nothing_else_is_sent(broker: Broker, name: str) -> None:
    digest = re.search(r"ui/([0-9a-f]+)/", loaded(broker)[0])
    assert digest is not None
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
    connection.request("GET", f"/ui/{digest[1]}/{name}")
    assert connection.getresponse().status in (401, 404)
    connection.close()


def test_files_of_another_release_are_not_there(broker: Broker) -> None:
    assert ask(broker, "GET", "/ui/0123456789abcdef0123/style.css").status == 404


# --- logging in -------------------------------------------------------------------------------


def test_the_cookie_is_for_the_browser_alone(broker: Broker) -> None:
    answer = ask(broker, "POST", "/session", GUEST)
    attributes = answer.headers["set-cookie"].lower()
    for each in ("httponly", "samesite=lax", "path=/", "max-age=28800"):
        assert each in attributes
    assert answer.headers["cache-control"] == "no-store"


def test_each_log_in_has_a_token_of_its_own(broker: Broker) -> None:
    planted = "m=|session:planted-by-somebody"
    answer = ask(broker, "POST", "/session", GUEST, Cookie=planted)
    assert "planted" not in answer.headers["set-cookie"]
    assert whoami(broker, planted) == 401
    first = logged_in(broker)
    renewed = ask(broker, "POST", "/session", GUEST, Cookie=first)
    assert renewed.status == 204
    assert whoami(broker, first) == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"username": "guest", "password": "wrong"}, 401),
        ({"username": "nobody", "password": "x"}, 401),
        ({"username": "guest", "password": ""}, 400),
        ({"username": "guest"}, 400),
        ({"username": 1, "password": "x"}, 400),
        ([], 400),
    ],
)
def test_what_does_not_log_in(broker: Broker, body: Any, status: int) -> None:
    answer = ask(broker, "POST", "/session", body)
    assert answer.status == status
    assert "set-cookie" not in answer.headers
    if status == 401:
        assert answer.json["reason"] == "Authentication failure"


def test_a_user_without_a_tag_is_told_why(broker: Broker) -> None:
    Api(broker).as_user("ui-untagged", "")
    given = {"username": "ui-untagged", "password": "ui-untagged-pw"}
    answer = ask(broker, "POST", "/session", given)
    assert answer.status == 403
    assert "no tag" in answer.json["reason"]


@pytest.mark.parametrize("name", ["jürgen", "имя", 'a"b', "🐇"])
def test_names_and_passwords_of_any_text_log_in(broker: Broker, name: str) -> None:
    user = {"password": f"{name}:päß", "tags": "management"}
    Api(broker)("PUT", f"/api/users/{quote(name)}", user)
    cookie = logged_in(broker, name, f"{name}:päß")
    assert ask(broker, "GET", "/api/whoami", Cookie=cookie).json["name"] == name


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "null"},
    ],
)
def test_another_site_logs_nobody_in_or_out(broker: Broker, headers: dict[str, str]) -> None:
    cookie = logged_in(broker)
    assert ask(broker, "POST", "/session", GUEST, **headers).status == 403
    assert ask(broker, "DELETE", "/session", Cookie=cookie, **headers).status == 403
    assert whoami(broker, cookie) == 200


def test_a_form_of_a_page_cannot_log_in(broker: Broker) -> None:
    """A page can make a browser send a form to us; JSON it cannot."""
    answer = Api(broker)(
        "POST", "/session", raw=b'{"username":"guest","password":"guest"}',
        headers={"Content-Type": "text/plain", "Origin": broker.http_url},
    )  # fmt: skip
    assert answer.status == 415


def test_signing_out_ends_the_log_in_for_copies_too(broker: Broker) -> None:
    cookie, other = logged_in(broker), logged_in(broker)
    answer = ask(broker, "DELETE", "/session", Cookie=cookie)
    assert answer.status == 204
    assert 'm=""' in answer.headers["set-cookie"]
    assert (whoami(broker, cookie), whoami(broker, other)) == (401, 200)
    assert ask(broker, "GET", "/queues", Cookie=cookie).status == 307


def test_signing_out_everywhere_ends_those_of_the_user_alone(broker: Broker) -> None:
    Api(broker).as_user("ui-other", "management")
    cookies = [logged_in(broker) for _ in range(3)]
    others = logged_in(broker, "ui-other", "ui-other-pw")
    assert ask(broker, "DELETE", "/session?everywhere", Cookie=cookies[0]).status == 204
    assert [whoami(broker, each) for each in (*cookies, others)] == [401, 401, 401, 200]


def test_another_password_and_a_deleted_user_end_log_ins(broker: Broker) -> None:
    api = Api(broker)
    for name in ("ui-changed", "ui-deleted"):
        api.as_user(name, "management")
    changed = logged_in(broker, "ui-changed", "ui-changed-pw")
    deleted = logged_in(broker, "ui-deleted", "ui-deleted-pw")
    assert api("PUT", "/api/users/ui-changed", {"password": "new"}).status == 204
    assert api("DELETE", "/api/users/ui-deleted").status == 204
    assert (whoami(broker, changed), whoami(broker, deleted)) == (401, 401)


def test_a_long_answer_ends_with_the_log_in(broker: Broker) -> None:
    """A tab that somebody has left open shows the log no more."""
    cookie = logged_in(broker)
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
    connection.request("GET", "/api/livelog", headers={"Cookie": cookie})
    response = connection.getresponse()
    assert response.status == 200
    assert ask(broker, "DELETE", "/session", Cookie=cookie).status == 204
    response.read()  # comes to an end, or times out
    connection.close()


def test_a_page_is_told_what_changes(broker: Broker) -> None:
    """The stream that pages follow, by the log-in of a browser, also of the executable."""
    api, cookie = Api(broker), logged_in(broker)
    view = "queues?page=1&page_size=1&name=ui-told"
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
    path = f"/api/live?rate=1&view={quote(view, safe='')}"
    connection.request("GET", path, headers={"Cookie": cookie})
    response = connection.getresponse()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")

    def next_told() -> Any:
        while not (line := response.readline()).startswith(b"data: {"):
            assert line, "the stream has ended"
        return json.loads(line.removeprefix(b"data: "))

    while not (said := next_told()).get("view"):
        pass
    assert (said["view"], said["answer"]["item_count"]) == (view, 0)
    assert api("PUT", "/api/queues/%2F/ui-told", {}).status == 201

    while "answer" not in (said := next_told()):
        pass

    assert said["answer"]["items"][0]["name"] == "ui-told"
    assert ask(broker, "DELETE", "/session", Cookie=cookie).status == 204
    response.read()  # it ends with the log-in
    connection.close()


def test_tags_that_are_taken_away_count_at_once(broker: Broker) -> None:
    api = Api(broker)
    api.as_user("ui-demoted", "administrator")
    cookie = logged_in(broker, "ui-demoted", "ui-demoted-pw")
    assert ask(broker, "GET", "/api/users", Cookie=cookie).status == 200
    assert api("PUT", "/api/users/ui-demoted", {"tags": "management"}).status == 204
    assert ask(broker, "GET", "/api/users", Cookie=cookie).status == 403


def test_the_cookie_of_older_pages_counts_as_well(broker: Broker) -> None:
    assert whoami(broker, "m=|:" + quote("Z3Vlc3Q6Z3Vlc3Q=", safe="")) == 200


def test_nothing_of_a_log_in_is_logged(http_broker: Broker) -> None:
    cookie = logged_in(http_broker)
    ask(http_broker, "POST", "/session", {"username": "guest", "password": "hush-hush"})
    assert whoami(http_broker, cookie) == 200
    text = http_broker.log_text()
    assert "logged in with a browser" in text
    assert cookie.partition(":")[2] not in text
    assert "hush-hush" not in text


def test_the_page_learns_whether_one_may_log_in_elsewhere(broker: Broker) -> None:
    assert ask(broker, "GET", "/session").json == {"password": True, "sso": False}


def test_the_metrics_have_no_pages(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    connection = http.client.HTTPConnection(broker.host, broker.metrics_port, timeout=20)
    for path in ("/", "/login", "/session", "/docs/"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == 404, path
    connection.close()


def test_the_api_describes_itself_for_the_page(broker: Broker) -> None:
    assert json.loads(ask(broker, "GET", "/docs/openapi.json").content)["openapi"].startswith("3.1")
    assert ask(broker, "GET", "/docs/").status == 200
