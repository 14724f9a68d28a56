"""Changes the stores of MQTT in one directory, and tells when a change is said to be on disk.

A program for tests that log its calls. Arguments: the directory, a seed, the rounds, and how many
sessions and topics there are beside those that change: they fill several files. A line of JSON on
standard output for each change, and with the monotonic time one for each round that is safe, and
where it cleans and has cleaned.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from lavinmq import _core

FILE_SIZE = 3000
TOPICS = [b"a", b"a/b", b"b", b"c/d/e"]
CLIENTS = [b"one", b"two"]
STAYS = "s" * 1200
CHANGES = _core.SESSION_CHANGES


def tell(**what: Any) -> None:
    """Write a line."""
    print(json.dumps(what), flush=True)


class Program:
    """One life of both stores."""

    def __init__(self, directory: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = _core.Loop(
            asyncio.get_running_loop(), directory, True, lambda *_why: None, lambda: None
        )
        self.retained = _core.RetainedStore(self.loop, directory, FILE_SIZE)
        self.log = _core.SessionLog(self.loop, directory, FILE_SIZE)
        self.retained.load()
        self.log.load()
        self.count = 0

    def fill(self, count: int) -> None:
        """Have so much that stays as it is, of which each takes half of a file."""
        for number in range(count):
            topic, name = b"stays/%d" % number, b"stays %d" % number
            self.retained.put(topic, STAYS.encode(), 1, b"", 1)
            self.note("topic", topic.decode(), value=STAYS)
            self.log.make(name)
            self.note("session", name.decode(), value=1)
            self.log.set_fact(name, b"made", b"1")
            self.log.set_fact(name, b"will", STAYS.encode())
            self.note("fact", name.decode(), value=STAYS)

    def note(self, *item: Any, value: Any) -> None:
        """A change of one thing that has a value."""
        tell(item=item, value=value)

    def change(self) -> None:
        """Make any change."""
        self.count += 1
        topic = self.chance.choice(TOPICS)
        client = self.chance.choice(CLIENTS)
        kind = self.chance.randrange(10)
        if kind < 3:
            payload = b"%d" % self.count + bytes(self.chance.choice((0, 10, 700)))
            self.retained.put(topic, payload, 1, b"", 1)
            self.note("topic", topic.decode(), value=payload.decode())
        elif kind == 3:
            self.retained.remove(topic)
            self.note("topic", topic.decode(), value=None)
        elif client not in self.log or kind == 4:
            if client in self.log and self.chance.random() < 0.5:
                self.log.end(client)
                self.note("session", client.decode(), value=None)
            else:
                self.log.make(client)
                self.note("session", client.decode(), value=self.count)
                self.log.set_fact(client, b"made", b"%d" % self.count)
        elif kind < 7:
            self.log.set_fact(client, b"will", b"%d" % self.count)
            self.note("fact", client.decode(), value=str(self.count))
        else:
            self.packet(client)

    def packet(self, client: bytes) -> None:
        """An id of a session changes."""
        id = self.chance.randrange(1, 4)
        name = self.chance.choice(["RECEIVED", "RELEASED"])
        self.log.note(client, CHANGES[name], id)
        self.note("received", client.decode(), id, value=name == "RECEIVED")

    async def run(self, rounds: int, count: int) -> None:
        """Change, and wait for the disk."""
        self.fill(count)
        for number in range(rounds):
            for _ in range(self.chance.randrange(1, 5)):
                self.change()
            is_cleaning = number % 7 == 6
            if is_cleaning:
                tell(cleaning=True, at_ns=time.monotonic_ns())
                await self.clean()
            done = asyncio.Event()
            # Both are synced with the same batch: the store has asked for it by itself.
            self.log.synced(done.set)
            await done.wait()
            tell(safe=number, at_ns=time.monotonic_ns())
            if is_cleaning:
                tell(cleaning=False, at_ns=time.monotonic_ns())
        self.retained.close()
        self.log.close()

    async def clean(self) -> None:
        """Both, while nobody waits for it."""
        while self.retained.clean_some():
            await asyncio.sleep(0)
        while self.log.compact_some():
            await asyncio.sleep(0)


async def main() -> None:
    """Run it."""
    await Program(sys.argv[1], int(sys.argv[2])).run(int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    asyncio.run(main())
