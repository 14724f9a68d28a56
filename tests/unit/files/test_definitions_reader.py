"""Definitions that somebody else writes: whoever has read them learns what has come, or that it
cannot be said."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import (
    BindingDef,
    Definitions,
    DefinitionsFile,
    ExchangeDef,
    News,
    QueueDef,
    Reader,
    read,
)

NAMES = "abc"
TABLES = FieldTable(), FieldTable({"x-max-length": 7})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "definitions.amqp"


@pytest.fixture
def writer(path: Path) -> Iterator[DefinitionsFile]:
    with closing(DefinitionsFile(path)) as file:
        file.load()
        yield file


@pytest.fixture
def reader(writer: DefinitionsFile, path: Path) -> Iterator[Reader]:
    writer.append_declare_queue(QueueDef("a"))
    with closing(Reader(path)) as made:
        yield made


class Sum:
    """What is there by the word of a reader."""

    def __init__(self, stored: Definitions) -> None:
        self.exchanges = {each.name: each for each in stored.exchanges}
        self.queues = {each.name: each for each in stored.queues}
        self.bindings = set(stored.bindings)

    def add(self, news: list[News]) -> None:
        for is_there, what in news:
            if isinstance(what, ExchangeDef):
                self.exchanges[what.name] = what
            elif isinstance(what, BindingDef):
                (self.bindings.add if is_there else self.bindings.discard)(what)
            elif is_there:
                self.queues[what.name] = what
            else:
                self.queues.pop(what.name, None)
                self.bindings -= {
                    each for each in self.bindings
                    if (each.destination_type, each.destination) == ("queue", what.name)
                }  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def change(writer: DefinitionsFile, chance: random.Random) -> None:
    """One thing that a broker records."""
    name, table = chance.choice(NAMES), chance.choice(TABLES)
    kind = chance.choice(("queue", "exchange"))
    binding = BindingDef(chance.choice(NAMES), name, kind, chance.choice(NAMES), table)  # type: ignore[arg-type]
    act = chance.randrange(20)
    if act < 6:
        writer.append_declare_queue(QueueDef(name, auto_delete=act < 2, arguments=table))
    elif act < 9:
        writer.append_delete_queue(name)
    elif act < 14:
        writer.append_bind(binding)
    elif act < 16:
        writer.append_unbind(binding)
    elif act < 18:
        writer.append_declare_exchange(ExchangeDef(name, "topic", arguments=table))
    elif act < 19:
        writer.append_delete_exchange(name)
    else:
        writer.compact(read(writer.path))


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_news_make_up_what_the_file_adds_up_to(chance: random.Random, n: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "definitions.amqp"
        with closing(DefinitionsFile(path)) as writer:
            writer.load()
            for _ in range(chance.randrange(8)):
                change(writer, chance)
            reader = Reader(path)
            known, n_anew = Sum(reader.stored), 0
            for _ in range(n):
                for _ in range(chance.randrange(4)):
                    change(writer, chance)
                news = reader.news()
                if news is None:
                    n_anew += 1
                    reader.close()
                    reader = Reader(path)
                    known = Sum(reader.stored)
                else:
                    known.add(news)
                assert known == Sum(read(path))
                assert reader.size == path.stat().st_size
                assert reader.deleted == writer.deleted
            reader.close()


def test_what_is_added_is_told_once(reader: Reader, writer: DefinitionsFile) -> None:
    assert reader.news() == []
    writer.append_declare_queue(QueueDef("b"))
    writer.append_delete_queue("a")
    assert reader.news() == [(True, QueueDef("b")), (False, QueueDef("a"))]
    assert reader.deleted == 1
    assert reader.news() == []


def test_half_of_a_record_waits_for_the_other_half(
    reader: Reader, writer: DefinitionsFile, path: Path
) -> None:
    before = path.stat().st_size
    writer.append_declare_queue(QueueDef("b"))
    record = path.read_bytes()[before:]
    for size in range(len(record)):
        os.truncate(path, before)
        with path.open("ab") as file:
            file.write(record[:size])
        assert reader.news() == []
    os.truncate(path, before)
    with path.open("ab") as file:
        file.write(record)
    assert reader.news() == [(True, QueueDef("b"))]


@pytest.mark.parametrize("other", ["b", "cc", "d" * 200])
def test_a_record_that_was_taken_back_is_known_whatever_is_in_its_place(
    reader: Reader, writer: DefinitionsFile, path: Path, other: str
) -> None:
    """A disk has refused its copy after the record itself was written."""
    before = path.stat().st_size
    writer.append_declare_queue(QueueDef("x"))
    assert reader.news() == [(True, QueueDef("x"))]
    os.truncate(path, before)
    assert reader.news() is None
    with closing(Reader(path)) as again:
        writer._size = before
        writer.append_declare_queue(QueueDef("x"))
        assert again.news() == [(True, QueueDef("x"))]
        os.truncate(path, before)
        writer._size = before
        for name in (other, "e", "f"):
            writer.append_declare_queue(QueueDef(name))
        assert again.news() is None


def test_another_file_of_that_name_is_read_anew(
    reader: Reader, writer: DefinitionsFile, path: Path
) -> None:
    """However often it was replaced, and if it begins in the same way."""
    inode = path.stat().st_ino
    for _ in range(5):
        writer.compact(read(path))
        assert path.stat().st_ino != inode, "nobody could tell it from the first one"
    writer.append_declare_queue(QueueDef("b"))
    assert reader.news() is None


@pytest.mark.parametrize("record", [
    b"\x01\0\0\0\0\0\0\x28\0\x14\0\0\0\x01a\0\xce",  # exchange.delete
    b"\x01\0\0\0\0\0\0\x32\0\x0a\0\0\0\x01q\x06\0\0\0\0\xce",  # an exclusive queue
    b"\x01\0\0\0\0\0\0\x32\0\x0a\0\0\0\x01q\x02\x03\0\0\0abc\xce",  # a table that is none
])  # fmt: skip
def test_what_cannot_be_done_in_one_step_is_read_anew(
    reader: Reader, path: Path, record: bytes
) -> None:
    with path.open("ab") as file:
        file.write(record)
    assert reader.news() is None


def test_a_file_that_is_gone_is_an_error(reader: Reader, path: Path) -> None:
    path.unlink()
    with pytest.raises(FileNotFoundError):
        reader.news()


@pytest.mark.parametrize("content", [b"", b"\x02\0\0\0", b"\x01\0\0\0\x01", b"\x01\0\0\0junk"])
def test_what_cannot_be_read_leaves_nothing_open(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: "):
        Reader(path)
    path.unlink()
    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: No such file"):
        Reader(path)
    os.mkfifo(path)
    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: Not a regular file"):
        Reader(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_reader_that_nobody_waited_for_closes_its_file(reader: Reader, path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with suppress(DefinitionsError):
        Reader(path)
    assert len(os.listdir("/proc/self/fd")) == before
