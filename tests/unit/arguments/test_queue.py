"""Arguments of a queue: which values are legal, and that void counts as absent."""

from __future__ import annotations

import pytest

from lavinmq.arguments import queue as queue_arguments
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.fieldtable import FieldTable, Value

LIMITS = ["x-max-length", "x-max-length-bytes", "x-message-ttl", "x-delivery-limit",
          "x-consumer-timeout", "x-cache-size", "x-cache-ttl"]  # fmt: skip
TEXTS = ["x-dead-letter-exchange", "x-deduplication-header"]
OVERFLOWS: list[Value] = ["", "drop-head", "reject-publish", "reject-publish-dlx"]
FLAGS = ["x-single-active-consumer", "x-message-deduplication"]


def refusal(arguments: dict[str, Value]) -> str | None:
    """Return why the arguments are refused, None when they are legal."""
    try:
        queue_arguments.check(FieldTable(arguments))
    except ChannelError as error:
        assert error.code == ReplyCode.PRECONDITION_FAILED
        return error.text
    return None


@pytest.mark.parametrize(
    ("names", "legal", "illegal"),
    [
        pytest.param(["x-expires"], [1, 10], [0, -1, "10", True], id="expires"),  # edge-cases.md 59
        pytest.param(LIMITS, [0, 10], [-1, "10", True, False], id="limits"),  # edge-cases.md 60
        pytest.param(TEXTS, ["", "any"], [1, True], id="texts"),  # edge-cases.md 61
        pytest.param(["x-overflow"], OVERFLOWS, [1, True, "any"], id="overflow"),
        pytest.param(FLAGS, [True, False], ["true", 0, 1], id="flags"),  # edge-cases.md 65
        pytest.param(
            ["x-max-priority"], [0, 255], [-1, 256, "5"], id="priority"
        ),  # edge-cases.md 66
    ],
)
def test_each_kind_of_argument_has_its_values(
    names: list[str], legal: list[Value], illegal: list[Value]
) -> None:
    for name in names:
        assert [refusal({name: value}) for value in legal] == [None] * len(legal), name
        reasons = [refusal({name: value}) for value in illegal]
        assert all(reason is not None and name in reason for reason in reasons), name


@pytest.mark.parametrize(
    ("exchange", "is_legal"), [(None, False), ("", True), ("x", True), (5, False), (True, False)]
)
def test_a_dead_letter_key_needs_an_exchange_that_is_a_string(
    exchange: Value, is_legal: bool
) -> None:
    """edge-cases.md 62, 63"""
    arguments: dict[str, Value] = {"x-dead-letter-routing-key": "k"}
    if exchange is not None:
        arguments["x-dead-letter-exchange"] = exchange

    assert (refusal(arguments) is None) == is_legal


@pytest.mark.parametrize("name", list(queue_arguments.COMPLAINTS))
def test_void_counts_as_absent(name: str) -> None:
    """edge-cases.md 64"""
    assert refusal({name: None}) is None


def test_an_unknown_way_to_overflow_is_refused() -> None:
    """Ignored, it would be `drop-head`: messages would go that were to be refused."""
    said = refusal({"x-overflow": "reject-publich"})

    assert said is not None and "x-overflow 'reject-publich' is unknown" in said
    assert "reject-publish" in said.replace("reject-publich", "")
