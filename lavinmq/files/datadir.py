"""The data directory: creation, lock, schema version; and the process id file.

``server.py`` opens one ``DataDir`` before anything reads or writes below it and closes it last. It
knows nothing of what the files mean and never touches messages.
Source: docs/formats.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from lavinmq.config.setting_types import shown
from lavinmq.files import snapshot
from lavinmq.files.changes import DIRECTORY_MODE, FILE_MODE, Changes
from lavinmq.files.whole import read_regular, sync_directory, write_atomic
from lavinmq.process import log

SCHEMA_VERSION = "4"
SCHEMA_FILE = "schema_version"
LOCK_FILE = ".lock"
STOP_FILE = "clean_stop"
OTHERS = 0o027
"""What nobody but the owner, and the group for reading, may do with what is in it."""
ACCESS = {"owner": 0o700, "group": 0o750}
"""Modes of the data directory itself; what is below is reached through it alone."""
PID_FILE_MODE = 0o644
NEEDS_A_PERSON = 78
"""Exit code that the unit does not start again after. Source: sysexits.h, EX_CONFIG."""
LASTING = frozenset((errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR))
"""What is in the place is of another kind: no other start finds it better. Not a regular file is
EINVAL."""
SHA1_DIGITS = 40
MARKER_BYTES = 1024  # more than any lock or schema file holds


class DataDirError(Exception):
    """A data directory that cannot be used; the text is one line for the operator.

    Args: is_lasting: it takes a person to change that, and another start cannot go better.
    """

    def __init__(self, text: str, *, is_lasting: bool = False) -> None:
        super().__init__(text)
        self.exit_code = NEEDS_A_PERSON if is_lasting else 1


class StoppedWaiting(Exception):
    """The process was told to end while it waited for the lock."""


class DataDir:
    """A data directory held by this process from ``open`` to ``close``.

    An orderly stop leaves a mark, which the next start takes away before it looks at anything else.
    The mark names the time of the lock file: whoever opened the directory in between has changed
    that, also a release or a broker that does not know the mark.

    Args: lock: whether to lock it at all; wait: whether ``open`` waits for another holder to go;
        access: who may look into it, a key of ``ACCESS``, or "keep" for whoever may already.
    """

    def __init__(
        self, path: str, *, lock: bool = True, wait: bool = True, access: str = "owner"
    ) -> None:
        self.path = path
        self._access = access
        self._locks = lock
        self._waits = wait
        self._lock_fd = -1
        self._is_stopped = False
        self.found_time = b""
        """Time of the lock file as whoever had it last has left it."""
        self.is_clean = False
        """Whether who had it last stopped in order: all that is in it was synced."""

    def open(self) -> None:
        """Create the directory, wait for its lock, check or write its schema version.

        Blocks while another process holds the lock, which makes a cold stand-by on a shared
        disk; the holder is logged. Call it before any event loop runs.
        Raises: ``DataDirError``, also for a lock held by another when told not to wait;
        ``StoppedWaiting`` on SIGTERM or SIGINT while waiting.
        """
        try:
            self._create()
            self._warn_root()
            self.found_time = _time_of(os.path.join(self.path, LOCK_FILE))
            if self._locks:
                self._lock()
            is_ours = self._is_ours()
            self._take_mark()
            snapshot.remove_left(self.path)
            self._check_schema()
            if self._access in ACCESS:
                self._guard(ACCESS[self._access], is_ours)
        except OSError as error:
            self.close()
            where = error.filename or self.path
            remedy = _remedy(error, where, self.path)
            raise DataDirError(
                f"Data directory: {where!r}: {error.strerror}{remedy}",
                is_lasting=bool(remedy) or error.errno in LASTING,
            ) from error
        except (DataDirError, StoppedWaiting):
            self.close()
            raise

    @property
    def lock_time(self) -> bytes:
        """Time of the lock file by now; empty when the directory is not locked."""
        return _time_of(os.path.join(self.path, LOCK_FILE)) if self._lock_fd >= 0 else b""

    def stopped(self) -> None:
        """Everything is written and synced: have `close` leave the mark of an orderly stop."""
        self._is_stopped = True

    def close(self) -> None:
        """Empty and release the lock; harmless when it is not held."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            with suppress(OSError):
                snapshot.remove_left(self.path)
            with suppress(OSError):
                # Its time says who has had the directory: that is not changed by letting go.
                found = os.fstat(fd)
                os.ftruncate(fd, 0)
                os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
        if self._is_stopped:
            self._leave_mark()
        if fd >= 0:
            with suppress(OSError):
                # Closing does not unlock while a forked child has the descriptor too.
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __enter__(self) -> DataDir:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self) -> None:
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise DataDirError(f"Data directory {self.path!r} is no directory", is_lasting=True)
        missing, path = [], os.path.abspath(self.path)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        os.makedirs(self.path, mode=ACCESS.get(self._access, DIRECTORY_MODE), exist_ok=True)
        # Without this a power cut may take the whole directory, synced files and all.
        for path in missing:
            sync_directory(os.path.dirname(path))

    def _warn_root(self) -> None:
        """Root may write everywhere; whoever the directory belongs to may not go on from there."""
        logger, owner = log.get("lmq.data_dir"), os.stat(self.path).st_uid
        if os.geteuid() == 0 and owner:
            logger.warning(
                "Data directory %s belongs to user %s, and this broker runs as root: what it writes"
                " there is root's, so that a broker of that user cannot start again. Start it as"
                " that user; if it was started as root, stop it and `chown -R %s %s`",
                self.path, owner, owner, self.path,
            )  # fmt: skip

    def _is_ours(self) -> bool:
        """Whether nobody else has files in it: it has been a data directory, or is new."""
        names = set(os.listdir(self.path))
        return SCHEMA_FILE in names or names <= {LOCK_FILE}

    def _guard(self, wanted: int, is_ours: bool) -> None:
        """Keep others out, and say so if they were not; a directory that holds other things too
        is left alone. What cannot be changed is no reason not to start."""
        logger = log.get("lmq.data_dir")
        mode = os.stat(self.path).st_mode
        if stat.S_IMODE(mode) & 0o777 == wanted:
            return
        if not is_ours or mode & stat.S_ISVTX:
            logger.warning(
                "Data directory %s has mode %o and other things in it: its mode stays", self.path,
                stat.S_IMODE(mode),
            )  # fmt: skip
            return
        try:
            os.chmod(self.path, stat.S_IMODE(mode) & ~0o777 | wanted)
            n_mended = sum(map(_mended, os.scandir(self.path)))
        except OSError as error:
            logger.warning(
                "Data directory %s has mode %o, which cannot be changed to %o: %s", self.path,
                stat.S_IMODE(mode), wanted, error.strerror,
            )  # fmt: skip
            return
        logger.notice(
            "Data directory %s had mode %o, now %o; %d entries in it were open to others",
            self.path, stat.S_IMODE(mode), wanted, n_mended,
        )  # fmt: skip

    def _lock(self) -> None:
        path = os.path.join(self.path, LOCK_FILE)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            if not _try_lock(fd):
                self._wait(fd)
            self.found_time = _time_of(path)
            os.ftruncate(fd, 0)
            _sign(fd)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd

    def _take_mark(self) -> None:
        """Learn whether there was an orderly stop. From now on there was none, also for who comes
        after a loss of power."""
        path = os.path.join(self.path, STOP_FILE)
        try:
            mark = read_regular(path)[:MARKER_BYTES]
        except FileNotFoundError:
            return
        self.is_clean = mark == self.found_time
        os.unlink(path)
        sync_directory(self.path)

    def _leave_mark(self) -> None:
        """Without it the next start takes more care: a failure is logged, and no more."""
        self._is_stopped = False
        try:
            path = os.path.join(self.path, LOCK_FILE)
            write_atomic(os.path.join(self.path, STOP_FILE), _time_of(path), Changes())
        except OSError as error:
            log.get("lmq.data_dir").warning("No mark of an orderly stop: %s", error)

    def _wait(self, fd: int) -> None:
        logger = log.get("lmq.data_dir_lock")
        holder = os.pread(fd, MARKER_BYTES, 0).decode(errors="replace").strip() or "unknown"
        if not self._waits:
            raise DataDirError(f"Data directory {self.path!r} is locked by {holder}")
        logger.warning("Data directory %s is locked by %s, waiting for it", self.path, holder)
        with _ended_by_signals():
            fcntl.flock(fd, fcntl.LOCK_EX)
        logger.info("Lock acquired")

    def _check_schema(self) -> None:
        path = os.path.join(self.path, SCHEMA_FILE)
        try:
            version = read_regular(path)[:MARKER_BYTES].decode(errors="replace").strip("\0 \r\n")
        except FileNotFoundError:
            version = ""
        if not version:
            self._adopt(path)  # empty: a crash came between its creation and its content
            return
        if version != SCHEMA_VERSION:
            raise DataDirError(
                f"{path!r} says {shown(version)}, this broker reads version {SCHEMA_VERSION} only",
                is_lasting=True,
            )

    def _adopt(self, path: str) -> None:
        old = self._old_format_file()
        if old:
            raise DataDirError(
                f"{old!r} is in a format before version {SCHEMA_VERSION};"
                " migrate the directory with LavinMQ 2.x first",
                is_lasting=True,
            )
        write_atomic(path, SCHEMA_VERSION.encode(), Changes())

    def _old_format_file(self) -> str:
        """Return a file that only formats before version 4 have, if there is one.

        These kept messages per vhost and an index named ``enq`` per queue.
        """
        for vhost in _hashed_directories(self.path):
            for name in os.listdir(vhost):
                if name.startswith("msgs."):
                    return os.path.join(vhost, name)
            for queue in _hashed_directories(vhost):
                index = os.path.join(queue, "enq")
                if os.path.exists(index):
                    return index
        return ""


