"""definitions.amqp: the bytes, what they add up to, damage, and compaction."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import fieldtable
from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import (
    BindingDef,
    Definitions,
    DefinitionsFile,
    ExchangeDef,
    QueueDef,
    damaged_copies,
    read,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "data-dir"

VERSION = b"\x01\x00\x00\x00"
ORDERS = bytes.fromhex("0100001200000032000a000000066f72646572730200000000ce")
ORDERS_TTL = bytes.fromhex(
    "0100002500000032000a000000066f726465727302130000000d782d6d6573736167652d74746c490000ea60ce"
)
BIND_NEW = bytes.fromhex(
    "01000021000000320014000000066f72646572730a616d712e646972656374036e65770000000000ce"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "definitions.amqp"


@pytest.fixture
def opened(path: Path) -> Iterator[DefinitionsFile]:
    """A new file, loaded."""
    file = DefinitionsFile(path)
    file.load()
    yield file
    file.close()


def load(path: Path) -> Definitions:
    """What the file at this path adds up to."""
    file = DefinitionsFile(path)
    try:
        return file.load()
    finally:
        file.close()


def test_a_new_file_holds_its_version(opened: DefinitionsFile, path: Path) -> None:
    assert path.read_bytes() == VERSION
    assert load(path) == Definitions()


@pytest.mark.parametrize("content", [b"", b"\x01\x00", bytes(300)])
def test_an_empty_file_is_a_new_one(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    assert load(path) == Definitions()
    assert path.read_bytes() == VERSION


def test_records_are_written_as_documented(opened: DefinitionsFile, path: Path) -> None:
    opened.append_declare_queue(QueueDef("orders"))
    opened.append_declare_queue(QueueDef("orders", arguments=FieldTable({"x-message-ttl": 60000})))
    opened.append_bind(BindingDef("amq.direct", "orders", "queue", "new"))

    assert path.read_bytes() == VERSION + ORDERS + ORDERS_TTL + BIND_NEW


def test_documented_records_are_read(path: Path) -> None:
    path.write_bytes(VERSION + ORDERS + ORDERS_TTL + BIND_NEW)

    assert load(path) == Definitions(
        queues=[QueueDef("orders", arguments=FieldTable({"x-message-ttl": 60000}))],
        bindings=[BindingDef("amq.direct", "orders", "queue", "new")],
    )


EVERYTHING = Definitions(
    exchanges=[
        ExchangeDef("", "direct"),
        ExchangeDef("x", "topic", auto_delete=True, internal=True),
        ExchangeDef("y", "headers", arguments=FieldTable({"x-match": "any"})),
    ],
    queues=[
        QueueDef("q", auto_delete=True),
        QueueDef("grüße \udcff", arguments=FieldTable({"x-max-length": 5})),
        QueueDef("mqtt.s", arguments=FieldTable({"x-queue-type": "mqtt"})),
    ],
    bindings=[
        BindingDef("x", "y", "exchange", "#"),
        BindingDef("y", "q", "queue", "", FieldTable({"a": 1, "b": [True, None]})),
        BindingDef("x", "q", "queue", "k"),
    ],
)


def append_all(file: DefinitionsFile, definitions: Definitions) -> None:
    for exchange in definitions.exchanges:
        file.append_declare_exchange(exchange)
    for queue in definitions.queues:
        file.append_declare_queue(queue)
    for binding in definitions.bindings:
        file.append_bind(binding)


def test_what_was_appended_is_loaded(opened: DefinitionsFile, path: Path) -> None:
    append_all(opened, EVERYTHING)

    assert load(path) == EVERYTHING
    assert opened.deleted == 0


def test_the_bytes_of_arguments_are_kept(opened: DefinitionsFile, path: Path) -> None:
    content = b"\x0cx-max-lengthb\x05" + b"\x01Ll\x00\x00\x00\x00\x00\x00\x00\x07"
    opened.append_declare_queue(QueueDef("q", arguments=fieldtable.from_content(content)))

    loaded = load(path)
    opened.compact(loaded)

    assert load(path).queues[0].arguments.raw == content


def test_a_later_declaration_replaces_an_earlier_one(opened: DefinitionsFile, path: Path) -> None:
    opened.append_declare_exchange(ExchangeDef("x", "topic"))
    opened.append_declare_exchange(ExchangeDef("x", "fanout"))

    assert load(path).exchanges == [ExchangeDef("x", "fanout")]


def test_binding_twice_with_the_same_meaning_is_one_binding(
    opened: DefinitionsFile, path: Path
) -> None:
    """edge-cases.md 75"""
    opened.append_bind(BindingDef("x", "q", "queue", "k", FieldTable({"a": 1, "b": 2})))
    opened.append_bind(BindingDef("x", "q", "queue", "k", FieldTable({"b": 2.0, "a": 1})))

    assert len(load(path).bindings) == 1


def test_deleting_a_queue_forgets_its_bindings(opened: DefinitionsFile, path: Path) -> None:
    append_all(opened, EVERYTHING)
    opened.append_delete_queue("q")

    loaded = load(path)

    assert [queue.name for queue in loaded.queues] == ["grüße \udcff", "mqtt.s"]
    assert loaded.bindings == EVERYTHING.bindings[:1]
    assert opened.deleted == 1


@pytest.mark.parametrize(("name", "left"), [("y", 1), ("x", 1)])
def test_deleting_an_exchange_forgets_the_bindings_at_both_of_its_ends(
    opened: DefinitionsFile, path: Path, name: str, left: int
) -> None:
    append_all(opened, EVERYTHING)
    opened.append_delete_exchange(name)

    loaded = load(path)

    assert name not in {exchange.name for exchange in loaded.exchanges}
    assert len(loaded.bindings) == left


def test_a_queue_declared_again_has_no_old_bindings(opened: DefinitionsFile, path: Path) -> None:
    append_all(opened, EVERYTHING)
    opened.append_delete_queue("q")
    opened.append_declare_queue(QueueDef("q"))

    assert load(path).bindings == EVERYTHING.bindings[:1]


def test_unbinding_removes_one_binding(opened: DefinitionsFile, path: Path) -> None:
    append_all(opened, EVERYTHING)
    for binding in EVERYTHING.bindings[:2]:
        opened.append_unbind(binding)

    assert load(path).bindings == EVERYTHING.bindings[2:]
    assert opened.deleted == 2


def test_unbinding_or_deleting_what_is_not_there_changes_nothing(
    opened: DefinitionsFile, path: Path
) -> None:
    opened.append_declare_queue(QueueDef("q"))
    opened.append_unbind(BindingDef("x", "q", "queue"))
    opened.append_delete_queue("other")
    opened.append_delete_exchange("other")

    assert load(path).queues == [QueueDef("q")]


def test_bindings_to_exchanges_come_before_those_to_queues(
    opened: DefinitionsFile, path: Path
) -> None:
    to_queue = BindingDef("x", "q", "queue")
    to_exchange = BindingDef("x", "y", "exchange")
    opened.append_bind(to_queue)
    opened.append_bind(to_exchange)

    assert load(path).bindings == [to_exchange, to_queue]


@pytest.mark.parametrize(
    "declared",
    [
        ExchangeDef("d", "x-delayed-message", arguments=FieldTable({"x-delayed-type": "topic"})),
        ExchangeDef("d", "x-delayed-exchange", arguments=FieldTable({"x-delayed-type": "topic"})),
        ExchangeDef("d", "topic", arguments=FieldTable({"x-delayed-exchange": True})),
    ],
)
def test_every_form_of_a_delayed_exchange_is_loaded_as_its_real_type(
    opened: DefinitionsFile, path: Path, declared: ExchangeDef
) -> None:
    opened.append_declare_exchange(declared)
    opened.append_declare_queue(QueueDef("amq.delayed-d"))
    opened.append_declare_queue(QueueDef("amq.delayed-other"))

    loaded = load(path)

    settled = ExchangeDef("d", "topic", arguments=FieldTable({"x-delayed-exchange": True}))
    assert loaded.exchanges == [settled]
    assert [queue.name for queue in loaded.queues] == ["amq.delayed-other"]


def test_a_delayed_exchange_without_its_type_is_left_alone() -> None:
    declared = ExchangeDef("d", "x-delayed-message")

    assert declared.resolved() is declared
    assert not declared.delayed


def test_exclusive_queues_do_not_come_back(opened: DefinitionsFile, path: Path) -> None:
    """amqp.md 22.19"""
    opened.append_declare_queue(QueueDef("mine", exclusive=True))
    opened.append_bind(BindingDef("x", "kept", "queue"))

    loaded = load(path)
    opened.compact(Definitions(queues=[QueueDef("mine", exclusive=True)]))

    assert loaded.queues == []
    assert path.read_bytes() == VERSION


def test_the_size_field_is_not_believed(path: Path) -> None:
    """edge-cases.md 336"""
    wrong = bytearray(VERSION + BIND_NEW + ORDERS)
    wrong[4 + 3] += 2  # as releases before 2.4.4 wrote it
    path.write_bytes(wrong)

    loaded = load(path)

    assert len(loaded.bindings) == len(loaded.queues) == 1


def test_a_record_with_a_broken_table_is_skipped(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = bytearray(ORDERS_TTL)
    broken[broken.index(b"I\x00\x00\xea")] = ord("?")
    path.write_bytes(VERSION + broken + BIND_NEW)

    loaded = load(path)

    assert loaded.queues == []
    assert len(loaded.bindings) == 1
    assert "Unknown field type" in caplog.text
    assert path.with_name("definitions.amqp.damaged").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("missing", range(1, len(ORDERS_TTL)))
def test_a_record_cut_short_ends_the_file(path: Path, missing: int) -> None:
    path.write_bytes(VERSION + ORDERS + ORDERS_TTL[:-missing])

    assert load(path).queues == [QueueDef("orders")]
    assert path.read_bytes() == VERSION + ORDERS


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 20,
        bytes(30),
        b"\x01\x00\x00\x04\x00\x00\x00\x63\x00\x0a\x00\x00\x00\xce",
        ORDERS[:-1] + b"\x00",
        ORDERS_TTL[:21] + b"\xff\xff\xff\x7f" + ORDERS_TTL[25:],
    ],
)
def test_garbage_ends_the_file_with_a_warning_and_a_copy(
    path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = VERSION + ORDERS + garbage
    path.write_bytes(damaged)

    loaded = load(path)

    assert loaded.queues == [QueueDef("orders")]
    assert "damaged at byte 30" in caplog.text
    assert path.read_bytes() == VERSION + ORDERS
    assert path.with_name("definitions.amqp.damaged").read_bytes() == damaged


@pytest.mark.parametrize(
    "damaged",
    [
        ORDERS_TTL[:-1] + b"\x00",
        ORDERS_TTL[5:],
        b"\xff" * 50,
        b"\x01" * 50,
        bytes(5000),
        ORDERS_TTL[:21] + b"\xff\xff\xff\x7f" + ORDERS_TTL[25:],
        b"\x01\x00\x00\x04\x00\x00\x00\x63\x00\x0a\x00\x00\x00\xce",
    ],
)
def test_records_behind_damage_are_read(
    path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    content = VERSION + ORDERS + damaged + BIND_NEW + ORDERS
    path.write_bytes(content)

    loaded = load(path)

    assert [binding.routing_key for binding in loaded.bindings] == ["new"]
    assert f"{path}: damaged at byte 30" in caplog.text
    assert path.read_bytes() == VERSION + ORDERS + BIND_NEW + ORDERS
    assert path.with_name("definitions.amqp.damaged").read_bytes() == content
    caplog.clear()
    assert load(path) == loaded
    assert not caplog.text


def test_copies_of_damaged_files_have_all_bytes_and_replace_none(path: Path) -> None:
    """The copy lacked what was taken out before, and the next damage replaced it."""
    first = VERSION + ORDERS + b"\xff" * 50 + BIND_NEW + b"\xee" * 40 + ORDERS
    path.write_bytes(first)
    load(path)
    second = path.read_bytes() + b"\xdd" * 30
    for _ in range(2):
        path.write_bytes(second)
        load(path)

    assert damaged_copies(path) == ["definitions.amqp.damaged", "definitions.amqp.damaged.1"]
    assert path.with_name("definitions.amqp.damaged").read_bytes() == first
    assert path.with_name("definitions.amqp.damaged.1").read_bytes() == second

    for number in range(20):
        path.write_bytes(second + bytes([number + 1]))
        load(path)
    assert len(damaged_copies(path)) == 10


def test_bytes_made_to_look_like_records_do_not_take_forever(path: Path) -> None:
    path.write_bytes(VERSION + b"\x00" + ORDERS * 20_000 + b"\x00")

    assert load(path).queues == []


def test_a_file_of_zeros_is_kept_and_made_anew(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(bytes(300))

    assert load(path) == Definitions()
    assert path.read_bytes() == VERSION
    assert path.with_name("definitions.amqp.damaged").read_bytes() == bytes(300)
    assert "nothing but zeros" in caplog.text


@pytest.mark.parametrize("is_there", [False, True])
def test_a_lost_file_is_told_where_queues_have_files(
    path: Path, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    if is_there:
        path.write_bytes(b"")
    load(path)
    assert not caplog.text

    path.unlink()
    (path.parent / ("0" * 40)).mkdir()
    if is_there:
        path.write_bytes(b"")
    load(path)

    assert f"{path} was missing or empty: what was declared is lost, 1 " in caplog.text


def test_a_pipe_in_place_of_the_file_is_an_error_and_never_blocks(path: Path) -> None:
    os.mkfifo(path)

    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: Not a regular file"):
        load(path)


def test_appending_goes_on_behind_what_was_kept(path: Path) -> None:
    path.write_bytes(VERSION + b"junk" + ORDERS)
    file = DefinitionsFile(path)
    file.load()
    file.append_bind(BindingDef("amq.direct", "orders", "queue", "new"))
    file.close()

    assert path.read_bytes() == VERSION + ORDERS + BIND_NEW


def test_records_appended_after_damage_are_read(path: Path) -> None:
    path.write_bytes(VERSION + ORDERS + BIND_NEW[:9])
    file = DefinitionsFile(path)
    file.load()
    file.append_declare_queue(QueueDef("later"))
    file.close()

    assert [queue.name for queue in load(path).queues] == ["orders", "later"]


def test_another_version_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"\x02\x00\x00\x00" + ORDERS)

    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: unknown version 02"):
        load(path)
    assert path.read_bytes() == b"\x02\x00\x00\x00" + ORDERS


def test_a_file_that_cannot_be_opened_is_named(path: Path) -> None:
    path.mkdir()

    with pytest.raises(DefinitionsError, match=r"definitions\.amqp: Is a directory"):
        load(path)


def test_compaction_leaves_only_what_lives(opened: DefinitionsFile, path: Path) -> None:
    """edge-cases.md 337"""
    append_all(opened, EVERYTHING)
    opened.append_delete_queue("grüße \udcff")
    fileno = opened.filenos()
    alive = load(path)

    opened.compact(alive)

    assert load(path) == alive
    assert opened.deleted == 0
    assert opened.filenos() == fileno
    assert b"gr" not in path.read_bytes()


def test_records_appended_after_compaction_go_to_the_new_file(
    opened: DefinitionsFile, path: Path
) -> None:
    path.with_name("definitions.amqp.tmp").write_bytes(b"left by a crash" * 100)

    opened.compact(Definitions())
    opened.append_declare_queue(QueueDef("orders"))
    opened.sync()

    assert path.read_bytes() == VERSION + ORDERS
    assert os.listdir(path.parent) == ["definitions.amqp"]


def test_a_compacted_file_has_exchanges_queues_sessions_and_bindings_in_this_order(
    opened: DefinitionsFile, path: Path
) -> None:
    """edge-cases.md 337"""
    queues = [QueueDef("mqtt.s", arguments=FieldTable({"x-queue-type": "mqtt"})), QueueDef("q")]

    opened.compact(Definitions(EVERYTHING.exchanges, queues, EVERYTHING.bindings))

    assert [queue.name for queue in load(path).queues] == ["q", "mqtt.s"]


def test_a_record_that_does_not_fit_on_the_disk_leaves_nothing_behind(
    opened: DefinitionsFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full_disk(fd: int, data: Any) -> int:
        if len(data) > 5:
            return write(fd, data[:5])
        raise OSError(28, "No space left on device")

    opened.append_declare_queue(QueueDef("orders"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        # The patched write takes five bytes at a time until the last ones, which it refuses.
        with pytest.raises(DefinitionsError, match="No space left"):
            opened.append_declare_queue(QueueDef("lost"))
    opened.append_declare_queue(QueueDef("kept"))

    assert [queue.name for queue in load(path).queues] == ["orders", "kept"]


def test_a_compaction_that_does_not_fit_on_the_disk_keeps_the_old_file(
    opened: DefinitionsFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_all(opened, EVERYTHING)
    before = path.read_bytes()

    def full_disk(_fd: int, _data: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        with pytest.raises(DefinitionsError, match="No space left"):
            opened.compact(Definitions())
    opened.append_declare_queue(QueueDef("after"))

    assert path.read_bytes().startswith(before)
    assert len(load(path).queues) == 4


def unpacked(name: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A recorded data directory and its manifest."""
    subprocess.run(["tar", "-xzf", RECORDED / f"{name}.tar.gz", "-C", tmp_path], check=True)
    manifest: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return tmp_path, manifest


