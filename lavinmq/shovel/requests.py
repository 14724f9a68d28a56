"""Requests of a webhook: head and body of messages in the form that a parameter asks for, signed.

The signature is that of Standard Webhooks: HMAC-SHA-256 over id, time and body. What a message says
is never believed to be a header: characters that could end one are replaced.
Source: docs/shovels.md#webhooks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote

from lavinmq.shovel import hook

if TYPE_CHECKING:
    from lavinmq.client._engine import Message
    from lavinmq.shovel.hook import Hook, HookPlace

MAX_HEADER_BYTES: Final = 16_384
"""Of all that a message adds to the head; most servers take no more."""
MAX_JSON: Final = 4 << 20
"""Bytes of bodies in a request that is JSON: it is made in one go, and others wait meanwhile."""
LEAST_TOLD: Final = 6
"""Characters of a secret by which it is known in what a server answers."""
_UNSAFE: Final = re.compile(r"[^\x20-\x7e\x80-\xff]")
_SAFE_PATH: Final = "/?&=%:@!$'()*+,;~-._"
_EVENTS: Final = {False: "application/cloudevents+json", True: "application/cloudevents-batch+json"}


class Requests:
    """Makes the requests of one shovel."""

    def __init__(self, to: Hook, vhost: str, name: str) -> None:
        self._to, self._name = to, name
        self._run = secrets.token_hex(6)
        self._source = f"/lavinmq/{quote(vhost, safe='')}/shovel/{quote(name, safe='')}"
        own = {key.lower() for key in to.headers}
        fixed = [] if "user-agent" in own else ["User-Agent: LavinMQ\r\n"]
        fixed.append(f"X-Shovel: {_clean(name)}\r\n")
        fixed += [f"{key}: {text}\r\n" for key, text in to.headers.items()]
        self._fixed = "".join(fixed)
        self._has_type = "content-type" in own
        self._lines_of: tuple[HookPlace, str] | None = None
        self._lines = ""
        self._secrets = _beginnings(to)
        self._taken = own | hook.OURS | {
            "x-shovel", "x-message-id", "content-type", "authorization", "cookie",
        }  # fmt: skip

    def make(self, place: HookPlace, messages: list[Message], number: int) -> bytes:
        """A whole request. Args: number: of the request in this run; the same when sent again."""
        to, first = self._to, messages[0]
        if to.format != "raw" and sum(map(len, messages)) > MAX_JSON:
            raise ValueError(f"more than {MAX_JSON} bytes are not made JSON of")
        properties = first.properties if len(messages) == 1 or not place.path else {}
        path = place.path or self._path(properties)
        head = [self._first_lines(place, path)]
        if to.format == "raw":
            body = first.body
            if properties:
                head += self._told(properties)
        elif to.format == "json":
            body = _json([self._row(each) for each in messages])
            head.append("Content-Type: application/json\r\n")
        else:
            events = [self._event(each) for each in messages]
            is_batch = to.batch > 1
            body = _json(events if is_batch else events[0])
            head.append(f"Content-Type: {_EVENTS[is_batch]}\r\n")
        if to.secret is not None:
            given = properties.get("message_id") if len(messages) == 1 else None
            head.append(self._signature(str(given or f"{self._run}-{number}"), body))
        head.append(f"Content-Length: {len(body)}\r\n\r\n")
        return "".join(head).encode("latin-1") + body

    def is_shown(self, text: str) -> bool:
        """Whether people may read what a server says: one that repeats what it was sent would show
        them secrets of the parameter."""
        return not any(each in text for each in self._secrets)

    def _first_lines(self, place: HookPlace, path: str) -> str:
        """What is the same in all requests to a place."""
        if (place, path) != self._lines_of:
            lines = f"POST {path} HTTP/1.1\r\nHost: {place.authority}\r\n{self._fixed}"
            if place.authorization is not None:
                lines += f"Authorization: {place.authorization}\r\n"
            self._lines_of, self._lines = (place, path), lines
        return self._lines

    def _path(self, properties: dict[str, Any]) -> str:
        """Where a message says that it wants to go."""
        path = (properties.get("headers") or {}).get("uri_path")
        if not isinstance(path, str) or not path:
            return "/"
        safe = quote(path, safe=_SAFE_PATH)
        # Two slashes would begin another host, for servers that take a whole URI.
        return "/" + safe.lstrip("/")

    def _told(self, properties: dict[str, Any]) -> list[str]:
        """What properties and headers say, as headers of the request."""
        found = []
        content_type = properties.get("content_type")
        if content_type and not self._has_type:
            found.append(f"Content-Type: {_clean(content_type)}\r\n")
        if properties.get("content_encoding"):
            found.append(f"Content-Encoding: {_clean(properties['content_encoding'])}\r\n")
        if properties.get("message_id"):
            found.append(f"X-Message-Id: {_clean(properties['message_id'])}\r\n")
        headers = properties.get("headers")
        if headers:
            room = MAX_HEADER_BYTES
            for name, value in headers.items():
                if not hook.is_token(name) or f"x-{name.lower()}" in self._taken:
                    continue
                line = f"X-{name}: {_clean(_text(value))}\r\n"
                room -= len(line)
                if room < 0:
                    break
                found.append(line)
        return found

    def _signature(self, number: str, body: bytes) -> str:
        assert self._to.secret is not None
        number, now = _clean(number), int(time.time())
        signed = f"{number}.{now}.".encode("latin-1") + body
        digest = base64.b64encode(hmac.digest(self._to.secret, signed, hashlib.sha256)).decode()
        return (
            f"webhook-id: {number}\r\nwebhook-timestamp: {now}\r\n"
            f"webhook-signature: v1,{digest}\r\n"
        )

    def _row(self, message: Message) -> dict[str, Any]:
        """As the management API shows a message."""
        payload, encoding = _payload(message.body)
        return {
            "exchange": message.exchange, "routing_key": message.routing_key,
            "redelivered": message.redelivered, "properties": message.properties,
            "payload_bytes": len(message.body), "payload": payload, "payload_encoding": encoding,
        }  # fmt: skip

    def _event(self, message: Message) -> dict[str, Any]:
        """A CloudEvent, version 1.0."""
        properties = message.properties
        given = properties.get("message_id")
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": str(given or f"{self._run}-{message.incarnation}-{message.delivery_tag}"),
            "source": self._source,
            "type": properties.get("type") or "lavinmq.message",
        }
        if message.routing_key:
            event["subject"] = message.routing_key
        stamp = properties.get("timestamp")
        if isinstance(stamp, datetime):
            event["time"] = stamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
        content_type = properties.get("content_type")
        if content_type:
            event["datacontenttype"] = content_type
        is_json = content_type is not None and content_type.partition(";")[0].strip().endswith(
            "json"
        )
        payload, encoding = _payload(message.body)
        if encoding == "base64":
            event["data_base64"] = payload
        else:
            event["data"] = _read(payload) if is_json else payload
        return event


def _beginnings(to: Hook) -> frozenset[str]:
    """How the secrets of a parameter begin: what is shown of an answer may end within one."""
    secrets = [text.rpartition(" ")[2] for text in to.headers.values()]
    for place in to.places:
        secrets += [value for _, value in parse_qsl(place.path.partition("?")[2])]
        if place.authorization is not None:
            login = place.authorization.rpartition(" ")[2]
            password = base64.b64decode(login).decode(errors="replace").partition(":")[2]
            secrets += [login, password, quote(password, safe="")]
    return frozenset(each[:LEAST_TOLD] for each in secrets if each)


def _payload(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "string"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _read(payload: str) -> Any:
    """The JSON value in it, or the text, if it is none."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return payload


def _json(value: Any) -> bytes:
    return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode(
        errors="replace"
    )


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="replace")
    return str(value)


def _text(value: Any) -> str:
    """The value of a header of a message, as text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    return _json(value).decode()


def _clean(text: str) -> str:
    """Text that ends no header, as the bytes of its UTF-8."""
    plain = text if text.isascii() else text.encode(errors="replace").decode("latin-1")
    return _UNSAFE.sub(" ", plain)
