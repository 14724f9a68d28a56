"""Features: arguments, policy and operator policy merged, compared with a straightforward model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.arguments.interval import interval_ms
from lavinmq.arguments.keys import KEYS, OPERATOR_KEYS, OVERFLOWS, Kind, Merge
from lavinmq.fieldtable import FieldTable, Timestamp, Value
from lavinmq.policy.features import (
    PLAIN,
    ExchangeFeatures,
    Features,
    argument,
    exchange_features,
    mistyped,
    queue_features,
    usable,
)

PAGE = (Path(__file__).parents[3] / "docs/policies.md").read_text()
FEATURES = {Kind.QUEUE: Features, Kind.STREAM: Features, Kind.EXCHANGE: ExchangeFeatures}
NUMBERS = {
    "max-length": "max_length",
    "max-length-bytes": "max_length_bytes",
    "message-ttl": "message_ttl_ms",
    "expires": "expires_ms",
    "delivery-limit": "delivery_limit",
    "max-consumers": "max_consumers",
    "consumer-timeout": "consumer_timeout_ms",
}
TEXTS = {
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
}
QUEUE_ONLY = {"message-ttl", "expires", "delivery-limit", "overflow", *TEXTS}


def of(arguments: dict[str, Any], policy: dict[str, Any] | None = None,
       operator: dict[str, Any] | None = None) -> Features:  # fmt: skip
    names = ("p" if policy is not None else None, "o" if operator is not None else None)
    return queue_features(
        FieldTable(arguments), usable(policy or {})[0], usable(operator or {})[0], names
    )


# --- the model --------------------------------------------------------------------------------


def lowest(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


def model(arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any],
          is_stream: bool) -> dict[str, Any]:  # fmt: skip
    """What features have to be, said slowly; the input is well-typed."""
    ruled = {key: lowest(policy.get(key), operator.get(key)) for key in NUMBERS}
    result: dict[str, Any] = {
        field: lowest(arguments.get(f"x-{key}"), ruled[key]) for key, field in NUMBERS.items()
    }
    result |= {field: arguments.get(f"x-{key}", policy.get(key)) for key, field in TEXTS.items()}
    result["overflow"] = policy.get("overflow", arguments.get("x-overflow"))
    if is_stream:
        ages = [a for a in (arguments.get("x-max-age"), policy.get("max-age")) if a is not None]
        result["max_age_ms"] = lowest(*map(interval_ms, ages))
    for key in QUEUE_ONLY if is_stream else ():
        result[(NUMBERS | TEXTS | {"overflow": "overflow"})[key]] = None
    return result


def model_effective(arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any],
                    is_stream: bool) -> set[str]:  # fmt: skip
    effective = {"x-queue-type"} if is_stream else set()
    for name, value in arguments.items():
        key = name.removeprefix("x-")
        rule = policy.get(key)
        if is_stream and key in QUEUE_ONLY:
            continue
        if key in NUMBERS:
            rule = lowest(rule, operator.get(key))
            is_taken = rule is None or value <= rule
        elif key == "max-age":
            is_taken = is_stream and (
                rule is None or (interval_ms(value) or 0) <= (interval_ms(rule) or 0)
            )
        else:
            is_taken = key in TEXTS or rule is None
        if is_taken:
            effective.add(name)
    return effective


numbers = st.integers(0, 5) | st.integers(0, 1 << 63).map(lambda n: min(n, (1 << 63) - 1))
values: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(NUMBERS, numbers),
    **dict.fromkeys(TEXTS, st.sampled_from(["", "a", "b"])),
    "overflow": st.sampled_from(OVERFLOWS),
    "max-age": st.builds(
        lambda n, unit: f"{n}{unit}", st.integers(0, 90), st.sampled_from("YMDhms")
    ),
}
definitions = st.fixed_dictionaries({}, optional=values)
arguments_ = definitions.map(lambda given: {f"x-{key}": value for key, value in given.items()})
operators = st.fixed_dictionaries({}, optional={key: values[key] for key in OPERATOR_KEYS})


@given(arguments_, definitions, operators, st.booleans())
def test_merging_is_what_the_model_says(
    arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any], is_stream: bool
) -> None:
    """edge-cases.md 292, 293, 294, 298"""
    kind = {"x-queue-type": "stream"} if is_stream else {}

    merged = of(arguments | kind, policy, operator)

    expected = model(arguments, policy, operator, is_stream)
    assert {field: getattr(merged, field) for field in expected} == expected
    effective = model_effective(arguments, policy, operator, is_stream)
    assert set(merged.effective_arguments) == effective
    assert (merged.policy, merged.operator_policy) == ("p", "o")


@given(definitions, operators)
def test_without_arguments_all_of_the_definition_is_in_force(
    policy: dict[str, Any], operator: dict[str, Any]
) -> None:
    merged = of({}, policy, operator)

    in_force = dict(merged.policy_definition).keys() - {"max-age"}
    assert set(merged.effective_policy_arguments) == in_force
    assert in_force == (policy.keys() | operator.keys()) - {"max-age"}


@given(arguments_, definitions)
def test_removing_the_policy_restores_the_arguments(
    arguments: dict[str, Any], policy: dict[str, Any]
) -> None:
    """edge-cases.md 292, 293, 297"""
    before = of(arguments)
    of(arguments, policy)

    assert of(arguments) == before


anything = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1 << 70,
        1.5,
        "",
        "5",
        "true",
        "1D",
        "drop-head",
        [],
        [1],
        {},
        {"a": 1},
    ]
)


@given(
    definitions,
    st.dictionaries(st.sampled_from([*KEYS, "unknown", "ha-mode"]), anything),
)
def test_values_of_wrong_types_are_left_out_and_the_others_apply(
    good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """edge-cases.md 295, 296"""
    rules, unusable = usable(bad | good)

    assert {key: rules[key] for key in good} == good
    assert rules.keys() <= KEYS.keys()
    assert rules.keys() | set(unusable) == (bad | good).keys() & KEYS.keys()
    hash(queue_features(FieldTable(), rules, {}, ("p", None)))


# --- single rules -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max-length", "10"), ("max-length", True), ("max-length", -1), ("max-length", 1.5),
        ("max-length", 1 << 63), ("max-length-bytes", False), ("expires", [1]), ("overflow", 1),
        ("overflow", "nonsense"), ("dead-letter-exchange", 5), ("delivery-limit", -1),
        ("message-ttl", Timestamp(5)), ("max-age", "7 D"), ("max-age", 7), ("max-age", "-5D"),
        ("alternate-exchange", None), ("delayed-message", 1), ("consumer-timeout", "1"),
    ],
)  # fmt: skip
def test_an_unusable_value_is_named(key: str, value: object) -> None:
    """edge-cases.md 296"""
    assert usable({key: value, "max-age": "1D"} | {key: value}) == (
        {"max-age": "1D"} if key != "max-age" else {}, [key],
    )  # fmt: skip


def test_an_argument_without_policies() -> None:
    given = {
        "x-max-priority": 5, "x-single-active-consumer": True, "x-message-deduplication": True,
        "x-cache-size": 10, "x-unknown": 1, "x-queue-type": "classic", "x-max-length": None,
    }  # fmt: skip

    merged = of(given)

    assert (merged.max_priority, merged.single_active_consumer) == (5, True)
    assert merged.max_length is None
    assert merged.effective_arguments == (
        "x-max-priority", "x-single-active-consumer", "x-message-deduplication", "x-cache-size",
    )  # fmt: skip


def test_a_plain_queue_shares_one_value() -> None:
    assert queue_features(FieldTable()) is PLAIN


def test_the_recorded_queue_with_both_policies() -> None:
    """As LavinMQ shows it: both arguments give way."""
    merged = of(
        {"x-max-length": 30, "x-overflow": "drop-head"},
        {"max-length": 50, "message-ttl": 400000000000, "overflow": "reject-publish",
         "unknown-key": "kept"},
        {"max-length": 20, "expires": 400000000000},
    )  # fmt: skip

    assert merged.effective_arguments == ()
    assert (merged.max_length, merged.overflow) == (20, "reject-publish")
    assert dict(merged.policy_definition) == {
        "max-length": 20, "message-ttl": 400000000000, "overflow": "reject-publish",
        "expires": 400000000000,
    }  # fmt: skip


def test_the_ttl_of_a_policy_replaces_a_longer_argument_only() -> None:
    """edge-cases.md 298"""
    longer = of({"x-message-ttl": 100}, {"message-ttl": 50})
    shorter = of({"x-message-ttl": 10}, {"message-ttl": 50})

    assert (longer.message_ttl_ms, longer.effective_arguments) == (50, ())
    assert (shorter.message_ttl_ms, shorter.effective_arguments) == (10, ("x-message-ttl",))
    assert longer.effective_policy_arguments == ("message-ttl",)
    assert shorter.effective_policy_arguments == ()


def test_a_consumer_timeout_may_come_from_a_policy() -> None:
    """amqp.md 22.7"""
    assert of({}, {"consumer-timeout": 5}).consumer_timeout_ms == 5
    assert of({"x-consumer-timeout": 3}, {"consumer-timeout": 5}).consumer_timeout_ms == 3


def test_a_dead_letter_key_may_come_without_an_exchange() -> None:
    merged = of({}, {"dead-letter-routing-key": "k"})

    assert (merged.dead_letter_exchange, merged.dead_letter_routing_key) == (None, "k")


def test_overflow_words_that_mean_nothing_do_not_count() -> None:
    merged = of({"x-overflow": "drop-head"}, {"overflow": "nonsense"})
    assert (merged.overflow, merged.effective_arguments) == ("drop-head", ("x-overflow",))

    merged = of({"x-overflow": "nonsense"})
    assert (merged.overflow, merged.effective_arguments) == (None, ())


def test_reject_publish_dlx_is_understood() -> None:
    assert of({}, {"overflow": "reject-publish-dlx"}).overflow == "reject-publish-dlx"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1Y", 31536000), ("6M", 15552000), ("30D", 2592000), ("24h", 86400), ("60m", 3600),
     ("3600s", 3600), ("0s", 0), ("999999Y", 999999 * 31536000)],
)  # fmt: skip
def test_ages(text: str, seconds: int) -> None:
    assert interval_ms(text) == seconds * 1000


@pytest.mark.parametrize("text", ["", "100", "100x", "D", "100 D", "1D2h", "-5D", "1.5D", "١D"])
def test_what_is_no_age(text: str) -> None:
    assert interval_ms(text) is None


# --- exchanges --------------------------------------------------------------------------------


def test_the_alternate_of_the_arguments_comes_before_that_of_the_policy() -> None:
    """edge-cases.md 292"""
    rules = usable({"alternate-exchange": "policy"})[0]
    names = ("p", None)

    for name in ("x-alternate-exchange", "alternate-exchange"):
        own = exchange_features("direct", FieldTable({name: "own"}), rules, {}, names)
        assert (own.alternate_exchange, own.effective_arguments) == ("own", (name,))
    assert (
        exchange_features("direct", FieldTable(), rules, {}, names).alternate_exchange == "policy"
    )
    assert exchange_features("direct", FieldTable()).alternate_exchange is None


def test_an_exchange_names_the_arguments_that_its_type_reads() -> None:
    given = FieldTable({"x-hash-on": "id", "x-match": "any", "x-delayed-exchange": True})

    def effective(type_: str) -> tuple[str, ...]:
        return exchange_features(type_, given).effective_arguments

    assert effective("x-consistent-hash") == ("x-delayed-exchange", "x-hash-on")
    assert effective("headers") == ("x-delayed-exchange", "x-match")
    assert effective("topic") == ("x-delayed-exchange",)


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_an_exchange_can_be_delayed_by_a_policy(value: object) -> None:
    """amqp.md 22.8"""
    rules = usable({"delayed-message": value, "federation-upstream": "up"})[0]

    merged = exchange_features("direct", FieldTable(), rules, {}, ("p", None))

    assert merged.delayed_message is True
    assert merged.federation_upstream == "up"


@pytest.mark.parametrize("value", [5, True, b"x", ["x"], {"x": "x"}])
@pytest.mark.parametrize("name", ["x-alternate-exchange", "alternate-exchange"])
def test_an_alternate_of_the_arguments_that_is_no_text_is_named_and_left_out(
    name: str, value: Value
) -> None:
    arguments = FieldTable({name: value})

    assert mistyped(arguments, "alternate-exchange") == name
    assert argument(arguments, "alternate-exchange") == (name, None)
    assert exchange_features("direct", arguments).alternate_exchange is None


def test_of_two_spellings_the_first_one_counts_unless_it_is_void() -> None:
    both = FieldTable({"alternate-exchange": "b", "x-alternate-exchange": "a"})
    void = FieldTable({"alternate-exchange": "b", "x-alternate-exchange": None})

    assert argument(both, "alternate-exchange") == ("x-alternate-exchange", "a")
    assert argument(void, "alternate-exchange") == ("alternate-exchange", "b")
    assert mistyped(both, "alternate-exchange") is None


# --- the table --------------------------------------------------------------------------------


def test_every_key_lands_in_a_field_of_what_it_is_for() -> None:
    for key, row in KEYS.items():
        values = [FEATURES[kind] for kind in row.kinds]
        assert all(row.field in each.__dataclass_fields__ for each in values), key


def test_the_table_of_keys_is_the_one_of_the_documentation() -> None:
    documented = {
        key: (values, merge)
        for keys, values, merge in re.findall(r"^\| (`.*?) \| (.*?) \| ?(.*?) ?\|$", PAGE, re.M)
        for key in re.findall(r"`([a-z-]+)`", keys)
        if key in KEYS
    }

    assert documented == {key: (row.values.says, row.merge.value) for key, row in KEYS.items()}


def test_the_keys_of_streams_and_of_operators_are_those_of_the_documentation() -> None:
    streams = re.search(r"Streams take\s(.*?) and federation", PAGE, re.S)
    operators = re.search(r"### Operator policies\n(.*?)\n### ", PAGE, re.S)
    assert streams is not None
    assert operators is not None

    assert set(re.findall(r"`(.*?)`", streams[1])) == {
        key for key, row in KEYS.items()
        if Kind.STREAM in row.kinds and row.merge is not Merge.POLICY_ONLY
    }  # fmt: skip
    assert set(re.findall(r"`(.*?)`", operators[1])) & KEYS.keys() == OPERATOR_KEYS