@pytest.mark.parametrize(
    "name",
    [
        "basic",
        "killed",
        "rich",
        "damaged-definitions",
        "damaged-definitions-empty",
    ],
)
def test_recorded_directories_load_as_their_manifest_says(name: str, tmp_path: Path) -> None:
    root, manifest = unpacked(name, tmp_path)
    for file in root.glob("*/definitions.amqp"):
        vhost = (file.parent / ".vhost").read_text()
        empty = file.stat().st_size == 0

        loaded = load(file)

        assert exchanges_of(loaded) == ([] if empty else expected_exchanges(manifest, vhost))
        assert queues_of(loaded) == expected_queues(manifest, vhost, loaded)
        assert bindings_of(loaded) == expected_bindings(manifest, vhost)


def test_a_recorded_file_with_garbage_behind_its_records_loads_all_of_them(tmp_path: Path) -> None:
    root, _ = unpacked("damaged-definitions-garbage", tmp_path)
    (path,) = (file for file in root.glob("*/definitions.amqp") if file.stat().st_size == 386)

    loaded = load(path)

    assert [queue.name for queue in loaded.queues] == ["keep-bfc", "last-one"]
    assert loaded.queues[1].arguments == {"x-max-length": 5}
    assert loaded.bindings == [BindingDef("keep-x", "keep-bfc", "queue", "ipwtmbsg")]
    assert path.stat().st_size == 366


