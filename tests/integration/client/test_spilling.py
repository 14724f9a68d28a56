"""Messages in a file: each ends once, in order, whatever becomes of the program and of the disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import (
    BufferFullError,
    Client,
    ClosedError,
    DroppedError,
    DropReason,
    Message,
    Receipt,
    SpilledError,
)
from lavinmq.client import spill as spills
from tests.support.broker import Broker
from tests.support.fault_proxy import FaultProxy
from tests.support.waiting import wait_for

ACK = b"\x00\x3c\x00\x50"
NOBODY = "amqp://127.0.0.1:1/"
OPTIONS: dict[str, Any] = {"buffer_policy": "spill", "confirm_timeout": None}
KILLS = 3
DEADLINE_S = 120.0


@pytest.fixture
def deaf(proxy: FaultProxy) -> FaultProxy:
    """A way to the broker on which no confirms come back."""
    proxy.judge = lambda frame: [] if frame[2][:4] == ACK else [frame]
    return proxy


class Disk:
    """Fails what the file of a producer asks for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails: set[str] = set()
        for name in ("pwrite", "open"):
            patch.setattr(os, name, self._guarded(name, getattr(os, name)))

    def _guarded(self, name: str, call: Any) -> Any:
        def guarded(*values: Any, **named: Any) -> Any:
            if name in self.fails and sys._getframe(1).f_code.co_filename == spills.__file__:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*values, **named)

        return guarded


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        yield Disk(patch)


def told(ends: list[int], number: int, _: Receipt) -> None:
    """A receipt has ended."""
    ends.append(number)


def received(client: Client, queue: str) -> list[int]:
    """What is in a queue, in order."""
    found: list[int] = []
    while (message := client.get(queue)) is not None:
        found.append(int(message.body))
    return found


def end_of(receipt: Receipt) -> str:
    """How a message has ended; by its error, if that says it better."""
    try:
        return receipt.result(10)
    except (DroppedError, SpilledError) as error:
        return f"{receipt.status} {getattr(error, 'reason', '')}".strip()


def test_a_batch_and_who_threw_his_receipt_away_hear_of_what_was_in_the_file(
    deaf: FaultProxy, queue: str, tmp_path: Path
) -> None:
    told: list[str] = []
    with Client(deaf.url, spill_directory=str(tmp_path), **OPTIONS) as client:
        producer = client.producer(queue, buffer_size=2)
        batch = producer.publish_batch([b"%d" % n for n in range(8)])
        for n in range(8, 12):
            producer.publish(b"%d" % n).add_done_callback(lambda done: told.append(done.status))
        assert client.metrics().published == 12
        deaf.judge = lambda frame: [frame]
        deaf.cut()

        assert batch.result(20) == "confirmed" and batch.size == 8
        wait_for(lambda: told == ["confirmed"] * 4, "all are told of")
        producer.flush(10)
        assert producer.count_of("confirmed") == client.metrics().published == 12
        assert list(dict.fromkeys(received(client, queue))) == list(range(12))


def test_at_close_what_a_file_has_is_left_to_the_next_program_and_said(
    deaf: FaultProxy, broker: Broker, queue: str, tmp_path: Path
) -> None:
    """None hangs, none is told of twice, and what was in the file goes on, in order."""
    dropped: list[tuple[int, DropReason]] = []
    client = Client(deaf.url, spill_directory=str(tmp_path), close_timeout=0.2, **OPTIONS)
    producer = client.producer(queue, buffer_size=3, max_in_flight=2)
    producer.on_drop(lambda message, reason: dropped.append((int(message.body), reason)))
    receipts = [producer.publish(b"%d" % n) for n in range(10)]
    batch = producer.publish_batch([b"%d" % n for n in range(10, 12)])
    client.close()

    ends = [end_of(each) for each in receipts]
    assert ends == ["dropped DropReason.CLOSED"] * 3 + ["spilled"] * 7
    assert dropped == [(n, DropReason.CLOSED) for n in range(3)]
    with pytest.raises(SpilledError, match="in the file"):
        batch.result(10)
    with Client(broker.uri, spill_directory=str(tmp_path), **OPTIONS) as client:
        producer = client.producer(queue, buffer_size=3)
        producer.flush(20)
        assert producer.buffer_size == 0
        assert received(client, queue)[-9:] == list(range(3, 12))


