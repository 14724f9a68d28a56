"""A streaming query whose Python worker starts too slowly for Spark's fixed 10 s."""

from __future__ import annotations

import argparse
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.progress import Silence
from lavinmq.pipeline.streaming import STARTS_MAX, run_stream

SLOW = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back."


class Query:
    """A query that fails with a text, or ends well after one batch when that is empty."""

    def __init__(self, text: str, batch: int) -> None:
        self._text = text
        self.recentProgress = [] if text else [{"batchId": batch, "numInputRows": 7, "sources": []}]

    def awaitTermination(self, _timeout: float) -> bool:
        if self._text:
            raise StreamingQueryException(self._text)
        return True

    def stop(self) -> None: ...


class Writer:
    """Starts queries that fail with these texts, one after the other."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.starts = 0

    def option(self, *_args: str) -> Writer:
        return self

    def trigger(self, **_kwargs: object) -> Writer:
        return self

    def start(self) -> Query:
        self.starts += 1
        return Query(self.texts[self.starts - 1], self.starts)


def run(writer: Writer) -> dict[str, Any]:
    job = Job(name="test", help="", configure=lambda parser: None, run=lambda run: Result())
    options = argparse.Namespace(checkpoint="c", once=True)
    return run_stream(Run(job, options, Silence()), cast("Any", writer)).values()


def test_it_is_started_again_and_the_rows_are_counted() -> None:
    writer = Writer(SLOW, "")

    assert run(writer)["rows"] == 7
    assert writer.starts == 2


def test_it_is_given_up_after_some_starts() -> None:
    writer = Writer(*[SLOW] * (STARTS_MAX + 1))

    with pytest.raises(StreamingQueryException, match="connect back"):
        run(writer)
    assert writer.starts == STARTS_MAX


def test_another_failure_is_told_at_once() -> None:
    writer = Writer("[STREAM_FAILED] the disk is full", "")

    with pytest.raises(StreamingQueryException, match="disk is full"):
        run(writer)
    assert writer.starts == 1