def test_a_recorded_file_is_compacted_to_something_that_loads_the_same(tmp_path: Path) -> None:
    root, _ = unpacked("rich", tmp_path)
    for path in root.glob("*/definitions.amqp"):
        file = DefinitionsFile(path)
        loaded = file.load()
        file.compact(loaded)
        file.close()

        again = load(path)

        assert again.exchanges == loaded.exchanges
        assert again.bindings == loaded.bindings
        assert sorted(map(repr, again.queues)) == sorted(map(repr, loaded.queues))


def exchanges_of(loaded: Definitions) -> list[Any]:
    return sorted(
        [e.name or "amq.default", e.type, e.auto_delete, e.internal, dict(e.arguments)]
        for e in loaded.exchanges
    )


def expected_exchanges(manifest: dict[str, Any], vhost: str) -> list[Any]:
    return sorted(
        [e["name"], e["type"], e["auto_delete"], e["internal"], e["arguments"]]
        for e in manifest["exchanges"]
        if e["vhost"] == vhost and e["durable"]
    )


def queues_of(loaded: Definitions) -> list[Any]:
    return sorted([q.name, q.auto_delete, dict(q.arguments)] for q in loaded.queues)


def expected_queues(manifest: dict[str, Any], vhost: str, loaded: Definitions) -> list[Any]:
    internal = {f"amq.delayed-{exchange.name}" for exchange in loaded.exchanges}
    return sorted(
        [q["name"], q["auto_delete"], q["arguments"]]
        for q in manifest["queues"]
        if q["vhost"] == vhost and q["name"] not in internal
    )


