"""The types of configuration values: how a text becomes a value, and which texts are refused.

Used by the table in ``settings.py``, which gives every setting one of these kinds. A parser
takes the text as it stands in a file, a variable or an argument and raises ``ValueError`` with
half a sentence; ``values.py`` adds the names. Nothing here reads files or looks at the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRUE_WORDS = frozenset(("1", "true", "yes", "on", "y"))
FALSE_WORDS = frozenset(("0", "false", "no", "off", "n", ""))
LEVELS = ("trace", "debug", "info", "notice", "warn", "error", "fatal", "none")
AUTH_BACKENDS = ("local", "oauth")
TLS_VERSIONS = ("", "1.0", "1.1", "1.2", "1.3")
KEEPALIVE_DEFAULTS = (60, 10, 3)
KEEPALIVE_LIMITS = (32767, 32767, 127)  # what Linux accepts for idle, interval and count
SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its final zero
MD5_BYTES = 16  # the shortest digest a password hash may carry
SHOWN_CHARACTERS = 60
MAX_INTEGER = 2**63 - 1


def _certain(text: str) -> str:
    """Have no doubt about any text that was parsed."""
    return ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value.

    ``parse`` returns the value or raises ``ValueError``; ``doubt`` returns a warning about a text
    that is accepted but probably not meant, else an empty string; ``name`` is for people.
    ``is_safeguard`` says that data or access hang on it, so that no slip may turn it off.
    """

    name: str
    parse: Callable[[str], object]
    doubt: Callable[[str], str] = _certain
    is_safeguard: bool = False


def shown(text: str) -> str:
    """Return a text quoted for a message: on one line and of bounded length."""
    short = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
    return repr(short)


def integer(low: int, high: int, *, also: int | None = None, optional: bool = False) -> Kind:
    """Return the kind of whole numbers from ``low`` to ``high``; ``also`` is one more allowed.

    An optional one may be empty, which is ``None``.
    """
    limits = f"{low} or more" if high == MAX_INTEGER else f"{low} to {high}"
    if also is not None:
        limits = f"{also} or {limits}"

    def parse(text: str) -> int | None:
        if optional and not text:
            return None
        digits = text[1:] if text[:1] in ("-", "+") else text
        # int() alone would also take "1_000", blanks and digits of other scripts.
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
            raise ValueError(f"{shown(text)} is not a whole number")
        number = int(text)
        if number != also and not low <= number <= high:
            raise ValueError(f"{number} is out of range, allowed is {limits}")
        return number

    return Kind(f"integer, {limits}", parse)


