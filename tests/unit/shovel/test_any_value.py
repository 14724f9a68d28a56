"""Whatever a user or a message says: a value or a refusal, one request, and no secret shown."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from lavinmq.federation import upstreams
from lavinmq.policy import secret_values
from lavinmq.shovel import addresses, hook, places, requests, values
from tests.support import client_frames as frames

TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "amqp://",
        "amqp://h",
        "http://h/p",
        "never",
        "queue-length",
        "no-ack",
        "raw",
        "header:k",
        "***",
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70_000) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(sorted(values.KEYS)) | st.text(max_size=5)
LEAST = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
HOOK = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "http://h/p"}


@given(st.sampled_from([LEAST, HOOK, {}]), st.dictionaries(KEYS, JSON, max_size=4))
def test_a_shovel_is_read_or_refused(least: dict[str, Any], more: dict[str, Any]) -> None:
    try:
        values.parse({**least, **more}, "v")
    except ValueError as refusal:
        assert str(refusal)


@given(JSON | st.dictionaries(st.sampled_from(["uri", "prefetch-count", "queue"]), JSON))
def test_an_upstream_is_read_or_refused(value: Any) -> None:
    try:
        upstreams.parse("u", value, "v")
    except ValueError as refusal:
        assert str(refusal)


@given(TEXTS)
def test_a_uri_is_read_or_refused(uri: str) -> None:
    for read in (lambda: places.parse(uri, "v"), lambda: hook.parse_place(uri)):
        try:
            read()
        except ValueError as refusal:
            assert str(refusal)


@given(st.integers(0, 0xFFFF))
def test_no_spelling_of_an_address_reaches_a_metadata_service(low: int) -> None:
    plain = ipaddress.IPv4Address((169 << 24) | (254 << 16) | low)
    high, last = f"{int(plain) >> 16:x}", f"{int(plain) & 0xFFFF:x}"
    spellings = (
        str(plain), f"::ffff:{plain}", f"64:ff9b::{plain}", f"2002:{high}:{last}::1",
        f"fe80::{last}%eth0", f"64:ff9b:1::{plain}", f"::{plain}", f"::ffff:0:{plain}",
    )  # fmt: skip
    for text in spellings:
        assert addresses.refusal(text, allows_private=True), text


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "::1", "10.1.2.3", "fd12::1", "::ffff:10.0.0.1", "0.0.0.0"]
)
def test_private_addresses_are_refused_on_request_alone(text: str) -> None:
    assert addresses.refusal(text, allows_private=False)
    assert not addresses.refusal(text, allows_private=True)


# ---- requests


class Server:
    """What a server understands."""

    def __init__(self, request: bytes) -> None:
        self.body, self.ended = b"", 0
        self.headers: list[tuple[str, bytes]] = []
        self.url = b""
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(request)
        self.method = parser.get_method()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


def delivered(body: bytes, properties: dict[str, Any]) -> _engine.Message:
    source = _engine.Input()
    port = _engine.Port(2, tracker=_engine.Tracker(0))
    source.open(port)
    raw = _engine.encode_properties(properties)
    source.feed(frames.delivery(2, 1, body, props=raw))
    [message] = port.take()
    return message


NASTY = st.text(st.sampled_from("ab\r\n: \0/?#é\u2028"), max_size=12) | st.text(max_size=8)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("content_type", "content_encoding", "message_id", "type"), NASTY),
        "headers": st.dictionaries(
            NASTY | st.sampled_from(["uri_path", "Host", "content-length", "shovel"]),
            NASTY | st.integers() .filter(lambda n: -(2**63) <= n < 2**63) | st.binary(max_size=5),
            max_size=4,
        ),
    },
)  # fmt: skip


@given(
    st.binary(max_size=40), PROPERTIES, st.sampled_from(hook.FORMATS), st.booleans(),
    st.sampled_from(["http://h", "https://u:p@h:81/a?b=c"]),
)  # fmt: skip
def test_a_message_becomes_one_request_whatever_it_says(
    body: bytes, properties: dict[str, Any], form: str, is_signed: bool, uri: str
) -> None:
    try:
        message = delivered(body, properties)
    except _engine.ValueNotEncodable:
        return
    place = hook.parse_place(uri)
    to = hook.Hook(
        (place,), "ordered", 1, "none", form, 1, 1.0, 1.0, b"x" * 24 if is_signed else None, {}, {}
    )
    request = requests.Requests(to, "v", "name").make(place, [message], 1)

    server = Server(request)
    assert (server.ended, server.method) == (1, b"POST")
    names = [name for name, _ in server.headers]
    assert names.count("host") == names.count("content-length") == 1
    assert "transfer-encoding" not in names and names.count("webhook-signature") == is_signed
    if form == "raw":
        assert server.body == body
    else:
        json.loads(server.body)
    if place.path:
        assert server.url == place.path.encode()


# ---- secrets

PASSWORDS = st.text(st.characters(codec="ascii", exclude_characters="@/?#:*", min_codepoint=33),
                    min_size=6, max_size=12).map(lambda text: f"Z{text}Z")  # fmt: skip


@given(PASSWORDS, st.booleans(), st.integers(1, 3))
def test_no_password_is_shown_and_what_is_shown_can_be_sent_back(
    password: str, is_list: bool, count: int
) -> None:
    uris = [f"amqp://u:{password}@h{n}/v?heartbeat=5" for n in range(count)]
    value = {
        "src-uri": uris if is_list else uris[0], "dest-uri": f"https://u:{password}@h/p",
        "dest-secret": password * 2, "dest-headers": {"Authorization": f"Bearer {password}"},
        "src-queue": "q",
    }  # fmt: skip
    shown = secret_values.hidden("shovel", value)
    assert password not in json.dumps(shown)
    assert secret_values.has_stars("shovel", shown)
    assert secret_values.restored("shovel", shown, value) == value
    assert secret_values.restored("shovel", value, shown) == value
    elsewhere = {**shown, "dest-uri": shown["dest-uri"].replace("@h", "@evil")}
    assert password not in secret_values.restored("shovel", elsewhere, value)["dest-uri"]
