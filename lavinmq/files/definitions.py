"""`definitions.amqp`: the durable exchanges, queues and bindings of one virtual host.

An append-only log of declarations and deletions. The virtual host loads it once, appends every
change, syncs `filenos()` off the event loop before it answers the client, and compacts when enough
deletions have gathered. This module never decides whether a definition is legal or applies it.

Longer than 500 lines: writing, reading and folding of one format stand side by side.

Format (little-endian, unlike the wire; Source: docs/formats.md):

    file   = version:i32 (1) { frame }                                          (end is CE)
    frame  = type:u8 (1) channel:u16 size:u32 class:u16 method:u16 reserved:u16 arguments end:u8
    string = length:u8 bytes          table = size:u32 content (the content big-endian, as received)

    40.10 exchange.declare  name:string type:string flags:u8 arguments:table
          flags: 1 passive, 2 durable, 4 auto-delete, 8 internal, 16 no-wait
    40.20 exchange.delete   name:string flags:u8
    40.30 exchange.bind     destination:string source:string key:string flags:u8 arguments:table
    40.40 exchange.unbind   the same
    50.10 queue.declare     name:string flags:u8 arguments:table
          flags: 1 passive, 2 durable, 4 exclusive, 8 auto-delete, 16 no-wait
    50.20 queue.bind        queue:string exchange:string key:string flags:u8 arguments:table
    50.40 queue.delete      name:string flags:u8
    50.50 queue.unbind      queue:string exchange:string key:string arguments:table

The size field is not believed: older releases wrote it 2 too large for exchange.bind. A new
method may be added to the format, an old one never changed: every release reads every file.
"""

import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

from lavinmq import fieldtable
from lavinmq.errors import DefinitionsError
from lavinmq.fieldtable import EMPTY, FieldTable, FieldTableError
from lavinmq.files.changes import Changes
from lavinmq.files.datadir import SHA1_DIGITS
from lavinmq.files.whole import read_regular, sync_directory, write_atomic

log = logging.getLogger("lmq.definitions")

MOST_COPIES: Final = 10
"""Of damaged files that are kept; the last one is replaced then."""
DELAYED_TYPES: Final = ("x-delayed-message", "x-delayed-exchange")
"""Types a client declares to get a delayed exchange of the type in `x-delayed-type`."""

VERSION: Final = b"\x01\x00\x00\x00"
_HEAD: Final = struct.Struct("<BHIHHH")
_SIZE: Final = struct.Struct("<I")
_FRAME: Final = 1
_END: Final = 0xCE
_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
_FRAMING: Final = 8  # bytes of a frame that its size field does not count

# Arguments of each method behind the reserved field: s string, f flags, t table.
_LAYOUTS: Final = {
    (40, 10): "ssft", (40, 20): "sf", (40, 30): "sssft", (40, 40): "sssft",
    (50, 10): "sft", (50, 20): "sssft", (50, 40): "sf", (50, 50): "ssst",
}  # fmt: skip


class ExchangeDef(NamedTuple):
    """A durable exchange."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: FieldTable = EMPTY

    def resolved(self) -> "ExchangeDef":
        """The form in which a delayed exchange lives: its real type and `x-delayed-exchange`.

        Clients declare type `x-delayed-message` with `x-delayed-type`; both forms are in files.
        Any other exchange, and a delayed one without its type, is returned as it is.
        """
        real_type = self.arguments.get("x-delayed-type")
        if self.type not in DELAYED_TYPES or not isinstance(real_type, str):
            return self
        arguments = fieldtable.amended(
            self.arguments, {"x-delayed-exchange": True}, removed=("x-delayed-type",)
        )
        return self._replace(type=real_type, arguments=arguments)

    @property
    def delayed(self) -> bool:
        """Whether this is the resolved form of a delayed exchange."""
        return self.arguments.get("x-delayed-exchange") is True


class QueueDef(NamedTuple):
    """A durable queue, stream or MQTT session. A start makes one for each of very many."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: FieldTable = EMPTY

    @property
    def is_session(self) -> bool:
        """Whether this is an MQTT session."""
        return self.arguments.get("x-queue-type") == "mqtt"


