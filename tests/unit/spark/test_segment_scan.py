"""Data directories as rows: recordings of the original, damage, acks, offsets, filters, plans."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lavinmq import fieldtable
from lavinmq.spark._arrow import Columns, Scanner
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.files import LocalFiles
from lavinmq.spark.option_values import OptionError
from lavinmq.spark.segment_options import SegmentOptions
from lavinmq.spark.segment_plan import plan
from lavinmq.spark.segment_scan import Report, filling_pattern, read_task
from tests.fuzz.mutate import mutated
from tests.support.segment_files import (
    FIRST_MS,
    VERSION,
    bodies,
    record,
    rows,
    write_meta,
    write_segment,
    write_stream,
)  # fmt: skip

FOLDER = Path(__file__).parents[2] / "fixtures" / "data-dir"
TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration",
         "message_id", "type", "user_id", "app_id", "delivery_mode", "priority")  # fmt: skip


def unpack(archive: str, directory: Path) -> Path:
    subprocess.run(["tar", "-xzf", FOLDER / f"{archive}.tar.gz", "-C", directory], check=True)
    return directory


def manifest(archive: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{archive}.json").read_text(encoding="utf-8"))
    return found


def as_read(message: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that a message of the manifest must give, headers as there."""
    properties = message["properties"]
    wanted = {name: properties.get(name) for name in TEXTS}
    wanted["body"] = base64.b64decode(message["body"])
    wanted["exchange"], wanted["routing_key"] = message["exchange"], message["routing_key"]
    stamp = properties.get("timestamp")
    # Some are arbitrary numbers: of those there are no microseconds.
    fits = stamp is not None and abs(stamp) < 2**63 // 1_000_000
    wanted["message_timestamp"] = stamp if fits else None
    wanted["headers"] = without_delivery(properties.get("headers"))
    return wanted


