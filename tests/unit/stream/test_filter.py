"""Stream filters in the message path against a straightforward reading of the same rules.

The model below decodes headers and compares texts; the message path does neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq.arguments.stream import reading
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable, Long, Timestamp
from tests.support.streams import StreamBench, stored_offsets

PARIS, LONDON = (48.8566, 2.3522), (51.5074, -0.1278)
NEW_YORK, LOS_ANGELES = (40.7128, -74.0060), (34.0522, -118.2437)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StreamBench]:
    with closing(StreamBench(tmp_path / "data", 1 << 20)) as made:
        yield made


def place(lat: Any, lon: Any) -> dict[str, Any]:
    return {"x-geo-lat": lat, "x-geo-lon": lon}


def found(bench: StreamBench, **arguments: Any) -> list[int]:
    """Offsets of the messages that a consumer with these arguments gets; `_` stands for `-`."""
    table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel = bench.consume({"x-stream-offset": "first"} | table, tag="t", prefetch=1000)
    offsets = [delivery.offset for delivery in bench.deliveries()]
    bench.cancel(channel)
    bench.link.close_channel(channel, False)
    return offsets


def publish(bench: StreamBench, *headers: dict[str, Any] | None) -> None:
    for each in headers:
        bench.publish(b"m", each)
    bench.run()


# --- the model ------------------------------------------------------------------------------------


def text(value: Any) -> str | None:
    """The text form of a header; None for what has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, Timestamp):
        return None
    if isinstance(value, int | float):
        return repr(float(value)) if isinstance(value, float) else str(int(value))
    return None


def distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    lat1, lon1, lat2, lon2 = map(math.radians, (*one, *other))
    h = (math.sin((lat2 - lat1) / 2) ** 2
         + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2)  # fmt: skip
    return 2 * 6371 * math.asin(min(1.0, math.sqrt(h)))


def place_of(headers: Mapping[str, Any]) -> tuple[float, float] | None:
    lat, lon = headers.get("x-geo-lat"), headers.get("x-geo-lon")
    for value in (lat, lon):
        if isinstance(value, bool | Timestamp) or not isinstance(value, int | float):
            return None
    assert lat is not None and lon is not None
    return (lat, lon) if abs(lat) <= 90 and abs(lon) <= 180 else None


def holds(key: str, wanted: Any, headers: Mapping[str, Any]) -> bool:
    if key == "x-stream-filter":
        there = headers.get("x-stream-filter-value")
        return isinstance(there, str) and wanted in there.split(",")
    if key in ("geo-within-radius", "geo-bbox", "geo-polygon"):
        at = place_of(headers)
        return at is not None and is_inside(key, wanted, at)
    there = text(headers[key]) if key in headers else None
    return bool(there is not None and there == text(wanted))


def is_inside(key: str, wanted: Any, at: tuple[float, float]) -> bool:
    lat, lon = at
    if key == "geo-within-radius":
        return distance_km((wanted["lat"], wanted["lon"]), at) <= wanted["radius_km"]
    if key == "geo-bbox":
        return bool(wanted["min_lat"] <= lat <= wanted["max_lat"]
                    and wanted["min_lon"] <= lon <= wanted["max_lon"])  # fmt: skip
    points, crossings = wanted["points"], 0
    for (lat1, lon1), (lat2, lon2) in zip(points, points[1:] + points[:1], strict=True):
        if (lat1 > lat) != (lat2 > lat):
            crossings += lon < lon1 + (lon2 - lon1) * (lat - lat1) / (lat2 - lat1)
    return crossings % 2 == 1


def parts(filter_: Any) -> Iterator[tuple[str, Any]]:
    for item in filter_ if isinstance(filter_, list) else [filter_]:
        if isinstance(item, str):
            yield from (("x-stream-filter", v.strip()) for v in item.split(",") if v.strip())
        else:
            for key, wanted in item.items():
                if key == "x-stream-filter":
                    yield from parts(wanted)
                else:
                    yield key, wanted


def matches(filter_: Any, is_any: bool, unfiltered: bool, headers: Mapping[str, Any]) -> bool:
    if unfiltered and "x-stream-filter-value" not in headers:
        return True
    results = [holds(key, wanted, headers) for key, wanted in parts(filter_)]
    return not results or (any(results) if is_any else all(results))


