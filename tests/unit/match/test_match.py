"""The compiled bindings of one exchange, through the door class ``Matcher``.

Three sources of truth: the recorded routing transcripts in ``tests/fixtures/amqp``, a reference
matcher a few lines long in this file, and single facts. Field tables are written as lists of
``(key, type letter, value)``, as in the transcripts. Kinds: 0 direct, 1 fanout, 2 topic, 3 headers.
"""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support._matcher import Matcher

DIRECT, FANOUT, TOPIC, HEADERS = range(4)
KINDS = {"direct": DIRECT, "fanout": FANOUT, "topic": TOPIC, "headers": HEADERS}
ADDED, UNCHANGED, BAD_MODE, BAD_INPUT = 1, 0, -2, -3
SEED = 0x0123456789ABCDEF
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "amqp"
TRANSCRIPTS = ["direct", "fanout", "topic-matrix-1", "topic-matrix-2", "headers-all-any"]
TRANSCRIPTS += ["headers-default-any", "headers-types", "headers-x-keys"]

Field = tuple[str, str, Any]
Value = tuple[str, Any]

quick = settings(deadline=None, database=None, max_examples=150)

FIXED = {
    "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q",
    "L": ">q", "T": ">q", "f": ">f", "d": ">d", "t": ">?",
}  # fmt: skip


def encode_value(kind: str, value: Any) -> bytes:
    if kind in FIXED:
        return kind.encode() + struct.pack(FIXED[kind], value)
    if kind == "V":
        return b"V"
    if kind == "D":
        return b"D" + struct.pack(">Bi", *value)
    if kind == "F":
        content = encode(value)
    elif kind == "A":
        content = b"".join(encode_value(*item) for item in value)
    else:
        content = value.encode() if isinstance(value, str) else value
    return kind.encode() + struct.pack(">I", len(content)) + content


def encode(table: list[Field]) -> bytes:
    """Return the content of a field table, without its length."""
    return b"".join(
        bytes([len(key.encode())]) + key.encode() + encode_value(kind, value)
        for key, kind, value in table
    )


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[i:]) for i in range(len(words) + 1))
    fits = bool(words) and pattern[0] in ("*", words[0])
    return fits and topic_matches(pattern[1:], words[1:])


def number_of(kind: str, value: Any) -> float | int | None:
    if kind == "D":
        return float(value[1] / 10 ** value[0])
    return value if kind in FIXED and kind not in "tT" else None


def is_same(a: Value, b: Value) -> bool:
    number = number_of(*a)
    if number is not None:
        return number == number_of(*b)
    if a[0] != b[0]:
        return False
    if a[0] == "A":
        return len(a[1]) == len(b[1]) and all(map(is_same, a[1], b[1]))
    if a[0] != "F":
        return bool(a[1] == b[1])
    left, right = ({key: (kind, value) for key, kind, value in table} for table in (a[1], b[1]))
    return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)


def headers_match(args: list[Field], headers: list[Field] | None, default: str = "all") -> bool:
    if not headers:
        return not args
    mode, _, with_x = next(
        (value for key, _, value in args if key == "x-match"), default
    ).partition("-")
    message = {key: (kind, value) for key, kind, value in headers}
    tests = [
        key in message and is_same((kind, value), message[key])
        for key, kind, value in args
        if (key != "x-match" if with_x else not key.startswith("x-"))
    ]
    return all(tests) if mode == "all" else any(tests)


