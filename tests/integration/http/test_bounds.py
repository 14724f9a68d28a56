"""What one request may cost: the size of its body, by endpoint, and of the tables in it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Api


@pytest.fixture
def configured(broker_factory: BrokerFactory, tmp_path: Path) -> Callable[[str], Api]:
    """The API of a broker with this ini file."""

    def start(ini: str) -> Api:
        path = tmp_path / "bounds.ini"
        path.write_text(ini)
        return Api(broker_factory(["-c", str(path)], http=True))

    return start


def of_user(api: Api, name: str, *, tags: str = "management", configure: str | None = None) -> Api:
    """The API as another user, with permissions in `/` if `configure` is given."""
    api("PUT", f"/api/users/{name}", {"password": f"{name}-pw", "tags": tags})
    if configure is not None:
        rights = {"configure": configure, "read": configure, "write": configure}
        api("PUT", f"/api/permissions/%2F/{name}", rights)
    return Api(api.broker, name)


def announced(api: Api, method: str, path: str, size: int) -> tuple[int, bytes]:
    """Status and answer to a head that announces so many bytes, none of which are sent."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: {api.login['Authorization']}\r\nContent-Length: {size}\r\n\r\n"
    )
    with socket.create_connection((api.broker.host, api.broker.http_port), 20) as client:
        client.sendall(head.encode())
        parts = []
        while part := client.recv(65536):
            parts.append(part)
    answer = b"".join(parts)
    return int(answer.split(b" ", 2)[1]), answer


WIDE = {f"k{n}": n for n in range(1025)}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/queues/%2F/bounds-q", {"arguments": WIDE}),
        ("PUT", "/api/exchanges/%2F/bounds-e", {"type": "direct", "arguments": WIDE}),
        (
            "POST",
            "/api/bindings/%2F/e/amq.topic/e/amq.fanout",
            {"routing_key": "k", "arguments": WIDE},
        ),
        (
            "POST",
            "/api/definitions",
            {"queues": [{"name": "bounds-q", "vhost": "/", "arguments": WIDE}]},
        ),
    ],
)
def test_a_table_of_more_entries_than_allowed_is_refused_before_it_is_converted(
    api: Api, method: str, path: str, body: object
) -> None:
    answer = api(method, path, body)

    assert answer.status == 400
    assert "1024 entries of max_arguments_entries" in answer.json["reason"]
    assert api("GET", "/api/queues/%2F/bounds-q").status == 404


def test_a_table_of_more_bytes_than_allowed_is_refused(api: Api) -> None:
    answer = api("PUT", "/api/queues/%2F/bounds-q", {"arguments": {"x-a": "x" * 65536}})

    assert answer.status == 400
    assert "65536 bytes of max_arguments_bytes" in answer.json["reason"]


def test_headers_of_a_message_have_the_same_bounds(api: Api) -> None:
    message = {
        "properties": {"headers": WIDE}, "routing_key": "k", "payload": "",
        "payload_encoding": "string",
    }  # fmt: skip

    answer = api("POST", "/api/exchanges/%2F/amq.default/publish", message)

    assert answer.status == 400
    assert answer.json["reason"].startswith("Property 'headers'")


def test_the_operator_may_allow_larger_tables(configured: Callable[[str], Api]) -> None:
    api = configured("[main]\nmax_arguments_entries = 2000\n")

    assert api("PUT", "/api/queues/%2F/q", {"arguments": WIDE}).status == 201


def test_a_body_is_refused_by_its_announcement_where_the_endpoint_needs_no_long_one(
    api: Api,
) -> None:
    status, answer = announced(api, "PUT", "/api/queues/%2F/q", (256 << 10) + 1)

    assert status == 413
    assert b"262144 bytes" in answer
    assert b"Connection: close" in answer


