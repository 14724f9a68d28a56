"""What the interpreter does by itself to show the compiler which of its code is used most.

Run by training.py with the interpreter that counts, and by nothing else. It uses what programs in
Python are made of, of the standard library only; what the broker makes of it is training.py's part.
Not CPython's own tests: they visit rare code as often as common code, and some wait for ever.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import configparser
import dataclasses
import datetime
import enum
import functools
import hashlib
import heapq
import hmac
import itertools
import json
import re
import struct
import textwrap
import urllib.parse
from collections.abc import Iterator

ROUNDS = 100
LINE = re.compile(r"(?P<method>[A-Z]+) (?P<path>/\S*) HTTP/1\.(?P<minor>[01])\r\n")


class Kind(enum.Enum):
    """How an exchange routes."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """A value that is compared and hashed."""

    source: str
    key: str
    arguments: tuple[tuple[str, object], ...] = ()


class Exchange:
    """An object with a life, methods, properties and subclasses."""

    kind = Kind.DIRECT

    def __init__(self, name: str) -> None:
        self.name = name
        self._bindings: dict[str, set[Binding]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._bindings.values()))

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is bound."""
        return not self._bindings

    def bind(self, key: str, **arguments: object) -> None:
        """Remember a binding."""
        binding = Binding(self.name, key, tuple(sorted(arguments.items())))
        self._bindings.setdefault(key, set()).add(binding)

    def matches(self, bound: str, key: str) -> bool:
        """Say whether a key is routed by a binding."""
        return bound == key

    def route(self, key: str) -> Iterator[Binding]:
        """Yield bindings that a key matches."""
        for bound, bindings in self._bindings.items():
            if self.matches(bound, key):
                yield from bindings


class TopicExchange(Exchange):
    """The same with words and wildcards."""

    kind = Kind.TOPIC

    def matches(self, bound: str, key: str) -> bool:
        """Compare word by word."""
        words, given = bound.split("."), key.split(".")
        if "#" not in words and len(words) != len(given):
            return False
        for word, one in zip(words, given, strict=False):
            if word == "#":
                return True
            if word not in ("*", one):
                return False
        return super().matches(bound, key) or "*" in words


def objects() -> None:
    """Make objects, call methods, iterate, compare, sort."""
    exchanges = [Exchange("plain"), TopicExchange("topics")]
    for number in range(300):
        for exchange in exchanges:
            exchange.bind(
                f"orders.{number % 17}.{number}", priority=number, name="x" * (number % 9)
            )
    exchanges[1].bind("orders.*.7")
    exchanges[1].bind("orders.#")
    for number in range(40):
        for exchange in exchanges:
            found = list(exchange.route(f"orders.{number % 17}.{number}"))
            assert found and not exchange.is_empty and len(exchange) > 1
            found.sort(key=lambda binding: (binding.key, len(binding.arguments)))
            assert dataclasses.replace(found[0], key="other") not in set(found)
    assert Kind("topic") is TopicExchange.kind


def containers() -> None:
    """Use lists, dictionaries, sets, heaps and counters in the ways that loops do."""
    numbers = [(i * 7919) % 1009 for i in range(1000)]
    counts = collections.Counter(numbers)
    waiting: collections.deque[int] = collections.deque(maxlen=100)
    heap: list[tuple[int, int]] = []
    by_rest: dict[int, list[int]] = collections.defaultdict(list)
    for position, number in enumerate(numbers):
        waiting.append(number)
        heapq.heappush(heap, (number, position))
        by_rest[number % 13].append(number)
        if len(heap) > 50:
            heapq.heappop(heap)
        if number in counts and number % 2:
            counts[number] -= 1
    squares = {n: n * n for n in numbers if n & 1}
    both = set(numbers) & set(squares) | set(waiting)
    assert max(both) <= max(numbers) and min(squares) >= 0
    merged = {**squares, **dict.fromkeys(numbers[:20], 0)}
    chain = itertools.chain.from_iterable(by_rest.values())
    assert sum(chain) == sum(numbers) == functools.reduce(lambda a, b: a + b, numbers)
    assert sorted(merged.items(), key=lambda item: item[1], reverse=True)
    assert (
        [*reversed(numbers)][::2] and any(n > 900 for n in numbers) and numbers[3:9] != numbers[9:3]
    )