words = st.sampled_from(["foo", "bar", "a b", "", "7", "-1", "1.5", "true", "é", "foo,bar"])
scalars = st.one_of(
    words, st.integers(-3, 8), st.booleans(), st.none(), st.sampled_from([1.5, 7.0, -1.0, 0.1]),
    st.sampled_from([Long(7), Long(-1)]),
)  # fmt: skip
degrees = st.one_of(st.integers(-12, 12), st.floats(-12, 12, width=32))
lists = st.lists(words, min_size=1, max_size=3).map(",".join)
message = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "x-stream-filter-value": lists, "k": scalars, "n": scalars,
            "x-geo-lat": st.one_of(degrees, st.sampled_from(["1", None, 95.0, True])),
            "x-geo-lon": st.one_of(degrees, st.sampled_from([181, [1]])),
        },
    ),
)  # fmt: skip
pairs = st.tuples(degrees, degrees).map(sorted)
radius = st.fixed_dictionaries(
    {"lat": degrees, "lon": degrees, "radius_km": st.sampled_from([1, 150.5, 900.0])}
)
box = st.tuples(pairs, pairs).map(
    lambda p: {"min_lat": p[0][0], "max_lat": p[0][1], "min_lon": p[1][0], "max_lon": p[1][1]}
)
polygon = st.lists(st.tuples(degrees, degrees).map(list), min_size=3, max_size=6).map(
    lambda points: {"points": points}
)
table = st.fixed_dictionaries(
    {},
    optional={
        "x-stream-filter": lists, "k": scalars, "n": scalars, "geo-within-radius": radius,
        "geo-bbox": box, "geo-polygon": polygon,
    },
)  # fmt: skip
any_filter = st.one_of(lists, table, st.lists(st.one_of(lists, table), max_size=3))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck),
          derandomize=True, database=None)  # fmt: skip
@given(st.lists(message, max_size=12), any_filter, st.booleans(), st.booleans())
def test_the_same_messages_match_as_in_a_plain_reading_of_the_rules(
    tmp_path_factory: pytest.TempPathFactory, messages: list[dict[str, Any] | None], filter_: Any,
    is_any: bool, unfiltered: bool,
) -> None:  # fmt: skip
    """edge-cases.md 278, 279, 280, 282, 283, 284."""
    with closing(StreamBench(tmp_path_factory.mktemp("f") / "data", 1 << 20)) as bench:
        publish(bench, *messages)

        offsets = found(
            bench, stream_filter=filter_, filter_match_type="Any" if is_any else "all",
            stream_match_unfiltered=unfiltered,
        )  # fmt: skip

    assert offsets == [
        number for number, headers in enumerate(messages, 1)
        if matches(filter_, is_any, unfiltered, headers or {})
    ]  # fmt: skip


def test_offset_and_filter_combine(bench: StreamBench) -> None:
    """edge-cases.md 281: the offset positions first, then filtering starts."""
    values = ["foo", "bar", "bar", "foo", "foo", "bar"]
    publish(bench, *({"x-stream-filter-value": value} for value in values))

    assert found(bench, stream_filter="foo", stream_offset=3) == [4, 5]
    assert found(bench, stream_filter="foo", stream_offset=-2) == [5]


def test_filtered_messages_do_not_use_credit_and_advance_the_offset(bench: StreamBench) -> None:
    """edge-cases.md 278: what is passed over needs no acknowledgement, and is not read again."""
    wanted = {"x-stream-filter-value": "foo"}
    publish(bench, *([None] * 500), wanted, *([None] * 500), wanted, None)
    channel = bench.consume({"x-stream-filter": "foo"}, tag="me", prefetch=1)

    (first,) = bench.deliveries()
    bench.settle(channel, first.tag)
    (second,) = bench.deliveries()
    bench.settle(channel, second.tag)

    assert bench.deliveries() == []
    assert (first.offset, second.offset) == (501, 1002)
    assert stored_offsets(bench.core) == {b"me": 1003}
    publish(bench, None)
    bench.reopen()
    bench.consume({"x-stream-filter": "foo"}, tag="me", prefetch=1)
    publish(bench, wanted)
    assert [delivery.offset for delivery in bench.deliveries()] == [1005]


def test_distances_on_the_globe(bench: StreamBench) -> None:
    """edge-cases.md 286: New York to Los Angeles about 3935 km, London to Paris about 344 km."""
    publish(bench, place(*LOS_ANGELES), place(*PARIS))

    def within(at: tuple[float, float], km: float) -> list[int]:
        where = {"lat": at[0], "lon": at[1], "radius_km": km}
        return found(bench, stream_filter={"geo-within-radius": where})

    assert within(NEW_YORK, 3930) == []
    assert within(NEW_YORK, 3940) == [1]
    assert within(LONDON, 343) == []
    assert within(LONDON, 345) == [2]


