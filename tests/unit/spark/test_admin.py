"""What planning asks the HTTP API, what it makes of the answers, and how long it tries."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lavinmq.spark.admin import Admin, NotServed, bounds_of, http_urls, queue_type
from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.offsets import Bounds, Segment, loss
from lavinmq.spark.options import SourceOptions
from lavinmq.spark.pushdown import Pushed
from lavinmq.spark.streams import Streams
from tests.support.fake_api import FakeApi, serving
from tests.support.ports import free_port

STREAM = {"name": "a", "type": "stream"}
FACTS = {"first_offset": 5, "last_offset": 9, "created": "17-ab"}


@dataclass
class GreaterThanOrEqual:
    """A filter as Spark pushes it down: known by its name."""

    attribute: tuple[str, ...]
    value: object


CHOOSERS = ("queue", "queuePattern", "superStream", "assign")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with serving(tmp_path) as found:
        yield found


def options(port: int, **more: str) -> SourceOptions:
    base = {"url": "amqp://ann:s3cret@127.0.0.1:1/a%2Fb", "httpUrl": f"http://127.0.0.1:{port}"}
    chosen = {} if any(name in more for name in CHOOSERS) else {"queue": "a"}
    return SourceOptions.parse(base | chosen | more)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def admin(api: FakeApi, pauses: list[float]) -> Iterator[Admin]:
    found = Admin(options(api.port).connection, sleep=pauses.append)
    yield found
    found.close()


def test_names_are_escaped_and_the_user_is_told(api: FakeApi, admin: Admin) -> None:
    assert admin.queue("x/y z") is None

    (request,) = api.requests
    assert request.path == "/api/queues/a%2Fb/x%2Fy%20z"
    assert request.headers["Authorization"] == "Basic " + base64.b64encode(b"ann:s3cret").decode()


def test_an_accident_of_the_broker_is_tried_again(
    api: FakeApi, admin: Admin, pauses: list[float]
) -> None:
    for status in (500, 503):
        api.answer("GET", "/api/queues/a%2Fb/a", status)
    api.answer("GET", "/api/queues/a%2Fb/a", 200, STREAM)

    assert admin.queue("a") == ("stream", None)
    assert pauses == [0.5, 1.0]


def test_trying_ends(api: FakeApi, admin: Admin, pauses: list[float]) -> None:
    api.answer("GET", "/api/queues/a%2Fb/a", 500)

    with pytest.raises(NotServed, match="answered 500") as caught:
        admin.queue("a")

    assert len(api.calls) == 4
    assert "s3cret" not in str(caught.value)


def test_a_host_that_does_not_listen_is_named(pauses: list[float]) -> None:
    port = free_port()

    with pytest.raises(NotServed, match=f"HTTP API 127.0.0.1:{port} vhost 'a/b': Connection"):
        Admin(options(port).connection, sleep=pauses.append).queue("a")

    assert len(pauses) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_tried_again(
    api: FakeApi, admin: Admin, pauses: list[float], status: int
) -> None:
    api.answer("GET", "/api/queues/a%2Fb/a", status)

    with pytest.raises(NotServed, match=f"user 'ann' was refused with {status}"):
        admin.queue("a")

    assert pauses == []


@pytest.mark.parametrize("content", [b"<html>", [1], {"offset": "many"}, {}, "x"])
def test_an_answer_that_is_something_else_is_one_line(
    api: FakeApi, admin: Admin, content: object
) -> None:
    api.answer("GET", "/api/queues/a%2Fb/a/stream/offset", 200, content)

    with pytest.raises(SourceError, match=r"understood|no management API") as caught:
        admin.offset_at("a", 5)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "stream", "stream": {"last_offset": "many"}},
        {"type": "stream", "stream": {"last_offset": [1]}},
        {"type": "stream", "stream": {"last_offset": 5, "epochs": [7]}},
        {"type": "stream", "stream": {"last_offset": 5, "epochs": 7}},
        {"arguments": ["x-queue-type"]},
    ],
)
def test_details_of_a_queue_that_are_something_else_are_one_line(
    api: FakeApi, answer: object
) -> None:
    """They ended the query with an exception that named neither queue nor broker."""
    api.answer("GET", "/api/queues/a%2Fb/a", 200, answer)

    with (
        Streams(options(api.port)) as streams,
        pytest.raises(SourceError, match="answer to /api/queues/a%2Fb/a is not understood"),
    ):
        streams.bounds()


def test_lists_are_read_to_their_last_page(api: FakeApi, admin: Admin) -> None:
    """Without pages the broker cuts a list at 10,000: the streams behind were not read."""

    def pages(path: str, rows: Sequence[Mapping[str, object]]) -> None:
        for page, items in enumerate((rows[:2], rows[2:]), 1):
            content = {"items": items, "page_count": 2}
            api.answer("GET", f"{path}page={page}&page_size=500", 200, content)

    path = "/api/queues/a%2Fb"
    pages(
        f"{path}?columns=name,type,arguments&",
        [{"name": name, "type": "stream"} for name in ("a", "b", "c")],
    )
    api.answer("GET", "/api/exchanges/a%2Fb/e", 200, {})
    bound = [{"destination_type": "queue", "destination": name} for name in ("a", "b", "c")]
    pages("/api/exchanges/a%2Fb/e/bindings/source?", bound)
    pages(f"{path}/a/stream/consumers?", [{"name": name, "offset": 7} for name in ("x", "y", "z")])

    assert admin.queues() == dict.fromkeys(("a", "b", "c"), "stream")
    assert admin.bound_queues("e") == ["a", "b", "c"]
    assert admin.stored("a", "z") == 7
    assert [each["name"] for each in admin.consumers("a")] == ["x", "y", "z"]


def test_a_list_without_end_is_refused(
    api: FakeApi, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavinmq.spark.admin.ROWS_MAX", 5)
    page = {"items": [STREAM, STREAM], "page_count": 10**9}
    api.answer("GET", "/api/queues/a%2Fb", 200, page)

    with pytest.raises(SourceError, match="more than 5 rows"):
        admin.queues()


def test_where_amqp_is_encrypted_the_password_goes_nowhere_in_the_clear() -> None:
    """It was sent to port 15672 with every request for a plan."""
    mixed = SourceOptions.parse({"url": "amqps://u:p@a,amqp://b,amqps://[::1]", "queue": "q"})

    assert http_urls(mixed.connection) == [
        "https://a:15671",
        "http://b:15672",
        "https://[::1]:15671",
    ]


def test_segments_are_sorted_and_empty_ones_left_out(api: FakeApi, admin: Admin) -> None:
    api.answer(
        "GET",
        "/api/queues/a%2Fb/a/stream/segments",
        200,
        [
            {"first_offset": 11, "messages": 5, "bytes": 50},
            {"first_offset": 1, "messages": 10, "bytes": 90},
            {"first_offset": None, "messages": 0, "bytes": 4},
        ],
    )

    assert admin.segments("a", 3, 12) == [Segment(1, 11, 90), Segment(11, 16, 50)]
    assert admin.segments("other", 1, 2) == []
    assert api.calls[0][1].endswith("/stream/segments?offset=3&end=12")


def test_positions_are_read_and_stored_by_name(api: FakeApi, admin: Admin) -> None:
    path = "/api/queues/a%2Fb/a/stream/consumers"
    api.answer("GET", path, 200, [{"name": "x", "offset": 7}])
    api.answer("PUT", f"{path}/x%2Fy", 204)

    assert admin.stored("a", "x") == 7
    assert admin.stored("a", "y") is None
    admin.store("a", "x/y", 12)
    assert api.requests[-1].json() == {"offset": 12}
    with pytest.raises(SourceError, match="was answered 404"):
        admin.store("b", "x", 1)


def test_the_details_of_a_queue_tell_type_and_bounds() -> None:
    assert queue_type({"arguments": {"x-queue-type": "stream"}}) == "stream"
    assert queue_type({}) == "classic"
    assert bounds_of({"stream": FACTS}) == Bounds(5, 10, "17-ab")
    # One that lost all it had goes on counting; one that never had any begins at 1.
    assert bounds_of({"stream": {"first_offset": None, "last_offset": 9}}) == Bounds(10, 10)
    assert bounds_of({"stream": {"first_offset": None, "last_offset": 0}}) == Bounds(1, 1)
    assert bounds_of({}) is None


class TestStreams:
    def test_a_pattern_chooses_streams_by_their_whole_name(self, api: FakeApi) -> None:
        queues = [{"name": n, "type": "stream"} for n in ("logs-1", "logs-2", "my-logs-1")]
        queues += [{"name": "logs-3", "type": "classic"}]
        api.answer("GET", "/api/queues/a%2Fb", 200, queues)
        for queue in queues:
            details = {**queue, "stream": FACTS}
            api.answer("GET", f"/api/queues/a%2Fb/{queue['name']}", 200, details)

        with Streams(options(api.port, queuePattern="logs-.")) as streams:
            assert sorted(streams.bounds()) == ["logs-1", "logs-2"]
            # While pages are read rows move: who is known is asked for by name.
            api.answer("GET", "/api/queues/a%2Fb/logs-7", 200, {**STREAM, "stream": FACTS})
            assert sorted(streams.bounds(["logs-7", "logs-8"])) == ["logs-1", "logs-2", "logs-7"]
            assert streams.is_wanted("logs-9")
            assert not streams.is_wanted("my-logs-1")

    def test_a_stream_that_left_a_super_stream_is_read_to_its_end(self, api: FakeApi) -> None:
        api.answer("GET", "/api/exchanges/a%2Fb/all", 200, {})
        bound = [{"destination_type": "queue", "destination": "a"}]
        bound += [{"destination_type": "exchange", "destination": "e"}]
        api.answer("GET", "/api/exchanges/a%2Fb/all/bindings/source", 200, bound)
        for name in ("a", "left"):
            details = {**STREAM, "stream": FACTS}
            api.answer("GET", f"/api/queues/a%2Fb/{name}", 200, details)

        with Streams(options(api.port, superStream="all")) as streams:
            assert sorted(streams.bounds(["left", "gone"])) == ["a", "left"]

    def test_a_named_queue_must_be_there_and_be_a_stream(self, api: FakeApi) -> None:
        api.answer("GET", "/api/queues/a%2Fb/classic", 200, {"type": "classic"})

        with Streams(options(api.port, queue="nowhere")) as streams:
            with pytest.raises(SourceError, match="there is no queue 'nowhere'"):
                streams.bounds()
            assert streams.bounds(["nowhere"]) == {}
        classic = Streams(options(api.port, queue="classic"))
        with classic, pytest.raises(SourceError, match="classic queue; reading it would remove"):
            classic.bounds()

    def test_places_of_a_new_query(self, api: FakeApi) -> None:
        held = {"a": Bounds(5, 10), "b": Bounds(1, 1)}
        path = "/api/queues/a%2Fb/{}/stream/{}"
        api.answer("GET", path.format("a", "offset?timestamp=77"), 200, {"offset": 8})
        api.answer("GET", path.format("b", "offset?timestamp=77"), 200, {"offset": 1})
        api.answer("GET", path.format("a", "consumers"), 200, [{"name": "me", "offset": 6}])
        api.answer("GET", path.format("b", "consumers"), 200, [])

        def starts(**more: str) -> dict[str, int]:
            with Streams(options(api.port, queue="a,b", **more)) as streams:
                return streams.starts(held, "earliest")

        assert starts() == {"a": 5, "b": 1}
        assert starts(startingOffsets="latest") == {"a": 10, "b": 1}
        assert starts(startingOffsets='{"a": 7}') == {"a": 7, "b": 1}
        assert starts(startingOffsets='{"a": -1, "b": -2}') == {"a": 10, "b": 1}
        assert starts(startingOffsets="stored", storeOffsets="me") == {"a": 6, "b": 1}
        late = {"startingOffsetsByTimestampStrategy": "latest"}
        assert starts(startingTimestamp="77", **late) == {"a": 8, "b": 1}
        with pytest.raises(SourceError, match="'b' has no message received at 77 ms or later"):
            starts(startingTimestamp="77")

    def test_an_end_beyond_the_stream_is_data_loss(self, api: FakeApi) -> None:
        held = {"a": Bounds(5, 10)}
        strict = Streams(options(api.port, endingOffsets='{"a": 11}'))
        with strict, pytest.raises(DataLossError, match="endingOffsets is 11, it ends at 10"):
            strict.ends(held)
        lenient = options(api.port, endingOffsets='{"a": 11}', failOnDataLoss="false")
        with Streams(lenient) as streams:
            assert streams.ends(held) == {"a": 10}

    def test_a_loss_is_told_with_the_way_to_go_on(
        self, api: FakeApi, caplog: pytest.LogCaptureFixture
    ) -> None:
        lost = loss("a", 2, None, Bounds(5, 10))
        assert lost is not None

        with pytest.raises(DataLossError, match=r"offsets 2 to 4 are gone.*failOnDataLoss=false"):
            Streams(options(api.port)).report(lost)
        Streams(options(api.port, failOnDataLoss="false")).report(lost)

        assert "offsets 2 to 4 are gone, 3 messages" in caplog.text
        assert "s3cret" not in caplog.text

    def test_bounds_of_time_narrow_only_where_the_broker_tells_when_messages_came(
        self, api: FakeApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Elsewhere the column is the publisher's time: messages that it lets through were cut."""
        monkeypatch.setattr("lavinmq.spark.probe.offset_at", lambda *_: 7)
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        pushed = Pushed.of([GreaterThanOrEqual(("timestamp",), moment)])

        with Streams(options(api.port)) as streams:
            assert pushed.narrow(streams, "a", (1, 10)) == (1, 10)
            api.answer("GET", "/api/queues/a%2Fb/a/stream/offset", 200, {"offset": 5})
            assert pushed.narrow(streams, "a", (1, 10)) == (5, 10)