def as_given(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in the same form."""
    found = {name: row[name] for name in (*TEXTS, "body", "exchange", "routing_key")}
    stamp = row["message_timestamp"]
    found["message_timestamp"] = None if stamp is None else int(stamp.timestamp())
    text = row["headers_json"]
    table = text and in_manifest(json.loads(text, object_pairs_hook=list))
    found["headers"] = without_delivery(table)
    return found


def without_delivery(table: list[list[Any]] | None) -> list[list[Any]] | None:
    """Return headers without those that a delivery adds or takes away; none when none are left."""
    return [row for row in table or () if row[0] not in ("BCC", "x-stream-offset")] or None


def in_manifest(pairs: list[tuple[str, Any]]) -> list[list[Any]]:
    """Return a typed table as the manifest lists it: rows of key, letter and value."""
    return [[key, *typed(value)] for key, value in pairs]


def typed(pairs: list[tuple[str, Any]]) -> list[Any]:
    ((letter, value),) = pairs
    if letter == "x":
        return [letter, base64.b64decode(value).hex()]
    if letter == "A":
        return [letter, [typed(each) for each in value]]
    return [letter, in_manifest(value) if letter == "F" else value]


@pytest.mark.parametrize("archive", ["basic", "killed", "rich", "rich-killed"])
def test_recorded_directories_give_every_message_that_the_original_finds(
    archive: str, tmp_path: Path
) -> None:
    found = rows(unpack(archive, tmp_path), includeHeaders="json")
    compared = 0

    for queue in manifest(archive)["queues"]:
        mine = [r for r in found if (r["vhost"], r["queue"]) == (queue["vhost"], queue["name"])]
        if "messages_in_order" in queue:
            wanted = [as_read(message) for message in queue["messages_in_order"]]
            assert [as_given(row) for row in mine] == wanted, queue["name"]
            compared += len(wanted)
        else:
            assert len(mine) == queue["messages"], queue["name"]
    assert compared > 70


def test_queues_have_their_names_and_kinds(tmp_path: Path) -> None:
    found = {(r["vhost"], r["queue"]): r["queue_type"] for r in rows(unpack("rich", tmp_path))}

    assert found["/", "prio"] == "priority"
    assert found["/", "sac"] == "classic"
    assert found["/", "mqtt.sess-1"] == "mqtt"
    assert found["/", "amq.delayed-later"] == "delayed"
    assert {kind for (_, name), kind in found.items() if "stream" in name} == {"stream"}


def test_damaged_recordings_give_what_the_original_delivers(tmp_path: Path) -> None:
    unpack("damaged", tmp_path)

    for queue in manifest("damaged")["queues"]:
        # A wrong count in a meta file the original believes; here the records are right.
        if queue["messages_in_order"] is None or queue["name"] == "wrong-meta":
            continue
        wanted = [base64.b64decode(each["body"]) for each in queue["messages_in_order"]]
        assert bodies(tmp_path, queue=queue["name"]) == wanted, queue["name"]


# --- where to look ----------------------------------------------------------------------------


def test_data_directory_vhost_queue_and_glob_are_paths(tmp_path: Path) -> None:
    unpack("basic", tmp_path)
    vhost = tmp_path / "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"
    orders = vhost / "9658403816409e66eba2175f8eff8b53a9681573"

    of_queue = bodies(orders)

    assert len(of_queue) == 32
    assert bodies(tmp_path, queue="orders") == of_queue
    assert bodies(vhost, queue="orders", vhost="/") == of_queue
    assert bodies(f"{vhost}/96*") == of_queue
    assert bodies(f"file://{orders}") == of_queue
    assert bodies(tmp_path, queuePattern="ord.*") == of_queue
    assert bodies(tmp_path, vhost="other") == []
    assert {row["vhost"] for row in rows(orders)} == {"/"}


@pytest.mark.parametrize("path", ["", "nowhere", "nothing/*", "file.txt"])
def test_what_is_no_data_directory_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(OptionError, match="option path"):
        rows(tmp_path / path)


def test_names_come_from_the_definitions_when_the_files_are_missing(tmp_path: Path) -> None:
    unpack("basic", tmp_path)
    for path in tmp_path.rglob(".queue"):
        path.unlink()

    assert len(bodies(tmp_path, queue="orders")) == 32


def test_transient_queues_and_those_set_aside_are_passed_over(tmp_path: Path) -> None:
    write_segment(tmp_path / ("a" * 40) / ("b" * 40), 1, [record(b"kept")])
    write_segment(tmp_path / ("a" * 40) / "transient" / ("c" * 40), 1, [record(b"x")])
    write_segment(tmp_path / ("a" * 40) / ("d" * 40 + ".left-1"), 1, [record(b"x")])
    write_segment(tmp_path / ("e" * 40 + ".deleted-1") / ("f" * 40), 1, [record(b"x")])

    assert bodies(tmp_path) == [b"kept"]


def test_nothing_is_written_and_no_lock_is_needed(tmp_path: Path) -> None:
    unpack("killed", tmp_path)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}

    rows(tmp_path, onCorrupt="skip", includeAcked=True)

    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")} == before


# --- acks, priorities, fillers ----------------------------------------------------------------


def with_acks(directory: Path) -> list[bytes]:
    """Write ten messages of which the even ones are acked; return the others' bodies."""
    records = [record(b"message %d" % number) for number in range(10)]
    write_segment(directory, 1, records)
    positions = [4 + sum(map(len, records[:number])) for number in range(10)]
    acked = positions[::2]
    random.Random(1).shuffle(acked)
    tail = [0, 99, 0]  # preallocated, behind a zero nothing counts
    (directory / "acks.0000000001").write_bytes(struct.pack(f"<{5 + 3}I", *acked, *tail))
    return [b"message %d" % number for number in range(1, 10, 2)]


def test_acked_records_are_left_out(tmp_path: Path) -> None:
    wanted = with_acks(tmp_path)

    assert bodies(tmp_path) == wanted
    assert {row["acked"] for row in rows(tmp_path)} == {False}


def test_acked_records_come_marked_when_asked_for(tmp_path: Path) -> None:
    wanted = with_acks(tmp_path)

    found = rows(tmp_path, includeAcked=True)

    assert len(found) == 10
    assert [row["body"] for row in found if not row["acked"]] == wanted
    assert found[0]["position"] == 4
    assert {row["segment"] for row in found} == {1}
    assert {row["offset"] for row in found} == {None}


def test_a_filler_is_no_message(tmp_path: Path) -> None:
    filler = struct.pack("<q", 1) + b"\0\0\0\0" + struct.pack("<Q", 20_000) + bytes(20_000)
    write_segment(tmp_path, 1, [record(b"a"), filler, record(b"b")])
    write_segment(tmp_path, 2, [record(b"c")])

    assert bodies(tmp_path, includeAcked=True) == [b"a", b"b", b"c"]


def test_priority_queues_come_by_falling_level(tmp_path: Path) -> None:
    for level in (0, 1, 10):
        write_segment(tmp_path / f"prio.{level:03}", 1, [record(b"%d" % level)])

    found = rows(tmp_path)

    assert [row["body"] for row in found] == [b"10", b"1", b"0"]
    assert {row["queue_type"] for row in found} == {"priority"}


# --- streams ----------------------------------------------------------------------------------


def test_offsets_of_streams_are_counted_on(tmp_path: Path) -> None:
    write_stream(tmp_path, [5, 7, 3])

    found = rows(tmp_path)

    assert [row["offset"] for row in found] == list(range(1, 16))
    assert [row["body"] for row in found] == [b"%d" % offset for offset in range(1, 16)]
    assert {row["queue_type"] for row in found} == {"stream"}
    assert {row["acked"] for row in found} == {None}


@pytest.mark.parametrize("missing", ["meta.0000000001", "meta.0000000002"])
def test_a_missing_meta_file_is_made_up_for(tmp_path: Path, missing: str) -> None:
    write_stream(tmp_path, [5, 7, 3])
    (tmp_path / missing).unlink()

    assert [row["offset"] for row in rows(tmp_path)] == list(range(1, 16))


@pytest.mark.parametrize(("at", "form", "value"), [(0, "<I", 4096), (4, "<q", 1 << 62)])
def test_a_meta_file_that_cannot_be_right_is_made_up_for(
    tmp_path: Path, at: int, form: str, value: int
) -> None:
    write_stream(tmp_path, [5, 7, 3])
    path = tmp_path / "meta.0000000001"
    facts = bytearray(path.read_bytes())
    struct.pack_into(form, facts, at, value)
    path.write_bytes(facts)

    assert [row["offset"] for row in rows(tmp_path)] == list(range(1, 16))


def test_offsets_after_retention_come_from_meta_or_from_the_marker(tmp_path: Path) -> None:
    write_stream(tmp_path, [5, 7, 3])
    (tmp_path / "first.0000000003.13").touch()
    for name in ("msgs.0000000001", "meta.0000000001"):
        (tmp_path / name).unlink()
    assert [row["offset"] for row in rows(tmp_path)] == list(range(6, 16))

    for name in ("msgs.0000000002", "meta.0000000002"):
        (tmp_path / name).unlink()
    assert [row["offset"] for row in rows(tmp_path)] == [13, 14, 15]


def test_offsets_are_counted_back_from_what_is_stored(tmp_path: Path) -> None:
    write_stream(tmp_path, [5, 7, 3, 4])
    (tmp_path / "first.0000000004.16").touch()
    for name in ("msgs.0000000001", "meta.0000000001", "meta.0000000002", "meta.0000000003"):
        (tmp_path / name).unlink()

    assert [row["offset"] for row in rows(tmp_path)] == list(range(6, 20))


@pytest.mark.parametrize("first_gone", ["meta", "msgs"])
@pytest.mark.parametrize("removed", [1, 2])
def test_offsets_stay_right_when_retention_removes_segments_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_gone: str, removed: int
) -> None:
    write_stream(tmp_path, [2, 2, 2])
    listed = LocalFiles.names
    doomed = [tmp_path / f"{kind}.{n + 1:010}" for n in range(removed) for kind in ("meta", "msgs")]
    (tmp_path / "first.0000000003.5").touch()

    def names(files: LocalFiles, directory: str) -> Any:
        found = dict(listed(files, directory))
        for path in doomed:
            path.unlink(missing_ok=True)
        if first_gone == "meta":  # the list was made between two removals
            found = {n: size for n, size in found.items() if n != f"meta.{removed:010}"}
            return {
                n: size for n, size in found.items() if removed <= int((n + ".0").split(".")[1])
            }
        return found

    monkeypatch.setattr(LocalFiles, "names", names)

    assert [row["offset"] for row in rows(tmp_path, failOnDataLoss="false")] == [
        *range(2 * removed + 1, 7)
    ]


