"""Access tokens: which signatures, times and parties are accepted."""

from __future__ import annotations

import hmac
import math
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.auth.attempt import MAX_TOKEN, TokenError
from lavinmq.auth.tokens import ALGORITHMS, TokenVerifier, header_of
from tests.support.issuer import AUDIENCE, Issuer, part, private_key

ISSUER = Issuer()


def claims_of(token: str, alg: str = "RS256", **changes: Any) -> dict[str, Any]:
    """The claims, checked with the public half of the issuer's key for `alg`."""
    options: dict[str, Any] = {"issuer": ISSUER.url, "audience": AUDIENCE, "verify_aud": True}
    verifier = TokenVerifier(**(options | changes))
    raw = token.encode()
    return verifier.claims(raw, header_of(raw), private_key(alg).public_key())


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_of_every_algorithm_is_accepted(alg: str) -> None:
    assert claims_of(ISSUER.token(alg), alg)["sub"] == "anna"


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_changed_token_is_refused(alg: str) -> None:
    head, _, signature = ISSUER.token(alg).split(".")
    claims = {"iss": ISSUER.url, "aud": AUDIENCE, "sub": "admin", "exp": time.time() + 60}

    with pytest.raises(TokenError, match=r"signature"):
        claims_of(f"{head}.{part(claims)}.{signature}", alg)


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_signed_with_another_key_is_refused(alg: str) -> None:
    with pytest.raises(TokenError, match=r"signature"):
        claims_of(ISSUER.token(alg, key=private_key(alg, 99)), alg)


@pytest.mark.parametrize("alg", ["none", "None", "HS256", "HS512", "RS384", "ES512", "", None, 5])
def test_no_other_algorithm_is_accepted(alg: Any) -> None:
    token = f"{part({'alg': alg, 'kid': 'RS256-0'})}.{part({'sub': 'a', 'exp': 2**40})}."

    with pytest.raises(TokenError, match=r"not signed with one of|cannot be read"):
        header_of(token.encode())


def test_a_public_key_is_no_shared_secret() -> None:
    """The attack: HS256 with the public key, which everybody has, as the secret."""
    public = private_key("RS256").public_key()
    secret = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for alg in ("HS256", "RS256"):
        signed = f"{part({'alg': alg, 'kid': 'RS256-0'})}.{part({'sub': 'a', 'exp': 2**40})}"
        signature = hmac.digest(secret, signed.encode(), "sha256")
        token = f"{signed}.{jwt.utils.base64url_encode(signature).decode()}"

        with pytest.raises(TokenError, match=r"not signed with one of|signature"):
            claims_of(token)


@pytest.mark.parametrize("said", ALGORITHMS)
@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_cannot_choose_another_algorithm_for_a_key(alg: str, said: str) -> None:
    if alg == said:
        return
    _, claims, signature = ISSUER.token(alg).split(".")
    token = f"{part({'alg': said, 'kid': 'x'})}.{claims}.{signature}"

    with pytest.raises(TokenError, match=r"signature"):
        claims_of(token, alg)


@pytest.mark.parametrize("headers", [{"crit": ["x"]}, {"b64": False}, {"crit": []}])
def test_extensions_are_refused(headers: dict[str, Any]) -> None:
    head = part({"alg": "RS256", "kid": "RS256-0"} | headers)

    with pytest.raises(TokenError, match=r"extension|cannot be read"):
        header_of(f"{head}.e30.".encode())


@pytest.mark.parametrize("kid", [None, "", 5, ["RS256-0"]])
def test_a_token_has_to_name_its_key(kid: Any) -> None:
    head = part({"alg": "RS256"} | ({} if kid is None else {"kid": kid}))

    with pytest.raises(TokenError, match=r"which key|cannot be read"):
        header_of(f"{head}.e30.".encode())


@pytest.mark.parametrize(
    "token",
    [b"", b"ey", b"ey.", b"ey.a.b.c", b"guest", b"fy.e30.", b"ey" + b"a" * MAX_TOKEN + b"..",
     b"ey!!.e30.e30", b"ey\xff.e30.", part(["alg"]).encode() + b".e30.", b"eyJ9.e30.",
     b"ey" + b"W1t" * 5000 + b".e30.x"],
)  # fmt: skip
def test_what_is_no_token_is_refused(token: bytes) -> None:
    with pytest.raises(TokenError):
        header_of(token)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": None}, "no end"),
        ({"exp": 1000}, "expired"),
        ({"exp": 1000.5, "iat": 10}, None),
        ({"exp": "2000"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": math.inf}, "exp is not a time"),
        ({"exp": math.nan}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"exp": [2000]}, "exp is not a time"),
        ({"iat": None}, None),
        ({"iat": 1000.1}, None),
        ({"iat": 1000.3}, "issued in the future"),
        ({"nbf": 1000}, None),
        ({"nbf": 1000.1}, "not valid yet"),
    ],
)
def test_times_are_checked(claims: dict[str, Any], why: str | None) -> None:
    token = raw_token({"exp": 2000, "iat": 900} | claims)

    if why is None:
        assert claims_of(token, clock=lambda: 1000.0)
    else:
        with pytest.raises(TokenError, match=why):
            claims_of(token, clock=lambda: 1000.0)


def raw_token(claims: dict[str, Any]) -> str:
    """A signed token whose claims the library would not write."""
    usual = {"iss": ISSUER.url, "aud": AUDIENCE, "sub": "anna"}
    content = {name: value for name, value in (usual | claims).items() if value is not None}
    head = part({"alg": "RS256", "kid": "RS256-0"})
    signed = f"{head}.{part(content)}"
    algorithm = jwt.get_algorithm_by_name("RS256")
    signature = algorithm.sign(signed.encode(), private_key("RS256"))
    return f"{signed}.{jwt.utils.base64url_encode(signature).decode()}"


@pytest.mark.parametrize(
    ("claims", "changes", "why"),
    [
        ({}, {}, None),
        ({"iss": ISSUER.url + "/"}, {}, None),
        ({}, {"issuer": ISSUER.url + "/"}, None),
        ({"iss": "https://other.example"}, {}, "another issuer"),
        ({"iss": None}, {}, "another issuer"),
        ({"iss": [ISSUER.url]}, {}, "another issuer"),
        ({"aud": ["x", AUDIENCE]}, {}, None),
        ({"aud": "x"}, {}, "another audience"),
        ({"aud": ["x"]}, {}, "another audience"),
        ({"aud": None}, {}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, {}, "another audience"),
        ({"aud": "x"}, {"verify_aud": False}, None),
        ({"aud": ""}, {"audience": ""}, "another audience"),
    ],
)
def test_parties_are_checked(
    claims: dict[str, Any], changes: dict[str, Any], why: str | None
) -> None:
    token = raw_token({"exp": time.time() + 60} | claims)

    if why is None:
        assert claims_of(token, **changes)
    else:
        with pytest.raises(TokenError, match=why):
            claims_of(token, **changes)


@pytest.mark.parametrize("payload", [b"[]", b"null", b"{", b"[" * 9000, b"\xff"])
def test_claims_that_are_no_object_are_refused(payload: bytes) -> None:
    token = jwt.api_jws.encode(payload, private_key("RS256"), "RS256", headers={"kid": "RS256-0"})

    with pytest.raises(TokenError, match=r"claims"):
        claims_of(token)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda data: b"ey" + data)))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(TokenError):
        header_of(data)
