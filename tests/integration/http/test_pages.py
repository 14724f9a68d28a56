"""What web pages of others get from a broker: nothing, unless the operator says so.

Browsers say what page asks: `Origin` and `Sec-Fetch-Site`; and by what name they reach us: `Host`.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Answer, Api
from tests.support.broker import Broker

EVIL = "https://evil.example"
JSON = "application/json"
UPLOAD = (
    '--x\r\nContent-Disposition: form-data; name="file"; filename="d.json"\r\n\r\n{}\r\n--x--\r\n'
)
TAKEOVER = json.dumps(
    {"users": [{"name": "evil", "password_hash": "", "tags": "administrator"}]}
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("pages")
    broker = Broker(directory / "data", http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose operator has said what else is his."""
    directory = tmp_path_factory.mktemp("told")
    config = directory / "told.ini"
    config.write_text(
        "[mgmt]\nallowed_hosts = broker.example, other.example:8443\n"
        "cors_allowed_origins = https://ui.example\n"
        "websocket_allowed_origins = https://chat.example\n"
    )
    broker = Broker(directory / "data", ["-c", str(config)], http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


def own(broker: Broker) -> str:
    """The origin of a page of the broker itself."""
    return f"http://{broker.host}:{broker.http_port}"


def websocket(broker: Broker, *headers: str, host: str = "", path: str = "") -> bytes:
    """The beginning of the answer to the request for a WebSocket."""
    lines = [
        "GET /ws HTTP/1.1", f"Host: {host or f'{broker.host}:{broker.http_port}'}",
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *headers, "", "",
    ]  # fmt: skip
    connection = (
        socket.socket(socket.AF_UNIX)
        if path
        else socket.create_connection((broker.host, broker.http_port), timeout=10)
    )
    with connection:
        if path:
            connection.connect(path)
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(4096)


def ask(
    broker: Broker, method: str, path: str, body: bytes | None = None, **headers: str
) -> Answer:
    """A request with exactly these headers, and the credentials that a browser keeps."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
        if body is not None:
            named["Content-Length"] = str(len(body))
        for name, value in (Api(broker).login | named).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, {}, response.read())
    finally:
        connection.close()


def refused(answer: Answer, setting: str) -> bool:
    if answer.status != 403:
        return False
    return answer.json["error"] == "access_refused" and setting in answer.json["reason"]


# --- WebSockets -------------------------------------------------------------------------------


def test_a_page_of_another_origin_opens_no_websocket(broker: Broker) -> None:
    for origin in (EVIL, "null", "https://127.0.0.1.evil.example", f"http://{broker.host}:1", "x"):
        answer = websocket(broker, f"Origin: {origin}")
        assert answer.startswith(b"HTTP/1.1 403 "), origin
        assert b"websocket_allowed_origins" in answer
    assert EVIL in broker.log_text()


def test_a_page_of_ours_and_a_program_open_one(broker: Broker) -> None:
    assert websocket(broker, f"Origin: {own(broker)}").startswith(b"HTTP/1.1 101 ")
    assert websocket(broker).startswith(b"HTTP/1.1 101 ")


def test_a_listed_page_opens_one(told: Broker) -> None:
    assert websocket(told, "Origin: https://chat.example").startswith(b"HTTP/1.1 101 ")
    assert websocket(told, "Origin: https://broker.example").startswith(b"HTTP/1.1 101 ")
    assert websocket(told, "Origin: https://ui.example").startswith(b"HTTP/1.1 403 ")
    assert websocket(told, f"Origin: {EVIL}").startswith(b"HTTP/1.1 403 ")


def test_every_page_opens_one_where_the_operator_says_so(broker_factory: BrokerFactory) -> None:
    variables = {"LAVINMQ_MGMT_WEBSOCKET_ALLOWED_ORIGINS": "*"}
    started = broker_factory(env=variables, http=True)
    assert websocket(started, f"Origin: {EVIL}").startswith(b"HTTP/1.1 101 ")


# --- the name by which we are reached ---------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/overview", "/metrics", "/healthz", "/", "/oauth/enabled"])
def test_a_name_that_is_not_this_machine_is_refused(broker: Broker, path: str) -> None:
    """A page may give its own name our address; to the browser it is then one with us."""
    for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "[::2]"):
        assert refused(ask(broker, "GET", path, Host=host), "allowed_hosts"), host
    assert websocket(broker, host="evil.example").startswith(b"HTTP/1.1 403 ")


def test_the_metrics_are_for_our_names_only(broker: Broker) -> None:
    for host, status in (("evil.example", 403), ("localhost", 200)):
        connection = http.client.HTTPConnection(broker.host, broker.metrics_port, timeout=20)
        connection.request("GET", "/metrics", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


def test_names_of_this_machine_are_served(broker: Broker) -> None:
    names = ("localhost", "LOCALHOST.:1", "127.0.0.1:15672", "127.1.2.3", "[::1]:1", "[::1]",
             socket.gethostname(), f"{socket.gethostname().upper()}:15672")  # fmt: skip
    for host in names:
        assert ask(broker, "GET", "/api/whoami", Host=host).status == 200, host


def test_names_that_the_operator_lists_are_served(told: Broker) -> None:
    for host in ("broker.example", "broker.example:443", "other.example"):
        assert ask(told, "GET", "/api/whoami", Host=host).status == 200
    assert refused(ask(told, "GET", "/api/whoami", Host="evil.example"), "allowed_hosts")
    forwarded = {"Host": "evil.example", "X_Forwarded_Host": "broker.example"}
    assert refused(ask(told, "GET", "/api/whoami", **forwarded), "allowed_hosts")


def test_any_name_is_served_where_the_operator_says_so(broker_factory: BrokerFactory) -> None:
    started = broker_factory(env={"LAVINMQ_MGMT_ALLOWED_HOSTS": "*"}, http=True)
    assert ask(started, "GET", "/api/whoami", Host="evil.example").status == 200
    page = {"Host": "evil.example", "Origin": "https://other.example"}
    assert refused(ask(started, "DELETE", "/api/vhosts/x", **page), "cors_allowed_origins")


def test_the_control_socket_asks_for_no_names(broker: Broker) -> None:
    answer = websocket(broker, f"Origin: {EVIL}", host="evil.example", path=broker.control_path)
    assert answer.startswith(b"HTTP/1.1 101 ")


# --- changes ----------------------------------------------------------------------------------

CHANGES = [
    ("PUT", "/api/vhosts/evil", b"{}", JSON),
    ("DELETE", "/api/vhosts/evil", None, ""),
    ("POST", "/api/definitions", TAKEOVER.encode(), JSON),
    ("POST", "/api/definitions/upload", UPLOAD.encode(), "multipart/form-data; boundary=x"),
    ("POST", "/api/rebalance/queues", None, ""),
    ("POST", "/api/nodes/gc_collect", b"a=b", "application/x-www-form-urlencoded"),
    ("GET", "/api/aliveness-test/%2F", None, ""),
]


@pytest.mark.parametrize(("method", "path", "body", "kind"), CHANGES)
@pytest.mark.parametrize(
    "page",
    [
        {"Origin": EVIL}, {"Origin": "null"}, {"Origin": EVIL, "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
        {"Origin": EVIL, "Sec_Fetch_Site": "cross-site"},
    ],
    ids=["origin", "null", "lie", "cross-site", "same-site", "both"],
)  # fmt: skip
def test_a_page_of_others_changes_nothing(
    broker: Broker, method: str, path: str, body: bytes | None, kind: str, page: dict[str, str]
) -> None:
    sent = page | ({"Content_Type": kind} if kind else {})
    assert refused(ask(broker, method, path, body, **sent), "cors_allowed_origins")
    assert [row["name"] for row in Api(broker).get("/api/users")] == ["guest"]


def test_a_page_of_ours_changes_what_it_may(broker: Broker) -> None:
    page = {"Origin": own(broker), "Sec_Fetch_Site": "same-origin"}
    put = {**page, "Content_Type": JSON}
    assert ask(broker, "PUT", "/api/vhosts/ours", b"{}", **put).status == 201
    form = {**page, "Content_Type": "multipart/form-data; boundary=x"}
    assert ask(broker, "POST", "/api/definitions/upload", UPLOAD.encode(), **form).status == 200
    assert ask(broker, "DELETE", "/api/vhosts/ours", **page).status == 204
    typed = {"Sec_Fetch_Site": "none"}
    assert ask(broker, "GET", "/api/aliveness-test/%2F", **typed).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/x"])
def test_a_page_sends_json_where_json_is_wanted(broker: Broker, kind: str) -> None:
    page = {"Origin": own(broker), "Content_Type": kind}
    for path in ("/api/nodes/gc_collect", "/api/definitions", "/api/definitions/upload"):
        assert ask(broker, "POST", path, b"{}", **page).status == 415, path


def test_a_program_says_no_origin_and_is_served_as_ever(broker: Broker) -> None:
    form = {"Content_Type": "multipart/form-data; boundary=x"}
    assert ask(broker, "POST", "/api/definitions/upload", UPLOAD.encode(), **form).status == 200
    curl = {"Content_Type": "application/x-www-form-urlencoded"}
    assert ask(broker, "POST", "/api/nodes/gc_collect", b"x", **curl).status == 204
    assert ask(broker, "POST", "/api/rebalance/queues").status == 204


def test_listed_pages_change_what_they_may(told: Broker) -> None:
    page = {"Sec_Fetch_Site": "cross-site", "Content_Type": JSON}
    allowed = ("https://ui.example", "https://broker.example", "https://other.example:8443")
    for origin in allowed:
        answer = ask(told, "PUT", "/api/vhosts/listed", b"{}", Origin=origin, **page)
        assert answer.status in (201, 204), origin
    for origin in ("https://other.example", "https://broker.example:1", "https://chat.example"):
        answer = ask(told, "PUT", "/api/vhosts/listed", b"{}", Origin=origin, **page)
        assert refused(answer, "cors_allowed_origins"), origin


def test_any_page_is_let_in_with_what_a_form_cannot_send(broker_factory: BrokerFactory) -> None:
    """With * pages may log in by themselves: what a browser adds by itself must not count."""
    started = broker_factory(env={"LAVINMQ_MGMT_CORS_ALLOWED_ORIGINS": "*"}, http=True)
    page = {"Origin": EVIL, "Sec_Fetch_Site": "cross-site"}
    asked_first = {**page, "Content_Type": JSON}
    assert ask(started, "PUT", "/api/vhosts/v", b"{}", **asked_first).status == 201
    assert ask(started, "DELETE", "/api/vhosts/v", **page).status == 204
    assert ask(started, "POST", "/api/nodes/gc_collect", b"{}", **asked_first).status == 204
    assert ask(started, "POST", "/api/nodes/gc_collect", **page).status == 403
    form = {**page, "Content_Type": "multipart/form-data; boundary=x"}
    assert ask(started, "POST", "/api/definitions/upload", UPLOAD.encode(), **form).status == 403


def test_looking_and_asking_first_are_not_refused(broker: Broker) -> None:
    """The browser keeps the answer from the page."""
    page = {"Origin": EVIL, "Sec_Fetch_Site": "cross-site"}
    assert ask(broker, "GET", "/api/whoami", **page).status == 200


def test_a_refused_request_leaves_no_body(broker: Broker) -> None:
    head = {"Origin": EVIL, "Content_Type": JSON, "Content_Length": "1000000000"}
    assert ask(broker, "POST", "/api/definitions", **head).status == 403