def choice(*words: str) -> Kind:
    """Return the kind of one word out of several; capitals do not matter."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{shown(text)} is none of {', '.join(words)}")
        return text.lower()

    return Kind(", ".join(words), parse)


def list_of(*words: str) -> Kind:
    """Return the kind of comma separated lists, of the given words or, without any, of all."""

    def parse(text: str) -> tuple[str, ...]:
        items = _items(text)
        for item in items:
            if words and item not in words:
                raise ValueError(f"{shown(item)} is none of {', '.join(words)}")
        return items

    return Kind(f"list of {', '.join(words)}" if words else "list", parse)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item for part in text.split(",") if (item := part.strip()))


def _boolean(text: str) -> bool:
    return text.lower() in TRUE_WORDS


def _doubtful_boolean(text: str) -> str:
    if is_boolean(text):
        return ""
    return f"{shown(text)} is not a known boolean and counts as false"


def _safeguard(text: str) -> bool:
    # A slip must not turn off what protects data or access.
    if not is_boolean(text):
        raise ValueError(f"{shown(text)} is neither true nor false")
    return _boolean(text)


def is_boolean(text: str) -> bool:
    """Return whether a text is one of the words for true and false."""
    return text.lower() in TRUE_WORDS | FALSE_WORDS


def _proxy_protocol(text: str) -> bool:
    return text == "2" or _safeguard(text)


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a zero byte")
    return text


def _name(text: str) -> str:
    if not text or not text.isprintable() or len(text.encode()) > 255:
        raise ValueError(f"{shown(text)} is not a name of 1 to 255 bytes")
    return text


def _mqtt_exchange(text: str) -> str:
    if len(_text(text).encode()) > 255:
        raise ValueError(f"{shown(text)} is longer than 255 bytes")
    return text


def _doubtful_mqtt_exchange(text: str) -> str:
    if text == "amq.topic" or not text.startswith(("amq.", "mqtt.")):
        return ""
    return (
        f"{shown(text)} is no topic exchange and cannot be declared as one: MQTT and AMQP share no"
        " topics"
    )


def _path(text: str) -> str | None:
    return _text(text) or None


def _directory(text: str) -> str:
    if not text:
        raise ValueError("the path is empty")
    return str(Path(_text(text)))  # what is below it is found by the length of its name


def _socket_path(text: str) -> str | None:
    if len(text.encode(errors="surrogateescape")) > SOCKET_PATH_BYTES:
        raise ValueError(f"{shown(text)} is longer than {SOCKET_PATH_BYTES} bytes")
    return _path(text)


def _address(text: str) -> str:
    plain = text.translate(str.maketrans("", "", ".:-_%"))
    if not plain and text != "::":
        raise ValueError(f"{shown(text)} is not an address or host name")
    if (plain and not plain.isalnum()) or not text.isascii() or len(text) > 255:
        raise ValueError(f"{shown(text)} is not an address or host name")
    return text


def _url(text: str) -> str | None:
    if text and (not text.startswith(("https://", "http://")) or not text.isprintable()):
        raise ValueError(f"{shown(text)} is not an http or https address")
    return text or None


def _networks(text: str) -> tuple[str, ...]:
    items = _items(text)
    for item in items:
        from ipaddress import ip_network  # 1 MB for a setting few installations use

        try:
            ip_network(item, strict=False)
        except ValueError:
            raise ValueError(f"{shown(item)} is not an IP address or CIDR") from None
    return items


def _keepalive(text: str) -> tuple[int, int, int] | None:
    if text.lower() in FALSE_WORDS:
        return None
    parts = [] if text.lower() in TRUE_WORDS else [part.strip() for part in text.split(":")]
    if len(parts) > len(KEEPALIVE_DEFAULTS):
        raise ValueError(f"{shown(text)} is not idle:interval:count or false")
    numbers = list(KEEPALIVE_DEFAULTS)
    for index, part in enumerate(parts):
        if part:
            numbers[index] = _keepalive_part(text, part, KEEPALIVE_LIMITS[index])
    return numbers[0], numbers[1], numbers[2]


def _keepalive_part(text: str, part: str, limit: int) -> int:
    if not (part.isascii() and part.isdigit()) or len(part) > 5 or not 1 <= int(part) <= limit:
        raise ValueError(f"{shown(text)} is not idle:interval:count or false")
    return int(part)


def _password_hash(text: str) -> str:
    # The text is never repeated: people put plain passwords here.
    import binascii

    if text.startswith(("$2a$", "$2b$", "$2y$")) and len(text) == 60:
        return text
    if text.startswith("$scrypt$ln=") and text.count("$") == 4:  # looked at when it is used
        return text
    if not text:  # no login is possible
        return text
    encoded = text[3:] if text.startswith(("$1$", "$5$", "$6$")) else text
    try:
        decoded = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        decoded = b""
    if len(decoded) < MD5_BYTES:
        raise ValueError("not a password hash (a plain password is not accepted here)")
    return text


def _plain_password(text: str) -> str | None:
    # The text is never repeated, whatever is wrong with it.
    if "\0" in text:
        raise ValueError("holds a zero byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    return text or None


def _origins(text: str) -> tuple[str, ...]:
    items = _items(text)
    for item in items:
        scheme, separator, host = item.partition("://")
        is_origin = separator and scheme in ("http", "https") and host
        if item != "*" and not (is_origin and host.isprintable() and not set(host) & set("/?# @")):
            raise ValueError(f"{shown(item)} is neither * nor like https://example.com:8080")
    return tuple(item.lower() for item in items)


def _hosts(text: str) -> tuple[str, ...]:
    items = _items(text)
    for item in items:
        if item != "*" and not (item.isprintable() and not set(item) & set("/?# @*")):
            raise ValueError(f"{shown(item)} is neither * nor like broker.example.com:8443")
    return tuple(item.lower() for item in items)


def _tls_version(text: str) -> str:
    if text not in TLS_VERSIONS:  # any other would allow more than was meant
        raise ValueError(f"{shown(text)} is not a known TLS version")
    return text


BOOLEAN = Kind("boolean", _boolean, _doubtful_boolean)
SAFEGUARD = Kind("true or false", _safeguard, is_safeguard=True)
# Where it is off by a slip each client seems to come from the proxy, which may be this host.
PROXY_PROTOCOL = Kind("true or false, 1 or 2", _proxy_protocol, is_safeguard=True)
TEXT = Kind("text", _text)
NAME = Kind("name", _name)
MQTT_EXCHANGE = Kind("text", _mqtt_exchange, _doubtful_mqtt_exchange)
PATH = Kind("path", _path)
DIRECTORY = Kind("path", _directory)
SOCKET_PATH = Kind("path of a socket", _socket_path)
ADDRESS = Kind("address", _address)
PORT = integer(0, 65535, also=-1)
URL = Kind("URL", _url)
LIST = list_of()
BACKENDS = list_of(*AUTH_BACKENDS)
NETWORKS = Kind("list of IP addresses and CIDRs", _networks)
KEEPALIVE = Kind("idle:interval:count in seconds, or false", _keepalive)
PASSWORD_HASH = Kind("password hash", _password_hash)
PLAIN_PASSWORD = Kind("password", _plain_password)
HOSTS = Kind("list of hosts (name or name:port) or *", _hosts)
ORIGINS = Kind("list of origins (scheme://host:port) or *", _origins)
LEVEL = choice(*LEVELS)
TLS_VERSION = Kind("1.0, 1.1, 1.2, 1.3", _tls_version)
ANYTHING = Kind("ignored", _text)