def test_only_wanted_offsets_and_segments_are_read(tmp_path: Path) -> None:
    write_stream(tmp_path, [5, 7, 3])
    report = Report()

    found = bodies(tmp_path, report, startingOffset=7, endingOffset=10)

    assert found == [b"7", b"8", b"9"]
    assert report.segments == 1, "segments that hold nothing wanted were read"


def test_times_are_from_inclusive_to_exclusive(tmp_path: Path) -> None:
    write_stream(tmp_path, [5, 7, 3])
    times = {"startingTimestamp": FIRST_MS + 6000, "endingTimestamp": "2025-01-01T00:00:13Z"}

    assert bodies(tmp_path, **times) == [b"%d" % offset for offset in range(6, 13)]


def test_segments_far_from_the_wanted_times_are_not_read(tmp_path: Path) -> None:
    day = 86_400_000
    for number in (1, 2, 3):
        write_segment(tmp_path, number, [record(b"%d" % number, FIRST_MS + number * day)])
        if number < 3:
            write_meta(tmp_path, number, 1, number, (FIRST_MS + number * day,) * 2)
    report = Report()

    found = bodies(tmp_path, report, startingTimestamp=FIRST_MS + 2 * day)

    assert found == [b"2", b"3"]
    assert report.segments == 2


def test_queues_without_offsets_are_left_out_of_a_range_of_offsets(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, [record(b"x")])

    assert bodies(tmp_path, startingOffset=0) == []


