"""Logging: line formats, levels, output, the ring of latest entries."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavinmq.config.values import ConfigError
from lavinmq.process import log

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
SWITCHES = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile")


@pytest.fixture(autouse=True)
def logging_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the process's logging back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for switch in SWITCHES:
        monkeypatch.setattr(logging, switch, getattr(logging, switch, None), raising=False)
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """A file that all levels are logged to."""
    path = tmp_path / "broker.log"
    log.setup("trace", str(path), {})
    return path


def test_a_line_has_time_severity_source_context_and_text(log_file: Path) -> None:
    logger = log.get("lmq.server", vhost="/", client="1.2.3.4:5", channel=7)

    logger.info("text %d", 5)

    expected = r'  INFO lmq\.server\[vhost: "/", client: "1\.2\.3\.4:5", channel: 7\] text 5\n'
    assert re.fullmatch(TIME + expected, log_file.read_text())


def test_a_line_without_context_has_no_brackets(log_file: Path) -> None:
    log.get("lmq.server").info("text")

    assert log_file.read_text().endswith("Z  INFO lmq.server text\n")


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("trace", " TRACE "),
        ("debug", " DEBUG "),
        ("info", "  INFO "),
        ("notice", " NOTICE "),
        ("warning", "  WARN "),
        ("error", " ERROR "),
        ("fatal", " FATAL "),
        ("critical", " FATAL "),
    ],
)
def test_the_severity_is_right_aligned(log_file: Path, level: str, shown: str) -> None:
    getattr(log.get("lmq.x"), level)("text")

    assert f"Z{shown}lmq.x text\n" in log_file.read_text()


def test_microseconds_are_those_of_the_record(log_file: Path) -> None:
    record = logging.makeLogRecord({"name": "lmq.x", "levelno": 20, "msg": "t"})
    record.created = 1782901230.5

    logging.getLogger().handle(record)

    assert log_file.read_text() == "2026-07-01T10:20:30.500000Z  INFO lmq.x t\n"


def test_context_is_added_by_bind_and_does_not_change_the_original(log_file: Path) -> None:
    outer = log.get("lmq.queue", vhost="/")

    outer.bind(queue="q").info("inner")
    outer.info("outer")

    inner_line, outer_line = log_file.read_text().splitlines()
    assert inner_line.endswith('lmq.queue[vhost: "/", queue: "q"] inner')
    assert outer_line.endswith('lmq.queue[vhost: "/"] outer')


def test_context_may_be_given_by_the_caller_of_a_plain_logger(log_file: Path) -> None:
    logging.getLogger("lmq.queue").info("text", extra={"ctx": {"queue": "q"}})

    assert log_file.read_text().endswith('lmq.queue[queue: "q"] text\n')


def test_a_name_cannot_forge_a_line_or_leave_its_quotes(log_file: Path) -> None:
    logger = log.get("lmq.queue", queue='a"] x\nb\\')

    logger.info("deleted %s", "q\r\n2026 FATAL\x1b[31m")

    (line,) = log_file.read_text().splitlines()
    assert line.endswith(r'lmq.queue[queue: "a\"] x\nb\\"] deleted q\r\n2026 FATAL\x1b[31m')


def test_a_name_that_is_not_utf_8_is_escaped(log_file: Path) -> None:
    text = f"directory {os.fsdecode(bytes([255]))}"
    record = logging.makeLogRecord({"name": "lmq.server", "levelno": 20, "msg": text})

    # Past the test runner's own handlers, which cannot report such a text.
    for handler in logging.getLogger().handlers:
        if isinstance(handler, log._Output):
            handler.handle(record)

    assert log_file.read_text().endswith(r"lmq.server directory \udcff" + "\n")


def test_text_of_other_scripts_is_written_as_it_is(log_file: Path) -> None:
    log.get("lmq.queue", queue="köö").info("ж")

    assert log_file.read_text(encoding="utf-8").endswith('[queue: "köö"] ж\n')


def test_an_exception_follows_on_the_next_lines(log_file: Path) -> None:
    try:
        raise ValueError("broken\x1b")
    except ValueError:
        log.get("lmq.x").exception("failed")

    first, second, *_, last = log_file.read_text().splitlines()
    assert first.endswith(" ERROR lmq.x failed")
    assert second == "Traceback (most recent call last):"
    assert last == r"ValueError: broken\x1b"


def test_only_the_level_and_worse_is_logged(log_file: Path) -> None:
    log.set_level("notice")
    logger = log.get("lmq.x")

    logger.info("no")
    logger.notice("yes")
    logger.error("yes")

    assert log_file.read_text().count(" yes\n") == 2
    assert " no\n" not in log_file.read_text()


def test_level_none_logs_nothing_at_all(log_file: Path) -> None:
    log.set_level("none")

    log.get("lmq.x").fatal("text")

    assert log_file.read_text() == ""


def test_an_unknown_level_is_refused_and_changes_nothing(log_file: Path) -> None:
    with pytest.raises(ValueError, match="'loud' is not a log level"):
        log.set_level("loud")

    assert logging.getLogger().level == log.TRACE


def test_records_of_other_libraries_are_logged_with_the_nearest_severity(log_file: Path) -> None:
    logging.getLogger("asyncio").log(35, "odd")
    logging.getLogger("asyncio").log(1, "low")
    logging.getLogger().handle(logging.makeLogRecord({"levelno": 99, "msg": "high", "name": "a"}))

    text = log_file.read_text()
    assert "  WARN asyncio odd\n" in text
    assert " FATAL a high\n" in text
    assert "low" not in text


def test_the_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("before\n")

    log.setup("info", str(path), {})
    log.get("lmq.x").info("after")

    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("lmq.x after\n")


def test_a_second_setup_replaces_the_output_and_keeps_the_entries(
    log_file: Path, tmp_path: Path
) -> None:
    log.get("lmq.x").info("first")
    second = tmp_path / "second.log"

    log.setup("info", str(second), {})
    log.get("lmq.x").info("second")

    assert "second" not in log_file.read_text()
    assert second.read_text().endswith("lmq.x second\n")
    assert [entry.text for entry in log.recent()] == ["first", "second"]


def test_a_rotated_file_is_opened_anew_by_setup(log_file: Path) -> None:
    log_file.rename(log_file.with_suffix(".1"))

    log.setup("info", str(log_file), {})
    log.get("lmq.x").info("text")

    assert log_file.read_text().endswith("text\n")


def test_a_file_that_cannot_be_opened_is_an_error_and_the_old_output_stays(
    log_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"'log_file' in \[main\].*No such file or directory"):
        log.setup("error", str(tmp_path / "none" / "x.log"), {})
    log.get("lmq.x").info("still here")

    assert log_file.read_text().endswith("still here\n")


def test_without_a_file_the_log_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("info", None, {})

    log.get("lmq.x").info("text")

    assert capsys.readouterr().out.endswith("Z  INFO lmq.x text\n")


def test_a_full_disk_does_not_raise(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("info", "/dev/full", {})

    log.get("lmq.x").info("text")

    assert capsys.readouterr().err == ""
    assert [entry.text for entry in log.recent()] == ["text"]
    with pytest.raises(OSError, match="No space"):
        logging.getLogger().handlers[-1].close()


def test_the_latest_1024_entries_are_kept(log_file: Path) -> None:
    logger = log.get("lmq.x", n="a")

    for number in range(1030):
        logger.debug("%d", number)

    entries = log.recent()
    assert [entry.text for entry in entries] == [str(number) for number in range(6, 1030)]
    assert entries[0][1:4] == ("debug", "lmq.x", '[n: "a"]')
    assert entries[0].created <= entries[-1].created


def test_an_entry_keeps_a_bounded_part_of_a_long_text(log_file: Path) -> None:
    log.get("lmq.x").info("y" * 100_000)

    assert len(log.recent()[0].text) == log.ENTRY_CHARACTERS


def test_nothing_is_kept_before_setup() -> None:
    assert log.recent() == []


def test_ids_rise_even_within_a_millisecond_and_over_a_new_output(
    log_file: Path, tmp_path: Path
) -> None:
    for number in range(50):
        log.get("lmq.x").info("%d", number)
    log.setup("info", str(tmp_path / "second.log"), {})
    log.get("lmq.x").info("last")

    entries = log.recent()
    ids = [entry.id for entry in entries]
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] - int(entries[0].created * 1000) < 1000


def test_a_follower_gets_each_entry_once(log_file: Path, tmp_path: Path) -> None:
    log.get("lmq.x").info("before")
    followed: list[log.Entry] = []

    stored = log.follow(followed.append)
    log.get("lmq.x").info("during")
    log.setup("info", str(tmp_path / "second.log"), {})
    log.get("lmq.x").info("after a reload")

    assert log.n_followers() == 1
    log.unfollow(followed.append)
    log.unfollow(followed.append)
    log.get("lmq.x").info("too late")
    assert [entry.text for entry in stored] == ["before"]
    assert [entry.text for entry in followed] == ["during", "after a reload"]
    assert followed == log.recent()[1:3]
    assert log.n_followers() == 0


def test_nobody_can_follow_before_setup() -> None:
    assert log.follow(print) == []
    log.unfollow(print)
    assert log.n_followers() == 0


JOURNAL_PROGRAM = """
import os
from lavinmq.process import log
status = os.fstat(1)
log.setup("trace", None, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
logger = log.get("lmq.x", vhost="/")
for level in ("trace", "debug", "info", "notice", "warning", "error", "fatal"):
    getattr(logger, level)("text")
try:
    raise ValueError("broken")
except ValueError:
    logger.exception("failed")
"""


def test_in_the_journal_each_line_begins_with_its_priority_and_has_no_time() -> None:
    result = subprocess.run(
        [sys.executable, "-c", JOURNAL_PROGRAM], capture_output=True, text=True, check=True
    )

    lines = result.stdout.splitlines()
    assert lines[:7] == [f'<{n}> lmq.x[vhost: "/"] text' for n in (7, 7, 6, 5, 4, 3, 2)]
    assert lines[7:9] == [
        '<3> lmq.x[vhost: "/"] failed',
        "<3> Traceback (most recent call last):",
    ]
    assert lines[-1] == "<3> ValueError: broken"


@pytest.mark.parametrize("named", ["", "1:1", "nonsense"])
def test_a_journal_stream_that_is_not_standard_output_is_no_journal(named: str) -> None:
    assert not log.is_journal({"JOURNAL_STREAM": named})


def test_the_caller_is_not_looked_up(log_file: Path) -> None:
    assert os.path.exists(log_file)
    assert (logging.logThreads, logging.logProcesses) == (False, False)
    assert logging._srcfile is None  # type: ignore[attr-defined]


def test_nobody_waits_for_a_reader_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream, open(reader, "rb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdout", stream)
        log.setup("info", None, {})
        logger = log.get("lmq.server")

        for number in range(5_000):  # more than a pipe holds
            logger.info("entry %d", number)
        os.set_blocking(reader, False)
        before = b"".join(iter(lambda: pipe.read(65536) or b"", b""))
        logger.info("somebody reads again")
        after = pipe.read(65536).decode()

    assert log.recent()[-1].text == "somebody reads again"
    written = before.count(b" entry ")
    assert 100 < written < 5_000
    lost = re.search(r"WARN lmq\.log (\d+) entries could not be written", after)
    assert lost is not None
    assert written + int(lost[1]) in (5_000, 5_001)  # one may have been cut
    assert after.endswith("INFO lmq.server somebody reads again\n")


def test_a_reader_that_has_gone_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        log.setup("info", None, {})
        os.close(reader)

        log.get("lmq.server").info("nobody")

    assert log.recent()[-1].text == "nobody"
