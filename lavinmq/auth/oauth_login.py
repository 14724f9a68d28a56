"""Logging in to the management pages at the issuer of tokens, in a browser.

The authorization code flow of OAuth 2 for public clients, with PKCE (RFC 6749 section 4.1, RFC
7636). Nothing is kept here between the two steps: state and verifier travel in a cookie. The HTTP
server turns what these functions return, or raise, into answers, cookies and redirects.
Source: docs/authentication.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from lavinmq.auth.attempt import MAX_TOKEN, TokenError
from lavinmq.auth.fetch import FetchError, is_safe

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.oauth import OAuth
    from lavinmq.config.values import Config

log = logging.getLogger("lmq.auth.oauth")

STATE_COOKIE: Final = "oauth_state"
STATE_MAX_AGE_S: Final = 300
TOKEN_COOKIE: Final = "oauth_token"
SESSION_MAX_AGE_S: Final = 8 * 3600

_MAX_PARAMETER: Final = 4096
_MAX_SHOWN: Final = 200


class LoginError(Exception):
    """The log-in has failed; the text is for the person in front of the browser."""


class NotConfigured(LoginError):
    """This broker has no such log-in."""

    def __init__(self) -> None:
        super().__init__("OAuth not configured")


class Authorization(NamedTuple):
    """The first step: where to send the browser, and what it has to bring back."""

    url: str
    cookie: str
    """Value of `STATE_COOKIE`: HttpOnly, SameSite=Lax, for `STATE_MAX_AGE_S`."""


class Session(NamedTuple):
    """The second step: somebody has logged in."""

    identity: Identity
    token: str
    """Value of `TOKEN_COOKIE`: HttpOnly, SameSite=Lax."""
    marker: str
    """Value of the cookie `m`, which says who it is and is no credential. SameSite=Lax."""
    max_age_s: int
    """Of both cookies."""


def missing(config: Config) -> str:
    """Why the log-in is off, for the operator; "" when it is on or nobody asked for it."""
    given = {
        "issuer": config.oauth_issuer,
        "client_id": config.oauth_client_id,
        "mgmt_base_url": config.oauth_mgmt_base_url,
    }
    lacking = [name for name, value in given.items() if not value]
    if lacking and not (config.oauth_client_id or config.oauth_mgmt_base_url):
        return ""  # tokens only
    if lacking:
        return f"single sign-on is off, [oauth] lacks {', '.join(lacking)}"
    if not is_safe(config.oauth_mgmt_base_url or ""):
        return "single sign-on is off, mgmt_base_url in [oauth] is neither https nor local"
    return ""


def is_enabled(config: Config) -> bool:
    """Whether people can log in this way."""
    return (
        "oauth" in config.auth_backends
        and bool(config.oauth_client_id and config.oauth_mgmt_base_url)
        and not missing(config)
    )


def cookie_path(config: Config) -> str:
    """The path for all cookies: that of the base URL, which may be behind a prefix."""
    return urlsplit(config.oauth_mgmt_base_url or "").path.rstrip("/") or "/"


def is_secure(config: Config) -> bool:
    """Whether the cookies are for https only."""
    return not (config.oauth_mgmt_base_url or "").startswith("http://")


async def authorize(config: Config, oauth: OAuth) -> Authorization:
    """Begin a log-in. Raises: NotConfigured; LoginError when the issuer cannot be asked."""
    if not is_enabled(config):
        raise NotConfigured
    try:
        endpoint = (await oauth.keys.discovery()).authorization_endpoint
    except FetchError as error:
        log.warning("Single sign-on failed: %s", error)
        endpoint = ""
    if not endpoint:
        raise LoginError("OAuth authorization failed")
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    parameters = {
        "client_id": config.oauth_client_id,
        "redirect_uri": _redirect_uri(config),
        "response_type": "code",
        "scope": config.oauth_mgmt_scopes,
        "code_challenge": _challenge(verifier),
        "code_challenge_method": "S256",
        "state": state,
    }
    if config.oauth_audience:
        parameters["audience"] = config.oauth_audience
    separator = "&" if urlsplit(endpoint).query else "?"
    return Authorization(f"{endpoint}{separator}{urlencode(parameters)}", f"{state}:{verifier}")


async def complete(
    config: Config, oauth: OAuth, *, cookie: str, state: str, code: str,
    error: str = "", error_description: str = "",
) -> Session:  # fmt: skip
    """End a log-in that the browser comes back from.

    Args: cookie: value of `STATE_COOKIE`, "" for none; the rest: parameters of the request.
    Raises: NotConfigured, LoginError.
    """
    if not is_enabled(config):
        raise NotConfigured
    verifier = _verifier(cookie, state)
    if error:
        raise LoginError(_shown(error_description or error))
    if not code or len(code) > _MAX_PARAMETER or not code.isprintable():
        raise LoginError("Missing authorization code")
    token, lifetime_s = await _exchanged(config, oauth, code, verifier)
    try:
        identity = await oauth.verify(token.encode(errors="replace"))
    except TokenError as refusal:
        log.warning("Single sign-on failed: %s", refusal)
        raise LoginError("Token validation failed") from refusal
    if not identity.tags:
        log.warning("Single sign-on failed: %r has no tag", identity.name)
        raise LoginError("Token validation failed")
    name = base64.b64encode(f"{identity.name}:".encode()).decode()
    return Session(identity, token, f"|oauth:{quote(name, safe='')}", lifetime_s)


def _verifier(cookie: str, state: str) -> str:
    """The PKCE verifier, once it is certain that this browser has begun the log-in."""
    if not cookie or not state:
        raise LoginError("Missing OAuth state")
    expected, separator, verifier = cookie.partition(":")
    if not separator or not expected or not verifier.isascii() or not verifier:
        raise LoginError("Invalid OAuth state cookie")
    if not hmac.compare_digest(expected.encode(errors="replace"), state.encode(errors="replace")):
        raise LoginError("State mismatch")
    return verifier


async def _exchanged(config: Config, oauth: OAuth, code: str, verifier: str) -> tuple[str, int]:
    """The token for a code, and for how many seconds it may be kept. Raises: LoginError."""
    try:
        endpoint = (await oauth.keys.discovery()).token_endpoint
        if not endpoint:
            raise FetchError("the issuer has no token endpoint")
        answer = await oauth.fetch(
            endpoint,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": _redirect_uri(config),
                "client_id": config.oauth_client_id,
                "code_verifier": verifier,
            },
        )
    except FetchError as error:
        log.warning("Single sign-on failed: %s", error)
        raise LoginError("OAuth authentication failed") from error
    content = answer.content if isinstance(answer.content, dict) else {}
    token = content.get("access_token")
    if answer.status != 200 or not isinstance(token, str) or len(token) > MAX_TOKEN:
        log.warning("Single sign-on failed: status %d of the token endpoint", answer.status)
        description = content.get("error_description")
        raise LoginError(
            _shown(description)
            if isinstance(description, str) and description
            else "OAuth authentication failed"
        )
    return token, _lifetime_s(content.get("expires_in"))


def _lifetime_s(expires_in: object) -> int:
    """Issuers write the number as one, or as text."""
    try:
        seconds = int(float(expires_in)) if isinstance(expires_in, int | float | str) else 0
    except (ValueError, OverflowError):
        seconds = 0
    return min(seconds, SESSION_MAX_AGE_S) if seconds > 0 else SESSION_MAX_AGE_S


def _redirect_uri(config: Config) -> str:
    return (config.oauth_mgmt_base_url or "").rstrip("/") + "/oauth/callback"


def _challenge(verifier: str) -> str:
    """RFC 7636, section 4.2."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _shown(text: str) -> str:
    """A text of the issuer: of bounded length, without control characters."""
    return "".join(char for char in text[:_MAX_SHOWN] if char.isprintable())