def test_what_came_out_of_the_file_and_is_not_confirmed_stays_in_it(
    deaf: FaultProxy, broker: Broker, queue: str, tmp_path: Path
) -> None:
    place = {"spill_directory": str(tmp_path), **OPTIONS}
    with Client(NOBODY, fail_fast=False, close_timeout=0.1, **place) as client:
        producer = client.producer(queue, buffer_size=2)
        for n in range(6):
            producer.publish(b"%d" % n)
    dropped: list[Message] = []
    with Client(deaf.url, close_timeout=0.2, **place) as client:
        producer = client.producer(queue, buffer_size=2)
        producer.on_drop(lambda message, _: dropped.append(message))
        wait_for(lambda: producer.in_flight == 2, "two are on their way")
    with Client(broker.uri, **place) as client:
        producer = client.producer(queue, buffer_size=2)
        producer.flush(20)

        assert not dropped and producer.count_of("confirmed") == 4
        assert received(client, queue)[-4:] == [2, 3, 4, 5]


def test_a_disk_without_room_refuses_by_name_and_mixes_nothing_up(
    deaf: FaultProxy, queue: str, tmp_path: Path, disk: Disk
) -> None:
    with Client(deaf.url, spill_directory=str(tmp_path), **OPTIONS) as client:
        producer = client.producer(queue, buffer_size=2)
        receipts = {n: producer.publish(b"%d" % n) for n in range(4)}
        disk.fails = {"pwrite"}
        for n in (4, 5):
            with pytest.raises(BufferFullError, match="No space left on device"):
                producer.publish(b"%d" % n)
        disk.fails = set()
        receipts |= {n: producer.publish(b"%d" % n) for n in (6, 7)}
        confirmed: list[int] = []
        producer.on_confirm(lambda message: confirmed.append(int(message.body)))
        ends: list[int] = []
        for number, receipt in receipts.items():
            receipt.add_done_callback(partial(told, ends, number))
        deaf.judge = lambda frame: [frame]
        deaf.cut()
        producer.flush(20)

        wait_for(lambda: len(confirmed) == 6, "all are told of")
        assert confirmed == ends == [0, 1, 2, 3, 6, 7]


def test_a_full_disk_stops_nobody_whose_messages_need_no_file(
    proxy: FaultProxy, queue: str, tmp_path: Path, disk: Disk
) -> None:
    proxy.judge = lambda frame: [] if frame[2][:4] == ACK else [frame]
    with Client(proxy.url, spill_directory=str(tmp_path), **OPTIONS) as client:
        producer = client.producer(queue, buffer_size=2)
        disk.fails = {"pwrite"}
        for n in range(2):
            producer.publish(b"%d" % n)
        with pytest.raises(BufferFullError, match="No space"):
            producer.publish(b"2")
        proxy.judge = lambda frame: [frame]
        proxy.cut()
        producer.flush(20)

        assert [producer.publish(b"%d" % n).result(10) for n in (3, 4)] == ["confirmed"] * 2


def test_a_disk_that_fails_while_it_is_emptied_is_told_once_and_tried_again(
    deaf: FaultProxy, queue: str, tmp_path: Path, disk: Disk
) -> None:
    """What is done cannot be noted, what waits cannot be read: it goes on when the disk does."""
    errors: list[Exception] = []
    with Client(deaf.url, spill_directory=str(tmp_path), health_interval=0.1, **OPTIONS) as client:
        client.on_error(errors.append)
        producer = client.producer(queue, buffer_size=2)
        for n in range(6):
            producer.publish(b"%d" % n)
        [segment] = tmp_path.glob("*/*.spill")
        away = segment.rename(tmp_path / "away")
        disk.fails = {"pwrite"}
        deaf.judge = lambda frame: [frame]
        deaf.cut()
        wait_for(lambda: producer.count_of("confirmed") >= 2 and bool(errors), "it is told")
        time.sleep(0.5)
        assert [type(each) for each in errors] == [FileNotFoundError]
        away.rename(segment)
        wait_for(lambda: producer.count_of("confirmed") == 6, "it goes on")
        disk.fails = set()
        producer.flush(20)

        assert list(dict.fromkeys(received(client, queue))) == list(range(6))


def test_a_damaged_file_is_told_of_and_the_rest_is_sent(
    broker: Broker, queue: str, tmp_path: Path
) -> None:
    place = {"spill_directory": str(tmp_path), **OPTIONS}
    with Client(NOBODY, fail_fast=False, close_timeout=0.1, **place) as client:
        producer = client.producer(queue, buffer_size=1)
        for n in range(4):
            producer.publish(b"%d" % n)
    [segment] = tmp_path.glob("*/*.spill")
    raw = segment.read_bytes()
    segment.write_bytes(raw[:-1] + b"?")
    errors: list[Exception] = []
    with Client(broker.uri, **place) as client:
        client.on_error(errors.append)
        client.producer(queue).flush(20)

        assert received(client, queue) == [1, 2]
        wait_for(lambda: ".damaged" in str(errors), "it is told")


