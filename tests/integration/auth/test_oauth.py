# mypy: disable-error-code="no-untyped-call"
"""Clients that log in with access tokens, on a broker that knows an issuer, and with passwords."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pika
import pytest
from pamqp import commands

import lavinmq
from lavinmq.amqp import login as login_module
from tests.conftest import BrokerFactory
from tests.support.broker import Broker
from tests.support.issuer import Issuer, serving
from tests.support.wire import Wire
from tests.support.wire_actions import declare

ALL = "broker.configure:*/* broker.read:*/* broker.write:*/*"
SOON_S = 2.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving() as issuer:
        yield issuer


def oauth_variables(issuer: Issuer) -> dict[str, str]:
    return {**issuer.variables, "LAVINMQ_MAIN_LOGIN_THROTTLING": "false"}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Broker]:
    """A broker that accepts tokens of the issuer, shared by the tests of this module."""
    data_dir = tmp_path_factory.mktemp("trusting") / "data"
    broker = Broker(data_dir, env=oauth_variables(issuer))
    try:
        yield broker.start()
    finally:
        broker.close()


def login(broker: Broker, token: str, **more: str) -> Wire:
    return Wire.open(broker.port, user="", password=token, **more)  # type: ignore[arg-type]


def refused(broker: Broker, token: str) -> None:
    """The token does not log in."""
    wire = Wire(broker.port)
    with wire, pytest.raises(AssertionError, match=r"got .*Connection.Close.*403"):
        wire.login("", token, "/")


def renew(wire: Wire, token: str) -> None:
    wire.call(
        0, commands.Connection.UpdateSecret(token, "fresh"), commands.Connection.UpdateSecretOk
    )


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_token_is_a_password(trusting: Broker, issuer: Issuer, alg: str) -> None:
    token = issuer.token(alg, scope=ALL)
    parameters = pika.ConnectionParameters(
        trusting.host, trusting.port, credentials=pika.PlainCredentials("any", token)
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("oauth", exclusive=True)
        channel.basic_publish("", "oauth", b"hi", pika.BasicProperties(user_id="anna"))

        assert channel.basic_get("oauth", auto_ack=True)[2] == b"hi"


def test_passwords_go_on_working(trusting: Broker) -> None:
    with Wire.open(trusting.port) as wire:
        wire.call(0, commands.Connection.UpdateSecret("x", "y"), commands.Connection.UpdateSecretOk)


def test_bad_tokens_are_refused(trusting: Broker, issuer: Issuer) -> None:
    refused(trusting, issuer.token(scope=ALL, exp=time.time() - 1))
    refused(trusting, issuer.token(scope=ALL, aud="other"))
    refused(trusting, issuer.token(scope=ALL, iss="https://other.example"))
    refused(trusting, issuer.token(scope=ALL) + "A")
    refused(trusting, "eyJhbGciOiJub25lIn0.e30.")


def test_scopes_decide(trusting: Broker, issuer: Issuer) -> None:
    scope = "broker.configure:%2F/own-* broker.write:%2F/own-*"
    with login(trusting, issuer.token(scope=scope)) as wire:
        declare(wire, "own-queue", exclusive=True)
        wire.send(1, commands.Queue.Declare(queue="queue"))
        wire.expect_channel_close(1, 403)
        wire.open_channel(1)
        wire.send(1, commands.Basic.Get(queue="own-queue"))
        wire.expect_channel_close(1, 403)


def test_without_a_scope_for_the_virtual_host_there_is_no_connection(
    trusting: Broker, issuer: Issuer
) -> None:
    with pytest.raises(AssertionError, match=r"530"):
        login(trusting, issuer.token(scope="broker.read:other/*"))


def test_a_foreign_user_id_takes_the_tag(trusting: Broker, issuer: Issuer) -> None:
    foreign = commands.Basic.Properties(user_id="bert")
    with login(trusting, issuer.token(scope=ALL + " broker.tag:impersonator")) as wire:
        declare(wire, "oauth-ids", exclusive=True)
        wire.publish(1, "", "oauth-ids", b"", foreign)
        renew(wire, issuer.token(scope=ALL))
        wire.publish(1, "", "oauth-ids", b"", foreign)
        wire.expect_channel_close(1, 406)


def test_a_connection_ends_with_its_token(trusting: Broker, issuer: Issuer) -> None:
    with login(trusting, issuer.token(scope=ALL, exp=time.time() + SOON_S)) as wire:
        declare(wire, "oauth-end", exclusive=True)

        close = wire.expect_connection_close(320)

    assert close.reply_text == "CONNECTION_FORCED - token expired"


def test_a_fresh_token_keeps_the_connection(trusting: Broker, issuer: Issuer) -> None:
    first_end = time.time() + SOON_S
    with login(trusting, issuer.token(scope=ALL, exp=first_end)) as wire:
        renew(wire, issuer.token(scope=ALL, exp=first_end + SOON_S))
        # The first sign of life is the end of the second token.
        close = wire.expect_connection_close(320)

    assert time.time() >= first_end + SOON_S
    assert close.reply_text == "CONNECTION_FORCED - token expired"


def test_the_rights_of_a_fresh_token_count_at_once(trusting: Broker, issuer: Issuer) -> None:
    with login(trusting, issuer.token(scope=ALL)) as wire:
        declare(wire, "oauth-rights", exclusive=True)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", "oauth-rights", b"allowed")
        wire.expect(commands.Basic.Ack)
        renew(wire, issuer.token(scope="broker.read:%2F/*"))
        wire.publish(1, "", "oauth-rights", b"not allowed any more")
        wire.expect_channel_close(1, 403)
        wire.open_channel(1)
        renew(wire, issuer.token(scope=ALL))
        wire.publish(1, "", "oauth-rights", b"allowed again")
        purge = commands.Queue.Purge(queue="oauth-rights")
        assert wire.call(1, purge, commands.Queue.PurgeOk).message_count == 2


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"sub": "eve"}, "ACCESS_REFUSED - the token is of another user"),
        ({"exp": 1}, "ACCESS_REFUSED - the token has expired"),
        ({"aud": "x"}, "ACCESS_REFUSED - the token is meant for another audience"),
    ],
)
def test_a_fresh_token_that_is_refused_closes_the_connection(
    trusting: Broker, issuer: Issuer, claims: dict[str, object], text: str
) -> None:
    with login(trusting, issuer.token(scope=ALL)) as wire:
        token = issuer.token(scope=ALL, **claims)
        wire.send(0, commands.Connection.UpdateSecret(token, ""))

        assert wire.expect_connection_close(403).reply_text == text


def test_a_new_key_of_the_issuer_is_found_while_the_client_waits(
    broker_factory: BrokerFactory,
) -> None:
    with serving() as issuer:
        broker = broker_factory(env=oauth_variables(issuer))
        with login(broker, issuer.token("ES256", scope=ALL)) as wire:
            issuer.rotate("ES256")
            # What follows in the same write is carried out under the new token.
            wire.send(
                0,
                commands.Connection.UpdateSecret(issuer.token("ES256", scope=ALL), ""),
            )
            wire.send(1, commands.Queue.Declare(queue="q", exclusive=True))
            wire.expect(commands.Connection.UpdateSecretOk)
            wire.expect(commands.Queue.DeclareOk)


def test_long_tokens_are_taken(trusting: Broker, issuer: Issuer) -> None:
    scope = ALL + " other.read:*/*" * 300
    token = issuer.token(scope=scope)
    assert 4096 < len(token) < 8000

    with login(trusting, token):
        pass


def test_clients_are_answered_while_the_issuer_is_not(broker_factory: BrokerFactory) -> None:
    with serving() as issuer:
        variables = oauth_variables(issuer)
    broker = broker_factory(env=variables)

    refused(broker, issuer.token(scope=ALL))
    with Wire.open(broker.port):
        pass
    assert "Keys of tokens not fetched" in broker.log_text()
    assert broker.stop() == 0


@pytest.mark.parametrize(
    ("keys", "why"),
    [(b"[" + b"[]," * 100_000 + b"0]", "/keys: there are more than 10000 values in the answer"),
     (b" " * (1 << 20), "/keys: the answer has more than 524288 bytes"),
     (b'{"keys":', "/keys: status 200, and no set of keys")],
    ids=["rich", "huge", "cut short"],
)  # fmt: skip
def test_keys_of_an_issuer_that_cannot_be_taken_are_told_and_hold_up_nobody(
    keys: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys at hand stay in use."""
    with caplog.at_level(logging.INFO, "lmq"), serving() as issuer, lavinmq.run(
        auth_backends="local,oauth", oauth_issuer=issuer.url, oauth_verify_aud=False,
        oauth_scope_prefix="broker.",
    ) as broker:  # fmt: skip
        with Wire.open(broker.port, user="", password=issuer.token(scope=ALL)):
            pass
        issuer.answers["/keys"] = 200, keys
        issuer.numbers["ES256"] += 1
        wire = Wire(broker.port)
        with wire, pytest.raises(AssertionError, match=r"got .*Connection.Close.*403"):
            wire.login("", issuer.token("ES256", scope=ALL), "/")
        with (
            Wire.open(broker.port),
            Wire.open(broker.port, user="", password=issuer.token(scope=ALL)),
        ):
            pass
    assert why in caplog.text


def test_the_end_is_found_by_a_timer_that_looks_several_times(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers have limits, and the clock may be set: nobody waits for a year at once."""
    monkeypatch.setattr(login_module, "LONGEST_WAIT_S", 0.1)
    settings = {
        "auth_backends": "oauth", "oauth_issuer": issuer.url, "oauth_verify_aud": False,
        "oauth_scope_prefix": "broker.",
    }  # fmt: skip
    with lavinmq.run(**settings) as broker:
        end = time.time() + 1.0
        with Wire.open(broker.port, user="", password=issuer.token(scope=ALL, exp=end)) as wire:
            wire.expect_connection_close(320)
        assert time.time() >= end
        with Wire.open(broker.port, user="", password=issuer.token(scope=ALL, exp=2**60)):
            pass
