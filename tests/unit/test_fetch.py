"""Documents over HTTP: content, limits, and servers that misbehave."""

from __future__ import annotations

import asyncio
import socket

import pytest

from lavinmq.auth import fetch as fetch_module
from lavinmq.auth.fetch import Document, FetchError, fetch
from tests.support.issuer import serving
from tests.support.ports import HOST, free_port


def test_a_document_comes_with_status_and_age() -> None:
    with serving() as issuer:
        issuer.cache_control = "public, max-age=600"
        issuer.answers["/x"] = 418, {"a": [1]}

        assert asyncio.run(fetch(issuer.url + "/x")) == Document(418, {"a": [1]}, 600)


@pytest.mark.parametrize(
    ("header", "age_s"),
    [("", None), ("no-store", None), ("MAX-AGE=5", 5), ("s-max-age=5", None),
     ("max-age=-1", None), ("a, max-age = 7", 7)],
)  # fmt: skip
def test_the_age_is_read_from_the_header(header: str, age_s: int | None) -> None:
    with serving() as issuer:
        issuer.cache_control = header

        assert asyncio.run(fetch(issuer.url + "/keys")).max_age_s == age_s


def test_a_form_is_posted() -> None:
    with serving() as issuer:
        issuer.answers["/token"] = 200, {}
        asyncio.run(fetch(issuer.url + "/token", {"code": "a&b=c ü"}))

        assert issuer.forms == [{"code": "a&b=c ü"}]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b"\xff"])
def test_what_is_no_json_has_no_content(body: bytes) -> None:
    with serving() as issuer:
        issuer.answers["/x"] = 200, body

        assert asyncio.run(fetch(issuer.url + "/x")) == Document(200, None, None)


def test_a_redirect_is_not_followed() -> None:
    with serving() as issuer:
        issuer.answers["/x"] = 302, None

        assert asyncio.run(fetch(issuer.url + "/x")).status == 302
        assert issuer.asked == {"/x": 1}


def test_what_is_too_large_is_a_failure() -> None:
    with serving() as issuer:
        issuer.answers["/x"] = 200, b" " * (fetch_module.MAX_BODY + 1)

        with pytest.raises(FetchError, match=r"/x"):
            asyncio.run(fetch(issuer.url + "/x"))


def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(FetchError, match=r"refused"):
        asyncio.run(fetch(f"http://{HOST}:{free_port()}/"))


def test_a_server_that_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.2)
    port = free_port()
    with (
        socket.create_server((HOST, port)),
        pytest.raises(FetchError, match=r"[Tt]imeout"),
    ):
        asyncio.run(fetch(f"http://{HOST}:{port}/"))


@pytest.mark.parametrize("url", ["http://", "http://[", "ftp://x/", "http://x:99999/"])
def test_an_address_that_is_none_is_a_failure(url: str) -> None:
    with pytest.raises(FetchError):
        asyncio.run(fetch(url))
