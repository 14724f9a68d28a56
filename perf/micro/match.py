"""What one routing costs: nanoseconds per message for every kind of exchange, as a table.

Run it as ``python -m perf.micro.match``, after ``make trial``. Loops run inside the extension, each
figure is the least of some repetitions, and ``budget`` is what the row may cost on the reference
machine (2.6 GHz, one core); the exit status is 1 when a row exceeds three times its budget.
"""

import struct
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.support._matcher import Matcher

DIRECT, FANOUT, TOPIC, HEADERS = range(4)
SEED = 0x5EED
ROUTINGS = 100_000
REPETITIONS = 15
SAMPLE = 1000
TOLERANCE = 3


class Row(NamedTuple):
    name: str
    budget_ns: int
    measure: Callable[[], float]


def table(**fields: int | str) -> bytes:
    """Return the content of a field table of 32-bit integers and strings, without its length."""
    content = b""
    for key, value in fields.items():
        name = key.replace("_", "-").encode()
        content += bytes([len(name)]) + name
        if isinstance(value, int):
            content += b"I" + struct.pack(">i", value)
        else:
            content += b"S" + struct.pack(">I", len(value)) + value.encode()
    return content


def matcher(kind: int, keys: Iterable[str], destinations: int = 1_000_000) -> Matcher:
    """Return a matcher with one binding per key."""
    made = Matcher(kind, SEED)
    for number, key in enumerate(keys):
        made.bind(key.encode(), b"", number % destinations)
    return made


def route(made: Matcher, keys: Iterable[str], headers: bytes | None = None) -> float:
    """Return the nanoseconds of one routing, averaged over *keys* in turn."""
    encoded = [key.encode() for key in keys]
    return float(min(made.bench(encoded, ROUTINGS, headers) for _ in range(REPETITIONS)))


def spread(n: int) -> list[int]:
    """Return SAMPLE numbers below *n* in an order no prefetcher knows."""
    return [(i * 7919 + 13) % n for i in range(SAMPLE)]


def direct(n: int) -> float:
    made = matcher(DIRECT, (f"queue.number.{i}" for i in range(n)))
    return route(made, (f"queue.number.{i}" for i in spread(n)))


def direct_cold(n: int) -> float:
    """Visit all keys in a scattered order, so that most routings miss the caches."""
    made = matcher(DIRECT, (f"queue.number.{i}" for i in range(n)))
    return route(made, (f"queue.number.{i * 7919 % n}" for i in range(n)))


def fanout(n: int) -> float:
    return route(matcher(FANOUT, ("" for _ in range(n))), ["any"])


def mixed_patterns(n: int) -> Iterable[str]:
    """Yield *n* different binding keys with ``*`` and ``#`` in all places."""
    forms = ("order.{}.*", "order.{}.#", "*.{}.paid", "#.{}.paid", "order.*.paid{}", "order.#.{}")
    for i in range(n):
        yield forms[i % len(forms)].format(i)


def topic_mixed(n: int) -> float:
    made = matcher(TOPIC, mixed_patterns(n))
    return route(made, (f"order.{i}.paid" for i in spread(max(n, 20_000))))


def topic_literal(n: int) -> float:
    made = matcher(TOPIC, (f"order.{i}.paid" for i in range(n)))
    return route(made, (f"order.{i}.paid" for i in spread(n)))


def topic_star(n: int) -> float:
    made = matcher(TOPIC, (f"order.{i}.*" for i in range(n)))
    return route(made, (f"order.{i}.paid" for i in spread(n)))


def topic_hostile() -> float:
    made = matcher(TOPIC, ["#.a.#.b.#.c.#", "#.a.#.a.#.a.#.a.#.a.#.z", "#.*.#.*.#.*.#.z"])
    return float(made.bench([b"a." * 127 + b"a"], 2000))


def headers_all(n: int) -> float:
    made = Matcher(HEADERS, SEED)
    for i in range(n):
        made.bind(b"", table(x_match="all", format="pdf", customer=i), i)
    message = table(format="pdf", customer=n // 2, trace="0123456789abcdef", size=12)
    return route(made, ["k"], message)


def headers_any(n: int) -> float:
    made = Matcher(HEADERS, SEED)
    for i in range(n):
        made.bind(b"", table(x_match="any", customer=i, order=i), i)
    message = table(order=n // 2, customer=n // 3, trace="0123456789abcdef", size=12)
    return route(made, ["k"], message)


ROWS = [
    Row("direct, 1 key", 30, lambda: direct(1)),
    Row("direct, 10 000 keys", 30, lambda: direct(10_000)),
    Row("direct, 100 000 keys", 60, lambda: direct(100_000)),
    Row("direct, 100 000 keys, out of cache", 250, lambda: direct_cold(100_000)),
    Row("fanout, 1 destination", 10, lambda: fanout(1)),
    Row("fanout, 100 destinations", 250, lambda: fanout(100)),
    Row("topic, 1 000 literal keys", 40, lambda: topic_literal(1000)),
    Row("topic, 1 000 keys order.N.*", 80, lambda: topic_star(1000)),
    Row("topic, 1 000 mixed * and #", 150, lambda: topic_mixed(1000)),
    Row("topic, 100 000 mixed * and #", 300, lambda: topic_mixed(100_000)),
    Row("topic, 128 words, many #", 40_000, topic_hostile),
    Row("headers all, 1 binding, 4 headers", 120, lambda: headers_all(1)),
    Row("headers all, 10 000 bindings", 150, lambda: headers_all(10_000)),
    Row("headers any, 10 000 bindings", 150, lambda: headers_any(10_000)),
]


def main() -> int:
    """Print the table; 1 when a row is far above its budget."""
    print(f"{'routing':<40}{'ns':>10}{'budget':>10}")
    slow = 0
    for row in ROWS:
        cost = row.measure()
        slow += cost > row.budget_ns * TOLERANCE
        print(f"{row.name:<40}{cost:>10.1f}{row.budget_ns:>10}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
