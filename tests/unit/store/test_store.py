"""The store against a small model of a queue, over many segments, restarts and damaged files."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Got, publish, settle
from tests.unit.store.conftest import MakeBench

NAME = "q"


class Model:
    """A queue as a client understands it: ready messages in order, unacked ones by tag."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, bytes, bool]] = []
        self.unacked: dict[int, tuple[int, bytes]] = {}
        self.delivered: set[int] = set()
        self.next_id = 0

    def publish(self, body: bytes) -> None:
        self.ready.append((self.next_id, body, False))
        self.next_id += 1

    def requeue(self, tag: int) -> None:
        position, body = self.unacked.pop(tag)
        self.delivered.add(position)
        self.ready.append((position, body, True))
        # Requeued ones come first, each group in the order of publishing.
        self.ready.sort(key=lambda item: (not item[2], item[0]))

    def restart(self) -> None:
        held = [(position, body) for position, body in self.unacked.values()]
        self.delivered.update(position for position, _ in held)
        ready = [(position, body) for position, body, _ in self.ready]
        self.ready = [(position, body, False) for position, body in sorted(held + ready)]
        self.unacked.clear()


def body_of(random_: random.Random, number: int) -> bytes:
    size = random_.choice((0, 1, 16, 16, 16, 200, 1500, 5000, 300_000))
    return struct.pack(">I", number) + bytes(
        random_.randrange(256) for _ in range(min(size, 64))
    ) * (size // 64 + 1)


def get_one(bench: Bench, queue: _core.Queue, no_ack: bool) -> Got | None:
    if not bench.link.get(1, queue, no_ack):
        return None
    bench.link.flush()
    (got,) = bench.receive()
    return got


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("durable", [True, False])
def test_random_operations_agree_with_the_model(
    tmp_path: Path, make_bench: MakeBench, seed: int, durable: bool
) -> None:
    """edge-cases.md 329, 343"""
    random_ = random.Random(seed)
    bench, model = make_bench(tmp_path), Model()
    queue = bench.queue(NAME, durable=durable)
    for _ in range(1500):
        choice = random_.random()
        if choice < 0.40:
            body = body_of(random_, model.next_id)
            bench.send(publish(NAME.encode(), body))
            model.publish(body)
        elif choice < 0.75:
            no_ack = random_.random() < 0.3
            got = get_one(bench, queue, no_ack)
            assert (got is None) == (not model.ready)
            if got is not None:
                position, body, _ = model.ready.pop(0)
                assert (got.body, got.redelivered) == (body, position in model.delivered)
                if not no_ack:
                    model.unacked[got.tag] = (position, body)
        elif choice < 0.93 and model.unacked:
            settle_some(bench, model, random_)
        elif choice < 0.94:
            assert queue.purge() == len(model.ready)
            model.ready.clear()
        elif choice < 0.97:
            bench.run()
        elif durable and choice < 0.98:
            bench.run()
            bench.link.close_channel(1, False)
            bench.exchange.unbind(NAME.encode(), b"", queue)
            queue.close()
            queue = bench.queue(NAME)
            bench.link.open_channel(1, 0)
            model.restart()
        assert queue.ready == len(model.ready)
        assert queue.unacked == len(model.unacked)
    assert not bench.failures
    assert not bench.session.events


def settle_some(bench: Bench, model: Model, random_: random.Random) -> None:
    tag = random_.choice(list(model.unacked))
    multiple, requeue = random_.random() < 0.2, random_.random() < 0.5
    ack = random_.random() < 0.5
    bench.send(settle(80, tag, multiple) if ack else settle(120, tag, multiple | requeue << 1))
    settled = sorted(t for t in model.unacked if t == tag or (multiple and t <= tag))
    for each in settled:
        if ack or not requeue:
            del model.unacked[each]
        else:
            model.requeue(each)


def test_an_emptied_queue_leaves_no_message_behind(tmp_path: Path, make_bench: MakeBench) -> None:
    """edge-cases.md 321"""
    bench = make_bench(tmp_path)
    queue = bench.queue(NAME)
    for number in range(2000):
        bench.send(publish(NAME.encode(), b"%d" % number))
        if number % 7 == 0:
            bench.run()
    while get_one(bench, queue, True) is not None:
        pass
    bench.run()
    queue.close()

    again = bench.queue(NAME)

    assert again.ready == 0
    assert len(list((tmp_path / NAME).glob("msgs.*"))) <= 1


def test_messages_consumed_in_the_same_tick_never_touch_the_disk(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    bench = make_bench(tmp_path)
    queue = bench.queue(NAME)
    consumer = bench.link.add_consumer(1, queue, b"c", True)
    consumer.start()

    for _ in range(50):
        bench.send(publish(NAME.encode(), b"x" * 100) * 20)
        bench.run()

    assert len(bench.receive()) == 1000
    assert not (tmp_path / NAME).exists()


def test_one_old_delivery_does_not_hold_the_memory_of_all_later_ones(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    bench = make_bench(tmp_path)
    queue = bench.queue(NAME, segment_size=1 << 20)
    bench.send(publish(NAME.encode(), b"first"))
    first = get_one(bench, queue, False)
    for number in range(5000):
        bench.send(publish(NAME.encode(), b"%d" % number))
        later = get_one(bench, queue, False)
        assert later is not None
        bench.send(settle(80, later.tag, 0))

    assert bench.link.unacked(1) == 1
    assert first is not None
    bench.send(settle(120, first.tag, 2))
    again = get_one(bench, queue, True)
    assert again is not None
    assert (again.body, again.redelivered) == (b"first", True)


def test_acks_in_any_order_settle_exactly_their_own_delivery(
    tmp_path: Path, make_bench: MakeBench
) -> None:
    random_ = random.Random(7)
    bench = make_bench(tmp_path)
    queue = bench.queue(NAME, segment_size=1 << 20)
    bench.send(publish(NAME.encode(), b"x") * 6000)
    tags = []
    for _ in range(6000):
        got = get_one(bench, queue, False)
        assert got is not None
        tags.append(got.tag)
    random_.shuffle(tags)

    for count, tag in enumerate(tags, 1):
        bench.send(settle(80, tag, 0))
        assert queue.unacked == 6000 - count
    assert not bench.session.events


def written(tmp_path: Path, make_bench: MakeBench, count: int = 300) -> Path:
    """A directory with several segments, acks and metas."""
    bench = make_bench(tmp_path)
    queue = bench.queue(NAME)
    for number in range(count):
        bench.send(publish(NAME.encode(), b"%d" % number * 10, b"\x10\0\x02"))
    bench.run()
    for number in range(count // 2):
        got = get_one(bench, queue, False)
        assert got is not None
        if number % 3 == 0:
            bench.send(settle(80, got.tag, 0))
    bench.run()
    bench.link.close_channel(1, False)
    queue.close()
    return tmp_path / NAME


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_lose_messages_but_never_the_broker(
    tmp_path: Path, make_bench: MakeBench, seed: int
) -> None:
    random_ = random.Random(seed)
    (tmp_path / "good").mkdir()
    good = written(tmp_path / "good", make_bench)
    for round_ in range(8):
        directory = tmp_path / f"round{round_}"
        directory.mkdir()
        shutil.copytree(good, directory / NAME)
        for _ in range(random_.randrange(1, 4)):
            damage(random_, random_.choice(sorted((directory / NAME).iterdir())))
        bench = make_bench(directory)
        queue = _core.Queue(bench.loop, str(directory / NAME), 4096, True)
        try:
            queue.load()
        except ValueError as error:
            assert "schema version" in str(error)
            continue
        bench.exchange.bind(NAME.encode(), b"", queue)
        bodies = []
        while (got := get_one(bench, queue, True)) is not None:
            bodies.append(got.body)
            bench.run()
        assert queue.ready == 0
        bench.send(publish(NAME.encode(), b"after the damage"))
        got = get_one(bench, queue, False)
        assert got is not None
        assert got.body == b"after the damage"
        assert len(bodies) <= 400
        bench.run()
        assert not bench.failures


def damage(random_: random.Random, path: Path) -> None:
    """Cut, extend, zero or change bytes of a file."""
    data = bytearray(path.read_bytes())
    kind = random_.randrange(5)
    at = random_.randrange(len(data) + 1)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data += bytes(random_.randrange(5000))
    elif kind == 2:
        data[at : at + 50] = bytes(len(data[at : at + 50]))
    elif kind == 3:
        for _ in range(random_.randrange(1, 20)):
            if data:
                data[random_.randrange(len(data))] = random_.randrange(256)
    else:
        data += random_.randbytes(random_.randrange(200))
    path.write_bytes(data)


def test_none_for_a_queue_is_a_type_error(tmp_path: Path, make_bench: MakeBench) -> None:
    bench = make_bench(tmp_path)

    with pytest.raises(TypeError):
        bench.exchange.bind(b"key", b"", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bench.link.get(1, None, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bench.link.write(None)  # type: ignore[arg-type]