class BindingDef(NamedTuple):
    """A binding between two durable ends; equal when its arguments mean the same."""

    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str = ""
    arguments: FieldTable = EMPTY


@dataclass(slots=True)
class Definitions:
    """What a file adds up to, in the order in which it is applied.

    Exchanges are in their resolved form; bindings to exchanges come before those to queues.
    """

    exchanges: list[ExchangeDef] = field(default_factory=list)
    queues: list[QueueDef] = field(default_factory=list)
    bindings: list[BindingDef] = field(default_factory=list)


class DefinitionsFile:
    """The open file of one virtual host. Call `load` once before anything else.

    `deleted` counts the records of deletions and unbindings in the file: what compaction removes.
    """

    def __init__(self, path: Path, changes: Changes | None = None) -> None:
        self.path = path
        self._changes = changes or Changes()
        self.deleted = 0
        self._fd = -1
        self._size = 0
        self._is_torn = False
        self.copy: object | None = None
        """What is writing the file anew (`definitions_compaction.py`)."""
        self.replacing = threading.Lock()
        """Held by the thread that does."""
        self._copy_fd = -1
        self._copy_size = self._copy_deleted = 0
        self._copy_path = path.with_name(path.name + ".tmp")
        self._missed: list[bytes] = []  # records that the copy has still to get

    def load(self) -> Definitions:
        """Read the file, made if missing, and open it for appending.

        Bytes that are no record are left out with a warning; reading goes on behind them if records
        follow that run exactly to the end. A copy of the file is kept as
        `definitions.amqp.damaged`, or `.damaged.1` and so on beside older ones, and the file is
        written anew without them, because an older release could not read what is appended behind
        them.
        Returns: the sum of all records; empty for a new or empty file.
        Raises: DefinitionsError if the file cannot be read or has another version.
        """
        try:
            self._open()
            data = read_regular(str(self.path))
            if data and not any(data):
                self._keep(data, 0, "nothing but zeros")
                data = b""
            if len(data) < len(VERSION):
                self._start_new()
                self._warn_of_queues()
                return Definitions()
            if not data.startswith(VERSION):
                raise DefinitionsError(f"{self.path}: unknown version {data[:4].hex()}")
            fold = _Fold()
            self._size = self._read(data, fold)
            if fold.skipped:
                self._keep(data, fold.skipped, "definitions that make no sense")
            self.deleted = fold.deleted
            return fold.result()
        except OSError as error:
            self.close()
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error
        except DefinitionsError:
            self.close()
            raise

    def take(self, size: int, deleted: int) -> None:
        """Open the file for appending, of which a `Reader` has told all. Raises: OSError."""
        self._open()
        self._size, self.deleted = size, deleted

    def append_declare_exchange(self, exchange: ExchangeDef) -> None:
        """Record an exchange. Raises: DefinitionsError if the disk refuses; nothing stays then."""
        self._append(exchange_record(exchange))

    def append_delete_exchange(self, name: str) -> None:
        """Record the deletion of an exchange and of its bindings. Raises: DefinitionsError."""
        self._append(_frame(40, 20, name, 0), deletes=True)

    def append_declare_queue(self, queue: QueueDef) -> None:
        """Record a queue. Raises: DefinitionsError."""
        self._append(queue_record(queue))

    def append_delete_queue(self, name: str) -> None:
        """Record the deletion of a queue and of its bindings. Raises: DefinitionsError."""
        self._append(_frame(50, 40, name, 0), deletes=True)

    def append_bind(self, binding: BindingDef) -> None:
        """Record a binding. Raises: DefinitionsError."""
        self._append(binding_record(binding))

    def append_unbind(self, binding: BindingDef) -> None:
        """Record the end of a binding. Raises: DefinitionsError."""
        ends = (binding.destination, binding.source, binding.routing_key)
        if binding.destination_type == "queue":
            record = _frame(50, 50, *ends, binding.arguments)
        else:
            record = _frame(40, 40, *ends, 0, binding.arguments)
        self._append(record, deletes=True)

    def compact(self, definitions: Definitions) -> None:
        """Replace the file by one with just these definitions, synced before and after.

        Exclusive queues are left out: their owner does not outlive the broker. For a start, it
        waits for the disk; beside serving clients `definitions_compaction.py` does it.
        Raises: DefinitionsError; the old file is in place then.
        """
        content = VERSION + b"".join(_all_frames(definitions))
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            fd = self._changes.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            try:
                self._changes.append(temporary, fd, content, 0)
                os.fsync(fd)
                self._changes.rename(temporary, self.path)
                os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
            self._size = len(content)
            self._is_torn = False
            self.deleted = 0
            sync_directory(self.path.parent)
        except OSError as error:
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error

    def sync(self) -> None:
        """Bring all records to the disk. Raises: DefinitionsError."""
        try:
            for fd in self.filenos():
                os.fsync(fd)
        except OSError as error:
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error

    def filenos(self) -> list[int]:
        """The descriptors to sync, in another thread, before a record is answered for."""
        return [self._fd] if self._copy_fd < 0 else [self._fd, self._copy_fd]

    # --- while it is written anew -------------------------------------------------------------

    def begin_copy(self, copy: object) -> None:
        """From now on remember what is recorded, for the copy."""
        self.copy = copy
        self._copy_deleted = 0

    def follow(self, fd: int, size: int) -> None:
        """Write what was recorded since to a copy that has all before; from now on it gets all.

        Args: fd: of the copy, which is ours now. Raises: OSError.
        """
        self._copy_fd, self._copy_size = fd, size
        missed, self._missed = b"".join(self._missed), []
        self._changes.append(self._copy_path, fd, missed, size)
        self._copy_size += len(missed)

    def adopt(self) -> None:
        """A thread has put the copy in the place of the file: write to it alone."""
        self._changes.renamed(self._copy_path, self.path)
        os.dup2(self._copy_fd, self._fd, inheritable=False)
        self._size, self.deleted = self._copy_size, self._copy_deleted

    def end_copy(self) -> None:
        """There is no copy any more, or it is the file."""
        self.copy = None
        self._missed = []
        if self._copy_fd >= 0:
            os.close(self._copy_fd)
            self._copy_fd = -1

    def close(self) -> None:
        """Close the file; does not sync. Closing twice is allowed."""
        self.end_copy()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        """It is closed: wait for a thread that still writes it anew. In a thread."""
        with self.replacing:
            pass

    def _open(self) -> None:
        """Open for appending, unbuffered."""
        self.close()
        self._fd = self._changes.open(self.path, os.O_CREAT | os.O_APPEND)

    def _start_new(self) -> None:
        """Give a new file, or one of which a crash left nothing but maybe a size, its head."""
        self._changes.truncate(self.path, self._fd, 0)
        self._size = 0
        self.deleted = 0
        self._append(VERSION)

    def _warn_of_queues(self) -> None:
        """The file is new. Queues that have files all the same were in one that was lost."""
        n_queues = sum(1 for _ in self.path.parent.glob("[0-9a-f]" * SHA1_DIGITS))
        if n_queues:
            log.error(
                "%s was missing or empty: what was declared is lost, %d directories of queues are"
                " left alone and set aside when such a queue is declared again",
                self.path, n_queues,
            )  # fmt: skip

    def _read(self, data: bytes, fold: "_Fold") -> int:
        """Fold all readable records; take out the rest. Returns the size that stays."""
        end = len(VERSION)
        whole = data
        while end < len(data):
            try:
                method, arguments, after = _record(data, end)
            except _DamagedError as damage:
                resumed = _resume(data, end + 1)
                at = end + len(whole) - len(data)  # what was taken out stood before it
                self._keep(whole, at, f"{damage}, {resumed - end} bytes not read")
                data = data[:end] + data[resumed:]
                write_atomic(str(self.path), data, self._changes)
                self._open()
                continue
            fold.apply(method, arguments, end)
            end = after
        return end

    def _keep(self, data: bytes, position: int, why: str) -> None:
        """Keep a copy of a damaged file, unless there is one, and say so."""
        copy = self._copy_of(data)
        if not copy.exists() or copy.read_bytes() != data:
            write_atomic(str(copy), data, self._changes)
        log.warning(
            "%s: damaged at byte %d (%s); the damaged file is kept as %s",
            self.path, position, why, copy.name,
        )  # fmt: skip

    def _copy_of(self, data: bytes) -> Path:
        """Where a copy of a damaged file is, or goes: older ones have what is missing since."""
        for number in range(MOST_COPIES):
            copy = _copy(self.path, number)
            if not copy.exists() or copy.read_bytes() == data:
                return copy
        return copy

    def _append(self, record: bytes, deletes: bool = False) -> None:
        """Write one record with one system call; take back a part of it if the disk is full."""
        try:
            if self._is_torn:
                self._take_back()
            self._is_torn = True
            self._changes.append(self.path, self._fd, record, self._size)
            if self._copy_fd >= 0:
                self._changes.append(self._copy_path, self._copy_fd, record, self._copy_size)
        except OSError as error:
            with suppress(OSError):  # tried again before the next record
                self._take_back()
            raise DefinitionsError(f"{self.path}: {error.strerror}") from error
        self._is_torn = False
        self._size += len(record)
        self.deleted += deletes
        if self._copy_fd >= 0:
            self._copy_size += len(record)
        elif self.copy is not None:
            self._missed.append(record)
        self._copy_deleted += deletes

    def _take_back(self) -> None:
        """Cut off a part of a record: what is appended behind it could not be read."""
        if self._is_torn:
            self._changes.truncate(self.path, self._fd, self._size)
            if self._copy_fd >= 0:
                self._changes.truncate(self._copy_path, self._copy_fd, self._copy_size)
            self._is_torn = False