class Transcript:
    """Bindings, publishes and arrivals of one recorded routing scenario."""

    def __init__(self, name: str) -> None:
        steps = json.loads((FIXTURES / f"rt-{name}.json").read_text())["steps"]
        self.kind = DIRECT
        self.default_any = False
        self.bindings: list[tuple[str, str, list[Field]]] = []
        self.messages: dict[str, tuple[str, list[Field] | None]] = {}
        self.arrived: dict[str, set[str]] = {}
        self._queue = ""
        for step in steps:
            if step["op"] == "send":
                self._sent(step["frames"])
            for unit in step.get("units", []):
                if unit["method"] == "basic.get-ok":
                    self.arrived.setdefault(unit["body"]["text"], set()).add(self._queue)

    def _sent(self, frames: list[dict[str, Any]]) -> None:
        method, args = frames[0].get("method"), frames[0].get("args", {})
        if method == "exchange.declare":
            self.kind = KINDS[args["type"]]
            self.default_any = ["x-match", "S", "any"] in args["arguments"]
        elif method == "queue.bind":
            self.bindings.append((args["queue"], args["routing_key"], args["arguments"]))
        elif method == "basic.publish":
            body, headers = frames[2]["body"]["text"], frames[1]["props"].get("headers")
            self.messages[body] = (args["routing_key"], headers)
        elif method == "basic.get":
            self._queue = args["queue"]


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_messages_reach_the_queues_they_reached_in_the_recording(name: str) -> None:
    transcript = Transcript(name)
    matcher = Matcher(transcript.kind, SEED)
    matcher.set_default_any(transcript.default_any)
    queues = list(dict.fromkeys(queue for queue, _, _ in transcript.bindings))
    for queue, key, args in transcript.bindings:
        assert matcher.bind(key.encode(), encode(args), queues.index(queue)) == ADDED

    reached = {}
    for body, (key, headers) in transcript.messages.items():
        table = None if headers is None else encode(headers)
        reached[body] = [queues[i] for i in matcher.route(key.encode(), table)]

    assert reached
    for body, names in reached.items():
        assert set(names) == transcript.arrived.get(body, set()), body
        assert len(names) == len(set(names)), body


def test_ten_thousand_similar_keys_are_told_apart_while_bound_and_unbound() -> None:
    matcher = Matcher(DIRECT, SEED)
    keys = [f"queue-{i:05}".encode() for i in range(10_000)]
    for number, key in enumerate(keys):
        assert matcher.bind(key, b"", number) == ADDED

    assert [matcher.route(key) for key in keys] == [[i] for i in range(10_000)]
    for number, key in enumerate(keys[:9_990]):
        assert matcher.unbind(key, b"", number) == 1

    left = [matcher.route(key) for key in keys[9_980:]]
    assert left == [[]] * 10 + [[i] for i in range(9_990, 10_000)]
    assert len(matcher) == 10


def test_one_key_reaches_any_number_of_destinations_in_binding_order() -> None:
    matcher = Matcher(DIRECT, SEED)
    for number in range(1000):
        matcher.bind(b"k", b"", number)
    for number in range(1, 1000, 2):
        matcher.unbind(b"k", b"", number)

    assert matcher.route(b"k") == list(range(0, 1000, 2))


def test_empty_and_binary_keys_are_keys_like_any_other() -> None:
    matcher = Matcher(DIRECT, SEED)
    keys = [b"", b"\x00", b"\x00\x00", b"\xff" * 255]
    for number, key in enumerate(keys):
        matcher.bind(key, b"", number)
    assert [matcher.route(key) for key in keys] == [[0], [1], [2], [3]]


def test_binding_twice_changes_nothing_and_unbinding_the_unbound_neither() -> None:
    """edge-cases.md 73"""
    for kind in KINDS.values():
        matcher = Matcher(kind, SEED)

        assert matcher.unbind(b"a.*", b"", 1) == UNCHANGED
        assert matcher.bind(b"a.*", b"", 1) == ADDED
        assert matcher.bind(b"a.*", b"", 1) == UNCHANGED
        assert matcher.unbind(b"a.*", b"", 2) == UNCHANGED
        assert matcher.unbind(b"a.#", b"", 1) == UNCHANGED
        assert len(matcher) == 1
        assert matcher.unbind(b"a.*", b"", 1) == ADDED
        assert len(matcher) == matcher.weight() == 0


def test_a_fanout_destination_stays_until_its_last_key_is_unbound() -> None:
    matcher = Matcher(FANOUT, SEED)
    matcher.bind(b"a", b"", 7)
    matcher.bind(b"b", b"", 7)

    matcher.unbind(b"a", b"", 7)
    still = matcher.route(b"")
    matcher.unbind(b"b", b"", 7)

    assert (still, matcher.route(b"")) == ([7], [])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 9"):
        Matcher(9, SEED)


