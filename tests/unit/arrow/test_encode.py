"""Rows of Arrow columns as frames: golden bytes, every property, every layout of Arrow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame, header
from pamqp.body import ContentBody

pa = pytest.importorskip("pyarrow")
from lavinmq.spark._arrow import Encoder, RowError  # noqa: E402

MAP = pa.map_(pa.string(), pa.string())


def encode(columns: dict[str, Any], **options: Any) -> bytes:
    """All rows of these columns as one run of frames."""
    encoder = Encoder(**options)
    rows = len(next(iter(columns.values())))
    encoder.load(columns, rows)
    out = b""
    while encoder.rows_left:
        encoder.encode(1 << 30)
        out += bytes(encoder)
    return out


def frames(data: bytes) -> list[Any]:
    found = []
    while data:
        size, channel, value = frame.unmarshal(data)
        assert channel == 1
        found.append(value)
        data = data[size:]
    return found


def messages(data: bytes) -> list[tuple[str, str, dict[str, Any], bytes]]:
    """Exchange, routing key, properties that are set, and body of each message."""
    found: list[tuple[str, str, dict[str, Any], bytes]] = []
    left = 0
    for value in frames(data):
        if isinstance(value, commands.Basic.Publish):
            assert left == 0
            method = value
        elif isinstance(value, header.ContentHeader):
            left = value.body_size
            # pamqp says None for what is absent, but "" for the cluster id.
            given_ = {name: v for name, v in value.properties if v is not None}
            given_.pop("cluster_id", None)
            found.append((method.exchange, method.routing_key, given_, b""))
        else:
            assert isinstance(value, ContentBody)
            left -= len(value.value)
            *rest, body = found[-1]
            found[-1] = (*rest, body + value.value)  # type: ignore[assignment]
    assert left == 0
    return found


def binary(*values: bytes | None) -> Any:
    return pa.array(values, pa.binary())


def test_the_frames_of_a_message_are_these_bytes() -> None:
    columns = {
        "exchange": pa.array(["ex"]),
        "routing_key": pa.array(["key"]),
        "body": binary(b"hello"),
        "content_type": pa.array(["a/b"]),
        "headers": pa.array([{"k": "v"}], MAP),
        "priority": pa.array([9], pa.int16()),
        "message_timestamp": pa.array([1], pa.int64()),
    }

    data = encode(columns, mandatory=True)

    assert data.hex(" ") == (
        "01 00 01 00 00 00 0e 00 3c 00 28 00 00 02 65 78 03 6b 65 79 01 ce "
        "02 00 01 00 00 00 28 00 3c 00 00 00 00 00 00 00 00 00 05 b8 40 "
        "03 61 2f 62 00 00 00 08 01 6b 53 00 00 00 01 76 02 09 00 00 00 00 00 00 00 01 ce "
        "03 00 01 00 00 00 05 68 65 6c 6c 6f ce"
    )


def test_options_win_over_columns() -> None:
    columns = {"exchange": pa.array(["a"]), "routing_key": pa.array(["b"]), "body": binary(b"")}

    ((exchange, key, _, _),) = messages(encode(columns, exchange="", routing_key="key"))

    assert (exchange, key) == ("", "key")


def test_nulls_are_absent_and_a_null_body_is_empty() -> None:
    names = ("exchange", "routing_key", "content_type", "message_id", "user_id", "correlation_id")
    columns = {name: pa.array([None], pa.string()) for name in names}
    columns |= {name: pa.array([None], pa.int64()) for name in ("delivery_mode", "priority")}
    columns |= {"message_timestamp": pa.array([None], pa.int64()), "body": binary(None)}
    columns |= {"headers": pa.array([None], MAP)}

    data = encode(columns)

    assert messages(data) == [("", "", {}, b"")]
    assert len(frames(data)) == 2


def test_without_a_column_the_delivery_mode_is_that_of_the_encoder() -> None:
    columns = {"body": binary(b"x")}

    assert messages(encode(columns))[0][2] == {"delivery_mode": 2}
    assert messages(encode(columns, delivery_mode=1))[0][2] == {"delivery_mode": 1}


def test_headers_may_be_empty_and_their_values_void() -> None:
    maps = [{}, {"a": None, "": "x"}, None, {"é": "ü" * 300}]
    columns = {"headers": pa.array(maps, MAP), "body": binary(*[b""] * 4)}

    found = [properties.get("headers") for _, _, properties, _ in messages(encode(columns))]

    assert found == [{}, {"a": None, "": "x"}, None, {"é": "ü" * 300}]


def test_an_encoded_table_is_sent_as_it_is() -> None:
    table = b"\x01aI\x00\x00\x00\x05\x01aI\x00\x00\x00\x06"  # twice the same name
    columns = {"table": pa.array([table, None, b""], pa.binary()), "body": binary(b"", b"", b"")}

    data = encode(columns)

    assert b"\x00\x00\x00\x0e" + table in data
    assert [p.get("headers") for _, _, p, _ in messages(data)] == [{"a": 6}, None, {}]


def test_ids_of_rows_count_over_batches() -> None:
    encoder = Encoder(dedup="row", row_prefix="q/7/0")
    found = []
    for rows in (2, 1):
        encoder.load({"body": binary(*[b"x"] * rows)}, rows)
        while encoder.rows_left:
            encoder.encode(1)
            found += messages(bytes(encoder))

    ids = [properties["message_id"] for _, _, properties, _ in found]
    keys = [properties["headers"]["x-deduplication-header"] for _, _, properties, _ in found]
    assert ids == keys == ["q/7/0/0", "q/7/0/1", "q/7/0/2"]


def test_a_column_of_message_ids_stays_beside_ids_of_rows() -> None:
    columns = {"message_id": pa.array(["mine", None]), "body": binary(b"", b"")}

    found = messages(encode(columns, dedup="row", row_prefix="p"))

    assert [p["message_id"] for _, _, p, _ in found] == ["mine", "p/1"]
    assert [p["headers"]["x-deduplication-header"] for _, _, p, _ in found] == ["p/0", "p/1"]


@pytest.mark.parametrize("dedup", ["none", "id"])
def test_the_column_of_ids_becomes_the_message_id(dedup: str) -> None:
    columns = {"id": pa.array(["a"]), "message_id": pa.array(["b"]), "body": binary(b"")}

    ((_, _, properties, _),) = messages(encode(columns, dedup=dedup))

    assert properties["message_id"] == "a"
    expected = {"x-deduplication-header": "a"} if dedup == "id" else None
    assert properties.get("headers") == expected


def test_headers_of_the_origin_replace_those_of_an_earlier_one() -> None:
    maps = [{"x-origin-queue": "old", "x-origin-offset": "1", "x-other": "y"}, None]
    columns = {
        "queue": pa.array(["q", None]),
        "offset": pa.array([1 << 40, None], pa.int64()),
        "headers": pa.array(maps, MAP),
        "body": binary(b"", b""),
    }

    found = [properties["headers"] for _, _, properties, _ in messages(encode(columns))]

    assert found == [{"x-other": "y", "x-origin-queue": "q", "x-origin-offset": 1 << 40}, {}]


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 500_000])
def test_a_body_is_cut_at_the_largest_frame(size: int) -> None:
    body = bytes(i % 251 for i in range(size))

    data = encode({"body": binary(body, b"next")}, frame_max=4096)

    assert [body for _, _, _, body in messages(data)] == [body, b"next"]
    # A frame has 8 bytes around its payload.
    bodies = [len(f.value) + 8 for f in frames(data) if isinstance(f, ContentBody)]
    assert max(bodies) <= 4096
    assert len(bodies) == -(-size // 4088) + 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_offsets_of_both_widths_and_slices_are_read(kind: Any) -> None:
    values = [b"zero", None, b"two", b"", None, b"five", b"six", b"seven", b"eight", b"nine"]
    column = pa.array(values, pa.binary()).cast(kind)
    numbers = pa.array([0, None, 2, 3, 4, None, 6, 7, 8, 9], pa.int16())
    maps = pa.array([{"n": str(n)} if n % 3 else None for n in range(10)], MAP)

    for start in range(10):
        columns = {"body": column, "priority": numbers, "headers": maps}
        part = {name: array.slice(start, 3) for name, array in columns.items()}
        found = messages(encode(part))

        assert [body for _, _, _, body in found] == [v or b"" for v in values[start : start + 3]]
        assert [p.get("priority") for _, _, p, _ in found] == numbers.to_pylist()[start : start + 3]
        wanted = [{"n": str(n)} if n % 3 else None for n in range(10)][start : start + 3]
        assert [p.get("headers") for _, _, p, _ in found] == wanted


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"routing_key": pa.array(["", "k" * 256])}, "routing_key has 256 bytes, AMQP allows 255"),
        ({"exchange": pa.array(["", "é" * 128])}, "exchange has 256 bytes, AMQP allows 255"),
        ({"app_id": pa.array(["", "k" * 300])}, "app_id has 300 bytes, AMQP allows 255"),
        ({"headers": pa.array([{}, {"k" * 256: ""}], MAP)}, r"headers \(a key\) has 256 bytes"),
        ({"headers": pa.array([{}, {"k": "v" * 5000}], MAP)}, "more than a frame"),
        ({"table": pa.array([b"", b"x" * 5000], pa.binary())}, "more than a frame"),
        ({"priority": pa.array([0, 256], pa.int16())}, "priority is 256, AMQP allows 0 to 255"),
        ({"delivery_mode": pa.array([2, -1], pa.int8())}, "delivery_mode is -1"),
        ({"id": pa.array(["a", None])}, "idColumn is null or empty"),
        ({"id": pa.array(["a", ""])}, "idColumn is null or empty"),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=f"^row 1 of the task: .*{text}"):
        encode({"body": binary(b"", b""), **columns}, frame_max=4096)


def test_names_of_the_column_of_ids_and_of_rows_before_are_in_the_error() -> None:
    encoder = Encoder()
    encoder.load({"body": binary(*[b""] * 5)}, 5)
    assert encoder.encode(5) == 5
    encoder.load({"body": binary(b""), "type": pa.array(["t" * 256])}, 1)

    with pytest.raises(RowError, match="row 5 of the task: type has 256"):
        encoder.encode(1)


class Hostile:
    """An array of two rows whose buffers pyarrow itself would refuse."""

    def __init__(self, kind: str, buffers: list[bytes | None]) -> None:
        self.type, self.offset = kind, 0
        self._buffers = buffers

    def __len__(self) -> int:
        return 2

    def buffers(self) -> list[bytes | None]:
        return self._buffers


def test_broken_columns_are_refused() -> None:
    good, body = pa.array(["a", "b"]), binary(b"", b"")
    offsets = pa.py_buffer(b"\0\0\0\0\x7f\0\0\0\x01\0\0\0")
    beyond = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"ab"))
    short = Hostile("string", [None, b"\0\0\0\0", b"ab"])
    few = Hostile("int16", [None, b"\0\0"])
    sparse = Hostile("int16", [b"", b"\0\0"])

    with pytest.raises(RowError, match="row 0 of the task: type has lengths"):
        encode({"body": body, "type": beyond})
    with pytest.raises(ValueError, match="too few offsets"):
        encode({"body": body, "type": short})
    with pytest.raises(ValueError, match="too few values"):
        encode({"body": body, "priority": few})
    with pytest.raises(ValueError, match="too few values"):
        encode({"body": body, "priority": sparse})
    with pytest.raises(ValueError, match="has 2 rows instead of 3"):
        Encoder().load({"body": good}, 3)
    with pytest.raises(ValueError, match="no column of a message: colour"):
        Encoder().load({"colour": good}, 2)
    with pytest.raises(ValueError, match="is no text"):
        Encoder().load({"body": pa.array([1, 2])}, 2)
    with pytest.raises(ValueError, match="is no text"):
        Encoder().load({"body": good.dictionary_encode()}, 2)
    with pytest.raises(ValueError, match="is no number"):
        Encoder().load({"priority": good}, 2)
    with pytest.raises(ValueError, match="is no map"):
        Encoder().load({"headers": good}, 2)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="exchange has 256 bytes, 255 are allowed"):
        Encoder(exchange="x" * 256)
    with pytest.raises(ValueError, match="the prefix of ids has 235 bytes"):
        Encoder(row_prefix="x" * 235)
    with pytest.raises(ValueError, match="frame_max"):
        Encoder(frame_max=100)


def test_a_block_ends_where_it_is_told_and_is_not_overwritten_in_use() -> None:
    encoder = Encoder()
    encoder.load({"body": binary(*[b"x" * 1000] * 1000)}, 1000)

    assert encoder.encode(3) == 3
    assert len(messages(bytes(encoder))) == 3
    # About 256 KiB is one block, however many rows may be sent.
    assert 200 < encoder.encode(1 << 40) < 300
    with memoryview(encoder), pytest.raises(BufferError):
        encoder.encode(1)
    while encoder.rows_left:
        encoder.encode(1 << 40)
    assert encoder.encode(5) == 0
    assert len(encoder) == 0


short_text = st.none() | st.text(max_size=60)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "exchange": short_text,
            "routing_key": short_text,
            "body": st.none() | st.binary(max_size=9000),
            "content_type": short_text,
            "content_encoding": short_text,
            "correlation_id": short_text,
            "reply_to": short_text,
            "expiration": short_text,
            "message_id": short_text,
            "type": short_text,
            "user_id": short_text,
            "app_id": short_text,
            "delivery_mode": st.none() | st.integers(0, 255),
            "priority": st.none() | st.integers(0, 255),
            # What pamqp can say of a time.
            "message_timestamp": st.none() | st.integers(0, 4_000_000_000),
            "headers": st.none()
            | st.dictionaries(st.text(max_size=20), st.none() | st.text(max_size=90), max_size=4),
        }
    ),
    min_size=1,
    max_size=20,
)
TYPES = {
    "body": pa.binary(),
    "delivery_mode": pa.int64(),
    "priority": pa.int64(),
    "message_timestamp": pa.int64(),
    "headers": MAP,
}


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(0, 5), st.integers(1, 7), st.booleans())
def test_what_is_encoded_is_what_a_client_reads(
    written: list[dict[str, Any]], skipped: int, most: int, wide: bool
) -> None:
    text = pa.large_string() if wide else pa.string()
    columns = {}
    for name in written[0]:
        values = [None] * skipped + [row[name] for row in written]
        if name == "headers":
            values = [value if value is None else list(value.items()) for value in values]
        columns[name] = pa.array(values, TYPES.get(name, text)).slice(skipped)
    encoder = Encoder(frame_max=4096)
    encoder.load(columns, len(written))

    data = b""
    while encoder.rows_left:
        encoder.encode(most)
        data += bytes(encoder)

    for row, (exchange, key, properties, body) in zip(written, messages(data), strict=True):
        assert (exchange, key) == (row["exchange"] or "", row["routing_key"] or "")
        assert body == (row["body"] or b"")
        found = {**properties, "type": properties.get("message_type")}
        if found.get("timestamp") is not None:
            found["message_timestamp"] = int(found["timestamp"].timestamp())
        for name in written[0].keys() - {"exchange", "routing_key", "body"}:
            assert found.get(name) == row[name], name
