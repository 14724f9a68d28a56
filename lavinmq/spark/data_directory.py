"""What a data directory holds: its queues, their segments, and where the offsets of streams begin.

Reads names, sizes and small files, takes no lock and changes nothing; a broker may be running.
The layout is described in docs/formats.md. Directories of transient queues, and those a broker has
set aside, are passed over.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lavinmq.errors import DefinitionsError
from lavinmq.files.definitions import QueueDef, parse
from lavinmq.files.stream_files import is_possible
from lavinmq.spark._arrow import walk
from lavinmq.spark.errors import SourceError
from lavinmq.spark.files import DIRECTORY, Files, OpenFile, reason
from lavinmq.spark.option_values import OptionError

log = logging.getLogger("lavinmq.spark")

FIRST_POSITION = 4
FIRST_OFFSET = 1
_HASHED = re.compile(r"[0-9a-f]{40}")
_SEGMENT = re.compile(r"msgs\.(\d{10})")
_LEVEL = re.compile(r"prio\.(\d{3})")
LOOKS = 20
"""How often a directory is listed in which files vanish."""
_BEGINNING = re.compile(r"first\.(\d{10})\.(\d{1,19})")
_META = struct.Struct("<Iqqq")
_META_OLD = struct.Struct("<Iqq")
_VHOST, _QUEUE, _DEFINITIONS = ".vhost", ".queue", "definitions.amqp"
_MARKERS = {_VHOST, _DEFINITIONS, "schema_version", "vhosts.json", "users.json"}


@dataclass(frozen=True, slots=True)
class Meta:
    """What a finished segment of a stream says of itself; times in milliseconds since 1970."""

    count: int
    first_offset: int
    first_ms: int
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment file. Picklable.

    `first_offset` is None for queues that are no streams, `count` when no meta file tells.
    """

    directory: str
    vhost: str
    queue: str
    queue_type: str
    number: int
    size: int
    first_offset: int | None
    count: int | None
    is_newest: bool
    meta: Meta | None = None

    @property
    def path(self) -> str:
        """Where the messages are."""
        return posixpath.join(self.directory, f"msgs.{self.number:010}")

    @property
    def acks_path(self) -> str:
        """Where their deleted positions are, if there are any."""
        return posixpath.join(self.directory, f"acks.{self.number:010}")

    def __str__(self) -> str:
        return f"{self.path} (queue {self.queue!r} in vhost {self.vhost!r})"


@dataclass(frozen=True, slots=True)
class QueueDirectory:
    """A directory of a queue, and the names in it with their sizes."""

    path: str
    vhost: str
    queue: str
    queue_type: str
    names: Mapping[str, int]


def queues(files: Files, path: str) -> Iterator[QueueDirectory]:
    """Yield the queues below a path: a data directory, or one of a vhost or queue, or a glob.

    Raises OptionError when there is nothing of the kind, SourceError when it cannot be read.
    """
    found = files.paths(path)
    if not found:
        raise OptionError(f"option path is {path!r}; nothing is there")
    search = _Search(files)
    for each in found:
        yield from search.below(each.rstrip("/") or "/", 0)


class _Search:
    """The way down from a path to the directories of queues; knows what vhosts have declared."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._vhosts: dict[str, tuple[str, dict[str, QueueDef]]] = {}

    def below(self, path: str, depth: int) -> Iterator[QueueDirectory]:
        """Yield the queues in a directory, or that one itself."""
        try:
            names = self._files.names(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if depth:
                return  # deleted since
            raise OptionError(f"option path is {path!r}; {reason(error)}") from None
        except OSError as error:
            raise SourceError(f"{path}: {reason(error)}") from None
        if _QUEUE in names or any(_SEGMENT.fullmatch(n) or _LEVEL.fullmatch(n) for n in names):
            yield self._queue(path, names)
            return
        below = sorted(n for n, size in names.items() if size == DIRECTORY and _HASHED.fullmatch(n))
        if depth == 0 and not below and not _MARKERS & names.keys():
            raise OptionError(f"option path is {path!r}; no broker keeps its messages there")
        if depth < 2:
            for name in below:
                yield from self.below(posixpath.join(path, name), depth + 1)

    def _queue(self, path: str, names: Mapping[str, int]) -> QueueDirectory:
        above, hashed = posixpath.split(path)
        vhost, declared = self._vhost(above)
        definition = declared.get(hashed)
        name = self._text(posixpath.join(path, _QUEUE)) if _QUEUE in names else None
        if name is None:
            name = definition.name if definition else hashed
        return QueueDirectory(path, vhost, name, _queue_type(name, names, definition), names)

    def _vhost(self, path: str) -> tuple[str, dict[str, QueueDef]]:
        """Return a vhost's name, and its durable queues by the names of their directories."""
        if path not in self._vhosts:
            name = self._text(posixpath.join(path, _VHOST)) or posixpath.basename(path)
            self._vhosts[path] = (name, self._declared(posixpath.join(path, _DEFINITIONS)))
        return self._vhosts[path]

    def _declared(self, path: str) -> dict[str, QueueDef]:
        try:
            definitions = parse(self._files.small(path), path)
        except OSError:
            return {}
        except DefinitionsError as error:
            log.warning("%s", error)
            return {}
        return {hashlib.sha1(q.name.encode()).hexdigest(): q for q in definitions.queues}

    def _text(self, path: str) -> str | None:
        try:
            return self._files.small(path).decode("utf-8", "replace")
        except OSError:
            return None


