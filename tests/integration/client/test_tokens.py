"""Access tokens: renewed on a connection that lives, asked for anew by each connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lavinmq.client import AsyncClient, Client
from lavinmq.client.errors import ClientConnectionError
from tests.support.broker import Broker
from tests.support.issuer import Issuer, serving

ALL = "broker.configure:*/* broker.read:*/* broker.write:*/*"
WAIT_S = 20.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Broker]:
    """A broker that takes the tokens of the issuer."""
    variables = {**issuer.variables, "LAVINMQ_MAIN_LOGIN_THROTTLING": "false"}
    broker = Broker(tmp_path_factory.mktemp("trusting") / "data", env=variables)
    try:
        yield broker.start()
    finally:
        broker.close()


def place(broker: Broker) -> str:
    return f"amqp://any@{broker.host}:{broker.port}"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_connection_outlives_its_tokens(trusting: Broker, issuer: Issuer) -> None:
    given: list[float] = []

    def token() -> str:
        given.append(time.time())
        return str(issuer.token(scope=ALL, exp=time.time() + 2))

    options: dict[str, Any] = {"auth": "token", "token": token, "token_interval": 0.5}
    with Client(place(trusting), **options) as client:
        producer = client.producer("renewed")
        first = time.time() + 2
        until(lambda: time.time() > first + 1)  # the first token has ended, and the broker seen it
        assert producer.publish(b"x").result(WAIT_S) == "confirmed"
        assert client.metrics().reconnects == 0
        client.delete_queue("renewed")

    assert len(given) > 3


def test_a_function_that_fails_is_told_and_asked_again(trusting: Broker, issuer: Issuer) -> None:
    asked = threading.Event()
    calls: list[int] = []
    errors: list[Exception] = []

    def token() -> str:
        calls.append(1)
        if len(calls) in (2, 3):
            raise LookupError("secret-of-the-vault is not readable")
        if len(calls) > 4:
            asked.set()
        return str(issuer.token(scope=ALL))

    client = Client(place(trusting), auth="token", token=token, token_interval=0.3)
    client.on_error(errors.append)
    with client:
        assert asked.wait(WAIT_S)
        assert client.metrics().reconnects == 0

    assert [str(error) for error in errors] == [
        "the function of option token raised LookupError"
    ] * 2
    assert isinstance(errors[0].__cause__, LookupError)


@pytest.mark.parametrize("token", [lambda: b"bytes", lambda: [][1]])
def test_a_first_connection_without_a_token_says_why(
    trusting: Broker, token: Callable[[], str]
) -> None:
    with pytest.raises(ClientConnectionError, match="function of option token"):
        Client(place(trusting), auth="token", token=token).start()


def test_a_lost_connection_comes_back_with_a_new_token(trusting: Broker, issuer: Issuer) -> None:
    """The function fails once in between, which is no end of the client."""
    calls: list[int] = []

    def token() -> str:
        calls.append(1)
        if len(calls) == 2:
            raise LookupError("not now")
        return str(issuer.token(scope=ALL, exp=time.time() + (1 if len(calls) == 1 else 60)))

    with Client(place(trusting), auth="token", token=token) as client:
        until(lambda: client.metrics().reconnects == 1)
        assert client.producer("again").publish(b"x").result(WAIT_S) == "confirmed"
        client.delete_queue("again")

    assert len(calls) == 3


def test_a_slow_function_holds_no_loop_up(trusting: Broker, issuer: Issuer) -> None:
    asked, answer = threading.Event(), threading.Event()

    def token() -> str:
        asked.set()
        assert answer.wait(WAIT_S)
        return str(issuer.token(scope=ALL))

    async def main() -> None:
        client = AsyncClient(place(trusting), auth="token", token=token)
        starting = asyncio.create_task(client.start())
        while not asked.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the loop goes round while the function waits
        assert not starting.done()
        answer.set()
        await starting
        await client.close()

    asyncio.run(main())