def test_publishing_beside_a_close_ends_by_name(tmp_path: Path) -> None:
    client = Client(NOBODY, fail_fast=False, spill_directory=str(tmp_path), close_timeout=0.05)
    producer = client.producer("q", buffer_policy="spill", buffer_size=1)
    receipts = [producer.publish(b"x")]
    errors: list[Exception] = []

    def publish() -> None:
        try:
            while True:
                receipts.append(producer.publish(b"x"))
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    client.close()
    for thread in threads:
        thread.join(10)

    assert [type(each) for each in errors] == [ClosedError] * 3
    assert {end_of(each) for each in receipts} == {"dropped DropReason.CLOSED", "spilled"}


def test_a_child_that_lives_longer_does_not_keep_the_file(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
from lavinmq.client import Client
client = Client({NOBODY!r}, fail_fast=False, spill_directory={str(tmp_path)!r})
producer = client.producer("q", buffer_policy="spill", buffer_size=1)
for n in range(3):
    producer.publish(b"%d" % n)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        left = spills.Spill(next(tmp_path.iterdir()), 1 << 20)
        assert left.count == 2
        left.close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


PROGRAM = """
import os, sys
from lavinmq.client import Client
url, queue, place, first, count = sys.argv[1:]
client = Client(url, spill_directory=place, deduplicate=True, confirm_timeout=1.0,
                reconnect_initial_delay=0.02, health_interval=0.1)
producer = client.producer(queue, buffer_policy="spill", buffer_size=4, max_in_flight=4)
print("ready", flush=True)
for n in range(int(first), int(first) + int(count)):
    receipt = producer.publish(b"%d" % n)
    os.write(1, b"%d %d\\n" % (n, receipt.seq > 1 << 63))
producer.flush(60)
client.close()
print("end", flush=True)
"""


def test_programs_that_are_killed_lose_nothing_that_a_file_had(
    proxy: FaultProxy, broker: Broker, queue: str, tmp_path: Path
) -> None:
    """One after the other dies at any moment, on a network that is cut; the last one lives. By the
    broker's deduplication each message is there once; those that were in memory alone may go."""
    chance = random.Random(18)
    deduplicating = {"x-message-deduplication": True}
    accepted: list[int] = []
    in_file: list[int] = []
    with Client(broker.uri) as client:
        client.queue(queue, arguments=deduplicating)
        for turn in range(KILLS + 1):
            is_last = turn == KILLS
            # One more may have been accepted, and not be printed any more.
            first = accepted[-1] + 2 if accepted else 0
            argv = [proxy.url, queue, str(tmp_path), str(first), "40" if is_last else "100000"]
            program = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *argv], stdout=subprocess.PIPE, text=True
            )
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            for seen, line in enumerate(program.stdout):
                if line == "end\n":
                    break
                number, is_in_file = map(int, line.split())
                accepted.append(number)
                if is_in_file:
                    in_file.append(number)
                if seen % 50 == 25:
                    proxy.cut()
                if not is_last and seen > 30 and chance.random() < 0.02:
                    program.kill()
                    # What was printed before the kill was accepted, too.
                    for rest in program.stdout:
                        accepted.append(int(rest.split()[0]))
                        in_file += [accepted[-1]] * int(rest.split()[1])
                    break
            program.stdout.close()
            assert program.wait(60) == (0 if is_last else -signal.SIGKILL)
        found = received(client, queue)

    assert len(in_file) > 50, "most went by the file"
    assert sorted(found) == found and len(set(found)) == len(found)
    assert set(in_file) <= set(found)


def test_one_in_the_file_that_the_broker_does_not_take_is_dropped_alone(
    broker: Broker, queue: str, tmp_path: Path
) -> None:
    """Though the program that put it there has gone."""
    place = {"spill_directory": str(tmp_path), **OPTIONS}
    with Client(NOBODY, fail_fast=False, close_timeout=0.1, **place) as client:
        producer = client.producer(queue, buffer_size=1)
        for n in range(7):
            producer.publish(b"%d" % n, **({"user_id": "somebody else"} if n == 4 else {}))
    dropped: list[tuple[bytes, DropReason]] = []
    with Client(broker.uri, **place) as client:
        producer = client.producer(queue, buffer_size=2)
        producer.on_drop(lambda message, reason: dropped.append((message.body, reason)))
        producer.publish(b"7")
        producer.flush(20)

        wait_for(lambda: bool(dropped), "it is told")
        assert dropped == [(b"4", DropReason.FLUSH_RETRY_EXCEEDED)]
        assert list(dict.fromkeys(received(client, queue))) == [1, 2, 3, 5, 6, 7]
    with Client(broker.uri, **place) as client:
        assert client.producer(queue).buffer_size == 0, "nothing comes again"
