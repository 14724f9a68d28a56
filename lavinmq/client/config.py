"""Options of a client: one frozen value, made from defaults, a URL and keywords.

Every key can be given in the query of a URL and as a keyword; a keyword wins. What is wrong is
refused by its name when the value is made: ConfigError, with the nearest name that there is. The
password, a token and key files' contents are in no repr and in no text of an error.
"""

from __future__ import annotations

import os
import ssl
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, Final

from lavinmq.client.errors import ConfigError
from lavinmq.client.values import BufferPolicy, PublishMode

MIB: Final = 1 << 20
Token = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Config:
    """Options; times are seconds."""

    # Buffer of a producer.
    buffer_size: int = 10_000
    buffer_bytes: int = 64 * MIB
    buffer_policy: BufferPolicy = BufferPolicy.BLOCK
    buffer_while_disconnected: bool = True
    block_timeout: float | None = 30.0
    message_ttl: float | None = None
    spill_directory: str | None = None
    spill_bytes: int = 1024 * MIB
    # Publishing.
    mode: PublishMode = PublishMode.CONFIRM
    max_in_flight: int = 1_000
    confirm_timeout: float | None = 30.0
    flush_retries: int | None = None
    retry_nacks: bool = True
    deduplicate: bool = False
    # Reconnecting.
    reconnect: bool = True
    reconnect_initial_delay: float = 0.1
    reconnect_max_delay: float = 30.0
    reconnect_multiplier: float = 2.0
    reconnect_jitter: float = 0.2
    reconnect_max_attempts: int | None = None
    retry_auth: bool = False
    topology_recovery: str = "declared"
    fail_fast: bool = True
    failover: str = "ordered"
    separate_connections: bool = False
    pool_size: int = 1
    # Time-outs and watching.
    connect_timeout: float = 10.0
    health_interval: float = 1.0
    heartbeat: int = 60
    tcp_keepalive: str = "60:10:3"
    blocked_timeout: float | None = None
    rpc_timeout: float = 10.0
    close_timeout: float = 5.0
    # Consuming.
    prefetch: int = 100
    max_unacked_age: float | None = None
    # Protocol.
    frame_max: int = 131_072
    channel_max: int = 2_048
    max_message_size: int = 128 * MIB
    name: str = ""
    client_properties: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Log-in and TLS.
    auth: str = "plain"
    token: Token | None = field(default=None, repr=False)
    token_interval: float | None = None
    verify: bool = True
    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = field(default=None, repr=False)
    server_name: str | None = None
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    # Observing.
    tracing: bool = False

    def __post_init__(self) -> None:
        for name, kinds in _kinds().items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), kinds))
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"option {name} is {value}, allowed are {least:g} to {most:g}")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigError(
                    f"option {name} is {getattr(self, name)!r}, allowed are {', '.join(words)}"
                )
        if self.buffer_policy is BufferPolicy.SPILL and not self.spill_directory:
            raise ConfigError("option buffer_policy is spill, and spill_directory is not given")
        if self.auth == "token" and self.token is None:
            raise ConfigError("option auth is token, and token is not given")
        keepalive(self.tcp_keepalive)

    def updated(self, options: Mapping[str, Any]) -> Config:
        """These options with others in their place. Raises: ConfigError."""
        check_names(options)
        return replace(self, **options) if options else self

    @property
    def program_name(self) -> str:
        """The name that the broker shows."""
        return self.name or os.path.basename(sys.argv[0] or "") or "python"


_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("buffer_size", 1, 1 << 30),
    ("buffer_bytes", 1, 1 << 50),
    ("spill_bytes", 1, 1 << 50),
    ("max_in_flight", 1, 1 << 24),
    ("block_timeout", 0, 1e9),
    ("message_ttl", 0.001, 1e9),
    ("confirm_timeout", 0.01, 1e9),
    ("flush_retries", 0, 1 << 30),
    ("reconnect_initial_delay", 0.001, 1e6),
    ("reconnect_max_delay", 0.001, 1e6),
    ("reconnect_multiplier", 1, 100),
    ("reconnect_jitter", 0, 1),
    ("reconnect_max_attempts", 1, 1 << 30),
    ("pool_size", 1, 1000),
    ("connect_timeout", 0.01, 1e6),
    ("health_interval", 0.01, 3600),
    ("heartbeat", 0, 65_535),
    ("blocked_timeout", 0.01, 1e9),
    ("rpc_timeout", 0.01, 1e6),
    ("close_timeout", 0, 1e6),
    ("prefetch", 0, 65_535),
    ("max_unacked_age", 0.01, 1e9),
    ("frame_max", 4096, 1 << 27),
    ("channel_max", 1, 65_535),
    ("max_message_size", 1, 1 << 31),
    ("token_interval", 0.1, 1e9),
)
_WORDS: Final = {
    "auth": ("plain", "external", "token", "amqplain"),
    "failover": ("ordered", "shuffle", "round-robin"),
    "topology_recovery": ("declared", "off"),
}
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


@cache
def _kinds() -> dict[str, tuple[type, ...]]:
    """Which types each option takes."""
    hints = typing.get_type_hints(Config)
    found: dict[str, tuple[type, ...]] = {}
    for each in fields(Config):
        hint = hints[each.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if all(isinstance(part, type) for part in parts):
            found[each.name] = parts
    return found


def option_names() -> list[str]:
    """The names of all options."""
    return [each.name for each in fields(Config)]


def check_names(options: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
    """Refuse what is no option. Raises: ConfigError with the nearest name."""
    known = [*option_names(), *also]
    for name in options:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no option {name!r}{hint}")


def _checked(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """A value of an option, from text where needed. Raises: ConfigError."""
    if value is None and type(None) in kinds:
        return None
    kind = next((each for each in kinds if each is not type(None)), str)
    if isinstance(value, bool) and kind in (int, float):
        raise ConfigError(f"option {name} is {value}, a number is wanted")
    if isinstance(value, kind):
        return value
    try:
        if kind is float and isinstance(value, int):
            return float(value)
        if isinstance(value, str):
            return _from_text(kind, value, type(None) in kinds)
    except ValueError:
        pass
    raise ConfigError(f"option {name} is {_shown(value)}, {_wanted(kind)} is wanted")


def _from_text(kind: type, text: str, is_optional: bool) -> Any:
    if is_optional and text.lower() in ("", "none"):
        return None
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError(text)
    if issubclass(kind, Enum):
        return kind(text.lower().replace("-", "_"))
    if kind in (int, float):
        return kind(text)
    raise ValueError(text)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else type(value).__name__


def _wanted(kind: type) -> str:
    words: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    if kind in words:
        return words[kind]
    if issubclass(kind, Enum):
        return " or ".join(str(each.value) for each in kind)
    return kind.__name__


def _is_count(text: str, most: int) -> bool:
    """Whether a text is a number of seconds, or of probes, that the kernel takes."""
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) <= most


def keepalive(text: str) -> tuple[int, int, int] | None:
    """Seconds idle, between probes, and how many; None = off. Raises: ConfigError."""
    if text in ("off", "0", ""):
        return None
    parts = text.split(":")
    if len(parts) != 3 or not all(map(_is_count, parts, (32_767, 32_767, 127))):
        raise ConfigError(f"option tcp_keepalive is {text!r}, as 60:10:3 is wanted, or off")
    return int(parts[0]), int(parts[1]), int(parts[2])
