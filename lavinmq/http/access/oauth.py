"""Logging in at the issuer of tokens with a browser: what it asks for before and after.

`/oauth/…` is there when the backend `oauth` is configured, without a log-in. What is checked, and
what is asked of the issuer, is in `auth/oauth_login.py`.
Source: docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote

from lavinmq.auth import oauth_login
from lavinmq.auth.oauth_login import (
    STATE_COOKIE,
    STATE_MAX_AGE_S,
    TOKEN_COOKIE,
    LoginError,
    NotConfigured,
)
from lavinmq.http import encoding
from lavinmq.http.access import cookies
from lavinmq.http.access.login import COOKIE as MARKER
from lavinmq.http.handler import JSON, Handler
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.oauth import OAuth
    from lavinmq.config.values import Config

HOME: Final = ".."
LOGIN: Final = "../login"
MAX_AT_ONCE: Final = 32
"""Log-ins of a process that wait for the issuer: anybody may begin one."""
_log = log.get("lmq.http.oauth")


class OAuthHandler(Handler):
    """What the steps have in common: nothing of them is to be kept by caches."""

    def set_default_headers(self) -> None:
        """The usual ones."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    @property
    def config(self) -> Config:
        """The present configuration."""
        return self.broker.config

    @property
    def oauth(self) -> OAuth:
        """The backend; these handlers are there with it only."""
        oauth = self.broker.chain.oauth
        assert oauth is not None
        return oauth

    def send_json(self, status: int, content: Any) -> None:
        """Answer a script."""
        self.set_status(status)
        self.set_header("Content-Type", JSON)
        self.finish(encoding.encode(content))

    def send_to(self, place: str) -> None:
        """Send the browser elsewhere, relative to here: the broker may be behind a prefix."""
        self.set_status(302)
        self.set_header("Location", place)
        self.finish()


class Enabled(OAuthHandler):
    """`/oauth/enabled`: whether the page offers this log-in."""

    def get(self) -> None:
        """Say it."""
        self.send_json(200, {"enabled": oauth_login.is_enabled(self.config)})


class Authorize(OAuthHandler):
    """`/oauth/authorize`: begins a log-in."""

    async def get(self) -> None:
        """Tell the page where to send the browser."""
        try:
            step = await oauth_login.authorize(self.config, self.oauth)
        except LoginError as error:
            status = 503 if isinstance(error, NotConfigured) else 502
            self.send_json(status, {"reason": str(error)})
            return
        cookies.put(self, self.config, STATE_COOKIE, step.cookie, STATE_MAX_AGE_S)
        self.send_json(200, {"authorize_url": step.url})


class Callback(OAuthHandler):
    """`/oauth/callback`: the browser comes back from the issuer."""

    n_waiting = 0

    async def get(self) -> None:
        """Log in, or say on the log-in page why not."""
        try:
            session = await self._session()
        except LoginError as error:
            self.send_to(f"{LOGIN}?error={quote(str(error), safe='')}")
            return
        _log.info("user %r from %s logged in", session.identity.name, self.address)
        cookies.put(self, self.config, TOKEN_COOKIE, session.token, session.max_age_s)
        cookies.put(self, self.config, MARKER, session.marker, session.max_age_s)
        cookies.expire(self, self.config, STATE_COOKIE)
        self.send_to(HOME)

    async def _session(self) -> oauth_login.Session:
        """Raises: LoginError."""
        if Callback.n_waiting >= MAX_AT_ONCE:
            _log.warning("log-in from %s refused: %d are waiting", self.address, MAX_AT_ONCE)
            raise LoginError("OAuth authentication failed")
        given = dict(parse_qsl(self.request.query, errors="replace"))
        morsel = self.request.cookies.get(STATE_COOKIE)
        Callback.n_waiting += 1
        try:
            return await oauth_login.complete(
                self.config, self.oauth, cookie="" if morsel is None else morsel.value,
                state=given.get("state", ""), code=given.get("code", ""),
                error=given.get("error", ""),
                error_description=given.get("error_description", ""),
            )  # fmt: skip
        finally:
            Callback.n_waiting -= 1


class Logout(OAuthHandler):
    """`/oauth/logout`: the browser forgets the log-in; the issuer does not."""

    def get(self) -> None:
        """Back to the log-in page."""
        cookies.expire_session(self, self.config)
        self.send_to(LOGIN)


ROUTES: Final[list[Any]] = [
    (r"/oauth/enabled", Enabled),
    (r"/oauth/authorize", Authorize),
    (r"/oauth/callback", Callback),
    (r"/oauth/logout", Logout),
]