# --- ends and damage --------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b"", bytes(3), bytes(8), bytes(100_000)])
def test_zeros_behind_the_records_are_their_end(tmp_path: Path, tail: bytes) -> None:
    write_segment(tmp_path, 1, [record(b"x")], tail)
    report = Report()

    assert bodies(tmp_path, report, onCorrupt="fail") == [b"x"]
    assert report.torn == 0


def test_a_record_cut_anywhere_ends_the_newest_segment(tmp_path: Path) -> None:
    table = fieldtable.encode({"a": 1})
    whole = record(b"body", content_type=b"text", headers=table, timestamp=5)
    first = record(b"first")
    for kept in range(1, len(whole)):
        write_segment(tmp_path, 1, [first, whole[:kept]])
        report = Report()
        assert bodies(tmp_path, report, onCorrupt="fail") == [b"first"], kept
        assert report.torn == (1 if any(whole[:kept]) else 0)


@pytest.mark.parametrize("head", [b"", b"\x04", b"\x04\0\0\0", bytes(12), bytes(8 << 20)])
def test_a_segment_without_records_is_empty(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "msgs.0000000001").write_bytes(head)

    assert bodies(tmp_path, onCorrupt="skip") == []


def damaged(directory: Path) -> Path:
    """Write a finished segment with one bad record between two good ones, and another segment."""
    bad = struct.pack("<q", FIRST_MS) + b"\0\x01q\x03\0" + b"junk of a record"
    path = write_segment(directory, 1, [record(b"before"), bad, record(b"behind 1"), record(b"2")])
    write_segment(directory, 2, [record(b"next")])
    return path


