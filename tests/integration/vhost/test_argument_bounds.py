"""Tables of arguments over AMQP: measured before they are decoded, refused with 406."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import base, commands

from tests.support.inside import Inside, inside
from tests.support.wire import Wire

MAX_BYTES, MAX_ENTRIES = 4096, 64
LONG = {"x-note": "n" * MAX_BYTES}
MANY = {f"x-{number}": True for number in range(MAX_ENTRIES + 1)}
NESTED = {"x-list": [{"a": True}] * MAX_ENTRIES}


@pytest.fixture(scope="module")
def bounded() -> Iterator[Inside]:
    """A broker with tight bounds, and something to bind and consume."""
    with inside(max_arguments_bytes=MAX_BYTES, max_arguments_entries=MAX_ENTRIES) as broker:
        with Wire.open(broker.port) as wire:
            wire.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        yield broker


def requests(arguments: dict[str, object]) -> dict[str, base.Frame]:
    """Every method that has a table of arguments."""
    return {
        "queue.declare": commands.Queue.Declare(queue="new", arguments=arguments),
        "exchange.declare": commands.Exchange.Declare(exchange="new", arguments=arguments),
        "queue.bind": commands.Queue.Bind(
            queue="q", exchange="amq.topic", routing_key="k", arguments=arguments
        ),
        "queue.unbind": commands.Queue.Unbind(
            queue="q", exchange="amq.topic", routing_key="k", arguments=arguments
        ),
        "exchange.bind": commands.Exchange.Bind(
            destination="amq.fanout", source="amq.topic", arguments=arguments
        ),
        "exchange.unbind": commands.Exchange.Unbind(
            destination="amq.fanout", source="amq.topic", arguments=arguments
        ),
        "basic.consume": commands.Basic.Consume(queue="q", arguments=arguments),
    }


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [(LONG, "max_arguments_bytes"), (MANY, "max_arguments_entries"),
     (NESTED, "max_arguments_entries")],
    ids=["long", "many", "nested"],
)  # fmt: skip
@pytest.mark.parametrize("method", list(requests({})))
def test_a_table_above_the_bounds_is_refused_and_its_setting_is_named(
    bounded: Inside, method: str, arguments: dict[str, object], setting: str
) -> None:
    with Wire.open(bounded.port, channels=(1, 2)) as wire:
        request = requests(arguments)[method]
        wire.send(1, request)
        close = wire.expect_channel_close(1, 406)
        wire.call(2, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)

    assert setting in close.reply_text
    assert (close.class_id, close.method_id) == (request.index >> 16, request.index & 0xFFFF)
    assert "new" not in bounded.vhost().queues and "new" not in bounded.vhost().exchanges


def test_a_table_within_the_bounds_is_taken(bounded: Inside) -> None:
    arguments = {f"x-{number}": "n" * 32 for number in range(MAX_ENTRIES)}
    with Wire.open(bounded.port) as wire:
        declare = commands.Queue.Declare(queue="fits", exclusive=True, arguments=arguments)
        wire.call(1, declare, commands.Queue.DeclareOk)


def test_the_bounds_follow_the_settings_of_now(bounded: Inside) -> None:
    config = bounded.server.config
    with Wire.open(bounded.port) as wire:
        config.max_arguments_entries = 128
        try:
            declare = commands.Queue.Declare(queue="more", exclusive=True, arguments=MANY)
            wire.call(1, declare, commands.Queue.DeclareOk)
        finally:
            config.max_arguments_entries = MAX_ENTRIES
