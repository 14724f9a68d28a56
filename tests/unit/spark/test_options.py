"""Options of the format lavinmq: each has its rule, and a mistake is one line that names it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lavinmq.spark.options import (
    SINK_NAMES,
    SOURCE_NAMES,
    OptionError,
    SinkOptions,
    SourceOptions,
    check_names,
)
from lavinmq.spark.schema import COLUMNS

URL = "amqp://ann:s3cret@broker:5673/shop"
BASE = {"url": URL, "queue": "orders"}


def source(streaming: bool | None = None, /, **options: str) -> SourceOptions:
    return SourceOptions.parse(BASE | options, streaming)


def problem(streaming: bool | None = None, /, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        source(streaming, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert "s3cret" not in text
    return text


def test_defaults_are_those_of_the_documentation() -> None:
    options = source()

    assert options.queues == ("orders",)
    assert (options.max_records, options.prefetch, options.batch_rows) == (500_000, 2000, 10_000)
    assert (options.read_timeout_s, options.max_delay_s) == (30.0, 900.0)
    assert (options.transport, options.fail_on_data_loss) == ("amqp", True)
    assert options.columns == tuple(n for n in COLUMNS if not n.startswith("headers"))
    assert options.starting is None
    assert options.ending == "latest"


def test_names_are_known_in_any_case() -> None:
    assert source(STARTINGoffsets="earliest").starting == "earliest"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("queues", "queue"),
        ("failondataLos", "failOnDataLoss"),
        ("prefetchCount", "prefetch"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(given: str, meant: str) -> None:
    assert problem(**{given: "1"}) == f"unknown option {given!r}; did you mean {meant!r}?"


def test_a_name_near_to_none_is_refused_with_the_list() -> None:
    assert "superStream" in problem(zzz="1")


def test_options_of_spark_itself_are_ignored() -> None:
    assert source(path="/x", checkpointLocation="/y").queues == ("orders",)


def test_a_name_of_either_side_passes_the_first_check() -> None:
    check_names({"ROUTINGKEY": "a", "queue": "b"})

    with pytest.raises(OptionError, match="did you mean 'routingKey'"):
        check_names({"routngKey": "a"})


@pytest.mark.parametrize("name", ["queuePattern", "superStream", "assign"])
def test_what_is_read_is_said_once(name: str) -> None:
    assert f"there are queue, {name}" in problem(**{name: '["a"]'})


def test_what_is_read_is_said_at_all() -> None:
    with pytest.raises(OptionError, match="exactly one of the options queue, queuePattern"):
        SourceOptions.parse({"url": URL})


def test_lists_of_queues_are_split_and_trimmed() -> None:
    assert source(queue=" a , b").queues == ("a", "b")
    options = SourceOptions.parse({"url": URL, "assign": '["a", "b,c"]'})
    assert options.queues == ("a", "b,c")


@pytest.mark.parametrize(
    ("streaming", "options"),
    [
        (None, {"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"orders":1}'}),
        (None, {"endingTimestamp": "1", "endingOffsetsByTimestamp": '{"orders":1}'}),
        (None, {"includeHeaders": "true", "columns": "offset"}),
        (None, {"filter": '"a"', "transport": "http"}),
        (None, {"filterMatch": "any"}),
        (None, {"maxTriggerDelay": "1m"}),
        (None, {"startingOffsets": "stored"}),
        (None, {"password": "a", "passwordFile": "/b"}),
        (None, {"sslKeyFile": "/k"}),
        (None, {"maxRecords": "5"}),
        (False, {"startingOffsets": "latest"}),
        (False, {"maxOffsetsPerTrigger": "5"}),
        (True, {"endingOffsets": "latest"}),
        (True, {"endingTimestamp": "1"}),
        (True, {"filterPushdown": "true"}),
        (True, {"mode": "peek"}),
    ],
)
def test_options_that_do_not_fit_are_refused(
    streaming: bool | None, options: dict[str, str]
) -> None:
    assert problem(streaming, **options).find(next(iter(options))) >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefetch", "0"),
        ("prefetch", "65536"),
        ("prefetch", "many"),
        ("batchRows", "1.5"),
        ("minPartitions", "-1"),
        ("maxRecordsPerPartition", "9" * 30),
        ("maxOffsetsPerTrigger", "0"),
        ("maxBytesPerTrigger", "0m"),
        ("maxBytesPerTrigger", "5 parsec"),
        ("readTimeout", "30"),
        ("readTimeout", "0s"),
        ("failOnDataLoss", "maybe"),
        ("startingOffsets", "first"),
        ("startingOffsets", '{"orders":"5"}'),
        ("startingOffsets", '{"orders":-3}'),
        ("startingOffsets", '{"orders":true}'),
        ("startingOffsets", '{"order":5}'),
        ("startingOffsets", "{"),
        ("endingOffsets", '{"orders":-2}'),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestamp", "[]"),
        ("startingOffsetsByTimestampStrategy", "guess"),
        ("filter", "{"),
        ("filter", "5"),
        ("filter", '""'),
        ("transport", "udp"),
        ("includeHeaders", "some"),
        ("columns", "offset,boddy"),
        ("columns", "offset,offset"),
        ("columns", " "),
        ("queue", "a,,b"),
        ("queue", "a,a"),
        ("httpUrl", "ftp://x"),
        ("httpUrl", "http://ann:s3cret@x"),
        ("httpUrl", "http://x:port"),
        ("storeOffsets", ""),
        ("mode", "steal"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    assert name in problem(**{name: value})


@pytest.mark.parametrize("value", ['["a"', '"a"', "[1]", "[]", '["a","a"]'])
def test_assign_wants_a_list_of_distinct_names(value: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        SourceOptions.parse({"url": URL, "assign": value})


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(OptionError, match="queuePattern is no regular expression"):
        SourceOptions.parse({"url": URL, "queuePattern": "("})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("15 m", 900), ("2H", 7200), ("1.5d", 129600)],
)
def test_durations_have_a_unit(text: str, seconds: float) -> None:
    assert source(readTimeout=text).read_timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("1000", 1000), ("64k", 65536), ("1 MiB", 1 << 20), ("2gb", 2 << 30)]
)
def test_sizes_may_have_a_unit(text: str, n_bytes: int) -> None:
    assert source(maxBytesPerTrigger=text).max_bytes == n_bytes


@pytest.mark.parametrize(
    "text",
    ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "2023-11-14 22:13:20"],
)
def test_times_are_milliseconds_or_iso_8601(text: str) -> None:
    assert source(startingTimestamp=text).starting_ms == 1_700_000_000_000


def test_offsets_and_times_by_queue_are_json() -> None:
    options = SourceOptions.parse(
        {
            "url": URL,
            "queue": "a,b",
            "startingOffsets": '{"a": -2, "b": 7}',
            "endingOffsets": '{"a": -1}',
            "startingOffsetsByTimestamp": '{"b": 5}',
        }
    )

    assert options.starting == {"a": -2, "b": 7}
    assert options.ending == {"a": -1}
    assert options.starting_ms == {"b": 5}


def test_headers_come_as_map_or_as_json() -> None:
    assert source(includeHeaders="true").columns[-1] == "headers"
    assert source(includeHeaders="JSON").columns[-1] == "headers_json"


def test_columns_keep_their_order() -> None:
    assert source(columns="body, offset").columns == ("body", "offset")


def test_peek_reads_one_classic_queue() -> None:
    assert source(False, mode="peek").peek_records == 10_000
    assert source(False, mode="peek", maxRecords="5").peek_records == 5
    assert "mode=peek" in problem(False, mode="peek", queue="a,b")


class TestConnection:
    def test_a_url_has_all_parts_and_defaults(self) -> None:
        connection = source(url="amqp://h").connection

        assert [str(node) for node in connection.nodes] == ["h:5672"]
        assert (connection.vhost, connection.user, connection.password) == ("/", "guest", "guest")

    def test_parts_are_unescaped(self) -> None:
        connection = source(url="amqps://a%40b:p%2Fw@[::1]/%2Fteam").connection

        assert [str(node) for node in connection.nodes] == ["[::1]:5671"]
        assert connection.nodes[0].tls
        assert (connection.vhost, connection.user, connection.password) == ("/team", "a@b", "p/w")

    def test_several_nodes_share_what_the_first_says(self) -> None:
        connection = source(url="amqp://u:p@a/v, amqp://b:5679").connection

        assert [str(node) for node in connection.nodes] == ["a:5672", "b:5679"]
        assert (connection.user, connection.vhost) == ("u", "v")

    @pytest.mark.parametrize(
        "url",
        [
            "http://ann:s3cret@h",
            "ann:s3cret@h",
            "amqp://",
            "amqp://ann:s3cret@h:0x",
            "amqp://h:99999",
            "amqp://u@a/v,amqp://u@b/w",
            "amqp://a,,amqp://b",
        ],
    )
    def test_a_url_that_is_none_is_refused_without_showing_it(self, url: str) -> None:
        assert problem(url=url).startswith("option url")

    def test_options_count_more_than_the_url(self) -> None:
        connection = source(user="bob", password="x", vhost="v").connection

        assert (connection.user, connection.password, connection.vhost) == ("bob", "x", "v")

    def test_the_environment_has_the_url_when_no_option_has(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAVINMQ_URL", "amqp://elsewhere")
        assert str(SourceOptions.parse({"queue": "q"}).connection.nodes[0]) == "elsewhere:5672"

        monkeypatch.delenv("LAVINMQ_URL")
        with pytest.raises(OptionError, match="option url is missing"):
            SourceOptions.parse({"queue": "q"})

    def test_a_password_is_read_from_its_file_where_it_is_needed(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        connection = source(passwordFile=str(file)).connection
        with pytest.raises(OptionError, match=r"option passwordFile: .*secret: No such file"):
            connection.secret()

        file.write_text("hush\n")

        assert connection.secret() == "hush"

    def test_no_text_of_it_has_the_password(self) -> None:
        options = source(password="hush")

        assert "hush" not in repr(options)
        assert "hush" not in str(options.connection)

    def test_it_can_be_pickled(self) -> None:
        options = source(startingOffsets='{"orders": 5}')

        assert pickle.loads(pickle.dumps(options)) == options


class TestSink:
    def sink(self, **options: str) -> SinkOptions:
        return SinkOptions.parse({"url": URL} | options)

    def test_defaults(self) -> None:
        options = self.sink()

        assert (options.confirm, options.max_in_flight, options.persistent) == (True, 10_000, True)
        assert (options.exchange, options.routing_key, options.dedup) == (None, None, "none")
        assert options.declare == "none"

    def test_the_default_exchange_has_an_empty_name(self) -> None:
        assert self.sink(exchange="").exchange == ""

    def test_a_transaction_stands_for_confirms(self) -> None:
        assert self.sink(transactional="true").confirm is False

    @pytest.mark.parametrize(
        "options",
        [
            {"dedup": "id"},
            {"dedup": "always"},
            {"transactional": "true", "confirm": "true"},
            {"declare": "stream"},
            {"maxInFlight": "0"},
            {"ratePerSecond": "0"},
            {"queue": "q"},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, options: dict[str, str]) -> None:
        with pytest.raises(OptionError, match=next(iter(options))):
            self.sink(**options)


def test_no_name_is_listed_twice() -> None:
    for names in (SOURCE_NAMES, SINK_NAMES):
        assert len({name.lower() for name in names}) == len(names)