def _copy(path: Path, number: int) -> Path:
    return path.with_name(path.name + ".damaged" + (f".{number}" if number else ""))


def damaged_copies(path: Path) -> list[str]:
    """The names of the copies that were kept of a damaged file, until somebody removes them."""
    copies = (_copy(path, number) for number in range(MOST_COPIES))
    return [each.name for each in copies if os.path.exists(each)]


# --- writing ----------------------------------------------------------------------------------


def _all_frames(definitions: Definitions) -> Iterator[bytes]:
    """Records of a compacted file: exchanges, queues, sessions, bindings."""
    exclusive = {queue.name for queue in definitions.queues if queue.exclusive}
    for exchange in definitions.exchanges:
        yield exchange_record(exchange)
    for sessions in (False, True):
        for queue in definitions.queues:
            if queue.is_session is sessions and not queue.exclusive:
                yield queue_record(queue)
    for binding in definitions.bindings:
        if binding.destination_type == "exchange" or binding.destination not in exclusive:
            yield binding_record(binding)


def exchange_record(exchange: ExchangeDef) -> bytes:
    """The record that declares it."""
    flags = exchange.durable << 1 | exchange.auto_delete << 2 | exchange.internal << 3
    return _frame(40, 10, exchange.name, exchange.type, flags, exchange.arguments)