def test_a_body_without_a_length_is_refused_when_it_becomes_too_long(api: Api) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = (
        "PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {api.login['Authorization']}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((api.broker.host, api.broker.http_port), 20) as client:
        client.sendall(head.encode())
        with pytest.raises(OSError):
            while True:
                client.sendall(chunk)


def in_chunks(api: Api, count: int) -> bytes:
    """The first line that answers a body of so many chunks of a byte, and of an end."""
    head = (
        "PUT /api/queues/%2F/crumbs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: {api.login['Authorization']}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((api.broker.host, api.broker.http_port), 60) as client:
        with contextlib.suppress(ConnectionError):  # it need not read all of it
            client.sendall(head.encode() + b"1\r\n \r\n" * count + b"0\r\n\r\n")
        with client.makefile("rb") as answer:
            return answer.readline()


def test_a_body_in_very_many_tiny_chunks_is_taken(api: Api) -> None:
    assert in_chunks(api, 33_000).startswith(b"HTTP/1.1 201")


def test_definitions_and_messages_may_be_longer(api: Api) -> None:
    filling = "x" * (300 << 10)
    message = {
        "properties": {}, "routing_key": "nobody", "payload": filling, "payload_encoding": "string"
    }  # fmt: skip

    published = api("POST", "/api/exchanges/%2F/amq.default/publish", message)
    imported = api("POST", "/api/definitions", {"ignored": ["x" * 1024] * 300})

    assert (published.status, imported.status) == (200, 200)


def test_one_entry_of_definitions_may_not_be_longer(api: Api) -> None:
    answer = api("POST", "/api/definitions", {"ignored": "x" * (300 << 10)})

    assert answer.status == 400
    assert answer.json["reason"] == "An entry is longer than 262144 bytes"


def test_only_the_payload_of_a_message_may_be_long(api: Api) -> None:
    message = {
        "properties": {"headers": {f"{n}": n for n in range(40_000)}}, "routing_key": "nobody",
        "payload": "x" * (300 << 10), "payload_encoding": "string",
    }  # fmt: skip

    answer = api("POST", "/api/exchanges/%2F/amq.default/publish", message)

    assert answer.status == 413
    assert answer.json["reason"] == "A body may have 262144 bytes"


@pytest.mark.parametrize("is_payload_long", [False, True])
def test_a_long_string_that_is_no_payload_is_refused(api: Api, is_payload_long: bool) -> None:
    long = "x" * (300 << 10)
    message = {
        "properties": {"headers": {"payload": long}}, "routing_key": "nobody",
        "payload": long if is_payload_long else "", "payload_encoding": "string",
    }  # fmt: skip

    assert api("POST", "/api/exchanges/%2F/amq.default/publish", message).status == 413


@pytest.mark.parametrize("wrong", [b"\\x", b"\xff", b"\n"])
def test_a_long_payload_that_is_no_json_is_refused(api: Api, wrong: bytes) -> None:
    message = (
        b'{"properties":{},"routing_key":"nobody","payload_encoding":"string","payload":"'
        + b"x" * (300 << 10) + wrong + b'"}'
    )  # fmt: skip

    answer = api("POST", "/api/exchanges/%2F/amq.default/publish", raw=message)

    assert (answer.status, answer.json["reason"]) == (400, "Malformed JSON")


def test_a_long_payload_may_hold_anything(api: Api) -> None:
    api("PUT", "/api/queues/%2F/bounds-payload", {})
    payload = '{"a": [1, 2, "\\"], ' * 40_000 + "ü\n\u2028\U0001f600"
    message = {
        "properties": {"type": 'a "quoted" word'}, "routing_key": "bounds-payload",
        "payload": payload, "payload_encoding": "string",
    }  # fmt: skip

    assert api("POST", "/api/exchanges/%2F/amq.default/publish", message).json["routed"]

    taken = api("POST", "/api/queues/%2F/bounds-payload/get", {"count": 1}).json
    assert taken[0]["payload"] == payload


def test_the_limit_of_short_bodies_is_a_setting(configured: Callable[[str], Api]) -> None:
    api = configured("[mgmt]\nmax_json_size = 2048\n")

    assert api("PUT", "/api/queues/%2F/q", {"ignored": "x" * 1900}).status == 201
    assert api("PUT", "/api/queues/%2F/q", {"ignored": "x" * 2100}).status == 413


@pytest.mark.parametrize(
    "path",
    ["/api/definitions", "/api/exchanges/nowhere/amq.default/publish", "/api/users/bounds-none"],
)
def test_who_may_not_use_an_endpoint_is_refused_before_the_body(api: Api, path: str) -> None:
    nobody = of_user(api, "bounds-nobody")

    status, _ = announced(nobody, "PUT" if "users" in path else "POST", path, 20 << 20)

    assert status == 403


def test_arguments_of_a_user_without_rights_are_not_looked_at(api: Api) -> None:
    nobody = of_user(api, "bounds-powerless", configure="^mine")

    answers = [
        nobody("PUT", "/api/queues/%2F/bounds-q", {"arguments": WIDE}),
        nobody("PUT", "/api/exchanges/%2F/bounds-e", {"type": "direct", "arguments": WIDE}),
        nobody(
            "POST",
            "/api/bindings/%2F/e/amq.topic/e/amq.fanout",
            {"routing_key": "k", "arguments": WIDE},
        ),
    ]

    assert [answer.status for answer in answers] == [403, 403, 403]


def test_a_short_body_of_who_may_not_use_an_endpoint_leaves_the_connection_open(api: Api) -> None:
    nobody = of_user(api, "bounds-nobody")
    body = json.dumps({"password": "x", "tags": ""}).encode()
    head = (
        f"PUT /api/users/bounds-x HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {nobody.login['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((api.broker.host, api.broker.http_port), 20) as client:
        for _ in range(2):
            client.sendall(head.encode() + body)
            assert client.recv(65536).startswith(b"HTTP/1.1 403 ")