def test_stop_leaves_the_rest_of_a_damaged_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged(tmp_path)
    report = Report()

    with caplog.at_level(logging.WARNING):
        assert bodies(tmp_path, report) == [b"before", b"next"]
    assert report.corrupt == 1
    assert report.unread_bytes == path.stat().st_size - 4 - len(record(b"before"))
    assert str(path) in caplog.text


def test_fail_names_file_queue_and_place(tmp_path: Path) -> None:
    path = damaged(tmp_path)

    with pytest.raises(SourceError) as caught:
        bodies(tmp_path, onCorrupt="fail")
    text = str(caught.value)
    assert str(path) in text
    assert f"byte {4 + len(record(b'before'))}" in text
    assert "\n" not in text


def test_skip_goes_on_behind_the_damage(tmp_path: Path) -> None:
    damaged(tmp_path)
    report = Report()

    assert bodies(tmp_path, report, onCorrupt="skip") == [b"before", b"behind 1", b"2", b"next"]
    assert report.corrupt == 1


def test_offsets_behind_damage_are_counted_from_the_end_of_the_segment(tmp_path: Path) -> None:
    damaged(tmp_path)
    write_meta(tmp_path, 1, 4, 1, (FIRST_MS, FIRST_MS))

    found = [(row["offset"], row["body"]) for row in rows(tmp_path, onCorrupt="skip")]

    assert found == [(1, b"before"), (3, b"behind 1"), (4, b"2"), (5, b"next")]


def test_a_finished_segment_that_ends_in_a_record_is_damaged(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, [record(b"a"), record(b"cut")[:-2]])
    write_segment(tmp_path, 2, [record(b"b")])

    assert bodies(tmp_path) == [b"a", b"b"]
    with pytest.raises(SourceError, match="ends within a record"):
        bodies(tmp_path, onCorrupt="fail")


def test_another_version_is_damage(tmp_path: Path) -> None:
    (tmp_path / "msgs.0000000001").write_bytes(b"\x05\0\0\0" + record(b"x"))

    assert bodies(tmp_path, onCorrupt="skip") == []
    with pytest.raises(SourceError, match="version 4"):
        bodies(tmp_path, onCorrupt="fail")


def test_lengths_beyond_the_file_read_nothing_behind_it(tmp_path: Path) -> None:
    huge = struct.pack("<q", FIRST_MS) + b"\0\x01q\0\0" + struct.pack("<Q", 0xFFFFFFF0)
    write_segment(tmp_path, 1, [record(b"a"), huge])

    assert bodies(tmp_path) == [b"a"]


# --- files that are being written -------------------------------------------------------------


