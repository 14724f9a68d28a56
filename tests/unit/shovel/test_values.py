"""The parameter of a shovel: what is taken, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.policy import secret_values
from lavinmq.shovel import places, values

LEAST = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


def parsed(**more: Any) -> values.Values:
    return values.parse({**LEAST, **{key.replace("_", "-"): more[key] for key in more}}, "v")


def test_the_least_is_enough() -> None:
    read = parsed()

    assert read.source.queue == "a" and read.source.prefetch == 1000
    assert read.source.left_after is None and read.ack_mode == "on-confirm"
    assert (read.destination.exchange, read.destination.key) == ("", "b")
    assert read.source.places[0].is_local and read.source.places[0].vhost == "v"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"src_ury": "x"}, "no key 'src-ury', did you mean 'src-uri'"),
        ({"ack_mode": "on-paper"}, "'ack-mode' must be one of on-confirm"),
        ({"ack_mode": 1}, "'ack-mode'"),
        ({"src_prefetch_count": 0}, "'src-prefetch-count' must be a whole number from 1 to 65535"),
        ({"src_prefetch_count": True}, "'src-prefetch-count'"),
        ({"src_delete_after": "soon"}, "'src-delete-after'"),
        ({"src_delete_after": 0}, "'src-delete-after'"),
        ({"reconnect_delay": "5"}, "'reconnect-delay'"),
        ({"dest_exchange": "x"}, "not both"),
        ({"src_protocol": "amqp10"}, "'src-protocol' must be one of amqp091, local"),
        ({"src_protocol": "amqp10", "src_address": "/queues/a"}, "AMQP 1.0 is not spoken"),
        ({"dest_protocol": "amqp10", "dest_address": "b"}, "'dest-protocol' must be one of"),
        ({"dest_protocol": ["amqp10"], "dest_address": "b"}, "'dest-protocol' must be one of"),
        ({"dest_predeclared": "yes"}, "'dest-predeclared' must be true or false"),
        ({"dest_publish_properties": {"priorty": 1}}, "did you mean 'priority'"),
        ({"dest_publish_properties": {"priority": "high"}}, "'dest-publish-properties' is refused"),
        ({"src_consumer_args": []}, "'src-consumer-args' must be an object"),
        ({"src_queue": "x" * 256}, "'src-queue' is longer than 255 bytes"),
        ({"src_uri": []}, "'src-uri', a string or an array"),
        ({"src_uri": "nonsense"}, "'src-uri' is no URI"),
        ({"src_uri": "unix:///run/x"}, "'src-uri' has the scheme 'unix'"),
        ({"src_uri": ["amqp://", "mqtt://x"]}, "Item 1 of 'src-uri' has the scheme 'mqtt'"),
        ({"src_uri": "amqp://h?heartbeet=1"}, "did you mean 'heartbeat'"),
        ({"src_uri": "amqp://h?buffer_size=1"}, "an option of programs 'buffer_size'"),
        ({"src_uri": "amqp://h:port"}, "'src-uri'"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as failure:
        parsed(**more)

    assert why in str(failure.value)


def test_a_password_is_in_no_error_and_not_shown() -> None:
    for uri in ("amqp://u:secret@h?heartbeat=x", "amqp://u:secret@h:port", "amqpx://u:secret@h"):
        with pytest.raises(ValueError) as failure:
            parsed(src_uri=uri)
        assert "secret" not in str(failure.value)
    place = places.parse("amqps://u:secret@h:1/%2Fv?name=n&cacertfile=/x", "v")
    assert place.shown == "amqps://h:1/%2Fv" and "secret" not in repr(place)
    value = {"src-uri": "amqp://u:secret@h/v", "dest-uri": ["http://u:secret@h/"]}
    assert "secret" not in str(secret_values.hidden("shovel", value))


def test_options_have_the_names_of_other_brokers_too() -> None:
    place = places.parse(
        "amqps://h?verify=verify_none&server_name_indication=s&connection_timeout=1500&auth_mechanism="
        "external&fail_if_no_peer_cert=true", "v"
    )  # fmt: skip

    config = place.config
    assert (config.verify, config.server_name, config.connect_timeout) == (False, "s", 1.5)
    assert config.auth == "external"


def test_words_are_read_however_they_are_written() -> None:
    assert parsed(ack_mode="OnPublish").ack_mode == "on-publish"
    assert parsed(src_delete_after="queueLength").source.left_after == -1
    assert parsed(src_delete_after=7).source.left_after == 7
    assert parsed(prefetch_count=9).source.prefetch == 9


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5,
    ),
    st.sampled_from(sorted(values.KEYS)),
)  # fmt: skip
def test_any_value_is_read_or_refused(value: Any, key: str) -> None:
    try:
        values.parse({**LEAST, key: value}, "v")
    except ValueError as error:
        assert str(error)