def _queue_type(name: str, names: Mapping[str, int], declared: QueueDef | None) -> str:
    if name.startswith(("amq.delayed-", "amq.delayed.")):
        return "delayed"
    if declared is not None:
        kind = declared.arguments.get("x-queue-type")
        if kind in ("stream", "mqtt"):
            return str(kind)
        return "priority" if "x-max-priority" in declared.arguments else "classic"
    if any(_LEVEL.fullmatch(n) for n in names):
        return "priority"
    if "consumer_offsets" in names or any(_BEGINNING.fullmatch(n) for n in names):
        return "stream"
    metas = [size for n, size in names.items() if n.startswith("meta.")]
    return "stream" if any(size >= _META_OLD.size for size in metas) else "classic"


def segments(files: Files, queue: QueueDirectory) -> list[Segment]:
    """Return the segments of a queue, oldest first; those of priority queues by falling level.

    Raises SourceError when a level cannot be read.
    """
    try:
        found = _settled(files, queue, queue.path, queue.names)
    except FileNotFoundError:
        return []  # the queue is gone
    for name in sorted((n for n in queue.names if _LEVEL.fullmatch(n)), reverse=True):
        path = posixpath.join(queue.path, name)
        try:
            found += _settled(files, queue, path, files.names(path))
        except FileNotFoundError:
            continue  # its last message is gone
        except OSError as error:
            raise SourceError(f"{path}: {reason(error)}") from None
    return found


def _settled(
    files: Files, queue: QueueDirectory, path: str, names: Mapping[str, int]
) -> list[Segment]:
    """Return the segments of one store; looked at again when some were removed meanwhile, as those
    behind them could not be numbered. Raises FileNotFoundError when the directory is gone."""
    for _ in range(LOOKS):
        try:
            return _store(files, queue, path, names)
        except _VanishedError:
            names = files.names(path)
    raise SourceError(f"{path}: its segments are removed faster than they can be listed")


class _VanishedError(Exception):
    """A file that was listed is not there any more."""


def _store(
    files: Files, queue: QueueDirectory, path: str, names: Mapping[str, int]
) -> list[Segment]:
    """Return the segments of one store."""
    numbers = sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))
    found: list[Segment] = []
    for number in numbers:
        meta_name = f"meta.{number:010}"
        is_newest = number == numbers[-1]
        # What it says is for streams; of other queues the records are right, whatever it says.
        meta = None
        if queue.queue_type == "stream" and meta_name in names and not is_newest:
            meta = _meta(files, posixpath.join(path, meta_name), names[f"msgs.{number:010}"])
        segment = Segment(
            directory=path,
            vhost=queue.vhost,
            queue=queue.queue,
            queue_type=queue.queue_type,
            number=number,
            size=names[f"msgs.{number:010}"],
            first_offset=None,
            count=meta.count if meta else None,
            is_newest=is_newest,
            meta=meta,
        )
        found.append(segment)
    return _numbered(files, found, names) if queue.queue_type == "stream" else found


def _meta(files: Files, path: str, size: int) -> Meta | None:
    """Return what the meta file of a stream's segment of so many bytes says; None when that is
    nothing, or cannot be. Raises _VanishedError."""
    try:
        data = files.small(path)
    except FileNotFoundError:
        raise _VanishedError from None
    except OSError:
        return None
    if len(data) < _META_OLD.size:
        return None
    count, first_offset, first_ms = _META_OLD.unpack_from(data)
    last_ms = _META.unpack_from(data)[3] if len(data) >= _META.size else None
    newest_ms = first_ms if last_ms is None else last_ms
    if not is_possible(size, count, first_offset, first_ms, newest_ms):
        return None
    return Meta(count, first_offset, first_ms, last_ms)


def _numbered(files: Files, found: list[Segment], names: Mapping[str, int]) -> list[Segment]:
    """Return a stream's segments with their first offsets.

    They are counted from segment to segment; a stored one counts where the one before is missing.
    Those before the first stored one are counted back from it: the broker may not have stored
    theirs yet.
    """
    beginnings = {int(m[1]): int(m[2]) for name in names if (m := _BEGINNING.fullmatch(name))}
    numbered: list[Segment] = []
    for at, segment in enumerate(found):
        before = numbered[-1] if numbered else None
        follows = before is not None and before.number + 1 == segment.number
        if before is not None and (follows or not segment.meta):
            assert before.first_offset is not None
            first = before.first_offset + _count(files, before)
        else:
            first = _beginning(files, found[at:], beginnings)
        numbered.append(replace(segment, first_offset=first))
    return numbered


def _beginning(files: Files, found: list[Segment], beginnings: Mapping[int, int]) -> int:
    """Return the first offset of the first of some segments."""
    n_between = 0
    for at, segment in enumerate(found):
        if at and found[at - 1].number + 1 != segment.number:
            break
        stored = segment.meta.first_offset if segment.meta else beginnings.get(segment.number)
        if stored is not None:
            return max(stored - n_between, FIRST_OFFSET)
        if at + 1 < len(found):
            n_between += _count(files, segment)
    _check_is_there(files, found[0])  # else its meta file may have been removed before it
    return FIRST_OFFSET


def _count(files: Files, segment: Segment) -> int:
    """Return how many records a segment has; those of a finished one without meta are counted.

    Raises _VanishedError."""
    if segment.count is not None:
        return segment.count
    file = _opened(files, segment)
    try:
        return walk(file.read(FIRST_POSITION, segment.size))[3]
    finally:
        file.close()


def _check_is_there(files: Files, segment: Segment) -> None:
    _opened(files, segment).close()


def _opened(files: Files, segment: Segment) -> OpenFile:
    """Raises _VanishedError, SourceError."""
    try:
        return files.open(segment.path)
    except FileNotFoundError:
        raise _VanishedError from None
    except OSError as error:
        raise SourceError(f"{segment.path}: {reason(error)}") from None
