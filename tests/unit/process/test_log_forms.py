"""Log lines for machines: JSON and logfmt, always one line, whatever is in them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.process import log
from lavinmq.process.log_forms import FORMS, Fields, json_line, logfmt_line

TIME = "2026-07-01T10:20:30.123456Z"


@pytest.fixture(autouse=True)
def logging_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the process's logging back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for switch in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):
        monkeypatch.setattr(logging, switch, getattr(logging, switch, None), raising=False)
    monkeypatch.setattr(logging, "_srcfile", logging._srcfile)
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


def fields(message: str = "text", exception: str = "", **context: object) -> Fields:
    return Fields(TIME, "info", "lmq.server", context, message, exception)


def test_a_json_line_is_one_object_in_a_fixed_order() -> None:
    found = json.loads(json_line(fields(vhost="/", channel=7, is_open=True)))

    assert list(found.items()) == [
        ("time", TIME), ("level", "info"), ("source", "lmq.server"), ("vhost", "/"),
        ("channel", 7), ("is_open", True), ("message", "text"),
    ]  # fmt: skip


def test_an_exception_is_a_key_of_its_own() -> None:
    found = json.loads(json_line(fields(exception="Traceback\n  at x\nValueError: y")))

    assert found["message"] == "text"
    assert found["exception"] == "Traceback\n  at x\nValueError: y"


def test_a_context_cannot_replace_what_every_entry_has() -> None:
    found = json.loads(json_line(fields(level="x", time="y")))

    assert (found["level"], found["time"]) == ("info", TIME)
    assert (found["context_level"], found["context_time"]) == ("x", "y")


def test_a_logfmt_line_quotes_what_needs_it() -> None:
    line = logfmt_line(fields('two words "x"', client="1.2.3.4:5", empty="", odd="a=b"))

    assert line == (
        f"time={TIME} level=info source=lmq.server client=1.2.3.4:5"
        r' empty="" odd="a=b" message="two words \"x\""'
    )


def test_logfmt_says_true_and_false() -> None:
    assert " a=true b=false c=1.5 " in logfmt_line(fields(a=True, b=False, c=1.5))


@given(message=st.text(max_size=60), value=st.text(max_size=30), exception=st.text(max_size=60))
@pytest.mark.parametrize("form", sorted(FORMS))
def test_any_entry_is_one_printable_line(
    form: str, message: str, value: str, exception: str
) -> None:
    line = FORMS[form](fields(message, exception, name=value))

    assert line.isprintable()
    assert line.splitlines() == [line]
    line.encode()


@given(message=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_json_gives_the_message_back(message: str) -> None:
    assert json.loads(json_line(fields(message)))["message"] == message


def test_octets_that_are_no_utf8_are_shown() -> None:
    found = json.loads(json_line(fields(b"a\xff".decode("utf-8", "surrogateescape"))))

    assert found["message"] == "a\\udcff"


# --- through the log itself -----------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_log_writes_json_when_told(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log.setup("debug", str(path), {}, "json")

    log.get("lmq.vhost", vhost="a\nb").warning("queue %r is odd", "q")
    try:
        raise ValueError("why")
    except ValueError as error:
        log.get("lmq.server").error("bug", exc_info=error)

    first, second = lines_of(path)
    assert (first["level"], first["source"], first["vhost"]) == ("warn", "lmq.vhost", "a\nb")
    assert first["message"] == "queue 'q' is odd"
    assert "exception" not in first
    assert second["message"] == "bug"
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("ValueError: why")


def test_the_ring_keeps_text_whatever_the_form(tmp_path: Path) -> None:
    log.setup("info", str(tmp_path / "broker.log"), {}, "json")

    log.get("lmq.server", vhost="/").info("text")

    entry = log.recent()[-1]
    assert (entry.context, entry.text) == ('[vhost: "/"]', "text")


def test_a_reload_changes_the_form(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log.setup("info", str(path), {}, "logfmt")
    log.get("lmq.server").info("one")
    log.setup("info", str(path), {}, "text")
    log.get("lmq.server").info("two")

    one, two = path.read_text().splitlines()
    assert one.endswith(" level=info source=lmq.server message=one")
    assert two.endswith("Z  INFO lmq.server two")


def test_the_journal_gets_the_priority_in_front(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(1)
    log.setup("info", None, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, "json")

    log.get("lmq.server").error("text")

    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("<3> {")
    assert json.loads(line[4:])["message"] == "text"
