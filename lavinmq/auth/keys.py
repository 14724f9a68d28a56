"""The public keys of an issuer of tokens, fetched and kept up to date.

`<issuer>/.well-known/openid-configuration` names the address of the keys (OpenID Connect Discovery,
section 4; RFC 7517 for the keys). They are fetched again in the background before they are too old,
and, at most every half minute, when a token names a key that is not there: the issuer may have
changed its keys. While fetching fails the keys at hand stay. Imported with the backend `oauth`.
Source: docs/authentication.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jwt

from lavinmq.auth import signatures
from lavinmq.auth.fetch import Document, Fetch, FetchError
from lavinmq.auth.tasks import Tasks
from lavinmq.auth.tokens import ALGORITHMS
from lavinmq.process.portions import others_first

log = logging.getLogger("lmq.auth.oauth")

MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_MEMBER: Final = 2048
"""Characters of a number of a key, which is converted before its bits are counted."""
MIN_AGE_S: Final = 60
MAX_AGE_S: Final = 86400
RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 300.0
ON_DEMAND_S: Final = 30.0
"""Between two fetches that tokens ask for."""

_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}

Timer = Callable[[float, Callable[[], object]], asyncio.TimerHandle]


class Discovery(NamedTuple):
    """What the issuer says about itself."""

    jwks_uri: str
    authorization_endpoint: str
    """"": it has none."""
    token_endpoint: str


class Keys:
    """The keys of one issuer. `on_change` is called when they are others than before.

    Args: ttl_s: how long keys are kept when the answer does not say; call_later: the loop's;
        clock: seconds that only go up.
    """

    def __init__(
        self, issuer: str, ttl_s: int, fetch: Fetch, tasks: Tasks, call_later: Timer,
        on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._issuer = issuer.rstrip("/")
        self._ttl_s = ttl_s
        self._fetch = fetch
        self._tasks = tasks
        self._call_later = call_later
        self._on_change = on_change
        self._clock = clock
        self._keys: dict[tuple[str, str], Any] = {}
        self._raw: list[Any] = []
        self._discovery: Discovery | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._asked_at = -ON_DEMAND_S
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def are_there(self) -> bool:
        """Whether keys have been fetched."""
        return bool(self._keys)

    def find(self, kid: str, alg: str) -> Any:
        """The key of that name for an algorithm, or None."""
        return self._keys.get((kid, alg))

    def start(self) -> None:
        """Fetch the keys, and again and again from then on."""
        self._refresh()

    def stop(self) -> None:
        """Fetch no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def look_again(self) -> None:
        """A key is missing: fetch, unless that was done a moment ago for the same reason."""
        if self._fetching is None:
            now = self._clock()
            if now - self._asked_at < ON_DEMAND_S:
                return
            self._asked_at = now
        await asyncio.shield(self._refresh())

    async def discovery(self) -> Discovery:
        """What the issuer says about itself, fetched if need be. Raises: FetchError."""
        if self._discovery is None:
            await self.look_again()
        if self._discovery is None:
            raise FetchError(f"{self._issuer}: its configuration has not been fetched")
        return self._discovery

    def _refresh(self) -> asyncio.Task[None]:
        """Fetch, once for all who want it."""
        if self._fetching is None:
            self._fetching = self._tasks.start(self._fetch_all())
        return self._fetching

    async def _fetch_all(self) -> None:
        """Fetch discovery and keys, and say when next."""
        wait_s = MAX_RETRY_S  # should there be a bug in here
        try:
            wait_s = await self._fetch_keys()
            self._failures = 0
        except FetchError as error:
            wait_s = min(RETRY_S * 2**self._failures, MAX_RETRY_S)
            self._failures = min(self._failures + 1, 10)
            # A fetch on demand is no use for a while, either.
            self._asked_at = self._clock()
            log.warning("Keys of tokens not fetched, again in %.0f s: %s", wait_s, error)
        finally:
            self._fetching = None
            self._fetch_in(wait_s)

    def _fetch_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_stopped:
            self._timer = self._call_later(wait_s, self._refresh)

    async def _fetch_keys(self) -> float:
        """Replace the keys. Returns: for how many seconds they are good. Raises: FetchError."""
        where = f"{self._issuer}/.well-known/openid-configuration"
        self._discovery = self._discovered(where, await self._fetch(where))
        address = self._discovery.jwks_uri
        answer = await self._fetch(address)
        raw = answer.content.get("keys") if isinstance(answer.content, dict) else None
        if answer.status != 200 or not isinstance(raw, list):
            raise FetchError(f"{address}: status {answer.status}, and no set of keys")
        raw = raw[:MAX_KEYS]
        if raw != self._raw:
            keys = await _keys(raw)
            if not keys:
                raise FetchError(f"{address}: none of {len(raw)} keys can be used")
            self._keys, self._raw = keys, raw
            self._on_change()
            log.info("Keys of tokens fetched: %s", ", ".join(sorted({kid for kid, _ in keys})))
        age_s = self._ttl_s if answer.max_age_s is None else answer.max_age_s
        return float(min(max(age_s, MIN_AGE_S), MAX_AGE_S))

    def _discovered(self, where: str, answer: Document) -> Discovery:
        content = answer.content
        if answer.status != 200 or not isinstance(content, dict):
            raise FetchError(f"{where}: status {answer.status}, and no JSON object")
        issuer = content.get("issuer")
        if not isinstance(issuer, str) or issuer.rstrip("/") != self._issuer:
            raise FetchError(f"{where}: it is the configuration of another issuer")
        found = Discovery(*(self._address(content.get(name)) for name in Discovery._fields))
        if not found.jwks_uri:
            raise FetchError(f"{where}: jwks_uri is missing or not usable")
        return found

    def _address(self, value: object) -> str:
        """An address, as safe as that of the issuer; else nothing."""
        schemes = ("https://",) if self._issuer.startswith("https://") else ("https://", "http://")
        return value if isinstance(value, str) and value.startswith(schemes) else ""


async def _keys(raw: list[Any]) -> dict[tuple[str, str], Any]:
    """The keys that can be used, by name and algorithm. Of two for the same the first counts."""
    found: dict[tuple[str, str], Any] = {}
    for entry in raw:
        await others_first()  # each takes up to a millisecond: others have their turn
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        key = None
        for alg in _algorithms(entry):
            key = key or _public_key(entry)
            if key is not None:
                found.setdefault((entry["kid"], alg), key)
    return found


def _algorithms(entry: dict[str, Any]) -> list[str]:
    """What the key may be used for; nothing when it is not meant for signatures."""
    if entry.get("use", "sig") != "sig":
        return []
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return []
    return [
        alg
        for alg, (kind, curve) in ALGORITHMS.items()
        if entry.get("kty") == kind
        and (not curve or entry.get("crv") == curve)
        and entry.get("alg", alg) == alg
    ]


def _public_key(entry: dict[str, Any]) -> Any:
    """The key, or None when it makes no sense. Private parts, should there be any, are not read."""
    kind = entry["kty"]
    public = {name: entry.get(name) for name in ("kty", "crv", *_MEMBERS[kind]) if name in entry}
    try:
        if any(isinstance(each, str) and len(each) > MAX_MEMBER for each in public.values()):
            raise ValueError(f"a number in it has more than {MAX_MEMBER} characters")
        key = signatures.public_key(public)
    except (jwt.InvalidKeyError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("A key for tokens cannot be used: %s", error)
        return None
    if kind == "RSA" and not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        log.warning("A key for tokens has %d bits and is not used", key.key_size)
        return None
    return key