def queue_record(queue: QueueDef) -> bytes:
    """The record that declares it."""
    flags = queue.durable << 1 | queue.exclusive << 2 | queue.auto_delete << 3
    return _frame(50, 10, queue.name, flags, queue.arguments)


def binding_record(binding: BindingDef) -> bytes:
    """The record that binds."""
    class_id, method_id = (50, 20) if binding.destination_type == "queue" else (40, 30)
    ends = (binding.destination, binding.source, binding.routing_key)
    return _frame(class_id, method_id, *ends, 0, binding.arguments)


def _frame(class_id: int, method_id: int, *arguments: str | int | FieldTable) -> bytes:
    """One record: a str becomes a string, an int a flags byte, a table a table."""
    parts: list[bytes] = []
    for argument in arguments:
        if isinstance(argument, str):
            text = argument.encode("utf-8", "surrogateescape")
            parts += (_OCTETS[len(text)], text)
        elif isinstance(argument, int):
            parts.append(_OCTETS[argument])
        else:
            raw = argument.raw
            parts += (_SIZE.pack(len(raw)), raw)
    content = b"".join(parts)
    size = len(content) + _HEAD.size + 1 - _FRAMING
    return _HEAD.pack(_FRAME, 0, size, class_id, method_id, 0) + content + _OCTETS[_END]