topic_word = st.sampled_from(["a", "b", "", "*", "#", "ab", "é"])
topic_key = st.lists(topic_word, min_size=1, max_size=7).map(".".join)


@quick
@given(patterns=st.lists(topic_key, max_size=12, unique=True), keys=st.lists(topic_key))
def test_topic_agrees_with_the_reference(patterns: list[str], keys: list[str]) -> None:
    """edge-cases.md 78-85"""
    matcher = Matcher(TOPIC, SEED)
    for number, pattern in enumerate(patterns):
        assert matcher.bind(pattern.encode(), b"", number) == ADDED

    for key in keys:
        found = [patterns[number] for number in sorted(matcher.route(key.encode()))]
        words = key.removesuffix(".").split(".")
        assert found == [p for p in patterns if topic_matches(p.split("."), words)], key
        others = [other.encode() for other in keys]
        stopped = matcher.route(key.encode(), others=others)
        assert [patterns[number] for number in sorted(stopped)] == found, key


def test_patterns_that_share_beginnings_end_in_bounded_work() -> None:
    """Each pattern may meet each position of the key, and no more often: there were as many ways as
    powers of two."""
    matcher = Matcher(TOPIC, SEED)
    patterns = [".".join(words) for words in itertools.product("a*", repeat=9)]
    for number, pattern in enumerate(patterns):
        matcher.bind(f"#.{pattern}.b".encode(), b"", number)
    n_nodes = sum(2**length for length in range(1, 10)) + 2**9 + 1
    key = b"a." * 60 + b"a"

    assert matcher.route(key, others=[b"c"]) == []
    assert matcher.pauses <= 61 * n_nodes
    assert len(matcher.route(key + b".b", others=[b"c"])) == len(patterns)


@pytest.mark.parametrize("others", [None, [b"a.b.c.d.e.f.k2", b"a"]])
def test_a_walk_knows_more_nodes_than_it_looks_through_one_by_one(
    others: list[bytes] | None,
) -> None:
    patterns = ["*." * stars + f"#.k{n}" for stars in range(12) for n in range(3)]
    matcher = Matcher(TOPIC, SEED)
    for number, pattern in enumerate(patterns):
        matcher.bind(pattern.encode(), b"", number)

    for key in ("a.b.c.d.e.f.k1", "k1.k1.k1.k1.k1.k1.k1.k1.k1.k1.k1.k1.k1", "k1"):
        found = matcher.route(key.encode(), others=others)

        words = key.split(".")
        assert sorted(found) == [
            number
            for number, pattern in enumerate(patterns)
            if topic_matches(pattern.split("."), words)
        ]


def test_a_fanout_is_stopped_and_goes_on() -> None:
    matcher = Matcher(FANOUT, SEED)
    for number in range(50):
        matcher.bind(b"", b"", number)

    assert matcher.route(b"k", others=[b"other"]) == list(range(50))
    assert matcher.pauses >= 49


def test_a_destination_with_several_matching_patterns_is_reached_once() -> None:
    """edge-cases.md 77"""
    matcher = Matcher(TOPIC, SEED)
    for pattern in (b"a.b", b"a.*", b"#", b"#.b", b"*.#", b"a.#.b", b"#.#"):
        matcher.bind(pattern, b"", 3)

    assert matcher.route(b"a.b") == [3]


@pytest.mark.parametrize("others", [None, [b"a.b", b"c.d"]], ids=["at-once", "in-turns"])
def test_many_destinations_are_each_reached_once(others: list[bytes] | None) -> None:
    """More than are looked through one by one, by several patterns; routings of the same
    destinations come between."""
    matcher = Matcher(TOPIC, SEED)
    for number in range(300):
        for pattern in (b"a.*", b"*.b", b"#") if number % 2 else (b"#.b", b"c.d"):
            matcher.bind(pattern, b"", number)

    reached = matcher.route(b"a.b", others=others)

    assert sorted(reached) == list(range(300))
    assert (matcher.pauses > 0) == (others is not None)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 10, 33, 500])
