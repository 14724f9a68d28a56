"""How addresses of peers are judged and shown, and the end of a listener."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.amqp import listener
from lavinmq.amqp.listener import Listener


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::", False),
        ("2001:db8::127", False),
    ],
)
def test_loopback_may_be_ipv4_inside_ipv6(host: str, is_loopback: bool) -> None:
    """edge-cases.md 13"""
    assert listener._is_loopback(host) == is_loopback


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("10.0.0.1", "10.0.0.1:5"),
        ("::ffff:10.0.0.1", "10.0.0.1:5"),
        ("::1", "[::1]:5"),
        ("2001:db8::ffff:1", "[2001:db8::ffff:1]:5"),
    ],
)
def test_ipv4_inside_ipv6_is_shown_as_ipv4(host: str, text: str) -> None:
    """edge-cases.md 17"""
    assert listener.shown((host, 5)) == text


def test_a_second_listener_on_the_same_port_leaves_the_first_alone() -> None:
    """edge-cases.md 19"""
    events = asyncio.new_event_loop()
    try:
        server: Any = SimpleNamespace(events=events)
        first = Listener.tcp(server, "127.0.0.1", 0)
        first.start()

        with pytest.raises(OSError, match="cannot listen on"):
            Listener.tcp(server, "127.0.0.1", first.port)

        socket.create_connection(("127.0.0.1", first.port), timeout=2).close()
        first.close()
    finally:
        events.close()


def test_closing_twice_is_harmless() -> None:
    """edge-cases.md 18"""
    events = asyncio.new_event_loop()
    try:
        server: Any = SimpleNamespace(events=events)
        listening = Listener.tcp(server, "127.0.0.1", 0)
        listening.start()
        port = listening.port

        listening.close()
        listening.close()

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)
    finally:
        events.close()
