"""The backend `oauth`: the password is an access token, the name sent with it does not matter.

Verified tokens are remembered while their keys stay, so that clients who connect again and again,
or send the token with each request, are recognized at once. Imported only when it is configured.
Source: docs/authentication.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq.auth.attempt import Attempt, TokenError
from lavinmq.auth.fetch import Fetch, fetch, is_safe
from lavinmq.auth.keys import Keys
from lavinmq.auth.scopes import ClaimReader, TokenUser
from lavinmq.auth.tasks import Tasks
from lavinmq.auth.tokens import TokenVerifier, header_of

if TYPE_CHECKING:
    from lavinmq.config.values import Config

log = logging.getLogger("lmq.auth.oauth")

MAX_REMEMBERED: Final = 1024


class OAuth:
    """Users by way of access tokens of one issuer.

    Args: config: names the issuer; clock: Unix time in seconds; fetch: how documents are got.
    """

    def __init__(
        self, config: Config, tasks: Tasks, events: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.time, fetch: Fetch = fetch,
    ) -> None:  # fmt: skip
        issuer = config.oauth_issuer or ""
        audience = config.oauth_audience or config.oauth_resource_server_id
        self._clock = clock
        self._verifier = TokenVerifier(issuer, audience, config.oauth_verify_aud, clock)
        self._reader = ClaimReader(
            config.oauth_resource_server_id, config.oauth_preferred_username_claims,
            config.oauth_additional_scopes_keys, config.oauth_scope_prefix,
        )  # fmt: skip
        self._users: OrderedDict[bytes, TokenUser] = OrderedDict()
        self.fetch = fetch
        self.keys = Keys(
            issuer, config.oauth_jwks_cache_ttl, fetch, tasks, events.call_later,
            self._users.clear,
        )  # fmt: skip
        if not is_safe(issuer):
            log.warning("The issuer in [oauth] is not https: others may pass off keys as its own")
        if config.oauth_verify_aud and not audience:
            log.warning(
                "No token will be accepted: set audience or resource_server_id in [oauth], or "
                "verify_aud = false"
            )

    def at_once(self, attempt: Attempt) -> TokenUser | None:
        """The user, if that can be told without waiting."""
        if not attempt.is_token:
            return None
        try:
            return self._known(attempt.password)
        except TokenError:
            return None  # `authenticate` will find out again, and log it

    async def authenticate(self, attempt: Attempt) -> TokenUser | None:
        """The user, or None."""
        if not attempt.is_token:
            return None
        try:
            return await self.verify(attempt.password)
        except TokenError:
            return None  # `why_not` tells

    def why_not(self, token: bytes) -> str:
        """Why a token was refused."""
        try:
            user = self._known(token)
        except TokenError as error:
            return f"the access token is refused: {error}"
        return "" if user is not None else f"the access token is refused: {self._no_key}"

    @property
    def _no_key(self) -> str:
        if self.keys.are_there:
            return "the token is signed with an unknown key"
        return "no keys of the issuer have been fetched yet"

    async def verify(self, token: bytes) -> TokenUser:
        """The user of a token. Raises: TokenError."""
        user = self._known(token)
        if user is None:
            await self.keys.look_again()
            user = self._known(token)
        if user is None:
            raise TokenError(self._no_key)
        return user

    def _known(self, token: bytes) -> TokenUser | None:
        """The user of a token; None when the key is not there. Raises: TokenError."""
        # A digest keeps no token in memory for longer than it is used.
        mark = hashlib.sha256(token).digest()
        user = self._users.get(mark)
        if user is not None:
            if user.expires_at <= self._clock():
                del self._users[mark]
                raise TokenError("the token has expired")
            self._users.move_to_end(mark)
            return user
        header = header_of(token)
        key: Any = self.keys.find(*header)
        if key is None:
            return None
        user = self._reader.user(self._verifier.claims(token, header, key))
        self._users[mark] = user
        if len(self._users) > MAX_REMEMBERED:
            self._users.popitem(last=False)
        return user
