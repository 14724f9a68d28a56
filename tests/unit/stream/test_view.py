"""A stream that is read here and written elsewhere: what may be read is, and nothing is changed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from lavinmq import _core
from lavinmq.files import stream_files
from lavinmq.files.stream_files import StreamFiles
from tests.support.core import publish
from tests.support.segments import read_segment, segment_numbers, segment_path
from tests.support.streams import NAME, StreamBench

FIRST = {"x-stream-offset": "first"}
HEADER = 4
RECORD_FIXED = 18
NEWEST_MS = 1 << 44


class ViewBench(StreamBench):
    """Reads the stream of another bench."""

    found: StreamFiles

    def open(self, *, is_synced: bool = False, is_held: bool = False) -> None:
        """Take over what is finished."""
        self.loop.is_reading = True
        self.core = _core.Queue(
            self.loop, str(self.directory / NAME), self.segment_size, True, is_stream=True
        )
        found = stream_files.look(str(self.directory / NAME))
        assert found is not None
        self.found = found
        _core.view_segments(self.core, found.sealed)
        self.exchange.bind(NAME.encode(), b"", self.core)

    def reach(self, number: int, end: int) -> None:
        """Show a segment up to there."""
        while not _core.view_reached(self.core, number, end):
            pass

    def reach_all(self) -> None:
        """Show all that was found."""
        for number, size in sorted(self.found.sizes.items()):
            self.reach(number, size)


Benches = Callable[[], tuple[StreamBench, ViewBench]]


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Benches]:
    """Call it for who reads, once something is written; they are closed at the end."""
    with ExitStack() as stack:
        writer = stack.enter_context(closing(StreamBench(tmp_path / "data")))

        def view() -> tuple[StreamBench, ViewBench]:
            return writer, stack.enter_context(closing(ViewBench(tmp_path / "data")))

        fill(writer, 100)
        yield view


def body(number: int) -> bytes:
    """Of the message of an offset."""
    return f"{number:05}".encode() * 20


def fill(writer: StreamBench, n: int) -> None:
    """Publish so many messages more, and have them in their files."""
    first = writer.core.next_offset
    for number in range(first, first + n):
        writer.publish(body(number))
        writer.run()


def read(bench: StreamBench, channel: int) -> list[int]:
    """The offsets that a consumer gets, whose bodies are right."""
    offsets = []
    while got := bench.deliveries():
        for each in got:
            assert each.channel == channel
            assert each.body == body(each.offset)
            offsets.append(each.offset)
            bench.settle(channel, each.tag)
    return offsets


def contents(directory: Path) -> dict[str, bytes]:
    """All files."""
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def test_finished_segments_are_known_by_their_meta_files(benches: Benches) -> None:
    writer, reader = benches()

    numbers = segment_numbers(writer.directory / NAME)
    assert [each[0] for each in reader.found.sealed] == numbers[:-1]
    assert list(reader.found.sizes) == numbers[-1:]
    assert reader.core.segments(0, len(numbers) - 1) == writer.core.segments(0, len(numbers) - 1)


def test_all_is_read_once_it_may_be(benches: Benches) -> None:
    writer, reader = benches()

    reader.reach_all()

    assert reader.core.segments() == writer.core.segments()
    assert (reader.core.ready, reader.core.ready_bytes) == (
        writer.core.ready, writer.core.ready_bytes,
    )  # fmt: skip
    assert read(reader, reader.consume(FIRST)) == list(range(1, 101))


def test_nothing_is_read_behind_the_end_that_was_told(benches: Benches) -> None:
    writer, reader = benches()
    number = segment_numbers(writer.directory / NAME)[-1]
    records = read_segment(segment_path(writer.directory / NAME, number))
    first = 101 - len(records)
    channel = reader.consume(FIRST)
    assert read(reader, channel) == list(range(1, first))
    end = HEADER
    for n, record in enumerate(records):
        reader.reach(number, end + len(record.raw) - 1)  # a part of it
        assert read(reader, channel) == []
        end += len(record.raw)

        reader.reach(number, end)

        assert read(reader, channel) == [first + n]
    assert reader.core.next_offset == 101


def test_new_segments_are_read_by_those_who_wait(benches: Benches) -> None:
    writer, reader = benches()
    reader.reach_all()
    channel = reader.consume({"x-stream-offset": "next"})
    assert read(reader, channel) == []

    fill(writer, 100)
    for number, _, size, *_ in writer.core.segments():
        reader.reach(number, size)

    assert read(reader, channel) == list(range(101, 201))
    assert reader.core.segments() == writer.core.segments()


def test_a_segment_may_begin_with_a_later_offset(benches: Benches) -> None:
    _, reader = benches()
    reader.reach_all()
    last = reader.core.segments()[-1][0]

    _core.view_begin(reader.core, last + 1, 500)

    assert reader.core.next_offset == 500
    assert reader.core.segments()[-1][:2] == (last + 1, 0)


def test_who_stands_in_a_segment_that_goes_reads_on_behind_it(benches: Benches) -> None:
    writer, reader = benches()
    reader.reach_all()
    channel = reader.consume(FIRST, prefetch=1)
    (held,) = reader.deliveries()
    second = reader.core.segments()[1][3]
    for number in segment_numbers(writer.directory / NAME)[:1]:
        segment_path(writer.directory / NAME, number).unlink()

    _core.view_forgotten(reader.core, 1)
    reader.settle(channel, held.tag)

    assert held.offset == 1
    assert read(reader, channel) == list(range(second, 101))
    assert reader.core.first_offset == second


def test_a_file_that_is_gone_before_anybody_has_told_of_it_is_passed(benches: Benches) -> None:
    writer, reader = benches()
    reader.reach_all()
    third = reader.core.segments()[2][3]
    for number in (1, 2):
        segment_path(writer.directory / NAME, number).unlink()

    assert read(reader, reader.consume(FIRST)) == list(range(third, 101))
    assert reader.core.first_offset == third
    assert not reader.core.is_closed


def test_junk_closes_the_stream_instead_of_being_passed_over(benches: Benches) -> None:
    writer, reader = benches()
    reader.reach_all()
    path = segment_path(writer.directory / NAME, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:HEADER] + b"\xff" * (len(whole) - HEADER))
    first = reader.core.segments()[1][3]

    assert read(reader, reader.consume(FIRST)) == list(range(1, first))
    assert reader.core.is_closed


def test_nothing_is_written(benches: Benches) -> None:
    writer, reader = benches()
    reader.reach_all()
    before = contents(writer.directory / NAME)

    reader.core.set_stream_limits(max_length=1)
    read(reader, reader.consume(FIRST))
    reader.publish(b"not for here")
    with suppress(OSError):
        reader.run()

    assert contents(writer.directory / NAME) == before


def test_not_even_a_load_changes_anything(benches: Benches) -> None:
    writer, reader = benches()
    directory = writer.directory / NAME
    (directory / "meta.0000000002").unlink()
    before = contents(directory)

    queue = _core.Queue(reader.loop, str(directory), 4096, True, is_stream=True)
    with suppress(OSError):
        queue.load()

    assert contents(directory) == before
    queue.delete()


def test_a_directory_is_not_made(benches: Benches) -> None:
    writer, reader = benches()
    queue = reader.queue("other")
    reader.send(publish(b"other", b"not for here"))
    with suppress(OSError):
        reader.run()

    assert not (writer.directory / "other").exists()
    assert queue.is_closed or queue.ready


def test_only_a_loop_that_reads_has_views(benches: Benches) -> None:
    writer, _ = benches()

    with pytest.raises(TypeError):
        _core.view_reached(writer.core, 1, 100)


# --- what a directory holds -----------------------------------------------------------------------


def test_a_segment_without_facts_and_all_behind_it_are_to_be_counted(benches: Benches) -> None:
    writer, reader = benches()
    (writer.directory / NAME / "meta.0000000002").unlink()

    found = stream_files.look(str(writer.directory / NAME))

    assert found is not None
    assert [each[0] for each in found.sealed] == [1]
    assert sorted(found.sizes) == segment_numbers(writer.directory / NAME)[1:]
    reader.shut(crash=True)
    reader.open()
    reader.reach_all()
    assert read(reader, reader.consume(FIRST)) == list(range(1, 101))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, "all bits"),
        (0, "more than fit"),
        (4, "all bits"),
        (12, "all bits"),
        (12, "behind all times"),
        (20, "behind all times"),
    ],
)
def test_nonsense_is_no_facts(benches: Benches, at: int, value: str) -> None:
    """What whoever writes the stream would not believe either, so both count alike."""
    writer, _ = benches()
    path = writer.directory / NAME / "meta.0000000001"
    facts = bytearray(path.read_bytes())
    size = segment_path(writer.directory / NAME, 1).stat().st_size
    facts[at : at + (4 if at == 0 else 8)] = {
        "all bits": b"\xff" * (4 if at == 0 else 8),
        "more than fit": struct.pack("<I", size // RECORD_FIXED + 1),
        "behind all times": struct.pack("<q", NEWEST_MS),
    }[value]
    path.write_bytes(facts)

    found = stream_files.look(str(writer.directory / NAME))

    assert found is not None
    assert found.sealed == []


def test_the_first_offset_that_is_left_is_known(benches: Benches) -> None:
    writer, _ = benches()
    writer.core.set_stream_limits(max_length=60)
    writer.run()

    found = stream_files.look(str(writer.directory / NAME))

    assert found is not None
    assert found.sealed[0][3] == writer.core.first_offset
    assert found.first is not None
    assert found.first[1] == writer.core.segments()[-1][3]


def test_there_need_not_be_a_directory(tmp_path: Path) -> None:
    assert stream_files.look(str(tmp_path / "nowhere")) is None
