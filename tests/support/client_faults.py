"""Faults on the way of a client, and the checker of what it promised through them.

The same for each broker: tests choose a broker, a mode, and which faults. Between each two faults
all is well until messages have passed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lavinmq.client import Client, Message, Producer, Receipt
from tests.support.client_frames import method
from tests.support.fault_proxy import FaultProxy, Frame
from tests.support.waiting import wait_for

OPTIONS: dict[str, Any] = {
    "reconnect_initial_delay": 0.02,
    "reconnect_max_delay": 0.2,
    "health_interval": 0.1,
    "confirm_timeout": 1.0,
    "rpc_timeout": 2.0,
    "connect_timeout": 2.0,
    "close_timeout": 30.0,
}
WAIT_S = 60.0
BEFORE, MEANWHILE, AFTER = 40, 40, 20
CONFIRM = b"\x00\x3c\x00\x50"


class Run:
    """A client with a producer and a consumer of one queue, behind a proxy; and the books."""

    def __init__(self, proxy: FaultProxy, client: Client, queue: str, mode: str) -> None:
        self.proxy, self.client, self.queue, self.mode = proxy, client, queue, mode
        self.receipts: list[Receipt] = []
        self.outcomes: list[str] = []
        self.came: list[int] = []
        """First deliveries, in order."""
        self.twice: list[int] = []
        """Further ones, which were not marked as redelivered."""
        self.producer: Producer = client.producer(queue, mode, max_in_flight=25)
        self.producer.on_confirm(lambda message: self.outcomes.append(message.text()))
        self.producer.on_drop(lambda message, reason: self.outcomes.append(f"dropped {reason}"))
        self.consumer = client.consumer(queue, prefetch=50)
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()

    def _consume(self) -> None:
        seen: set[int] = set()
        for message in self.consumer:
            self._note(message, seen)
            message.ack()

    def _note(self, message: Message, seen: set[int]) -> None:
        number = int(message.body)
        if number not in seen:
            seen.add(number)
            self.came.append(number)
        elif not message.redelivered:
            self.twice.append(number)

    def publish(self, count: int) -> None:
        """Give numbers to the producer."""
        for _ in range(count):
            self.receipts.append(self.producer.publish(b"%d" % len(self.receipts)))

    def settled(self) -> bool:
        """Whether what was published last has come."""
        return bool(self.came) and max(self.came) == len(self.receipts) - 1

    def through(self, fault: Callable[[Run], None]) -> None:
        """Publish before, during and after a fault."""
        self.publish(BEFORE)
        fault(self)
        self.heal()
        wait_for(lambda: self.client.connected, "it is connected again", WAIT_S)
        self.publish(AFTER)
        self.producer.flush(WAIT_S)
        if self.mode == "confirm":
            wait_for(self.settled, f"all come after {fault.__name__}", WAIT_S)
            return
        # What was sent last may have gone into a connection that ended.
        end = time.monotonic() + WAIT_S
        while not self.settled():
            assert time.monotonic() < end, f"nothing comes after {fault.__name__}"
            self.publish(1)
            self.producer.flush(WAIT_S)
            time.sleep(0.05)

    def heal(self) -> None:
        """Let the network be well."""
        self.proxy.judge = lambda frame: [frame]
        self.proxy.bytes_left = None
        self.proxy.is_refusing = False
        self.proxy.flow()

    def close(self) -> None:
        """Look at the books. Raises: AssertionError."""
        self.consumer.close()
        self._thread.join(10)
        numbers = list(range(len(self.receipts)))
        if self.mode != "confirm":
            assert {each.status for each in self.receipts} == {"sent"} and not self.outcomes
            assert not self.twice, "none is sent twice"
            assert set(self.came) <= set(numbers)
            return
        assert {each.status for each in self.receipts} == {"confirmed"}
        wait_for(lambda: len(self.outcomes) >= len(numbers), "all are told of")
        assert self.outcomes == [str(number) for number in numbers], "each once, in order"
        assert self.came == numbers, "all, in order"


def attempted(run: Run) -> None:
    """Wait until it has tried to connect some times."""
    before = run.client.metrics().reconnect_attempts
    run.publish(MEANWHILE)
    wait_for(lambda: run.client.metrics().reconnect_attempts >= before + 2, "tries", WAIT_S)


def connected_anew(run: Run, do: Callable[[], object]) -> None:
    """Do something that ends the connection, and wait for the next one."""
    before = run.client.metrics().connects
    do()
    run.publish(MEANWHILE)
    wait_for(lambda: run.client.metrics().connects > before, "connected anew", WAIT_S)


def refuse(run: Run) -> None:
    """Nobody listens for a while."""
    run.proxy.is_refusing = True
    run.proxy.cut()
    attempted(run)


def reset(run: Run) -> None:
    """The connection is reset."""
    connected_anew(run, run.proxy.cut)


def stall(run: Run) -> None:
    """Nothing passes, either way."""
    run.proxy.stall("up", "down")
    _wait_until_left(run)


def stall_up(run: Run) -> None:
    """Nothing reaches the broker."""
    run.proxy.stall("up")
    _wait_until_left(run)


def stall_down(run: Run) -> None:
    """Nothing comes from the broker."""
    run.proxy.stall("down")
    _wait_until_left(run)


def _wait_until_left(run: Run) -> None:
    run.publish(MEANWHILE)
    if run.mode == "confirm":
        wait_for(lambda: not run.client.connected, "the silence is found out", WAIT_S)
    run.proxy.cut()
    run.proxy.flow()


def cut_in_a_frame(run: Run) -> None:
    """The connection is reset within a frame of the broker."""
    connected_anew(run, lambda: run.proxy.cut_within(37))


def delay_confirms(run: Run) -> None:
    """Confirms come late, and at once."""
    held: list[Frame] = []

    def late(frame: Frame) -> list[Frame]:
        if frame[0] == 1 and frame[2][:4] == CONFIRM and len(held) < 3:
            held.append(frame)
            return []
        return [*held[:], frame] if not held else [held.pop(0), frame]

    run.proxy.judge = late
    run.publish(MEANWHILE)
    time.sleep(0.2)


def drop_confirms(run: Run) -> None:
    """Confirms get lost: the connection is left, and all is sent again."""
    before = run.client.metrics().poll_detected
    run.proxy.judge = lambda frame: [] if frame[2][:4] == CONFIRM else [frame]
    run.publish(MEANWHILE)
    if run.mode == "confirm":
        wait_for(lambda: run.client.metrics().poll_detected > before, "found out", WAIT_S)


def close_channel(run: Run) -> None:
    """The broker closes the producer's channel."""
    number = run.producer.channel
    run.proxy.say(method(number, "channel.close", 541, "INTERNAL_ERROR", 0, 0))
    run.publish(MEANWHILE)
    wait_for(lambda: run.producer.channel != 0, "opened anew", WAIT_S)