def test_a_fanout_reaches_each_of_so_many_once(n: int) -> None:
    """Bound twice, by keys that mean nothing there."""
    matcher = Matcher(FANOUT, SEED)
    for key in (b"", b"again"):
        for number in range(n):
            matcher.bind(key, b"", number)

    assert matcher.route(b"any") == list(range(n))


def test_many_hashes_against_the_longest_key_end_in_bounded_work() -> None:
    matcher = Matcher(TOPIC, SEED)
    matcher.bind(b"#.a.#.b.#.c.#", b"", 1)
    matcher.bind(b"#." + b"a.#." * 62 + b"z", b"", 2)
    matcher.bind(b"#.*." * 60 + b"z", b"", 3)
    matcher.bind(b"#.#.#.#", b"", 4)

    assert matcher.route(b"a." * 127 + b"a") == [4]
    assert sorted(matcher.route(b"a." * 125 + b"b.c")) == [1, 4]
    assert sorted(matcher.route(b"a." * 127 + b"z")) == [2, 3, 4]


def test_a_key_of_dots_alone_has_as_many_empty_words() -> None:
    matcher = Matcher(TOPIC, SEED)
    matcher.bind(b"." * 254, b"", 1)
    matcher.bind(b"*" + b".*" * 127, b"", 2)
    matcher.bind(b"." * 253 + b"#", b"", 3)

    assert sorted(matcher.route(b"." * 255)) == [1, 3]
    assert matcher.route(b"." * 128) == [2]


def test_topic_binding_keys_above_255_bytes_are_refused_and_routing_keys_reach_nothing() -> None:
    matcher = Matcher(TOPIC, SEED)
    matcher.bind(b"#", b"", 1)

    assert matcher.bind(b"a" * 256, b"", 2) == BAD_INPUT
    assert matcher.unbind(b"a" * 256, b"", 2) == UNCHANGED
    assert matcher.route(b"a" * 256) == []
    assert matcher.route(b"a" * 255) == [1]


def test_unbinding_leaves_no_empty_node_behind() -> None:
    """edge-cases.md 73"""
    matcher = Matcher(TOPIC, SEED)
    patterns = [f"a.{i}.*.#.b{i % 7}.#".encode() for i in range(500)] + [b"a.#", b"#", b"a.1.*"]
    for pattern in patterns:
        matcher.bind(pattern, b"", 1)

    for pattern in patterns[1:] + patterns[:1]:
        assert matcher.unbind(pattern, b"", 1) == 1

    assert matcher.weight() == 0


simple_value = st.one_of(
    st.tuples(st.sampled_from("bsUIlL"), st.integers(-2, 2)),
    st.tuples(st.sampled_from("BuiT"), st.integers(0, 2)),
    st.tuples(st.sampled_from("fd"), st.sampled_from([-2.0, -0.0, 0.5, 1.0, 2.0**62, 2.0**63])),
    st.tuples(st.just("l"), st.sampled_from([2**62, 2**62 + 1, 2**63 - 1, -(2**63)])),
    st.tuples(st.just("D"), st.tuples(st.integers(0, 2), st.sampled_from([0, 5, 10, 100, -200]))),
    st.tuples(st.sampled_from("Sx"), st.sampled_from([b"", b"1", b"a"])),
    st.tuples(st.just("t"), st.booleans()),
    st.just(("V", None)),
)
header_key = st.sampled_from(["a", "b", "c", "", "x-a", "x", "é"])


def tables(values: st.SearchStrategy[Value]) -> st.SearchStrategy[list[Field]]:
    fields = st.tuples(header_key, values).map(lambda pair: (pair[0], *pair[1]))
    return st.lists(fields, max_size=4, unique_by=lambda field: field[0])


value = st.recursive(
    simple_value,
    lambda inner: st.one_of(
        st.tuples(st.just("A"), st.lists(inner, max_size=3)),
        st.tuples(st.just("F"), tables(inner)),
    ),
    max_leaves=6,
)
MODES = ("all", "any", "all-with-x", "any-with-x")
mode = st.sampled_from([[], *([("x-match", "S", word)] for word in MODES)])
pattern = st.builds(lambda first, rest: first + rest, mode, tables(value))


