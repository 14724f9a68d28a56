"""Options of the format `lavinmq`: how to reach the broker, what to read, how to publish.

Made from the text options of Spark (or of the command line) by `parse`; checked once, there. A
mistyped option must not read from the wrong place without a word, so unknown names and options
that contradict each other are errors. Nothing of pyspark; frozen, picklable, without sockets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from lavinmq.spark.option_values import OptionError, Values
from lavinmq.spark.schema import check_columns, default_columns

__all__ = ["ConnectionOptions", "Node", "OptionError", "SinkOptions", "SourceOptions"]

PORTS = {"amqp": 5672, "amqps": 5671}
HTTP_PORT, HTTPS_PORT = 15672, 15671
URL_VARIABLE = "LAVINMQ_URL"

# Spark hands its own options over with ours.
IGNORED = ("path", "checkpointLocation", "queryName")
CONNECTION_NAMES = (
    *("url", "user", "password", "passwordFile", "vhost", "httpUrl", "clientName"),
    *("sslCaFile", "sslCertFile", "sslKeyFile", "sslVerify"),
)
QUEUE_NAMES = ("queue", "queuePattern", "superStream", "assign")
START_NAMES = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
END_NAMES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay"),
)
BATCH_ONLY = (*END_NAMES, "filterPushdown", "mode", "maxRecords")
SOURCE_NAMES = (
    *CONNECTION_NAMES,
    *QUEUE_NAMES,
    *START_NAMES,
    *STREAM_ONLY,
    *BATCH_ONLY,
    *("startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition"),
    *("prefetch", "batchRows", "readTimeout", "failOnDataLoss", "filter", "filterMatch"),
    *("transport", "storeOffsets", "includeHeaders", "columns"),
)
SINK_NAMES = (
    *CONNECTION_NAMES,
    *("exchange", "routingKey", "confirm", "maxInFlight", "mandatory", "persistent"),
    *("transactional", "idColumn", "dedup", "batchId", "keepOrigin", "declare", "ratePerSecond"),
    *("ignoreExtraColumns", "queryId", "confirmTimeout"),
)


@dataclass(frozen=True, slots=True)
class Node:
    """One broker to try: where it listens, and whether it speaks TLS there."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the broker, for AMQP in tasks and for HTTP while planning. Picklable.

    `nodes` are tried in order. The password is in `password`, or in the first line of the file
    `password_file`, read where the connection is made; it is never part of `repr`.
    """

    nodes: tuple[Node, ...]
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    password_file: str | None = None
    http_url: str | None = None
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    ssl_verify: bool = True
    client_name: str = "spark"

    @classmethod
    def parse(cls, values: Values) -> Self:
        """Return the options for connections. Raises OptionError."""
        url = values.text("url") or os.environ.get(URL_VARIABLE)
        if not url:
            raise OptionError(f"option url is missing, and {URL_VARIABLE} is not set")
        nodes, vhost, user, password = _parse_urls(url)
        if len(values.given("password", "passwordFile")) > 1:
            raise OptionError("give one of the options password and passwordFile")
        if bool(values.text("sslKeyFile")) and not values.text("sslCertFile"):
            raise OptionError("option sslKeyFile needs sslCertFile")
        return cls(
            nodes=nodes,
            vhost=values.text("vhost") or vhost,
            user=values.text("user") or user,
            password=values.plain("password") or password,
            password_file=values.text("passwordFile"),
            http_url=_parse_http_url(values),
            ssl_ca_file=values.text("sslCaFile"),
            ssl_cert_file=values.text("sslCertFile"),
            ssl_key_file=values.text("sslKeyFile"),
            ssl_verify=values.boolean("sslVerify", True),
            client_name=values.text("clientName") or "spark",
        )

    def secret(self) -> str:
        """Return the password. Raises OptionError when its file cannot be read."""
        if self.password_file is None:
            return self.password
        try:
            text = Path(self.password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise OptionError(f"option passwordFile: {self.password_file}: {reason}") from None
        return text.splitlines()[0] if text else ""

    def __str__(self) -> str:
        """Hosts and vhost, for error texts."""
        return f"{', '.join(map(str, self.nodes))} vhost {self.vhost}"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, from where to where, in which portions.

    Exactly one of `queues` (from `queue` or `assign`), `queue_pattern` and `super_stream` is set.
    `starting` and `ending` are `earliest`, `latest`, `stored`, or offsets by queue (-2 the
    earliest, -1 the latest); a time counts more. Times are in milliseconds since 1970.
    """

    connection: ConnectionOptions
    queues: tuple[str, ...]
    queue_pattern: str | None
    super_stream: str | None
    starting: str | Mapping[str, int] | None
    ending: str | Mapping[str, int]
    starting_ms: int | Mapping[str, int] | None
    ending_ms: int | Mapping[str, int] | None
    latest_when_no_time: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int
    max_records: int
    prefetch: int
    batch_rows: int
    read_timeout_s: float
    fail_on_data_loss: bool
    filter: str | None
    filter_match: str | None
    transport: str
    store_offsets: str | None
    columns: tuple[str, ...]
    filter_pushdown: bool
    peek_records: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str], streaming: bool | None = None) -> Self:
        """Return checked options; `streaming` is None where that is not known yet.

        Raises OptionError, one line that names the option.
        """
        values = Values(options, SOURCE_NAMES, IGNORED)
        _check_together(values, streaming)
        queues = values.name_list("queue") or values.json_names("assign")
        peek = values.choice("mode", ("log", "peek"), "log") == "peek"
        if peek and len(values.name_list("queue")) != 1:
            raise OptionError("option mode=peek needs one queue, in the option queue")
        if values.given("maxRecords") and not peek:
            raise OptionError("option maxRecords needs mode=peek")
        return cls(
            connection=ConnectionOptions.parse(values),
            queues=queues,
            queue_pattern=values.pattern("queuePattern"),
            super_stream=values.text("superStream"),
            starting=_parse_starting(values, streaming),
            ending=_parse_ending(values),
            starting_ms=_parse_times(values, "startingTimestamp", "startingOffsetsByTimestamp"),
            ending_ms=_parse_times(values, "endingTimestamp", "endingOffsetsByTimestamp"),
            latest_when_no_time=values.choice(
                "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
            )
            == "latest",
            max_offsets=values.integer("maxOffsetsPerTrigger", None),
            max_bytes=values.size_bytes("maxBytesPerTrigger"),
            min_offsets=values.integer("minOffsetsPerTrigger", None),
            max_delay_s=values.duration_s("maxTriggerDelay", 900.0),
            min_partitions=values.number("minPartitions", 1, high=100_000),
            max_records=values.number("maxRecordsPerPartition", 500_000),
            prefetch=values.number("prefetch", 2000, high=65535),
            batch_rows=values.number("batchRows", 10_000, high=10_000_000),
            read_timeout_s=values.duration_s("readTimeout", 30.0),
            fail_on_data_loss=values.boolean("failOnDataLoss", True),
            filter=_parse_filter(values),
            filter_match=_parse_filter_match(values),
            transport=values.choice("transport", ("amqp", "http"), "amqp"),
            store_offsets=values.text("storeOffsets"),
            columns=_parse_columns(values),
            filter_pushdown=values.boolean("filterPushdown", False),
            peek_records=values.number("maxRecords", 10_000, high=65_535) if peek else None,
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where and how to publish rows.

    `exchange` and `routing_key` count more than the columns of those names. `dedup` is `none`,
    `row` or `id`, `declare` is `none`, `stream` or `classic`. `query_id` and `batch_id` name what a
    job publishes, for `dedup=row`. `confirm_timeout_s` bounds the wait for the next confirm.
    """

    connection: ConnectionOptions
    exchange: str | None
    routing_key: str | None
    confirm: bool
    max_in_flight: int
    mandatory: bool
    persistent: bool
    transactional: bool
    id_column: str | None
    dedup: str
    query_id: str | None
    batch_id: str | None
    keep_origin: bool
    declare: str
    rate_per_second: int | None
    ignore_extra_columns: bool
    confirm_timeout_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Return checked options. Raises OptionError, one line that names the option."""
        values = Values(options, SINK_NAMES, IGNORED)
        # Whoever names a column of ids wants repeats to be recognized, unless they say otherwise.
        usual = "id" if values.text("idColumn") else "none"
        dedup = values.choice("dedup", ("none", "row", "id"), usual)
        if dedup == "id" and not values.text("idColumn"):
            raise OptionError("option dedup=id needs idColumn")
        transactional = values.boolean("transactional", False)
        if transactional and values.given("confirm") and values.boolean("confirm", True):
            raise OptionError("give one of the options confirm and transactional")
        declare = values.choice("declare", ("none", "stream", "classic"), "none")
        if declare != "none" and not values.text("routingKey"):
            raise OptionError("option declare needs routingKey, the name of the queue")
        if declare != "none" and values.plain("exchange"):
            raise OptionError("option declare needs the default exchange, exchange is given")
        return cls(
            connection=ConnectionOptions.parse(values),
            exchange=values.plain("exchange"),
            routing_key=values.plain("routingKey"),
            confirm=values.boolean("confirm", True) and not transactional,
            max_in_flight=values.number("maxInFlight", 10_000, high=1_000_000),
            mandatory=values.boolean("mandatory", False),
            persistent=values.boolean("persistent", True),
            transactional=transactional,
            id_column=values.text("idColumn"),
            dedup=dedup,
            query_id=values.text("queryId"),
            batch_id=values.text("batchId"),
            keep_origin=values.boolean("keepOrigin", False),
            declare=declare,
            rate_per_second=values.integer("ratePerSecond", None),
            ignore_extra_columns=values.boolean("ignoreExtraColumns", False),
            confirm_timeout_s=values.duration_s("confirmTimeout", 120.0),
        )


def check_names(options: Mapping[str, str]) -> None:
    """Refuse a name that neither source nor sink knows. Raises OptionError."""
    Values(options, dict.fromkeys((*SOURCE_NAMES, *SINK_NAMES)), IGNORED)


def _check_together(values: Values, streaming: bool | None) -> None:
    """Raise OptionError for options that exclude each other, or that make no sense here."""
    chosen = values.given(*QUEUE_NAMES)
    if len(chosen) != 1:
        found = f"; there are {', '.join(chosen)}" if chosen else ""
        raise OptionError(f"give exactly one of the options {', '.join(QUEUE_NAMES)}{found}")
    for names in (
        ("startingTimestamp", "startingOffsetsByTimestamp"),
        ("endingTimestamp", "endingOffsetsByTimestamp"),
        ("includeHeaders", "columns"),
    ):
        if len(values.given(*names)) > 1:
            raise OptionError(f"give one of the options {' and '.join(names)}")
    if streaming is True and (misplaced := values.given(*BATCH_ONLY)):
        raise OptionError(f"option {misplaced[0]} is for batch queries, this one is streaming")
    if streaming is False and (misplaced := values.given(*STREAM_ONLY)):
        raise OptionError(f"option {misplaced[0]} is for streaming queries, this one is a batch")
    if values.given("filterMatch") and not values.given("filter"):
        raise OptionError("option filterMatch needs filter")
    if values.given("maxTriggerDelay") and not values.given("minOffsetsPerTrigger"):
        raise OptionError("option maxTriggerDelay needs minOffsetsPerTrigger")
    if values.given("filter") and values.choice("transport", ("amqp", "http"), "amqp") == "http":
        raise OptionError("option filter needs transport=amqp; the bulk endpoint does not filter")


def _parse_urls(text: str) -> tuple[tuple[Node, ...], str, str, str]:
    """Return nodes, vhost, user and password of a list of URLs; those of the first that has them.

    The text is in no error: it may hold a password.
    """
    nodes: list[Node] = []
    found: dict[str, str] = {}
    for number, url in enumerate(text.split(","), 1):
        try:
            parts = urlsplit(url.strip())
            port = parts.port or PORTS[parts.scheme]
            host = parts.hostname
        except (ValueError, KeyError):
            host = None
        if not host:
            where = f" (entry {number})" if "," in text else ""
            raise OptionError(
                f"option url is not understood{where}; expected amqp://user:password@host:port/vhost"
            )
        nodes.append(Node(unquote(host), port, parts.scheme == "amqps"))
        given = {"user": parts.username, "password": parts.password, "vhost": parts.path[1:]}
        for key, value in given.items():
            if value and found.setdefault(key, value) != value:
                raise OptionError(f"option url names more than one {key}")
    return (
        tuple(nodes),
        unquote(found.get("vhost", "/")),
        unquote(found.get("user", "guest")),
        unquote(found.get("password", "guest")),
    )


def _parse_http_url(values: Values) -> str | None:
    url = values.text("httpUrl")
    if url is None:
        return None
    try:
        parts = urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.username or parts.password or parts.query or parts.fragment:
        raise OptionError("option httpUrl is not understood; expected http://host:15672")
    return url.strip().rstrip("/")


def _parse_starting(values: Values, streaming: bool | None) -> str | dict[str, int] | None:
    text = values.text("startingOffsets")
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        return _only_queues(values, "startingOffsets", values.json_numbers("startingOffsets", -2))
    word = values.choice("startingOffsets", ("earliest", "latest", "stored"), "earliest")
    if word == "latest" and streaming is False:
        raise OptionError("option startingOffsets=latest has nothing to read in a batch query")
    if word == "stored" and not values.text("storeOffsets"):
        raise OptionError("option startingOffsets=stored needs storeOffsets, the consumer's name")
    return word


def _parse_ending(values: Values) -> str | dict[str, int]:
    text = values.text("endingOffsets") or "latest"
    if text.lstrip().startswith("{"):
        numbers = values.json_numbers("endingOffsets", -2)
        offsets = _only_queues(values, "endingOffsets", numbers)
        if offsets and -2 in offsets.values():
            raise OptionError("option endingOffsets has -2, the earliest; a range cannot end there")
        return offsets or {}
    return values.choice("endingOffsets", ("latest",), "latest")


def _parse_times(values: Values, single: str, by_queue: str) -> int | dict[str, int] | None:
    moment = values.time_ms(single)
    if moment is not None:
        return moment
    return _only_queues(values, by_queue, values.json_numbers(by_queue))


def _only_queues(
    values: Values, name: str, numbers: dict[str, int] | None
) -> dict[str, int] | None:
    """Refuse a queue that is not read: a mistyped name would read another range without a word."""
    queues = values.name_list("queue") or values.json_names("assign")
    for queue in numbers or ():
        if queues and queue not in queues:
            raise OptionError(f"option {name} names {queue!r}, which is not among the queues read")
    return numbers


def _parse_filter(values: Values) -> str | None:
    text = values.text("filter")
    if text is not None:
        wanted = values.json("filter")
        if not wanted or not isinstance(wanted, str | dict | list):
            raise values.error("filter", 'JSON for x-stream-filter, as in "a" or {"kind": "a"}')
    return text


def _parse_filter_match(values: Values) -> str | None:
    if not values.given("filter"):
        return None
    return values.choice("filterMatch", ("all", "any"), "all")


def _parse_columns(values: Values) -> tuple[str, ...]:
    names: Iterable[str] = values.name_list("columns")
    if not names:
        return default_columns(values.choice("includeHeaders", ("false", "true", "json"), "false"))
    try:
        return check_columns(names)
    except ValueError as error:
        raise OptionError(f"option columns: {error}") from None