def bindings_of(loaded: Definitions) -> list[str]:
    return sorted(
        repr((b.source, b.destination, b.destination_type, b.routing_key, dict(b.arguments)))
        for b in loaded.bindings
    )


def expected_bindings(manifest: dict[str, Any], vhost: str) -> list[str]:
    return sorted(
        repr(
            (b["source"], b["destination"], b["destination_type"], b["routing_key"], b["arguments"])
        )
        for b in manifest["bindings"]
        if b["vhost"] == vhost and b["source"] != ""
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_survived_and_repaired(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "definitions.amqp"
    path.unlink(missing_ok=True)
    file = DefinitionsFile(path)
    file.load()
    append_all(file, EVERYTHING)
    file.close()
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(4, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(4, len(content)))])

    loaded = load(path)

    assert load(path) == loaded


# --- what somebody else writes --------------------------------------------------------------------


def test_a_file_of_somebody_else_is_read_and_left(path: Path) -> None:
    path.write_bytes(VERSION + ORDERS + b"junk" + ORDERS_TTL + ORDERS[:10])
    before = path.read_bytes()

    assert [each.name for each in read(path).queues] == ["orders"]
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("content", [b"", VERSION[:2], VERSION])
def test_a_file_that_has_just_been_made_has_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    assert read(path) == Definitions()


def test_a_file_of_somebody_else_that_cannot_be_read_is_an_error(path: Path) -> None:
    with pytest.raises(DefinitionsError, match=r"definitions\.amqp"):
        read(path)
    path.write_bytes(b"\x02\x00\x00\x00")
    with pytest.raises(DefinitionsError, match="version"):
        read(path)
