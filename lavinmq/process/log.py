"""Sets up logging: line formats, levels, output and the ring of the latest entries.

Built on the standard library's ``logging``. ``__main__`` calls ``setup`` once the configuration
is known, a reload calls it again; everybody else calls ``get`` for a source (``lmq.server``, ...)
and writes to it. State lives in one handler of the root logger, none in this module.

    plain    2026-07-01T10:20:30.123456Z  INFO lmq.server[vhost: "/"] text
    journal  <6> lmq.server[vhost: "/"] text
Lines for machines are made by ``log_forms``.
Where a peer reads the log (a pipe, the journal, a terminal) nobody waits for it: what it does not
take is left out there, and counted. An exception follows on the next lines. Whatever else in a text
is not printable is escaped: names chosen by a client must not look like further lines.
Source: docs/configuration.md.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from lavinmq.config.setting_types import shown
from lavinmq.config.values import ConfigError
from lavinmq.process.log_forms import FORMS, Fields

TRACE, NOTICE, FATAL, NONE = 5, 25, 50, 60
LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "trace": TRACE,
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "notice": NOTICE,
        "warn": logging.WARNING,
        "error": logging.ERROR,
        "fatal": FATAL,
        "none": NONE,
    }
)
# Syslog priorities, as the journal reads them.
PRIORITIES: Mapping[str, int] = MappingProxyType(
    {"trace": 7, "debug": 7, "info": 6, "notice": 5, "warn": 4, "error": 3, "fatal": 2}
)
RING_ENTRIES = 1024
ENTRY_CHARACTERS = 8192  # of an entry in the ring; bounds it to 8 MB when all are exceptions
STDOUT = 1
PIECE = select.PIPE_BUF  # bytes that a pipe takes at once, if it takes any


class Entry(NamedTuple):
    """One logged entry, kept as text: a record would keep its arguments and frames alive."""

    created: float
    """Seconds since the epoch."""
    level: str
    """``trace`` to ``fatal``."""
    source: str
    context: str
    """In brackets, as it is written; empty when there is none."""
    text: str
    """The message, and the exception on further lines."""
    id: int = 0
    """About the milliseconds since the epoch; each entry of a process has a higher one."""


Line = Callable[[], object]
"""Says it."""


class _Hushed(threading.local):
    lines: list[Line] | None = None
    """What this thread has had to say, None: it says so at once."""


_hushed = _Hushed()


@contextmanager
def hushed(lines: list[Line]) -> Iterator[None]:
    """Have what is logged in the block, in this thread and by any `Log`, put on a list instead."""
    before, _hushed.lines = _hushed.lines, lines
    try:
        yield
    finally:
        _hushed.lines = before


class Log(logging.LoggerAdapter[logging.Logger]):
    """A source to log to, with context that is written in brackets before each text."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log something now, or when whoever has it hushed says it."""
        if _hushed.lines is None:
            super().log(level, msg, *args, **kwargs)
        elif self.isEnabledFor(level):
            _hushed.lines.append(partial(super().log, level, msg, *args, **kwargs))

    def trace(self, text: str, *args: object, **kwargs: Any) -> None:
        """Log what only a developer wants to see."""
        self.log(TRACE, text, *args, **kwargs)

    def notice(self, text: str, *args: object, **kwargs: Any) -> None:
        """Log what an operator should notice although nothing is wrong."""
        self.log(NOTICE, text, *args, **kwargs)

    def fatal(self, text: str, *args: object, **kwargs: Any) -> None:
        """Log what ends the broker."""
        self.log(FATAL, text, *args, **kwargs)

    def bind(self, **context: object) -> Log:
        """Return the same source with more context."""
        return Log(self.logger, {**(self.extra or {}), **context})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Hand the context to the record."""
        kwargs.setdefault("extra", {"ctx": self.extra})
        return msg, kwargs


def get(source: str, **context: object) -> Log:
    """Return the log of a source, for example ``get("lmq.vhost", vhost="/")``."""
    return Log(logging.getLogger(source), context)


def setup(level: str, log_file: str | None, environ: Mapping[str, str], form: str = "text") -> None:
    """Send the log to ``log_file`` or standard output; called again, it replaces the output.

    A new file is opened before anything changes, and the latest entries survive.
    Args: a name of ``LEVELS``; the path to append to; the environment (``JOURNAL_STREAM``);
        ``text`` or a name of ``log_forms.FORMS``.
    Raises: ``ConfigError`` when the file cannot be opened.
    """
    stream = _open(log_file) if log_file else sys.stdout
    journal = not log_file and is_journal(environ)
    output = _Output(stream, journal=journal, owned=bool(log_file), form=FORMS.get(form))
    # Each of these is looked up for every record, and no format here shows one.
    for switch in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):
        setattr(logging, switch, False)
    logging._srcfile = None  # the documented way to skip callers
    root = logging.getLogger()
    previous = _output()
    if previous is not None:
        output.entries, output.last_id = previous.entries, previous.last_id
        output.followers = previous.followers
        root.removeHandler(previous)
        previous.close()
    root.addHandler(output)
    set_level(level)


def set_level(name: str) -> None:
    """Log this severity and worse from now on.

    Raises: ``ValueError`` for a name that is not in ``LEVELS``.
    """
    if name not in LEVELS:
        raise ValueError(f"{shown(name)} is not a log level")
    logging.getLogger().setLevel(LEVELS[name])


def recent() -> list[Entry]:
    """Return the latest entries, at most ``RING_ENTRIES``, oldest first."""
    output = _output()
    return list(output.entries) if output else []


def follow(callback: Callable[[Entry], None]) -> list[Entry]:
    """Have every new entry passed on, in the thread that logs it, until `unfollow`.

    Args: callback: returns at once, and neither logs nor raises.
    Returns: the entries of `recent`; none is missing in between, and none comes twice.
    """
    output = _output()
    if output is None:
        return []
    with output.lock or nullcontext():
        output.followers.append(callback)
        return list(output.entries)


def n_followers() -> int:
    """How many follow the log."""
    output = _output()
    return len(output.followers) if output else 0


def unfollow(callback: Callable[[Entry], None]) -> None:
    """End what `follow` began. Idempotent."""
    output = _output()
    if output is not None and callback in output.followers:
        output.followers.remove(callback)


def is_journal(environ: Mapping[str, str]) -> bool:
    """Return whether standard output goes to the journal.

    Source: systemd.exec(5), ``JOURNAL_STREAM``.
    """
    named = environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        status = os.fstat(STDOUT)
    except OSError:  # closed
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


class _Output(logging.StreamHandler[TextIO]):
    """Writes to a file or standard output and keeps the latest entries."""

    def __init__(
        self, stream: TextIO, *, journal: bool, owned: bool,
        form: Callable[[Fields], str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(stream)
        self._format = _journal_line if journal else _plain_line
        self._form = form
        self._is_journal = journal
        self._owned = owned
        self._peer = None if owned else _peer_of(stream)
        self._n_lost = 0
        self._is_cut = False
        self.entries: deque[Entry] = deque(maxlen=RING_ENTRIES)
        self.last_id = 0
        self.followers: list[Callable[[Entry], None]] = []

    def format(self, record: logging.LogRecord) -> str:
        """Keep the entry and return it as it is written."""
        entry = entry_of(record)
        self.last_id = max(int(entry.created * 1000), self.last_id + 1)
        kept = entry._replace(text=entry.text[:ENTRY_CHARACTERS], id=self.last_id)
        self.entries.append(kept)
        for follower in tuple(self.followers):
            follower(kept)
        if self._form is None:
            return self._format(entry)
        line = self._form(_fields(record, entry))
        return f"<{PRIORITIES[entry.level]}> {line}" if self._is_journal else line

    def emit(self, record: logging.LogRecord) -> None:
        """Write an entry, as far as that is possible without waiting for whoever reads it."""
        if self._peer is None:
            super().emit(record)
            return
        try:
            self.stream.flush()  # what others have written there comes first
            if self._n_lost and self._peer[1].poll(0):
                lost = f"{self._n_lost} entries could not be written: nobody read the log"
                made = {"name": "lmq.log", "levelno": logging.WARNING, "msg": lost}
                notice = self.format(logging.makeLogRecord(made))
                if self._take(("\n" if self._is_cut else "") + notice + self.terminator):
                    self._n_lost = 0
            line = self.format(record)
            if self._n_lost or not self._take(line + self.terminator):
                self._n_lost += 1
        except Exception:  # noqa: BLE001 - as the base class does
            self.handleError(record)

    def _take(self, text: str) -> bool:
        """Write a text to the peer; False when it took none of it, or not all. Raises: OSError."""
        assert self._peer is not None
        fd, room = self._peer
        data = text.encode("utf-8", "backslashreplace")
        while data:
            if not room.poll(0):
                return False
            data = data[os.write(fd, data[:PIECE]) :]
            self._is_cut = bool(data)
        return True

    def handleError(self, record: logging.LogRecord) -> None:
        """Give up on a line that cannot be written: a full disk must not end the broker."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file, if it was opened for this."""
        super().close()
        if self._owned:
            self.stream.close()


