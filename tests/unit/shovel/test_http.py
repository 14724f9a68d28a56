"""Connections of webhooks: what a server may say, and where it may be."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from lavinmq.shovel import addresses, hook, requests
from lavinmq.shovel.http import MAX_RETRY_AFTER_S, Answer, Connection, connect


def answered(head: bytes) -> Answer:
    """The answer that a head without a body is taken for."""
    found: list[Answer | None] = []

    async def main() -> None:
        connection = Connection(hook.parse_place("http://h/"), lambda _: None)
        connection.connection_made(Mock())
        connection.ask(b"", 1, lambda answer, _: found.append(answer))
        connection.data_received(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\n\r\n")

    asyncio.run(main())
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"7", 7),
        (b"0", 0),
        (b"9999999", MAX_RETRY_AFTER_S),
        (b"315360000", None),
        (b"9" * 4000, None),
        (b"-1", None),
        (b"1e9", None),
        (b"Fri, 31 Dec 2999 23:59:59 GMT", None),
        ("\u0663".encode(), None),
    ],
)
def test_no_server_has_a_shovel_wait_for_years(text: bytes, seconds: int | None) -> None:
    """None: the pauses of the shovel's own count."""
    assert answered(b"503 No\r\nRetry-After: " + text).retry_after_s == seconds


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    answer = answered(b"%d Moved\r\nLocation: http://169.254.169.254/" % status)
    assert answer.status == status
    to = hook.Hook((), "shuffle", 1, "none", "raw", 1, 1, 1, None, {}, {})
    assert to.outcome(status) == ("retry", False)


def test_what_was_judged_is_connected_to_whatever_a_name_means_later() -> None:
    """A server for names may give a harmless address first, and another one to who asks again."""
    asked: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        real = loop.getaddrinfo

        async def lying(host: Any, *args: Any, **options: Any) -> Any:
            asked.append(host)
            first = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
            return await real(first if host == "rebinds.example" else host, *args, **options)

        loop.getaddrinfo = lying  # type: ignore[method-assign]
        place = hook.parse_place(f"http://rebinds.example:{port}/")
        connection = await connect(place, None, 5, True, lambda _: None)
        connection.close()
        listener.close()

    asyncio.run(main())
    assert asked.count("rebinds.example") == 1 and "169.254.169.254" not in asked


def test_of_several_addresses_none_is_tried_that_is_refused() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        rows = [(0, 0, 0, "", (each, 80)) for each in ("169.254.169.254", "192.0.2.1", "fe80::1")]

        async def several(*_: Any, **__: Any) -> Any:
            return rows

        loop.getaddrinfo = several  # type: ignore[method-assign]
        return await addresses.lookup("several.example", 80, True)

    assert asyncio.run(main()) == ["192.0.2.1"]


@pytest.mark.parametrize(
    "said",
    [
        "you sent Authorization: Bearer tok-4711-abcdef",
        '{"auth": "tok-47',
        "Basic dXNlcjpwYXNzd29yZDE=",
        "wrong password1",
        "no such key: sk_live_1",
    ],
)
def test_what_a_server_repeats_of_secrets_is_not_shown(said: str) -> None:
    places = (hook.parse_place("https://user:password1@h/p?key=sk_live_123"),)
    headers = {"Authorization": "Bearer tok-4711-abcdef"}
    to = hook.Hook(places, "shuffle", 1, "none", "raw", 1, 1, 1, None, headers, {})
    made = requests.Requests(to, "v", "s")
    assert not made.is_shown(said)
    assert made.is_shown("the field 'amount' is missing")


def test_a_server_for_names_that_does_not_answer_is_given_up() -> None:
    async def main() -> None:
        async def silent(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(60)

        asyncio.get_running_loop().getaddrinfo = silent  # type: ignore[method-assign]
        with pytest.raises(OSError, match=r"no connection within 0\.02 s"):
            await connect(hook.parse_place("http://h/"), None, 0.02, True, lambda _: None)

    asyncio.run(main())


@pytest.mark.parametrize("between", [0, 1, 8192])
def test_a_second_answer_is_none_to_what_is_asked_next(between: int) -> None:
    """It came before that was asked: what is asked next would be taken for done."""
    answers: list[Answer | None] = []

    async def main() -> Connection:
        connection = Connection(hook.parse_place("http://h/"), lambda _: None)
        transport = Mock()
        transport.is_closing.side_effect = lambda: transport.abort.called
        connection.connection_made(transport)

        def ask() -> None:
            connection.ask(b"", 1, done)

        def done(answer: Answer | None, _: str) -> None:
            answers.append(answer)
            if len(answers) == 1 and connection.is_open:
                ask()

        ask()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % between
        more = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
        connection.data_received(head + bytes(between) + more)
        for _ in range(5):
            await asyncio.sleep(0)
        return connection

    connection = asyncio.run(main())

    assert [answer and answer.status for answer in answers] == [200]
    assert not connection.is_open


def test_a_server_that_says_more_than_it_was_asked_is_heard_no_more() -> None:
    """Also where the rest comes in another piece: a kept connection would never be read again."""
    gone: list[Connection] = []

    async def main() -> None:
        connection = Connection(hook.parse_place("http://h/"), gone.append)
        transport = Mock()
        transport.is_closing.return_value = False
        connection.connection_made(transport)
        answers: list[Answer | None] = []
        connection.ask(b"", 1, lambda answer, _: answers.append(answer))
        body = b"x" * (8192 - len(b"HTTP/1.1 200 OK\r\nContent-Length: 8151\r\n\r\n"))
        assert len(body) == 8151
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 8151\r\n\r\n"
        connection.data_received(head + body + b"more")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(answers) == 1
        assert not connection.is_open and transport.abort.called

    asyncio.run(main())
