"""Names that links make at upstreams: they are names of AMQP, and tell their links apart."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from lavinmq.federation.exchange_link import ExchangeLink
from lavinmq.federation.hops import Here
from lavinmq.federation.link import LinkRun
from lavinmq.federation.upstreams import parse

NAMES = st.text(min_size=1, max_size=120).filter(lambda name: len(name.encode()) <= 255)


def names(exchange: str, vhost: str, resource: str) -> tuple[str, str]:
    upstream = parse("u", {"uri": "amqp://h", "exchange": exchange}, "/")
    here = Here("host", vhost, "", "1a2b")
    broker = cast(Any, None)
    link = ExchangeLink(broker, here, "exchange", resource, upstream, is_paused=True, after=None)
    return link.names


@given(NAMES, NAMES, NAMES)
def test_they_fit_and_differ(exchange: str, vhost: str, resource: str) -> None:
    first, second = names(exchange, vhost, resource)
    assert first.startswith("federation: ") and first != second
    assert len(first.encode()) <= 255 and len(second.encode()) <= 255
    assert names(exchange + "x", vhost, resource)[0] != first


def test_short_ones_are_those_of_other_brokers() -> None:
    assert names("x", "/", "y")[0] == "federation: x -> host:/:y"


def test_an_upstream_that_calls_itself_very_long_is_not_named_in_each_message() -> None:
    for length in (255, 256):
        run = Mock()
        run._rotation.place.vhost = "v"
        run.client._core.link.server_properties = {"cluster_name": "x" * length}
        named = {"cluster-name": "x" * length} if length == 255 else {}
        assert LinkRun._cluster(run) == {"vhost": "v", **named}