def filled(records: list[bytes], lost: range | None = None) -> bytes:
    """Return a segment with a terminator and filling behind it; `lost` bytes are filling still."""
    data = VERSION + b"".join(records)
    pattern = filling_pattern(data[:64])
    size = len(data) + 8 + 4096
    filling = (pattern * (size // 16 + 1))[:size]
    if lost is not None:
        data = data[: lost.start] + filling[lost.start : lost.stop] + data[lost.stop :]
    return data + bytes(8) + filling[len(data) + 8 :]


def test_filling_behind_the_data_is_no_record(tmp_path: Path) -> None:
    records = [record(b"%d" % number * 20) for number in range(200)]
    (tmp_path / "msgs.0000000001").write_bytes(filled(records))

    assert len(bodies(tmp_path, onCorrupt="fail")) == 200


def test_a_record_with_a_sector_of_filling_is_torn(tmp_path: Path) -> None:
    records = [record(b"small")] * 8 + [record(b"x" * 3000)] + [record(b"behind")] * 3
    start = 4 + sum(map(len, records[:8]))
    (tmp_path / "msgs.0000000001").write_bytes(filled(records, range(1024, 1536)))
    assert start < 1024 < start + 3000
    report = Report()

    assert bodies(tmp_path, report) == [b"small"] * 8
    assert report.torn == 1


def test_a_last_record_whose_end_is_filling_is_not_taken(tmp_path: Path) -> None:
    records = [record(b"small")] * 8 + [record(b"y" * 60)]
    end = 4 + sum(map(len, records))
    (tmp_path / "msgs.0000000001").write_bytes(filled(records, range(end - 40, end)))

    assert bodies(tmp_path) == [b"small"] * 8


def test_a_record_without_names_at_the_end_is_being_written(tmp_path: Path) -> None:
    begun = struct.pack("<q", FIRST_MS) + bytes(12)
    write_segment(tmp_path, 1, [record(b"a"), begun], bytes(1000))
    report = Report()

    assert bodies(tmp_path, report) == [b"a"]
    assert report.torn == 1


def test_a_message_larger_than_the_window_is_read_whole(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(3 << 20)
    write_segment(tmp_path, 1, [record(b"a"), record(large), record(b"b")])
    write_segment(tmp_path, 2, [record(large)])

    assert bodies(tmp_path) == [b"a", large, b"b", large]


@pytest.mark.parametrize("kept", [range(12, 13), range(40, 60)])
def test_a_hole_that_the_broker_makes_meanwhile_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: range
) -> None:
    """Where the last window ended zeros stood then, which were taken for the segment's end."""
    monkeypatch.setattr(LocalFiles, "window", 50_000)
    records = [record(b"%03d" % number + bytes(4000)) for number in range(100)]
    path = write_segment(tmp_path, 1, records)
    write_segment(tmp_path, 2, [record(b"next")])
    starts = [4 + sum(map(len, records[:number])) for number in range(101)]
    (task,) = planned(tmp_path, batchRows="5")
    batches = read_task(task)

    found = next(batches).to_pylist()
    with path.open("r+b") as file:
        for first, end in ((8, kept.start), (kept.stop, 80)):
            file.seek(starts[first])
            body = starts[end] - starts[first] - 20
            file.write(struct.pack("<q4xQ", 1, body) + bytes(body))
    found += [row for batch in batches for row in batch.to_pylist()]

    names = [row["body"][:3] for row in found if row["body"] != b"next"]
    sure = [b"%03d" % number for number in (*range(8), *kept, *range(80, 100))]
    assert [name for name in names if name in sure] == sure
    assert len(set(names)) == len(names) and names == sorted(names)
    assert all(row["body"][3:] == bytes(4000) for row in found[:-1])


def test_positions_that_are_too_many_to_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of them was not read, and acknowledged messages came again."""
    monkeypatch.setattr("lavinmq.spark.files.SMALL_MOST", 8)
    records = [record(b"%d" % number) for number in range(5)]
    write_segment(tmp_path, 1, records)
    positions = [4 + sum(map(len, records[:number])) for number in range(3)]
    acks = tmp_path / "acks.0000000001"
    acks.write_bytes(struct.pack("<3I", *positions))

    with pytest.raises(SourceError, match=r"acks.0000000001: larger than 8 bytes"):
        bodies(tmp_path)
    acks.write_bytes(struct.pack("<2I", *positions[:2]))
    assert bodies(tmp_path) == [b"2", b"3", b"4"]


def test_zeros_before_other_records_are_damage(tmp_path: Path) -> None:
    """They were taken for the end of the segment, whatever the option said."""
    blanked = bytes(8) + record(b"blanked")[8:]
    write_segment(tmp_path, 1, [record(b"a"), blanked, record(b"b"), record(b"c")])
    write_segment(tmp_path, 2, [record(b"d"), bytes(600), record(b"e")])

    report = Report()
    assert bodies(tmp_path, report) == [b"a", b"d"]
    assert report.corrupt == 2
    assert bodies(tmp_path, onCorrupt="skip") == [b"a", b"b", b"c", b"d", b"e"]
    with pytest.raises(SourceError, match=f"no record at byte {4 + len(record(b'a'))}"):
        bodies(tmp_path, onCorrupt="fail")


def test_the_end_of_a_range_before_other_records_is_no_damage(tmp_path: Path) -> None:
    write_stream(tmp_path, [20, 20])

    assert len(bodies(tmp_path, startingOffset=5, endingOffset=10, onCorrupt="fail")) == 5


# --- planning ---------------------------------------------------------------------------------


def test_neighbours_are_grouped_up_to_the_target(tmp_path: Path) -> None:
    for number in range(1, 8):
        write_segment(tmp_path, number, [record(bytes(1000))])
    options = SegmentOptions.parse({"path": str(tmp_path), "targetPartitionBytes": "2k"})

    tasks = plan(options, options.columns)

    numbers = [[segment.number for segment in task.segments] for task in tasks]
    assert numbers == [[1, 2], [3, 4], [5, 6], [7]]


def test_batches_have_at_most_the_rows_asked_for_and_span_segments(tmp_path: Path) -> None:
    write_stream(tmp_path, [25, 25, 25])
    options = SegmentOptions.parse({"path": str(tmp_path), "batchRows": "30"})

    sizes = [b.num_rows for task in plan(options, options.columns) for b in read_task(task)]

    assert sizes == [30, 30, 15]


def planned(directory: Path, **options: str) -> list[Any]:
    parsed = SegmentOptions.parse({"path": str(directory), **options})
    return plan(parsed, parsed.columns)


def test_a_segment_of_acked_messages_may_vanish(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, [record(b"a")])
    write_segment(tmp_path, 2, [record(b"b")])
    (task,) = planned(tmp_path)
    (tmp_path / "msgs.0000000001").unlink()
    report = Report()

    (batch,) = read_task(task, report)

    assert batch.column("body").to_pylist() == [b"b"]
    assert report.vanished == 1


def test_a_segment_of_a_stream_that_vanished_is_data_loss(tmp_path: Path) -> None:
    write_stream(tmp_path, [2, 2])
    (strict,) = planned(tmp_path)
    (lenient,) = planned(tmp_path, failOnDataLoss="false")
    (tmp_path / "msgs.0000000001").unlink()

    with pytest.raises(DataLossError, match=r"msgs\.0000000001 .*from offset 1 on"):
        list(read_task(strict))
    (batch,) = read_task(lenient)
    assert batch.column("offset").to_pylist() == [3, 4]


def test_a_file_that_is_none_fails_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "msgs.0000000001")

    with pytest.raises(SourceError, match="not a regular file"):
        bodies(tmp_path)


# --- other stores -----------------------------------------------------------------------------


class Store:
    """What fsspec gives for a URL, over a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def glob(self, pattern: str) -> list[str]:
        return [f"/{path.relative_to(self._root)}" for path in self._root.glob(pattern[1:])]

    def ls(self, directory: str, detail: bool) -> list[dict[str, Any]]:
        if not self._at(directory).is_dir():
            raise FileNotFoundError(directory)
        return [self._entry(path) for path in self._at(directory).iterdir()]

    def info(self, path: str) -> dict[str, Any]:
        return self._entry(self._at(path))

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        return self._at(path).read_bytes()[start:end]

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _entry(self, path: Path) -> dict[str, Any]:
        kind = "directory" if path.is_dir() else "file"
        name = f"/{path.relative_to(self._root)}"
        return {"name": name, "type": kind, "size": path.stat().st_size}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is reached as store://bucket."""
    core = ModuleType("fsspec.core")
    core.url_to_fs = lambda url: (Store(tmp_path), url.removeprefix("store://bucket"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsspec", ModuleType("fsspec"))
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    return tmp_path


def test_urls_are_read_by_fsspec(store: Path) -> None:
    queue = store / ("a" * 40) / ("b" * 40)
    write_stream(queue, [5, 7, 3])

    assert [row["offset"] for row in rows("store://bucket/")] == list(range(1, 16))
    assert bodies(f"store://bucket/{'a' * 40}/b*", startingOffset=15) == [b"15"]


def test_a_url_where_nothing_is_says_so_in_a_line(store: Path) -> None:
    with pytest.raises(OptionError, match="option path is '/nowhere'; /nowhere"):
        rows("store://bucket/nowhere")


# --- limits of a batch ------------------------------------------------------------------------


def test_rows_beyond_the_most_of_a_batch_come_in_the_next(tmp_path: Path) -> None:
    most, more = 1 << 21, 5
    data = record(b"") * (most + more)
    columns = Columns(("offset",))
    scanner = Scanner(columns, offset=1)

    assert scanner.scan(data, 4, max_rows=1 << 40) == Scanner.FULL
    first = columns.take()
    at = scanner.position - 4
    assert scanner.scan(data, scanner.position, start=at, max_rows=1 << 40) == Scanner.MORE

    assert first.num_rows == most
    assert first.column("offset")[most - 1].as_py() == most
    assert columns.take().column("offset").to_pylist() == list(range(most + 1, most + more + 1))


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "option path is missing"),
        ({"path": "x", "onCorupt": "skip"}, "did you mean 'onCorrupt'"),
        ({"path": "x", "onCorrupt": "ignore"}, "onCorrupt is 'ignore'; expected one of stop"),
        ({"path": "x", "queue": "a", "queuePattern": "b"}, "one of the options queue and"),
        ({"path": "x", "queuePattern": "("}, "queuePattern is no regular expression"),
        ({"path": "x", "columns": "body,bodies"}, "unknown column 'bodies'"),
        ({"path": "x", "targetPartitionBytes": "much"}, "targetPartitionBytes is 'much'"),
        ({"path": "x", "startingOffset": "-1"}, "startingOffset is '-1'"),
        ({"path": "x", "endingTimestamp": "-1"}, "endingTimestamp is '-1'"),
        ({"path": "s3://bucket/x"}, "fsspec"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint) as caught:
        parsed = SegmentOptions.parse(options)
        plan(parsed, parsed.columns)
    assert "\n" not in str(caught.value)


# --- any bytes --------------------------------------------------------------------------------


def n_rows(directory: Path, report: Report, **options: str) -> int:
    """Return how many rows there are; every batch is valid, whatever the values are."""
    count = 0
    for task in planned(directory, **options):
        for batch in read_task(task, report):
            batch.validate(full=True)
            count += batch.num_rows
    return count


@pytest.mark.parametrize("seed", range(4))
def test_damaged_segments_break_nothing_and_invent_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = fieldtable.encode({"a": 1, "b": ["x", b"y"], "c": {"d": None}})
    good = [
        record(b"%d" % number, content_type=b"t", headers=table, priority=number, timestamp=number)
        for number in range(6)
    ]
    whole = VERSION + b"".join(good)
    path = tmp_path / "msgs.0000000001"
    for number in range(300):
        data = mutated(whole, [whole, filled(good)], chance)
        path.write_bytes(data)
        for on_corrupt in ("stop", "skip"):
            report = Report()
            found = n_rows(tmp_path, report, onCorrupt=on_corrupt, includeHeaders="json",
                           includeAcked="true", batchRows="3")  # fmt: skip
            assert report.records >= found
            assert found <= len(data) // 20
        if number % 3 == 0:
            (tmp_path / "acks.0000000001").write_bytes(chance.randbytes(chance.randrange(40)))
