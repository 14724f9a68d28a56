"""`/session`: logging in and out with a browser.

The password comes once, as JSON, so that any text may be in it. The browser gets a cookie that
scripts cannot read and other sites cannot have sent. Pages of other origins are kept away before
(`pages.py`). Source: docs/pages.md; decision 0060.
"""

from __future__ import annotations

from typing import Final

import orjson

from lavinmq.auth import sessions
from lavinmq.http import encoding
from lavinmq.http.access import login
from lavinmq.http.errors import ApiError
from lavinmq.http.handler import Handler
from lavinmq.process import log

FAILURE: Final = "Authentication failure"
NO_TAG: Final = "This user has no tag that lets it use the management pages"
_log = log.get("lmq.http.login")


class SessionHandler(Handler):
    """A log-in, as a thing that is made and taken away."""

    def set_default_headers(self) -> None:
        """Nothing of it is to be kept by caches."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    async def post(self) -> None:
        """Log in with `{"username": …, "password": …}`."""
        given = self._given()
        if given is None:
            self.finish_error(ApiError(400, "bad_request", "Username and password are wanted"))
            return
        name, password = given
        user = await login.authenticated(
            self.broker, name, password, self.address, self.is_loopback
        )  # fmt: skip
        if user is None:
            self.finish_error(ApiError(401, "access_refused", FAILURE))
            return
        if not user.tags:
            self.finish_error(ApiError(403, "access_refused", NO_TAG))
            return
        self._close()  # the token of before is nobody's
        try:
            token = self.broker.sessions.open(user)
        except sessions.TooManySessions:
            self.finish_error(ApiError(503, "too_many_sessions", "Too many users are logged in"))
            return
        _log.info("user %r from %s logged in with a browser", user.name, self.address)
        self.set_cookie(
            login.COOKIE, login.SESSION_MARK + token, max_age=sessions.LIFE_S, path="/",
            httponly=True, samesite="Lax", secure=self.request.protocol == "https",
        )  # fmt: skip
        self.set_status(204)
        self.finish()

    def _given(self) -> tuple[str, bytes] | None:
        try:
            given = orjson.loads(self.request.body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(given, dict):
            return None
        name, password = given.get("username"), given.get("password")
        if not isinstance(name, str) or not isinstance(password, str) or not password:
            return None
        return name, password.encode()

    async def delete(self) -> None:
        """Sign out; with `?everywhere` from all browsers of the user."""
        session = self._close()
        if session is not None:
            user = session.user
            if "everywhere" in self.request.query_arguments or self.request.query == "everywhere":
                self.broker.sessions.close_all(user.name)
            # What is open for it ends.
            self.broker.revocation.look_again(user.name, is_login=True)
            _log.info("user %r from %s signed out", user.name, self.address)
        self.clear_cookie(login.COOKIE, path="/")
        self.set_status(204)
        self.finish()

    async def get(self) -> None:
        """Say how one may log in: with a password, and maybe at the issuer of tokens."""
        is_elsewhere = False
        if self.broker.chain.oauth is not None:
            from lavinmq.auth import oauth_login  # only where tokens are taken

            is_elsewhere = oauth_login.is_enabled(self.broker.config)
        self.set_header("Content-Type", "application/json")
        self.finish(encoding.encode({"password": True, "sso": is_elsewhere}))

    def _close(self) -> sessions.Session | None:
        """End the log-in of the cookie. Returns: it, if it counted until now."""
        token = login.session_token(self.request)
        if token is None:
            return None
        session = self.broker.sessions.find(token)
        self.broker.sessions.close(token)
        return session