class PidFile:
    """A file that holds the process id while the process lives."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def write(self) -> bool:
        """Write the process id; a stale number is replaced.

        Returns: False when the file belongs to a live process, holds something else or cannot be
        written. That is logged, and the broker goes on without.
        Source: docs/configuration.md.
        """
        try:
            problem = self._take()
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            self._forget()
            log.get("lmq.launcher").error("No pidfile %s: %s", self.path, problem)
        return not problem

    def remove(self) -> None:
        """Remove the file, if this process wrote it."""
        if self._fd < 0:
            return
        with suppress(OSError):
            os.unlink(self.path)
        self._forget()

    def _take(self) -> str:
        """Write the id and return an empty string, or return why not."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PID_FILE_MODE)
        if not _try_lock(self._fd):
            return "it is locked by another process"
        content = os.pread(self._fd, MARKER_BYTES, 0).decode(errors="replace").strip()
        if content and not (content.isascii() and content.isdigit() and len(content) <= 10):
            return f"it holds {shown(content)} instead of a process id"
        if content and _is_alive(int(content)):
            return f"process {content} is alive"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return ""

    def _forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _remedy(error: OSError, where: str, data_dir: str) -> str:
    """What a person can do about a place that the broker may not write to; empty: nothing.

    Args: where: what could not be opened or made, in the data directory or above it.
    """
    if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ""
    path, place = os.path.abspath(data_dir), _nearest(where)
    found = os.stat(place)
    mode = stat.S_IMODE(found.st_mode)
    user, group = os.geteuid(), os.getegid()
    if error.errno == errno.EROFS or not mode:
        steps = (
            [] if os.path.isdir(path) or not mode else [f"`install -d -o {user} -g {group} {path}`"]
        )
        # In the place of home directories systemd shows an empty one that nobody may enter.
        lines = f"`ReadWritePaths={path}`" + ("" if mode else " and `ProtectHome=no`")
        steps += [f"`systemctl edit lavinmq` with {lines} below `[Service]`", "a restart"]
        return (
            ". A service of systemd may only write where its unit lets it; what helps, as root: "
            + ", then ".join(steps)
        )
    return (
        f". {place!r} belongs to user {found.st_uid} and group {found.st_gid}, with mode {mode:o};"
        f" the broker runs as user {user} and group {group}. What helps, as root, in a container on"
        f" the volume: `chown -R {user}:{group} {path}`"
    )


