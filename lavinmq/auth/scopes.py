"""What an access token allows: its claims read as user name, tags and permissions.

A scope is `tag:<name>` or `configure|read|write:<virtual host>/<resource>`, with a third part for
routing keys of topic exchanges; the parts are percent encoded, each with `*` for any text. What is
not given is denied; a scope without third part gives all keys.
Source: docs/authentication.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from lavinmq.auth.attempt import TokenError
from lavinmq.auth.permissions import DEFAULT_EXCHANGE
from lavinmq.auth.users import DIRECT_USER, parse_tags

MAX_REMEMBERED: Final = 4096
"""Answers a user keeps: names come from clients, so there is no end of them."""

MAX_NAME_BYTES: Final = 255
_KINDS: Final = ("configure", "read", "write")


class Glob:
    """A percent-encoded text in which `*` stands for any other; `%2A` is a star.

    Matching goes once through the name, whatever the pattern. Raises: UnicodeDecodeError.
    """

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = [unquote(part, errors="strict") for part in text.split("*")]

    @property
    def is_any(self) -> bool:
        """Whether it is stars alone, which stand for every text."""
        return len(self._parts) > 1 and not any(self._parts)

    def matches(self, name: str) -> bool:
        """Whether it is the whole name."""
        first, *rest = self._parts
        if not rest:
            return name == first
        last = rest.pop()
        if len(name) < len(first) + len(last):
            return False
        if not (name.startswith(first) and name.endswith(last)):
            return False
        at, end = len(first), len(name) - len(last)
        for part in rest:  # each as far left as it goes
            at = name.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


class Grant(NamedTuple):
    """One permission; `keys` None: with every routing key."""

    kind: str
    vhost: Glob
    resource: Glob
    keys: Glob | None = None

    def is_about(self, kind: str, vhost: str, resource: str) -> bool:
        """Whether it gives a right of that kind on the resource."""
        if self.kind != kind or not self.vhost.matches(vhost):
            return False
        return self.resource.matches(resource) or (
            not resource and self.resource.matches(DEFAULT_EXCHANGE)
        )


class TokenKeys:
    """What a token allows with the routing keys of one exchange; see `topics.KeyRights`.

    Args: read, write: the keys that are allowed; None: every one.
    """

    __slots__ = ("_read", "_write", "is_any_written")

    def __init__(self, read: tuple[Glob, ...] | None, write: tuple[Glob, ...] | None) -> None:
        self._read = read
        self._write = write
        self.is_any_written = write is None

    def can_read(self, key: str) -> bool:
        """Whether the exchange may be bound with the key."""
        return self._read is None or any(keys.matches(key) for keys in self._read)

    def can_write(self, key: str) -> bool:
        """Whether messages with the routing key may be published."""
        return self._write is None or any(keys.matches(key) for keys in self._write)

    def of_client(self, client_id: str) -> TokenKeys:
        """The same: scopes know no variables."""
        return self


class TokenUser:
    """A user by way of an access token; see `Identity`. It never changes."""

    __slots__ = ("_answers", "_has_keys", "expires_at", "grants", "name", "tags")

    def __init__(
        self, name: str, tags: tuple[str, ...], grants: tuple[Grant, ...], expires_at: float
    ) -> None:
        self.name = name
        self.tags = tags
        self.grants = grants
        self.expires_at = expires_at
        self._has_keys = any(grant.keys is not None for grant in grants)
        self._answers: dict[tuple[str, str, str], bool] = {}

    def has_tag(self, tag: str) -> bool:
        """Whether the token gives the tag."""
        return tag in self.tags

    def has_vhost(self, vhost: str) -> bool:
        """Whether it allows anything at all in the virtual host."""
        return any(grant.vhost.matches(vhost) for grant in self.grants)

    def can_configure(self, vhost: str, resource: str) -> bool:
        """Whether the user may declare and delete the queue or exchange."""
        return self._can("configure", vhost, resource)

    def can_read(self, vhost: str, resource: str) -> bool:
        """Whether the user may consume, get, purge and bind from the queue or exchange."""
        return self._can("read", vhost, resource)

    def can_write(self, vhost: str, resource: str) -> bool:
        """Whether the user may publish and bind to the queue or exchange."""
        return self._can("write", vhost, resource)

    def can_write_all(self, vhost: str) -> bool:
        """Whether the user may publish to whatever exchange there is or will be, with every key."""
        return any(
            grant.kind == "write" and grant.vhost.matches(vhost) and grant.resource.is_any
            and grant.keys is None
            for grant in self.grants
        )  # fmt: skip

    def key_rights(self, vhost: str, exchange: str) -> TokenKeys | None:
        """What the user may do with the keys of a topic exchange; None: anything."""
        if not self._has_keys:
            return None
        read, write = (self._keys(kind, vhost, exchange) for kind in ("read", "write"))
        return None if read is None and write is None else TokenKeys(read, write)

    def _keys(self, kind: str, vhost: str, exchange: str) -> tuple[Glob, ...] | None:
        about = [grant for grant in self.grants if grant.is_about(kind, vhost, exchange)]
        keys = tuple(grant.keys for grant in about if grant.keys is not None)
        return keys if keys and len(keys) == len(about) else None

    def _can(self, kind: str, vhost: str, resource: str) -> bool:
        question = kind, vhost, resource
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= MAX_REMEMBERED:
                self._answers.clear()
            answer = any(grant.is_about(kind, vhost, resource) for grant in self.grants)
            self._answers[question] = answer
        return answer

    def __repr__(self) -> str:
        return f"TokenUser({self.name!r}, tags={','.join(self.tags)!r})"


class ClaimReader:
    """Reads claims as one broker is told to.

    Args: see [oauth] in docs/configuration.md; `prefix` None: the resource server and a dot.
    """

    def __init__(
        self, resource_server: str, name_claims: tuple[str, ...],
        additional_claims: tuple[str, ...], prefix: str,
    ) -> None:  # fmt: skip
        self._resource_server = resource_server
        self._name_claims = name_claims
        self._additional_claims = additional_claims
        self._prefix = prefix or (f"{resource_server}." if resource_server else "")

    def user(self, claims: Mapping[str, Any]) -> TokenUser:
        """The user that the claims of a verified token make, `exp` among them.

        Raises: TokenError when they name nobody.
        """
        tags, grants = [], []
        for scope in self._scopes(claims):
            kind, _, rest = scope.partition(":")
            if kind == "tag":
                tags.append(rest)
            elif kind in _KINDS and (grant := _grant(kind, rest)) is not None:
                grants.append(grant)
        return TokenUser(
            self._name(claims), parse_tags(",".join(tags)), tuple(grants), float(claims["exp"])
        )

    def _name(self, claims: Mapping[str, Any]) -> str:
        for claim in self._name_claims:
            name = claims.get(claim)
            if isinstance(name, str) and name:
                break
        else:
            raise TokenError("the token names no user")
        if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES or not name.isprintable():
            raise TokenError("the user name in the token cannot be used")
        if name == DIRECT_USER:
            raise TokenError(f"{DIRECT_USER} is the name of the broker's own user")
        return name

    def _scopes(self, claims: Mapping[str, Any]) -> Iterator[str]:
        """All scopes of the token that are meant for us, without the prefix."""
        for scope in self._all_scopes(claims):
            if scope.startswith(self._prefix):
                yield scope[len(self._prefix) :]

    def _all_scopes(self, claims: Mapping[str, Any]) -> Iterator[str]:
        access = claims.get("resource_access")
        if isinstance(access, dict):
            own = access.get(self._resource_server)
            if isinstance(own, dict):
                yield from _words(own.get("roles"))
        yield from _words(claims.get("scope"))
        for claim in self._additional_claims:
            value = claims.get(claim)
            if isinstance(value, dict):
                value = value.get(self._resource_server)
            yield from _words(value)


def _words(value: object) -> Iterator[str]:
    """The scopes of a text, separated by blanks, or of an array of texts; of all else none."""
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                yield from item.split()


def _grant(kind: str, text: str) -> Grant | None:
    """The permission that the rest of a scope gives; None when it makes no sense."""
    vhost, _, rest = text.partition("/")
    resource, _, keys = rest.partition("/")
    if not vhost or not resource:
        return None
    try:
        return Grant(kind, Glob(vhost), Glob(resource), Glob(keys) if keys else None)
    except UnicodeDecodeError:
        return None
