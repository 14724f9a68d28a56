"""Options and URLs: what is wrong is refused by its name, and no password is shown."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import BufferPolicy, Client, Config, ConfigError, PublishMode
from lavinmq.client.config import keepalive, option_names
from lavinmq.client.face import settle
from lavinmq.client.url import Endpoint, parse_url


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bufer_size": 5}, "bufer_size.*did you mean buffer_size"),
        ({"prefetc": 5}, "did you mean prefetch"),
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"buffer_size": 0}, "buffer_size is 0, allowed are 1"),
        ({"buffer_size": "many"}, "buffer_size is 'many', a whole number"),
        ({"buffer_size": True}, "buffer_size is True"),
        ({"buffer_size": 1.5}, "buffer_size is 1.5"),
        ({"heartbeat": -1}, "heartbeat is -1"),
        ({"buffer_policy": "wait"}, "buffer_policy is 'wait', block or raise"),
        ({"mode": "maybe"}, "mode is 'maybe'"),
        ({"reconnect_jitter": 2}, "reconnect_jitter is 2"),
        ({"failover": "random"}, "failover is 'random', allowed are ordered, shuffle"),
        ({"auth": "none"}, "auth is 'none'"),
        ({"auth": "token"}, "token is not given"),
        ({"buffer_policy": "spill"}, "spill_directory is not given"),
        ({"verify": "maybe"}, "verify is 'maybe', true or false"),
        ({"tcp_keepalive": "60"}, "tcp_keepalive is '60'"),
        ({"tcp_keepalive": "60:10:128"}, "tcp_keepalive is '60:10:128'"),
        ({"tcp_keepalive": "\u00b2:1:1"}, "tcp_keepalive is"),
        ({"frame_max": 100}, "frame_max is 100"),
        ({"user": 5}, "user is of type int"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Client("amqp://localhost", **options)


def test_options_come_from_keywords_then_the_url_then_the_config() -> None:
    _, config = settle(
        "amqp://h?prefetch=7&buffer_size=9",
        Config(prefetch=5, heartbeat=11, buffer_size=3),
        {"buffer_size": 1},
    )

    assert (config.buffer_size, config.prefetch, config.heartbeat) == (1, 7, 11)


def test_each_kind_of_option_is_read_from_text() -> None:
    _, config = settle(
        "amqp://h?buffer_policy=drop-oldest&mode=fire_and_forget&reconnect=off&message_ttl=2.5"
        "&blocked_timeout=none&name=orders&block_timeout=1",
        None,
        {},
    )

    assert config.buffer_policy is BufferPolicy.DROP_OLDEST
    assert config.mode is PublishMode.FIRE_AND_FORGET
    assert (config.reconnect, config.message_ttl, config.blocked_timeout) == (False, 2.5, None)
    assert (config.name, config.block_timeout) == ("orders", 1.0)


def test_the_environment_gives_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "amqp://u:secret@far:1234/v")

    target, _ = settle(None, None, {})

    assert target.endpoints == (Endpoint("amqp", "far", 1234),) and target.vhost == "v"


@pytest.mark.parametrize(
    ("url", "endpoints", "vhost", "user"),
    [
        ("amqp://localhost", [("amqp", "localhost", 5672, "")], "/", "guest"),
        ("amqps://u:p@h1,h2:99/v", [("amqps", "h1", 5671, ""), ("amqps", "h2", 99, "")], "v", "u"),
        ("amqp://h/%2F", [("amqp", "h", 5672, "")], "/", "guest"),
        ("amqp://h/a%2Fb", [("amqp", "h", 5672, "")], "a/b", "guest"),
        ("AMQP://[::1]:5/", [("amqp", "::1", 5, "")], "/", "guest"),
        ("ws://h:80/ws?vhost=x", [("ws", "h", 80, "/ws")], "x", "guest"),
        ("wss://h", [("wss", "h", 443, "")], "/", "guest"),
        ("unix:///run/a.sock?vhost=v&user=me", [("unix", "", 0, "/run/a.sock")], "v", "me"),
        ("amqp://a%40b:c%3Ad@h", [("amqp", "h", 5672, "")], "/", "a@b"),
    ],
)
def test_a_url_is_read(url: str, endpoints: list[Any], vhost: str, user: str) -> None:
    target = parse_url(url)

    assert list(target.endpoints) == [Endpoint(*each) for each in endpoints]
    assert (target.vhost, target.user) == (vhost, user)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost", "without a scheme"),
        ("http://h", "scheme 'http', allowed are amqp"),
        ("amqp://u:topsecret@h:port", "port 'port'"),
        ("amqp://u:topsecret@h:0", "port '0'"),
        ("amqp://u:topsecret@h/a/b", "second /"),
        ("amqp://u:topsecret@h?hartbeat=5", "did you mean heartbeat"),
        ("amqp://u:topsecret@h?name=a&name=b", "given twice"),
        ("amqp://h:" + "1" * 5000, "port"),
        ("amqp://h:\u00b2", "port"),
        ("unix://", "without a path"),
        # What people forget to encode in a password.
        ("amqp://u:topsecret/x@h", "write %2F"),
        ("amqp://u:topsecret?x@h", "write %2F"),
        ("amqp://u:x?topsecret@h", "write %2F"),
        ("amqp://u:12/topsecret@h", "write %2F"),
        ("amqp://u:x/y/topsecret@h/v", "write %2F"),
        ("amqp://u:x@y/topsecret@h", "write %2F"),
        ("amqp://u:x@y?topsecret@h", "write %2F"),
        ("amqp://h/topsecret@h", "%40"),
        ("u:topsecret@amqp://h", "the scheme wrong"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_shown(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parse_url(url)
    assert "topsecret" not in str(raised.value)


def test_passwords_and_tokens_are_in_no_repr() -> None:
    client = Client(
        "amqp://u:topsecret@h", auth="token", token=lambda: "topsecret", keyfile="topsecret"
    )

    shown = f"{client!r} {client.config!r} {client._core.target!r} {client._core.target}"
    assert "topsecret" not in shown


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_url(f"amqp://{text}").endpoints


def test_keepalive_is_three_numbers_or_off() -> None:
    assert keepalive("60:10:3") == (60, 10, 3) and keepalive("off") is None


def test_every_option_is_documented() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
    missing = [
        name
        for name in option_names()
        if f"`{name}`" not in page and f"`_{name.removeprefix('reconnect_')}`" not in page
    ]

    assert missing == []