def _nearest(path: str) -> str:
    """The path, or the first directory above it that can be looked at."""
    path = os.path.abspath(path)
    while path != "/":
        with suppress(OSError):
            os.stat(path)
            break
        path = os.path.dirname(path)
    return path


def _time_of(path: str) -> bytes:
    """When a file was changed last, as text; that of one that is not there has its own."""
    try:
        return b"%d\n" % os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return b"none\n"


def _mended(entry: os.DirEntry[str]) -> bool:
    """Close an entry of the data directory to others. Returns: whether it was open to them."""
    mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
    if entry.is_symlink() or not mode & OTHERS:
        return False
    os.chmod(entry.path, mode & ~OTHERS)
    return True


def _sign(fd: int) -> None:
    """Say in the lock who holds it. It is for people: a disk without room is no reason not to
    start, since consumers make room. Raises: OSError."""
    try:
        os.write(fd, f"PID {os.getpid()} @ {socket.gethostname()}".encode())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.get("lmq.data_dir_lock").warning("The lock does not name its holder: %s", error)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    """Return whether another process has this id.

    Our own id in the file is a leftover: in a container every start may be process 1.
    """
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except OverflowError:
        return False
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _hashed_directories(path: str) -> Iterator[str]:
    """Return the directories below ``path`` that are named by a SHA-1: vhosts, or queues."""
    with os.scandir(path) as entries:
        for entry in entries:
            if len(entry.name) == SHA1_DIGITS and entry.is_dir():
                yield entry.path


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end a blocking call, which Python would otherwise repeat."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread; there is nothing to install here
        return
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise StoppedWaiting
