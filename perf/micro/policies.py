"""One policy comes to 10 000 queues, then a hundred more: how long, and for how long at once.

Starts a broker in this process, declares queues, and changes policies as management will. Prints
the time until everything follows, and the longest time in which the event loop did nothing else.
Run: .venv/bin/python perf/micro/policies.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import lavinmq
import lavinmq.fieldtable
from lavinmq.policy.policies import Policy
from lavinmq.server import Server

QUEUES = 10_000
LOOK_S = 0.0005


class Stalls:
    """Calls itself all the time, and remembers the longest pause between two calls."""

    def __init__(self, server: Server) -> None:
        self.longest_s = 0.0
        self._server = server
        self._last_s = time.perf_counter()
        server.events.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        now_s = time.perf_counter()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self._server.events.call_later(LOOK_S, self._look)


def call(server: Server, function: Callable[[], None]) -> None:
    """Carry out a function on the loop, and wait for it."""
    done = threading.Event()

    def run() -> None:
        function()
        done.set()

    server.events.call_soon_threadsafe(run)
    done.wait()


def change(server: Server, title: str, policies: list[Policy]) -> None:
    """Put policies, wait until all queues follow, and print how it went."""
    rules, done, stalls = server.broker.vhosts["/"].rules, threading.Event(), Stalls(server)
    time.sleep(0.05)
    stalls.longest_s = 0.0
    began_s = time.perf_counter()

    def put() -> None:
        rules.put_policy(*policies)
        rules.when_applied(done.set)

    call(server, put)
    done.wait()
    took_s = time.perf_counter() - began_s
    print(f"{title}: {took_s:.2f} s, the loop was busy for {stalls.longest_s * 1e3:.1f} ms at most")


def main() -> None:
    """Measure one policy for all queues, then one for each."""
    with lavinmq.run() as broker:
        server: Server = broker._server
        vhost = server.broker.vhosts["/"]

        def declare() -> None:
            for number in range(QUEUES):
                vhost._add_queue(f"q{number}", False, False, None, lavinmq.fieldtable.EMPTY)

        call(server, declare)
        one = Policy.of("all", "^q", {"max-length": 1000, "message-ttl": 60_000})
        change(server, f"one policy, {QUEUES} queues", [one])
        many = [
            Policy.of(f"p{number}", f"^q{number}$", {"max-length": number + 1}, 1)
            for number in range(QUEUES // 100)
        ]
        change(server, f"{len(many)} policies more, {QUEUES} queues", many)


if __name__ == "__main__":
    main()