@quick
@given(patterns=st.lists(pattern, max_size=8), message=tables(value), default=st.booleans())
def test_headers_agree_with_the_reference(
    patterns: list[list[Field]], message: list[Field], default: bool
) -> None:
    """edge-cases.md 86-91"""
    matcher = Matcher(HEADERS, SEED)
    matcher.set_default_any(default)
    word = "any" if default else "all"
    for number, args in enumerate(patterns):
        assert matcher.bind(b"", encode(args), number) == ADDED

    for headers in (message, [], None, *patterns):
        table = None if headers is None else encode(headers)
        expected = [n for n, args in enumerate(patterns) if headers_match(args, headers, word)]
        assert sorted(matcher.route(b"k", table)) == expected
        assert sorted(matcher.route(b"k", table, others=[b"k"])) == expected


@pytest.mark.parametrize("bad", [("S", "none"), ("S", "ALL"), ("S", "all-with-y"), ("I", 123)])
def test_an_illegal_x_match_is_refused_and_binds_nothing(bad: Value) -> None:
    """edge-cases.md 93"""
    matcher = Matcher(HEADERS, SEED)

    assert matcher.bind(b"", encode([("a", "I", 1), ("x-match", *bad)]), 1) == BAD_MODE
    assert len(matcher) == matcher.weight() == 0


def test_arguments_and_key_are_the_identity_of_a_headers_binding() -> None:
    matcher = Matcher(HEADERS, SEED)
    one, two = encode([("a", "I", 1)]), encode([("a", "I", 2)])
    results = [matcher.bind(b"", one, 1), matcher.bind(b"", two, 1), matcher.bind(b"k", one, 1)]

    assert results == [ADDED, ADDED, ADDED]
    assert matcher.unbind(b"", one, 1) == 1
    assert matcher.route(b"", one) == [1]
    assert matcher.unbind(b"k", one, 1) == 1
    assert matcher.route(b"", one) == []
    assert matcher.route(b"", two) == [1]


def test_the_first_of_equal_header_keys_counts() -> None:
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", encode([("a", "I", 1)]), 1)
    matcher.bind(b"", encode([("x-match", "S", "any"), ("a", "I", 2)]), 2)

    assert matcher.route(b"", encode([("a", "I", 1), ("a", "I", 2)])) == [1]


def test_a_message_may_carry_thousands_of_headers() -> None:
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", encode([(f"k{i}", "I", i) for i in range(500)]), 1)
    matcher.bind(b"", encode([("k4999", "I", 4999), ("k0", "I", 1)]), 2)
    message = [(f"k{i}", "l", i) for i in range(5000)]

    assert matcher.route(b"", encode(message[::-1])) == [1]


def test_ten_thousand_patterns_that_share_a_pair_are_told_apart() -> None:
    matcher = Matcher(HEADERS, SEED)
    for i in range(10_000):
        matcher.bind(b"", encode([("format", "S", "pdf"), ("id", "I", i)]), i)

    for i in (0, 1, 9_999):
        assert matcher.route(b"", encode([("id", "l", i), ("format", "S", "pdf")])) == [i]
    assert matcher.route(b"", encode([("format", "S", "pdf")])) == []


def test_large_nested_tables_are_equal_only_in_the_same_order() -> None:
    matcher = Matcher(HEADERS, SEED)
    small = [(f"k{i}", "I", i) for i in range(64)]
    large = [*small, ("last", "V", None)]
    matcher.bind(b"", encode([("v", "F", small)]), 1)
    matcher.bind(b"", encode([("v", "F", large)]), 2)

    assert matcher.route(b"", encode([("v", "F", small[::-1])])) == [1]
    assert matcher.route(b"", encode([("v", "F", large)])) == [2]
    assert matcher.route(b"", encode([("v", "F", large[::-1])])) == []


def nested(depth: int) -> bytes:
    inner: list[Field] = []
    for _ in range(depth):
        inner = [("n", "F", inner)]
    return encode(inner)


def test_binding_arguments_nest_at_most_64_deep() -> None:
    matcher = Matcher(HEADERS, SEED)

    assert matcher.bind(b"", nested(65), 1) == BAD_INPUT
    assert matcher.bind(b"", nested(64), 1) == ADDED
    assert matcher.route(b"", nested(64)) == [1]
    assert matcher.route(b"", nested(200)) == []