# --- reading ----------------------------------------------------------------------------------


News = tuple[bool, ExchangeDef | QueueDef | BindingDef]
"""Whether it is there from now on, and what it is. Of a queue that is gone only the name counts."""


class Reader:
    """Reads a file that somebody else writes: what it adds up to, and later what has come to it.

    It stays open, so that no other file can pass for it. In a thread.
    Raises: DefinitionsError, also when anything in it cannot be read.
    """

    _fd = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise DefinitionsError(f"{path}: {error.strerror}") from error
        try:
            self._read(read_regular(f"/proc/self/fd/{self._fd}"))
        except OSError as error:
            self.close()
            raise DefinitionsError(f"{path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _read(self, data: bytes) -> None:
        if not data.startswith(VERSION):
            raise DefinitionsError(f"{self.path}: unknown version {data[:4].hex()}")
        fold, last, end = _Fold(), 0, len(VERSION)
        try:
            while end < len(data):
                method, arguments, after = _record(data, end)
                fold.apply(method, arguments, end)
                last, end = end, after
        except _DamagedError as damage:
            raise DefinitionsError(f"{self.path}: damaged at byte {end} ({damage})") from damage
        if fold.skipped:
            raise DefinitionsError(f"{self.path}: definitions that make no sense")
        self.stored = fold.result()
        self.size = end
        """Bytes up to the end of the last record that was read."""
        self.deleted = fold.deleted
        """Records that compaction would remove."""
        self._last = data[last:end]

    def news(self) -> list[News] | None:
        """What was recorded since it was asked last, in its order. Returns: None if that cannot be
        said: all of it has to be read anew. Raises: OSError."""
        there, own = os.stat(self.path), os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            return None
        end = len(self._last)  # a record that was taken back had others in its place
        data = os.pread(self._fd, own.st_size - self.size + end, self.size - end)
        if not data.startswith(self._last):
            return None
        news: list[News] = []
        n_deleted = 0
        while end < len(data):
            try:
                method, arguments, after = _record(data, end)
            except _DamagedError:
                break  # it is being written
            try:
                news.append(_news(method, arguments))
            except (FieldTableError, LookupError):
                return None
            n_deleted += not news[-1][0]
            self._last = data[end:after]
            self.size += after - end
            end = after
        self.deleted += n_deleted
        return news

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # nobody may have waited for the thread


def _news(method: tuple[int, int], arguments: list[Any]) -> News:
    """What one record says. Raises: FieldTableError; LookupError: it says more than can be done in
    one step."""
    if isinstance(arguments[-1], bytes):
        arguments[-1] = fieldtable.from_content(arguments[-1])
    match method, arguments:
        case (40, 10), [name, kind, flags, table]:
            declared = ExchangeDef(
                name, kind, flags & 2 != 0, flags & 4 != 0, flags & 8 != 0, table
            )  # fmt: skip
            return True, declared.resolved()
        case (50, 10), [name, flags, table] if not flags & 4:
            return True, QueueDef(name, flags & 2 != 0, False, flags & 8 != 0, table)
        case (50, 40), [name, _]:
            return False, QueueDef(name)
        case ((50, 20) | (40, 30)) as of, [to, source, key, _, table]:
            return True, BindingDef(source, to, "queue" if of[0] == 50 else "exchange", key, table)
        case (50, 50), [to, source, key, table]:
            return False, BindingDef(source, to, "queue", key, table)
        case (40, 40), [to, source, key, _, table]:
            return False, BindingDef(source, to, "exchange", key, table)
    raise LookupError(method)


def read(path: Path) -> Definitions:
    """The sum of a file that may belong to a running broker: nothing is written or repaired.

    What cannot be read is left out with a warning. Raises: DefinitionsError.
    """
    try:
        data = read_regular(str(path))
    except OSError as error:
        raise DefinitionsError(f"{path}: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Definitions:
    """The sum of a file with that content, as `read` does. Raises: DefinitionsError."""
    if len(data) < len(VERSION) or not any(data):
        return Definitions()
    if not data.startswith(VERSION):
        raise DefinitionsError(f"{where}: unknown version {data[:4].hex()}")
    fold = _Fold()
    end = len(VERSION)
    while end < len(data):
        try:
            method, arguments, after = _record(data, end)
        except _DamagedError as damage:
            after = _resume(data, end + 1)
            log.warning("%s: %d bytes not read at byte %d: %s", where, after - end, end, damage)
        else:
            fold.apply(method, arguments, end)
        end = after
    return fold.result()


class _DamagedError(Exception):
    """What follows is not a whole record."""


def _record(data: bytes, offset: int) -> tuple[tuple[int, int], list[Any], int]:
    """Method, arguments and end of the record at `offset`; tables are given as their raw bytes.

    Raises: _DamagedError when there is no whole record.
    """
    if data[offset] != _FRAME:
        raise _DamagedError(f"frame type {data[offset]}")
    if offset + _HEAD.size > len(data):
        raise _DamagedError("record cut short")
    _, _, _, class_id, method_id, _ = _HEAD.unpack_from(data, offset)
    layout = _LAYOUTS.get((class_id, method_id))
    if layout is None:
        raise _DamagedError(f"method {class_id}.{method_id}")
    arguments, offset = _arguments(layout, data, offset + _HEAD.size)
    if offset >= len(data):
        raise _DamagedError("record cut short")
    if data[offset] != _END:
        raise _DamagedError(f"frame end {data[offset]}")
    return (class_id, method_id), arguments, offset + 1


def _resume(data: bytes, start: int) -> int:
    """The first offset from which records run exactly to the end of the file, else its size."""
    hopeless: set[int] = set()  # so that no offset is tried twice, however the bytes are made
    offset = data.find(_FRAME, start)
    while offset >= 0:
        chain, at = [], offset
        try:
            while at < len(data) and at not in hopeless:
                chain.append(at)
                at = _record(data, at)[2]
        except _DamagedError:
            at = -1
        if at == len(data):
            return offset
        hopeless.update(chain)
        offset = data.find(_FRAME, offset + 1)
    return len(data)


def _arguments(layout: str, data: bytes, offset: int) -> tuple[list[Any], int]:
    """Follow the layout through the data; any length is checked before it is used."""
    values: list[Any] = []
    try:
        for kind in layout:
            if kind == "f":
                values.append(data[offset])
                offset += 1
                continue
            if kind == "t":
                start = offset + _SIZE.size
                offset = start + _SIZE.unpack_from(data, offset)[0]
            else:
                start = offset + 1
                offset = start + data[offset]
            if offset > len(data):
                raise _DamagedError("record cut short")
            content = data[start:offset]
            values.append(content if kind == "t" else content.decode("utf-8", "surrogateescape"))
    except (IndexError, struct.error):
        raise _DamagedError("record cut short") from None
    return values, offset


class _Fold:
    """Adds records up: a later declare replaces, a delete removes with all bindings."""

    def __init__(self) -> None:
        self.deleted = 0
        self.skipped = 0
        self._exchanges: dict[str, ExchangeDef] = {}
        self._queues: dict[str, QueueDef] = {}
        self._bindings: dict[BindingDef, None] = {}
        # The bindings at either end, so that deleting does not search all of them.
        self._at: dict[tuple[str, str], set[BindingDef]] = {}

    def apply(self, method: tuple[int, int], arguments: list[Any], position: int) -> None:
        """Add one record; one that makes no sense is logged and skipped."""
        if isinstance(arguments[-1], bytes):
            try:
                arguments[-1] = fieldtable.from_content(arguments[-1])
            except FieldTableError as error:
                log.warning("definition of %r skipped: %s", arguments[0], error)
                self.skipped = self.skipped or position
                return
        self._METHODS[method](self, *arguments)

    def result(self) -> Definitions:
        """All that is left, without what the broker makes by itself."""
        internal = {
            prefix + exchange.name
            for exchange in self._exchanges.values()
            for prefix in ("amq.delayed-", "amq.delayed.")
            if exchange.delayed
        }
        return Definitions(
            exchanges=list(self._exchanges.values()),
            queues=[queue for queue in self._queues.values() if queue.name not in internal],
            # Stable sort: among themselves both kinds keep the order of their creation.
            bindings=sorted(self._bindings, key=lambda b: b.destination_type == "queue"),
        )

    def _declare_exchange(self, name: str, kind: str, flags: int, arguments: FieldTable) -> None:
        durable, auto_delete, internal = (flags & bit != 0 for bit in (2, 4, 8))
        declared = ExchangeDef(name, kind, durable, auto_delete, internal, arguments)
        self._exchanges[name] = declared.resolved()

    def _delete_exchange(self, name: str, _flags: int) -> None:
        self.deleted += 1
        self._exchanges.pop(name, None)
        self._forget(self._at.get(("exchange", name), ()))
        self._forget(self._at.get(("source", name), ()))

    def _declare_queue(self, name: str, flags: int, arguments: FieldTable) -> None:
        if flags & 4:
            # Its connection is gone, so the queue is. Older releases wrote such queues.
            self._delete_queue(name, 0)
            return
        self._queues[name] = QueueDef(name, flags & 2 != 0, False, flags & 8 != 0, arguments)

    def _delete_queue(self, name: str, _flags: int) -> None:
        self.deleted += 1
        self._queues.pop(name, None)
        self._forget(self._at.get(("queue", name), ()))

    def _bind_exchange(self, to: str, source: str, key: str, _f: int, args: FieldTable) -> None:
        self._bind(BindingDef(source, to, "exchange", key, args))

    def _unbind_exchange(self, to: str, source: str, key: str, _f: int, args: FieldTable) -> None:
        self.deleted += 1
        self._forget((BindingDef(source, to, "exchange", key, args),))

    def _bind_queue(self, to: str, source: str, key: str, _f: int, args: FieldTable) -> None:
        self._bind(BindingDef(source, to, "queue", key, args))

    def _unbind_queue(self, to: str, source: str, key: str, args: FieldTable) -> None:
        self.deleted += 1
        self._forget((BindingDef(source, to, "queue", key, args),))

    def _bind(self, binding: BindingDef) -> None:
        self._bindings.setdefault(binding)
        for end in _ends(binding):
            self._at.setdefault(end, set()).add(binding)

    def _forget(self, bindings: Iterable[BindingDef]) -> None:
        for binding in tuple(bindings):
            if binding in self._bindings:
                del self._bindings[binding]
                for end in _ends(binding):
                    self._at[end].discard(binding)

    _METHODS: ClassVar[dict[tuple[int, int], Callable[..., None]]] = {
        (40, 10): _declare_exchange, (40, 20): _delete_exchange,
        (40, 30): _bind_exchange, (40, 40): _unbind_exchange,
        (50, 10): _declare_queue, (50, 20): _bind_queue,
        (50, 40): _delete_queue, (50, 50): _unbind_queue,
    }  # fmt: skip


def _ends(binding: BindingDef) -> tuple[tuple[str, str], tuple[str, str]]:
    """The two places where a binding can be found."""
    return (binding.destination_type, binding.destination), ("source", binding.source)
