"""What every request to the HTTP API meets: log-in, bodies, errors, CORS, compression."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker


def talk(broker: Broker, request: bytes, path: str = "") -> bytes:
    """Send these very bytes and return everything that comes until the broker closes."""
    family = socket.AF_UNIX if path else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(20)
        connection.connect(path or (broker.host, broker.http_port))
        connection.sendall(request)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


LOGIN = b"Authorization: Basic " + base64.b64encode(b"guest:guest") + b"\r\n"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Basic !!",
        "Basic " + base64.b64encode(b"guest:wrong").decode(),
        "Basic " + base64.b64encode(b"guest:").decode(),
        "Basic " + base64.b64encode(b"nobody:guest").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:guest").decode(),
        "Bearer eyJ",
    ],
)
def test_wrong_credentials_are_refused(broker: Broker, authorization: str) -> None:
    header = f"Authorization: {authorization}\r\n" if authorization else ""
    request = f"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n"

    answer = talk(broker, request.encode())

    assert status(answer) == 401
    assert answer.endswith(b"\r\n\r\n")
    assert b'Www-Authenticate: Basic realm="LavinMQ"' in answer


def test_a_browser_is_not_asked_to_ask_its_user(broker: Broker) -> None:
    head = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    answer = talk(broker, head + b"Connection: close\r\n\r\n")

    assert status(answer) == 401
    assert b"Www-Authenticate" not in answer


def test_the_cookie_of_the_log_in_page_is_taken(broker: Broker) -> None:
    cookie = "|:" + base64.b64encode(b"guest:guest").decode().replace("=", "%3D")
    request = (
        f"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nCookie: m={cookie}\r\n"
        "Connection: close\r\n\r\n"
    )

    assert json.loads(talk(broker, request.encode()).partition(b"\r\n\r\n")[2])["name"] == "guest"


def test_whoever_has_not_logged_in_cannot_leave_a_body(broker: Broker) -> None:
    head = b"PUT /api/vhosts/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"

    assert status(talk(broker, head)) == 401


def test_a_body_above_the_limit_is_refused_before_it_comes(broker: Broker) -> None:
    head = b"PUT /api/vhosts/x HTTP/1.1\r\nHost: localhost\r\n" + LOGIN
    answer = talk(broker, head + b"Content-Length: 1000000000\r\n\r\n")

    assert status(answer) == 413
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "payload_too_large"


def test_a_chunked_body_above_the_limit_is_refused(broker_factory: BrokerFactory) -> None:
    config = broker_factory(start=False).data_dir.with_name("small.ini")
    config.write_text("[mgmt]\nmax_body_size = 2048\n")
    broker = broker_factory(["-c", str(config)], http=True)
    head = (
        b"PUT /api/vhosts/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + LOGIN
    )
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"

    answer = talk(broker, head + b"Connection: close\r\n\r\n" + chunk * 3 + b"0\r\n\r\n")

    assert status(answer) in (400, 413)
    assert Api(broker).get("/api/whoami")["name"] == "guest"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "Malformed JSON"),
        (b"x", "Malformed JSON"),
        (b'{"value": "', "Malformed JSON"),
        (b'{"value": "\xff"}', "Malformed JSON"),
        (b'{\n "value": {"a": 1,}\n}', "Malformed JSON at line 2, column 18"),
        (b'{"value": 1} x', "Malformed JSON at line 1, column 14"),
        (b"[]", "Request body has to be a JSON object"),
        (b'{"description": 1}', "Field 'description' must be a string"),
        (b'{"descripton": "x"}', "Field 'descripton' is unknown, did you mean 'description'?"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_by_name(api: Api, body: bytes, reason: str) -> None:
    answer = api("PUT", "/api/vhosts/never", raw=body)

    assert (answer.status, answer.json) == (400, {"error": "bad_request", "reason": reason})
    assert api("GET", "/api/vhosts/never").status == 403


def test_a_request_that_needs_no_body_may_have_none(broker: Broker) -> None:
    """As `curl -X PUT` sends it, and with `-d ''` the type of a form."""
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n"
    for more in (b"", form):
        head = (
            b"PUT /api/vhosts/%2F HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            + LOGIN
            + more
        )
        assert status(talk(broker, head + b"\r\n")) == 204


def test_a_request_without_the_body_it_needs_is_refused(broker: Broker) -> None:
    head = (
        b"PUT /api/policies/%2F/never HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + LOGIN
    )
    answer = talk(broker, head + b"\r\n")

    assert status(answer) == 400
    assert b"Request body required" in answer


def test_a_content_type_with_parameters_is_json(api: Api) -> None:
    for content_type, expected in [
        ("application/json; charset=utf-8", 204),
        ("text/plain", 415),
    ]:
        answer = api("PUT", "/api/vhosts/%2F", {}, headers={"Content-Type": content_type})
        assert answer.status == expected


@pytest.mark.parametrize(
    "path", ["/api/nothing", "/api/vhosts/%2F/nothing/here", "/api/vhosts//", "/api/../api/whoamI"]
)
def test_a_path_without_an_endpoint_is_not_found(api: Api, path: str) -> None:
    answer = api("GET", path)

    assert (answer.status, answer.content) in [(404, b"404 Not Found\n"), (200, answer.content)]
    if path != "/api/vhosts//":
        assert answer.status == 404


def test_slashes_around_a_path_do_not_count(api: Api) -> None:
    assert api.get("/api/whoami/") == api.get("/api/whoami")


def test_long_answers_are_compressed_for_who_takes_that(api: Api) -> None:
    plain = api("GET", "/docs/openapi.json")
    names = [f"zip-{number}" for number in range(12)]
    for name in names:
        assert api("PUT", f"/api/vhosts/{name}", {}).status == 201
    packed = api("GET", "/api/vhosts?name=zip-", headers={"Accept-Encoding": "gzip"})

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert {row["name"] for row in json.loads(gzip.decompress(packed.content))} == set(names)
    for name in names:
        assert api("DELETE", f"/api/vhosts/{name}").status == 204


def test_the_control_socket_needs_no_log_in_but_checks_one_that_is_given(broker: Broker) -> None:
    head = b"GET /api/vhosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    wrong = b"Authorization: Basic " + base64.b64encode(b"guest:wrong") + b"\r\n"

    assert status(talk(broker, head + b"\r\n", broker.control_path)) == 200
    assert status(talk(broker, head + wrong + b"\r\n", broker.control_path)) == 401


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that lists two origins."""
    directory = tmp_path_factory.mktemp("cors")
    config = directory / "cors.ini"
    config.write_text("[mgmt]\ncors_allowed_origins = https://a.example, https://b.example\n")
    broker = Broker(directory / "data", ["-c", str(config)], http=True)
    try:
        yield broker.start()
    finally:
        broker.close()


