"""Which messages: by queue, time, routing key and header; options, and what Spark makes of them."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lavinmq.pipeline.arguments import setting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def add_filters(parser: argparse._ActionsContainer) -> None:
    """Add --queue, --since, --until, --key and --header."""
    add = parser.add_argument
    add(
        "--queue",
        metavar="NAME",
        action="append",
        default=[],
        help="messages of this queue; may be repeated",
    )
    add(
        "--since",
        type=moment,
        metavar="TIME",
        help="received then or later: 2026-01-31, 2026-01-31T12:00:00+01:00 (else UTC), or ms",
    )
    add("--until", type=moment, metavar="TIME", help="received before")
    add(
        "--key",
        metavar="PATTERN",
        action="append",
        default=[],
        help="routing key, as topic exchanges match: * is a word, # any number; may be repeated",
    )
    add("--header", type=setting, metavar="NAME=VALUE", action="append", default=[],
        help="with this header; may be repeated, then all are needed")  # fmt: skip


def apply_filters(frame: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Return the messages that the options ask for."""
    from pyspark.sql import functions as F

    if options.queue:
        frame = frame.where(F.col("queue").isin(options.queue))
    if options.since is not None:
        frame = frame.where(F.col("timestamp") >= F.lit(options.since))
    if options.until is not None:
        frame = frame.where(F.col("timestamp") < F.lit(options.until))
    if options.key:
        pattern = "|".join(topic_regex(key) for key in options.key)
        frame = frame.where(F.col("routing_key").rlike(rf"(?s)\A(?:{pattern})\z"))
    for name, value in options.header:
        frame = frame.where(header_text(F.col("headers_json"), name) == F.lit(value))
    return frame


def header_text(headers: Column, name: str) -> Column:
    """The value of a header in text form, from the lossless JSON; null without that header."""
    from pyspark.sql import functions as F

    # {"name": {"S": "value"}}: one entry, whose key is the type.
    typed = F.element_at(F.from_json(headers, "map<string,map<string,string>>"), F.lit(name))
    return F.element_at(F.map_values(typed), 1)


def topic_regex(pattern: str) -> str:
    r"""Return the regular expression, without anchors, of a pattern of a topic exchange.

    `a.*.#` becomes `a\.[^.]*(?:\..*)?`, which Java and Python read alike.
    """
    words = pattern.split(".")
    if words == ["#"]:
        return ".*"
    parts = ""
    # A # takes the dot beside it along; at the beginning it is the one behind it.
    is_dot_due = False
    for index, word in enumerate(words):
        if word == "#":
            parts += r"(?:\..*)?" if is_dot_due else r"(?:.*\.)?"
            if not is_dot_due and index == len(words) - 1:
                parts = parts.removesuffix(r"(?:.*\.)?") + ".*"
            continue
        parts += r"\." if is_dot_due else ""
        parts += "[^.]*" if word == "*" else _literal(word)
        is_dot_due = True
    return parts


def moment(text: str) -> datetime:
    """Read a time: ISO 8601, UTC unless it says otherwise, or milliseconds since 1970."""
    try:
        if re.fullmatch(r"\d{5,15}", text):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"expected a time such as 2026-01-31T12:00:00, got: {text}"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _literal(word: str) -> str:
    return re.sub(r"([^\w])", r"\\\1", word)