def test_malformed_binding_arguments_are_refused() -> None:
    matcher = Matcher(HEADERS, SEED)
    bad_inside = b"\x01aF" + struct.pack(">I", 3) + b"\x01bZ"
    for args in (b"\x05a", b"\x01aI\0\0", b"\x01aS\xff\xff\xff\xffx", b"\x01a?", bad_inside):
        assert matcher.bind(b"", args, 1) == BAD_INPUT
    assert len(matcher) == matcher.weight() == 0


@quick
@given(table=tables(value).filter(bool), cut=st.integers(0, 10_000))
def test_a_table_cut_inside_a_field_matches_nothing(table: list[Field], cut: int) -> None:
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", b"", 1)
    matcher.bind(b"", encode([("x-match", "S", "any"), *table]), 2)
    content = encode(table)
    ends = {len(encode(table[:n])) for n in range(len(table) + 1)}
    cut %= len(content)

    found = matcher.route(b"", content[:cut])

    assert (found != []) if cut in ends else (found == [])


@quick
@given(
    args=st.lists(st.one_of(st.binary(max_size=40), pattern.map(encode)), max_size=5),
    noise=st.binary(max_size=60),
    message=tables(value).map(encode),
    at=st.integers(0, 200),
)
def test_any_bytes_as_tables_give_a_result_and_never_a_crash(
    args: list[bytes], noise: bytes, message: bytes, at: int
) -> None:
    matcher = Matcher(HEADERS, SEED)
    results = [matcher.bind(b"", table, i) for i, table in enumerate(args)]
    bound = {i for i, result in enumerate(results) if result == ADDED}

    for headers in (noise, message[:at] + noise + message[at:], message + noise):
        assert set(matcher.route(b"", headers)) <= bound
    for i in bound:
        assert matcher.unbind(b"", args[i], i) == 1
    assert len(matcher) == matcher.weight() == 0


ARGUMENTS: list[list[Field]] = [
    [],
    [("a", "I", 1)],
    [("a", "I", 1), ("b", "S", "1")],
    [("x-match", "S", "any"), ("a", "I", 1), ("b", "S", "1")],
    [("x-match", "S", "any"), ("a", "I", 1), ("a", "l", 1)],
    [("x-a", "I", 1)],
]
some_args = st.sampled_from(ARGUMENTS)
steps = st.lists(st.tuples(st.booleans(), topic_key, some_args, st.integers(0, 4)), max_size=40)


def reaches(kind: int, pattern: str, args: list[Field], key: str, headers: list[Field]) -> bool:
    if kind == TOPIC:
        return topic_matches(pattern.split("."), key.removesuffix(".").split("."))
    if kind == HEADERS:
        return headers_match(args, headers)
    return kind == FANOUT or pattern == key


@quick
@given(kind=st.sampled_from(list(KINDS.values())), steps=steps, key=topic_key, headers=some_args)
def test_any_order_of_binding_and_unbinding_keeps_the_bindings_of_a_set(
    kind: int, steps: list[Any], key: str, headers: list[Field]
) -> None:
    matcher = Matcher(kind, SEED)
    bound: set[tuple[str, int, int]] = set()
    for is_bind, pattern, args, dest in steps:
        number = ARGUMENTS.index(args) if kind == HEADERS else 0
        change = matcher.bind if is_bind else matcher.unbind
        binding = (pattern, number, dest)

        result = change(pattern.encode(), encode(ARGUMENTS[number]), dest)
        assert result == (is_bind != (binding in bound))

        (bound.add if is_bind else bound.discard)(binding)
        assert len(matcher) == len(bound)
        found = matcher.route(key.encode(), encode(headers))
        assert sorted(found) == sorted(
            {d for p, n, d in bound if reaches(kind, p, ARGUMENTS[n], key, headers)}
        )

    for pattern, number, dest in bound:
        assert matcher.unbind(pattern.encode(), encode(ARGUMENTS[number]), dest) == 1
    assert len(matcher) == matcher.weight() == 0