def cancel_consumer(run: Run) -> None:
    """The broker ends the consumer."""
    before = run.consumer.tracker.incarnation
    chan = run.consumer.tracker.channel
    run.proxy.say(method(chan, "basic.cancel", run.consumer.tag, True))
    run.publish(MEANWHILE)
    wait_for(lambda: run.consumer.tracker.incarnation > before, "noticed", WAIT_S)


def block(run: Run) -> None:
    """The broker takes no messages for a while."""
    run.proxy.say(method(0, "connection.blocked", "low on disk"))
    wait_for(lambda: run.client.blocked, "blocked", WAIT_S)
    run.publish(MEANWHILE // 2)
    run.proxy.say(method(0, "connection.unblocked"))
    wait_for(lambda: not run.client.blocked, "unblocked", WAIT_S)
    run.publish(MEANWHILE // 2)


FAULTS: tuple[Callable[[Run], None], ...] = (
    refuse, reset, stall, stall_up, stall_down, cut_in_a_frame, delay_confirms, drop_confirms,
    close_channel, cancel_consumer, block,
)  # fmt: skip


def check(host: str, port: int, vhost: str, queue: str, mode: str, **options: Any) -> None:
    """All faults, one after the other, on one client. Raises: AssertionError."""
    with FaultProxy(host, port) as proxy:
        url = proxy.url.replace("%2F", vhost)
        with Client(url, **{**OPTIONS, **options}) as client:
            run = Run(proxy, client, queue, mode)
            for fault in FAULTS:
                run.through(fault)
            run.close()