class TestPagesOfOtherOrigins:
    def test_are_told_nothing_by_default(self, api: Api) -> None:
        answer = api("GET", "/api/whoami", headers={"Origin": "https://a.example"})

        assert not [name for name in answer.headers if name.startswith("access-control")]

    def test_are_let_in_when_they_are_listed(self, listing: Broker) -> None:
        answer = Api(listing)("GET", "/api/whoami", headers={"Origin": "https://b.example"})

        assert answer.headers["access-control-allow-origin"] == "https://b.example"
        assert answer.headers["vary"] == "Origin"

    def test_are_told_nothing_when_they_are_not(self, listing: Broker) -> None:
        answer = Api(listing)("GET", "/api/whoami", headers={"Origin": "https://c.example"})

        assert "access-control-allow-origin" not in answer.headers

    def test_may_ask_first_without_credentials(self, listing: Broker) -> None:
        head = (
            "OPTIONS /api/vhosts HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
            "Access-Control-Request-Method: PUT\r\nConnection: close\r\n\r\n"
        )
        answer = talk(listing, head.encode())

        assert status(answer) == 204
        assert b"Access-Control-Allow-Methods: GET, PUT, POST, DELETE" in answer


def test_a_taken_control_socket_stops_the_start(
    http_broker: Broker, broker_factory: BrokerFactory
) -> None:
    other = broker_factory(http=True, start=False)
    other.control_path = http_broker.control_path

    with pytest.raises(Exception, match="another process listens there"):
        other.start()


def test_the_socket_a_killed_broker_left_is_replaced(http_broker: Broker) -> None:
    http_broker.kill()
    http_broker.start()
    head = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    assert status(talk(http_broker, head, http_broker.control_path)) == 200


def test_a_client_who_goes_away_in_mid_answer_is_nothing_to_report(
    broker_factory: BrokerFactory,
) -> None:
    broker = broker_factory(http=True)
    api = Api(broker)
    api("PUT", "/api/queues/%2F/q", {"durable": True})
    message = {"properties": {}, "routing_key": "q", "payload_encoding": "string"}
    api("POST", "/api/exchanges/%2F/amq.default/publish", {**message, "payload": "x" * 8_000_000})
    wish = json.dumps({"ack_mode": "reject_requeue_true", "count": 1, "encoding": "auto"}).encode()

    for _ in range(5):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(20)
            connection.connect((broker.host, broker.http_port))
            connection.sendall(
                b"POST /api/queues/%2F/q/get HTTP/1.1\r\nHost: localhost\r\n" + LOGIN
                + b"Content-Type: application/json\r\n"
                + b"Content-Length: %d\r\n\r\n" % len(wish) + wish
            )  # fmt: skip
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert api("GET", "/api/overview").status == 200
    assert broker.stop() == 0
    log = broker.log_text()
    assert "bug in" not in log
    assert "Traceback" not in log