def _open(path: str) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        reason = f"{path!r}: {error.strerror}"
        raise ConfigError(f"Failed to handle value for 'log_file' in [main]: {reason}") from None


def _peer_of(stream: TextIO) -> tuple[int, select.poll] | None:
    """The descriptor of a stream that somebody has to read, and what tells whether it has room."""
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or only in memory
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        return None
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return fd, room


def _output() -> _Output | None:
    handlers = logging.getLogger().handlers
    return next((handler for handler in handlers if isinstance(handler, _Output)), None)


def _exception(record: logging.LogRecord) -> str:
    """The lines of the exception that was logged, empty when there was none."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    import traceback  # only a broker in trouble needs it

    return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")


def _fields(record: logging.LogRecord, entry: Entry) -> Fields:
    context = getattr(record, "ctx", None) or {}
    message = record.getMessage()
    return Fields(
        timestamp(entry), entry.level, entry.source, context, message, _exception(record)
    )  # fmt: skip


def entry_of(record: logging.LogRecord) -> Entry:
    """Return what is kept of a record."""
    lines = [_printable(record.getMessage())]
    exception = _exception(record)
    if exception:
        lines += map(_printable, exception.split("\n"))
    context = _context(getattr(record, "ctx", None))
    return Entry(record.created, _severity(record.levelno), record.name, context, "\n".join(lines))


def _plain_line(entry: Entry) -> str:
    # Right-aligned to 6 including the blank before it, which even NOTICE keeps.
    severity = f" {entry.level.upper():>5}"
    return f"{timestamp(entry)}{severity} {entry.source}{entry.context} {entry.text}"


def timestamp(entry: Entry) -> str:
    """When an entry was made, in UTC."""
    seconds, microseconds = divmod(int(entry.created * 1_000_000), 1_000_000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{moment}.{microseconds:06d}Z"


def _journal_line(entry: Entry) -> str:
    # The journal takes every line for an entry of its own, so each needs the priority.
    prefix = f"<{PRIORITIES[entry.level]}> "
    text = entry.text.replace("\n", f"\n{prefix}")
    return f"{prefix}{entry.source}{entry.context} {text}"


def _severity(number: int) -> str:
    """Return the name for a level, also for one of another library."""
    name = "trace"
    for candidate in PRIORITIES:
        if LEVELS[candidate] <= number:
            name = candidate
    return name


def _context(values: Mapping[str, object] | None) -> str:
    if not values:
        return ""
    return f"[{', '.join(f'{key}: {_quoted(value)}' for key, value in values.items())}]"


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return _printable(str(value))
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
