"""Access tokens: JSON Web Tokens (RFC 7519) signed with a public key of the issuer.

Only what is named here is accepted: four signature algorithms, each with its own type of key, so a
token cannot choose to be checked in another way than its key is meant for. Keys come from
`keys.py`; what the claims allow is read by `scopes.py`. Imported only with the backend `oauth`.
Source: docs/authentication.md, RFC 7515, RFC 8725.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jwt

from lavinmq.auth import signatures
from lavinmq.auth.attempt import MAX_TOKEN, TokenError

ALGORITHMS: Final = {
    "RS256": ("RSA", ""),
    "PS256": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Signature algorithms, with type and curve of the keys for them (RFC 7518, RFC 8037)."""

IAT_SLACK_S: Final = 0.2
"""By how much the issuer's clock may be ahead of ours."""


class Header(NamedTuple):
    """What a token says about its signature."""

    kid: str
    alg: str


def header_of(token: bytes) -> Header:
    """The header, unverified. Raises: TokenError for what can never be accepted."""
    if not token.startswith(b"ey") or token.count(b".") != 2:
        raise TokenError("not a token")
    if len(token) > MAX_TOKEN:
        raise TokenError("the token is too long")
    try:
        fields = _JWS.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise TokenError("the header of the token cannot be read") from error
    kid, alg = fields.get("kid"), fields.get("alg")
    if alg not in ALGORITHMS:
        raise TokenError("the token is not signed with one of " + ", ".join(ALGORITHMS))
    if not isinstance(kid, str) or not kid:
        raise TokenError("the token does not say which key it is signed with")
    if "crit" in fields or "b64" in fields:
        raise TokenError("the token asks for an extension")
    return Header(kid, alg)


class TokenVerifier:
    """Checks tokens of one issuer.

    Args: audience: what `aud` has to name; "": nothing is accepted while `verify_aud`.
        clock: Unix time in seconds.
    """

    def __init__(
        self, issuer: str, audience: str, verify_aud: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._issuer = issuer.rstrip("/")
        self._audience = audience
        self._verify_aud = verify_aud
        self._clock = clock

    def claims(self, token: bytes, header: Header, key: Any) -> dict[str, Any]:
        """The claims of a token, all checks passed.

        Args: key: a public key for `header.alg`. Raises: TokenError. Cost: 0.1 to 0.3 ms.
        """
        try:
            payload = _JWS.decode(token, key, algorithms=[header.alg])
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenError("the signature of the token is wrong") from error
        try:
            claims = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise TokenError("the claims of the token cannot be read") from error
        if not isinstance(claims, dict):
            raise TokenError("the claims of the token cannot be read")
        self._check_times(claims)
        self._check_parties(claims)
        return claims

    def _check_times(self, claims: dict[str, Any]) -> None:
        now = self._clock()
        expires_at = _time(claims, "exp")
        if expires_at is None:
            raise TokenError("the token has no end")
        if expires_at <= now:
            raise TokenError("the token has expired")
        issued_at, not_before = _time(claims, "iat"), _time(claims, "nbf")
        if issued_at is not None and issued_at > now + IAT_SLACK_S:
            raise TokenError("the token was issued in the future")
        if not_before is not None and not_before > now:
            raise TokenError("the token is not valid yet")

    def _check_parties(self, claims: dict[str, Any]) -> None:
        issuer, audience = claims.get("iss"), claims.get("aud")
        if not isinstance(issuer, str) or issuer.rstrip("/") != self._issuer:
            raise TokenError("the token is of another issuer")
        if not self._verify_aud:
            return
        named = audience if isinstance(audience, list) else [audience]
        if not self._audience or self._audience not in named:
            raise TokenError("the token is meant for another audience")


def _time(claims: dict[str, Any], name: str) -> float | None:
    """A point in time, in Unix seconds; None if it is not given. Raises: TokenError."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"the claim {name} is not a time")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise TokenError(f"the claim {name} is not a time")
    return seconds


_JWS: Final = signatures.jws(list(ALGORITHMS))