def test_borders_are_inside_and_vertical_edges_do_no_harm(bench: StreamBench) -> None:
    """edge-cases.md 285."""
    publish(bench, place(0, 0), place(10, 10), place(5, 5), place(0, 1), place(10.1, 5))
    box = {"min_lat": 0, "max_lat": 10, "min_lon": 0, "max_lon": 10}
    square = {"points": [[1, 1], [9, 1], [9, 9], [1, 9]]}
    one_degree = {"lat": 0, "lon": 0, "radius_km": distance_km((0, 0), (0, 1))}

    assert found(bench, stream_filter={"geo-bbox": box}) == [1, 2, 3, 4]
    assert found(bench, stream_filter={"geo-polygon": square}) == [3]
    assert found(bench, stream_filter={"geo-within-radius": one_degree}) == [1, 4]


def test_places_that_are_none_match_nothing(bench: StreamBench) -> None:
    """edge-cases.md 284."""
    publish(bench, None, place("5", 5), place(91, 5), place(5, -181), place(True, 5),
            {"x-geo-lat": 5}, place(5, 5.0), place(float("nan"), 5))  # fmt: skip

    whole_world = {"min_lat": -90, "max_lat": 90, "min_lon": -180, "max_lon": 180}

    assert found(bench, stream_filter={"geo-bbox": whole_world}) == [7]


def test_headers_of_each_type_are_compared_by_their_text(bench: StreamBench) -> None:
    """edge-cases.md 282."""
    values = [1, Long(1), 1.0, "1", True, Timestamp(1), b"1", None, [1], {"a": 1}]
    publish(bench, *({"k": value} for value in values))

    def equal(value: Any) -> list[int]:
        return found(bench, stream_filter={"k": value})

    assert equal(1) == equal("1") == [1, 2, 4, 7]
    assert equal(1.0) == equal("1.0") == [3]
    assert equal(True) == equal("true") == [5]
    assert equal(Timestamp(1)) == equal("1970-01-01 00:00:01 UTC") == [6]
    assert equal(None) == equal("") == [8]


@pytest.mark.parametrize(
    ("filter_", "text"),
    [
        (5, "x-stream-filter must be a string, table, or array"),
        ([["a"]], "x-stream-filter must be a string, table, or array"),
        ({"geo-bbox": 1}, "Expected AMQ::Protocol::Table for geo-bbox"),
        ({"geo-within-radius": {"lat": 1, "lon": 181, "radius_km": 1}},
         "Invalid value for filter geo-within-radius: Longitude must be between -180 and 180"),
        ({"geo-within-radius": {"lat": "x", "lon": 1, "radius_km": 1}},
         "Invalid value for filter geo-within-radius: lat must be a number"),
        ({"geo-within-radius": {"lat": 1, "lon": 1, "radius_km": -1}},
         "Invalid value for filter geo-within-radius: Radius must be positive"),
        ({"geo-bbox": {"min_lat": 2, "max_lat": 1, "min_lon": 0, "max_lon": 0}},
         "Invalid value for filter geo-bbox: min_lat must be less than or equal to max_lat"),
        ({"geo-bbox": {"min_lat": 1, "max_lat": 1, "min_lon": 1, "max_lon": 0}},
         "Invalid value for filter geo-bbox: min_lon must be less than or equal to max_lon"),
        ({"geo-polygon": {"points": [[0, 0], [1, 1]]}},
         "Invalid value for filter geo-polygon: Polygon must have at least 3 points, got 2"),
        ({"geo-polygon": {}}, 'Invalid value for filter geo-polygon: Missing hash key: "points"'),
        ({"geo-polygon": {"points": "x"}},
         "Invalid value for filter geo-polygon: points must be an array"),
        ({"geo-polygon": {"points": [[0, 0], [1, 1], [2]]}},
         "Invalid value for filter geo-polygon: "
         "each point must be an array of latitude and longitude"),
    ],
)  # fmt: skip
def test_a_bad_filter_is_refused_with_its_name(filter_: Any, text: str) -> None:
    """edge-cases.md 287."""
    with pytest.raises(ChannelError) as caught:
        reading("t", FieldTable({"x-stream-filter": filter_}), 0, 256)

    assert caught.value.code == 406
    assert caught.value.text == text


def test_a_filter_has_a_bound_of_conditions() -> None:
    values = ",".join(f"v{i}" for i in range(256))

    assert len(reading("t", FieldTable({"x-stream-filter": values}), 0, 256).conditions) == 256
    with pytest.raises(ChannelError, match="max_filter_conditions"):
        reading("t", FieldTable({"x-stream-filter": values + ",more"}), 0, 256)


def test_the_points_of_a_polygon_count_as_conditions() -> None:
    points = [[i / 10, i / 10] for i in range(10)]
    filter_ = {"geo-polygon": {"points": points}}

    reading("t", FieldTable({"x-stream-filter": filter_}), 0, 10)
    with pytest.raises(ChannelError, match="max_filter_conditions"):
        reading("t", FieldTable({"x-stream-filter": filter_}), 0, 9)