def text() -> None:
    """Parse and build text and bytes."""
    for number in range(60):
        request = f"GET /api/queues/%2F/q{number}?page={number}&name=a+b HTTP/1.1\r\n"
        head = request + "Host: localhost\r\nContent-Type: application/json\r\nX-Größe: ø\r\n"
        found = LINE.match(head)
        assert found and found["method"] == "GET"
        parts = urllib.parse.urlsplit(found["path"])
        query = urllib.parse.parse_qs(parts.query)
        assert urllib.parse.unquote(parts.path).count("/") == 5 and query["name"] == ["a b"]
        lines = head.encode().split(b"\r\n")[1:-1]
        headers = {
            key.strip().lower().decode(): value.strip().decode()
            for key, _, value in (line.partition(b":") for line in lines)
        }
        assert headers["host"].startswith("local") and headers["host"].upper().isupper()
        assert ", ".join(f"{key!s:>12}={value!r}" for key, value in headers.items())
        frame = bytearray(struct.pack(">BHI", 1, number, 8)) + b"%d" % number + b"\xce"
        kind, channel, size = struct.unpack_from(">BHI", frame)
        assert (kind, channel, size) == (1, number, 8) and bytes(memoryview(frame)[7:-1])
        assert int.from_bytes(frame[1:3], "big") == number
        assert re.sub(r"[^a-z]+", "-", request.lower()).strip("-")
    assert textwrap.shorten("many words " * 30, 60).endswith("[...]")


def documents() -> None:
    """Read and write what the broker keeps and shows."""
    document = {
        "queues": [
            {
                "name": f"q{i}",
                "durable": bool(i % 2),
                "arguments": {"x-max-length": i},
                "rate": i / 3,
            }
            for i in range(100)
        ],
        "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC).isoformat(),
        "text": 'ø\n"quoted"',
    }
    assert json.loads(json.dumps(document, sort_keys=True)) == document
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_string("[main]\nlog_level = info\n; comment\n[amqp]\nbind = ::\nport = 5672\n")
    assert settings.getint("amqp", "port") == 5672
    secret = hashlib.sha256(json.dumps(document).encode()).digest()
    assert hmac.compare_digest(base64.b64decode(base64.b64encode(secret)), secret)


class Refused(Exception):
    """An error with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


def errors() -> None:
    """Raise and catch, through frames and clean-up."""

    def deep(level: int) -> int:
        if level == 0:
            raise Refused(403)
        try:
            return deep(level - 1) + 1
        finally:
            seen.append(level)

    for _ in range(60):
        seen: list[int] = []
        try:
            deep(5)
        except (Refused, KeyError) as error:
            assert error.code == 403 if isinstance(error, Refused) else False
        assert len(seen) == 5
        assert getattr(seen, "missing", None) is None


async def talk() -> None:
    """Answer clients on sockets, with tasks, queues, timeouts and locks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for i in range(25):
            async with asyncio.timeout(60):
                writer.write(b"message %d of %d\n" % (i, number))
                await waiting.put(await reader.readline())
            async with lock:
                assert (await waiting.get()).startswith(b"MESSAGE")
        writer.close()
        await writer.wait_closed()

    lock, waiting = asyncio.Lock(), asyncio.Queue[bytes](4)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    async with server, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(number))


def main() -> None:
    """Do all of it several times."""
    for _ in range(ROUNDS):
        objects()
        containers()
        text()
        documents()
        errors()
    for _ in range(ROUNDS // 10):
        asyncio.run(talk())


if __name__ == "__main__":
    main()
