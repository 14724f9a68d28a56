"""Documents over HTTP: content, limits, and servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

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


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 10_000, b"\xff"])
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


def test_what_has_very_many_values_is_a_failure() -> None:
    """It would be parsed in one go."""
    with serving() as issuer:
        issuer.answers["/x"] = 200, b"[" + b"[]," * 100_000 + b"0]"

        with pytest.raises(FetchError, match=r"/x: there are more than 10000 values"):
            asyncio.run(fetch(issuer.url + "/x"))


HEAD = b"HTTP/1.1 200 OK\r\n"
LONG = "has more than 524288 bytes"


@contextmanager
def answering(pieces: Iterable[bytes]) -> Iterator[str]:
    """A server that answers the first request with these, for as long as somebody listens."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)

    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://{HOST}:{server.getsockname()[1]}/x"
        thread.join(10)
        assert not thread.is_alive()


def trickle() -> Iterator[bytes]:
    """A body of which a byte comes now and then."""
    yield HEAD + b"Content-Length: 100000\r\n\r\n"
    while True:
        yield b" "
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        (trickle(), "[Tt]imeout"),
        (chain([HEAD], repeat(b"X-More: " + b"x" * 1000 + b"\r\n")), "."),
        (chain([HEAD + b"Connection: close\r\n\r\n"], repeat(b" " * 65536)), LONG),
        (chain([HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], repeat(b"1\r\n \r\n" * 1000)), "."),
        ([HEAD + b"Content-Length: 999999999999\r\n\r\n"], LONG),
        ([HEAD + b"Content-Length: 100\r\n\r\n{}"], "."),
        (
            [HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
             + gzip.compress(b" " * (64 << 20))],
            LONG,
        ),
    ],
    ids=["slow", "endless head", "endless", "crumbs", "huge", "cut short", "bomb"],
)  # fmt: skip
def test_an_answer_that_does_not_end_well_is_a_failure_in_time(
    pieces: Iterable[bytes], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the loop serves others meanwhile."""
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.5)

    async def fetched(url: str) -> int:
        turns = 0
        fetching = asyncio.ensure_future(fetch(url))
        while not fetching.done():
            await asyncio.sleep(0)
            turns += 1
        with pytest.raises(FetchError, match=why) as refused:
            await fetching
        assert str(refused.value).startswith(url)
        return turns

    with answering(pieces) as url:
        assert asyncio.run(fetched(url)) > 10


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
