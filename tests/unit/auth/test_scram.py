"""SCRAM-SHA-256: the example of RFC 7677, and what may not succeed."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from lavinmq.auth import scram
from lavinmq.auth.scram import Exchange, Keys, ScramError

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = scram.keys_of(b"pencil", 4096, SALT)


def proof(password: bytes, keys: Keys, said: bytes) -> bytes:
    """What a client sends that knows the password."""
    salted = hashlib.pbkdf2_hmac("sha256", password, keys.salt, keys.iterations)
    client = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client).digest(), said, "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True)))


def test_the_example_of_the_standard() -> None:
    exchange = Exchange("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")

    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", lambda name: PENCIL)
    final = exchange.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )

    assert exchange.name == "user"
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def talk(keys: Keys | None, password: bytes, name: bytes = b"u") -> bytes:
    """A whole exchange with a nonce `abc` of the client."""
    exchange = Exchange()
    answer = exchange.first(b"n,,n=" + name + b",r=abc", lambda name: keys)
    nonce, salt, iterations = (part[2:] for part in answer.split(b","))
    bare = b"c=biws,r=" + nonce
    shown = Keys(int(iterations), base64.b64decode(salt), b"", b"")
    said = b"n=" + name + b",r=abc," + answer + b"," + bare
    return exchange.final(bare + b",p=" + proof(password, shown, said))


def test_the_password_opens() -> None:
    keys = scram.keys_of("pässwörd".encode())

    assert talk(keys, "pässwörd".encode()).startswith(b"v=")


@pytest.mark.parametrize("keys", [scram.keys_of(b"right"), None])
def test_a_wrong_password_and_an_unknown_user_fail_at_the_end(keys: Keys | None) -> None:
    with pytest.raises(ScramError):
        talk(keys, b"wrong")


def test_a_user_that_there_is_not_has_the_same_salt_each_time() -> None:
    answers = [Exchange("n").first(b"n,,n=nobody,r=a", lambda name: None) for _ in range(2)]

    assert answers[0] == answers[1]
    assert Exchange("n").first(b"n,,n=other,r=a", lambda name: None) != answers[0]


@pytest.mark.parametrize(
    "message",
    [
        b"", b"p=tls-unique,,n=u,r=a", b"n,a=admin,n=u,r=a", b"n,,r=a,n=u", b"n,,n=u", b"n,,n=,r=a",
        b"n,,n=u,r=", b"n,,n=u=2D,r=a", b"n,,n=\xff,r=a", b"n,,m=x,n=u,r=a",
        b"n,,n=u,r=" + b"a" * 5000,
    ],
)  # fmt: skip
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        Exchange().first(message, lambda name: PENCIL)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"c=biws,r=abcn", b"c=biws,r=abcx,p=AAAA", b"c=eSws,r=abcn,p=AAAA",
        b"c=biws,r=abcn,p=!", b"c=biws,r=abcn,p=AAAA", b"c=biws,r=abcn,p=" + b"A" * 44,
    ],
)  # fmt: skip
def test_a_last_message_that_is_none_is_refused(message: bytes) -> None:
    exchange = Exchange("n")
    exchange.first(b"n,,n=u,r=abc", lambda name: PENCIL)

    with pytest.raises(ScramError):
        exchange.final(message)


def test_an_exchange_proves_once() -> None:
    exchange = Exchange("n")
    answer = exchange.first(b"n,,n=u,r=abc", lambda name: PENCIL)
    said = b"n=u,r=abc," + answer + b",c=biws,r=abcn"
    last = b"c=biws,r=abcn,p=" + proof(b"pencil", PENCIL, said)
    exchange.final(last)

    with pytest.raises(ScramError):
        exchange.final(last)


def test_names_may_have_commas_and_equals_signs() -> None:
    exchange = Exchange()
    exchange.first(b"n,,n=a=2Cb=3Dc,r=x", lambda name: None)

    assert exchange.name == "a,b=c"


def test_keys_are_stored_as_a_text() -> None:
    assert scram.parse(str(PENCIL)) == PENCIL


@pytest.mark.parametrize(
    "text", ["", "4096", "1,AA==,AA==,AA==", "x,AA==,AA==,AA==", "4096,é,AA==,AA==", "9" * 20]
)
def test_a_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        scram.parse(text)
