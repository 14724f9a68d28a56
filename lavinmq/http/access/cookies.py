"""The cookies of a log-in at the issuer of tokens: set, expired, and the user behind them.

Source: docs/authentication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lavinmq.auth.attempt import TokenError
from lavinmq.auth.oauth_login import TOKEN_COOKIE, cookie_path, is_secure
from lavinmq.http.access.login import COOKIE as MARKER
from lavinmq.process import log

if TYPE_CHECKING:
    from tornado.web import RequestHandler

    from lavinmq.auth.identity import Identity
    from lavinmq.auth.oauth import OAuth
    from lavinmq.config.values import Config

_log = log.get("lmq.http.oauth")


def put(
    handler: RequestHandler, config: Config, name: str, value: str, max_age_s: int
) -> None:  # fmt: skip
    """Give the browser a cookie."""
    handler.set_cookie(name, value, max_age=max_age_s, **_attributes(config, name))


def expire(handler: RequestHandler, config: Config, *names: str) -> None:
    """Make the browser forget cookies."""
    for name in names:
        handler.clear_cookie(name, **_attributes(config, name))


def _attributes(config: Config, name: str) -> dict[str, Any]:
    """What goes with a cookie. Scripts of the pages may read the marker only."""
    return {
        "path": cookie_path(config), "secure": is_secure(config), "samesite": "Lax",
        "httponly": name != MARKER,
    }  # fmt: skip


def expire_session(handler: RequestHandler, config: Config) -> None:
    """Make the browser forget who has logged in."""
    expire(handler, config, TOKEN_COOKIE, MARKER)


async def user_of(handler: RequestHandler, config: Config, oauth: OAuth) -> Identity | None:
    """The user whose token the cookie holds, None when there is none or it is refused.

    A token that is refused is expired, unless that may be for want of keys to check it with.
    """
    morsel = handler.request.cookies.get(TOKEN_COOKIE)
    if morsel is None:
        return None
    try:
        user = await oauth.verify(morsel.value.encode(errors="replace"))
    except TokenError as error:
        _log.debug("token of a browser refused: %s", error)
    else:
        if user.tags:
            return user
    if oauth.keys.are_there:
        expire_session(handler, config)
    return None
